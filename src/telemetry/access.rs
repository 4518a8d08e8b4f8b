//! The access log: one line per request, in the log's format, at level info.
//!
//! One `AccessLog` per core gathers the lines of a turn of its event loop and hands them to the sink together. A line shows
//! the path without its query and no key's value but the client's address; everything a client could have sent is escaped.

use super::log::{self, Format};
use super::metrics::{Label, Outcome, Verdict};
use super::{escape, sink, timestamp};
use crate::clock::Micros;
use std::cell::RefCell;
use std::net::IpAddr;

/// Handed on before the turn ends.
const BATCH_BYTES: usize = 16 << 10;

/// `log.access`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Requests {
    All,
    /// Those the gateway turned away: limited, or not served because an upstream or the store is away.
    Refused,
    Off,
}

impl Requests {
    /// Whether a request that ended so has a line.
    #[must_use]
    pub fn include(self, outcome: Outcome) -> bool {
        match self {
            Self::All => true,
            Self::Refused => matches!(outcome, Outcome::Limited | Outcome::QueuedOut | Outcome::Unavailable),
            Self::Off => false,
        }
    }
}

/// One request, for its line. Empty texts and `None` are left out of the line.
#[derive(Clone, Copy, Debug)]
pub struct Entry<'a> {
    /// When it ended.
    pub wall_us: Micros,
    pub client: IpAddr,
    pub method: &'a str,
    pub host: &'a str,
    /// Without its query.
    pub path: &'a str,
    /// `HTTP/1.1`, `HTTP/2.0`.
    pub proto: &'a str,
    pub route: &'a str,
    pub status: u16,
    pub outcome: Outcome,
    /// The limit that decided, by policy and name, and what it said.
    pub limit: Option<(&'a str, &'a str)>,
    pub decision: Option<Verdict>,
    /// A counter could not be reached: the request was decided, let through or refused by `on_failure`.
    pub degraded: bool,
    pub duration_us: u64,
    /// Of the answer's body.
    pub bytes_out: u64,
    pub request_id: &'a str,
    /// The endpoint's address.
    pub upstream: &'a str,
}

/// The lines of one core.
#[derive(Debug, Default)]
pub struct AccessLog {
    lines: RefCell<Vec<u8>>,
}

impl AccessLog {
    #[must_use]
    pub fn new() -> Self {
        Self { lines: RefCell::new(Vec::with_capacity(BATCH_BYTES + 4096)) }
    }

    /// Adds a line, unless the log's level is above info. `true`: it is the first since the last flush, and the caller
    /// must see to one at the end of this turn.
    #[must_use = "without a flush the line waits for 16 KiB of others"]
    pub fn line(&self, entry: &Entry<'_>) -> bool {
        if !log::at_info() {
            return false;
        }
        let mut lines = self.lines.borrow_mut();
        let first = lines.is_empty();
        write(&mut lines, entry, log::format());
        if lines.len() >= BATCH_BYTES {
            sink::send(&lines);
            lines.clear();
            return false;
        }
        first
    }

    /// Hands over what was gathered.
    pub fn flush(&self) {
        let mut lines = self.lines.borrow_mut();
        if !lines.is_empty() {
            sink::send(&lines);
            lines.clear();
        }
    }
}

impl Drop for AccessLog {
    fn drop(&mut self) {
        self.flush();
    }
}

/// Appends one line, its newline included.
pub fn write(out: &mut Vec<u8>, entry: &Entry<'_>, format: Format) {
    let mut line = Line { out, format };
    line.begin(entry.wall_us);
    line.display("client", entry.client);
    line.text("method", entry.method);
    line.text("host", entry.host);
    line.text("path", entry.path);
    line.text("proto", entry.proto);
    line.text("route", entry.route);
    line.number("status", u64::from(entry.status));
    line.text("outcome", entry.outcome.text());
    if let Some((policy, limit)) = entry.limit {
        line.text("policy", policy);
        line.text("limit", limit);
    }
    line.text("decision", entry.decision.map_or("", Label::text));
    line.text("store", if entry.degraded { "degraded" } else { "" });
    line.milliseconds("duration_ms", entry.duration_us);
    line.number("bytes_out", entry.bytes_out);
    line.text("request_id", entry.request_id);
    line.text("upstream", entry.upstream);
    line.end();
}

struct Line<'a> {
    out: &'a mut Vec<u8>,
    format: Format,
}

impl Line<'_> {
    fn begin(&mut self, wall_us: Micros) {
        match self.format {
            Format::Text => {
                timestamp::write(self.out, wall_us);
                self.out.extend_from_slice(b"  INFO access");
            }
            Format::Json => {
                self.out.extend_from_slice(b"{\"timestamp\":\"");
                timestamp::write(self.out, wall_us);
                self.out.extend_from_slice(b"\",\"level\":\"INFO\",\"message\":\"access\"");
            }
        }
    }

    fn end(&mut self) {
        self.out.extend_from_slice(if self.format == Format::Json { b"}\n" } else { b"\n" });
    }

    fn name(&mut self, name: &str) {
        let (before, after): (&[u8], &[u8]) = match self.format {
            Format::Text => (b" ", b"="),
            Format::Json => (b",\"", b"\":"),
        };
        self.out.extend_from_slice(before);
        self.out.extend_from_slice(name.as_bytes());
        self.out.extend_from_slice(after);
    }

    fn text(&mut self, name: &str, value: &str) {
        if value.is_empty() {
            return;
        }
        self.name(name);
        match self.format {
            Format::Text => escape::bare_or_quoted(self.out, value),
            Format::Json => escape::quoted(self.out, value),
        }
    }

    fn number(&mut self, name: &str, value: u64) {
        self.name(name);
        self.out.extend_from_slice(itoa::Buffer::new().format(value).as_bytes());
    }

    fn milliseconds(&mut self, name: &str, us: u64) {
        self.number(name, us / 1000);
        self.out.push(b'.');
        timestamp::decimal(self.out, us % 1000, 3);
    }

    fn display(&mut self, name: &str, value: IpAddr) {
        use std::io::Write;
        self.name(name);
        let quote: &[u8] = if self.format == Format::Json { b"\"" } else { b"" };
        self.out.extend_from_slice(quote);
        // Writing to memory does not fail.
        let _ = write!(self.out, "{value}");
        self.out.extend_from_slice(quote);
    }
}
