//! PROXY headers: refused, or one header within its bounds, the same whatever follows it and however it came.
#![no_main]

use libfuzzer_sys::fuzz_target;
use staunch::listener::proxy_protocol::{Parsed, parse};

fuzz_target!(|octets: &[u8]| {
    let Ok(parsed) = parse(octets) else {
        // What is refused stays refused, whatever follows.
        assert!(parse(&[octets, b"\r\n"].concat()).is_err());
        return;
    };
    if let Parsed::Header { length, .. } = parsed {
        assert!(length <= octets.len() && length <= 4096);
        assert_eq!(parse(&octets[..length]), Ok(parsed));
        for part in 0..length.min(300) {
            assert_eq!(parse(&octets[..part]), Ok(Parsed::Incomplete));
        }
    }
});
