//! Which route a request takes: the path normalised once, then host, path, method and headers, most specific first.
//! (skeleton: the types are the seam; path.rs, matcher.rs, table.rs are to be written. Generic over what a route carries.)

/// What a route matches, checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pattern {
    /// Lower case; empty: any.
    pub hosts: Vec<HostPattern>,
    pub path: PathPattern,
    /// Empty: any.
    pub methods: Vec<http::Method>,
    /// All must hold.
    pub headers: Vec<(http::HeaderName, HeaderPattern)>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum HostPattern {
    Exact(String),
    /// `*.example.org` is kept as `example.org`: one or more labels before it.
    Under(String),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HeaderPattern {
    Present,
    Value(String),
}

/// `/login`, `/v1/*`, `/users/{id}/posts`, `/users/{id}/*`: literal segments and one-segment wildcards, then the end or everything below.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PathPattern {
    pub segments: Vec<Segment>,
    pub prefix: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Segment {
    /// In normalised form.
    Literal(String),
    /// The name is for people; it plays no part in matching.
    Any(String),
}
