//! Key values from a request's fields: `header:NAME`, `cookie:NAME`, `bearer`.
//!
//! Repetitions are one value, joined in order by a comma and nothing else: `a` and `b` on two lines are `a,b`, while a line
//! `a, b` keeps the blank it was sent with. Blanks around a value belong to the message and are cut (RFC 9110 5.5).

use http::header::{AUTHORIZATION, COOKIE, HeaderMap, HeaderName};

/// Joins repetitions. Empty ones alone make no value: two empty lines are as missing as one.
pub(super) struct Joined<'a> {
    sink: &'a mut dyn FnMut(&[u8]),
    /// Repetitions so far that were empty and are held back until one is not.
    held: usize,
    begun: bool,
}

impl<'a> Joined<'a> {
    pub(super) fn new(sink: &'a mut dyn FnMut(&[u8])) -> Self {
        Self { sink, held: 0, begun: false }
    }

    pub(super) fn add(&mut self, value: &[u8]) {
        self.next(value.is_empty());
        if !value.is_empty() {
            (self.sink)(value);
        }
    }

    /// Begins the next repetition; the caller hands over its pieces with `piece`, unless it is `empty`.
    pub(super) fn next(&mut self, empty: bool) {
        if empty && !self.begun {
            self.held += 1;
            return;
        }
        let commas = if self.begun { 1 } else { self.held };
        for _ in 0..commas {
            (self.sink)(b",");
        }
        self.begun = true;
    }

    pub(super) fn piece(&mut self, piece: &[u8]) {
        (self.sink)(piece);
    }
}

pub(super) fn header(headers: &HeaderMap, name: &HeaderName, sink: &mut dyn FnMut(&[u8])) {
    let mut joined = Joined::new(sink);
    headers.get_all(name).iter().for_each(|line| joined.add(trim(line.as_bytes())));
}

/// A cookie may be spread over several lines (HTTP/2 crumbs). Names have case; a value stays as sent, quotes included.
pub(super) fn cookie(headers: &HeaderMap, name: &str, sink: &mut dyn FnMut(&[u8])) {
    let mut joined = Joined::new(sink);
    for line in headers.get_all(COOKIE) {
        for pair in line.as_bytes().split(|&byte| byte == b';') {
            let Some(equals) = pair.iter().position(|&byte| byte == b'=') else { continue };
            if trim(&pair[..equals]) == name.as_bytes() {
                joined.add(trim(&pair[equals + 1..]));
            }
        }
    }
}

/// The token of `Authorization: Bearer`, whose scheme has no case. What follows the token is no part of it: a lenient
/// upstream takes the first word too, so more words must not make a fresh counter. Other schemes have no token.
pub(super) fn bearer(headers: &HeaderMap, sink: &mut dyn FnMut(&[u8])) {
    let mut joined = Joined::new(sink);
    for line in headers.get_all(AUTHORIZATION) {
        let mut words = line.as_bytes().split(|&byte| byte == b' ' || byte == b'\t').filter(|word| !word.is_empty());
        if words.next().is_some_and(|scheme| scheme.eq_ignore_ascii_case(b"bearer")) {
            joined.add(words.next().unwrap_or_default());
        }
    }
}

/// Cuts optional white space (RFC 9110 5.6.3): blanks and tabs, nothing else.
fn trim(mut value: &[u8]) -> &[u8] {
    while let [b' ' | b'\t', rest @ ..] | [rest @ .., b' ' | b'\t'] = value {
        value = rest;
    }
    value
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(lines: &[(&str, &[u8])]) -> HeaderMap {
        let pair = |(name, value): &(&str, &[u8])| {
            (HeaderName::from_bytes(name.as_bytes()).unwrap(), http::HeaderValue::from_bytes(value).unwrap())
        };
        lines.iter().map(pair).collect()
    }

    fn value(read: impl FnOnce(&mut dyn FnMut(&[u8]))) -> String {
        let mut bytes = Vec::new();
        read(&mut |piece| bytes.extend_from_slice(piece));
        bytes.escape_ascii().to_string()
    }

    #[test]
    fn repeated_lines_are_one_value_joined_by_a_comma() {
        let name = HeaderName::from_static("x-a");
        let of = |lines: &[&[u8]]| {
            let lines: Vec<_> = lines.iter().map(|&line| ("x-a", line)).collect();
            value(|sink| header(&headers(&lines), &name, sink))
        };
        assert_eq!(of(&[]), "");
        assert_eq!(of(&[b"a"]), "a");
        assert_eq!(of(&[b"a", b"b"]), "a,b");
        assert_eq!(of(&[b"a, b"]), "a, b");
        assert_eq!(of(&[b" \ta b \t "]), "a b");
        assert_eq!(of(&[b"\xff\xfe"]), "\\xff\\xfe");
        assert_eq!(of(&[b"", b" "]), "", "only empty lines are a missing value");
        assert_eq!(of(&[b"", b"", b"a"]), ",,a");
        assert_eq!(of(&[b"a", b"", b""]), "a,,");
    }

    #[test]
    fn cookies_are_found_on_any_line_by_their_exact_name() {
        let of = |lines: &[&[u8]], name: &str| {
            let lines: Vec<_> = lines.iter().map(|&line| ("cookie", line)).collect();
            value(|sink| cookie(&headers(&lines), name, sink))
        };
        assert_eq!(of(&[b"theme=dark; session=a"], "session"), "a");
        assert_eq!(of(&[b"session=b;theme=dark"], "session"), "b");
        assert_eq!(of(&[b"theme=dark", b"session=c"], "session"), "c");
        assert_eq!(of(&[b"sid=s1; sid=s2"], "sid"), "s1,s2");
        assert_eq!(of(&[b"sid=s1", b"sid=s2"], "sid"), "s1,s2");
        assert_eq!(of(&[b"Sid=a; xsid=b; sid"], "sid"), "");
        assert_eq!(of(&[b"sid=; a=b"], "sid"), "");
        assert_eq!(of(&[b" sid = \"a=b\" ;;; "], "sid"), "\\\"a=b\\\"", "quotes are part of it");
    }

    #[test]
    fn a_bearer_token_is_the_word_after_its_scheme() {
        let of = |lines: &[&[u8]]| {
            let lines: Vec<_> = lines.iter().map(|&line| ("authorization", line)).collect();
            value(|sink| bearer(&headers(&lines), sink))
        };
        assert_eq!(of(&[b"Bearer token-a"]), "token-a");
        assert_eq!(of(&[b"bEARER \t token-a "]), "token-a");
        assert_eq!(of(&[b"Bearer token-a extra"]), "token-a");
        assert_eq!(of(&[b"Bearer a", b"Basic eA==", b"Bearer b"]), "a,b");
        for none in [&b"Basic eA=="[..], b"Bearer", b"Bearer ", b"Bearertoken", b"", b"token"] {
            assert_eq!(of(&[none]), "", "{}", none.escape_ascii());
        }
    }
}
