//! The PROXY protocol, versions 1 and 2 (haproxy.org, proxy-protocol.txt): the address that a proxy in front says a
//! connection comes from. Nothing behind the header is taken off the socket, so that TLS or HTTP begins as on any other.

use crc::{CRC_32_ISCSI, Crc};
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use tokio::net::TcpStream;

const SIGNATURE: &[u8] = b"\r\n\r\n\0\r\nQUIT\n";
const START_V1: &[u8] = b"PROXY ";
/// With its CR LF, as version 1 bounds it.
const MAX_V1: usize = 107;
/// Signature, version, family and length.
const FIXED_V2: usize = 16;
/// Version 2 could say 64 KiB; senders add some hundred octets to the addresses, a certificate's names at most.
const MAX_V2: usize = 4096;
const CHECKSUM: u8 = 0x03;
/// Which polynomial version 2 means (RFC 4960, appendix B).
const CRC32C: Crc<u32> = Crc::<u32>::new(&CRC_32_ISCSI);

/// Why there is no header.
#[derive(Debug)]
pub enum Broken {
    Malformed(&'static str),
    /// The peer left; it may have looked only whether the port is open.
    Gone,
}

impl From<io::Error> for Broken {
    fn from(_: io::Error) -> Self {
        Self::Gone
    }
}

/// What octets at the start of a connection are.
#[derive(Debug, PartialEq, Eq)]
pub enum Parsed {
    Incomplete,
    /// How long it is, and whom it names: nobody where the proxy speaks for itself, or over no TCP.
    Header {
        length: usize,
        source: Option<SocketAddr>,
    },
}

/// Reads the header and nothing else. `None`: the peer is the client.
pub async fn read(io: &TcpStream) -> Result<Option<SocketAddr>, Broken> {
    let (mut header, mut chunk) = (Vec::new(), [0; 256]);
    loop {
        let seen = io.peek(&mut chunk).await?;
        if seen == 0 {
            return Err(Broken::Gone);
        }
        let taken = header.len();
        header.extend_from_slice(&chunk[..seen]);
        let parsed = parse(&header).map_err(Broken::Malformed)?;
        let (length, done) = match parsed {
            Parsed::Incomplete => (header.len(), None),
            Parsed::Header { length, source } => (length, Some(source)),
        };
        // All of it has been seen, so it is there to be taken.
        let read = io.try_read(&mut chunk[..length - taken])?;
        match done {
            Some(source) => return Ok(source),
            None => header.truncate(taken + read),
        }
    }
}

/// The header at the start of `octets`, of which more may come.
pub fn parse(octets: &[u8]) -> Result<Parsed, &'static str> {
    let begins = |start: &[u8]| octets.iter().zip(start).all(|(octet, expected)| octet == expected);
    if begins(SIGNATURE) {
        parse_v2(octets)
    } else if begins(START_V1) {
        parse_v1(octets)
    } else {
        Err("no PROXY header")
    }
}

fn parse_v1(octets: &[u8]) -> Result<Parsed, &'static str> {
    let Some(end) = octets.iter().take(MAX_V1).position(|octet| *octet == b'\n') else {
        return if octets.len() < MAX_V1 { Ok(Parsed::Incomplete) } else { Err("longer than 107 octets") };
    };
    let line = octets[..end].strip_suffix(b"\r").ok_or("its line does not end with CR LF")?;
    let line = std::str::from_utf8(line).map_err(|_| "not ASCII")?;
    let mut words = line.split(' ').skip(1);
    let source = match words.next() {
        // Whatever else stands in the line is to be ignored.
        Some("UNKNOWN") => None,
        Some("TCP4") => Some(addresses::<Ipv4Addr>(words).ok_or("no two IPv4 addresses with ports")?),
        Some("TCP6") => Some(addresses::<Ipv6Addr>(words).ok_or("no two IPv6 addresses with ports")?),
        _ => return Err("neither TCP4, TCP6 nor UNKNOWN"),
    };
    Ok(Parsed::Header { length: end + 1, source })
}

/// The source of `SOURCE DESTINATION SOURCE-PORT DESTINATION-PORT`.
fn addresses<'l, A>(mut words: impl Iterator<Item = &'l str>) -> Option<SocketAddr>
where
    A: std::str::FromStr + Into<IpAddr>,
{
    let source: A = words.next()?.parse().ok()?;
    let _destination: A = words.next()?.parse().ok()?;
    let (source_port, _) = (port(words.next()?)?, port(words.next()?)?);
    words.next().is_none().then(|| SocketAddr::new(source.into(), source_port))
}

/// `u16` would parse a sign.
fn port(word: &str) -> Option<u16> {
    word.parse().ok().filter(|_| word.bytes().all(|byte| byte.is_ascii_digit()))
}

fn parse_v2(octets: &[u8]) -> Result<Parsed, &'static str> {
    let Some(fixed) = octets.get(..FIXED_V2) else { return Ok(Parsed::Incomplete) };
    let length = FIXED_V2 + usize::from(u16::from_be_bytes([fixed[14], fixed[15]]));
    if fixed[12] >> 4 != 2 {
        return Err("neither version 1 nor 2");
    }
    if length > MAX_V2 {
        return Err("longer than 4 KiB");
    }
    let Some(rest) = octets.get(FIXED_V2..length) else { return Ok(Parsed::Incomplete) };
    let (source, addresses) = match (fixed[12] & 0x0f, fixed[13]) {
        // LOCAL, such as a health check: the proxy itself is the client. What family it gives does not matter.
        (0, _) => (None, family_length(fixed[13]).min(rest.len())),
        (1, 0x11) => (Some(source_v4(rest).ok_or("too short for its addresses")?), 12),
        (1, 0x21) => (Some(source_v6(rest).ok_or("too short for its addresses")?), 36),
        // No TCP: unspecified, datagrams, Unix sockets. There is no address that could be a client's.
        (1, 0x00 | 0x12 | 0x22 | 0x31 | 0x32) => (None, family_length(fixed[13])),
        (1, _) => return Err("an unknown family"),
        _ => return Err("an unknown command"),
    };
    let extensions = rest.get(addresses..).ok_or("too short for its addresses")?;
    check(&octets[..length], FIXED_V2 + addresses, extensions)?;
    Ok(Parsed::Header { length, source })
}

/// Of both addresses with their ports.
fn family_length(family: u8) -> usize {
    match family >> 4 {
        1 => 12,
        2 => 36,
        3 => 216,
        _ => 0,
    }
}

fn source_v4(addresses: &[u8]) -> Option<SocketAddr> {
    let source: [u8; 4] = addresses.get(..4)?.try_into().ok()?;
    let port: [u8; 2] = addresses.get(..12)?[8..10].try_into().ok()?;
    Some(SocketAddr::new(Ipv4Addr::from(source).into(), u16::from_be_bytes(port)))
}

fn source_v6(addresses: &[u8]) -> Option<SocketAddr> {
    let source: [u8; 16] = addresses.get(..16)?.try_into().ok()?;
    let port: [u8; 2] = addresses.get(..36)?[32..34].try_into().ok()?;
    Some(SocketAddr::new(Ipv6Addr::from(source).into(), u16::from_be_bytes(port)))
}

/// Looks through the extensions, each a type, a length and a value, for the checksum of the whole header; it was made with its
/// own four octets as zeros.
fn check(header: &[u8], mut at: usize, mut extensions: &[u8]) -> Result<(), &'static str> {
    while let [kind, high, low, rest @ ..] = extensions {
        let length = usize::from(u16::from_be_bytes([*high, *low]));
        let value = rest.get(..length).ok_or("an extension longer than the header")?;
        if *kind == CHECKSUM {
            let told: [u8; 4] = value.try_into().map_err(|_| "a checksum that is not four octets")?;
            let mut digest = CRC32C.digest();
            digest.update(&header[..at + 3]);
            digest.update(&[0; 4]);
            digest.update(&header[at + 7..]);
            return if digest.finalize() == u32::from_be_bytes(told) { Ok(()) } else { Err("a wrong checksum") };
        }
        at += 3 + length;
        extensions = &rest[length..];
    }
    Ok(())
}

#[cfg(test)]
mod tests;
