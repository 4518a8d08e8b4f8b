//! What clients are told, over random decisions: the fields parse, agree with each other, and no wait is told short.

use bytes::Bytes;
use http::header::{CONTENT_TYPE, RETRY_AFTER};
use http::{HeaderMap, HeaderValue, Response, StatusCode};
use proptest::prelude::*;
use sfv::{BareItem, List, ListEntry, Parser};
use staunch::limit::{Name, Policy, Told};
use staunch::message::{self, Body, Lines};
use staunch::respond::{self, RefusalBody, Reset, Style};

const WALL_US: u64 = 1_796_060_400_250_000;
const INTEGER_MAX: u64 = 999_999_999_999_999;

/// A name as a configuration holds it: for as long as anything is told of it.
fn kept(name: &str) -> &'static Name {
    Box::leak(Box::new(Name::new(name)))
}

fn told() -> impl Strategy<Value = Told<'static>> {
    let number = prop_oneof![0..200u64, 0..=1u64 << 53, Just(1 << 53)];
    let wait =
        prop_oneof![1..3_000_000u64, 1..=400 * 86_400_000_000u64, Just(1_000_000), Just(999_999), Just(1_000_001)];
    let name = prop_oneof!["[a-z-]{1,12}", "[ -~]{0,16}"];
    let retry = prop::option::weighted(0.8, wait.clone());
    (name, number.clone(), wait.clone(), number, wait, any::<bool>(), retry).prop_map(
        |(name, capacity, window_us, remaining, reset_us, refused, retry_after_us)| Told {
            name: kept(&name),
            capacity,
            policy: Policy::Window(window_us),
            remaining: remaining.min(capacity),
            reset_us,
            refused,
            retry_after_us: retry_after_us.filter(|_| refused),
        },
    )
}

fn several() -> impl Strategy<Value = Vec<Told<'static>>> {
    prop::collection::vec(told(), 1..5)
}

fn limit(name: &str, remaining: u64) -> Told<'static> {
    Told {
        name: kept(name),
        capacity: 100,
        policy: Policy::Window(60_000_000),
        remaining,
        reset_us: 59_000_001,
        refused: false,
        retry_after_us: None,
    }
}

fn refused(name: &str, wait_us: Option<u64>) -> Told<'static> {
    Told { refused: true, retry_after_us: wait_us, ..limit(name, 0) }
}

/// What the limit's reset tells: `None`: nothing.
fn wait_us(told: &Told) -> Option<u64> {
    if told.refused { told.retry_after_us } else { Some(told.reset_us) }
}

fn window_us(told: &Told) -> u64 {
    let Policy::Window(window_us) = told.policy else { unreachable!("no quota here is a limit's own") };
    window_us
}

fn delta() -> Style {
    Style { reset: Reset::Delta, ..Style::default() }
}

fn annotated(told: &[Told], style: &Style) -> HeaderMap {
    let (mut headers, mut lines) = (HeaderMap::new(), Lines::default());
    respond::annotate(&mut lines, told, style, WALL_US);
    lines.append_to(&mut headers);
    headers
}

fn text<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    let mut all = headers.get_all(name).iter();
    let first = all.next().map(|value| value.to_str().unwrap());
    assert!(all.next().is_none(), "{name} came twice");
    first
}

fn number(headers: &HeaderMap, name: &str) -> Option<u64> {
    text(headers, name).map(|value| value.parse().unwrap())
}

/// A list of strings with integer parameters.
fn parsed(headers: &HeaderMap, name: &str) -> Vec<(String, Vec<(String, u64)>)> {
    let list: List = Parser::new(text(headers, name).unwrap()).parse().unwrap();
    list.into_iter()
        .map(|entry| {
            let ListEntry::Item(item) = entry else { panic!("an inner list") };
            let BareItem::String(name) = item.bare_item else { panic!("not a string") };
            let parameters = item.params.into_iter().map(|(key, value)| {
                let BareItem::Integer(value) = value else { panic!("not an integer") };
                (key.to_string(), u64::try_from(i64::from(value)).unwrap())
            });
            (name.as_str().to_owned(), parameters.collect())
        })
        .collect()
}

fn parameter(parameters: &[(String, u64)], name: &str) -> Option<u64> {
    parameters.iter().find(|(key, _)| key == name).map(|&(_, value)| value)
}

fn refuse(told: &[Told], style: &Style) -> Response<Bytes> {
    refuse_request(&HeaderMap::new(), told, style)
}

/// The refusal as an HTTP/2 client sees it.
fn refuse_request(headers: &HeaderMap, told: &[Told], style: &Style) -> Response<Bytes> {
    let names = headers.keys().map(|name| name.as_str()).collect();
    let request = &message::Request { headers: headers.clone(), names, ..message::Request::default() };
    let mut refusal = message::Response::default();
    respond::refuse(&mut refusal, request, told, style, WALL_US);
    let mut answer = Response::new(match refusal.body {
        Body::Full(bytes) => bytes,
        Body::Empty => Bytes::new(),
        Body::Stream(_) => panic!("a refusal is at hand"),
    });
    *answer.status_mut() = refusal.status;
    *answer.headers_mut() = refusal.headers;
    refusal.lines.append_to(answer.headers_mut());
    answer
}

fn json(answer: &Response<Bytes>) -> serde_json::Value {
    assert_eq!(answer.headers()[CONTENT_TYPE], "application/problem+json");
    serde_json::from_slice(answer.body()).unwrap()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    #[test]
    fn the_structured_fields_parse_and_carry_each_limits_numbers(told in several()) {
        let headers = annotated(&told, &delta());
        let (policies, rates) = (parsed(&headers, "ratelimit-policy"), parsed(&headers, "ratelimit"));
        prop_assert_eq!(policies.len(), told.len());
        prop_assert_eq!(rates.len(), told.len());
        for ((told, policy), rate) in told.iter().zip(&policies).zip(&rates) {
            prop_assert_eq!(&policy.0, told.name.text());
            prop_assert_eq!(&rate.0, told.name.text());
            prop_assert_eq!(parameter(&policy.1, "q"), Some(told.capacity.min(INTEGER_MAX)));
            prop_assert_eq!(parameter(&policy.1, "w"), Some(window_us(told).div_ceil(1_000_000)));
            prop_assert_eq!(parameter(&rate.1, "r"), Some(told.remaining.min(INTEGER_MAX)));
            prop_assert_eq!(parameter(&rate.1, "t"), wait_us(told).map(|us| us.div_ceil(1_000_000)));
        }
    }

    #[test]
    fn the_plain_fields_are_those_of_the_tightest_limit(told in several()) {
        let refusing: Vec<&Told> = told.iter().filter(|told| told.refused).collect();
        let tightest = if refusing.is_empty() {
            let fewest = told.iter().map(|told| told.remaining).min().unwrap();
            told.iter().find(|told| told.remaining == fewest).unwrap()
        } else if let Some(hopeless) = refusing.iter().find(|told| told.retry_after_us.is_none()) {
            hopeless
        } else {
            let longest = refusing.iter().map(|told| told.retry_after_us).max().unwrap();
            refusing.iter().find(|told| told.retry_after_us == longest).unwrap()
        };
        let headers = annotated(&told, &delta());
        prop_assert_eq!(number(&headers, "x-ratelimit-limit"), Some(tightest.capacity));
        prop_assert_eq!(number(&headers, "x-ratelimit-remaining"), Some(tightest.remaining));
        let wait_us = wait_us(tightest);
        prop_assert_eq!(number(&headers, "x-ratelimit-reset"), wait_us.map(|us| us.div_ceil(1_000_000)));
        let epoch = number(&annotated(&told, &Style::default()), "x-ratelimit-reset");
        prop_assert_eq!(epoch, wait_us.map(|us| (WALL_US + us).div_ceil(1_000_000)));
    }

    #[test]
    fn waiting_as_told_is_always_long_enough(mut told in several()) {
        told[0].refused = true;
        let waits: Vec<Option<u64>> = told.iter().filter(|told| told.refused).map(|told| told.retry_after_us).collect();
        let longest = waits.iter().copied().collect::<Option<Vec<u64>>>().and_then(|waits| waits.into_iter().max());
        let answer = refuse(&told, &delta());
        let document = json(&answer);
        prop_assert_eq!(answer.status(), StatusCode::TOO_MANY_REQUESTS);
        let names: Vec<&str> = told.iter().filter(|told| told.refused).map(|told| told.name.text()).collect();
        prop_assert_eq!(&document["violated-policies"], &serde_json::json!(names));
        let seconds = number(answer.headers(), "retry-after");
        prop_assert_eq!(seconds, number(answer.headers(), "x-ratelimit-reset"));
        let ms = document.get("retry_after_ms").map(|ms| ms.as_u64().unwrap());
        prop_assert_eq!(seconds, ms.map(|ms| ms.div_ceil(1000)));
        prop_assert_eq!(seconds.is_some(), longest.is_some());
        if let (Some(seconds), Some(ms), Some(longest)) = (seconds, ms, longest) {
            prop_assert!(seconds >= 1 && seconds * 1_000_000 >= longest && (seconds - 1) * 1_000_000 < longest);
            prop_assert!(ms >= 1 && ms * 1000 >= longest && (ms - 1) * 1000 < longest);
        }
    }

    #[test]
    fn a_name_of_any_text_leaves_the_fields_and_the_body_well_formed(name in any::<String>()) {
        let answer = refuse(&[refused(&name, Some(1)), limit("other", 3)], &Style::default());
        prop_assert_eq!(parsed(answer.headers(), "ratelimit").len(), 2);
        prop_assert_eq!(&json(&answer)["violated-policies"][0], &serde_json::json!(name));
    }
}

#[test]
fn the_fields_read_as_documented() {
    let headers = annotated(&[limit("per-ip", 99), limit("say \"hi\\\"", 100)], &Style::default());
    assert_eq!(text(&headers, "ratelimit-policy"), Some(r#""per-ip";q=100;w=60, "say \"hi\\\"";q=100;w=60"#));
    assert_eq!(text(&headers, "ratelimit"), Some(r#""per-ip";r=99;t=60, "say \"hi\\\"";r=100;t=60"#));
    assert_eq!(text(&headers, "x-ratelimit-limit"), Some("100"));
    assert_eq!(text(&headers, "x-ratelimit-remaining"), Some("99"));
    assert_eq!(text(&headers, "x-ratelimit-reset"), Some("1796060460"));
}

#[test]
fn a_window_below_a_second_is_told_as_one_and_no_window_not_at_all() {
    let short = Told { policy: Policy::Window(100_000), ..limit("short", 1) };
    let none = Told { policy: Policy::Window(0), ..limit("none", 1) };
    let headers = annotated(&[short, none], &delta());
    assert_eq!(text(&headers, "ratelimit-policy"), Some(r#""short";q=100;w=1, "none";q=100"#));
}

#[test]
fn a_whole_limit_resets_now() {
    let headers = annotated(&[Told { reset_us: 0, ..limit("l", 100) }], &delta());
    assert_eq!(
        (number(&headers, "x-ratelimit-reset"), text(&headers, "ratelimit")),
        (Some(0), Some("\"l\";r=100;t=0"))
    );
}

#[test]
fn upstream_fields_of_any_dialect_go_even_when_nothing_is_told_or_a_family_is_off() {
    let silent = Style { x_ratelimit: false, ratelimit: false, ..Style::default() };
    let told = vec![limit("l", 1)];
    for (told, style, ours) in [(told.clone(), Style::default(), 5), (vec![], Style::default(), 0), (told, silent, 0)] {
        let mut headers = HeaderMap::new();
        let theirs = ["x-ratelimit-limit", "x-ratelimit-reset", "x-ratelimit-used", "ratelimit", "ratelimit-policy"];
        for name in theirs.into_iter().chain(["x-ratelimit-limit", "retry-after"]) {
            headers.append(name, HeaderValue::from_static("7"));
        }
        respond::strip(&mut headers);
        let mut lines = Lines::default();
        respond::annotate(&mut lines, &told, &style, WALL_US);
        lines.append_to(&mut headers);
        assert_eq!(headers.len(), ours + 1, "{headers:?}");
        assert!(headers.get("x-ratelimit-used").is_none());
        assert_eq!(text(&headers, "retry-after"), Some("7"), "a wait the upstream asks for is the upstream's");
    }
}

#[test]
fn each_family_of_fields_is_switched_off_by_itself() {
    let told = [refused("l", Some(5))];
    let without = refuse(&told, &Style { x_ratelimit: false, ..delta() });
    assert!(without.headers().get("x-ratelimit-limit").is_none() && without.headers().get("ratelimit").is_some());
    let without = refuse(&told, &Style { ratelimit: false, ..delta() });
    assert!(without.headers().get("x-ratelimit-limit").is_some() && without.headers().get("ratelimit").is_none());
    assert!(without.headers().get("ratelimit-policy").is_none());
    assert_eq!(text(without.headers(), "retry-after"), Some("1"));
}

#[test]
fn another_status_keeps_the_problems_type_and_title() {
    let style = Style { status: StatusCode::SERVICE_UNAVAILABLE, ..delta() };
    let answer = refuse(&[refused("l", Some(1_500_000))], &style);
    assert_eq!(answer.status(), StatusCode::SERVICE_UNAVAILABLE);
    let expected = serde_json::json!({
        "type": "https://iana.org/assignments/http-problem-types#quota-exceeded",
        "title": "Too Many Requests",
        "status": 503,
        "detail": "Over the limit l; try again in 2 s.",
        "violated-policies": ["l"],
        "retry_after_ms": 1500,
    });
    assert_eq!(json(&answer), expected);
}

#[test]
fn only_statuses_of_errors_can_be_configured() {
    let accepted: Vec<u16> = (0..=1000).filter(|&number| Style::refusal_status(number).is_some()).collect();
    assert_eq!(accepted, (400..=599).collect::<Vec<u16>>());
}

#[test]
fn a_refusals_body_is_the_configured_one() {
    let plain = refuse(&[refused("l", Some(1))], &Style { body: RefusalBody::Text, ..delta() });
    assert_eq!(plain.headers()[CONTENT_TYPE], "text/plain; charset=utf-8");
    assert_eq!(plain.body(), "Too Many Requests: Over the limit l; try again in 1 s.\n");
    let body = RefusalBody::Custom { content_type: HeaderValue::from_static("application/x"), text: "{}".into() };
    let custom = refuse(&[refused("l", None)], &Style { body, ..delta() });
    assert_eq!(custom.headers()[CONTENT_TYPE], "application/x");
    assert_eq!(custom.body(), "{}");
    assert!(custom.headers().get(RETRY_AFTER).is_none());
}

fn typed(content_type: &'static str) -> HeaderMap {
    HeaderMap::from_iter([(CONTENT_TYPE, HeaderValue::from_static(content_type))])
}

#[test]
fn only_grpcs_own_content_types_are_grpc() {
    let theirs = [
        "application/grpc",
        "application/grpc+proto",
        "application/grpc;x=1",
        "application/grpc ;x",
        "Application/gRPC",
    ];
    assert!(theirs.into_iter().all(|kind| respond::is_grpc(&typed(kind))));
    for kind in ["application/grpc-web", "application/grpc-web+proto", "application/json", "application/grpcx", "a", ""]
    {
        assert!(!respond::is_grpc(&typed(kind)), "{kind}");
    }
    assert!(!respond::is_grpc(&HeaderMap::new()));
}

#[test]
fn a_grpc_call_is_refused_in_trailers_alone() {
    let told = [refused("50 % ü", Some(811_001)), limit("other", 4)];
    let answer = refuse_request(&typed("application/grpc+proto"), &told, &delta());
    assert_eq!(answer.status(), StatusCode::OK);
    assert!(answer.body().is_empty());
    assert_eq!(answer.headers()[CONTENT_TYPE], "application/grpc");
    assert_eq!(text(answer.headers(), "grpc-status"), Some("8"));
    assert_eq!(text(answer.headers(), "grpc-message"), Some("Over the limit 50 %25 %C3%BC; try again in 1 s."));
    assert_eq!(text(answer.headers(), "grpc-retry-pushback-ms"), Some("812"));
    assert_eq!(text(answer.headers(), "x-ratelimit-remaining"), Some("0"));
    let hopeless = refuse_request(&typed("application/grpc"), &[refused("l", None)], &delta());
    assert_eq!(text(hopeless.headers(), "grpc-retry-pushback-ms"), Some("-1"));
}
