//! Properties of all that reads bytes from outside before a limit is asked: paths, hosts, routes, keys, forwarding fields.

#![allow(clippy::expect_used, reason = "a test fails loudly")]

use http::{HeaderMap, HeaderName, HeaderValue, Method};
use ipnet::IpNet;
use proptest::prelude::*;
use staunch::identify::{Facts, Identity, KeySource, KeySpec, Keyer, Namespace, Prefixes};
use staunch::proxy::client_addr::ClientAddr;
use staunch::route::{
    HeaderPattern, HostPattern, PathPattern, Pattern, Segment, Table, normalise, normalise_host, same_set, split_target,
};
use std::cmp::Reverse;
use std::net::IpAddr;

/// Paths near the edges: pieces that mean something, between bytes that do not.
fn rough_path() -> impl Strategy<Value = Vec<u8>> {
    let pieces: Vec<&'static [u8]> = vec![
        b"/",
        b"//",
        b".",
        b"..",
        b"/./",
        b"/../",
        b";",
        b"%2e",
        b"%2E",
        b"%2f",
        b"%25",
        b"%3b",
        b"%61",
        b"%c3%a9",
        b"%C0%AF",
        b"%",
        b"%4",
        b"a",
        b"login",
        b"{",
        b"|",
        b"\\",
        b"#",
        b"?",
        b"~",
        b"%7e",
        b"%20",
        b"%00",
        b"\xc3\xa9",
    ];
    let piece = prop_oneof![
        8 => prop::sample::select(pieces).prop_map(<[u8]>::to_vec),
        1 => prop::collection::vec(any::<u8>(), 0..3),
    ];
    prop::collection::vec(piece, 0..10).prop_map(|pieces| [vec![b'/'], pieces.concat()].concat())
}

/// A segment of unreserved characters that is no dot segment.
fn plain_segment() -> impl Strategy<Value = String> {
    "[a-zA-Z0-9_~.-]{1,6}".prop_filter("a dot segment", |text| text != "." && text != "..")
}

/// The same path, spelt otherwise: `choices` says where an escape, a dot segment or a second slash goes.
fn respelt(segments: &[String], choices: &[u8]) -> String {
    let mut choices = choices.iter().copied().cycle();
    let mut next = || choices.next().unwrap_or_default();
    let mut text = String::new();
    for segment in segments {
        text.push_str(
            ["/", "//", "/./", "/x/../", "/%2e/", "/a/b/.%2E/../", "/..x/%2e%2E/", "/"][usize::from(next() % 8)],
        );
        for character in segment.bytes() {
            match next() % 4 {
                0 => text.push_str(&format!("%{character:02x}")),
                1 => text.push_str(&format!("%{character:02X}")),
                _ => text.push(char::from(character)),
            }
        }
    }
    text
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn a_path_is_normalised_to_something_normal_or_refused(path in rough_path()) {
        if let Ok(normal) = normalise(&path) {
            let text = normal.forwarded();
            let again = normalise(text.as_bytes()).expect("what is normal is accepted");
            prop_assert_eq!(again.forwarded(), text);
            prop_assert!(again.is_verbatim(), "what is normal is not copied: {}", text);
            prop_assert!(text.starts_with('/') && !text.contains("//"), "{}", text);
            prop_assert!(text.bytes().all(|byte| byte.is_ascii_graphic() && !b"\\#?\"<>[]^`{|}".contains(&byte)), "{}", text);
            prop_assert!(!text.split('/').any(|segment| matches!(segment, "." | "..")), "{}", text);
            prop_assert!(!text.split('/').any(|segment| segment.starts_with("..;") || segment.starts_with(".;")), "{}", text);
            for refused in ["%2F", "%5C", "%00", "%0", "%1", "%7F"] {
                prop_assert!(!text.contains(refused), "{}", text);
            }
            let bare = normal.matching();
            prop_assert!(bare == "/" || !bare.ends_with('/'));
            prop_assert_eq!(bare, if text == "/" { text } else { text.strip_suffix('/').unwrap_or(text) });
        }
    }

    #[test]
    fn every_spelling_of_a_path_becomes_that_path(
        segments in prop::collection::vec(plain_segment(), 1..5),
        choices in prop::collection::vec(any::<u8>(), 1..40),
        above in 0_usize..3,
        slash in any::<bool>(),
    ) {
        let slash = if slash { "/" } else { "" };
        let canonical = format!("/{}", segments.join("/"));
        let spelling = format!("{}{}{slash}", "/..".repeat(above), respelt(&segments, &choices));
        let normal = normalise(spelling.as_bytes()).expect("a spelling of a path is a path");
        prop_assert_eq!(normal.matching(), canonical.as_str(), "{}", spelling);
        prop_assert_eq!(normal.forwarded(), format!("{canonical}{slash}"), "{}", spelling);
    }

    #[test]
    fn a_target_and_a_host_are_read_whatever_their_bytes(bytes in prop::collection::vec(any::<u8>(), 0..60)) {
        if let Ok((path, query)) = split_target(&bytes) {
            let joined = [path, query.map(|query| format!("?{query}")).unwrap_or_default().as_bytes()].concat();
            prop_assert_eq!(joined, bytes.clone());
        }
        if let Ok(host) = normalise_host(&bytes) {
            let again = normalise_host(host.as_bytes()).expect("what is normal is accepted");
            prop_assert_eq!(&*again, &*host);
        }
    }

    #[test]
    fn a_host_of_any_case_and_port_is_one_host(name in "[a-zA-Z0-9-]{1,8}(\\.[a-zA-Z0-9_-]{1,8}){0,3}", port in any::<u16>()) {
        let normal = name.to_lowercase();
        for spelling in [name.clone(), format!("{name}:{port}"), format!("{name}."), format!("{}.:", name.to_uppercase())] {
            prop_assert_eq!(&*normalise_host(spelling.as_bytes()).expect("a host"), normal.as_str());
        }
    }
}

fn path_pattern() -> impl Strategy<Value = PathPattern> {
    let segment = prop_oneof![
        Just(Segment::Literal("a".into())),
        Just(Segment::Literal("b".into())),
        Just(Segment::Any("x".into())),
    ];
    (prop::collection::vec(segment, 0..4), any::<bool>())
        .prop_map(|(segments, prefix)| PathPattern { segments, prefix })
}

fn pattern() -> impl Strategy<Value = Pattern> {
    let host = prop::sample::select(vec!["a.x.org", "b.a.x.org", "y.org", "*.x.org", "*.a.x.org", "*.org"]);
    let hosts = prop::collection::vec(host.prop_map(|text| HostPattern::parse(text).expect("a host")), 0..3);
    let methods = prop::sample::subsequence(vec![Method::GET, Method::POST, Method::PUT], 0..3);
    let value = prop_oneof![Just(HeaderPattern::Present), Just(HeaderPattern::Value("1".into()))];
    let names = prop::sample::subsequence(vec!["x-a", "x-b"], 0..3);
    let headers = (names, prop::collection::vec(value, 2))
        .prop_map(|(names, values)| names.into_iter().map(HeaderName::from_static).zip(values).collect());
    (hosts, path_pattern(), methods, headers).prop_map(|(hosts, path, methods, headers)| Pattern {
        hosts,
        path,
        methods,
        headers,
    })
}

/// How well a host pattern fits, best first; `None`: not at all.
fn host_fit(pattern: &HostPattern, host: &str) -> Option<(u8, Reverse<usize>)> {
    match pattern {
        HostPattern::Exact(name) => (name == host).then_some((0, Reverse(0))),
        HostPattern::Under(domain) => host.ends_with(&format!(".{domain}")).then_some((1, Reverse(domain.len()))),
    }
}

fn path_matches(pattern: &PathPattern, segments: &[&str]) -> bool {
    let length = pattern.segments.len();
    (segments.len() == length || (pattern.prefix && segments.len() > length))
        && pattern.segments.iter().zip(segments).all(|(wanted, segment)| match wanted {
            Segment::Literal(text) => text == segment,
            Segment::Any(_) => true,
        })
}

/// The definition: of all routes that match, the first by host, path from the left, methods, fields, and place in the file.
fn naive(routes: &[Pattern], host: &str, segments: &[&str], method: &Method, headers: &HeaderMap) -> Option<usize> {
    let rank = |(index, route): (usize, &Pattern)| {
        let fit = if route.hosts.is_empty() {
            Some((2, Reverse(0)))
        } else {
            route.hosts.iter().filter_map(|pattern| host_fit(pattern, host)).min()
        }?;
        let header_holds = |(name, pattern): &(HeaderName, HeaderPattern)| match pattern {
            HeaderPattern::Present => headers.contains_key(name),
            HeaderPattern::Value(value) => headers.get(name).is_some_and(|sent| sent == value.as_str()),
        };
        let holds = path_matches(&route.path, segments)
            && (route.methods.is_empty() || route.methods.contains(method))
            && route.headers.iter().all(header_holds);
        let mut path: Vec<u8> =
            route.path.segments.iter().map(|segment| u8::from(matches!(segment, Segment::Any(_)))).collect();
        path.extend(route.path.prefix.then_some(2));
        let values = route.headers.iter().filter(|(_, pattern)| matches!(pattern, HeaderPattern::Value(_))).count();
        let hosts = if route.hosts.is_empty() { usize::MAX } else { route.hosts.len() };
        let fields = (Reverse(route.headers.len()), Reverse(values));
        holds.then_some((fit, path, route.methods.is_empty(), fields, route.methods.len(), hosts, index))
    };
    routes.iter().enumerate().filter_map(rank).min().map(|found| found.6)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]

    #[test]
    fn the_table_finds_what_a_scan_by_definition_finds(
        patterns in prop::collection::vec(pattern(), 0..25),
        hosts in prop::collection::vec(prop::sample::select(vec!["a.x.org", "b.a.x.org", "c.b.a.x.org", "y.org", "x.org", "org", ""]), 4),
        paths in prop::collection::vec(prop::collection::vec(prop::sample::select(vec!["a", "b", "c"]), 0..5), 6),
        sent in prop::collection::vec(prop::sample::select(vec!["", "1", "2"]), 2),
    ) {
        let mut routes: Vec<Pattern> = Vec::new();
        for pattern in patterns {
            if !routes.iter().any(|route| same_set(route, &pattern)) {
                routes.push(pattern);
            }
        }
        let table = Table::new(routes.iter().cloned().zip(0_usize..).collect()).expect("no two of the same set");
        let mut headers = HeaderMap::new();
        for (name, value) in ["x-a", "x-b"].into_iter().zip(&sent) {
            if !value.is_empty() {
                headers.insert(name, HeaderValue::from_static(value));
            }
        }
        for host in hosts {
            for segments in &paths {
                for method in [Method::GET, Method::POST, Method::DELETE] {
                    let found = table.find(host, &format!("/{}", segments.join("/")), &method, &headers).copied();
                    prop_assert_eq!(found, naive(&routes, host, segments, &method, &headers), "{} {} {:?}", method, host, segments);
                }
            }
        }
    }

    #[test]
    fn a_pattern_in_text_is_read_back_or_refused_whatever_it_is(text in "\\PC{0,20}", rough in "[/a{}*.%2eé ?]{0,12}") {
        for text in [text, rough] {
            if let Ok(pattern) = PathPattern::parse(&text) {
                prop_assert_eq!(PathPattern::parse(&pattern.to_string()), Ok(pattern));
            }
            let _ = HostPattern::parse(&text);
            let _ = KeySource::from_text(&text);
        }
    }
}

fn keyer(count: usize) -> Keyer {
    let texts: Vec<String> = (0..count).map(|index| format!("header:x-{index}")).collect();
    let spec = KeySpec::from_texts(texts.iter().map(String::as_str)).expect("sources");
    let prefixes = Prefixes { ipv4: 32, ipv6: 64 };
    Keyer::new(
        Namespace::new("staunch"),
        Identity { policy: "p", limit: "l", algorithm: "token_bucket" },
        &spec,
        prefixes,
    )
}

fn field_value() -> impl Strategy<Value = Vec<u8>> {
    let byte = prop_oneof![Just(b','), Just(b':'), Just(b'a'), Just(b' '), Just(0xff), 0x21_u8..0x7f];
    prop::collection::vec(byte, 0..12)
}

fn digest(keyer: &Keyer, headers: &HeaderMap) -> Option<u128> {
    let client = IpAddr::from([127, 0, 0, 1]);
    let facts = Facts { client, method: &Method::GET, host: "h", path: "/", query: None, headers, route: "r" };
    keyer.digest(&facts)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    #[test]
    fn different_lists_of_values_have_different_digests(
        a in prop::collection::vec(field_value(), 1..4),
        b in prop::collection::vec(field_value(), 1..4),
    ) {
        let trimmed = |values: &[Vec<u8>]| values.iter().map(|value| value.trim_ascii().to_vec()).collect::<Vec<_>>();
        let of = |values: &[Vec<u8>]| {
            let lines = values.iter().enumerate().map(|(index, value)| {
                let name: HeaderName = format!("x-{index}").parse().expect("a name");
                (name, HeaderValue::from_bytes(value).expect("a value"))
            });
            digest(&keyer(values.len()), &lines.collect())
        };
        let (first, second) = (of(&a), of(&b));
        prop_assert_eq!(first.is_none(), trimmed(&a).iter().any(Vec::is_empty));
        if first.is_some() && second.is_some() {
            prop_assert_eq!(first == second, trimmed(&a) == trimmed(&b));
        }
    }

    #[test]
    fn cookies_queries_and_tokens_are_read_whatever_their_bytes(
        lines in prop::collection::vec(prop::collection::vec(0x20_u8..=0xff, 0..40), 0..4),
        query in "[ -~]{0,40}",
    ) {
        let texts = ["cookie:a", "query:a", "bearer", "header:cookie", "path_segment:2"];
        let mut headers = HeaderMap::new();
        for line in lines {
            if let Ok(value) = HeaderValue::from_bytes(&line) {
                headers.append(http::header::COOKIE, value.clone());
                headers.append(http::header::AUTHORIZATION, value);
            }
        }
        for text in texts {
            let spec = KeySpec::from_texts([text]).expect("a source");
            let prefixes = Prefixes { ipv4: 32, ipv6: 64 };
            let keyer = Keyer::new(Namespace::new(""), Identity { policy: "p", limit: "l", algorithm: "token_bucket" }, &spec, prefixes);
            let client = IpAddr::from([127, 0, 0, 1]);
            let facts = Facts { client, method: &Method::GET, host: "h", path: "/", query: Some(&query), headers: &headers, route: "r" };
            prop_assert_eq!(keyer.digest(&facts).is_some(), keyer.value(&facts).is_some(), "{}", text);
        }
    }
}

const TRUSTED: [u8; 4] = [10, 0, 0, 1];
const CLIENT: [u8; 4] = [203, 0, 113, 9];

fn rule(header: &str) -> ClientAddr {
    let trusted: [IpNet; 1] = ["10.0.0.0/8".parse().expect("a network")];
    ClientAddr::new(&trusted, header).expect("a field name")
}

fn forwarding_line() -> impl Strategy<Value = Vec<u8>> {
    let pieces: Vec<&'static str> = vec![
        "for=", "For=\"", "\"", "\\", ",", ";", " ", "1.2.3.4", "10.0.0.9", "::1", "[", "]", ":80", "%eth0", "unknown",
        "_x", "by=", "=", "::ffff:",
    ];
    let piece = prop_oneof![
        6 => prop::sample::select(pieces).prop_map(|text| text.as_bytes().to_vec()),
        1 => prop::collection::vec(0x20_u8..0x7f, 0..4),
        1 => prop::collection::vec(0x80_u8..=0xff, 0..4),
    ];
    prop::collection::vec(piece, 0..12).prop_map(|pieces| pieces.concat())
}

fn lines(name: &str, values: &[Vec<u8>]) -> HeaderMap {
    let name: HeaderName = name.parse().expect("a field name");
    values.iter().map(|value| (name.clone(), HeaderValue::from_bytes(value).expect("a value"))).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn a_strangers_fields_never_change_the_client(values in prop::collection::vec(forwarding_line(), 0..4)) {
        for header in ["x-forwarded-for", "forwarded", "x-real-ip"] {
            prop_assert_eq!(rule(header).client(CLIENT.into(), &lines(header, &values)), IpAddr::from(CLIENT));
        }
    }

    #[test]
    fn what_stands_left_of_the_client_never_changes_it(mut values in prop::collection::vec(forwarding_line(), 1..4)) {
        for (header, prefix) in [("x-forwarded-for", ""), ("forwarded", "for=")] {
            // Total on any bytes, with no address of ours in it.
            let _ = rule(header).client(TRUSTED.into(), &lines(header, &values));
            let last = values.last_mut().expect("one line");
            let length = last.len();
            last.extend_from_slice(format!(", {prefix}203.0.113.9, {prefix}10.0.0.7").as_bytes());
            prop_assert_eq!(rule(header).client(TRUSTED.into(), &lines(header, &values)), IpAddr::from(CLIENT));
            values.last_mut().expect("one line").truncate(length);
        }
    }
}
