//! `[upstreams.NAME]`: where requests go, and how long that may take.

use super::address::parse_authority;
use super::listeners::TIMEOUTS;
use super::model::{Endpoint, Upstream};
use super::reader::{NOT_SUPPORTED, Table, Value};
use super::upstream_tls;
use crate::units::Wrong;
use std::time::Duration;

const WEIGHT_MAX: u64 = 10_000;
const RETRIES_MAX: u64 = 10;

/// Every upstream that the file names, also faulty ones: a route that names them is right in that.
pub fn read_upstreams(root: &Table<'_>) -> Vec<Upstream> {
    let Some(table) = root.required("upstreams", "at least one, such as `[upstreams.api]` with `endpoints`") else {
        return Vec::new();
    };
    let Some(table) = table.table() else { return Vec::new() };
    let entries = table.entries();
    entries.into_iter().map(|(name, value)| read_upstream(name, &value)).collect()
}

fn read_upstream(name: String, value: &Value<'_>) -> Upstream {
    value.check_name(&name);
    let second = Duration::from_secs;
    let mut upstream = Upstream {
        name,
        endpoints: Vec::new(),
        connect_timeout: second(1),
        response_timeout: second(30),
        idle_timeout: second(60),
        retries: 1,
        http2: false,
        tls: None,
    };
    let Some(table) = value.table() else { return upstream };
    if let Some(endpoints) = table.required("endpoints", "one such as `endpoints = [\"http://127.0.0.1:3000\"]`") {
        upstream.endpoints = read_endpoints(&endpoints);
    }
    later(&table);
    upstream.http2 = table.boolean("http2", false);
    let https = upstream.endpoints.iter().any(|endpoint| endpoint.https);
    upstream.tls = upstream_tls::read(&table, https);
    upstream.connect_timeout = table.duration("connect_timeout", upstream.connect_timeout, &TIMEOUTS);
    upstream.response_timeout = table.duration("response_timeout", upstream.response_timeout, &TIMEOUTS);
    upstream.idle_timeout = table.duration("idle_timeout", upstream.idle_timeout, &TIMEOUTS);
    upstream.retries = u32::try_from(table.integer("retries", 1, 0..=RETRIES_MAX)).unwrap_or(1);
    table.finish();
    upstream
}

/// The keys whose features are still to come.
fn later(table: &Table<'_>) {
    if let Some(value) = table.get("balance")
        && value.choice(&[("round_robin", true), ("least_requests", false), ("consistent_hash", false)]) == Some(false)
    {
        value.problem(NOT_SUPPORTED);
    }
    if let Some(value) = table.get("health") {
        value.problem_at_key(NOT_SUPPORTED);
    }
}

fn read_endpoints(value: &Value<'_>) -> Vec<Endpoint> {
    let Some(items) = value.array("endpoint URLs") else { return Vec::new() };
    if items.is_empty() {
        value.problem("no endpoint; write at least one, such as `endpoints = [\"http://127.0.0.1:3000\"]`");
    }
    items.iter().filter_map(read_endpoint).collect()
}

fn read_endpoint(value: &Value<'_>) -> Option<Endpoint> {
    if value.is_string() {
        return endpoint(value, 1);
    }
    if !value.is_table() {
        value.expected("a URL such as `\"http://127.0.0.1:3000\"`, or a table with `url` and `weight`");
        return None;
    }
    let table = value.table()?;
    let weight = u32::try_from(table.integer("weight", 1, 1..=WEIGHT_MAX)).unwrap_or(1);
    let url = table.required("url", "one such as `url = \"http://127.0.0.1:3000\"`");
    let endpoint = url.and_then(|value| endpoint(&value, weight));
    table.finish();
    endpoint
}

fn endpoint(value: &Value<'_>, weight: u32) -> Option<Endpoint> {
    value.text()?.parsed(|url| {
        let (https, rest) = split_scheme(url)?;
        if rest.contains('@') {
            return Err("has a user in it; an endpoint is only `http://host:port` or `https://host:port`".into());
        }
        if rest.contains(['/', '?', '#']) {
            return Err(
                "has more than a host and a port; an endpoint is only `http://host:port` or `https://host:port`".into(),
            );
        }
        let authority = parse_authority(rest, if https { 443 } else { 80 })
            .ok_or("has no valid host and port; write one such as `http://127.0.0.1:3000`")?;
        Ok(Endpoint { host: authority.host, port: authority.port, https, weight })
    })
}

/// Says whether it is `https`.
fn split_scheme(url: &str) -> Result<(bool, &str), Wrong> {
    let (scheme, rest) = url.split_once("://").unwrap_or(("", url));
    match scheme.to_ascii_lowercase().as_str() {
        "http" => Ok((false, rest)),
        "https" => Ok((true, rest)),
        _ => Err("is no endpoint; write one such as `http://127.0.0.1:3000` or `https://10.0.0.1`".into()),
    }
}
