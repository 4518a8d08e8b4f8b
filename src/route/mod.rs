//! Which route a request takes: the path normalised once, then host, path, method and headers, most specific first.
//!
//! `path` turns a request target into the one spelling that is matched and forwarded, `host` does so for an authority;
//! `matcher` reads and compares patterns; `table` finds the route. Generic over what a route carries: this room knows no
//! policy and no upstream, and what a refused spelling is answered with is the caller's to say.

mod host;
mod matcher;
mod path;
mod table;
mod tree;

pub use host::{HostError, LastHost, normalise_host};
pub use matcher::{Conflict, PatternError, conflicts, same_set};
pub use path::{NormalPath, PathError, normalise, split_target};
pub use table::Table;

/// What a route matches, checked.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Pattern {
    /// Lower case; empty: any.
    pub hosts: Vec<HostPattern>,
    pub path: PathPattern,
    /// Empty: any.
    pub methods: Vec<http::Method>,
    /// All must hold.
    pub headers: Vec<(http::HeaderName, HeaderPattern)>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum HostPattern {
    Exact(String),
    /// `*.example.org` is kept as `example.org`: one or more labels before it.
    Under(String),
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum HeaderPattern {
    /// The field is there, be it empty.
    Present,
    /// The field's value; several lines are one value, joined by a comma.
    Value(String),
}

/// `/login`, `/v1/*`, `/users/{id}/posts`, `/users/{id}/*`: literal segments and one-segment wildcards, then the end or everything below.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct PathPattern {
    pub segments: Vec<Segment>,
    pub prefix: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Segment {
    /// In normalised form.
    Literal(String),
    /// The name is for people; it plays no part in matching.
    Any(String),
}
