//! What several tests share: real servers they start and end themselves.
#![allow(dead_code, reason = "each test file uses its own part of this")]

pub mod redis;
