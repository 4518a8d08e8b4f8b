//! What a thread logs while something runs.
//!
//! One subscriber for the process, for a thread's own would not be asked for lines that another thread reached first.

use std::cell::RefCell;
use std::io;
use std::sync::Once;

thread_local! {
    static PAGE: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// Writes to the page of the thread that logs.
struct Own;

impl io::Write for Own {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        PAGE.with_borrow_mut(|page| page.extend_from_slice(bytes));
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

pub fn logged(run: impl FnOnce()) -> String {
    static INSTALLED: Once = Once::new();
    INSTALLED.call_once(|| tracing_subscriber::fmt().with_ansi(false).with_writer(|| Own).init());
    PAGE.with_borrow_mut(Vec::clear);
    run();
    String::from_utf8(PAGE.take()).unwrap()
}
