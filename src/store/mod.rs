//! Where counters live. A store runs the transitions of `algorithm` on keys, several at once, all or nothing;
//! it knows no route, no policy and no client.

use crate::algorithm::{Algorithm, Decision, Quota};
use crate::clock::Micros;
use smallvec::SmallVec;

pub mod memory;
pub mod redis;

/// A counter's identity: a 128-bit digest of (policy, limit, key value). Nothing a client sends is in it as text.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, PartialOrd, Ord)]
pub struct CounterKey(pub u128);

/// One limit's question for one request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Check {
    pub key: CounterKey,
    pub algorithm: Algorithm,
    pub quota: Quota,
    /// ≥ 1, ≤ `quota.burst` for a bucket, ≤ `quota.units` elsewhere (the limiter answers what can never fit).
    pub cost: u64,
    /// A shadow limit is not enforced: it is charged like any other if the request passes and it has room, and refuses nobody.
    pub enforced: bool,
}

/// A store's answer to one check.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Answer {
    pub decision: Decision,
    /// Whether the units were taken. With several shards, what one took although another refused is given back by the limiter.
    pub charged: bool,
    /// The holder's clock at the decision, needed to give back.
    pub at_us: Micros,
}

/// Why a shard gave no answer. The kinds are those of the metric `staunch_store_errors_total`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum ErrorKind {
    Timeout,
    Connect,
    Auth,
    Script,
    Readonly,
    Loading,
    Oom,
    Other,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct StoreError {
    pub kind: ErrorKind,
    /// Which shard, an index into the store's list of shards.
    pub shard: usize,
    /// Whether the script may have run all the same (the reply was lost or late): never charge it again.
    pub maybe_applied: bool,
}

/// Answers in the order of the checks; most requests have at most four limits.
pub type Answers = SmallVec<[Result<Answer, StoreError>; 4]>;
