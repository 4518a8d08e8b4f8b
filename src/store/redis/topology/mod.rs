//! Which shard holds a key, and who finds that out.
//!
//! A `Map` says it for one moment: by the nodes' names (`ring`), or by a cluster's slots (`slots`). Beside the checks the
//! followers keep it true: `cluster` draws a new map when slots or primaries have moved, `sentinel` tells the one shard where
//! its primary is. Sharded nodes stay where they are.

use super::fault::Fault;
use super::shard::Shard;
use super::{Shards, Topology};
use crate::store::{CounterKey, ErrorKind};
use ring::Ring;
use slots::Slots;
use std::sync::Arc;

mod ask;
pub(super) mod cluster;
mod ring;
mod sentinel;
pub(super) mod slots;
pub(super) mod target;

#[derive(Clone, Debug)]
pub(super) struct Map {
    places: Places,
    pub shards: Vec<Arc<Shard>>,
    /// Of each shard; `None` where no key may be written yet.
    heartbeat_keys: Vec<Option<String>>,
    /// A script call may touch one key only, for each key has a slot of its own. (Two of one slot could share a call, but while
    /// the slot moves they may be on two nodes, and such a call would wait until it has moved.)
    pub parts_keys: bool,
}

#[derive(Clone, PartialEq, Debug)]
enum Places {
    Ring(Ring),
    Slots(Slots),
}

impl Map {
    /// Nodes that share the keys by their names.
    pub fn ring(shards: Vec<Arc<Shard>>, key_prefix: &str) -> Self {
        let ring = Ring::new(shards.iter().map(|shard| shard.name.as_str()));
        let heartbeat_keys = vec![Some(format!("{key_prefix}:gateways")); shards.len()];
        Self { places: Places::Ring(ring), shards, heartbeat_keys, parts_keys: false }
    }

    /// A cluster of which nothing is known yet; one shard stands for it. What it is asked is for a known one in the end.
    pub fn unseen(shard: Arc<Shard>, key_prefix: &str) -> Self {
        Self { parts_keys: true, ..Self::ring(vec![shard], key_prefix) }
    }

    /// A cluster's primaries by their slots. Its heartbeats have keys in the first slot of each, so that every gateway that
    /// sees the same cluster writes to the same ones.
    pub fn slots(slots: Slots, shards: Vec<Arc<Shard>>) -> Self {
        let heartbeat_key = |shard| slots.first_of(shard).map(|slot| slots.key_in(slot, "gateways"));
        let heartbeat_keys = (0..shards.len()).map(heartbeat_key).collect();
        Self { places: Places::Slots(slots), shards, heartbeat_keys, parts_keys: true }
    }

    pub fn home_of(&self, key: CounterKey) -> usize {
        match &self.places {
            Places::Ring(ring) => ring.shard_of(key),
            Places::Slots(slots) => slots.home_of(key),
        }
    }

    /// With one shard more, which holds no keys yet.
    pub fn with(&self, shard: Arc<Shard>) -> Self {
        let mut map = self.clone();
        map.shards.push(shard);
        map.heartbeat_keys.push(None);
        map
    }

    pub fn holds(&self, shard: &Arc<Shard>) -> bool {
        holds(&self.shards, shard)
    }

    pub fn heartbeat_key(&self, shard: &Shard) -> Option<&str> {
        let at = self.shards.iter().position(|other| std::ptr::eq(&**other, shard))?;
        self.heartbeat_keys[at].as_deref()
    }
}

impl PartialEq for Map {
    fn eq(&self, other: &Self) -> bool {
        self.places == other.places
            && self.shards.len() == other.shards.len()
            && self.shards.iter().zip(&other.shards).all(|(one, other)| Arc::ptr_eq(one, other))
    }
}

fn holds(list: &[Arc<Shard>], shard: &Arc<Shard>) -> bool {
    list.iter().any(|other| Arc::ptr_eq(other, shard))
}

/// Keeps the map true; ends only when dropped.
pub(super) async fn follow(shards: &Shards) {
    match &shards.settings().topology {
        Topology::Sharded => std::future::pending().await,
        Topology::Cluster => cluster::follow(shards).await,
        Topology::Sentinel { master } => sentinel::follow(shards, master).await,
    }
}

/// What most of the answers say, so that a node which is cut off, or has just come back, does not mislead; of equals the
/// first. If there is none: why.
fn most_agreed<T: PartialEq>(answers: Vec<Result<T, Fault>>) -> Result<T, Fault> {
    let mut said: Vec<(T, usize)> = Vec::new();
    let mut faults = Vec::new();
    for answer in answers {
        match answer {
            Ok(this) => match said.iter_mut().find(|(other, _)| *other == this) {
                Some((_, times)) => *times += 1,
                None => said.push((this, 1)),
            },
            Err(fault) => faults.push(fault),
        }
    }
    let most = said.iter().map(|(_, times)| *times).max();
    if let Some((this, _)) = said.into_iter().find(|(_, times)| Some(*times) == most) {
        return Ok(this);
    }
    // Wrong credentials are for the operator to mend, whatever else is wrong with other nodes.
    let telling = faults.iter().position(|fault| fault.kind == ErrorKind::Auth).unwrap_or(0);
    Err(if faults.is_empty() { Fault::before(ErrorKind::Other, "no node to ask") } else { faults.swap_remove(telling) })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fault(kind: ErrorKind) -> Result<u8, Fault> {
        Err(Fault::before(kind, "a fault"))
    }

    #[test]
    fn the_answer_of_most_nodes_counts_and_of_equals_the_first() {
        let connect = || fault(ErrorKind::Connect);
        assert_eq!(most_agreed(vec![Ok(1), connect(), Ok(2), Ok(2)]).unwrap(), 2);
        assert_eq!(most_agreed(vec![connect(), Ok(1), Ok(2)]).unwrap(), 1);
        assert_eq!(most_agreed(vec![connect(), fault(ErrorKind::Auth)]).unwrap_err().kind, ErrorKind::Auth);
        assert_eq!(most_agreed(vec![connect()]).unwrap_err().kind, ErrorKind::Connect);
    }
}
