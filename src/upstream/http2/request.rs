//! A request's head in the terms of HTTP/2. It is read off the head that was written for HTTP/1.1: which fields go on is
//! then decided in one place, for both.

use crate::http1::head;
use crate::http1::websocket;
use crate::message;
use bytes::{Bytes, BytesMut};
use h2::ext::Protocol;
use http::header::{CONNECTION, HOST, TRANSFER_ENCODING, UPGRADE};
use http::uri::{Authority, PathAndQuery, Scheme};
use http::{HeaderMap, HeaderValue, Method, Request, Uri};

/// What the pseudo-header fields say besides the request's own.
pub struct Way<'a> {
    pub https: bool,
    /// Where the request names no host, which only HTTP/1.0 may.
    pub endpoint: &'a dyn std::fmt::Display,
    /// As an extended CONNECT (RFC 8441).
    pub websocket: bool,
}

pub struct Translated {
    pub request: Request<()>,
    /// What a WebSocket client over HTTP/1.1 wants to hear; over HTTP/2 nobody says it.
    pub accept: Option<HeaderValue>,
}

pub fn translate(written: &[u8], way: &Way<'_>) -> Result<Translated, &'static str> {
    let mut head = message::Request::default();
    let read = head::take_request(&mut BytesMut::from(written), usize::MAX, &mut head);
    let Ok(true) = read else { return Err("more fields than can be passed on") };
    let host = head.headers.remove(HOST).filter(|host| !host.is_empty());
    let authority = match &host {
        Some(host) => Authority::try_from(host.as_bytes()),
        None => Authority::try_from(way.endpoint.to_string()),
    };
    for name in [CONNECTION, UPGRADE, TRANSFER_ENCODING] {
        head.headers.remove(name);
    }
    let accept = if way.websocket { without_key(&mut head.headers) } else { None };
    let mut parts = http::uri::Parts::default();
    parts.scheme = Some(if way.https { Scheme::HTTPS } else { Scheme::HTTP });
    parts.authority = Some(authority.map_err(|_| "a host that no URL can have")?);
    parts.path_and_query = Some(path_and_query(&head.target)?);
    let mut request = Request::new(());
    *request.uri_mut() = Uri::from_parts(parts).map_err(|_| "a target that no URL can have")?;
    *request.method_mut() = if way.websocket { Method::CONNECT } else { head.method };
    *request.headers_mut() = head.headers;
    if way.websocket {
        request.extensions_mut().insert(Protocol::from_static(websocket::PROTOCOL));
    }
    Ok(Translated { request, accept })
}

/// RFC 8441 §5: the key and its answer are not sent.
fn without_key(headers: &mut HeaderMap) -> Option<HeaderValue> {
    headers.remove(websocket::KEY).and_then(|key| websocket::accept(key.as_bytes()))
}

/// Octets that no URL may hold, but HTTP/1.1 clients send in queries, go on encoded.
fn path_and_query(target: &Bytes) -> Result<PathAndQuery, &'static str> {
    if let Ok(target) = PathAndQuery::from_maybe_shared(target.clone()) {
        return Ok(target);
    }
    let mut encoded = String::with_capacity(target.len() + 16);
    for octet in target {
        match octet {
            b'!' | b'#'..=b';' | b'=' | b'?'..=b'_' | b'a'..=b'z' | b'~' => encoded.push(char::from(*octet)),
            other => encoded.push_str(&format!("%{other:02X}")),
        }
    }
    PathAndQuery::try_from(encoded).map_err(|_| "a target that no URL can have")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn translated(head: &str, websocket: bool) -> Request<()> {
        let way = Way { https: true, endpoint: &"10.0.0.1:3000", websocket };
        translate(head.as_bytes(), &way).unwrap().request
    }

    #[test]
    fn what_frames_and_routes_in_http1_becomes_pseudo_fields_or_is_left_out() {
        let request = translated(
            "POST /a?b HTTP/1.1\r\nhost: shop:8443\r\nte: trailers\r\nx-a: 1\r\ntransfer-encoding: chunked\r\n\r\n",
            false,
        );
        assert_eq!(request.uri(), "https://shop:8443/a?b");
        let mut names: Vec<_> = request.headers().keys().map(http::HeaderName::as_str).collect();
        names.sort_unstable();
        assert_eq!((request.method(), names), (&Method::POST, vec!["te", "x-a"]));
        assert_eq!(translated("GET / HTTP/1.1\r\nhost: \r\n\r\n", false).uri(), "https://10.0.0.1:3000/");
        assert_eq!(translated("OPTIONS * HTTP/1.1\r\nhost: h\r\n\r\n", false).uri().path(), "*");
        assert_eq!(
            translated("GET /?a=<b>`|^ HTTP/1.1\r\nhost: h\r\n\r\n", false).uri().query(),
            Some("a=%3Cb%3E%60%7C^")
        );
    }

    #[test]
    fn a_websocket_is_an_extended_connect() {
        let request = translated(
            "GET /chat HTTP/1.1\r\nhost: h\r\nconnection: upgrade\r\nupgrade: websocket\r\n\
             sec-websocket-version: 13\r\nsec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n",
            true,
        );
        assert_eq!(request.method(), Method::CONNECT);
        assert_eq!(request.extensions().get::<Protocol>().map(Protocol::as_str), Some("websocket"));
        let names: Vec<_> = request.headers().keys().map(http::HeaderName::as_str).collect();
        assert_eq!(names, ["sec-websocket-version"]);
    }
}
