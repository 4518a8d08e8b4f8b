//! `key = …` of a limit: the names of the key sources and their arguments.

use super::reader::Value;
use super::text::Text;
use crate::identify::{KeySource, KeySpec};
use http::HeaderName;

/// Every source by its name; those that take an argument end in a colon.
const NAMES: [&str; 12] = [
    "client_ip",
    "header:",
    "cookie:",
    "query:",
    "host",
    "method",
    "path",
    "path_segment:",
    "route",
    "bearer",
    "global",
    "jwt:",
];

const SEGMENT_MAX: usize = 64;

/// One source, or a list of them. What cannot be read is reported, and `None`.
pub fn read(value: &Value<'_>) -> Option<KeySpec> {
    if value.is_string() {
        return Some(KeySpec { sources: vec![source(&value.text()?)?] });
    }
    if !value.raw.get_ref().is_array() {
        value.expected("a key source such as `client_ip`, or an array of them");
        return None;
    }
    let items = value.array("key sources")?;
    if items.is_empty() {
        value.problem("no key source; write one, such as `client_ip`, or `global` for one counter for all");
        return None;
    }
    // All are looked at before the first bad one decides.
    let sources: Vec<Option<KeySource>> = items.iter().map(|item| source(&item.text()?)).collect();
    let sources: Vec<KeySource> = sources.into_iter().collect::<Option<_>>()?;
    for (index, item) in items.iter().enumerate() {
        if sources[..index].contains(&sources[index]) {
            item.problem("this key source is in the list twice; leave one out");
            return None;
        }
    }
    Some(KeySpec { sources })
}

fn source(text: &Text<'_>) -> Option<KeySource> {
    let (name, argument) = match text.text.split_once(':') {
        Some((name, argument)) => (name, Some(argument)),
        None => (text.text.as_str(), None),
    };
    match (plain(name), argument) {
        (Some(source), None) => Some(source),
        (Some(_), Some(_)) => complain(text, "takes no argument; leave out the colon and what follows"),
        (None, _) => match (name, argument) {
            ("consumer", None) | ("jwt", _) => complain(text, "is not supported yet; use another key source"),
            ("header" | "cookie" | "query" | "path_segment", None | Some("")) => {
                complain(text, "needs an argument after a colon, such as `header:x-api-key` or `path_segment:1`")
            }
            (_, Some(argument)) if NAMES.contains(&format!("{name}:").as_str()) => with_argument(text, name, argument),
            _ => {
                let names: Vec<&str> = NAMES.into_iter().filter(|name| *name != "jwt:").collect();
                text.unknown("key source", &names);
                None
            }
        },
    }
}

fn plain(name: &str) -> Option<KeySource> {
    Some(match name {
        "client_ip" => KeySource::ClientIp,
        "host" => KeySource::Host,
        "method" => KeySource::Method,
        "path" => KeySource::Path,
        "route" => KeySource::Route,
        "bearer" => KeySource::Bearer,
        "global" => KeySource::Global,
        _ => return None,
    })
}

fn with_argument(text: &Text<'_>, name: &str, argument: &str) -> Option<KeySource> {
    match name {
        "header" => match HeaderName::from_bytes(argument.as_bytes()) {
            Ok(header) => Some(KeySource::Header(header)),
            Err(_) => {
                complain(text, "names no valid header; write letters, digits and `-`, such as `header:x-api-key`")
            }
        },
        // A cookie's name is a token, like a header's, but its case counts.
        "cookie" => match HeaderName::from_bytes(argument.as_bytes()) {
            Ok(_) => Some(KeySource::Cookie(argument.to_owned())),
            Err(_) => complain(text, "names no valid cookie; write a name such as `cookie:session`"),
        },
        "path_segment" => match argument.parse::<usize>() {
            Ok(number @ 1..=SEGMENT_MAX) if argument.bytes().all(|byte| byte.is_ascii_digit()) => {
                Some(KeySource::PathSegment(number))
            }
            _ => complain(text, "names no path segment; they count from 1 to 64, such as `path_segment:1`"),
        },
        _ => Some(KeySource::Query(argument.to_owned())),
    }
}

fn complain(text: &Text<'_>, predicate: &str) -> Option<KeySource> {
    text.problem(predicate);
    None
}
