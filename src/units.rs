//! Values people type: durations, quotas, sizes, secrets. Parsing says what is wrong and what would be right;
//! where in the file it stood is the caller's to add.

use std::fmt;

/// A text that must not be shown: its `Debug` and `Display` are masked, so that no log line or error can leak it.
#[derive(Clone, PartialEq, Eq, Default)]
pub struct Secret(String);

impl Secret {
    #[must_use]
    pub fn new(text: String) -> Self {
        Self(text)
    }

    /// The text itself; call it only where it is used as a credential.
    #[must_use]
    pub fn reveal(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("***")
    }
}

impl fmt::Display for Secret {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("***")
    }
}
