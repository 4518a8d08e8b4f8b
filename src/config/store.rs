//! `[store]` and `[store.redis]`: where counters live. What is wrong with a node's URL is said without showing it.

use super::address::{Authority, parse_authority};
use super::listeners::narrow;
use super::model::{Backend, Breaker, Node, OnFailure, Redis, Store, Topology};
use super::reader::{Table, Value};
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
enum TopologyName {
    Sharded,
    Cluster,
    Sentinel,
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
    let names =
        [("sharded", TopologyName::Sharded), ("cluster", TopologyName::Cluster), ("sentinel", TopologyName::Sentinel)];
    let name = table.choice("topology", TopologyName::Sharded, &names);
    let topology = read_topology(table, name);
    let nodes = table
        .required("nodes", "one such as `nodes = [\"redis://127.0.0.1:6379\"]`")
        .map(|value| read_nodes(&value, name));
    let timeout = table.duration("timeout", Duration::from_millis(50), &TIMEOUTS);
    let breaker = table.table("breaker").map(|table| read_breaker(&table));
    table.finish();
    let breaker = breaker.unwrap_or(Breaker { failures: 5, retry_after: Duration::from_millis(500) });
    Redis { topology, nodes: nodes.unwrap_or_default(), timeout, breaker }
}

fn read_topology(table: &Table<'_>, name: TopologyName) -> Topology {
    let given = table.get("sentinel_master");
    if name == TopologyName::Sentinel {
        let value = given.or_else(|| {
            table.required(
                "sentinel_master",
                "the primary's name as the sentinels have it, such as `sentinel_master = \"mymaster\"`",
            )
        });
        return Topology::Sentinel { master: value.and_then(|value| node_name(&value)).unwrap_or_default() };
    }
    if let Some(value) = given {
        value.problem_at_key("is for `topology = \"sentinel\"` alone; leave it out, or write that");
    }
    if name == TopologyName::Cluster { Topology::Cluster } else { Topology::Sharded }
}

fn read_breaker(table: &Table<'_>) -> Breaker {
    let failures = table.integer("failures", 5, 1..=1_000_000);
    let retry_after = table.duration("retry_after", Duration::from_millis(500), &TIMEOUTS);
    table.finish();
    Breaker { failures: u32::try_from(failures).unwrap_or(5), retry_after }
}

fn read_nodes(value: &Value<'_>, topology: TopologyName) -> Vec<Node> {
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
        if let Some(wrong) = misfit(&node, nodes.first(), topology) {
            item.problem(wrong);
        }
        nodes.push(node);
    }
    nodes
}

/// What a node's URL may not say where the nodes belong together.
fn misfit(node: &Node, first: Option<&Node>, topology: TopologyName) -> Option<&'static str> {
    let mine = url_parts(node.url.reveal())?;
    let first = first.and_then(|first| url_parts(first.url.reveal())).unwrap_or(mine);
    match topology {
        TopologyName::Sharded => None,
        _ if (mine.scheme, mine.credentials) != (first.scheme, first.credentials) => {
            Some("scheme, user or password differ from the first node's; nodes of one topology are entered alike")
        }
        TopologyName::Cluster if !["", "0"].contains(&mine.database) => {
            Some("a cluster has no database but 0; leave the number out")
        }
        TopologyName::Sentinel if mine.database != first.database => {
            Some("the database differs from the first node's; it is the primary's, and there is one primary")
        }
        TopologyName::Sentinel if !mine.place.contains("]:") && mine.place.matches(':').count() != 1 => {
            Some("the URL of a sentinel needs its port, mostly 26379")
        }
        TopologyName::Cluster | TopologyName::Sentinel => None,
    }
}

#[derive(Clone, Copy)]
struct UrlParts<'a> {
    scheme: &'a str,
    credentials: &'a str,
    /// Host and port.
    place: &'a str,
    database: &'a str,
}

fn url_parts(url: &str) -> Option<UrlParts<'_>> {
    let (scheme, rest) = url.split_once("://").filter(|(scheme, _)| ["redis", "rediss"].contains(scheme))?;
    let (authority, database) = rest.split_once('/').unwrap_or((rest, ""));
    let (credentials, place) = authority.rsplit_once('@').unwrap_or(("", authority));
    Some(UrlParts { scheme, credentials, place, database })
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
    let UrlParts { credentials, place, database, .. } =
        url_parts(url).ok_or("the URL does not start with `redis://` or `rediss://`")?;
    if !database.is_empty()
        && !database.parse::<u16>().is_ok_and(|_| database.bytes().all(|byte| byte.is_ascii_digit()))
    {
        return Err(
            "the URL's path is no database number (signs such as `/`, `?`, `#` and `@` in a password are written percent-encoded)",
        );
    }
    if credentials.bytes().any(|byte| !byte.is_ascii_graphic() || b"@?#[]".contains(&byte)) {
        return Err("the URL's user or password has signs that must be percent-encoded");
    }
    parse_authority(place, REDIS_PORT).ok_or("the URL has no valid host and port")
}
