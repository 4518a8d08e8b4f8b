//! The shape of `GET /top`.

use crate::telemetry::top::Refused;
use serde::Serialize;

#[derive(Clone, Debug, Serialize)]
pub struct TopKeys {
    /// Worst first, at most 128.
    pub keys: Vec<TopKey>,
}

#[derive(Clone, Debug, Serialize)]
pub struct TopKey {
    pub policy: String,
    pub limit: String,
    /// An address or a name; `#3fa9c1` stands for a value that may be a secret.
    pub key: String,
    /// In the last two and a half to five minutes; never too low.
    pub refusals: u64,
    /// By how much `refusals` may be too high.
    pub error: u64,
}

impl From<Vec<Refused>> for TopKeys {
    fn from(worst: Vec<Refused>) -> Self {
        let keys = worst.into_iter().map(|refused| TopKey {
            policy: refused.named.policy.to_string(),
            limit: refused.named.limit.to_string(),
            key: refused.named.key,
            refusals: refused.refusals,
            error: refused.error,
        });
        Self { keys: keys.collect() }
    }
}
