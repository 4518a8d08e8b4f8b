use super::*;
use http::{HeaderMap, Method};
use std::collections::HashMap;

const WHOLE: Prefixes = Prefixes { ipv4: 32, ipv6: 64 };

fn keyer(sources: &[&str]) -> Keyer {
    keyer_of("staunch", "p", "l", sources)
}

fn keyer_of(prefix: &str, policy: &str, limit: &str, sources: &[&str]) -> Keyer {
    let spec = KeySpec::from_texts(sources.iter().copied()).unwrap();
    Keyer::new(Namespace::new(prefix), Identity { policy, limit, algorithm: "token_bucket" }, &spec, WHOLE)
}

/// A request with these fields, read by a closure, because facts only borrow.
fn with<T>(fields: &[(&'static str, &str)], client: &str, read: impl FnOnce(&Facts<'_>) -> T) -> T {
    let headers: HeaderMap = fields
        .iter()
        .map(|(name, value)| {
            (http::HeaderName::from_static(name), http::HeaderValue::from_bytes(value.as_bytes()).unwrap())
        })
        .collect();
    read(&Facts {
        client: client.parse().unwrap(),
        method: &Method::GET,
        host: "a.example",
        path: "/users/7",
        query: Some("token=a"),
        headers: &headers,
        route: "api",
    })
}

fn digest(keyer: &Keyer, fields: &[(&'static str, &str)]) -> Option<u128> {
    with(fields, "127.0.0.1", |facts| keyer.digest(facts))
}

#[test]
fn every_source_gives_a_key_and_no_two_the_same() {
    let fields = [("x-a", "a"), ("cookie", "sid=a"), ("authorization", "Bearer a")];
    let mut seen = HashMap::new();
    for source in KeySource::NAMES {
        let source = source
            .replace("header:NAME", "header:x-a")
            .replace("cookie:NAME", "cookie:sid")
            .replace("query:NAME", "query:token");
        let source = source.replace(":N", ":1");
        let key = digest(&keyer(&[&source]), &fields).unwrap_or_else(|| panic!("{source} is missing"));
        assert_eq!(seen.insert(key, source.clone()), None, "{source}");
    }
    assert_eq!(seen.len(), 11);
}

#[test]
fn another_algorithm_has_counters_of_its_own() {
    let spec = KeySpec::from_texts(["client_ip"]).unwrap();
    let of = |algorithm| {
        let identity = Identity { policy: "p", limit: "l", algorithm };
        digest(&Keyer::new(Namespace::new("staunch"), identity, &spec, WHOLE), &[])
    };
    assert_ne!(of("fixed_window"), of("token_bucket"));
}

#[test]
fn a_list_with_one_part_missing_or_empty_is_a_missing_key() {
    let both = keyer(&["header:x-a", "header:x-b"]);
    assert!(digest(&both, &[("x-a", "1"), ("x-b", "2")]).is_some());
    for fields in
        [&[("x-a", "1")][..], &[("x-b", "2")], &[("x-a", "1"), ("x-b", "")], &[("x-a", " "), ("x-b", "2")], &[]]
    {
        assert_eq!(digest(&both, fields), None, "{fields:?}");
    }
    for source in ["header:x", "cookie:x", "query:x", "bearer", "path_segment:3"] {
        assert_eq!(digest(&keyer(&[source]), &[]), None, "{source}");
        assert_eq!(digest(&keyer(&["client_ip", source]), &[]), None, "{source}");
    }
}

#[test]
fn no_two_lists_of_values_collide() {
    let both = keyer(&["header:x-a", "header:x-b"]);
    let lists = [
        ("ab", "c"),
        ("a", "bc"),
        ("a:b", "c"),
        ("a", "b:c"),
        ("a|", "b"),
        ("a", "|b"),
        ("1:a", "1"),
        ("1", "a1:1"),
        ("{x}", "y"),
        ("{x", "}y"),
        ("a%3Ab", "c"),
        ("a, b", "c"),
        ("a", "b, c"),
        ("a,b", "c"),
        ("1", "2"),
        ("2", "1"),
        ("a", "a"),
    ];
    let mut seen = HashMap::new();
    for (a, b) in lists {
        assert_eq!(seen.insert(digest(&both, &[("x-a", a), ("x-b", b)]).unwrap(), (a, b)), None);
    }
}

#[test]
fn a_key_is_apart_by_prefix_policy_limit_and_sources() {
    let fields = [("x-a", "k"), ("x-b", "k")];
    let mut seen = HashMap::new();
    for (prefix, policy, limit, source) in [
        ("staunch", "p", "l", "header:x-a"),
        ("other", "p", "l", "header:x-a"),
        ("staunch", "q", "l", "header:x-a"),
        ("staunch", "p", "m", "header:x-a"),
        ("staunch", "pl", "", "header:x-a"),
        ("staunch", "p", "l", "header:x-b"),
    ] {
        let key = digest(&keyer_of(prefix, policy, limit, &[source]), &fields).unwrap();
        assert_eq!(seen.insert(key, (prefix, policy, limit, source)), None);
    }
    assert_eq!(digest(&keyer(&["header:x-a"]), &fields), digest(&keyer(&["header:X-A"]), &fields));
}

#[test]
fn counters_without_a_key_are_apart_from_every_key() {
    let keyer = keyer(&["client_ip"]);
    let client: IpAddr = "127.0.0.1".parse().unwrap();
    let key = digest(&keyer, &[]).unwrap();
    assert_ne!(key, keyer.digest_of_client(client));
    assert_ne!(key, keyer.digest_shared());
    assert_ne!(keyer.digest_shared(), keyer.digest_of_client(client));
    assert_ne!(keyer.digest_of_client(client), keyer.digest_of_client("127.0.0.2".parse().unwrap()));
}

#[test]
fn addresses_are_grouped_by_their_prefix() {
    let keyer = keyer(&["client_ip"]);
    let of = |client: &str| with(&[], client, |facts| keyer.digest(facts)).unwrap();
    assert_eq!(of("2001:db8:1:2::1"), of("2001:db8:1:2:ffff:ffff:ffff:ffff"));
    assert_ne!(of("2001:db8:1:2::1"), of("2001:db8:1:3::1"));
    assert_eq!(of("::ffff:203.0.113.5"), of("203.0.113.5"));
    assert_ne!(of("203.0.113.4"), of("203.0.113.5"));
    let group = |ipv4, ipv6, text: &str| Prefixes { ipv4, ipv6 }.group(text.parse().unwrap()).to_string();
    assert_eq!(group(24, 48, "203.0.113.200"), "203.0.113.0");
    assert_eq!(group(24, 48, "2001:db8:1:ffff::1"), "2001:db8:1::");
    assert_eq!((group(0, 0, "1.2.3.4"), group(0, 0, "::1")), ("0.0.0.0".into(), "::".into()));
    assert_eq!((group(32, 128, "1.2.3.4"), group(32, 128, "::1")), ("1.2.3.4".into(), "::1".into()));
}

#[test]
fn a_key_that_a_person_names_is_the_key_of_the_request() {
    let list = keyer(&["client_ip", "header:x-a", "global"]);
    let key = digest(&list, &[("x-a", "k")]).unwrap();
    assert_eq!(list.digest_of_parts(&["127.0.0.1", "k"]), Ok(key));
    assert_eq!(list.digest_of_parts(&["k"]), Err(KeyError::Parts { wanted: 2, given: 1 }));
    assert_eq!(list.digest_of_parts(&["k", "k"]), Err(KeyError::Address("k".into())));
    assert_eq!(list.digest_of_parts(&["127.0.0.1", ""]), Err(KeyError::EmptyPart));
    let address = keyer(&["client_ip"]);
    let group = with(&[], "2001:db8:1:2::9", |facts| address.digest(facts)).unwrap();
    assert_eq!(address.digest_of_parts(&["2001:db8:1:2::/64"]), Ok(group));
    assert_eq!(address.digest_of_parts(&["2001:db8:1:2::1"]), Ok(group));
    let global = keyer(&["global"]);
    let all = digest(&global, &[]).unwrap();
    assert_eq!((global.digest_of_parts(&[]), global.digest_of_parts(&["global"])), (Ok(all), Ok(all)));
}

#[test]
fn a_value_is_as_sent_and_a_list_has_one_only_if_it_can_be_read_one_way() {
    let value = |sources: &[&str], fields: &[(&'static str, &str)]| {
        with(fields, "::ffff:1.2.3.4", |facts| keyer(sources).value(facts))
            .map(|value| String::from_utf8(value.to_vec()).unwrap())
    };
    assert_eq!(value(&["header:x-a"], &[("x-a", " Partner-1 ")]).as_deref(), Some("Partner-1"));
    assert_eq!(value(&["header:x-a"], &[("x-a", "a"), ("x-a", "b")]).as_deref(), Some("a,b"));
    assert_eq!(value(&["header:x-a", "client_ip"], &[("x-a", "a")]).as_deref(), Some("a,1.2.3.4"));
    assert_eq!(value(&["header:x-a", "header:x-b"], &[("x-a", "a,b"), ("x-b", "c")]), None);
    assert_eq!(value(&["header:x-a", "header:x-b"], &[("x-a", "a")]), None);
    assert_eq!(value(&["header:x-a"], &[]), None);
    assert_eq!(value(&["global"], &[]), None);
    let part = |sources: &[&str]| keyer(sources).client_ip_part();
    assert_eq!(
        [part(&["client_ip"]), part(&["global", "route", "client_ip"]), part(&["route"])],
        [Some(0), Some(1), None]
    );
}

#[test]
fn the_digest_is_the_same_in_every_build() {
    // Gateways of different versions share a store: a change here starts every counter anew, and must be meant.
    let key = digest(&keyer(&["header:x-a", "client_ip"]), &[("x-a", "k")]).unwrap();
    assert_eq!(format!("{key:032x}"), "d9f4b015e3bc599b52ed79eacadb3182");
}

#[test]
fn pieces_make_the_same_digest_as_the_whole() {
    let whole = keyer(&["query:token"]).digest_of_parts(&["a b+c-0123456789"]).unwrap();
    let headers = HeaderMap::new();
    let query = Some("token=%61+b%2bc-01%323456789");
    let client = "127.0.0.1".parse().unwrap();
    let facts = Facts { client, method: &Method::GET, host: "", path: "/", query, headers: &headers, route: "" };
    assert_eq!(keyer(&["query:token"]).digest(&facts), Some(whole));
}
