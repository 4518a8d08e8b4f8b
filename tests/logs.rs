//! The log as its reader sees it: whole lines, nothing from a client that could break one, and no wait for a reader.
//!
//! stderr is the process's, so the tests of the log itself run this binary again as a child and read its stderr.

use proptest::prelude::*;
use staunch::telemetry::access::{self, AccessLog, Entry, Requests};
use staunch::telemetry::log::{self, Format, Settings};
use staunch::telemetry::metrics::{Outcome, Verdict};
use std::process::{Command, Stdio};
use tracing::level_filters::LevelFilter;

const ENTRY: Entry<'static> = Entry {
    wall_us: 1_796_060_460_000_042,
    client: std::net::IpAddr::V4(std::net::Ipv4Addr::new(192, 0, 2, 7)),
    method: "GET",
    host: "api.example.com",
    path: "/v1/things",
    proto: "HTTP/1.1",
    route: "api",
    status: 429,
    outcome: Outcome::Limited,
    limit: Some(("public", "per-ip")),
    decision: Some(Verdict::Limited),
    degraded: false,
    duration_us: 12_034,
    bytes_out: 321,
    request_id: "b0c1",
    upstream: "",
};

fn line(entry: &Entry<'_>, format: Format) -> String {
    let mut out = Vec::new();
    access::write(&mut out, entry, format);
    String::from_utf8(out).unwrap()
}

#[test]
fn an_access_line_reads_as_documented() {
    let text = "2026-11-30T17:41:00.000042Z  INFO access client=192.0.2.7 method=GET host=api.example.com path=/v1/things \
                proto=HTTP/1.1 route=api status=429 outcome=limited policy=public limit=per-ip decision=limited \
                duration_ms=12.034 bytes_out=321 request_id=b0c1\n";
    assert_eq!(line(&ENTRY, Format::Text), text);
    let json = serde_json::json!({
        "timestamp": "2026-11-30T17:41:00.000042Z", "level": "INFO", "message": "access", "client": "192.0.2.7",
        "method": "GET", "host": "api.example.com", "path": "/v1/things", "proto": "HTTP/1.1", "route": "api",
        "status": 429, "outcome": "limited", "policy": "public", "limit": "per-ip", "decision": "limited",
        "duration_ms": 12.034, "bytes_out": 321, "request_id": "b0c1",
    });
    assert_eq!(serde_json::from_str::<serde_json::Value>(&line(&ENTRY, Format::Json)).unwrap(), json);
}

#[test]
fn what_could_forge_a_line_or_a_field_is_quoted_and_escaped() {
    let path = "/a status=200\r\n\u{1b}[2J\u{9b}\u{2028}\u{202e}\"\\";
    let line = line(&Entry { path, ..ENTRY }, Format::Text);
    assert!(line.contains(r#" path="/a status=200\r\n\u001b[2J\u009b\u2028\u202e\"\\" "#), "{line}");
}

#[test]
fn a_value_of_any_length_makes_a_line_of_bounded_length() {
    let path = "ü".repeat(100_000);
    for format in [Format::Text, Format::Json] {
        let line = line(&Entry { path: &path, ..ENTRY }, format);
        assert!(line.len() < 4096 && line.contains("ü…\""));
    }
}

#[test]
fn refused_means_turned_away_by_the_gateway() {
    assert!([Outcome::Limited, Outcome::QueuedOut, Outcome::Unavailable].iter().all(|&o| Requests::Refused.include(o)));
    assert!(!Requests::Refused.include(Outcome::Forwarded) && !Requests::Refused.include(Outcome::UpstreamError));
    assert!(Requests::All.include(Outcome::Forwarded) && !Requests::Off.include(Outcome::Limited));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    #[test]
    fn a_line_is_one_line_and_json_gives_the_values_back(
        path in any::<String>(), host in "\\PC*", method in "[\\x00-\\x7f\u{80}-\u{a0}]{0,20}",
    ) {
        let entry = Entry { path: &path, host: &host, method: &method, ..ENTRY };
        for format in [Format::Text, Format::Json] {
            let line = line(&entry, format);
            let body = line.strip_suffix('\n').unwrap();
            prop_assert!(!body.chars().any(char::is_control), "{body:?}");
        }
        let json: serde_json::Value = serde_json::from_str(&line(&entry, Format::Json)).unwrap();
        for (name, value) in [("path", &path), ("host", &host), ("method", &method)] {
            prop_assert_eq!(json.get(name).and_then(|v| v.as_str()).unwrap_or_default(), value.as_str());
        }
    }
}

/// Runs one of the ignored tests below in a process of its own.
fn child(test: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--ignored", "--exact", test, "--nocapture"]).stdin(Stdio::null()).stdout(Stdio::null());
    command
}

#[test]
fn settings_change_at_once_and_every_event_is_one_whole_line() {
    let output = child("speaks").output().unwrap();
    assert!(output.status.success());
    let said = String::from_utf8(output.stderr).unwrap();
    let lines: Vec<&str> = said.lines().collect();
    assert!(lines[0].ends_with(r#"  INFO first\nforged \x1b[31m shard="n0""#), "{said}");
    assert!(!said.contains("silent"), "{said}");
    let json: Vec<serde_json::Value> = lines[1..].iter().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(
        (&json[0]["level"], &json[0]["message"], &json[0]["shard"]),
        (&"WARN".into(), &"second".into(), &"n1".into())
    );
    assert_eq!(json.iter().filter(|line| line["message"] == "access").count(), 4000);
    assert_eq!(json.iter().filter(|line| line["message"] == "between").count(), 4000);
    assert_eq!(json.len(), 8001);
}

#[test]
#[ignore = "speaks to stderr; run by another test, in a process of its own"]
fn speaks() {
    let flush = log::init(Settings { level: LevelFilter::INFO, format: Format::Text });
    let access = AccessLog::new();
    tracing::info!(shard = "n0", "first\nforged \x1b[31m");
    tracing::debug!("silent");
    log::change(Settings { level: LevelFilter::WARN, format: Format::Json });
    tracing::info!("silent");
    assert!(!access.line(&Entry { path: "/silent", ..ENTRY }));
    tracing::warn!(shard = "n1", "second");
    log::change(Settings { level: LevelFilter::INFO, format: Format::Json });
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let access = AccessLog::new();
                for number in 0..1000 {
                    if access.line(&ENTRY) && number % 7 == 0 {
                        access.flush();
                    }
                    tracing::info!(number, "between");
                }
            });
        }
    });
    drop(flush);
}

#[test]
fn a_reader_that_never_reads_stops_nobody() {
    let mut child = child("shouts").stderr(Stdio::piped()).spawn().unwrap();
    assert!(child.wait().unwrap().success(), "its stderr is a pipe that nobody reads, and it came to its end");
}

#[test]
#[ignore = "fills stderr; run by another test, in a process of its own"]
fn shouts() {
    let _flush = log::init(Settings { level: LevelFilter::INFO, format: Format::Text });
    let access = AccessLog::new();
    for _ in 0..60_000 {
        let _ = access.line(&ENTRY);
    }
    access.flush();
    tracing::info!("and on");
    let page = staunch::telemetry::metrics::render();
    let dropped = page.lines().find_map(|line| line.strip_prefix("staunch_log_lines_dropped_total ")).unwrap();
    assert!(dropped.parse::<f64>().unwrap() > 10_000.0, "{dropped}");
}
