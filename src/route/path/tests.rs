use super::*;

fn both(path: &str) -> (String, String) {
    let normal = normalise(path.as_bytes()).unwrap_or_else(|error| panic!("{path}: {error}"));
    (normal.forwarded().to_owned(), normal.matching().to_owned())
}

#[test]
fn every_spelling_of_a_path_is_one_path() {
    for spelling in [
        "/login",
        "//login",
        "///login",
        "/./login",
        "/a/../login",
        "/a/b/../../login",
        "/a/..//./login",
        "/../login",
        "/../../../login",
        "/%6Cogin",
        "/%6cogin",
        "/%6c%6f%67%69%6e",
        "/%2e/login",
        "/x/%2e%2e/login",
        "/x/%2E./login",
        "/x/.%2e/login",
        "/a//../login",
        "/%2e%2e/login",
        "/a/b/%2e%2E//.././/login",
    ] {
        assert_eq!(both(spelling), ("/login".into(), "/login".into()), "{spelling}");
    }
}

#[test]
fn a_directory_keeps_its_slash_on_the_way_and_loses_it_for_matching() {
    for spelling in
        ["/login/", "/logi%6E/", "/login/.", "/login//", "/login/x/..", "/login/./", "/login/%2e", "/login/x/../."]
    {
        assert_eq!(both(spelling), ("/login/".into(), "/login".into()), "{spelling}");
    }
    for root in ["/", "//", "/.", "/..", "/a/..", "/a/../..", "/./", "/../"] {
        assert_eq!(both(root), ("/".into(), "/".into()), "{root}");
    }
}

#[test]
fn normalising_is_no_fuzzy_matching() {
    for (spelling, normal) in [
        ("/login2", "/login2"),
        ("/LOGIN", "/LOGIN"),
        ("/%256Cogin", "/%256Cogin"),
        ("/%252e%252e/x", "/%252e%252e/x"),
        ("/login%20", "/login%20"),
        ("/login%3f", "/login%3F"),
        ("/login;v=1", "/login;v=1"),
        ("/a;b/../c", "/c"),
        ("/...", "/..."),
        ("/.well-known/x", "/.well-known/x"),
        ("/..a/.b", "/..a/.b"),
        ("/x./y..", "/x./y.."),
        ("/caf%c3%a9", "/caf%C3%A9"),
        ("/%ef%bd%98", "/%EF%BD%98"),
        ("/a@b:c", "/a@b:c"),
        ("/a%40b", "/a%40b"),
        ("/a|b{c}", "/a%7Cb%7Bc%7D"),
        ("/a%7cb", "/a%7Cb"),
        ("/%25zz", "/%25zz"),
        ("/x+y", "/x+y"),
    ] {
        assert_eq!(both(spelling).0, normal, "{spelling}");
    }
}

#[test]
fn what_some_upstream_reads_as_another_path_is_refused_with_its_reason() {
    use PathError as E;
    let cases: [(&[u8], E); 34] = [
        (b"/login%2F", E::EncodedSeparator),
        (b"/login%2f", E::EncodedSeparator),
        (b"/a%5Cb", E::EncodedSeparator),
        (b"/%2Flogin", E::EncodedSeparator),
        (b"/a%5c..%5clogin", E::EncodedSeparator),
        (b"/login%00", E::EncodedControl),
        (b"/rl/x%0d%0a", E::EncodedControl),
        (b"/rl/x%09", E::EncodedControl),
        (b"/x%1F", E::EncodedControl),
        (b"/x%7f", E::EncodedControl),
        (b"/%zz", E::Escape),
        (b"/login%", E::Escape),
        (b"/login%4", E::Escape),
        (b"/%4g", E::Escape),
        (b"/%+1", E::Escape),
        (b"/a\\b", E::Backslash),
        (b"/a#b", E::Fragment),
        (b"/a\x01", E::RawByte),
        (b"/a b", E::RawByte),
        (b"/caf\xc3\xa9", E::RawByte),
        (b"/\x7f", E::RawByte),
        (b"/%C0%AF", E::EncodedUtf8),
        (b"/%c1%b8", E::EncodedUtf8),
        (b"/%E0%80%AF", E::EncodedUtf8),
        (b"/log%FFin", E::EncodedUtf8),
        (b"/%C3x", E::EncodedUtf8),
        (b"/%C3", E::EncodedUtf8),
        (b"/%ED%A0%80", E::EncodedUtf8),
        (b"/..;/login", E::DotParameter),
        (b"/.;x/login", E::DotParameter),
        (b"/a/%2e%2e;x", E::DotParameter),
        (b"/a/..%3bx/y", E::DotParameter),
        (b"login", E::NoSlash),
        (b"", E::NoSlash),
    ];
    for (path, reason) in cases {
        assert_eq!(normalise(path), Err(reason), "{}", path.escape_ascii());
    }
}

#[test]
fn known_ways_around_a_limit_on_a_prefix_stay_under_it_or_are_refused() {
    let long = "/a/..".repeat(500) + "/rl/x";
    for path in [
        "/rl/%78",
        "/%72l/x",
        "/rl/a/../x",
        "/other/../rl/x",
        "/rl/a/%2e%2e/x",
        "//rl/x",
        "///rl///x",
        "/rl%2fx",
        "/%2frl/x",
        "/rl/x%3fa=1",
        "/rl\\x",
        "/rl/%2578",
        "/rl/a/%252e%252e/x",
        "/rl/x%00.json",
        "/rl/x%0d%0a",
        "/rl/x%09",
        "/rl/x+",
        "/rl/x;a=1",
        "/rl/..;/rl/x",
        "/rl/x%3ba",
        "/rl/X",
        "/rl/%c1%b8",
        "/rl/%ef%bd%98",
        "/rl/x%",
        "/rl/x.json",
        "/rl/x.",
        "/rl/x/y/..",
        "/rl/.;/../rl/x",
        &long,
    ] {
        if let Ok(normal) = normalise(path.as_bytes()) {
            assert!(normal.matching().starts_with("/rl/") && normal.forwarded().starts_with("/rl/"), "{path}");
        }
    }
}

#[test]
fn a_normal_path_is_not_copied() {
    for path in ["/", "/login", "/v1/users/7/", "/caf%C3%A9/%20", "/.well-known/acme", "/a/..b/.c;x"] {
        assert!(normalise(path.as_bytes()).unwrap().is_verbatim(), "{path}");
    }
    for path in ["//", "/%61", "/%c3%A9", "/a/.", "/{"] {
        assert!(!normalise(path.as_bytes()).unwrap().is_verbatim(), "{path}");
    }
}

#[test]
fn a_target_splits_at_its_first_question_mark() {
    assert_eq!(split_target(b"/a?b=1?c&d=%2F..%2f\\"), Ok((&b"/a"[..], Some("b=1?c&d=%2F..%2f\\"))));
    assert_eq!(split_target(b"/a?"), Ok((&b"/a"[..], Some(""))));
    assert_eq!(split_target(b"/a"), Ok((&b"/a"[..], None)));
    assert_eq!(split_target(b"/a#b"), Err(PathError::Fragment));
    for target in [&b"/a?b#c"[..], b"/a?b c", b"/a\tb", b"/a?\xc3\xa9", b"/a?\x7f", b"/\x00"] {
        assert!(split_target(target).is_err(), "{}", target.escape_ascii());
    }
}
