//! `[upstreams.NAME]`: where requests go, and how long that may take.

use super::address::parse_authority;
use super::listeners::{CONNECTIONS, TIMEOUTS, narrow};
use super::model::{Balance, Ejection, Endpoint, Health, Upstream};
use super::reader::{Table, Value};
use super::upstream_tls;
use crate::units::{self, Wrong};
use std::net::{IpAddr, SocketAddr};
use std::ops::RangeInclusive;
use std::time::Duration;

const WEIGHT_MAX: u64 = 10_000;
const RETRIES_MAX: u64 = 10;
/// In a row: more would be weeks.
const TIMES: RangeInclusive<u64> = 1..=1000;
const BALANCES: [(&str, Balance); 3] = [
    ("round_robin", Balance::RoundRobin),
    ("least_requests", Balance::LeastRequests),
    ("consistent_hash", Balance::ConsistentHash),
];
/// A check sooner than that is load.
const INTERVALS: RangeInclusive<Duration> = Duration::from_millis(10)..=Duration::from_hours(1);
const EJECTIONS: RangeInclusive<Duration> = Duration::from_millis(100)..=Duration::from_hours(24);
const SLOW_STARTS: RangeInclusive<Duration> = Duration::ZERO..=Duration::from_hours(1);
const RESOLVE_EVERY: RangeInclusive<Duration> = Duration::from_secs(1)..=Duration::from_hours(24);

/// Every upstream that the file names, also faulty ones: a route that names them is right in that. `admin`: where no request
/// may lead to.
pub fn read_upstreams(root: &Table<'_>, admin: Option<SocketAddr>) -> Vec<Upstream> {
    let Some(table) = root.required("upstreams", "at least one, such as `[upstreams.api]` with `endpoints`") else {
        return Vec::new();
    };
    let Some(table) = table.table() else { return Vec::new() };
    let entries = table.entries();
    entries.into_iter().map(|(name, value)| read_upstream(name, &value, admin)).collect()
}

fn read_upstream(name: String, value: &Value<'_>, admin: Option<SocketAddr>) -> Upstream {
    value.check_name(&name);
    let second = Duration::from_secs;
    let mut upstream = Upstream {
        name,
        endpoints: Vec::new(),
        balance: Balance::RoundRobin,
        connect_timeout: second(1),
        response_timeout: second(30),
        idle_timeout: second(60),
        retries: 1,
        http2: false,
        tls: None,
        retry_budget: 20,
        health: None,
        ejection: Ejection { failures: 5, base_time: second(10), max_time: second(300) },
        slow_start: Duration::ZERO,
        max_connections: None,
        resolve_every: second(30),
    };
    let Some(table) = value.table() else { return upstream };
    if let Some(endpoints) = table.required("endpoints", "one such as `endpoints = [\"http://127.0.0.1:3000\"]`") {
        upstream.endpoints = read_endpoints(&endpoints, admin);
    }
    upstream.http2 = table.boolean("http2", false);
    let https = upstream.endpoints.iter().any(|endpoint| endpoint.https);
    upstream.tls = upstream_tls::read(&table, https);
    upstream.balance = table.choice("balance", upstream.balance, &BALANCES);
    upstream.connect_timeout = table.duration("connect_timeout", upstream.connect_timeout, &TIMEOUTS);
    upstream.response_timeout = table.duration("response_timeout", upstream.response_timeout, &TIMEOUTS);
    upstream.idle_timeout = table.duration("idle_timeout", upstream.idle_timeout, &TIMEOUTS);
    upstream.retries = times(&table, "retries", upstream.retries, 0..=RETRIES_MAX);
    if let Some(percent) = table.get("retry_budget").and_then(|value| value.text()?.parsed(units::parse_percent)) {
        upstream.retry_budget = percent;
    }
    upstream.health = table.table("health").and_then(|table| read_health(&table));
    if let Some(table) = table.table("ejection") {
        upstream.ejection = read_ejection(&table, upstream.ejection);
    }
    upstream.slow_start = table.duration("slow_start", upstream.slow_start, &SLOW_STARTS);
    upstream.max_connections = table.get("max_connections").and_then(|value| value.integer(CONNECTIONS)).map(narrow);
    upstream.resolve_every = table.duration("resolve_every", upstream.resolve_every, &RESOLVE_EVERY);
    table.finish();
    upstream
}

fn read_health(table: &Table<'_>) -> Option<Health> {
    let path = table.required("path", "one such as `path = \"/healthz\"`").and_then(|value| {
        value.text()?.parsed(|path| {
            let sound = path.starts_with('/') && path.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'#');
            let wrong = "is no path; write one such as `/healthz`, in visible ASCII without spaces";
            if sound { Ok(path.to_owned()) } else { Err(wrong.into()) }
        })
    });
    let status = table.get("status").and_then(|value| value.integer(200..=599));
    let health = Health {
        path: path.clone().unwrap_or_default(),
        interval: table.duration("interval", Duration::from_secs(5), &INTERVALS),
        timeout: table.duration("timeout", Duration::from_secs(1), &TIMEOUTS),
        unhealthy_after: times(table, "unhealthy_after", 3, TIMES),
        healthy_after: times(table, "healthy_after", 2, TIMES),
        status: status.and_then(|status| u16::try_from(status).ok()),
    };
    table.finish();
    path.map(|_| health)
}

fn read_ejection(table: &Table<'_>, default: Ejection) -> Ejection {
    let ejection = Ejection {
        failures: times(table, "failures", default.failures, 0..=*TIMES.end()),
        base_time: table.duration("base_time", default.base_time, &EJECTIONS),
        max_time: table.duration("max_time", default.max_time, &EJECTIONS),
    };
    if ejection.max_time < ejection.base_time {
        table.problem("`max_time` is less than `base_time`; write one that is at least as long");
    }
    table.finish();
    ejection
}

fn times(table: &Table<'_>, key: &'static str, default: u32, range: RangeInclusive<u64>) -> u32 {
    u32::try_from(table.integer(key, u64::from(default), range)).unwrap_or(default)
}

fn read_endpoints(value: &Value<'_>, admin: Option<SocketAddr>) -> Vec<Endpoint> {
    let Some(items) = value.array("endpoint URLs") else { return Vec::new() };
    if items.is_empty() {
        value.problem("no endpoint; write at least one, such as `endpoints = [\"http://127.0.0.1:3000\"]`");
    }
    items.iter().filter_map(|item| read_endpoint(item, admin)).collect()
}

fn read_endpoint(value: &Value<'_>, admin: Option<SocketAddr>) -> Option<Endpoint> {
    if value.is_string() {
        return endpoint(value, 1, admin);
    }
    if !value.is_table() {
        value.expected("a URL such as `\"http://127.0.0.1:3000\"`, or a table with `url` and `weight`");
        return None;
    }
    let table = value.table()?;
    let weight = u32::try_from(table.integer("weight", 1, 1..=WEIGHT_MAX)).unwrap_or(1);
    let url = table.required("url", "one such as `url = \"http://127.0.0.1:3000\"`");
    let endpoint = url.and_then(|value| endpoint(&value, weight, admin));
    table.finish();
    endpoint
}

fn endpoint(value: &Value<'_>, weight: u32, admin: Option<SocketAddr>) -> Option<Endpoint> {
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
        if admin.is_some_and(|admin| leads_to(admin, &authority.host, authority.port)) {
            return Err("leads to the admin listener, which no request may reach; write where the API is".into());
        }
        Ok(Endpoint { host: authority.host, port: authority.port, https, weight })
    })
}

/// Whether this machine would connect to its own admin listener there. What other names and this machine's other addresses
/// lead to cannot be told from the file.
fn leads_to(admin: SocketAddr, host: &str, port: u16) -> bool {
    let own = admin.ip().to_canonical();
    let everywhere = own.is_unspecified();
    if port != admin.port() {
        return false;
    }
    let host = host.strip_suffix('.').unwrap_or(host);
    match host.parse::<IpAddr>().map(|ip| ip.to_canonical()) {
        // Connecting to the unspecified address is connecting to loopback.
        Ok(ip) if ip.is_unspecified() => everywhere || own.is_loopback(),
        Ok(ip) => ip == own || (everywhere && ip.is_loopback()),
        Err(_) => (host == "localhost" || host.ends_with(".localhost")) && (everywhere || own.is_loopback()),
    }
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
