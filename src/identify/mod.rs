//! Whose counter it is: from a request to each limit's key, as a digest and, where the configuration needs it, as a value.
//!
//! `source` names the key sources and reads them from text; `fields` and `target` take their values from a request, one
//! file per family; `digest` composes a limit's key from them. What becomes of a request without its key is the limiter's
//! to decide. Nothing here allocates on a request's path, unless a value is asked for.

mod digest;
mod fields;
pub mod rendezvous;
mod source;
mod target;

pub use digest::{Identity, Keyer, Namespace, Prefixes, Value};
pub use source::KeyError;

use http::HeaderMap;
use http::Method;
use std::net::IpAddr;

/// `key = …` of a limit, parsed: one source or a list of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeySpec {
    pub sources: Vec<KeySource>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KeySource {
    ClientIp,
    Header(http::HeaderName),
    Cookie(String),
    Query(String),
    Host,
    Method,
    Path,
    /// From 1.
    PathSegment(usize),
    Route,
    Bearer,
    Global,
}

/// All that a key can be built from. Borrowed; built once per request.
#[derive(Clone, Copy, Debug)]
pub struct Facts<'a> {
    pub client: IpAddr,
    pub method: &'a Method,
    /// Lower case, without port and trailing dot; empty when there is none.
    pub host: &'a str,
    /// The normalised path; without trailing slash where that is not "/" (so `/login/` is `/login`).
    pub path: &'a str,
    /// Without the question mark; `None` when there is none.
    pub query: Option<&'a str>,
    pub headers: &'a HeaderMap,
    pub route: &'a str,
}
