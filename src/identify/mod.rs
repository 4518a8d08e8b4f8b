//! Whose counter it is: from a request to each limit's key, as a digest and, where the configuration needs it, as a value.
//! (skeleton: the types are the seam, the bodies are to be written; one file per family of key sources)

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
