//! One counter: `/limits/POLICY/LIMIT?key=K`. A key of several parts is `key=A&key=B`, in the order of the limit's sources;
//! a `global` limit needs none. Everything is percent-decoded once; `+` is a plus.

use crate::respond::page::Denied;
use serde::Serialize;

/// Which counter a call is about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Counter {
    pub policy: String,
    pub limit: String,
    /// The key's parts as a request would bring them; any bytes.
    pub key: Vec<Vec<u8>>,
}

/// The shape of `GET /limits/POLICY/LIMIT?key=K`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct CounterView {
    pub policy: String,
    pub limit: String,
    pub algorithm: String,
    /// As in the file, after overrides: `100/1m`.
    pub quota: String,
    /// What a whole counter holds: the quota's number, or the burst.
    pub capacity: u64,
    pub remaining: u64,
    /// Until it is whole again, rounded up.
    pub reset_ms: u64,
    /// Where it lives: a shard's name; `null`: this process.
    pub shard: Option<String>,
}

impl Counter {
    /// From what follows `/limits/` in the path, and the query.
    pub(super) fn parse(names: &str, query: Option<&str>) -> Result<Self, Denied> {
        let shape = || Denied::NotFound("A counter is at /limits/POLICY/LIMIT?key=KEY.".to_owned());
        let (policy, limit) = names.split_once('/').ok_or_else(shape)?;
        if policy.is_empty() || limit.is_empty() || limit.contains('/') {
            return Err(shape());
        }
        let mut key = Vec::new();
        for pair in query.unwrap_or_default().split('&').filter(|pair| !pair.is_empty()) {
            match pair.split_once('=') {
                Some(("key", value)) => key.push(decoded(value)?),
                _ => return Err(Denied::BadRequest("The only parameter is key=KEY.".to_owned())),
            }
        }
        Ok(Self { policy: name(policy)?, limit: name(limit)?, key })
    }
}

fn name(text: &str) -> Result<String, Denied> {
    String::from_utf8(decoded(text)?).map_err(|_| Denied::BadRequest("A name is UTF-8.".to_owned()))
}

fn decoded(text: &str) -> Result<Vec<u8>, Denied> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        if byte != b'%' {
            bytes.push(byte);
            continue;
        }
        let escape = rest.next().and_then(hex).zip(rest.next().and_then(hex));
        let Some((high, low)) = escape else {
            return Err(Denied::BadRequest("A % is followed by two hexadecimal digits.".to_owned()));
        };
        bytes.push(high << 4 | low);
    }
    Ok(bytes)
}

fn hex(byte: u8) -> Option<u8> {
    char::from(byte).to_digit(16).and_then(|digit| u8::try_from(digit).ok())
}
