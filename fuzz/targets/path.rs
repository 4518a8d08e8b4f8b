//! A target and a host as a client sends them: refused, or in a normal form that nothing changes any further.
#![no_main]

use libfuzzer_sys::fuzz_target;
use staunch::route::{normalise, normalise_host, split_target};

fuzz_target!(|octets: &[u8]| {
    if let Ok((path, query)) = split_target(octets)
        && let Ok(normal) = normalise(path)
    {
        let forwarded = normal.forwarded();
        assert!(forwarded.starts_with('/') && forwarded.is_ascii(), "{forwarded}");
        assert!(!forwarded.contains("//") && !forwarded.contains(['\\', '#', '?']), "{forwarded}");
        assert!(!forwarded.split('/').any(|segment| segment == "." || segment == ".."), "{forwarded}");
        let again = normalise(forwarded.as_bytes()).expect("a normal path is a path");
        assert_eq!((again.forwarded(), again.matching()), (forwarded, normal.matching()));
        assert!(again.is_verbatim());
        assert!(query.is_none_or(|query| query.bytes().all(|octet| octet.is_ascii_graphic())));
    }
    if let Ok(host) = normalise_host(octets) {
        let again = normalise_host(host.as_bytes()).expect("a normal host is a host");
        assert_eq!(again, host);
        assert!(!host.bytes().any(|octet| octet.is_ascii_uppercase()));
    }
});
