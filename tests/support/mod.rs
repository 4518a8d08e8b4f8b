//! What several tests share: real servers they start and end themselves.
#![allow(dead_code, reason = "each test file uses its own part of this")]

pub mod client;
pub mod gateway;
pub mod link;
pub mod log;
pub mod ports;
pub mod redis;
pub mod store;
pub mod upstream;
pub mod wait;
pub mod wire;
