//! Patterns: reading them from text, whether a request meets their methods and fields, which of two is more specific, and
//! whether two match the same set of requests.

use super::path::push_escape;
use super::{
    HeaderPattern, HostError, HostPattern, PathError, PathPattern, Pattern, Segment, normalise, normalise_host,
};
use http::{HeaderMap, HeaderName, Method};
use std::cmp::Reverse;
use std::collections::HashMap;
use std::fmt;

/// What is wrong with a pattern's text; what would be right.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PatternError {
    #[error("a path begins with a slash; write `/{0}`")]
    NoSlash(String),
    #[error("`*` stands only at the end, after a slash, for everything below; use `{{name}}` for one segment")]
    Star,
    #[error("`{0}` is no whole segment; write `/{{name}}/` for one segment of any value")]
    Brace(String),
    #[error("a route matches no query; leave out what begins with `?`")]
    Query,
    #[error("{0}: no request has such a path")]
    Path(PathError),
    #[error("requests come with dot segments and double slashes resolved; write `{0}`")]
    NotNormal(String),
    #[error("{0}; write a name such as `api.example.com` or `*.example.org`")]
    Host(HostError),
    #[error("a host pattern has no port; write `{0}`")]
    HostPort(String),
    #[error("`*` in a host stands for the labels before a domain; write `*.example.org`, or leave `hosts` out for any")]
    HostStar,
}

impl PathPattern {
    /// Reads `/login`, `/v1/*`, `/users/{id}/posts`. Literals may be written as people write them: `/café`, `/%6Cogin`.
    pub fn parse(text: &str) -> Result<Self, PatternError> {
        let Some(body) = text.strip_prefix('/') else { return Err(PatternError::NoSlash(text.to_owned())) };
        if body.contains('?') {
            return Err(PatternError::Query);
        }
        let (body, prefix) = match body.strip_suffix('*') {
            Some("") => ("", true),
            Some(rest) => (rest.strip_suffix('/').ok_or(PatternError::Star)?, true),
            None => (body.strip_suffix('/').unwrap_or(body), false),
        };
        let mut segments = Vec::new();
        if !body.is_empty() {
            for segment in body.split('/') {
                segments.push(Segment::parse(segment, text)?);
            }
        }
        Ok(Self { segments, prefix })
    }
}

impl Segment {
    fn parse(segment: &str, whole: &str) -> Result<Self, PatternError> {
        if segment.contains('*') {
            return Err(PatternError::Star);
        }
        if let Some(name) = segment.strip_prefix('{').and_then(|rest| rest.strip_suffix('}'))
            && !name.is_empty()
            && !name.contains(['{', '}'])
        {
            return Ok(Self::Any(name.to_owned()));
        }
        if segment.contains(['{', '}']) {
            return Err(PatternError::Brace(segment.to_owned()));
        }
        let path = format!("/{}", escaped(segment));
        let normal = normalise(path.as_bytes()).map_err(PatternError::Path)?;
        match normal.forwarded().strip_prefix('/') {
            Some(literal) if !literal.is_empty() => Ok(Self::Literal(literal.to_owned())),
            _ => Err(PatternError::NotNormal(resolved(whole))),
        }
    }
}

/// What a person may write raw and a request never does: blanks and characters beyond ASCII.
fn escaped(segment: &str) -> String {
    let mut text = String::with_capacity(segment.len());
    for character in segment.chars() {
        if character.is_ascii() && character != ' ' {
            text.push(character);
        } else {
            character.encode_utf8(&mut [0; 4]).bytes().for_each(|byte| push_escape(&mut text, byte));
        }
    }
    text
}

/// The pattern with its dot segments and double slashes resolved, for the error's advice.
fn resolved(whole: &str) -> String {
    let mut segments: Vec<&str> = Vec::new();
    for segment in whole.split('/') {
        match segment {
            "" | "." => {}
            ".." => drop(segments.pop()),
            other => segments.push(other),
        }
    }
    format!("/{}", segments.join("/"))
}

impl fmt::Display for PathPattern {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        for segment in &self.segments {
            match segment {
                Segment::Literal(text) => write!(formatter, "/{text}")?,
                Segment::Any(name) => write!(formatter, "/{{{name}}}")?,
            }
        }
        match (self.prefix, self.segments.is_empty()) {
            (true, _) => formatter.write_str("/*"),
            (false, true) => formatter.write_str("/"),
            (false, false) => Ok(()),
        }
    }
}

impl HostPattern {
    /// Reads `api.example.com` or `*.example.org`.
    pub fn parse(text: &str) -> Result<Self, PatternError> {
        let (name, under) = text.strip_prefix("*.").map_or((text, false), |domain| (domain, true));
        if name.contains('*') {
            return Err(PatternError::HostStar);
        }
        let normal = normalise_host(name.as_bytes()).map_err(PatternError::Host)?.into_owned();
        let has_port = name.rsplit_once(':').is_some_and(|(_, port)| !port.contains(']'));
        match (normal.is_empty(), has_port, under) {
            (true, _, _) => Err(PatternError::Host(HostError::EmptyLabel)),
            (_, true, _) => Err(PatternError::HostPort(if under { format!("*.{normal}") } else { normal })),
            (_, _, true) if normal.starts_with('[') => Err(PatternError::Host(HostError::Brackets)),
            (_, _, true) => Ok(Self::Under(normal)),
            (_, _, false) => Ok(Self::Exact(normal)),
        }
    }

    /// Whether all hosts of `other` are hosts of this one, and not the other way round.
    fn covers(&self, other: &Self) -> bool {
        let Self::Under(domain) = self else { return false };
        let (Self::Exact(name) | Self::Under(name)) = other;
        name.strip_suffix(domain.as_str()).is_some_and(|labels| labels.ends_with('.') && labels.len() > 1)
    }
}

impl fmt::Display for HostPattern {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exact(name) => formatter.write_str(name),
            Self::Under(domain) => write!(formatter, "*.{domain}"),
        }
    }
}

/// The part of a pattern that is no tree: what is left to ask when host and path have matched.
#[derive(Clone, Debug)]
pub(super) struct Conditions {
    methods: Vec<Method>,
    headers: Vec<(HeaderName, HeaderPattern)>,
}

impl Conditions {
    /// `None`: there is nothing left to ask.
    pub(super) fn of(pattern: &Pattern) -> Option<Box<Self>> {
        let asks = !pattern.methods.is_empty() || !pattern.headers.is_empty();
        asks.then(|| Box::new(Self { methods: pattern.methods.clone(), headers: pattern.headers.clone() }))
    }

    pub(super) fn hold(&self, method: &Method, headers: &HeaderMap) -> bool {
        (self.methods.is_empty() || self.methods.contains(method))
            && self.headers.iter().all(|(name, pattern)| match pattern {
                HeaderPattern::Present => headers.contains_key(name),
                HeaderPattern::Value(value) => is_value(headers, name, value),
            })
    }
}

/// Whether the field's lines, joined by commas, are exactly `wanted`: a second line cannot hide or add a value.
fn is_value(headers: &HeaderMap, name: &HeaderName, wanted: &str) -> bool {
    let mut rest = wanted.as_bytes();
    let mut lines = headers.get_all(name).iter();
    let Some(first) = lines.next() else { return false };
    let Some(after) = rest.strip_prefix(first.as_bytes().trim_ascii()) else { return false };
    rest = after;
    for line in lines {
        match rest.strip_prefix(b",").and_then(|rest| rest.strip_prefix(line.as_bytes().trim_ascii())) {
            Some(after) => rest = after,
            None => return false,
        }
    }
    rest.is_empty()
}

/// The order among routes of the same host and path pattern, most specific first: methods given, more fields, more fixed
/// values, fewer methods, fewer hosts. It follows inclusion, so a narrower route is never hidden by a wider one; what is
/// still equal overlaps without inclusion, and stays in the order of the file.
pub(super) fn rank(pattern: &Pattern) -> impl Ord + use<> {
    let values = pattern.headers.iter().filter(|(_, header)| *header != HeaderPattern::Present).count();
    let hosts = if pattern.hosts.is_empty() { usize::MAX } else { pattern.hosts.len() };
    (pattern.methods.is_empty(), Reverse(pattern.headers.len()), Reverse(values), pattern.methods.len(), hosts)
}

/// Two patterns that match the same set of requests, as indices into the list, in its order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("routes {first} and {second} match the same requests")]
pub struct Conflict {
    pub first: usize,
    pub second: usize,
}

/// Every pattern that repeats an earlier one's set of requests.
pub fn conflicts<'a>(patterns: impl IntoIterator<Item = &'a Pattern>) -> Vec<Conflict> {
    let mut seen = HashMap::new();
    let mut found = Vec::new();
    for (second, pattern) in patterns.into_iter().enumerate() {
        let first = *seen.entry(canonical(pattern)).or_insert(second);
        if first != second {
            found.push(Conflict { first, second });
        }
    }
    found
}

/// Whether two patterns match the same set of requests.
#[must_use]
pub fn same_set(a: &Pattern, b: &Pattern) -> bool {
    canonical(a) == canonical(b)
}

/// One pattern for all that match the same set: sorted, without repetition, and without the names of segments.
fn canonical(pattern: &Pattern) -> Pattern {
    let mut plain = pattern.clone();
    let all = pattern.hosts.clone();
    plain.hosts.retain(|host| !all.iter().any(|wider| wider.covers(host)));
    plain.hosts.sort();
    plain.hosts.dedup();
    plain.methods.sort_by(|a, b| a.as_str().cmp(b.as_str()));
    plain.methods.dedup();
    plain.headers.sort_by(|(a, x), (b, y)| a.as_str().cmp(b.as_str()).then_with(|| x.cmp(y)));
    plain.headers.dedup();
    for segment in &mut plain.path.segments {
        if let Segment::Any(name) = segment {
            name.clear();
        }
    }
    plain
}

#[cfg(test)]
mod tests;
