//! Where a shard's node is: fixed, or told by whoever follows the topology.

use crate::store::ErrorKind;
use crate::store::redis::connect::{Address, Entry, Link};
use crate::store::redis::fault::Fault;
use redis::Value;
use std::sync::atomic::{AtomicU64, Ordering};
use tokio::sync::watch;

#[derive(Debug)]
pub struct Target {
    /// `None` until the first word of it; an error as long as nobody can say.
    place: watch::Sender<Option<Result<Entry, Fault>>>,
    /// Sentinels tell of a primary; whether it is one by now, it says itself.
    is_told: bool,
    moves: AtomicU64,
}

impl Target {
    pub fn fixed(entry: Entry) -> Self {
        Self { place: watch::Sender::new(Some(Ok(entry))), is_told: false, moves: AtomicU64::new(0) }
    }

    pub fn told() -> Self {
        Self { place: watch::Sender::new(None), is_told: true, moves: AtomicU64::new(0) }
    }

    /// The node is there from now on; connections to where it was are not used any more. Says whether that is news.
    pub fn tell(&self, entry: Entry) -> bool {
        if self.address() == entry.address() {
            return false;
        }
        self.place.send_replace(Some(Ok(entry)));
        self.moves.fetch_add(1, Ordering::Relaxed);
        true
    }

    /// Nobody can say where it is; what is known stays.
    pub fn tell_unknown(&self, fault: Fault) {
        self.place.send_if_modified(|place| {
            let unknown = !matches!(place, Some(Ok(_)));
            if unknown {
                *place = Some(Err(fault));
            }
            unknown
        });
    }

    /// How often it has moved.
    pub fn moves(&self) -> u64 {
        self.moves.load(Ordering::Relaxed)
    }

    pub fn address(&self) -> Option<Address> {
        self.place.borrow().as_ref()?.as_ref().ok()?.address()
    }

    /// Waits, if need be, for the first word of where the node is.
    pub async fn connect(&self) -> Result<Link, Fault> {
        let mut place = self.place.subscribe();
        let entry = match place.wait_for(Option::is_some).await.as_deref() {
            Ok(Some(Ok(entry))) => entry.clone(),
            Ok(Some(Err(fault))) => return Err(fault.clone()),
            Ok(None) | Err(_) => return Err(Fault::before(ErrorKind::Connect, "the node's place is not known")),
        };
        let link = entry.connect().await?;
        if self.is_told && !is_primary(&link).await? {
            return Err(Fault::passing(ErrorKind::Readonly, "the node that the sentinels name is no primary"));
        }
        Ok(link)
    }
}

async fn is_primary(link: &Link) -> Result<bool, Fault> {
    let role = link.query::<Vec<Value>>(&redis::cmd("ROLE")).await;
    let role = role.map_err(|fault| Fault { maybe_applied: false, ..fault })?;
    Ok(matches!(role.first(), Some(Value::BulkString(role)) if role == b"master"))
}
