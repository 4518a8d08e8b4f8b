//! Who may call. What changes something needs the token and must not come from another site's page; what reads is free for
//! this host and needs the token from elsewhere; probes are free.
//!
//! Reading without a token is open to every program on this host, so a browser on it must not become a bridge: the `Host`
//! must be an address or a loopback name, which a name rebound to 127.0.0.1 is not.

use crate::respond::page::Denied;
use crate::units::Secret;
use http::HeaderMap;
use http::header::{AUTHORIZATION, HOST, ORIGIN, VIA};
use http::uri::Authority;
use std::net::{IpAddr, Ipv6Addr};
use subtle::ConstantTimeEq;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Need {
    Probe,
    Read,
    Change,
}

/// A call, as far as access goes.
#[derive(Clone, Copy, Debug)]
pub struct Caller<'a> {
    pub peer: IpAddr,
    pub headers: &'a HeaderMap,
    /// Of a target in absolute form; it counts instead of `Host`.
    pub authority: Option<&'a Authority>,
}

impl Caller<'_> {
    /// # Errors
    /// When the call is not for this caller.
    pub fn may(&self, need: Need, token: Option<&Secret>) -> Result<(), Denied> {
        let token = token.map(Secret::reveal).filter(|token| !token.is_empty());
        match need {
            Need::Probe => Ok(()),
            _ if self.came_through_a_gateway() => {
                Err(Denied::Forbidden("The admin listener is not reached through the gateway itself."))
            }
            Need::Change if self.is_cross_site() => {
                Err(Denied::Forbidden("A page of another site may not change anything here."))
            }
            Need::Change => match token {
                None => Err(Denied::Forbidden("No admin.token is configured, so nothing can be changed from here.")),
                Some(token) if self.bears(token) => Ok(()),
                Some(_) => Err(Denied::Unauthorized),
            },
            Need::Read => self.may_read(token),
        }
    }

    fn may_read(&self, token: Option<&str>) -> Result<(), Denied> {
        if token.is_some_and(|token| self.bears(token)) {
            return Ok(());
        }
        if !self.peer.to_canonical().is_loopback() {
            return Err(match token {
                Some(_) => Denied::Unauthorized,
                None => Denied::Forbidden("No admin.token is configured, so only this host may read here."),
            });
        }
        if self.names_this_host() {
            Ok(())
        } else {
            Err(Denied::Forbidden("Without the token, this host is called by its address or as localhost."))
        }
    }

    fn bears(&self, token: &str) -> bool {
        let mut sent = self.headers.get_all(AUTHORIZATION).iter();
        let (Some(value), None) = (sent.next(), sent.next()) else { return false };
        let Some((scheme, credentials)) = value.as_bytes().split_at_checked(7) else { return false };
        scheme.eq_ignore_ascii_case(b"bearer ") && bool::from(credentials.trim_ascii().ct_eq(token.as_bytes()))
    }

    /// A name in the file or in the DNS may lead a route here, and the gateway's own address would be taken for this host's user.
    /// What is forwarded tells it in `Via` (RFC 9110 §7.6.3).
    fn came_through_a_gateway(&self) -> bool {
        let hops = self.headers.get_all(VIA).iter().flat_map(|line| line.as_bytes().split(|octet| *octet == b','));
        hops.map(<[u8]>::trim_ascii).any(|hop| hop.ends_with(b" staunch"))
    }

    fn text(&self, name: impl http::header::AsHeaderName) -> Option<&str> {
        self.headers.get(name).map(|value| value.to_str().unwrap_or("?"))
    }

    fn host(&self) -> Option<&str> {
        self.authority.map(Authority::as_str).or_else(|| self.text(HOST))
    }

    /// Browsers send `Sec-Fetch-Site` with every request and `Origin` with those that change something; programs neither.
    fn is_cross_site(&self) -> bool {
        let fetched = self.text("sec-fetch-site").is_some_and(|site| !matches!(site, "same-origin" | "none"));
        let origin = self.text(ORIGIN).is_some_and(|origin| {
            let origin = origin.strip_prefix("http://").or_else(|| origin.strip_prefix("https://"));
            origin.is_none() || origin != self.host() || !self.names_this_host()
        });
        fetched || origin
    }

    /// A call without `Host` is HTTP/1.0, and no browser's.
    fn names_this_host(&self) -> bool {
        let Some(host) = self.host() else { return true };
        let Ok(authority) = host.parse::<Authority>() else { return false };
        let name = authority.host().trim_end_matches('.').to_ascii_lowercase();
        let unbracketed = name.strip_prefix('[').and_then(|name| name.strip_suffix(']'));
        let is_address = match unbracketed {
            Some(name) => name.parse::<Ipv6Addr>().is_ok(),
            None => name.parse::<IpAddr>().is_ok(),
        };
        is_address || name == "localhost" || name.ends_with(".localhost")
    }
}
