//! Ports of the loopback interface below those the kernel hands to outgoing connections, so that none is taken from a
//! server that is down for a moment, or not up yet.
#![allow(clippy::expect_used, reason = "as the tests; benches include this file alone")]

use std::collections::BTreeSet;
use std::net::{Ipv4Addr, TcpListener};
use std::sync::Mutex;

static GIVEN: Mutex<BTreeSet<u16>> = Mutex::new(BTreeSet::new());

/// A port that nobody has, and that was not given before.
pub fn free() -> u16 {
    loop {
        let port = fastrand::u16(12_000..32_000);
        let fresh = GIVEN.lock().expect("no test panics while it holds this").insert(port);
        if fresh && TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok() {
            return port;
        }
    }
}
