//! What a thread logs while something runs.

use std::io;
use std::sync::{Arc, Mutex};

#[derive(Clone, Default)]
struct Page(Arc<Mutex<Vec<u8>>>);

impl io::Write for Page {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

pub fn logged(run: impl FnOnce()) -> String {
    let page = Page::default();
    let writer = page.clone();
    let subscriber = tracing_subscriber::fmt().with_ansi(false).with_writer(move || writer.clone()).finish();
    tracing::subscriber::with_default(subscriber, run);
    let bytes = page.0.lock().unwrap().clone();
    String::from_utf8(bytes).unwrap()
}
