use super::*;

fn pattern(path: &str) -> Pattern {
    Pattern { hosts: vec![], path: PathPattern::parse(path).unwrap(), methods: vec![], headers: vec![] }
}

#[test]
fn a_path_pattern_is_read_and_written_alike() {
    for text in ["/", "/*", "/login", "/v1/*", "/users/{id}/posts", "/users/{id}/*", "/a;b/c@d"] {
        assert_eq!(PathPattern::parse(text).unwrap().to_string(), text);
    }
    for (text, normal) in [
        ("/login/", "/login"),
        ("/%6Cogin", "/login"),
        ("/café", "/caf%C3%A9"),
        ("/a b", "/a%20b"),
        ("/%c3%a9", "/%C3%A9"),
    ] {
        assert_eq!(PathPattern::parse(text).unwrap().to_string(), normal);
    }
}

#[test]
fn a_wrong_path_pattern_is_told_what_would_be_right() {
    for (text, error) in [
        ("login", PatternError::NoSlash("login".into())),
        ("", PatternError::NoSlash(String::new())),
        ("/v1*", PatternError::Star),
        ("/*/x", PatternError::Star),
        ("/**", PatternError::Star),
        ("/a{id}", PatternError::Brace("a{id}".into())),
        ("/{}", PatternError::Brace("{}".into())),
        ("/{a}{b}", PatternError::Brace("{a}{b}".into())),
        ("/a?b", PatternError::Query),
        ("//a", PatternError::NotNormal("/a".into())),
        ("/a/../b", PatternError::NotNormal("/b".into())),
        ("/a//*", PatternError::NotNormal("/a/*".into())),
        ("/%2F", PatternError::Path(PathError::EncodedSeparator)),
        ("/a#b", PatternError::Path(PathError::Fragment)),
        ("/%zz", PatternError::Path(PathError::Escape)),
    ] {
        assert_eq!(PathPattern::parse(text), Err(error), "{text}");
    }
}

#[test]
fn a_host_pattern_is_a_name_or_a_domain_with_a_star() {
    assert_eq!(HostPattern::parse("API.example.com."), Ok(HostPattern::Exact("api.example.com".into())));
    assert_eq!(HostPattern::parse("*.Example.org"), Ok(HostPattern::Under("example.org".into())));
    assert_eq!(HostPattern::parse("*.Example.org").map(|host| host.to_string()), Ok("*.example.org".into()));
    assert_eq!(HostPattern::parse("[::1]"), Ok(HostPattern::Exact("[::1]".into())));
    assert_eq!(HostPattern::parse("a:80"), Err(PatternError::HostPort("a".into())));
    assert_eq!(HostPattern::parse("[::1]:80"), Err(PatternError::HostPort("[::1]".into())));
    for text in ["*", "a.*.b", "*a.b", "*.*.a"] {
        assert_eq!(HostPattern::parse(text), Err(PatternError::HostStar), "{text}");
    }
    for text in ["", "*.", "a/b", "http://a", "a..b", "*.[::1]"] {
        assert!(HostPattern::parse(text).is_err(), "{text}");
    }
}

#[test]
fn the_same_set_is_seen_through_names_order_and_repetition() {
    assert!(same_set(&pattern("/users/{id}"), &pattern("/users/{name}/")));
    assert!(!same_set(&pattern("/users/{id}"), &pattern("/users/id")));
    assert!(!same_set(&pattern("/v1"), &pattern("/v1/*")));
    let host = |text: &str| HostPattern::parse(text).unwrap();
    let a =
        Pattern { hosts: vec![host("a.org"), host("b.org")], methods: vec![Method::GET, Method::PUT], ..pattern("/") };
    let b = Pattern {
        hosts: vec![host("b.org"), host("a.org"), host("a.org")],
        methods: vec![Method::PUT, Method::GET],
        ..pattern("/")
    };
    assert!(same_set(&a, &b));
    assert!(!same_set(&a, &pattern("/")));
    let wide = Pattern { hosts: vec![host("*.x.org")], ..pattern("/") };
    let wide_too = Pattern { hosts: vec![host("a.x.org"), host("*.x.org"), host("*.y.x.org")], ..pattern("/") };
    assert!(same_set(&wide, &wide_too));
    assert_eq!(
        conflicts([&a, &wide, &b, &wide_too]),
        [Conflict { first: 0, second: 2 }, Conflict { first: 1, second: 3 }]
    );
}

#[test]
fn a_fields_value_is_all_its_lines() {
    let name = HeaderName::from_static("x-plan");
    let mut headers = HeaderMap::new();
    assert!(!is_value(&headers, &name, ""));
    headers.append(&name, " gold ".parse().unwrap());
    assert!(
        is_value(&headers, &name, "gold") && !is_value(&headers, &name, "golden") && !is_value(&headers, &name, "gol")
    );
    headers.append(&name, "free".parse().unwrap());
    assert!(
        !is_value(&headers, &name, "gold")
            && !is_value(&headers, &name, "free")
            && is_value(&headers, &name, "gold,free")
    );
}
