//! Problem documents (RFC 9457), written member by member: the shapes are few and known, and a refusal is on the fast path.

use bytes::Bytes;
use http::StatusCode;

pub const CONTENT_TYPE: http::HeaderValue = http::HeaderValue::from_static("application/problem+json");

/// A document under construction.
pub struct Problem(Vec<u8>);

impl Problem {
    #[must_use]
    pub fn new(kind: &str, title: &str, status: StatusCode) -> Self {
        let mut problem = Self(Vec::with_capacity(320));
        problem.0.extend_from_slice(b"{\"type\":");
        problem.string(kind);
        problem.member("title", title).number("status", u64::from(status.as_u16()))
    }

    /// Goes on from a text that ends before the status.
    #[must_use]
    pub fn begun(text: &'static str, status: StatusCode) -> Self {
        let mut problem = Self(Vec::with_capacity(320));
        problem.0.extend_from_slice(text.as_bytes());
        problem.0.extend_from_slice(status.as_str().as_bytes());
        problem
    }

    #[must_use]
    pub fn member(mut self, name: &'static str, value: &str) -> Self {
        self.name(name);
        self.string(value);
        self
    }

    /// A text that is written as it stands between the quotes.
    #[inline]
    #[must_use]
    pub fn escaped(mut self, name: &'static str, write: impl FnOnce(&mut Vec<u8>)) -> Self {
        self.name(name);
        self.0.push(b'"');
        write(&mut self.0);
        self.0.push(b'"');
        self
    }

    #[inline]
    #[must_use]
    pub fn number(mut self, name: &'static str, value: u64) -> Self {
        self.name(name);
        self.0.extend_from_slice(itoa::Buffer::new().format(value).as_bytes());
        self
    }

    /// Of texts that are escaped already.
    #[inline]
    #[must_use]
    pub fn list<'a>(mut self, name: &'static str, values: impl Iterator<Item = &'a str>) -> Self {
        self.name(name);
        self.0.push(b'[');
        for (index, value) in values.enumerate() {
            if index > 0 {
                self.0.push(b',');
            }
            self.0.push(b'"');
            self.0.extend_from_slice(value.as_bytes());
            self.0.push(b'"');
        }
        self.0.push(b']');
        self
    }

    #[must_use]
    pub fn finish(mut self) -> Bytes {
        self.0.push(b'}');
        // Cut to its length in place; with room to spare `Bytes` would need a second allocation to keep count of it.
        self.0.into_boxed_slice().into()
    }

    /// Member names are ours, and plain.
    #[inline]
    fn name(&mut self, name: &'static str) {
        self.0.extend_from_slice(b",\"");
        self.0.extend_from_slice(name.as_bytes());
        self.0.extend_from_slice(b"\":");
    }

    fn string(&mut self, text: &str) {
        if text.bytes().all(is_plain) {
            self.0.push(b'"');
            self.0.extend_from_slice(text.as_bytes());
            self.0.push(b'"');
        } else {
            // Writing a string to memory fails on neither side.
            let _ = serde_json::to_writer(&mut self.0, text);
        }
    }
}

/// Stands for itself in a JSON string (RFC 8259 §7).
fn is_plain(octet: u8) -> bool {
    matches!(octet, b' '..=b'~') && octet != b'"' && octet != b'\\'
}
