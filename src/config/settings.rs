//! The tables with one value per key: `[client_ip]`, `[hot_keys]`, `[log]`, `[responses]`.

use super::listeners::narrow;
use super::model::{AccessLog, ClientIp, HotKeys, Log, LogFormat, RefusalBody, ResetForm, Responses};
use super::reader::{Table, Value};
use super::text::Text;
use http::{HeaderName, HeaderValue};
use ipnet::{IpNet, Ipv4Net};
use std::net::{IpAddr, Ipv6Addr};
use std::time::Duration;
use tracing::level_filters::LevelFilter;

pub fn read_client_ip(root: &Table<'_>) -> ClientIp {
    let mut settings = ClientIp {
        trusted_proxies: Vec::new(),
        header: "x-forwarded-for".to_owned(),
        ipv4_prefix: 32,
        ipv6_prefix: 64,
    };
    let Some(table) = root.table("client_ip") else { return settings };
    if let Some(texts) = table.get("trusted_proxies").and_then(|value| value.texts()) {
        settings.trusted_proxies = texts.iter().filter_map(network).collect();
    }
    if let Some(header) = table.get("header").and_then(|value| header_name(&value.text()?)) {
        header.as_str().clone_into(&mut settings.header);
    }
    settings.ipv4_prefix = prefix(&table, "ipv4_prefix", 32, 32);
    settings.ipv6_prefix = prefix(&table, "ipv6_prefix", 64, 128);
    table.finish();
    settings
}

fn prefix(table: &Table<'_>, key: &'static str, default: u8, longest: u8) -> u8 {
    u8::try_from(table.integer(key, u64::from(default), 0..=u64::from(longest))).unwrap_or(default)
}

pub fn header_name(text: &Text<'_>) -> Option<HeaderName> {
    text.parsed(|text| {
        HeaderName::from_bytes(text.as_bytes())
            .map_err(|_| "is no header name; write letters, digits and `-`, such as `x-forwarded-for`".into())
    })
}

fn network(text: &Text<'_>) -> Option<IpNet> {
    text.parsed(|text| {
        parse_network(text).ok_or("is no address and no CIDR; write one such as `10.0.0.0/8` or `fd00::/8`".into())
    })
}

/// An address or a CIDR. A mapped IPv4 address is the IPv4 address it means, as a client's is.
pub fn parse_network(text: &str) -> Option<IpNet> {
    let network = text.parse::<IpNet>().or_else(|_| text.parse::<IpAddr>().map(IpNet::from)).ok()?;
    Some(unmapped(network).trunc())
}

fn unmapped(network: IpNet) -> IpNet {
    let IpNet::V6(wide) = network else { return network };
    let ipv4 = Ipv6Addr::to_ipv4_mapped(&wide.addr()).zip(wide.prefix_len().checked_sub(96));
    ipv4.and_then(|(address, length)| Ipv4Net::new(address, length).ok()).map_or(network, IpNet::V4)
}

pub fn read_hot_keys(root: &Table<'_>) -> HotKeys {
    let mut settings = HotKeys { ttl: Duration::from_millis(10), capacity: 100_000 };
    let Some(table) = root.table("hot_keys") else { return settings };
    settings.ttl = table.duration("ttl", settings.ttl, &(Duration::ZERO..=Duration::from_mins(1)));
    settings.capacity = narrow(table.integer("capacity", 100_000, 1..=100_000_000));
    table.finish();
    settings
}

const LEVELS: [(&str, LevelFilter); 6] = [
    ("info", LevelFilter::INFO),
    ("debug", LevelFilter::DEBUG),
    ("trace", LevelFilter::TRACE),
    ("warn", LevelFilter::WARN),
    ("error", LevelFilter::ERROR),
    ("off", LevelFilter::OFF),
];

pub fn read_log(root: &Table<'_>) -> Log {
    let mut settings = Log { level: LevelFilter::INFO, format: LogFormat::Text, access: AccessLog::All };
    let Some(table) = root.table("log") else { return settings };
    settings.level = table.choice("level", settings.level, &LEVELS);
    settings.format = table.choice("format", settings.format, &[("text", LogFormat::Text), ("json", LogFormat::Json)]);
    let access = [("all", AccessLog::All), ("refused", AccessLog::Refused), ("off", AccessLog::Off)];
    settings.access = table.choice("access", settings.access, &access);
    table.finish();
    settings
}

pub fn read_responses(root: &Table<'_>) -> Responses {
    let mut settings = Responses {
        x_ratelimit: true,
        x_ratelimit_reset: ResetForm::Epoch,
        ratelimit: true,
        status: 429,
        body: RefusalBody::Problem,
    };
    let Some(table) = root.table("responses") else { return settings };
    settings.x_ratelimit = table.boolean("x_ratelimit", true);
    let forms = [("epoch", ResetForm::Epoch), ("delta", ResetForm::Delta)];
    settings.x_ratelimit_reset = table.choice("x_ratelimit_reset", ResetForm::Epoch, &forms);
    settings.ratelimit = table.boolean("ratelimit", true);
    settings.status = u16::try_from(table.integer("status", 429, 400..=599)).unwrap_or(429);
    if let Some(body) = table.get("body").and_then(|value| refusal_body(&value)) {
        settings.body = body;
    }
    table.finish();
    settings
}

fn refusal_body(value: &Value<'_>) -> Option<RefusalBody> {
    if value.is_string() {
        let custom = value.choice(&[("problem", false), ("text", true)])?;
        return Some(if custom { RefusalBody::Text } else { RefusalBody::Problem });
    }
    if !value.is_table() {
        value.expected("`\"problem\"`, `\"text\"` or a table with `content_type` and `text`");
        return None;
    }
    let table = value.table()?;
    let content_type = table.required("content_type", "one such as `content_type = \"text/html\"`").and_then(|value| {
        value.text()?.parsed(|text| match HeaderValue::from_str(text) {
            Ok(_) if text.contains('/') => Ok(text.to_owned()),
            _ => Err("is no content type; write one such as `text/html; charset=utf-8`".into()),
        })
    });
    let text = table.required("text", "the body, such as `text = \"Slow down.\"`").and_then(|value| value.text());
    table.finish();
    Some(RefusalBody::Custom { content_type: content_type?, text: text?.expanded })
}
