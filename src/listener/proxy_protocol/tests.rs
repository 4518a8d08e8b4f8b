use super::*;
use proptest::collection::vec;
use proptest::prelude::*;
use proxy_header::{ProxiedAddress, ProxyHeader, Tlv};

fn source(octets: &[u8]) -> Option<SocketAddr> {
    match parse(octets).unwrap() {
        Parsed::Header { length, source } => {
            assert_eq!(length, octets.len());
            source
        }
        Parsed::Incomplete => panic!("incomplete: {octets:?}"),
    }
}

fn v2(command: u8, family: u8, rest: &[u8]) -> Vec<u8> {
    let length = u16::try_from(rest.len()).unwrap().to_be_bytes();
    [SIGNATURE, &[command, family], &length, rest].concat()
}

#[test]
fn version_1_names_the_source() {
    let cases = [
        ("PROXY TCP4 192.0.2.1 198.51.100.2 4711 443\r\n", Some("192.0.2.1:4711")),
        ("PROXY TCP6 2001:db8::1 2001:db8::2 0 65535\r\n", Some("[2001:db8::1]:0")),
        ("PROXY UNKNOWN\r\n", None),
        ("PROXY UNKNOWN ff:ff: whatever 1 2 3\r\n", None),
    ];
    for (line, expected) in cases {
        assert_eq!(source(line.as_bytes()), expected.map(|text| text.parse().unwrap()), "{line}");
    }
}

#[test]
fn what_is_no_header_is_refused_as_soon_as_it_shows() {
    let long = format!("PROXY UNKNOWN {}", "x".repeat(MAX_V1));
    let cases: &[&[u8]] = &[
        b"GET / HTTP/1.1\r\n",
        b"G",
        b"\x16\x03\x01",
        b"PROXY TCP4 192.0.2.1 198.51.100.2 4711\r\n",
        b"PROXY TCP4 192.0.2.1 198.51.100.2 4711 443 5\r\n",
        b"PROXY TCP4 192.0.2.1 198.51.100.2 +1 443\r\n",
        b"PROXY TCP4 192.0.2.1 198.51.100.2 65536 443\r\n",
        b"PROXY TCP4 192.0.2.1  198.51.100.2 1 443\r\n",
        b"PROXY TCP4 2001:db8::1 2001:db8::2 1 2\r\n",
        b"PROXY TCP6 192.0.2.1 198.51.100.2 1 2\r\n",
        b"PROXY TCP4 192.0.2.1 198.51.100.2 1 2\n",
        b"PROXY UDP4 192.0.2.1 198.51.100.2 1 2\r\n",
        b"PROXY \r\n",
        b"PROXY TCP4 \xff\r\n",
        long.as_bytes(),
    ];
    for octets in cases {
        assert!(parse(octets).is_err(), "{:?}", String::from_utf8_lossy(octets));
    }
}

#[test]
fn version_2_names_the_source_where_there_is_one() {
    let (v4, v6) = ([192, 0, 2, 1, 198, 51, 100, 2, 0x12, 0x67, 1, 187], [0x20; 36]);
    let cases: &[(Vec<u8>, Option<&str>)] = &[
        (v2(0x21, 0x11, &v4), Some("192.0.2.1:4711")),
        (v2(0x21, 0x21, &v6), Some("[2020:2020:2020:2020:2020:2020:2020:2020]:8224")),
        (v2(0x20, 0x00, b""), None),
        (v2(0x20, 0x11, &v4), None),
        (v2(0x20, 0x11, b""), None),
        (v2(0x21, 0x00, b""), None),
        (v2(0x21, 0x12, &v4), None),
        (v2(0x21, 0x31, &[7; 216]), None),
    ];
    for (octets, expected) in cases {
        assert_eq!(source(octets), expected.map(|text| text.parse().unwrap()), "{octets:?}");
    }
}

#[test]
fn a_broken_version_2_is_refused() {
    let cases = [
        (v2(0x11, 0x11, &[0; 12]), "neither version 1 nor 2"),
        (v2(0x22, 0x11, &[0; 12]), "an unknown command"),
        (v2(0x21, 0x41, &[0; 12]), "an unknown family"),
        (v2(0x21, 0x11, &[0; 11]), "too short for its addresses"),
        (v2(0x21, 0x21, &[0; 35]), "too short for its addresses"),
        (v2(0x21, 0x31, &[0; 215]), "too short for its addresses"),
        (v2(0x21, 0x11, &[0; MAX_V2]), "longer than 4 KiB"),
        (v2(0x21, 0x11, &[[0; 12].as_slice(), &[4, 0, 9, 0]].concat()), "an extension longer than the header"),
        (v2(0x21, 0x11, &[[0; 12].as_slice(), &[3, 0, 1, 0]].concat()), "a checksum that is not four octets"),
        (v2(0x21, 0x11, &[[0; 12].as_slice(), &[3, 0, 4, 1, 2, 3, 4]].concat()), "a wrong checksum"),
    ];
    for (octets, expected) in cases {
        assert_eq!(parse(&octets), Err(expected), "{octets:?}");
    }
}

/// With the checksum where the sender put it: behind another extension and before a third.
#[test]
fn a_right_checksum_is_accepted_and_one_flipped_bit_is_not() {
    let mut octets = v2(0x21, 0x11, &[&[9; 12][..], &[4, 0, 1, 0], &[3, 0, 4, 0, 0, 0, 0], &[5, 0, 1, 7]].concat());
    let sum = CRC32C.checksum(&octets).to_be_bytes();
    let at = FIXED_V2 + 12 + 4 + 3;
    octets[at..at + 4].copy_from_slice(&sum);
    assert_eq!(source(&octets), Some("9.9.9.9:2313".parse().unwrap()));
    for index in FIXED_V2..octets.len() {
        let mut flipped = octets.clone();
        flipped[index] ^= 1;
        // In a type or length the checksum itself may no longer be found; in the addresses it always is.
        assert!(index >= FIXED_V2 + 12 || parse(&flipped).is_err(), "octet {index}");
    }
}

fn any_address() -> impl Strategy<Value = SocketAddr> {
    (any::<IpAddr>(), any::<u16>()).prop_map(|(address, port)| SocketAddr::new(address, port))
}

proptest! {
    /// What another's encoder writes is read as what it was given, whole and in every beginning of it.
    #[test]
    fn what_others_write_is_read(from in any_address(), to in any_address(), extra in vec(any::<u8>(), 0..300)) {
        prop_assume!(from.is_ipv4() == to.is_ipv4());
        let plain = ProxyHeader::with_address(ProxiedAddress::stream(from, to));
        let mut extended = plain.clone();
        extended.append_tlv(Tlv::Custom(0xe0, extra.into()));
        let mut room = [0; 1024];
        for version in 0..3 {
            let length = match version {
                0 => plain.encode_to_slice_v1(&mut room),
                1 => plain.encode_to_slice_v2(&mut room),
                _ => extended.encode_to_slice_v2(&mut room),
            };
            let header = &room[..length.unwrap()];
            for end in 0..header.len() {
                prop_assert_eq!(parse(&header[..end]), Ok(Parsed::Incomplete));
            }
            let whole = Ok(Parsed::Header { length: header.len(), source: Some(from) });
            prop_assert_eq!(&parse(header), &whole);
            prop_assert_eq!(&parse(&[header, b"GET / HTTP/1.1\r\n"].concat()), &whole);
        }
    }

    #[test]
    fn no_octets_are_beyond_it(octets in vec(any::<u8>(), 0..400), start in 0..3_usize) {
        let start: &[u8] = [b"", START_V1, SIGNATURE][start];
        let octets = [start, &octets].concat();
        if let Ok(Parsed::Header { length, .. }) = parse(&octets) {
            prop_assert!(length <= octets.len());
        }
    }
}
