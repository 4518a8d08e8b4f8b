//! A limit's key as a 128-bit digest: what the stores know of a client.
//!
//! Promises: two different (policy, limit, sources, values) never give the same input to the hash, whatever bytes clients send,
//! and a counter of requests without a key is apart from every key's. All gateways of one `store.key_prefix` agree.
//!
//! SipHash-2-4 with 128 bits, keyed by the prefix: a collision that anyone can search for costs 2^64 tries, and only by one who
//! knows the prefix; a random key would be safer still, but gateways and restarts must agree without talking. A cryptographic
//! hash costs several times as much per request and would only move that bound for one who knows the configuration.

use super::{Facts, KeyError, KeySource, KeySpec};
use ipnet::IpNet;
use siphasher::sip128::{Hasher128, SipHasher24};
use smallvec::SmallVec;
use std::hash::Hasher;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// A key's value as text for `exempt` and `overrides`.
pub type Value = SmallVec<[u8; 64]>;

/// All that share a store and a prefix: the hash's key, made from `store.key_prefix`.
#[derive(Clone, Copy, Debug)]
pub struct Namespace {
    key: [u8; 16],
}

impl Namespace {
    #[must_use]
    pub fn new(key_prefix: &str) -> Self {
        let mut hasher = SipHasher24::new_with_key(b"staunch key v1\0\0");
        hasher.write(key_prefix.as_bytes());
        Self { key: u128::from(hasher.finish128()).to_le_bytes() }
    }
}

/// Whose limit it is; no two limits of a configuration have the same.
#[derive(Clone, Copy, Debug)]
pub struct Identity<'a> {
    pub policy: &'a str,
    pub limit: &'a str,
    pub algorithm: &'a str,
}

/// How many leading bits of an address make one client: `client_ip.ipv4_prefix`, `client_ip.ipv6_prefix`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Prefixes {
    /// 0 ..= 32
    pub ipv4: u8,
    /// 0 ..= 128
    pub ipv6: u8,
}

impl Prefixes {
    /// The first address of the client's group; IPv4 mapped into IPv6 is IPv4.
    #[must_use]
    pub fn group(self, address: IpAddr) -> IpAddr {
        match address.to_canonical() {
            IpAddr::V4(v4) => {
                let mask = u32::MAX.checked_shl(32 - u32::from(self.ipv4.min(32))).unwrap_or(0);
                Ipv4Addr::from_bits(v4.to_bits() & mask).into()
            }
            IpAddr::V6(v6) => {
                let mask = u128::MAX.checked_shl(128 - u32::from(self.ipv6.min(128))).unwrap_or(0);
                Ipv6Addr::from_bits(v6.to_bits() & mask).into()
            }
        }
    }
}

/// Keeps apart what is counted for one limit: keys, and the two ways to count requests without one.
#[derive(Clone, Copy)]
enum Kind {
    Key = 0,
    Client = 1,
    Shared = 2,
}

/// One limit's key, compiled: all that does not depend on the request is hashed already.
#[derive(Clone, Debug)]
pub struct Keyer {
    sources: Box<[KeySource]>,
    prefixes: Prefixes,
    base: SipHasher24,
    /// The digest of a key that is the same for all requests.
    global: Option<u128>,
}

impl Keyer {
    /// The sources and the algorithm are part of the identity: under another one, a limit's counters start anew, and gateways
    /// that differ in it for a while (a rolling deploy) do not overwrite each other's.
    #[must_use]
    pub fn new(namespace: Namespace, identity: Identity<'_>, spec: &KeySpec, prefixes: Prefixes) -> Self {
        let mut base = SipHasher24::new_with_key(&namespace.key);
        let texts = spec.sources.iter().map(ToString::to_string);
        let Identity { policy, limit, algorithm } = identity;
        for text in [policy, limit, algorithm].map(str::to_owned).into_iter().chain(texts) {
            base.write(&(text.len() as u64).to_le_bytes());
            base.write(text.as_bytes());
        }
        // No text is that long: it ends the list, so that no identity is the beginning of another.
        base.write(&u64::MAX.to_le_bytes());
        let is_global = spec.sources.iter().all(|source| *source == KeySource::Global);
        let mut keyer = Self { sources: spec.sources.clone().into(), prefixes, base, global: None };
        keyer.global = is_global.then(|| keyer.begin(Kind::Key).finish128().into());
        keyer
    }

    /// The digest of this request's key; `None`: a part of it is missing.
    #[must_use]
    pub fn digest(&self, facts: &Facts<'_>) -> Option<u128> {
        if self.global.is_some() {
            return self.global;
        }
        let mut hasher = self.begin(Kind::Key);
        for source in &self.sources {
            let length = match source {
                KeySource::Global => continue,
                KeySource::ClientIp => self.write_address(&mut hasher, facts.client),
                other => write_part(&mut hasher, |sink| other.read(facts, sink)),
            };
            if length == 0 {
                return None;
            }
        }
        Some(hasher.finish128().into())
    }

    /// The counter of a client's requests without a key (`on_missing_key = "client_ip"`).
    #[must_use]
    pub fn digest_of_client(&self, client: IpAddr) -> u128 {
        let mut hasher = self.begin(Kind::Client);
        self.write_address(&mut hasher, client);
        hasher.finish128().into()
    }

    /// The one counter of all requests without a key (`on_missing_key = "shared"`).
    #[must_use]
    pub fn digest_shared(&self) -> u128 {
        self.begin(Kind::Shared).finish128().into()
    }

    /// The digest of a key that a person names, part by part in the order of the sources. `global` has no part. An address
    /// stands for its whole group, and may be written with the group's prefix length.
    pub fn digest_of_parts(&self, parts: &[&str]) -> Result<u128, KeyError> {
        let wanted = self.sources.iter().filter(|source| **source != KeySource::Global);
        let count = wanted.clone().count();
        // `key=…` of a counter that all share says nothing, and need not be left out.
        if parts.len() != count && count > 0 {
            return Err(KeyError::Parts { wanted: count, given: parts.len() });
        }
        let mut hasher = self.begin(Kind::Key);
        for (source, part) in wanted.zip(parts) {
            if part.is_empty() {
                return Err(KeyError::EmptyPart);
            }
            if *source == KeySource::ClientIp {
                self.write_address(&mut hasher, address_of(part)?);
            } else {
                write_part(&mut hasher, |sink| sink(part.as_bytes()));
            }
        }
        Ok(hasher.finish128().into())
    }

    /// The key's value as sent, which `exempt` and `overrides` are compared with; the parts of a list are joined by commas. A
    /// list with a comma inside a part has no value, so that no client can shift one part's text into another. An address is
    /// the client's own, not its group's. `None` too when a part is missing, or when the key is `global`.
    #[must_use]
    pub fn value(&self, facts: &Facts<'_>) -> Option<Value> {
        let mut value = Value::new();
        for (index, source) in self.sources.iter().filter(|source| **source != KeySource::Global).enumerate() {
            if index > 0 {
                value.push(b',');
            }
            let start = value.len();
            match source {
                KeySource::ClientIp => value.extend_from_slice(facts.client.to_canonical().to_string().as_bytes()),
                other => other.read(facts, &mut |piece| value.extend_from_slice(piece)),
            }
            let part = &value[start..];
            if part.is_empty() || (self.sources.len() > 1 && part.contains(&b',')) {
                return None;
            }
        }
        (!value.is_empty()).then_some(value)
    }

    /// Which part of the key is the client's address, so that `overrides` may name addresses and networks.
    #[must_use]
    pub fn client_ip_part(&self) -> Option<usize> {
        let mut parts = self.sources.iter().filter(|source| **source != KeySource::Global);
        parts.position(|source| *source == KeySource::ClientIp)
    }

    /// Whether a part of the key may be a credential, so that its value is shown nowhere.
    #[must_use]
    pub fn is_secret(&self) -> bool {
        use KeySource::{Bearer, Cookie, Header, Query};
        self.sources.iter().any(|source| matches!(source, Header(_) | Cookie(_) | Query(_) | Bearer))
    }

    fn begin(&self, kind: Kind) -> SipHasher24 {
        let mut hasher = self.base;
        hasher.write(&[kind as u8]);
        hasher
    }

    fn write_address(&self, hasher: &mut SipHasher24, address: IpAddr) -> usize {
        write_part(hasher, |sink| match self.prefixes.group(address) {
            IpAddr::V4(v4) => sink(&v4.octets()),
            IpAddr::V6(v6) => sink(&v6.octets()),
        })
    }
}

/// Writes a part and then its length, which is known only when all pieces are seen: read from the end, a list of parts
/// has one reading. Tells the length.
fn write_part(hasher: &mut SipHasher24, read: impl FnOnce(&mut dyn FnMut(&[u8]))) -> usize {
    let mut length = 0;
    read(&mut |piece| {
        hasher.write(piece);
        length += piece.len();
    });
    hasher.write(&(length as u64).to_le_bytes());
    length
}

fn address_of(text: &str) -> Result<IpAddr, KeyError> {
    let network = || text.parse::<IpNet>().map(|network| network.addr());
    text.parse::<IpAddr>().or_else(|_| network()).map_err(|_| KeyError::Address(text.to_owned()))
}

#[cfg(test)]
mod tests;
