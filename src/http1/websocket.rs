//! What only HTTP/1.1 says in a WebSocket's handshake (RFC 6455 §4): a key and the answer to it. Over HTTP/2 (RFC 8441 §5)
//! neither is sent, so whoever stands between the two makes one up.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use http::{HeaderName, HeaderValue};

pub const PROTOCOL: &str = "websocket";
pub const KEY: HeaderName = http::header::SEC_WEBSOCKET_KEY;
pub const ACCEPT: HeaderName = http::header::SEC_WEBSOCKET_ACCEPT;
const MAGIC: &[u8] = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11";

#[must_use]
pub fn is_websocket(protocol: &HeaderValue) -> bool {
    protocol.as_bytes().eq_ignore_ascii_case(PROTOCOL.as_bytes())
}

/// Sixteen octets that nobody has asked for before; they need not be secret.
#[must_use]
pub fn key() -> Option<HeaderValue> {
    HeaderValue::from_str(&STANDARD.encode(fastrand::u128(..).to_be_bytes())).ok()
}

/// The answer that a client expects to its key.
#[must_use]
pub fn accept(key: &[u8]) -> Option<HeaderValue> {
    let mut hash = sha1_smol::Sha1::new();
    hash.update(key);
    hash.update(MAGIC);
    HeaderValue::from_str(&STANDARD.encode(hash.digest().bytes())).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_answer_is_that_of_the_standards_example() {
        assert_eq!(accept(b"dGhlIHNhbXBsZSBub25jZQ==").unwrap(), "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=");
        assert_eq!(key().unwrap().len(), 24);
    }
}
