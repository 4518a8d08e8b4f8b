//! Where log lines leave: one buffer, one thread that writes it to stderr.
//!
//! No event loop ever waits for stderr: a reader that stalls costs lines, not requests. What does not fit is dropped and
//! counted (`staunch_log_lines_dropped_total`), and said in the log once it moves again. Lines come and go whole.

use super::{metrics, timestamp};
use crate::clock;
use parking_lot::{Condvar, Mutex};
use std::io::{self, Write};
use std::sync::LazyLock;
use std::time::Duration;

/// About 16 000 access lines.
const BYTES_MAX: usize = 4 << 20;
/// Lines wait this long for company: at most 200 wake-ups and writes a second, however many requests there are.
const GATHER: Duration = Duration::from_millis(5);
/// How long an exit waits for a reader that does not read.
const FLUSH_MAX: Duration = Duration::from_secs(1);

#[derive(Default)]
struct Waiting {
    lines: Vec<u8>,
    dropped: u64,
    /// Someone waits for everything to be written.
    hurry: bool,
    /// The thread has taken lines and not yet written them.
    writing: bool,
}

struct Sink {
    waiting: Mutex<Waiting>,
    filled: Condvar,
    written: Condvar,
    /// Without a thread, which a system at its limits may refuse, lines are written where they are made.
    threaded: bool,
}

static SINK: LazyLock<Sink> = LazyLock::new(|| {
    let thread = std::thread::Builder::new().name("log".to_owned()).spawn(|| SINK.run());
    Sink { waiting: Mutex::default(), filled: Condvar::new(), written: Condvar::new(), threaded: thread.is_ok() }
});

/// Takes whole lines (each with its newline). Never blocks for long; drops them when the buffer is full.
pub fn send(lines: &[u8]) {
    if SINK.threaded { SINK.put(lines) } else { write(lines) }
}

/// Waits until everything sent so far is written, or a second.
pub fn flush() {
    if SINK.threaded {
        SINK.drain();
    }
}

impl Sink {
    fn put(&self, lines: &[u8]) {
        let mut waiting = self.waiting.lock();
        if waiting.lines.len() + lines.len() > BYTES_MAX {
            let count = lines.iter().map(|&byte| u64::from(byte == b'\n')).sum();
            waiting.dropped += count;
            metrics::log_lines_dropped(count);
            return;
        }
        let first = waiting.lines.is_empty();
        waiting.lines.extend_from_slice(lines);
        drop(waiting);
        if first {
            self.filled.notify_one();
        }
    }

    fn drain(&self) {
        let until = clock::now() + FLUSH_MAX;
        let mut waiting = self.waiting.lock();
        waiting.hurry = true;
        self.filled.notify_one();
        while !waiting.lines.is_empty() || waiting.writing {
            if self.written.wait_until(&mut waiting, until).timed_out() {
                break;
            }
        }
        waiting.hurry = false;
    }

    fn run(&self) {
        let mut lines = Vec::new();
        loop {
            let mut waiting = self.waiting.lock();
            while waiting.lines.is_empty() {
                self.filled.wait(&mut waiting);
            }
            if !waiting.hurry {
                self.filled.wait_for(&mut waiting, GATHER);
            }
            std::mem::swap(&mut waiting.lines, &mut lines);
            let dropped = std::mem::take(&mut waiting.dropped);
            waiting.writing = true;
            drop(waiting);
            write(&lines);
            if dropped > 0 {
                write(&gap(dropped));
            }
            lines.clear();
            self.waiting.lock().writing = false;
            self.written.notify_all();
        }
    }
}

/// There is nowhere to say that stderr is gone.
fn write(lines: &[u8]) {
    let _ = io::stderr().lock().write_all(lines);
}

fn gap(dropped: u64) -> Vec<u8> {
    let at = timestamp::text(clock::wall_us());
    match super::log::format() {
        super::log::Format::Text => format!("{at}  WARN log lines were dropped: stderr was not read count={dropped}\n"),
        super::log::Format::Json => format!(
            "{{\"timestamp\":\"{at}\",\"level\":\"WARN\",\"message\":\"log lines were dropped: stderr was not read\",\
             \"count\":{dropped}}}\n"
        ),
    }
    .into_bytes()
}
