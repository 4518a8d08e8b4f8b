//! The registry of key sources: one line here for its name and argument, one line each to write it and to take its value.

use super::{Facts, KeySource, KeySpec, fields, target};
use http::HeaderName;
use std::fmt;

/// What is wrong with a key in the configuration, or with a value that is to name a counter; what would be right.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum KeyError {
    #[error("`{text}` is no key source{}; write one of {}", suggestion(*.near), KeySource::NAMES.join(", "))]
    Unknown { text: String, near: Option<&'static str> },
    #[error("`{0}` needs a name; write `{1}`")]
    NoArgument(String, &'static str),
    #[error("`{0}` takes no name; write `{1}`")]
    Argument(String, &'static str),
    #[error("`{0}` is no field name; write one such as `x-api-key`")]
    FieldName(String),
    #[error("`{0}` is no cookie name; it has no blanks, commas, semicolons, quotes or equals signs")]
    CookieName(String),
    #[error("`{0}` is no number of a segment; write 1 for the first one")]
    Segment(String),
    #[error("`{0}` is not supported yet; use `bearer` or `header:NAME`")]
    NotYet(String),
    #[error("a key is made of at least one source; write `global` for one counter for all")]
    Empty,
    #[error("this key has {wanted} parts, and {given} were given")]
    Parts { wanted: usize, given: usize },
    #[error("`{0}` is no address; write one such as `203.0.113.7` or `2001:db8::1`")]
    Address(String),
    #[error("a part of a key is never empty")]
    EmptyPart,
}

fn suggestion(name: Option<&'static str>) -> String {
    name.map(|name| format!(" (did you mean `{name}`?)")).unwrap_or_default()
}

/// How a source is made from what follows its name.
enum Make {
    Bare(fn() -> KeySource),
    Named(fn(&str) -> Result<KeySource, KeyError>),
}

/// The registry. A name, as it is written, with the form of its argument.
const FORMS: [(&str, Make); 11] = [
    ("client_ip", Make::Bare(|| KeySource::ClientIp)),
    ("header:NAME", Make::Named(header)),
    ("cookie:NAME", Make::Named(cookie)),
    ("query:NAME", Make::Named(|name| Ok(KeySource::Query(name.to_owned())))),
    ("host", Make::Bare(|| KeySource::Host)),
    ("method", Make::Bare(|| KeySource::Method)),
    ("path", Make::Bare(|| KeySource::Path)),
    ("path_segment:N", Make::Named(path_segment)),
    ("route", Make::Bare(|| KeySource::Route)),
    ("bearer", Make::Bare(|| KeySource::Bearer)),
    ("global", Make::Bare(|| KeySource::Global)),
];

impl KeySource {
    /// As they are written; for errors, the schema and the documentation.
    pub const NAMES: [&'static str; FORMS.len()] = {
        let mut names = [""; FORMS.len()];
        let mut at = 0;
        while at < names.len() {
            names[at] = FORMS[at].0;
            at += 1;
        }
        names
    };

    /// Reads `client_ip`, `header:x-api-key`, …
    pub fn from_text(text: &str) -> Result<Self, KeyError> {
        let (name, argument) = match text.split_once(':') {
            Some((name, argument)) => (name, Some(argument)),
            None => (text, None),
        };
        if matches!(name, "jwt" | "consumer") {
            return Err(KeyError::NotYet(text.to_owned()));
        }
        let Some((form, make)) = FORMS.iter().find(|(form, _)| bare(form) == name) else {
            return Err(KeyError::Unknown { text: text.to_owned(), near: nearest(name) });
        };
        match (make, argument) {
            (Make::Bare(make), None) => Ok(make()),
            (Make::Bare(_), Some(_)) => Err(KeyError::Argument(name.to_owned(), form)),
            (Make::Named(_), None | Some("")) => Err(KeyError::NoArgument(name.to_owned(), form)),
            (Make::Named(make), Some(argument)) => make(argument),
        }
    }

    /// Hands the value's pieces to `sink`, in order. The value is what they make when put together; no piece, or only empty
    /// ones: it is missing.
    pub(super) fn read(&self, facts: &Facts<'_>, sink: &mut dyn FnMut(&[u8])) {
        match self {
            // Addresses are typed, not text: the digest takes them from the facts.
            Self::ClientIp | Self::Global => {}
            Self::Header(name) => fields::header(facts.headers, name, sink),
            Self::Cookie(name) => fields::cookie(facts.headers, name, sink),
            Self::Query(name) => target::query(facts.query, name, sink),
            Self::Host => sink(facts.host.as_bytes()),
            Self::Method => sink(facts.method.as_str().as_bytes()),
            Self::Path => sink(facts.path.as_bytes()),
            Self::PathSegment(number) => target::path_segment(facts.path, *number, sink),
            Self::Route => sink(facts.route.as_bytes()),
            Self::Bearer => fields::bearer(facts.headers, sink),
        }
    }
}

impl fmt::Display for KeySource {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ClientIp => formatter.write_str("client_ip"),
            Self::Header(name) => write!(formatter, "header:{name}"),
            Self::Cookie(name) => write!(formatter, "cookie:{name}"),
            Self::Query(name) => write!(formatter, "query:{name}"),
            Self::Host => formatter.write_str("host"),
            Self::Method => formatter.write_str("method"),
            Self::Path => formatter.write_str("path"),
            Self::PathSegment(number) => write!(formatter, "path_segment:{number}"),
            Self::Route => formatter.write_str("route"),
            Self::Bearer => formatter.write_str("bearer"),
            Self::Global => formatter.write_str("global"),
        }
    }
}

impl KeySpec {
    /// Reads a key's sources, in their order.
    pub fn from_texts<'a>(texts: impl IntoIterator<Item = &'a str>) -> Result<Self, KeyError> {
        let sources = texts.into_iter().map(KeySource::from_text).collect::<Result<Vec<_>, _>>()?;
        if sources.is_empty() { Err(KeyError::Empty) } else { Ok(Self { sources }) }
    }
}

fn bare(form: &str) -> &str {
    form.split_once(':').map_or(form, |(name, _)| name)
}

fn nearest(name: &str) -> Option<&'static str> {
    let name = name.to_ascii_lowercase().replace('-', "_");
    let distance = |form: &str| strsim::damerau_levenshtein(bare(form), &name);
    KeySource::NAMES.into_iter().filter(|form| distance(form) <= 2).min_by_key(|form| distance(form))
}

fn header(name: &str) -> Result<KeySource, KeyError> {
    HeaderName::from_bytes(name.as_bytes()).map(KeySource::Header).map_err(|_| KeyError::FieldName(name.to_owned()))
}

fn cookie(name: &str) -> Result<KeySource, KeyError> {
    let token = name.bytes().all(|byte| byte.is_ascii_graphic() && !b"\"(),/:;<=>?@[\\]{}".contains(&byte));
    if token { Ok(KeySource::Cookie(name.to_owned())) } else { Err(KeyError::CookieName(name.to_owned())) }
}

fn path_segment(number: &str) -> Result<KeySource, KeyError> {
    let plain = number.bytes().all(|byte| byte.is_ascii_digit());
    match number.parse() {
        Ok(number @ 1..) if plain => Ok(KeySource::PathSegment(number)),
        _ => Err(KeyError::Segment(number.to_owned())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_source_is_read_and_written_alike() {
        let mut seen = 0;
        for form in KeySource::NAMES {
            let text = form.replace("NAME", "x-y").replace(":N", ":3");
            assert_eq!(KeySource::from_text(&text).unwrap().to_string(), text);
            seen += 1;
        }
        assert_eq!(seen, 11);
        assert_eq!(KeySource::from_text("header:X-Api-Key").unwrap().to_string(), "header:x-api-key");
        assert_eq!(KeySource::from_text("query:a:b[]").unwrap(), KeySource::Query("a:b[]".into()));
    }

    #[test]
    fn a_wrong_source_is_told_what_would_be_right() {
        let error = |text: &str| KeySource::from_text(text).unwrap_err().to_string();
        for (text, wanted) in [
            ("clientip", "did you mean `client_ip`?"),
            ("client-ip", "did you mean `client_ip`?"),
            ("headr:x", "did you mean `header:NAME`?"),
            ("nonsense", "write one of client_ip, header:NAME"),
            ("header", "write `header:NAME`"),
            ("header:", "write `header:NAME`"),
            ("host:x", "write `host`"),
            ("header:a b", "no field name"),
            ("cookie:a;b", "no cookie name"),
            ("path_segment:0", "write 1 for the first"),
            ("path_segment:+1", "write 1 for the first"),
            ("path_segment:x", "write 1 for the first"),
            ("jwt:sub", "not supported yet"),
            ("consumer", "not supported yet"),
            ("", "is no key source"),
        ] {
            assert!(error(text).contains(wanted), "{text}: {}", error(text));
        }
        assert_eq!(KeySpec::from_texts([]), Err(KeyError::Empty));
    }
}
