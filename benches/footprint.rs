//! Bytes resident a key in the memory store: `cargo bench --bench footprint`.
//!
//! One line a population, with the allocator the gateway runs on. Also the
//! slowest single decision while it grew, which is where the growth of a table would show.

use staunch::algorithm::{Algorithm, Quota};
use staunch::clock;
use staunch::store::memory::Memory;
use staunch::store::{Check, CounterKey};
use std::process::Command;
use std::time::Duration;
use std::{env, fs};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() {
    match env::args().nth(1).as_deref() {
        Some(number) if number.starts_with(|first: char| first.is_ascii_digit()) => {
            let population: usize = number.parse().expect("a number given below");
            measure(Algorithm::ALL[population % 10], population - population % 10);
        }
        _ => measure_each_alone(),
    }
}

/// In a process of its own, for what one population frees the next would reuse. The argument is the number of keys, with the
/// algorithm in its last digit.
fn measure_each_alone() {
    for algorithm in 0..Algorithm::ALL.len() {
        for keys in [1_000_000, 10_000_000] {
            let program = env::current_exe().expect("this program has a path");
            let status = Command::new(program).arg((keys + algorithm).to_string()).status();
            assert!(status.expect("it starts again").success());
        }
    }
}

fn measure(algorithm: Algorithm, keys: usize) {
    let before = resident_bytes();
    let memory = Memory::new(keys);
    let quota = Quota { units: 100, period_us: 3_600_000_000, burst: 100 };
    let (start, mut slowest) = (clock::now(), Duration::ZERO);
    for _ in 0..keys {
        let check = Check { key: CounterKey(fastrand::u128(..)), algorithm, quota, cost: 1, enforced: true };
        let asked = clock::now();
        let answers = memory.decide(&[check], clock::now_us());
        slowest = slowest.max(asked.elapsed());
        assert!(answers[0].charged);
    }
    let each = start.elapsed().as_nanos() / keys as u128;
    let bytes = resident_bytes().saturating_sub(before);
    assert_eq!(memory.len(), keys);
    let tenths = bytes * 10 / keys;
    let (whole, tenth) = (tenths / 10, tenths % 10);
    println!("{algorithm:?}: {keys} keys, {whole}.{tenth} bytes a key, {each} ns a new key, slowest {slowest:?}");
}

fn resident_bytes() -> usize {
    let statm = fs::read_to_string("/proc/self/statm").expect("Linux has it");
    let pages: usize = statm.split_whitespace().nth(1).expect("resident is second").parse().expect("a number");
    pages * 4096
}
