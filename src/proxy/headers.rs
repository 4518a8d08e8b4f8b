//! Which fields cross the gateway: hop-by-hop ones stay on their hop (RFC 9110 §7.6.1), forwarding fields are written by
//! us, and what strangers say about forwarding is dropped.

use crate::http1::encode;
use crate::http1::framing::lists;
use crate::message::Request;
use http::header::{CONNECTION, CONTENT_LENGTH, HOST, TE, UPGRADE};
use http::{HeaderMap, HeaderName, HeaderValue};

const X_FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
const X_FORWARDED_PROTO: HeaderName = HeaderName::from_static("x-forwarded-proto");
const X_FORWARDED_HOST: HeaderName = HeaderName::from_static("x-forwarded-host");
const X_REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// Longer ones are not an identifier but a way to fill logs.
const REQUEST_ID_MAX: usize = 128;

/// What the forwarding fields say.
pub struct Hop<'a> {
    /// The peer's address as text.
    pub peer: &'a str,
    /// By which the peer connected.
    pub scheme: &'static str,
    /// The peer is a trusted proxy: what it says of the hops before it is passed on.
    pub trusted: bool,
    /// As the client named it; what `Host` will say.
    pub host: &'a [u8],
    pub request_id: &'a str,
    /// Of a request to leave HTTP behind: what for.
    pub upgrade: Option<&'a HeaderValue>,
}

/// Writes the end-to-end fields of a request, then ours. Framing fields and the closing line are the caller's.
pub fn write_request(out: &mut Vec<u8>, request: &Request, hop: &Hop<'_>) {
    encode::field(out, "host", hop.host);
    let headers = &request.headers;
    let named = if request.names.may_have(&CONNECTION) { named_by_connection(headers) } else { Vec::new() };
    for (name, value) in headers {
        if !(is_hop_by_hop(name) || named.contains(name) || is_ours(name, hop)) {
            encode::field(out, name.as_str(), value.as_bytes());
        }
    }
    if request.names.may_have(&TE) && lists(headers, &TE, "trailers") {
        encode::field(out, "te", b"trailers");
    }
    if let Some(protocol) = hop.upgrade {
        encode::field(out, "connection", b"upgrade");
        encode::field(out, "upgrade", protocol.as_bytes());
    }
    write_forwarding(out, headers, hop);
    encode::field(out, "via", b"1.1 staunch");
    encode::field(out, "x-request-id", hop.request_id.as_bytes());
}

fn write_forwarding(out: &mut Vec<u8>, headers: &HeaderMap, hop: &Hop<'_>) {
    out.extend_from_slice(b"x-forwarded-for: ");
    if hop.trusted {
        for line in headers.get_all(X_FORWARDED_FOR).iter().filter(|line| !line.is_empty()) {
            out.extend_from_slice(line.as_bytes());
            out.extend_from_slice(b", ");
        }
    }
    out.extend_from_slice(hop.peer.as_bytes());
    out.extend_from_slice(b"\r\n");
    if !(hop.trusted && headers.contains_key(X_FORWARDED_PROTO)) {
        encode::field(out, "x-forwarded-proto", hop.scheme.as_bytes());
    }
    if !(hop.trusted && headers.contains_key(X_FORWARDED_HOST)) {
        encode::field(out, "x-forwarded-host", hop.host);
    }
}

/// Fields that we write, or that only a trusted proxy may.
fn is_ours(name: &HeaderName, hop: &Hop<'_>) -> bool {
    if name == HOST || name == X_REQUEST_ID || name == X_FORWARDED_FOR {
        return true;
    }
    !hop.trusted && is_a_proxys(name.as_str())
}

/// Fields by which proxies tell of the client, or of the URL it really asked for. An origin that obeys them believes whoever
/// sends them; some (CGI, WSGI, PHP) read an underscore as a hyphen.
fn is_a_proxys(name: &str) -> bool {
    if !matches!(name.as_bytes().first(), Some(b'x' | b'f')) {
        return false;
    }
    let same = |name: &str, known: &str| {
        name.len() == known.len() && name.bytes().zip(known.bytes()).all(|(a, b)| a == b || (a == b'_' && b == b'-'))
    };
    let family = "x-forwarded";
    name.get(..family.len()).is_some_and(|start| same(start, family))
        || ["forwarded", "x-real-ip", "x-original-url", "x-rewrite-url", "x-envoy-original-path"]
            .iter()
            .any(|known| same(name, known))
}

/// By its text, which is compared by length first; as ten `HeaderName`s it costs several times as much.
fn is_hop_by_hop(name: &HeaderName) -> bool {
    matches!(
        name.as_str(),
        "connection"
            | "content-length"
            | "transfer-encoding"
            | "te"
            | "upgrade"
            | "keep-alive"
            | "proxy-connection"
            | "http2-settings"
            | "proxy-authorization"
            | "proxy-authenticate"
    )
}

/// Takes the hop-by-hop fields off an answer. `Content-Length` stays: an answer to HEAD tells it without having a body.
pub fn strip_answer(headers: &mut HeaderMap) {
    let goes = |name: &&HeaderName| *name != CONTENT_LENGTH && is_hop_by_hop(name);
    while let Some(name) = headers.keys().find(goes).cloned() {
        if name == CONNECTION {
            for named in named_by_connection(headers) {
                headers.remove(named);
            }
        }
        headers.remove(name);
    }
}

/// Fields that `Connection` declares hop-by-hop, `close` and `keep-alive` aside. Those that frame or route the message are
/// not the client's to take off it.
fn named_by_connection(headers: &HeaderMap) -> Vec<HeaderName> {
    let words = headers.get_all(CONNECTION).iter().flat_map(|line| line.as_bytes().split(|octet| *octet == b','));
    words
        .map(<[u8]>::trim_ascii)
        .filter(|word| !(word.eq_ignore_ascii_case(b"close") || word.eq_ignore_ascii_case(b"keep-alive")))
        .filter_map(|word| HeaderName::from_bytes(word).ok())
        .filter(|name| name != CONTENT_LENGTH && name != HOST)
        .collect()
}

/// The protocol a request wants to change to, if it is one and is passed on. HTTP itself is not, whatever its version and
/// its wrapping: behind our back the upstream would take further requests past every limit.
pub fn wanted_upgrade(request: &Request) -> Option<HeaderValue> {
    if !request.names.may_have(&UPGRADE) {
        return None;
    }
    let asked = lists(&request.headers, &CONNECTION, "upgrade");
    let protocol = request.headers.get(UPGRADE).filter(|_| asked)?;
    let mut others = request.headers.get_all(UPGRADE).iter().skip(1);
    let name = protocol.as_bytes().to_ascii_lowercase();
    let is_token = !name.is_empty()
        && name.iter().all(|octet| octet.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~/".contains(octet));
    let is_http = [&b"h2"[..], b"h3", b"http", b"tls"].iter().any(|start| name.starts_with(start));
    (is_token && !is_http && others.next().is_none()).then(|| protocol.clone())
}

/// The client's `X-Request-Id` if it is one well-formed identifier, else a new one.
pub fn request_id(request: &Request) -> String {
    given_request_id(request).map_or_else(|| hexadecimal(fastrand::u128(..)), str::to_owned)
}

/// The client's own, if it is well-formed.
pub fn given_request_id(request: &Request) -> Option<&str> {
    if !request.names.may_have(&X_REQUEST_ID) {
        return None;
    }
    let mut lines = request.headers.get_all(X_REQUEST_ID).iter();
    match (lines.next()?.to_str().ok()?, lines.next()) {
        (text, None) if is_identifier(text) => Some(text),
        _ => None,
    }
}

/// 32 digits; `format!` would cost as much as all the rest of a request's fields.
fn hexadecimal(number: u128) -> String {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let mut text = [0; 32];
    for (pair, octet) in text.chunks_exact_mut(2).zip(number.to_be_bytes()) {
        pair.copy_from_slice(&[DIGITS[usize::from(octet >> 4)], DIGITS[usize::from(octet & 15)]]);
    }
    String::from_utf8_lossy(&text).into_owned()
}

fn is_identifier(text: &str) -> bool {
    let plain =
        |octet: u8| octet.is_ascii_alphanumeric() || matches!(octet, b'-' | b'_' | b'.' | b':' | b'/' | b'+' | b'=');
    !text.is_empty() && text.len() <= REQUEST_ID_MAX && text.bytes().all(plain)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fields(lines: &[(&'static str, &'static str)]) -> Request {
        let mut request = Request { names: lines.iter().map(|(name, _)| *name).collect(), ..Request::default() };
        for (name, value) in lines {
            request.headers.append(*name, HeaderValue::from_static(value));
        }
        request
    }

    fn written(request: &Request, trusted: bool) -> String {
        let hop = Hop { peer: "192.0.2.1", scheme: "http", trusted, host: b"shop", request_id: "id", upgrade: None };
        let mut out = Vec::new();
        write_request(&mut out, request, &hop);
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn hop_by_hop_fields_and_those_connection_names_stay_here() {
        let sent = fields(&[
            ("connection", "X-Secret, close, Host, content-length"),
            ("x-secret", "1"),
            ("keep-alive", "300"),
            ("te", "gzip, trailers"),
            ("upgrade", "h2c"),
            ("transfer-encoding", "chunked"),
            ("content-length", "5"),
            ("x-kept", "1"),
        ]);
        assert_eq!(
            written(&sent, false),
            "host: shop\r\nx-kept: 1\r\nte: trailers\r\nx-forwarded-for: 192.0.2.1\r\nx-forwarded-proto: http\r\n\
             x-forwarded-host: shop\r\nvia: 1.1 staunch\r\nx-request-id: id\r\n"
        );
    }

    #[test]
    fn a_strangers_forwarding_fields_are_dropped_and_a_proxys_passed_on() {
        let sent = fields(&[
            ("x-forwarded-for", "203.0.113.9"),
            ("x-forwarded-for", "198.51.100.1"),
            ("x-forwarded-proto", "https"),
            ("forwarded", "for=203.0.113.9"),
            ("x-real-ip", "203.0.113.9"),
            ("x_forwarded_for", "203.0.113.9"),
            ("x-forwarded_prefix", "/203.0.113.9"),
            ("x-rewrite-url", "/203.0.113.9"),
        ]);
        let stranger = written(&sent, false);
        assert!(!stranger.contains("203.0.113.9") && stranger.contains("x-forwarded-proto: http\r\n"), "{stranger}");
        let proxy = written(&sent, true);
        assert!(proxy.contains("x-forwarded-for: 203.0.113.9, 198.51.100.1, 192.0.2.1\r\n"), "{proxy}");
        assert!(proxy.contains("x-forwarded-proto: https\r\n") && proxy.contains("forwarded: for="), "{proxy}");
    }

    #[test]
    fn one_protocol_that_is_asked_for_and_is_not_http_is_an_upgrade() {
        assert!(wanted_upgrade(&fields(&[("connection", "keep-alive, Upgrade"), ("upgrade", "WebSocket")])).is_some());
        assert!(wanted_upgrade(&fields(&[("upgrade", "websocket")])).is_none());
        assert!(wanted_upgrade(&fields(&[("connection", "upgrade"), ("upgrade", "IRC/6.9")])).is_some());
        for protocol in ["h2c", "H2C", "HTTP/2.0", "TLS/1.0", "websocket, h2c", "h3", "", "web socket"] {
            assert!(
                wanted_upgrade(&fields(&[("connection", "upgrade"), ("upgrade", protocol)])).is_none(),
                "{protocol}"
            );
        }
        let twice = [("connection", "upgrade"), ("upgrade", "websocket"), ("upgrade", "h2c")];
        assert!(wanted_upgrade(&fields(&twice)).is_none());
    }

    #[test]
    fn a_request_id_is_kept_if_it_is_one_identifier() {
        assert_eq!(request_id(&fields(&[("x-request-id", "3f2a-77.B_x")])), "3f2a-77.B_x");
        for odd in [&[("x-request-id", "a b\"<script>")][..], &[("x-request-id", "a"), ("x-request-id", "b")], &[]] {
            assert_eq!(request_id(&fields(odd)).len(), 32);
        }
    }
}
