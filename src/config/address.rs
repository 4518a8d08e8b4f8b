//! `host[:port]` as it stands in the URLs of upstreams and nodes.

use std::fmt;
use std::net::{Ipv4Addr, Ipv6Addr};

/// A checked host and port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Authority {
    /// A name or an address, lower case, without brackets.
    pub host: String,
    pub port: u16,
}

impl fmt::Display for Authority {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.host.contains(':') {
            write!(formatter, "[{}]:{}", self.host, self.port)
        } else {
            write!(formatter, "{}:{}", self.host, self.port)
        }
    }
}

pub fn parse_authority(text: &str, default_port: u16) -> Option<Authority> {
    let (host, port) = match text.strip_prefix('[') {
        Some(rest) => {
            let (address, after) = rest.split_once(']')?;
            let address: Ipv6Addr = address.parse().ok()?;
            (address.to_string(), if after.is_empty() { None } else { Some(after.strip_prefix(':')?) })
        }
        None => match text.split_once(':') {
            Some((host, port)) => (name(host)?, Some(port)),
            None => (name(text)?, None),
        },
    };
    let port = match port {
        Some(port) if port.bytes().all(|byte| byte.is_ascii_digit()) => port.parse().ok().filter(|port| *port != 0)?,
        Some(_) => return None,
        None => default_port,
    };
    Some(Authority { host, port })
}

/// A DNS name, in its wider use with underscores (compose services), or an IPv4 address.
fn name(text: &str) -> Option<String> {
    let host = text.to_ascii_lowercase();
    let label = |label: &str| {
        (1..=63).contains(&label.len())
            && label.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(&byte))
    };
    let sound = host.len() <= 253 && host.strip_suffix('.').unwrap_or(&host).split('.').all(label);
    // What looks like an address must be one: `10.0.0.256` is no name either.
    let numeric = host
        .split('.')
        .next_back()
        .is_some_and(|last| !last.is_empty() && last.bytes().all(|byte| byte.is_ascii_digit()));
    (sound && (!numeric || host.parse::<Ipv4Addr>().is_ok())).then_some(host)
}
