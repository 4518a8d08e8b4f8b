use super::super::{HeaderPattern, PathPattern, normalise, normalise_host};
use super::*;
use http::HeaderName;

fn pattern(path: &str) -> Pattern {
    Pattern { hosts: vec![], path: PathPattern::parse(path).unwrap(), methods: vec![], headers: vec![] }
}

fn on_hosts(path: &str, hosts: &[&str]) -> Pattern {
    Pattern { hosts: hosts.iter().map(|text| HostPattern::parse(text).unwrap()).collect(), ..pattern(path) }
}

fn table(routes: &[(Pattern, &'static str)], reverse: bool) -> Table<&'static str> {
    let mut routes = routes.to_vec();
    if reverse {
        routes.reverse();
    }
    Table::new(routes).unwrap()
}

fn get(table: &Table<&'static str>, host: &str, path: &str) -> Option<&'static str> {
    let host = normalise_host(host.as_bytes()).unwrap();
    let path = normalise(path.as_bytes()).unwrap();
    table.find(&host, path.matching(), &Method::GET, &HeaderMap::new()).copied()
}

#[test]
fn the_most_specific_path_wins_whatever_the_order() {
    let routes = [
        (pattern("/*"), "any"),
        (pattern("/v1/*"), "prefix"),
        (pattern("/v1/users/*"), "longer"),
        (pattern("/v1/users/{id}"), "segment"),
        (pattern("/v1/users/{id}/posts"), "posts"),
        (pattern("/v1/users/me"), "exact"),
    ];
    for reverse in [false, true] {
        let table = table(&routes, reverse);
        for (path, name) in [
            ("/", "any"),
            ("/v2", "any"),
            ("/v1", "prefix"),
            ("/v1/", "prefix"),
            ("/v1x", "any"),
            ("/v1/x/y", "prefix"),
            ("/v1/users", "longer"),
            ("/v1/users/", "longer"),
            ("/v1/users/7", "segment"),
            ("/v1/users/7/", "segment"),
            ("/v1/users/me", "exact"),
            ("/v1/users/me/", "exact"),
            ("/v1/users/7/posts", "posts"),
            ("/v1/users/me/posts", "posts"),
            ("/v1/users/7/likes", "longer"),
            ("/v1/users/7/posts/1", "longer"),
            ("/v1//users/x/../%6De", "exact"),
        ] {
            assert_eq!(get(&table, "a", path), Some(name), "{path}");
        }
    }
}

#[test]
fn no_route_is_none() {
    let table = table(&[(pattern("/a"), "a"), (pattern("/b/{x}/c"), "c")], false);
    for path in ["/", "/b", "/b/x", "/b/x/c/d", "/aa", "/A"] {
        assert_eq!(get(&table, "a", path), None, "{path}");
    }
    assert_eq!(get(&table, "a", "/b/q/c"), Some("c"));
    assert_eq!(Table::<()>::new(vec![]).unwrap().find("a", "/", &Method::GET, &HeaderMap::new()), None);
}

#[test]
fn a_host_is_exact_or_under_a_domain_and_comes_before_the_path() {
    let routes = [
        (on_hosts("/*", &["api.example.com"]), "exact"),
        (on_hosts("/*", &["*.example.org"]), "wild"),
        (on_hosts("/*", &["*.b.example.org"]), "longer"),
        (on_hosts("/only", &["x.b.example.org"]), "only"),
        (pattern("/any"), "any"),
    ];
    for reverse in [false, true] {
        let table = table(&routes, reverse);
        for (host, path, name) in [
            ("api.example.com", "/", Some("exact")),
            ("API.Example.COM:8080", "/any", Some("exact")),
            ("a.example.org", "/", Some("wild")),
            ("a.b.c.example.org", "/", Some("wild")),
            ("a.b.example.org", "/", Some("longer")),
            ("b.example.org", "/", Some("wild")),
            ("x.b.example.org", "/only", Some("only")),
            ("x.b.example.org", "/else", Some("longer")),
            ("example.org", "/", None),
            ("example.com", "/", None),
            ("api.example.com.evil.net", "/", None),
            ("evilexample.org", "/", None),
            ("else", "/any", Some("any")),
            ("", "/any", Some("any")),
        ] {
            assert_eq!(get(&table, host, path), name, "{host}{path}");
        }
    }
}

#[test]
fn a_route_whose_method_or_field_does_not_hold_gives_way_to_the_next_best() {
    let tenant = HeaderName::from_static("x-tenant");
    let with = |path: &str, headers: Vec<(HeaderName, HeaderPattern)>| Pattern { headers, ..pattern(path) };
    let routes = [
        (Pattern { methods: vec![Method::POST, Method::PUT], ..pattern("/a") }, "write"),
        (Pattern { methods: vec![Method::POST], ..pattern("/a") }, "post"),
        (with("/b", vec![(tenant.clone(), HeaderPattern::Present)]), "tenant"),
        (with("/b", vec![(tenant.clone(), HeaderPattern::Value("gold".into()))]), "gold"),
        (pattern("/{x}"), "segment"),
        (with("/{x}", vec![(tenant.clone(), HeaderPattern::Present)]), "segment-tenant"),
        (pattern("/*"), "rest"),
    ];
    for reverse in [false, true] {
        let table = table(&routes, reverse);
        for (method, path, sent, name) in [
            ("POST", "/a", None, "post"),
            ("PUT", "/a", None, "write"),
            ("GET", "/a", None, "segment"),
            ("GET", "/a", Some("7"), "segment-tenant"),
            ("get", "/a", None, "segment"),
            ("GET", "/b", Some("7"), "tenant"),
            ("GET", "/b", Some("gold"), "gold"),
            ("GET", "/b", Some("golden"), "tenant"),
            ("GET", "/b", None, "segment"),
            ("GET", "/b/c", None, "rest"),
            ("GET", "/", None, "rest"),
        ] {
            let headers = sent.map(|value| (tenant.clone(), value.parse().unwrap())).into_iter().collect();
            let found = table.find("h", path, &method.parse().unwrap(), &headers);
            assert_eq!(found, Some(&name), "{method} {path} {sent:?}");
        }
    }
}

#[test]
fn two_routes_of_the_same_set_are_refused() {
    let routes = vec![(pattern("/a/{x}"), 1), (pattern("/b"), 2), (pattern("/a/{y}"), 3)];
    assert_eq!(Table::new(routes).unwrap_err(), Conflict { first: 0, second: 2 });
}
