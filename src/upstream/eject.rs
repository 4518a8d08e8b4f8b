//! Passive ejection: an endpoint on which requests fail one after the other is left out for a while, whoever else could
//! have noticed.
//!
//! What counts is what Envoy's outlier detection calls a gateway failure: no connection, no answer (in time), an answer that
//! is none, and 502, 503 or 504. A 500 does not: one client that knows how to provoke it could eject every endpoint.

use super::send::Failed;
use super::state::Condition;
use super::{Endpoint, Upstream};
use http::StatusCode;
use std::time::Duration;

/// `ejection = …` of an upstream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ejection {
    /// In a row; 0: never ejected.
    pub failures: u32,
    /// The first time; each further time it is twice as long.
    pub base_time: Duration,
    pub max_time: Duration,
}

impl Upstream {
    /// The endpoint gave an answer.
    pub fn answered(&self, endpoint: &Endpoint, status: StatusCode) {
        if (502..=504).contains(&status.as_u16()) {
            return self.count_failure(endpoint, &format!("answered {}", status.as_u16()));
        }
        endpoint.state.answered();
    }

    /// The endpoint gave none.
    pub(super) fn failed(&self, endpoint: &Endpoint, failed: &Failed) {
        if let Some(why) = failed.reason() {
            self.count_failure(endpoint, &why);
        }
    }

    fn count_failure(&self, endpoint: &Endpoint, why: &str) {
        endpoint.state.failed(why, &self.ejection, || self.can_spare_one());
    }

    /// At most half of the endpoints, rounded up, are out at once, and never the last: where most fail, the load is more
    /// likely to blame than they are, and fewer would fail the sooner. (Two cores may eject two at the same time; the
    /// choice takes ejected endpoints where no other is left.)
    fn can_spare_one(&self) -> bool {
        let count = self.endpoints.len();
        let out = self.endpoints.iter().filter(|endpoint| endpoint.state.condition() == Condition::Ejected).count();
        out < count.div_ceil(2).min(count - 1)
    }
}

impl Failed {
    /// What the endpoint did wrong, if it did.
    pub(super) fn reason(&self) -> Option<String> {
        match self {
            Self::Unreachable(error) => Some(format!("no connection: {error}")),
            Self::Unanswered(error) => Some(format!("closed without an answer: {error}")),
            Self::Malformed(why) => Some(format!("no proper answer: {why}")),
            Self::TimedOut => Some("no answer in time".to_owned()),
            Self::Body(_) | Self::NoEndpoint(_) => None,
        }
    }
}
