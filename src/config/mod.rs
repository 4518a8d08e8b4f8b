//! The file: parsed, checked, and turned into the policy in force. What `load` returns is checked; nothing in it is left to doubt.
//!
//! `reader` walks the document and collects problems; one file per section says what the section may hold; `load` puts them
//! together; `watch` tells when the file may have changed.

mod address;
pub mod certificates;
pub mod compile;
mod exceptions;
mod key;
mod limits;
mod listeners;
pub mod load;
pub mod model;
mod pattern;
mod policies;
pub mod problem;
mod reader;
mod routes;
mod settings;
mod store;
mod text;
mod tls;
mod upstream_tls;
mod upstreams;
pub mod watch;
