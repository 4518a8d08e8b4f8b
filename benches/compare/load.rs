//! A load of constant rate, for latency below saturation: `load ADDRESS RATE SECONDS KEYS`, percentiles as JSON.
//!
//! Sixteen threads with a connection each take turns by a fixed timetable. A request that could not start on time because
//! the answer before it was late is measured from when it should have started, so that a stall is not hidden by the load
//! that it holds up (coordinated omission). The timer's own lateness is not counted. Any answer but 200 ends the run.

#![allow(clippy::disallowed_methods, reason = "a load generator reads the clock; nothing of the gateway is in here")]

mod http;

use std::io;
use std::net::SocketAddr;
use std::process::ExitCode;
use std::thread;
use std::time::{Duration, Instant};

const CONNECTIONS: u32 = 16;

#[derive(Clone, Copy)]
struct Timetable {
    address: SocketAddr,
    begin: Instant,
    /// Between two requests of one connection.
    step: Duration,
    requests: u32,
    keys: u32,
}

fn main() -> ExitCode {
    match run() {
        Ok(report) => {
            println!("{report}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("load: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> io::Result<String> {
    let usage = || io::Error::other("usage: load ADDRESS RATE SECONDS KEYS");
    let [address, numbers @ ..] = &std::env::args().skip(1).collect::<Vec<_>>()[..] else { return Err(usage()) };
    let numbers: Vec<u32> = numbers.iter().filter_map(|text| text.parse().ok()).collect();
    let (&[rate, seconds, keys], Ok(address)) = (&numbers[..], address.parse()) else { return Err(usage()) };
    let begin = Instant::now() + Duration::from_millis(50);
    let gap = Duration::from_secs(1) / rate.max(1);
    let table = Timetable { address, begin, step: gap * CONNECTIONS, requests: rate * seconds / CONNECTIONS, keys };
    let threads: Vec<_> = (0..CONNECTIONS)
        .map(|turn| thread::spawn(move || drive(Timetable { begin: begin + gap * turn, ..table }, turn)))
        .collect();
    let mut latencies = Vec::new();
    for thread in threads {
        latencies.extend(thread.join().map_err(|_| io::Error::other("a connection panicked"))??);
    }
    Ok(report(latencies))
}

/// One connection's turns; each latency in nanoseconds.
fn drive(table: Timetable, turn: u32) -> io::Result<Vec<u128>> {
    let mut connection = http::Connection::open(table.address)?;
    let mut latencies = Vec::with_capacity(table.requests as usize);
    for number in 0..table.requests {
        let due = table.begin + table.step * number;
        let now = Instant::now();
        let start = if now < due {
            thread::sleep(due - now);
            Instant::now()
        } else {
            due
        };
        let key = (number * CONNECTIONS + turn) % table.keys.max(1);
        let status = connection.get("/", &format!("user-{key}"))?;
        latencies.push(start.elapsed().as_nanos());
        if status != 200 {
            return Err(io::Error::other(format!("an answer of status {status}")));
        }
    }
    Ok(latencies)
}

fn report(mut latencies: Vec<u128>) -> String {
    latencies.sort_unstable();
    let at = |per_mille: usize| {
        let index = (latencies.len() * per_mille / 1000).min(latencies.len().saturating_sub(1));
        latencies.get(index).map_or(0, |nanoseconds| nanoseconds / 1000)
    };
    let [p50, p99, p999] = [500, 990, 999].map(at);
    format!("{{\"requests\": {}, \"p50\": {p50}, \"p99\": {p99}, \"p999\": {p999}}}", latencies.len())
}
