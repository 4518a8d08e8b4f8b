//! `exempt` and `overrides` of a limit: for whom it does not hold, or holds otherwise.

use super::limits::{Terms, read_quota};
use super::model::{Allowance, Matcher};
use super::reader::Value;
use super::settings::parse_network;
use super::text::Text;
use crate::identify::{KeySource, KeySpec};
use std::cmp::Reverse;
use std::collections::HashSet;

const NO_NETWORK: &str = "is no address and no CIDR, as a `client_ip` key needs; write one such as `10.0.0.0/8`";
const BROKEN_NETWORK: &str = "is no CIDR; write one such as `10.0.0.0/8`";

/// Addresses, CIDRs and, for other keys than `client_ip`, exact values.
pub fn read_exempt(value: &Value<'_>, key: &KeySpec) -> Vec<Matcher> {
    let texts = value.texts().unwrap_or_default();
    texts.iter().flat_map(|text| exempt(text, key)).collect()
}

/// A plain address may be meant either way where the key is another one: it then exempts the client and the value.
fn exempt(text: &Text<'_>, key: &KeySpec) -> Vec<Matcher> {
    let value = || Matcher::Value(text.expanded.clone());
    match parse_network(&text.expanded) {
        Some(network) if is_client_ip(key) || text.expanded.contains('/') => vec![Matcher::Net(network)],
        Some(network) => vec![Matcher::Net(network), value()],
        None if is_client_ip(key) => refuse(text, NO_NETWORK),
        None if resembles_network(&text.expanded) => refuse(text, BROKEN_NETWORK),
        None if text.expanded.is_empty() => {
            text.problem("is empty, and an empty value is a missing key; see `on_missing_key`");
            Vec::new()
        }
        None => vec![value()],
    }
}

fn refuse(text: &Text<'_>, predicate: &str) -> Vec<Matcher> {
    text.problem(predicate);
    Vec::new()
}

pub fn read_overrides(value: &Value<'_>, key: &KeySpec, terms: &Terms) -> Vec<(Matcher, Allowance)> {
    let Some(table) = value.table() else { return Vec::new() };
    let mut overrides: Vec<(Matcher, Allowance)> = Vec::new();
    let mut seen = HashSet::new();
    for (name, entry) in table.entries() {
        let entry = if is_secret(key) { entry.anonymous(&value.path) } else { entry };
        let matcher = matcher(&name, &entry, key);
        let allowance = allowance(&entry, terms);
        let Some((matcher, allowance)) = matcher.zip(allowance) else { continue };
        if !seen.insert(matcher.clone()) {
            entry.problem_at_key("another override of this limit is for the same key; leave one out");
        }
        overrides.push((matcher, allowance));
    }
    // The smallest network first: whoever takes the first that fits takes the most specific, whatever the order in the file.
    overrides.sort_by_key(|(matcher, _)| match matcher {
        Matcher::Net(network) => Reverse(network.prefix_len()),
        Matcher::Value(_) => Reverse(0),
    });
    overrides
}

fn matcher(name: &str, entry: &Value<'_>, key: &KeySpec) -> Option<Matcher> {
    let composed_of_client_ip = key.sources.contains(&KeySource::ClientIp);
    match parse_network(name) {
        Some(network) if composed_of_client_ip => Some(Matcher::Net(network)),
        None if is_client_ip(key) => {
            entry.problem_at_key(
                "an override of a `client_ip` key is named by an address or a CIDR; write one such as `10.0.0.0/8`",
            );
            None
        }
        None if resembles_network(name) => {
            entry.problem_at_key("the name looks like a CIDR and is none; write one such as `10.0.0.0/8`");
            None
        }
        _ => Some(Matcher::Value(name.to_owned())),
    }
}

fn allowance(entry: &Value<'_>, terms: &Terms) -> Option<Allowance> {
    if entry.raw.get_ref().as_str() == Some("unlimited") {
        return Some(Allowance::Unlimited);
    }
    if !entry.is_table() {
        entry.problem("expected a table such as `{ quota = \"5000/1m\" }`, or `\"unlimited\"`");
        return None;
    }
    let table = entry.table()?;
    let allowance = read_quota(&table, terms);
    table.finish();
    allowance
}

fn is_client_ip(key: &KeySpec) -> bool {
    key.sources == [KeySource::ClientIp]
}

/// Whether the names of overrides may be credentials, which no error shows.
fn is_secret(key: &KeySpec) -> bool {
    key.sources.iter().any(|source| match source {
        KeySource::Bearer | KeySource::Cookie(_) | KeySource::Query(_) => true,
        KeySource::Header(name) => ["auth", "key", "token", "secret"].iter().any(|part| name.as_str().contains(part)),
        _ => false,
    })
}

/// Digits after the last slash and nothing but an address's signs before it: a CIDR with a slip, and hardly a key's value.
fn resembles_network(text: &str) -> bool {
    let Some((address, length)) = text.rsplit_once('/') else { return false };
    let is_address =
        address.contains(['.', ':']) && address.bytes().all(|byte| byte.is_ascii_hexdigit() || b".:".contains(&byte));
    is_address && !length.is_empty() && length.bytes().all(|byte| byte.is_ascii_digit())
}
