//! A crowd before several gateways: `crowd UNTIL CONNECTIONS RATE EXPONENT PATH KEYS ADDRESS…`.
//!
//! Until a moment of the system's clock (seconds), so many connections, dealt out to the gateways in turn, ask for a path with
//! keys by Zipf's law: the nth line of the file KEYS comes in proportion to n^-EXPONENT. Together they ask RATE times a second,
//! or with 0 as often as they can. Each request is a line of output: when it was sent and how long its answer took, in µs,
//! its key's number, and the status. Nothing is judged here.

#![allow(clippy::disallowed_methods, reason = "a load generator reads the clock; nothing of the gateway is in here")]

#[path = "../compare/http.rs"]
mod http;

use std::fmt::Write as _;
use std::io::{self, Write as _};
use std::net::SocketAddr;
use std::process::ExitCode;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

struct Crowd {
    until_us: u64,
    /// Between two requests of one connection.
    step_us: u64,
    path: String,
    keys: Vec<String>,
    /// The chance that a key is one of the first ones, for each number of them.
    chances: Vec<f64>,
}

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("crowd: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> io::Result<()> {
    let wrong = || io::Error::other("usage: crowd UNTIL CONNECTIONS RATE EXPONENT PATH KEYS ADDRESS…");
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [until, connections, rate, exponent, path, keys, addresses @ ..] = &arguments[..] else { return Err(wrong()) };
    let number = |text: &String| text.parse::<f64>().map_err(|_| wrong());
    let addresses: Vec<SocketAddr> = addresses.iter().filter_map(|address| address.parse().ok()).collect();
    let connections: usize = connections.parse().map_err(|_| wrong())?;
    let (until, rate, exponent) = (number(until)?, number(rate)?, number(exponent)?);
    let keys: Vec<String> = std::fs::read_to_string(keys)?.lines().map(str::to_owned).collect();
    if addresses.is_empty() || keys.is_empty() || connections == 0 {
        return Err(wrong());
    }
    let step = if rate > 0.0 { Duration::from_secs(connections as u64).div_f64(rate) } else { Duration::ZERO };
    let chances = zipf(keys.len(), exponent);
    let until_us = as_us(Duration::from_secs_f64(until));
    let crowd = Arc::new(Crowd { until_us, step_us: as_us(step), path: path.clone(), keys, chances });
    let begin_us = now_us();
    let visit = |turn: usize| {
        let (crowd, address) = (crowd.clone(), addresses[turn % addresses.len()]);
        let first_us = begin_us + crowd.step_us * turn as u64 / connections as u64;
        thread::spawn(move || crowd.visit(address, first_us, turn as u64 + 1))
    };
    let threads: Vec<_> = (0..connections).map(visit).collect();
    for thread in threads {
        let told = thread.join().map_err(|_| io::Error::other("a connection panicked"))??;
        io::stdout().write_all(told.as_bytes())?;
    }
    Ok(())
}

impl Crowd {
    fn visit(&self, address: SocketAddr, first_us: u64, seed: u64) -> io::Result<String> {
        let mut connection = http::Connection::open(address)?;
        let (mut random, mut told, mut due_us) = (seed.wrapping_mul(0x9e37_79b9_7f4a_7c15), String::new(), first_us);
        loop {
            thread::sleep(Duration::from_micros(due_us.saturating_sub(now_us())));
            let sent_us = now_us();
            if sent_us >= self.until_us {
                return Ok(told);
            }
            let key = self.chances.partition_point(|chance| *chance < uniform(&mut random)).min(self.keys.len() - 1);
            let status = connection.get(&self.path, &self.keys[key])?;
            let _ = writeln!(told, "{sent_us} {} {key} {status}", now_us() - sent_us);
            due_us = (due_us + self.step_us).max(sent_us);
        }
    }
}

#[allow(clippy::cast_precision_loss, reason = "far fewer keys than 2^53")]
fn zipf(count: usize, exponent: f64) -> Vec<f64> {
    let mut sum = 0.0;
    let mut add = |rank: usize| {
        sum += (rank as f64).powf(-exponent);
        sum
    };
    let sums: Vec<f64> = (1..=count).map(&mut add).collect();
    sums.iter().map(|part| part / sum).collect()
}

/// Xorshift: in [0, 1).
#[allow(clippy::cast_precision_loss, reason = "53 bits")]
fn uniform(state: &mut u64) -> f64 {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    (*state >> 11) as f64 / (1_u64 << 53) as f64
}

fn now_us() -> u64 {
    as_us(SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default())
}

fn as_us(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}
