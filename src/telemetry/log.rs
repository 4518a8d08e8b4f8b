//! The log: `tracing` events as lines of text or JSON, through the sink to stderr; level and format may change at any time.
//!
//! Promises that an event is one line, whatever is in it. What wins between the command line and the file is the
//! caller's to say.

use super::{escape, sink, timestamp};
use crate::clock;
use std::fmt;
use std::io;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU8, Ordering};
use tracing::level_filters::LevelFilter;
use tracing::{Event, Subscriber};
use tracing_subscriber::fmt::format::{self, DefaultFields, Writer};
use tracing_subscriber::fmt::time::FormatTime;
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields, MakeWriter};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::registry::LookupSpan;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{Registry, reload};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    pub level: LevelFilter,
    pub format: Format,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    Text,
    Json,
}

static LEVEL: OnceLock<reload::Handle<LevelFilter, Registry>> = OnceLock::new();
/// `Format as u8`.
static FORMAT: AtomicU8 = AtomicU8::new(0);

/// Held while the process runs; when it goes, what was logged is written.
#[must_use = "the last lines are written when this is dropped"]
#[derive(Debug)]
pub struct Flush(());

impl Drop for Flush {
    fn drop(&mut self) {
        sink::flush();
    }
}

/// Starts the log. Later calls only change the settings.
pub fn init(settings: Settings) -> Flush {
    let (level, handle) = reload::Layer::new(settings.level);
    let lines = tracing_subscriber::fmt::layer()
        .fmt_fields(DefaultFields::new())
        .event_format(EitherFormat {
            text: format::format().with_target(false).with_timer(Wall),
            json: format::format().with_target(false).with_timer(Wall).json().flatten_event(true),
        })
        .with_ansi(false)
        .with_writer(Lines);
    if tracing_subscriber::registry().with(level).with(lines).try_init().is_ok() {
        let _ = LEVEL.set(handle);
    }
    change(settings);
    Flush(())
}

/// Applies settings at once.
pub fn change(settings: Settings) {
    FORMAT.store(u8::from(settings.format == Format::Json), Ordering::Relaxed);
    if let Some(level) = LEVEL.get() {
        // Fails only when the subscriber is gone, and a global one is not.
        let _ = level.reload(settings.level);
    }
}

/// The format in force.
#[must_use]
pub fn format() -> Format {
    if FORMAT.load(Ordering::Relaxed) == 0 { Format::Text } else { Format::Json }
}

/// Whether events of level info are logged, and so whether the access log is.
#[must_use]
pub fn at_info() -> bool {
    LevelFilter::current() >= LevelFilter::INFO
}

/// Both formats are ready, and each event asks which is in force: swapping whole layers would lose events in between.
struct EitherFormat {
    text: format::Format<format::Full, Wall>,
    json: format::Format<format::Json, Wall>,
}

impl<S, N> FormatEvent<S, N> for EitherFormat
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(&self, context: &FmtContext<'_, S, N>, writer: Writer<'_>, event: &Event<'_>) -> fmt::Result {
        match format() {
            Format::Text => self.text.format_event(context, writer, event),
            Format::Json => self.json.format_event(context, writer, event),
        }
    }
}

/// The wall clock, in the access log's form.
struct Wall;

impl FormatTime for Wall {
    fn format_time(&self, writer: &mut Writer<'_>) -> fmt::Result {
        writer.write_str(&timestamp::text(clock::wall_us()))
    }
}

/// `tracing-subscriber` hands over an event as one write.
struct Lines;

impl MakeWriter<'_> for Lines {
    type Writer = Self;

    fn make_writer(&self) -> Self {
        Self
    }
}

impl io::Write for Lines {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        let text = String::from_utf8_lossy(line);
        if escape::is_clean(&text) {
            sink::send(text.as_bytes());
        } else {
            sink::send(escape::line(&text).as_bytes());
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
