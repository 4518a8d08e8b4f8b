//! Key values from a request's target: `query:NAME`, `path_segment:N`.
//!
//! Names and values of a query are compared decoded, because `api%5Fkey=%6B1` is the same key of the same client to every
//! upstream, and must not have a counter of its own.

use super::fields::Joined;

/// Parameters are separated by `&`. An escape that is none stays as it is sent.
pub(super) fn query(query: Option<&str>, name: &str, sink: &mut dyn FnMut(&[u8])) {
    let mut joined = Joined::new(sink);
    for pair in query.unwrap_or_default().split('&') {
        let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
        if is_decoded(key, name) {
            joined.next(value.is_empty());
            decode(value, &mut |piece| joined.piece(piece));
        }
    }
}

/// The path's segment `number`, from 1, as it stands in the normalised path.
pub(super) fn path_segment(path: &str, number: usize, sink: &mut dyn FnMut(&[u8])) {
    if let Some(segment) = path.split('/').nth(number) {
        sink(segment.as_bytes());
    }
}

fn is_decoded(encoded: &str, plain: &str) -> bool {
    let mut rest = Some(plain.as_bytes());
    decode(encoded, &mut |piece| rest = rest.and_then(|rest| rest.strip_prefix(piece)));
    rest.is_some_and(<[u8]>::is_empty)
}

/// Hands over `application/x-www-form-urlencoded` text decoded, in pieces: runs as they are, and a byte for each escape.
fn decode(encoded: &str, sink: &mut dyn FnMut(&[u8])) {
    let mut rest = encoded.as_bytes();
    while let Some(at) = rest.iter().position(|&byte| byte == b'%' || byte == b'+') {
        if at > 0 {
            sink(&rest[..at]);
        }
        let (byte, length) = match (rest[at], octet(&rest[at + 1..])) {
            (b'+', _) => (b' ', 1),
            (_, Some(byte)) => (byte, 3),
            (percent, None) => (percent, 1),
        };
        sink(&[byte]);
        rest = &rest[at + length..];
    }
    if !rest.is_empty() {
        sink(rest);
    }
}

fn octet(digits: &[u8]) -> Option<u8> {
    let digit = |at: usize| digits.get(at).and_then(|&byte| char::from(byte).to_digit(16));
    u8::try_from(digit(0)? * 16 + digit(1)?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn value(read: impl FnOnce(&mut dyn FnMut(&[u8]))) -> String {
        let mut bytes = Vec::new();
        read(&mut |piece| bytes.extend_from_slice(piece));
        bytes.escape_ascii().to_string()
    }

    #[test]
    fn a_query_parameter_is_found_decoded() {
        let of = |text: &str| value(|sink| query(Some(text), "api_key", sink));
        for text in ["api_key=k 1", "x=1&api_key=k+1", "api%5fkey=%6b%201&y", "&&api_key=k%201", "ap%69_key=k%20%31"] {
            let text = text.replace(' ', "+");
            assert_eq!(of(&text), "k 1", "{text}");
        }
        assert_eq!(of("api_key=a&x=y&api_key=b"), "a,b");
        assert_eq!(of("api_key=&api_key=b&api_key"), ",b,");
        assert_eq!(of("api_key=%zz%4"), "%zz%4");
        assert_eq!(of("api_key=a=b"), "a=b");
        assert_eq!(of("api_key=%00%FF"), "\\x00\\xff");
        for none in
            ["", "api_key", "api_key=", "api_key=&api_key", "API_KEY=a", "api_keys=a", "api_ke=a", "x=api_key=a"]
        {
            assert_eq!(of(none), "", "{none}");
        }
        assert_eq!(value(|sink| query(None, "api_key", sink)), "");
    }

    #[test]
    fn path_segments_count_from_one() {
        let of = |path: &str, number| value(|sink| path_segment(path, number, sink));
        assert_eq!(
            (of("/users/7", 1), of("/users/7", 2), of("/users/7", 3)),
            ("users".into(), "7".into(), String::new())
        );
        assert_eq!(of("/", 1), "");
    }
}
