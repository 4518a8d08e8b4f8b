//! Message heads: found, checked and parsed. `httparse` does the parsing; what it lets pass and we do not (a bare LF, a
//! folded line) is looked for here, in the same pass that finds the head's end.

use crate::message::{Request, Response};
use bytes::{Bytes, BytesMut};
use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, Version};
use std::mem::MaybeUninit;

/// More fields than any client sends; above it a head is too large, whatever its bytes.
const MAX_FIELDS: usize = 256;
/// Endpoints are trusted further than strangers: their bound is for what is no head at all.
const MAX_ANSWER_FIELDS: usize = 1024;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum HeadError {
    /// More bytes or fields than allowed.
    TooLarge,
    Malformed(&'static str),
}

/// Takes a whole request head off the front of `input` into `taken`, which was empty: its target as sent, in any of the four
/// forms of RFC 9112 §3.2, and no authority. False: more bytes are needed. `limit` bounds the head in bytes.
pub fn take_request(input: &mut BytesMut, limit: usize, taken: &mut Request) -> Result<bool, HeadError> {
    skip_empty_lines(input);
    let Some(length) = section_length(input, limit)? else { return Ok(false) };
    let bytes = input.split_to(length).freeze();
    let mut fields = [const { MaybeUninit::uninit() }; MAX_FIELDS];
    let mut request = httparse::Request::new(&mut []);
    parsed(request.parse_with_uninit_headers(&bytes, &mut fields))?;
    let (Some(method), Some(target), Some(minor)) = (request.method, request.path, request.version) else {
        return Err(HeadError::Malformed("incomplete request line"));
    };
    taken.method = Method::from_bytes(method.as_bytes()).map_err(|_| HeadError::Malformed("invalid method"))?;
    taken.target = bytes.slice_ref(target.as_bytes());
    taken.version = version_of(minor);
    taken.names = request.headers.iter().map(|field| field.name).collect();
    put_fields(request.headers, &bytes, &mut taken.headers)?;
    Ok(true)
}

/// Takes a whole response head off the front of `input` into `taken`, in the place of any head before it, and tells its
/// version. `None`: more bytes are needed.
pub fn take_response(input: &mut BytesMut, limit: usize, taken: &mut Response) -> Result<Option<Version>, HeadError> {
    let Some(length) = section_length(input, limit)? else { return Ok(None) };
    let bytes = input.split_to(length).freeze();
    let mut fields = [const { MaybeUninit::uninit() }; MAX_ANSWER_FIELDS];
    let mut response = httparse::Response::new(&mut []);
    let config = httparse::ParserConfig::default();
    parsed(config.parse_response_with_uninit_headers(&mut response, &bytes, &mut fields))?;
    let (Some(code), Some(minor)) = (response.code, response.version) else {
        return Err(HeadError::Malformed("incomplete status line"));
    };
    taken.status = StatusCode::from_u16(code).map_err(|_| HeadError::Malformed("invalid status code"))?;
    taken.headers.clear();
    put_fields(response.headers, &bytes, &mut taken.headers)?;
    Ok(Some(version_of(minor)))
}

/// The fields of a trailer section, its closing empty line included.
pub fn trailer_fields(section: &Bytes) -> Result<HeaderMap, &'static str> {
    let wrong = "an invalid trailer field";
    let mut fields = [httparse::EMPTY_HEADER; 64];
    let Ok(httparse::Status::Complete((_, fields))) = httparse::parse_headers(section, &mut fields) else {
        return Err(wrong);
    };
    let mut trailers = HeaderMap::new();
    put_fields(fields, section, &mut trailers).map_err(|_| wrong)?;
    super::trailer::keep_harmless(&mut trailers);
    Ok(trailers)
}

/// RFC 9112 §2.2: a server should ignore an empty line before the request line.
fn skip_empty_lines(input: &mut BytesMut) {
    while input.starts_with(b"\r\n") {
        let _ = input.split_to(2);
    }
}

/// The length of a head, or of a trailer section, with its closing empty line, once it is all there. Every line ends in CRLF, and none is folded
/// (RFC 9112 §2.2, §5.2): what breaks that is refused as soon as it has come, and not by a time-out.
pub(super) fn section_length(input: &[u8], limit: usize) -> Result<Option<usize>, HeadError> {
    if input.is_empty() {
        return Ok(None);
    }
    let mut line_start = 0;
    for end in memchr::memchr_iter(b'\n', input) {
        check_line(&input[line_start..=end])?;
        if end - line_start == 1 {
            return if end < limit { Ok(Some(end + 1)) } else { Err(HeadError::TooLarge) };
        }
        line_start = end + 1;
    }
    check_unfinished(input)?;
    if input.len() > limit { Err(HeadError::TooLarge) } else { Ok(None) }
}

/// A line with its ending. A blank at its start would continue the line before. A CR within it is found by the parser, which
/// takes one nowhere but before an LF.
fn check_line(line: &[u8]) -> Result<(), HeadError> {
    match line {
        [b' ' | b'\t', ..] => Err(HeadError::Malformed("a folded field line")),
        [.., b'\r', b'\n'] => Ok(()),
        _ => Err(HeadError::Malformed("a line ended by a bare LF")),
    }
}

/// A section whose end has not come, so that no parser sees it: a bare CR may be why it never does.
fn check_unfinished(input: &[u8]) -> Result<(), HeadError> {
    let bare = |at: usize| input.get(at + 1).is_some_and(|next| *next != b'\n');
    if memchr::memchr_iter(b'\r', input).any(bare) { Err(HeadError::Malformed("a CR without LF")) } else { Ok(()) }
}

fn parsed(result: httparse::Result<usize>) -> Result<(), HeadError> {
    match result {
        Ok(httparse::Status::Complete(_)) => Ok(()),
        Ok(httparse::Status::Partial) => Err(HeadError::Malformed("incomplete head")),
        Err(httparse::Error::TooManyHeaders) => Err(HeadError::TooLarge),
        Err(httparse::Error::HeaderName) => Err(HeadError::Malformed("an invalid field name")),
        Err(httparse::Error::HeaderValue) => Err(HeadError::Malformed("an invalid field value")),
        Err(httparse::Error::Version) => Err(HeadError::Malformed("not HTTP/1.0 or HTTP/1.1")),
        Err(httparse::Error::Status) => Err(HeadError::Malformed("an invalid status line")),
        Err(_) => Err(HeadError::Malformed("an invalid request line")),
    }
}

fn version_of(minor: u8) -> Version {
    if minor == 0 { Version::HTTP_10 } else { Version::HTTP_11 }
}

/// Into the map where it is to stay: an empty one costs some 60 instructions to drop, and a move of it a third of that.
fn put_fields(fields: &[httparse::Header<'_>], bytes: &Bytes, headers: &mut HeaderMap) -> Result<(), HeadError> {
    headers.try_reserve(fields.len()).map_err(|_| HeadError::TooLarge)?;
    for field in fields {
        let name =
            HeaderName::from_bytes(field.name.as_bytes()).map_err(|_| HeadError::Malformed("an invalid field name"))?;
        let value = HeaderValue::from_maybe_shared(bytes.slice_ref(field.value))
            .map_err(|_| HeadError::Malformed("an invalid field value"))?;
        headers.try_append(name, value).map_err(|_| HeadError::TooLarge)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(text: &str) -> Result<bool, HeadError> {
        take_request(&mut BytesMut::from(text), 8192, &mut Request::default())
    }

    #[test]
    fn a_whole_head_is_taken_and_the_rest_stays() {
        let mut input = BytesMut::from("\r\nGET /a?b HTTP/1.1\r\nHost: x\r\nA: 1 \r\na:2\r\n\r\nrest");
        let mut head = Request::default();
        assert!(take_request(&mut input, 8192, &mut head).unwrap());
        assert_eq!((head.method, &head.target[..]), (Method::GET, &b"/a?b"[..]));
        assert_eq!(head.headers.get_all("a").iter().collect::<Vec<_>>(), ["1", "2"]);
        assert_eq!(&input[..], b"rest");
    }

    #[test]
    fn a_part_of_a_head_waits_for_the_rest() {
        assert!(!request("GET / HTTP/1.1\r\nHost: x\r\n").unwrap());
    }

    #[test]
    fn what_two_readers_could_cut_differently_is_refused() {
        for text in [
            "GET / HTTP/1.1\nHost: x\n\n",
            "GET / HTTP/1.1\r\nHost: x\nA: b\r\n\r\n",
            "GET / HTTP/1.1\r\nHost: x\rA: b\r\n\r\n",
            "GET / HTTP/1.1\r\nHost: x\r\n folded\r\n\r\n",
            "GET / HTTP/1.1\r\nHost : x\r\n\r\n",
            "GET / HTTP/1.1\r\n Host: x\r\n\r\n",
            "GET / HTTP/1.1\r\nHo\0st: x\r\n\r\n",
            "GET / HTTP/1.1\r\nHost: x\0y\r\n\r\n",
            "GET  / HTTP/1.1\r\nHost: x\r\n\r\n",
            "GET / HTTP/2.0\r\nHost: x\r\n\r\n",
            "GET /\r\n\r\n",
            "GET /a b HTTP/1.1\r\nHost: x\r\n\r\n",
        ] {
            assert!(matches!(request(text), Err(HeadError::Malformed(_))), "{text:?}");
        }
    }

    #[test]
    fn a_head_above_the_limit_or_with_too_many_fields_is_too_large() {
        let long = format!("GET / HTTP/1.1\r\nHost: x\r\nA: {}\r\n\r\n", "a".repeat(9000));
        assert_eq!(request(&long).unwrap_err(), HeadError::TooLarge);
        assert_eq!(request(&long[..8500]).unwrap_err(), HeadError::TooLarge);
        let many = format!("GET / HTTP/1.1\r\nHost: x\r\n{}\r\n", "A: b\r\n".repeat(300));
        assert_eq!(request(&many).unwrap_err(), HeadError::TooLarge);
    }
}
