//! Who may call: the token, other hosts, other sites' pages.

use crate::process::{BEARER, TOKEN, call, process, with};
use staunch::units::Secret;

#[test]
fn what_changes_something_needs_the_token() {
    let process = process(Some(TOKEN));
    with(&process, async |address| {
        for line in ["POST /reload", "DELETE /limits/p/l?key=k"] {
            for fields in [
                &[][..],
                &["Authorization: Bearer wrong"],
                &["Authorization: Basic s3cret"],
                &["Authorization: Bearer "],
            ] {
                let answer = call(address, line, fields).await;
                assert_eq!(answer.status, 401, "{line} {fields:?}");
                assert!(answer.has("www-authenticate: Bearer"));
            }
            assert_eq!(call(address, line, &[BEARER, BEARER]).await.status, 401, "two credentials are none");
            assert!(process.reset.borrow().is_empty());
            let answer = call(address, line, &["Authorization: bearer s3cret"]).await;
            assert_eq!((answer.status, answer.body.as_str()), (200, "ok\n"));
        }
        assert_eq!(process.reset.borrow().len(), 1);
    });
}

#[test]
fn without_a_configured_token_nothing_can_be_changed() {
    for token in [None, Some("")] {
        with(&process(token), async |address| {
            let answer = call(address, "POST /reload", &["Authorization: Bearer "]).await;
            assert_eq!(answer.status, 403);
            assert!(answer.json()["detail"].as_str().unwrap().contains("admin.token"));
        });
    }
}

#[test]
fn what_a_gateway_forwards_is_let_in_to_probes_alone() {
    with(&process(Some(TOKEN)), async |address| {
        for (via, status) in [("Via: 1.1 staunch", 403), ("Via: 1.1 cdn, 1.1 staunch", 403), ("Via: 1.1 nginx", 200)] {
            for line in ["GET /status", "GET /metrics", "POST /reload"] {
                assert_eq!(call(address, line, &[BEARER, via]).await.status, status, "{line} {via}");
            }
            assert_eq!(call(address, "GET /healthz", &[via]).await.status, 200);
        }
    });
}

#[test]
fn another_sites_page_can_neither_change_nor_read() {
    with(&process(Some(TOKEN)), async |address| {
        let own = format!("Origin: http://{address}");
        for (field, status) in [
            ("Origin: https://evil.example", 403),
            ("Origin: null", 403),
            ("Sec-Fetch-Site: cross-site", 403),
            ("Sec-Fetch-Site: same-site", 403),
            ("Sec-Fetch-Site: same-origin", 200),
            (own.as_str(), 200),
        ] {
            assert_eq!(call(address, "POST /reload", &[BEARER, field]).await.status, status, "{field}");
        }
        let rebound = ["Host: evil.example", "Origin: http://evil.example"];
        assert_eq!(call(address, "POST /reload", &[BEARER, rebound[0], rebound[1]]).await.status, 403);
        for (host, status) in [
            ("Host: evil.example", 403),
            ("Host: 127.0.0.1.evil.example:9090", 403),
            ("Host: localhost@evil.example", 403),
            ("Host: localhost:9090", 200),
            ("Host: LOCALHOST.", 200),
            ("Host: [::1]:9090", 200),
            ("Host: 10.0.0.1", 200),
        ] {
            assert_eq!(call(address, "GET /status", &[host]).await.status, status, "{host}");
        }
        assert_eq!(call(address, "GET http://evil.example/status", &[]).await.status, 403, "the target's host counts");
        assert_eq!(call(address, "GET /status", &["Host: admin.internal", BEARER]).await.status, 200);
        assert_eq!(call(address, "GET /readyz", &["Host: admin.internal"]).await.status, 200);
    });
}

#[test]
fn a_caller_from_elsewhere_needs_the_token_even_to_read() {
    use http::HeaderMap;
    use staunch::admin::access::{Caller, Need};
    let with_token: HeaderMap = [(http::header::AUTHORIZATION, BEARER[15..].parse().unwrap())].into_iter().collect();
    let (without, token) = (HeaderMap::new(), Secret::new(TOKEN.to_owned()));
    let may = |peer: &str, headers, need, token: Option<&Secret>| {
        let caller = Caller { peer: peer.parse().unwrap(), headers, authority: None };
        caller.may(need, token).map_err(|denied| denied.response().status().as_u16())
    };
    for peer in ["192.0.2.7", "::ffff:192.0.2.7", "2001:db8::1"] {
        assert_eq!(may(peer, &without, Need::Probe, None), Ok(()));
        assert_eq!(may(peer, &without, Need::Read, Some(&token)), Err(401));
        assert_eq!(may(peer, &without, Need::Read, None), Err(403));
        assert_eq!(may(peer, &with_token, Need::Read, Some(&token)), Ok(()));
        assert_eq!(may(peer, &with_token, Need::Change, Some(&token)), Ok(()));
    }
    for peer in ["127.0.0.1", "127.9.9.9", "::1", "::ffff:127.0.0.1"] {
        assert_eq!(may(peer, &without, Need::Read, Some(&token)), Ok(()));
        assert_eq!(may(peer, &without, Need::Change, Some(&token)), Err(401));
    }
}
