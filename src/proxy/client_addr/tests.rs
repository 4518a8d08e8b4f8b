use super::*;

const PROXY: &str = "127.0.0.1";
const STRANGER: &str = "127.9.9.9";

/// The client of a request from `peer` with these lines, in text.
fn client_of(header: &str, peer: &str, lines: &[(&str, &[u8])]) -> String {
    let trusted: Vec<IpNet> = ["127.0.0.1/32", "10.0.0.0/8", "fd00::/8"].map(|text| text.parse().unwrap()).into();
    let rule = ClientAddr::new(&trusted, header).unwrap();
    let headers = lines
        .iter()
        .map(|(name, value)| {
            (HeaderName::from_bytes(name.as_bytes()).unwrap(), http::HeaderValue::from_bytes(value).unwrap())
        })
        .collect();
    rule.client(peer.parse().unwrap(), &headers).to_string()
}

fn forwarded_for(lines: &[&str]) -> String {
    let lines: Vec<_> = lines.iter().map(|line| ("x-forwarded-for", line.as_bytes())).collect();
    client_of("x-forwarded-for", PROXY, &lines)
}

fn forwarded(lines: &[&str]) -> String {
    let lines: Vec<_> = lines.iter().map(|line| ("forwarded", line.as_bytes())).collect();
    client_of("forwarded", PROXY, &lines)
}

#[test]
fn the_peer_is_the_client_unless_it_is_trusted() {
    let line: (&str, &[u8]) = ("x-forwarded-for", b"203.0.113.1");
    assert_eq!(client_of("x-forwarded-for", STRANGER, &[line]), STRANGER);
    assert_eq!(client_of("x-forwarded-for", PROXY, &[line]), "203.0.113.1");
    assert_eq!(client_of("x-forwarded-for", "::ffff:127.0.0.1", &[line]), "203.0.113.1");
    assert_eq!(client_of("x-forwarded-for", "::ffff:9.9.9.9", &[line]), "9.9.9.9");
    assert_eq!(client_of("x-forwarded-for", PROXY, &[]), PROXY);
    let nobody = ClientAddr::new(&[], "x-forwarded-for").unwrap();
    assert!(!nobody.trusts(PROXY.parse().unwrap()));
}

#[test]
fn the_client_is_the_rightmost_address_that_is_not_trusted() {
    assert_eq!(forwarded_for(&["198.51.100.1, 203.0.113.9"]), "203.0.113.9");
    assert_eq!(forwarded_for(&["6.6.6.6, 203.0.113.9, 10.1.2.3, 10.4.5.6"]), "203.0.113.9");
    assert_eq!(forwarded_for(&["6.6.6.6,203.0.113.9,fd00::1"]), "203.0.113.9");
    assert_eq!(forwarded_for(&["198.51.100.7", "203.0.113.9"]), "203.0.113.9");
    assert_eq!(forwarded_for(&["9.9.9.9", "203.0.113.9, 10.0.0.1", "10.0.0.2"]), "203.0.113.9");
    assert_eq!(forwarded_for(&["10.1.1.1, 10.2.2.2"]), "10.1.1.1", "all trusted: the farthest");
    assert_eq!(forwarded_for(&[" , 203.0.113.7,, ,\t"]), "203.0.113.7", "empty elements do not count");
    assert_eq!(forwarded_for(&["", ","]), PROXY);
}

#[test]
fn an_entry_that_is_no_address_ends_the_walk_at_the_last_good_one() {
    let long = "a".repeat(300);
    for junk in [
        "unknown",
        "_hidden",
        "999.1.1.1",
        "1.2.3",
        "127.0.0.1.evil",
        "''",
        "-",
        "2001:db8::1::2",
        &long,
        "localhost",
        "0x7f000001",
        "127.1",
        "203.0.113.7;",
        "203.0.113.07",
        "1.2.3.4:",
        "1.2.3.4:x",
        "1.2.3.4:65536",
        "1.2.3.4:+1",
        "[1.2.3.4]",
        "[::1",
        "[::1]x",
        "[::1]:",
        "::1]",
        "[]",
        "[",
        ":",
        "::1%",
        "::1%a b",
        "1.2.3.4%eth0",
        "1.2.3.4 5.6.7.8",
        "\"1.2.3.4\"",
        "for=1.2.3.4",
    ] {
        assert_eq!(forwarded_for(&[junk]), PROXY, "{junk}");
        assert_eq!(forwarded_for(&[&format!("203.0.113.7, {junk}")]), PROXY, "{junk}");
        assert_eq!(forwarded_for(&[&format!("203.0.113.7, {junk}, 10.0.0.7")]), "10.0.0.7", "{junk}");
        assert_eq!(forwarded_for(&["203.0.113.7", junk, "10.0.0.7, 10.0.0.8"]), "10.0.0.7", "{junk}");
        assert_eq!(forwarded_for(&[&format!("{junk}, 203.0.113.7, 10.0.0.7")]), "203.0.113.7", "{junk}");
    }
    assert_eq!(client_of("x-forwarded-for", PROXY, &[("x-forwarded-for", b"1.2.3.4, \xff\xfe")]), PROXY);
}

#[test]
fn an_address_has_many_spellings() {
    for same in [
        "203.0.113.5",
        "203.0.113.5:4711",
        "::ffff:203.0.113.5",
        "[::ffff:203.0.113.5]:99",
        "  203.0.113.5  ",
        "::FFFF:cb00:7105",
        "203.0.113.5:_port",
        "\t203.0.113.5",
    ] {
        assert_eq!(forwarded_for(&[same]), "203.0.113.5", "{same}");
    }
    for same in [
        "2001:db8:1:2::5",
        "[2001:db8:1:2::5]",
        "[2001:db8:1:2::5]:443",
        "2001:0DB8:0001:0002:0:0:0:5",
        "2001:db8:1:2::5%eth0",
        "[2001:db8:1:2::5%25]:1",
    ] {
        assert_eq!(forwarded_for(&[same]), "2001:db8:1:2::5", "{same}");
    }
}

#[test]
fn forwarded_is_read_by_its_own_grammar() {
    for (lines, client) in [
        (&["for=198.51.100.1;proto=https, for=\"203.0.113.9:4711\";by=10.0.0.1"][..], "203.0.113.9"),
        (&["FOR=203.0.113.9"], "203.0.113.9"),
        (&["for=6.6.6.6", "proto=http;for=\"203.0.113.9\", for=10.9.9.9"], "203.0.113.9"),
        (&["For=\"[2001:db8:1:2::5]:8080\""], "2001:db8:1:2::5"),
        (&["for=[2001:db8:1:2::5]:80, ,"], "2001:db8:1:2::5"),
        (&["by=\"a,b;for=1.1.1.1\" ; for = 203.0.113.9"], "203.0.113.9"),
        (&["for=\"203.0.113.9\";by=\"q\\\",;for=1.1.1.1\""], "203.0.113.9"),
        (&["for=\"\\2\\03.0.113.9\""], "203.0.113.9"),
        (&["for=\", for=203.0.113.9"], "203.0.113.9"),
        (&["by=\"x, for=203.0.113.9;host=\"a,b\", for=10.0.0.1"], "203.0.113.9"),
        (&["for=unknown, for=10.0.0.3"], "10.0.0.3"),
        (&["for=203.0.113.9, for=_x"], PROXY),
        (&["for=203.0.113.9, proto=https"], PROXY),
        (&["for=1.1.1.1;for=203.0.113.9"], PROXY),
        (&["for=\"203.0.113.9"], PROXY),
        (&["for=203.0.113.9\""], PROXY),
        (&["for=\"203.0.113.9\\\""], PROXY),
        (&["for="], PROXY),
        (&["203.0.113.9"], PROXY),
        (&["for=\"1.2.3.4, 5.6.7.8\""], PROXY),
    ] {
        assert_eq!(forwarded(lines), client, "{lines:?}");
    }
    assert_eq!(client_of("forwarded", PROXY, &[("x-forwarded-for", b"203.0.113.9")]), PROXY);
    let long = format!("for=\"{}\"", "1".repeat(300));
    assert_eq!(forwarded(&[&long]), PROXY);
}

#[test]
fn a_single_address_field_is_believed_only_when_it_is_one_address() {
    for name in ["x-real-ip", "cf-connecting-ip", "Fastly-Client-IP"] {
        let of = |peer: &str, lines: &[&[u8]]| {
            let lines: Vec<_> = lines.iter().map(|&line| (name, line)).collect();
            client_of(name, peer, &lines)
        };
        assert_eq!(of(PROXY, &[b"203.0.113.9"]), "203.0.113.9");
        assert_eq!(of(PROXY, &[b" [2001:db8::1]:80 "]), "2001:db8::1");
        assert_eq!(of(PROXY, &[b"10.0.0.9"]), "10.0.0.9");
        assert_eq!(of(STRANGER, &[b"203.0.113.9"]), STRANGER);
        for lines in [
            &[][..] as &[&[u8]],
            &[b""],
            &[b"203.0.113.9", b"203.0.113.9"],
            &[b"203.0.113.9, 10.0.0.1"],
            &[b"203.0.113.9,"],
            &[b"junk"],
        ] {
            assert_eq!(of(PROXY, lines), PROXY);
        }
    }
    assert!(ClientAddr::new(&[], "not a name").is_err());
}

#[test]
fn trusted_networks_overlap_touch_and_may_be_written_mapped() {
    let rule = |texts: &[&str]| {
        ClientAddr::new(&texts.iter().map(|text| text.parse().unwrap()).collect::<Vec<IpNet>>(), "forwarded").unwrap()
    };
    let nets = rule(&[
        "10.0.0.0/8",
        "10.1.0.0/16",
        "11.0.0.5/24",
        "::ffff:192.0.2.0/120",
        "fe80::/10",
        "0.0.0.7/32",
        "255.255.255.255/32",
    ]);
    for yes in [
        "10.0.0.0",
        "10.255.255.255",
        "11.0.0.255",
        "192.0.2.9",
        "fe80::1",
        "::ffff:10.0.0.1",
        "0.0.0.7",
        "255.255.255.255",
    ] {
        assert!(nets.trusts(yes.parse().unwrap()), "{yes}");
    }
    for no in ["9.255.255.255", "11.0.1.0", "192.0.3.0", "fec0::1", "0.0.0.6", "0.0.0.8", "::"] {
        assert!(!nets.trusts(no.parse().unwrap()), "{no}");
    }
    let all = rule(&["0.0.0.0/0", "::/0"]);
    assert!(all.trusts("1.2.3.4".parse().unwrap()) && all.trusts("2001:db8::1".parse().unwrap()));
}
