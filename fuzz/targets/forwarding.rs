//! Forwarding fields: a stranger's change nothing, and behind trusted proxies what stands further left changes nothing either.
#![no_main]

use http::{HeaderMap, HeaderName, HeaderValue};
use ipnet::IpNet;
use libfuzzer_sys::fuzz_target;
use staunch::proxy::client_addr::ClientAddr;
use std::net::IpAddr;

const FIELDS: [&str; 3] = ["x-forwarded-for", "forwarded", "x-real-ip"];

fn headers(name: &str, lines: &[u8]) -> HeaderMap {
    let name = HeaderName::from_bytes(name.as_bytes()).expect("a name of ours");
    let values = lines.split(|octet| *octet == b'\n').filter_map(|line| HeaderValue::from_bytes(line).ok());
    values.map(|value| (name.clone(), value)).fold(HeaderMap::new(), |mut headers, (name, value)| {
        headers.append(name, value);
        headers
    })
}

fuzz_target!(|lines: &[u8]| {
    let trusted: Vec<IpNet> = ["10.0.0.0/8", "2001:db8::/32"].map(|net| net.parse().expect("a network")).to_vec();
    let (near, strange): (IpAddr, IpAddr) = ([10, 0, 0, 1].into(), [203, 0, 113, 9].into());
    for field in FIELDS {
        let fields = headers(field, lines);
        let client = ClientAddr::new(&trusted, field).expect("a name of ours");
        assert_eq!(client.client(strange, &fields), strange);
        let found = client.client(near, &fields);
        assert_eq!(found, found.to_canonical());
        // A list that begins further left with an address of somebody's choice.
        if field == "x-forwarded-for" && !client.trusts(found) && found != near {
            let more = headers(field, &[b"198.51.100.1\n", lines].concat());
            assert_eq!(client.client(near, &more), found);
        }
    }
});
