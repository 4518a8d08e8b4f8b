//! `[[listeners]]` and `[admin]`: where the gateway is spoken to, and the bounds of each connection.

use super::model::{Admin, Listener};
use super::reader::{Table, Value};
use super::tls::read_tls;
use crate::units::Secret;
use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::time::Duration;

pub const CONNECTIONS: RangeInclusive<u64> = 1..=1_000_000;
/// hyper's read buffer is never smaller than 8 KiB.
const HEADER_BYTES: RangeInclusive<u64> = 8 << 10..=1 << 20;
pub const TIMEOUTS: RangeInclusive<Duration> = Duration::from_millis(1)..=Duration::from_hours(24);

pub fn read_listeners(root: &Table<'_>, taken: &mut Vec<SocketAddr>) -> Vec<Listener> {
    let Some(value) = root.required("listeners", "at least one `[[listeners]]` with an `address`") else {
        return Vec::new();
    };
    let Some(items) = value.array("tables") else { return Vec::new() };
    if items.is_empty() {
        value.problem("no listener; write at least one `[[listeners]]` with an `address`");
    }
    items.iter().filter_map(|item| read_listener(&item.table()?, taken)).collect()
}

fn read_listener(table: &Table<'_>, taken: &mut Vec<SocketAddr>) -> Option<Listener> {
    let address = table
        .required("address", "one such as `address = \"127.0.0.1:8080\"`")
        .and_then(|value| read_address(&value, taken));
    let max_body_bytes = table.get("max_body_bytes").map_or(Some(10 << 20), |value| body_bytes(&value));
    let listener = Listener {
        address: address.unwrap_or_else(|| SocketAddr::from(([127, 0, 0, 1], 0))),
        tls: read_tls(table),
        proxy_protocol: table.boolean("proxy_protocol", false),
        max_connections: narrow(table.integer("max_connections", 10_000, CONNECTIONS)),
        max_connections_per_client: table
            .get("max_connections_per_client")
            .filter(|value| !is_unlimited(value))
            .and_then(|value| value.integer(CONNECTIONS))
            .map(narrow),
        header_timeout: table.duration("header_timeout", Duration::from_secs(10), &TIMEOUTS),
        keep_alive_timeout: table.duration("keep_alive_timeout", Duration::from_secs(75), &TIMEOUTS),
        max_header_bytes: table
            .get("max_header_bytes")
            .and_then(|value| value.size(HEADER_BYTES))
            .map_or(64 << 10, narrow),
        max_body_bytes,
    };
    table.finish();
    address.map(|_| listener)
}

/// Every number that is narrowed here was bounded when it was read.
pub fn narrow(number: u64) -> usize {
    usize::try_from(number).unwrap_or(usize::MAX)
}

fn is_unlimited(value: &Value<'_>) -> bool {
    value.raw.get_ref().as_str() == Some("unlimited")
}

/// `None`: unlimited.
fn body_bytes(value: &Value<'_>) -> Option<u64> {
    if is_unlimited(value) { None } else { value.size(0..=crate::units::NUMBER_MAX) }
}

/// No two sockets can have one address; port 0 is a new one each time.
fn read_address(value: &Value<'_>, taken: &mut Vec<SocketAddr>) -> Option<SocketAddr> {
    let text = value.text()?;
    let address: SocketAddr = text.parsed(|text| {
        text.parse().map_err(|_| {
            "is no address with a port; write one such as `127.0.0.1:8080`, `0.0.0.0:8080` or `[::]:8080`".into()
        })
    })?;
    if taken.contains(&address) {
        text.problem("is the address of another listener; give each its own");
    }
    if address.port() != 0 {
        taken.push(address);
    }
    Some(address)
}

pub fn read_admin(root: &Table<'_>, taken: &mut Vec<SocketAddr>) -> Option<Admin> {
    let table = root.table("admin")?;
    let place = table.required("address", "one such as `address = \"127.0.0.1:9090\"`");
    let address = place.as_ref().and_then(|value| read_address(value, taken));
    let token_value = table.get("token");
    let secret = token_value.as_ref().and_then(read_token);
    table.finish();
    if let (Some(address), Some(place), None) = (address, place, token_value)
        && !address.ip().is_loopback()
    {
        place.problem("this address is reached from other machines, and there is no token; set `token`, or write a loopback address such as `127.0.0.1:9090`");
    }
    Some(Admin { address: address?, token: secret })
}

/// What is wrong with a token is said without showing it.
fn read_token(value: &Value<'_>) -> Option<Secret> {
    let text = value.text()?.expanded;
    if text.is_empty() {
        value.problem("the token is empty; write a long random text, or leave the key out");
        return None;
    }
    if !text.bytes().all(|byte| byte.is_ascii_graphic()) {
        value.problem(
            "the token has signs that no `Authorization: Bearer` can carry; write visible ASCII without spaces",
        );
        return None;
    }
    Some(Secret::new(text))
}
