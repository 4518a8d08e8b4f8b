//! What is seen of the gateway from outside: metrics and logs.

pub mod access;
pub mod escape;
mod labels;
pub mod log;
pub mod metrics;
pub mod sink;
pub mod timestamp;
pub mod top;
