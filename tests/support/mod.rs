//! What several tests share: real servers they start and end themselves.
#![allow(dead_code, reason = "each test file uses its own part of this")]

pub mod link;
pub mod log;
pub mod redis;
pub mod store;
pub mod wire;
