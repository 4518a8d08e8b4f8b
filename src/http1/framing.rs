//! Where a message's body ends (RFC 9112 §6). What is ambiguous is an error: no precedence is applied between fields
//! that disagree, since the next reader may apply another.

use http::header::{CONNECTION, CONTENT_LENGTH, TRANSFER_ENCODING};
use http::{HeaderMap, HeaderName, Method, StatusCode, Version};

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Framing {
    /// No body.
    None,
    /// So many octets, more than none.
    Length(u64),
    Chunked,
    /// Responses only: until the connection ends.
    UntilClose,
}

pub fn of_request(version: Version, headers: &HeaderMap) -> Result<Framing, &'static str> {
    match (transfer_encoding(headers)?, content_length(headers)?) {
        (Coding::Chunked, Some(_)) => Err("both Transfer-Encoding and Content-Length"),
        (Coding::Chunked, None) if version == Version::HTTP_10 => Err("Transfer-Encoding in HTTP/1.0"),
        (Coding::Chunked, None) => Ok(Framing::Chunked),
        (Coding::None, Some(length)) => Ok(sized(length)),
        (Coding::None, None) => Ok(Framing::None),
    }
}

/// `method` is that of the request that is answered. A 101 is no answer with a body; the caller looks for it first.
pub fn of_response(
    method: &Method,
    status: StatusCode,
    version: Version,
    headers: &HeaderMap,
) -> Result<Framing, &'static str> {
    let coding = transfer_encoding(headers)?;
    let length = content_length(headers)?;
    let bodiless = method == Method::HEAD || status == StatusCode::NO_CONTENT || status == StatusCode::NOT_MODIFIED;
    match (coding, length) {
        _ if bodiless => Ok(Framing::None),
        (Coding::Chunked, Some(_)) => Err("both Transfer-Encoding and Content-Length"),
        (Coding::Chunked, None) if version == Version::HTTP_10 => Err("Transfer-Encoding in HTTP/1.0"),
        (Coding::Chunked, None) => Ok(Framing::Chunked),
        (Coding::None, Some(length)) => Ok(sized(length)),
        (Coding::None, None) => Ok(Framing::UntilClose),
    }
}

/// Whether the connection goes on after the message (RFC 9112 §9.3).
#[must_use]
pub fn keeps_alive(version: Version, headers: &HeaderMap) -> bool {
    !lists(headers, &CONNECTION, "close") && (version == Version::HTTP_11 || lists(headers, &CONNECTION, "keep-alive"))
}

/// Whether a field is a list with this word in it (RFC 9110 §5.6.1), on any of its lines.
#[must_use]
pub fn lists(headers: &HeaderMap, name: &HeaderName, word: &str) -> bool {
    let items = headers.get_all(name).iter().flat_map(|line| line.as_bytes().split(|octet| *octet == b','));
    items.map(<[u8]>::trim_ascii).any(|item| item.eq_ignore_ascii_case(word.as_bytes()))
}

enum Coding {
    None,
    Chunked,
}

fn sized(length: u64) -> Framing {
    if length == 0 { Framing::None } else { Framing::Length(length) }
}

/// Only `chunked`, once: no other coding can be passed on without being understood.
fn transfer_encoding(headers: &HeaderMap) -> Result<Coding, &'static str> {
    let mut lines = headers.get_all(TRANSFER_ENCODING).iter();
    match (lines.next(), lines.next()) {
        (None, _) => Ok(Coding::None),
        (Some(value), None) if value.as_bytes().eq_ignore_ascii_case(b"chunked") => Ok(Coding::Chunked),
        _ => Err("a Transfer-Encoding other than chunked"),
    }
}

/// Digits only, one field line. RFC 9110 §8.6 lets equal copies be merged; no client needs it, and refusing leaves no doubt.
fn content_length(headers: &HeaderMap) -> Result<Option<u64>, &'static str> {
    let mut lines = headers.get_all(CONTENT_LENGTH).iter();
    match (lines.next(), lines.next()) {
        (None, _) => Ok(None),
        (Some(_), Some(_)) => Err("more than one Content-Length"),
        (Some(value), None) => digits(value.as_bytes()).map(Some).ok_or("an invalid Content-Length"),
    }
}

/// A whole decimal number, as `1*DIGIT`, that fits 63 bits.
fn digits(text: &[u8]) -> Option<u64> {
    if text.is_empty() || text.len() > 18 || !text.iter().all(u8::is_ascii_digit) {
        return None;
    }
    Some(text.iter().fold(0, |sum, digit| sum * 10 + u64::from(digit - b'0')))
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::HeaderValue;

    fn fields(lines: &[(&'static str, &'static str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in lines {
            headers.append(*name, HeaderValue::from_static(value));
        }
        headers
    }

    #[test]
    fn a_request_is_framed_by_one_field_or_refused() {
        let framed = |lines: &[_]| of_request(Version::HTTP_11, &fields(lines));
        assert_eq!(framed(&[]), Ok(Framing::None));
        assert_eq!(framed(&[("content-length", "0")]), Ok(Framing::None));
        assert_eq!(framed(&[("content-length", "12")]), Ok(Framing::Length(12)));
        assert_eq!(framed(&[("transfer-encoding", "Chunked")]), Ok(Framing::Chunked));
        for wrong in ["+1", "-1", "1 1", "1,1", "0x1", "", "1e3", "99999999999999999999"] {
            assert!(framed(&[("content-length", wrong)]).is_err(), "{wrong}");
        }
        for wrong in ["gzip, chunked", "chunked, chunked", "identity", "xchunked", "chunked;q=1", ""] {
            assert!(framed(&[("transfer-encoding", wrong)]).is_err(), "{wrong}");
        }
        assert!(framed(&[("content-length", "1"), ("content-length", "1")]).is_err());
        assert!(framed(&[("content-length", "1"), ("transfer-encoding", "chunked")]).is_err());
        assert!(of_request(Version::HTTP_10, &fields(&[("transfer-encoding", "chunked")])).is_err());
    }

    #[test]
    fn an_answer_without_a_length_lasts_until_the_connection_ends() {
        let framed = |method: Method, code, lines: &[_]| {
            of_response(&method, StatusCode::from_u16(code).unwrap(), Version::HTTP_11, &fields(lines))
        };
        assert_eq!(framed(Method::GET, 200, &[]), Ok(Framing::UntilClose));
        assert_eq!(framed(Method::HEAD, 200, &[("content-length", "9")]), Ok(Framing::None));
        assert_eq!(framed(Method::GET, 204, &[("content-length", "9")]), Ok(Framing::None));
        assert_eq!(framed(Method::GET, 304, &[]), Ok(Framing::None));
        assert!(framed(Method::GET, 200, &[("content-length", "1"), ("content-length", "2")]).is_err());
    }
}
