//! One core's lanes, and where a job goes that a node refused without running it.
//!
//! What was refused may be repeated: at the node that holds the key by now, or at the same one in a moment. It keeps its
//! deadline, and a job that two nodes send to each other is given up after some hops.

use super::batch::Waiting;
use super::connect::Address;
use super::fault::{Fault, Next};
use super::lane::Lane;
use super::topology::{Map, cluster};
use super::{CounterKey, Shards, StoreError, Topology};
use crate::clock;
use redis::{Cmd, FromRedisValue};
use std::cell::RefCell;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::time::{sleep, timeout_at};

/// With the pauses between them more than any client waits for a check.
const HOPS_MAX: u8 = 10;
/// Redirections that are followed without a pause: one by an old map, one more while the slot moves.
const HOPS_AT_ONCE: u8 = 2;

/// A lane for each shard of a map.
#[derive(Debug)]
pub(super) struct Lanes {
    drawn: u64,
    pub map: Arc<Map>,
    pub list: Vec<Rc<Lane>>,
}

#[derive(Debug)]
pub(super) struct Routes {
    shards: Arc<Shards>,
    lanes: RefCell<Rc<Lanes>>,
    me: Weak<Self>,
}

impl Routes {
    pub fn new(shards: Arc<Shards>) -> Rc<Self> {
        Rc::new_cyclic(|me| {
            let none = Lanes { drawn: 0, map: shards.map(), list: Vec::new() };
            let lanes = RefCell::new(Rc::new(lanes(&shards, &none, me)));
            Self { shards, lanes, me: me.clone() }
        })
    }

    /// Those of the map in force.
    pub fn lanes(&self) -> Rc<Lanes> {
        let known = self.lanes.borrow().clone();
        if self.shards.drawn.load(Ordering::Acquire) == known.drawn {
            return known;
        }
        let new = Rc::new(lanes(&self.shards, &known, &self.me));
        self.lanes.replace(new.clone());
        new
    }

    fn lane_of(&self, key: CounterKey) -> Rc<Lane> {
        let lanes = self.lanes();
        lanes.list[lanes.map.home_of(key)].clone()
    }

    fn lane_at(&self, address: &Address) -> Option<Rc<Lane>> {
        let find = |lanes: &Lanes| lanes.list.iter().find(|lane| lane.address().as_ref() == Some(address)).cloned();
        find(&self.lanes()).or_else(|| {
            cluster::adopt(&self.shards, address);
            find(&self.lanes())
        })
    }

    /// Whether a call that failed so may be repeated. At a node that is on its own it would fail again.
    pub fn may_repeat(&self, fault: &Fault) -> bool {
        match fault.next {
            Next::Nothing => false,
            Next::Again => self.shards.settings().topology != Topology::Sharded,
            Next::Moved(_) | Next::Ask(_) => self.shards.settings().topology == Topology::Cluster,
        }
    }

    /// Takes a refused job to where it may be run; gives it back if that cannot be in time.
    pub fn hand_on(&self, mut waiting: Waiting, fault: &Fault, from: &Lane) -> Option<Waiting> {
        let pause = pause(&fault.next, waiting.hops);
        let Some(key) = waiting.job.key() else { return Some(waiting) };
        if waiting.hops == HOPS_MAX || clock::now() + pause >= waiting.deadline {
            return Some(waiting);
        }
        waiting.hops += 1;
        let me = self.me.clone();
        let (next, host) = (fault.next.clone(), from.address().map(|address| address.host));
        let go = move |mut waiting: Waiting| {
            let step = me.upgrade().and_then(|routes| routes.step(&next, key, host.as_deref().unwrap_or_default()));
            // Dropped, it is answered as one whose runtime ends; only a reload takes the routes away meanwhile.
            if let Some((lane, asking)) = step {
                waiting.asking = asking;
                lane.push(waiting);
            }
        };
        if pause.is_zero() {
            go(waiting);
        } else {
            tokio::task::spawn_local(async move {
                sleep(pause).await;
                go(waiting);
            });
        }
        None
    }

    /// Where to go next, and whether that node must be told that it was another's word.
    fn step(&self, next: &Next, key: CounterKey, said_by: &str) -> Option<(Rc<Lane>, bool)> {
        self.shards.stale().notify_one();
        match next {
            Next::Moved(node) => Some((self.lane_at(&Address::parse(node, said_by)?)?, false)),
            Next::Ask(node) => Some((self.lane_at(&Address::parse(node, said_by)?)?, true)),
            Next::Again => Some((self.lane_of(key), false)),
            Next::Nothing => None,
        }
    }

    /// One command outside the batches, for an operator.
    pub async fn command<T: FromRedisValue>(&self, key: CounterKey, command: &Cmd) -> Result<T, StoreError> {
        let deadline = clock::now() + self.shards.timeout();
        let (mut lane, mut asking, mut hops) = (self.lane_of(key), false, 0);
        loop {
            let trip = timeout_at(deadline.into(), lane.command(command, asking)).await;
            let fault = match trip.unwrap_or_else(|_| Err(Fault::late())) {
                Ok(reply) => return Ok(reply),
                Err(fault) => fault,
            };
            let pause = pause(&fault.next, hops);
            if hops < HOPS_MAX && self.may_repeat(&fault) && clock::now() + pause < deadline {
                sleep(pause).await;
                let host = lane.address().map(|address| address.host).unwrap_or_default();
                if let Some(step) = self.step(&fault.next, key, &host) {
                    (lane, asking) = step;
                    hops += 1;
                    continue;
                }
            }
            return Err(lane.gave_up(&fault));
        }
    }
}

/// A lane for each shard of the map; those there were already are kept, with their connections.
fn lanes(shards: &Shards, known: &Lanes, routes: &Weak<Routes>) -> Lanes {
    // The count first: if the map is a newer one, the next check looks again.
    let drawn = shards.drawn.load(Ordering::Acquire);
    let map = shards.map();
    let prefix: Arc<str> = shards.settings().key_prefix.as_str().into();
    let lane = |(index, shard)| {
        let kept = known.list.iter().find(|lane| lane.is_to(shard)).cloned();
        let lane = kept.unwrap_or_else(|| Lane::new(shard.clone(), shards.timeout(), prefix.clone(), routes.clone()));
        lane.set_place(index, map.parts_keys);
        lane
    };
    let list = map.shards.iter().enumerate().map(lane).collect();
    Lanes { drawn, map, list }
}

/// Redirections go at once; a node that is not ready, or one of two that disagree, is given a moment, each time a longer one.
fn pause(next: &Next, hops: u8) -> Duration {
    match next {
        Next::Moved(_) | Next::Ask(_) if hops < HOPS_AT_ONCE => Duration::ZERO,
        _ => Duration::from_millis(1 << hops.min(7)),
    }
}
