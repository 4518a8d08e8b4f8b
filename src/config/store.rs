//! `[store]` and `[store.redis]`: where counters live. What is wrong with a node's URL is said without showing it.

use super::address::{Authority, parse_authority};
use super::listeners::narrow;
use super::model::{Backend, Breaker, Node, OnFailure, Redis, Store};
use super::reader::{NOT_SUPPORTED, Table, Value};
use crate::units::Secret;
use std::ops::RangeInclusive;
use std::time::Duration;

pub const ON_FAILURE: [(&str, OnFailure); 3] =
    [("local", OnFailure::Local), ("open", OnFailure::Open), ("closed", OnFailure::Closed)];

const KEYS: RangeInclusive<u64> = 1..=1_000_000_000;
const TIMEOUTS: RangeInclusive<Duration> = Duration::from_millis(1)..=Duration::from_mins(1);
const REDIS_PORT: u16 = 6379;
const KEY_PREFIX_BYTES_MAX: usize = 64;

#[derive(Clone, Copy, PartialEq)]
enum BackendName {
    Memory,
    Redis,
}

#[derive(Clone, Copy, PartialEq)]
enum Topology {
    Sharded,
    Later,
}

pub fn read_store(root: &Table<'_>) -> Store {
    let mut store = Store {
        backend: Backend::Memory,
        max_keys: 1_000_000,
        on_failure: OnFailure::Local,
        key_prefix: "staunch".to_owned(),
    };
    let Some(table) = root.table("store") else { return store };
    let names = [("memory", BackendName::Memory), ("redis", BackendName::Redis)];
    let backend = table.choice("backend", BackendName::Memory, &names);
    store.max_keys = narrow(table.integer("max_keys", 1_000_000, KEYS));
    store.on_failure = table.choice("on_failure", OnFailure::Local, &ON_FAILURE);
    if let Some(prefix) = table.get("key_prefix").and_then(|value| key_prefix(&value)) {
        store.key_prefix = prefix;
    }
    // Read with the memory backend too: one line switches back and forth, and its mistakes are found before that.
    let redis = table.table("redis").map(|table| read_redis(&table));
    table.finish();
    if backend == BackendName::Redis {
        match redis {
            Some(redis) => store.backend = Backend::Redis(redis),
            None => table.problem(
                "`backend = \"redis\"` needs `[store.redis]` with `nodes`; write it, or `backend = \"memory\"`",
            ),
        }
    }
    store
}

/// Braces would choose a cluster's slot.
fn key_prefix(value: &Value<'_>) -> Option<String> {
    value.text()?.parsed(|text| {
        let sound = text.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'{' && byte != b'}');
        if sound && (1..=KEY_PREFIX_BYTES_MAX).contains(&text.len()) {
            Ok(text.to_owned())
        } else {
            Err("is no key prefix; write 1 to 64 visible ASCII characters without spaces and braces".into())
        }
    })
}

fn read_redis(table: &Table<'_>) -> Redis {
    let topologies = [("sharded", Topology::Sharded), ("cluster", Topology::Later), ("sentinel", Topology::Later)];
    if let Some(value) = table.get("topology")
        && value.choice(&topologies) == Some(Topology::Later)
    {
        value.problem(NOT_SUPPORTED);
    }
    if let Some(value) = table.get("sentinel_master") {
        value.problem_at_key(NOT_SUPPORTED);
    }
    let nodes =
        table.required("nodes", "one such as `nodes = [\"redis://127.0.0.1:6379\"]`").map(|value| read_nodes(&value));
    let timeout = table.duration("timeout", Duration::from_millis(50), &TIMEOUTS);
    let breaker = table.table("breaker").map(|table| read_breaker(&table));
    table.finish();
    let breaker = breaker.unwrap_or(Breaker { failures: 5, retry_after: Duration::from_millis(500) });
    Redis { nodes: nodes.unwrap_or_default(), timeout, breaker }
}

fn read_breaker(table: &Table<'_>) -> Breaker {
    let failures = table.integer("failures", 5, 1..=1_000_000);
    let retry_after = table.duration("retry_after", Duration::from_millis(500), &TIMEOUTS);
    table.finish();
    Breaker { failures: u32::try_from(failures).unwrap_or(5), retry_after }
}

fn read_nodes(value: &Value<'_>) -> Vec<Node> {
    let Some(items) = value.array("node URLs") else { return Vec::new() };
    if items.is_empty() {
        value.problem("no node; write at least one, such as `nodes = [\"redis://127.0.0.1:6379\"]`");
    }
    let mut nodes: Vec<Node> = Vec::new();
    for item in &items {
        let Some(node) = read_node(item) else { continue };
        if nodes.iter().any(|other| other.name == node.name) {
            // Not shown: parts of a URL may come from the environment.
            item.problem("another node has this name (a plain URL is named by its host and port); give each its own with `{ name = \"…\", url = \"…\" }`");
        }
        nodes.push(node);
    }
    nodes
}

fn read_node(value: &Value<'_>) -> Option<Node> {
    if value.is_string() {
        return node(value, None);
    }
    if !value.is_table() {
        value.expected("a URL such as `\"redis://127.0.0.1:6379\"`, or a table with `name` and `url`");
        return None;
    }
    let table = value.table()?;
    let name = table.get("name").and_then(|value| node_name(&value));
    let url =
        table.required("url", "one such as `url = \"redis://127.0.0.1:6379\"`").and_then(|value| node(&value, name));
    table.finish();
    url
}

/// Names are in metrics, logs and the ring: printable, and not endless.
fn node_name(value: &Value<'_>) -> Option<String> {
    value.text()?.parsed(|text| {
        let sound = !text.is_empty() && text.len() <= 128 && text.bytes().all(|byte| byte.is_ascii_graphic());
        if sound {
            Ok(text.to_owned())
        } else {
            Err("is no name; write 1 to 128 visible ASCII characters without spaces".into())
        }
    })
}

fn node(value: &Value<'_>, name: Option<String>) -> Option<Node> {
    let url = value.text()?.expanded;
    match node_address(&url) {
        Ok(address) => Some(Node { name: name.unwrap_or_else(|| address.to_string()), url: Secret::new(url) }),
        Err(wrong) => {
            value.problem(&format!(
                "{wrong}; write one such as `redis://127.0.0.1:6379` or `rediss://user:${{PASSWORD}}@cache:6379/0`"
            ));
            None
        }
    }
}

fn node_address(url: &str) -> Result<Authority, &'static str> {
    let Some(rest) = url.strip_prefix("redis://").or_else(|| url.strip_prefix("rediss://")) else {
        return Err("the URL does not start with `redis://` or `rediss://`");
    };
    let (authority, database) = rest.split_once('/').unwrap_or((rest, ""));
    if !database.is_empty()
        && !database.parse::<u16>().is_ok_and(|_| database.bytes().all(|byte| byte.is_ascii_digit()))
    {
        return Err(
            "the URL's path is no database number (signs such as `/`, `?`, `#` and `@` in a password are written percent-encoded)",
        );
    }
    let (credentials, place) = authority.rsplit_once('@').unwrap_or(("", authority));
    if credentials.bytes().any(|byte| !byte.is_ascii_graphic() || b"@?#[]".contains(&byte)) {
        return Err("the URL's user or password has signs that must be percent-encoded");
    }
    parse_authority(place, REDIS_PORT).ok_or("the URL has no valid host and port")
}
