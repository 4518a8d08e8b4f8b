//! Who the client is: the peer, or what trusted proxies say of it.
//!
//! Promises: nothing that a stranger sends changes the client; behind trusted proxies it is the rightmost address that is not
//! trusted, because all that stands left of it may be invented; what is no address never makes a new client. Total on any
//! bytes, without allocation. The PROXY protocol is the listener's: it replaces the peer before this walk.

use http::header::{HeaderMap, HeaderName, InvalidHeaderName};
use ipnet::IpNet;
use std::net::{IpAddr, Ipv6Addr};

/// `[client_ip]`, compiled: whom to believe, and which field.
#[derive(Clone, Debug)]
pub struct ClientAddr {
    trusted: Networks,
    field: Field,
}

#[derive(Clone, Debug)]
enum Field {
    /// `X-Forwarded-For`: a list, each hop appends its peer.
    ForwardedFor(HeaderName),
    /// `Forwarded` (RFC 7239).
    Forwarded(HeaderName),
    /// One address and nothing else: `X-Real-IP`, `CF-Connecting-IP`, …
    Single(HeaderName),
}

impl ClientAddr {
    pub fn new(trusted_proxies: &[IpNet], header: &str) -> Result<Self, InvalidHeaderName> {
        let name = HeaderName::from_bytes(header.as_bytes())?;
        let field = match name.as_str() {
            "x-forwarded-for" => Field::ForwardedFor(name),
            "forwarded" => Field::Forwarded(name),
            _ => Field::Single(name),
        };
        Ok(Self { trusted: Networks::new(trusted_proxies), field })
    }

    /// Whether a peer's forwarding fields are believed.
    #[must_use]
    pub fn trusts(&self, peer: IpAddr) -> bool {
        self.trusted.contain(peer.to_canonical())
    }

    /// The client of a request that came from `peer`. IPv4 mapped into IPv6 is IPv4.
    #[must_use]
    pub fn client(&self, peer: IpAddr, headers: &HeaderMap) -> IpAddr {
        let peer = peer.to_canonical();
        if !self.trusted.contain(peer) {
            return peer;
        }
        match &self.field {
            Field::ForwardedFor(name) => self.walk(
                peer,
                lines_from_the_right(headers, name).flat_map(|line| line.rsplit(|&byte| byte == b',')),
                address,
            ),
            Field::Forwarded(name) => self.walk(
                peer,
                lines_from_the_right(headers, name).flat_map(|line| SplitRight::new(line, b',')),
                forwarded_for,
            ),
            Field::Single(name) => single(headers, name).unwrap_or(peer),
        }
    }

    /// From the right over trusted addresses to the first that is not. An entry that is no address ends the walk at the last
    /// good one: whoever wrote it is unknown, and who handed it on is the best that is known.
    fn walk<'a>(
        &self,
        peer: IpAddr,
        entries: impl Iterator<Item = &'a [u8]>,
        read: impl Fn(&[u8]) -> Option<IpAddr>,
    ) -> IpAddr {
        let mut nearest = peer;
        for entry in entries.map(trim).filter(|entry| !entry.is_empty()) {
            let Some(address) = read(entry) else { break };
            nearest = address;
            if !self.trusted.contain(address) {
                break;
            }
        }
        nearest
    }
}

fn lines_from_the_right<'a>(headers: &'a HeaderMap, name: &HeaderName) -> impl Iterator<Item = &'a [u8]> + use<'a> {
    headers.get_all(name).iter().rev().map(http::HeaderValue::as_bytes)
}

/// A field that comes twice was added to by someone who did not replace it, so neither line is believed.
fn single(headers: &HeaderMap, name: &HeaderName) -> Option<IpAddr> {
    let mut lines = headers.get_all(name).iter();
    let line = lines.next()?;
    if lines.next().is_some() { None } else { address(trim(line.as_bytes())) }
}

/// Longest address with all that may stand around it: brackets, a zone, a port.
const ADDRESS_LENGTH_MAX: usize = 96;

/// An address as proxies write it: `192.0.2.1`, `192.0.2.1:4711`, `2001:db8::1`, `[2001:db8::1]:4711`, `fe80::1%eth0`.
fn address(text: &[u8]) -> Option<IpAddr> {
    if text.len() > ADDRESS_LENGTH_MAX {
        return None;
    }
    let text = std::str::from_utf8(text).ok()?;
    let address: IpAddr = if let Some(rest) = text.strip_prefix('[') {
        let (inner, port) = rest.split_once(']')?;
        if !port.is_empty() && !is_port(port.strip_prefix(':')?) {
            return None;
        }
        ipv6(inner)?.into()
    } else if text.matches(':').count() > 1 {
        ipv6(text)?.into()
    } else if let Some((host, port)) = text.split_once(':') {
        if !is_port(port) {
            return None;
        }
        IpAddr::V4(host.parse().ok()?)
    } else {
        IpAddr::V4(text.parse().ok()?)
    };
    Some(address.to_canonical())
}

/// A zone means something on the sender's host only.
fn ipv6(text: &str) -> Option<Ipv6Addr> {
    match text.split_once('%') {
        None => text.parse().ok(),
        Some((address, zone)) if is_name(zone) => address.parse().ok(),
        Some(_) => None,
    }
}

/// A number, or the obfuscated port of RFC 7239 6.3.
fn is_port(text: &str) -> bool {
    let digits = text.bytes().all(|byte| byte.is_ascii_digit());
    (digits && text.parse::<u16>().is_ok()) || text.strip_prefix('_').is_some_and(is_name)
}

fn is_name(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"._-".contains(&byte))
}

/// The address of one `Forwarded` element: `for=192.0.2.1;proto=https`, `For="[2001:db8::1]:4711"`. An element without a `for`,
/// or with two, names nobody.
fn forwarded_for(element: &[u8]) -> Option<IpAddr> {
    let mut found = None;
    for pair in SplitRight::new(element, b';') {
        let Some(equals) = pair.iter().position(|&byte| byte == b'=') else { continue };
        if !trim(&pair[..equals]).eq_ignore_ascii_case(b"for") {
            continue;
        }
        if found.is_some() {
            return None;
        }
        found = Some(unquoted(trim(&pair[equals + 1..]))?);
    }
    found
}

/// The address in a token or a quoted string. Colons and brackets ask for quotes, but proxies leave them out.
fn unquoted(value: &[u8]) -> Option<IpAddr> {
    let Some(inner) = value.strip_prefix(b"\"") else { return address(value) };
    let inner = inner.strip_suffix(b"\"")?;
    let mut plain = [0; ADDRESS_LENGTH_MAX];
    let mut length = 0;
    let mut bytes = inner.iter();
    while let Some(&byte) = bytes.next() {
        *plain.get_mut(length)? = match byte {
            b'"' => return None,
            b'\\' => *bytes.next()?,
            other => other,
        };
        length += 1;
    }
    address(&plain[..length])
}

/// Splits at a separator outside quoted strings, from the right.
///
/// From the right, because that is the end which trusted proxies wrote: a quote that a client left open on the left cannot
/// swallow what was appended to it. In well-formed text both directions see the same strings.
struct SplitRight<'a> {
    rest: Option<&'a [u8]>,
    separator: u8,
}

impl<'a> SplitRight<'a> {
    fn new(text: &'a [u8], separator: u8) -> Self {
        Self { rest: Some(text), separator }
    }
}

impl<'a> Iterator for SplitRight<'a> {
    type Item = &'a [u8];

    fn next(&mut self) -> Option<&'a [u8]> {
        let text = self.rest.take()?;
        let mut quoted = false;
        for (at, &byte) in text.iter().enumerate().rev() {
            match byte {
                // Inside a string, a quote after an odd number of backslashes is part of it.
                b'"' if quoted && is_escaped(&text[..at]) => {}
                b'"' => quoted = !quoted,
                byte if byte == self.separator && !quoted => {
                    self.rest = Some(&text[..at]);
                    return Some(&text[at + 1..]);
                }
                _ => {}
            }
        }
        Some(text)
    }
}

fn is_escaped(before: &[u8]) -> bool {
    before.iter().rev().take_while(|&&byte| byte == b'\\').count() % 2 == 1
}

fn trim(mut value: &[u8]) -> &[u8] {
    while let [b' ' | b'\t', rest @ ..] | [rest @ .., b' ' | b'\t'] = value {
        value = rest;
    }
    value
}

/// A set of networks as sorted, disjoint ranges: one binary search, whatever their number.
#[derive(Clone, Debug, Default)]
struct Networks {
    v4: Box<[(u32, u32)]>,
    v6: Box<[(u128, u128)]>,
}

impl Networks {
    fn new(networks: &[IpNet]) -> Self {
        let (mut v4, mut v6) = (Vec::new(), Vec::new());
        for network in networks {
            match (network.network().to_canonical(), network.broadcast().to_canonical()) {
                (IpAddr::V4(first), IpAddr::V4(last)) => v4.push((first.to_bits(), last.to_bits())),
                (IpAddr::V6(first), IpAddr::V6(last)) => v6.push((first.to_bits(), last.to_bits())),
                // Its ends are of two kinds only if it is wider than all mapped addresses, and then it holds none of them: an
                // address is compared as what it is.
                (IpAddr::V4(_), IpAddr::V6(_)) | (IpAddr::V6(_), IpAddr::V4(_)) => {}
            }
        }
        Self { v4: disjoint(v4), v6: disjoint(v6) }
    }

    fn contain(&self, address: IpAddr) -> bool {
        match address {
            IpAddr::V4(v4) => within(&self.v4, v4.to_bits()),
            IpAddr::V6(v6) => within(&self.v6, v6.to_bits()),
        }
    }
}

fn disjoint<N: Ord + Copy>(mut ranges: Vec<(N, N)>) -> Box<[(N, N)]> {
    ranges.sort_unstable();
    ranges.dedup_by(|next, kept| {
        let overlaps = next.0 <= kept.1;
        if overlaps {
            kept.1 = kept.1.max(next.1);
        }
        overlaps
    });
    ranges.into()
}

fn within<N: Ord + Copy>(ranges: &[(N, N)], number: N) -> bool {
    let after = ranges.partition_point(|&(first, _)| first <= number);
    after > 0 && number <= ranges[after - 1].1
}

#[cfg(test)]
mod tests;
