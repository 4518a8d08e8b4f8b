//! What a route says beside its pattern's own language, which is `route`'s: methods, and the prefix that is stripped.

use super::problem::nearest;
use super::text::Text;
use crate::route::{PathPattern, Segment};
use crate::units::Wrong;
use http::Method;

const METHODS: [&str; 9] = ["GET", "HEAD", "POST", "PUT", "DELETE", "CONNECT", "OPTIONS", "TRACE", "PATCH"];

const NO_PREFIX: &str = "is no literal path; write the beginning of the route's path, such as `/v1`";

/// What `path` loses on its way on; the route's own literal beginning, in normalised form. `None`: that path is faulty
/// itself, and nothing more is said of it.
pub fn parse_strip_prefix(text: &str, path: Option<&PathPattern>) -> Result<String, Wrong> {
    let prefix = PathPattern::parse(text).map_err(|_| NO_PREFIX)?;
    if prefix.prefix || prefix.segments.iter().any(|segment| matches!(segment, Segment::Any(_))) {
        return Err(NO_PREFIX.into());
    }
    if prefix.segments.is_empty() {
        return Err("strips nothing; leave it out".into());
    }
    if path.is_some_and(|path| !path.segments.starts_with(&prefix.segments)) {
        return Err("is no beginning of the route's path; write whole segments of it, such as `/v1` for `/v1/*`".into());
    }
    let literal = |segment: &Segment| match segment {
        Segment::Literal(text) | Segment::Any(text) => format!("/{text}"),
    };
    Ok(prefix.segments.iter().map(literal).collect())
}

/// Methods are case-sensitive, and `get` is one that no client sends.
pub fn read_method(text: &Text<'_>) -> Option<Method> {
    let upper = text.expanded.to_ascii_uppercase();
    match nearest(&upper, &METHODS) {
        Some(near) if near != text.expanded => {
            text.problem(&format!("is no method that is known; did you mean `{near}`?"));
        }
        None if upper != text.expanded => text.problem("is not upper case, as methods are; write one such as `GET`"),
        _ => return text.parsed(|text| Method::from_bytes(text.as_bytes()).map_err(|_| NO_METHOD.into())),
    }
    None
}

const NO_METHOD: &str = "is no method; write one such as `GET`";
