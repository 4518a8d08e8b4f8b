//! The patterns of a route: paths, hosts, methods, headers. Each is checked here, once, and kept in the form in which requests
//! are compared with it.

use super::text::Text;
use crate::route::{HostPattern, PathPattern, Segment};
use crate::units::Wrong;
use http::Method;
use std::net::Ipv6Addr;

const METHODS: [&str; 9] = ["GET", "HEAD", "POST", "PUT", "DELETE", "CONNECT", "OPTIONS", "TRACE", "PATCH"];

/// `/login`, `/v1/*`, `/users/{id}/posts`. A slash at the end says nothing: `/login/` is `/login`.
pub fn parse_path(text: &str) -> Result<PathPattern, Wrong> {
    let Some(rest) = text.strip_prefix('/') else {
        return Err("does not start with `/`; write a path such as `/v1/*`".into());
    };
    let (rest, prefix) = match rest.strip_suffix('*') {
        Some(before) if before.is_empty() || before.ends_with('/') => (before, true),
        _ => (rest, false),
    };
    let rest = rest.strip_suffix('/').unwrap_or(rest);
    if rest.is_empty() {
        // `//` and `//*` are not `/`.
        let plain = matches!(text, "/" | "/*");
        return if plain { Ok(PathPattern { segments: Vec::new(), prefix }) } else { Err(EMPTY_SEGMENT.into()) };
    }
    let segments = rest.split('/').map(parse_segment).collect::<Result<_, _>>()?;
    Ok(PathPattern { segments, prefix })
}

const EMPTY_SEGMENT: &str = "has an empty segment; requests have none, since `//` is joined to `/` before matching";

fn parse_segment(text: &str) -> Result<Segment, Wrong> {
    if let Some(name) = text.strip_prefix('{').and_then(|rest| rest.strip_suffix('}')) {
        let sound = !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_-".contains(&byte));
        return if sound {
            Ok(Segment::Any(name.to_owned()))
        } else {
            Err("has a segment without a proper name; write one such as `{id}`".into())
        };
    }
    if text.contains('*') {
        return Err(
            "has a `*` that is not the whole last segment; write a prefix such as `/v1/*`, or `{name}` for one segment"
                .into(),
        );
    }
    if text.contains(['{', '}']) {
        return Err("has braces that are not a whole segment; write one such as `/users/{id}/posts`".into());
    }
    normalised(text).map(Segment::Literal)
}

/// A literal segment in the form that requests have after their path was normalised.
fn normalised(text: &str) -> Result<String, Wrong> {
    if text.is_empty() {
        return Err(EMPTY_SEGMENT.into());
    }
    let mut kept = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        if first == '%' {
            kept.push_str(&escape(rest)?);
            rest = &rest[3..];
            continue;
        }
        match first {
            '?' | '#' => return Err("has a query or a fragment; a route matches the path alone".into()),
            '\\' => return Err("has a backslash; requests with one are refused".into()),
            '!'..='~' => kept.push(first),
            _ => {
                return Err(
                    "has a space, a control or a non-ASCII character; write it percent-encoded, as requests must"
                        .into(),
                );
            }
        }
        rest = &rest[first.len_utf8()..];
    }
    if kept == "." || kept == ".." {
        return Err("has a dot segment; requests have none, since they are resolved before matching".into());
    }
    Ok(kept)
}

/// The escape at the start of `text`: unreserved characters are decoded, others keep it in upper case.
fn escape(text: &str) -> Result<String, Wrong> {
    let digits = text.get(1..3).filter(|digits| digits.bytes().all(|byte| byte.is_ascii_hexdigit()));
    let Some(byte) = digits.and_then(|digits| u8::from_str_radix(digits, 16).ok()) else {
        return Err("has a `%` without two hexadecimal digits; write `%25` for the sign".into());
    };
    match byte {
        b'/' | b'\\' | 0 => Err("has `%2F`, `%5C` or `%00`; requests with one are refused".into()),
        byte if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) => Ok(char::from(byte).to_string()),
        byte => Ok(format!("%{byte:02X}")),
    }
}

/// What `path` loses on its way on; the route's own literal beginning, in normalised form.
pub fn parse_strip_prefix(text: &str, path: &PathPattern) -> Result<String, Wrong> {
    let prefix = parse_path(text)?;
    if prefix.prefix || prefix.segments.iter().any(|segment| matches!(segment, Segment::Any(_))) {
        return Err("has a wildcard; write the literal beginning of the route's path, such as `/v1`".into());
    }
    if prefix.segments.is_empty() {
        return Err("strips nothing; leave it out".into());
    }
    if !path.segments.starts_with(&prefix.segments) {
        return Err("is no beginning of the route's path; write whole segments of it, such as `/v1` for `/v1/*`".into());
    }
    let literal = |segment: &Segment| match segment {
        Segment::Literal(text) | Segment::Any(text) => format!("/{text}"),
    };
    Ok(prefix.segments.iter().map(literal).collect())
}

pub fn parse_host(text: &str) -> Result<HostPattern, Wrong> {
    let lower = text.to_ascii_lowercase();
    let host = lower.strip_suffix('.').unwrap_or(&lower);
    if host == "*" {
        return Err("means any host; leave `hosts` out for that, or write one such as `*.example.org`".into());
    }
    if !host.is_ascii() {
        return Err("is not ASCII; write the name's `xn--` form".into());
    }
    if let Some(address) = host.strip_prefix('[').and_then(|rest| rest.strip_suffix(']'))
        && address.parse::<Ipv6Addr>().is_ok()
    {
        return Ok(HostPattern::Exact(host.to_owned()));
    }
    if host.contains(':') {
        return Err("has a port or a scheme; hosts are compared without them, write `api.example.com`".into());
    }
    let (name, under) = host.strip_prefix("*.").map_or((host, false), |name| (name, true));
    if name.contains('*') {
        return Err("has a `*` that is not the whole first label; write one such as `*.example.org`".into());
    }
    let label = |label: &str| {
        !label.is_empty() && label.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(&byte))
    };
    if name.len() > 253 || !name.split('.').all(label) {
        return Err("is no host name; write one such as `api.example.com` or `*.example.org`".into());
    }
    Ok(if under { HostPattern::Under(name.to_owned()) } else { HostPattern::Exact(name.to_owned()) })
}

/// Methods are case-sensitive, and `get` is one that no client sends.
pub fn read_method(text: &Text<'_>) -> Option<Method> {
    let upper = text.text.to_ascii_uppercase();
    if text.text != upper {
        text.problem(&format!(
            "is not upper case; did you mean `{}`?",
            super::text::escaped(&text.shown.to_ascii_uppercase())
        ));
        return None;
    }
    if let Some(near) =
        super::problem::nearest(&text.text, &METHODS).filter(|near| *near != text.text && text.text.len() > 3)
    {
        text.problem(&format!("is no method that is known; did you mean `{near}`?"));
        return None;
    }
    text.parsed(|text| Method::from_bytes(text.as_bytes()).map_err(|_| "is no method; write one such as `GET`".into()))
}
