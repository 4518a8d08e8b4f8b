//! What several tests share: real servers they start and end themselves.
#![allow(dead_code, reason = "each test file uses its own part of this")]
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test stops at the first surprise")]
#![allow(clippy::disallowed_methods, reason = "how long a process may take is told by the system's clock")]

pub mod bodies;
pub mod certificates;
pub mod client;
pub mod cluster;
pub mod frames;
pub mod gateway;
pub mod link;
pub mod log;
pub mod origin;
pub mod ports;
pub mod redis;
pub mod store;
pub mod tls;
pub mod upstream;
pub mod wait;
pub mod wire;
