//! What is seen of the gateway from outside: metrics and logs.

pub mod metrics;
