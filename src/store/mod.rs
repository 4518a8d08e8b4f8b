//! Where counters live. A store runs the transitions of `algorithm` on keys, several at once, all or nothing;
//! it knows no route, no policy and no client.

use crate::algorithm::{Algorithm, Decision, Lease, Quota};
use crate::clock::{self, Micros};
use memory::Memory;
use smallvec::SmallVec;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

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

/// A check, and what goes along with it for the gateway's local cache of the key.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ask {
    pub check: Check,
    /// Units wanted beyond the cost; charged, as far as they go, if the request passes.
    pub lease: Lease,
    /// Units of an earlier lease that were not spent; taken back before anything else, whatever comes of the check.
    pub back: Returned,
}

/// What is left of a lease.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Returned {
    pub units: u64,
    /// By the clock of whoever holds the counter.
    pub charged_at: Micros,
}

impl From<Check> for Ask {
    /// The check alone.
    fn from(check: Check) -> Self {
        Self { check, lease: Lease::default(), back: Returned::default() }
    }
}

impl Ask {
    /// Whether anything goes along with the check.
    #[must_use]
    pub fn is_plain(&self) -> bool {
        self.lease.units == 0 && self.back.units == 0
    }
}

/// A store's answer to one check.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Answer {
    pub decision: Decision,
    /// Whether the units were taken. With several shards, what one took although another refused is given back by the limiter.
    pub charged: bool,
    /// The holder's clock at the decision, needed to give back.
    pub at_us: Micros,
    /// Units charged beyond the cost, for the asker to spend.
    pub leased: u64,
    /// How long they may be held, counted from the decision; never into a later window.
    pub lease_lasts_us: u64,
}

impl Answer {
    /// Without a lease.
    #[must_use]
    pub const fn new(decision: Decision, charged: bool, at_us: Micros) -> Self {
        Self { decision, charged, at_us, leased: 0, lease_lasts_us: 0 }
    }
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
    /// Which shard, an index into the store's list of shards at that time.
    pub shard: usize,
    /// Whether the script may have run all the same (the reply was lost or late): never charge it again.
    pub maybe_applied: bool,
}

/// Answers in the order of the checks; most requests have at most four limits.
pub type Answers = SmallVec<[Result<Answer, StoreError>; 4]>;

/// The store of the policy in force, as one core uses it.
#[derive(Debug)]
pub enum Store {
    Memory(Arc<Memory>),
    Redis {
        client: Rc<redis::Client>,
        shards: Arc<redis::Shards>,
        /// Decides with `on_failure = "local"` while a shard is away.
        local: Arc<Memory>,
    },
}

impl Store {
    /// Asks about all checks of one request. In one shard they are all or nothing; what several shards took although
    /// another refused is the caller's to give back.
    pub async fn decide(&self, checks: &[Check]) -> Answers {
        match self {
            Self::Memory(memory) => memory.decide(checks, clock::now_us()).into_iter().map(Ok).collect(),
            Self::Redis { client, .. } => client.decide(checks).await,
        }
    }

    /// The same with leases. The memory store gives none: it is as near as a cache would be.
    pub async fn ask(&self, asks: &[Ask]) -> Answers {
        match self {
            Self::Memory(_) => {
                let checks: SmallVec<[Check; 4]> = asks.iter().map(|ask| ask.check).collect();
                self.decide(&checks).await
            }
            Self::Redis { client, .. } => client.ask(asks).await,
        }
    }

    /// Gives back what was charged at `charged_at`, by the clock of whoever holds the counter. What cannot be given back
    /// (the shard is away) comes back by itself when the counter's window has passed; the store's metrics tell of it.
    ///
    /// # Errors
    /// When the shard did not take it.
    pub async fn give_back(&self, check: &Check, charged_at: Micros) -> Result<(), StoreError> {
        match self {
            Self::Memory(memory) => {
                memory.give_back(check, charged_at, clock::now_us());
                Ok(())
            }
            Self::Redis { client, .. } => client.give_back(check, charged_at).await,
        }
    }

    /// Looks at a counter without charging it.
    pub async fn inspect(&self, key: CounterKey, algorithm: Algorithm, quota: &Quota) -> Result<Decision, StoreError> {
        match self {
            Self::Memory(memory) => Ok(memory.inspect(key, algorithm, quota, clock::now_us())),
            Self::Redis { client, .. } => client.inspect(key, algorithm, quota).await,
        }
    }

    /// Forgets a counter; says whether there was one.
    pub async fn reset(&self, key: CounterKey) -> Result<bool, StoreError> {
        match self {
            Self::Memory(memory) => Ok(memory.reset(key)),
            Self::Redis { client, local, .. } => {
                local.reset(key);
                client.reset(key).await
            }
        }
    }

    /// The counters in this process.
    #[must_use]
    pub fn local(&self) -> &Memory {
        match self {
            Self::Memory(memory) => memory,
            Self::Redis { local, .. } => local,
        }
    }

    /// Notes what was admitted here while the key's shard was away, to be charged to it when it returns.
    pub fn owe(&self, check: &Check) {
        if let Self::Redis { shards, .. } = self {
            shards.owe(check);
        }
    }

    /// Gateways alive, this one included.
    #[must_use]
    pub fn gateways(&self) -> u64 {
        match self {
            Self::Memory(_) => 1,
            Self::Redis { shards, .. } => shards.gateways(),
        }
    }

    /// How long a check may take in all.
    #[must_use]
    pub fn timeout(&self) -> Duration {
        match self {
            Self::Memory(_) => Duration::ZERO,
            Self::Redis { shards, .. } => shards.timeout(),
        }
    }

    /// Which shard holds a key.
    #[must_use]
    pub fn shard_of(&self, key: CounterKey) -> usize {
        match self {
            Self::Memory(_) => 0,
            Self::Redis { client, .. } => client.shard_of(key),
        }
    }

    /// When a shard that is away is asked again.
    #[must_use]
    pub fn retry_after(&self) -> Duration {
        match self {
            Self::Memory(_) => Duration::ZERO,
            Self::Redis { shards, .. } => shards.retry_after(),
        }
    }
}
