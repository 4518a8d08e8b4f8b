//! Which fields may come behind a body (RFC 9110 §6.5.1). What frames, routes, authenticates or describes a message was
//! decided on without them, and a recipient that merges trailers into the head would be told otherwise; such fields are
//! dropped.

use http::{HeaderMap, HeaderName};

/// Sorted, for the search.
const HEAD_ONLY: &[&str] = &[
    "authorization",
    "cache-control",
    "connection",
    "content-encoding",
    "content-length",
    "content-range",
    "content-type",
    "cookie",
    "expect",
    "forwarded",
    "host",
    "keep-alive",
    "max-forwards",
    "pragma",
    "proxy-authenticate",
    "proxy-authorization",
    "proxy-connection",
    "range",
    "set-cookie",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
    "via",
    "www-authenticate",
    "x-real-ip",
    "x-request-id",
];
const HEAD_ONLY_PREFIXES: &[&str] = &["if-", "x-forwarded-"];

/// Drops what belongs in a head.
pub fn keep_harmless(trailers: &mut HeaderMap) {
    let harmful: Vec<HeaderName> = trailers.keys().filter(|name| belongs_in_head(name)).cloned().collect();
    for name in harmful {
        trailers.remove(name);
    }
}

fn belongs_in_head(name: &HeaderName) -> bool {
    let name = name.as_str();
    HEAD_ONLY.binary_search(&name).is_ok() || HEAD_ONLY_PREFIXES.iter().any(|prefix| name.starts_with(prefix))
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::HeaderValue;

    #[test]
    fn a_checksum_may_trail_and_what_frames_or_routes_may_not() {
        assert!(HEAD_ONLY.is_sorted());
        let mut trailers = HeaderMap::new();
        for name in ["x-sum", "grpc-status", "content-length", "host", "x-forwarded-for", "if-match", "set-cookie"] {
            trailers.append(name, HeaderValue::from_static("1"));
        }
        keep_harmless(&mut trailers);
        assert_eq!(trailers.keys().collect::<Vec<_>>(), ["x-sum", "grpc-status"]);
    }
}
