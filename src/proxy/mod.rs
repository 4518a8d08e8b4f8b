//! The request path: `service` is the life of a request on one page; each step it calls is a file of its own.

#![allow(
    clippy::redundant_allocation,
    reason = "Rc<Arc<Snapshot>>: all cores share it, and each counts its own requests' holds without an atomic"
)]

pub mod client_addr;
mod forward;
mod headers;
mod peer;
pub mod policy;
mod record;
pub mod service;

pub use peer::{Bounds, Peer};
pub use policy::{Route, Snapshot};
pub use service::Gateway;
