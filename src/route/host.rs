//! An authority's host in its one normal spelling: lower case, no port, no trailing dot.
//!
//! Strict where the peers are lax: userinfo, separators, escapes and broken brackets are refused, because the next server
//! may read another host from them than we matched.

use std::borrow::Cow;
use std::cell::RefCell;
use std::net::Ipv6Addr;
use std::rc::Rc;

/// Why a host is no host; each is the client's error.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HostError {
    #[error("a character in the host that no host name has")]
    Character,
    #[error("an empty label in the host")]
    EmptyLabel,
    #[error("a host in brackets that is no IPv6 address")]
    Brackets,
    #[error("a port that is no number up to 65535")]
    Port,
    #[error("a host longer than 255 bytes")]
    TooLong,
}

/// Longest textual form of a name in DNS, with room for the trailing dot.
const LENGTH_MAX: usize = 255;

/// Brings the value of `Host` or an authority into normal form. Nothing stays nothing: HTTP/1.1 allows an empty `Host`.
pub fn normalise_host(authority: &[u8]) -> Result<Cow<'_, str>, HostError> {
    if authority.is_empty() {
        return Ok(Cow::Borrowed(""));
    }
    if authority.first() == Some(&b'[') {
        let authority = std::str::from_utf8(authority).map_err(|_| HostError::Character)?;
        let (address, port) = authority[1..].split_once(']').ok_or(HostError::Brackets)?;
        check_port(port.as_bytes())?;
        return normalise_ipv6(authority, address);
    }
    let (name, port) = authority.split_at(memchr::memchr(b':', authority).unwrap_or(authority.len()));
    check_port(port)?;
    normalise_name(name)
}

/// The authority that a connection named last, and its normal form. Nearly every further request names the same one, and to
/// compare costs a tenth of bringing it into normal form again.
#[derive(Clone, Default, Debug)]
pub struct LastHost(RefCell<Option<Known>>);

#[derive(Clone, Debug)]
struct Known {
    sent: Box<[u8]>,
    normal: Rc<str>,
}

impl LastHost {
    /// What `normalise_host` gives.
    pub fn normalise(&self, authority: &[u8]) -> Result<Rc<str>, HostError> {
        if let Some(known) = &*self.0.borrow()
            && *known.sent == *authority
        {
            return Ok(known.normal.clone());
        }
        let normal: Rc<str> = normalise_host(authority)?.into();
        self.0.replace(Some(Known { sent: authority.into(), normal: normal.clone() }));
        Ok(normal)
    }
}

/// `:` and digits, or nothing. An empty port is the scheme's own (RFC 3986 3.2.3).
fn check_port(port: &[u8]) -> Result<(), HostError> {
    let Some((colon, digits)) = port.split_first() else { return Ok(()) };
    if *colon != b':' {
        return Err(HostError::Brackets);
    }
    let number = digits.iter().try_fold(0_u16, |number, digit| {
        let digit = digit.is_ascii_digit().then(|| u16::from(digit - b'0'))?;
        number.checked_mul(10)?.checked_add(digit)
    });
    number.map(|_| ()).ok_or(HostError::Port)
}

/// One address has one spelling, so that a route for `[::1]` is not passed by with `[0:0::1]`.
fn normalise_ipv6<'a>(authority: &'a str, address: &str) -> Result<Cow<'a, str>, HostError> {
    let parsed: Ipv6Addr = address.parse().map_err(|_| HostError::Brackets)?;
    let normal = format!("[{parsed}]");
    Ok(match authority.get(..normal.len()) {
        Some(same) if same == normal => Cow::Borrowed(same),
        _ => Cow::Owned(normal),
    })
}

fn normalise_name(name: &[u8]) -> Result<Cow<'_, str>, HostError> {
    if name.len() > LENGTH_MAX {
        return Err(HostError::TooLong);
    }
    let name = name.strip_suffix(b".").unwrap_or(name);
    // A name begins as if after a dot, and must not end so.
    let (mut last, mut seen) = (DOT, 0);
    for byte in name {
        let class = CLASSES[usize::from(*byte)];
        if last & class & DOT != 0 {
            return Err(HostError::EmptyLabel);
        }
        (last, seen) = (class, seen | class);
    }
    if seen & REFUSED != 0 {
        return Err(HostError::Character);
    }
    if last & DOT != 0 {
        return Err(HostError::EmptyLabel);
    }
    // Always succeeds: none of these bytes is beyond ASCII.
    let name = std::str::from_utf8(name).map_err(|_| HostError::Character)?;
    Ok(if seen & UPPER == 0 { Cow::Borrowed(name) } else { Cow::Owned(name.to_ascii_lowercase()) })
}

/// What a byte is in a name; nothing of this: a plain character.
const DOT: u8 = 1;
const UPPER: u8 = 2;
const REFUSED: u8 = 4;

static CLASSES: [u8; 256] = {
    let mut table = [REFUSED; 256];
    let mut byte = 0_u8;
    while byte < 128 {
        table[byte as usize] = match byte {
            b'.' => DOT,
            b'A'..=b'Z' => UPPER,
            b'a'..=b'z' | b'0'..=b'9' | b'-' | b'_' | b'~' => 0,
            _ => REFUSED,
        };
        byte += 1;
    }
    table
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_has_one_spelling() {
        for (sent, normal) in [
            ("api.example.com", "api.example.com"),
            ("API.Example.COM", "api.example.com"),
            ("a.b:8080", "a.b"),
            ("a.b.", "a.b"),
            ("a.b.:80", "a.b"),
            ("a.b:", "a.b"),
            ("A:0", "a"),
            ("127.0.0.1:80", "127.0.0.1"),
            ("[::1]", "[::1]"),
            ("[::1]:80", "[::1]"),
            ("[2001:DB8:0:0::1]:443", "[2001:db8::1]"),
            ("x_y-z.q", "x_y-z.q"),
            ("", ""),
        ] {
            assert_eq!(normalise_host(sent.as_bytes()).as_deref(), Ok(normal), "{sent}");
        }
    }

    #[test]
    fn what_another_server_may_read_as_another_host_is_refused() {
        use HostError as E;
        for (sent, reason) in [
            ("a@b", E::Character),
            ("a/b", E::Character),
            ("a?b", E::Character),
            ("a#b", E::Character),
            ("a\\b", E::Character),
            ("a b", E::Character),
            (" a", E::Character),
            ("a,b", E::Character),
            ("a%2eb", E::Character),
            ("bücher.de", E::Character),
            ("*", E::Character),
            ("a]", E::Character),
            ("a\0", E::Character),
            (".", E::EmptyLabel),
            ("..", E::EmptyLabel),
            ("a..b", E::EmptyLabel),
            (".a", E::EmptyLabel),
            ("a..", E::EmptyLabel),
            (":80", E::EmptyLabel),
            ("[::1", E::Brackets),
            ("[]", E::Brackets),
            ("[a]", E::Brackets),
            ("[::1]x", E::Brackets),
            ("[1.2.3.4]", E::Brackets),
            ("[fe80::1%25eth0]", E::Brackets),
            ("[v1.x]", E::Brackets),
            ("[[::1]]", E::Brackets),
            ("a:b", E::Port),
            ("a:65536", E::Port),
            ("a:+80", E::Port),
            ("a:-1", E::Port),
            ("a:80:80", E::Port),
            ("::1", E::Port),
            ("user:pw@b", E::Port),
        ] {
            assert_eq!(normalise_host(sent.as_bytes()), Err(reason), "{sent}");
        }
        assert_eq!(normalise_host(b"\xff"), Err(E::Character));
        assert_eq!(normalise_host("a".repeat(256).as_bytes()), Err(E::TooLong));
    }

    #[test]
    fn a_host_that_was_seen_before_is_told_as_it_was_and_another_one_anew() {
        let last = LastHost::default();
        for sent in ["A.b:80", "A.b:80", "a", "A.b:80", ""] {
            assert_eq!(
                last.normalise(sent.as_bytes()).as_deref(),
                normalise_host(sent.as_bytes()).as_deref(),
                "{sent}"
            );
        }
        assert_eq!(last.normalise(b"a..b"), Err(HostError::EmptyLabel));
    }

    #[test]
    fn a_normal_host_is_not_copied() {
        for sent in ["a.b", "a.b:80", "[::1]:80", "a."] {
            assert!(matches!(normalise_host(sent.as_bytes()), Ok(Cow::Borrowed(_))), "{sent}");
        }
    }
}
