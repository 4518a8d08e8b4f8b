//! The request path.

pub mod client_addr;
