//! The gateway's own failures, as messages and as bytes on the wire.

use http::header::CONTENT_TYPE;
use serde_json::{Value, json};
use staunch::respond::Failure;
use staunch::respond::failure::UpstreamFault;
use std::sync::Arc;
use std::time::Duration;

fn failures() -> Vec<(Failure, u16)> {
    vec![
        (Failure::NoRoute, 404),
        (Failure::BadRequest("The path is malformed.".into()), 400),
        (Failure::MissingKey(Arc::from("per \"user\"")), 400),
        (Failure::RequestTimeout, 408),
        (Failure::BodyTooLarge, 413),
        (Failure::HeadersTooLarge, 431),
        (Failure::UpstreamFailed(UpstreamFault::Connect), 502),
        (Failure::UpstreamFailed(UpstreamFault::Closed), 502),
        (Failure::UpstreamFailed(UpstreamFault::Malformed), 502),
        (Failure::StoreClosed { retry_after: Duration::ZERO }, 503),
        (Failure::StoreClosed { retry_after: Duration::from_millis(1500) }, 503),
        (Failure::NoHealthyUpstream { retry_after: Duration::from_secs(5) }, 503),
        (Failure::UpstreamFull, 503),
        (Failure::UpstreamTimedOut, 504),
    ]
}

fn wait(failure: &Failure) -> Option<String> {
    failure.response().headers().get("retry-after").map(|value| value.to_str().unwrap().to_owned())
}

#[test]
fn every_failure_is_a_problem_of_its_status() {
    for (failure, status) in failures() {
        let answer = failure.response();
        let document: Value = serde_json::from_slice(answer.body()).unwrap();
        assert_eq!(answer.headers()[CONTENT_TYPE], "application/problem+json");
        assert_eq!((answer.status().as_u16(), &document["status"]), (status, &json!(status)));
        assert_eq!(document["type"], "about:blank");
        assert!(document["title"].is_string() && document["detail"].is_string());
    }
}

#[test]
fn what_passes_by_itself_tells_a_wait_and_nothing_else_does() {
    for (failure, status) in failures() {
        assert_eq!(wait(&failure).is_some(), status == 503, "{failure:?}");
    }
    assert_eq!(wait(&Failure::StoreClosed { retry_after: Duration::ZERO }).as_deref(), Some("1"));
    assert_eq!(wait(&Failure::StoreClosed { retry_after: Duration::from_millis(1500) }).as_deref(), Some("2"));
}

#[test]
fn a_failure_in_raw_bytes_says_the_same() {
    for (failure, status) in failures() {
        let wire = failure.bytes();
        let mut fields = [httparse::EMPTY_HEADER; 16];
        let mut head = httparse::Response::new(&mut fields);
        let length = head.parse(&wire).unwrap().unwrap();
        let field = |name: &str| {
            let found = head.headers.iter().find(|field| field.name == name)?;
            Some(std::str::from_utf8(found.value).unwrap().to_owned())
        };
        assert_eq!((head.code, field("connection").as_deref()), (Some(status), Some("close")));
        assert!(httpdate::parse_http_date(&field("date").unwrap()).is_ok());
        assert_eq!(field("content-length").unwrap(), (wire.len() - length).to_string());
        assert_eq!(&wire[length..], &failure.response().body()[..]);
        assert_eq!(field("retry-after"), wait(&failure));
    }
}
