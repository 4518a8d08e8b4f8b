//! Waiting for what other processes bring about.

use std::time::Duration;

/// Long enough for a busy machine; reached only when something is broken.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// Asks until the answer is yes.
pub fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let begun = staunch::clock::now();
    while !holds() {
        assert!(begun.elapsed() < PATIENCE, "{what}: not within {PATIENCE:?}");
        std::thread::sleep(Duration::from_millis(10));
    }
}
