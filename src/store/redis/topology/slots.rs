//! A cluster's slots: which slot a key has, who holds it, and what nodes say about that.

use crate::store::CounterKey;
use crate::store::ErrorKind;
use crate::store::redis::connect::Address;
use crate::store::redis::fault::Fault;
use crate::store::redis::script::key_text;
use crc::{CRC_16_XMODEM, Crc};
use redis::Value;

const COUNT: u16 = 16_384;

static CRC: Crc<u16> = Crc::<u16>::new(&CRC_16_XMODEM);

/// The shard of each slot, an index into the map's list.
#[derive(Clone, PartialEq, Eq)]
pub struct Slots {
    key_prefix: String,
    homes: Vec<u16>,
}

impl std::fmt::Debug for Slots {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Slots").field("key_prefix", &self.key_prefix).finish_non_exhaustive()
    }
}

impl Slots {
    /// Slots that nobody holds are the first shard's, which says so when it is asked.
    pub fn new(key_prefix: &str, view: &View, shard_of: impl Fn(&Address) -> usize) -> Self {
        let mut homes = vec![0; usize::from(COUNT)];
        for Range { first, last, primary } in &view.0 {
            let home = u16::try_from(shard_of(primary)).unwrap_or_default();
            homes[usize::from(*first)..=usize::from(*last)].fill(home);
        }
        Self { key_prefix: key_prefix.to_owned(), homes }
    }

    pub fn home_of(&self, key: CounterKey) -> usize {
        // Neither the prefix nor the digest holds a brace, so the whole key counts.
        let slot = CRC.checksum(&key_text(&self.key_prefix, key)) % COUNT;
        usize::from(self.homes[usize::from(slot)])
    }

    pub fn first_of(&self, shard: usize) -> Option<u16> {
        let slot = self.homes.iter().position(|home| usize::from(*home) == shard)?;
        u16::try_from(slot).ok()
    }

    /// A key of that slot: the name and a number. One of some 16 000 fits, which takes less than a millisecond.
    pub fn key_in(&self, slot: u16, name: &str) -> String {
        let begun = format!("{}:{name}:", self.key_prefix);
        let mut digest = CRC.digest();
        digest.update(begun.as_bytes());
        let fits = |number: &u32| {
            let mut digest = digest.clone();
            digest.update(number.to_string().as_bytes());
            digest.finalize() % COUNT == slot
        };
        let number = (0..u32::MAX).find(fits).unwrap_or_default();
        format!("{begun}{number}")
    }
}

/// Who holds which slots, in a node's words.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct View(Vec<Range>);

#[derive(Clone, PartialEq, Eq, Debug)]
struct Range {
    first: u16,
    last: u16,
    primary: Address,
}

impl View {
    /// Reads the reply to `CLUSTER SLOTS` of the node at `said_by`.
    pub fn read(reply: &Value, said_by: &str) -> Result<Self, Fault> {
        let malformed =
            || Fault::before(ErrorKind::Other, "the reply to CLUSTER SLOTS has another shape than it should");
        let Value::Array(rows) = reply else { return Err(malformed()) };
        let mut ranges = Vec::with_capacity(rows.len());
        for row in rows {
            // A primary whose address the node does not know is left out.
            ranges.extend(range(row, said_by).ok_or_else(malformed)?);
        }
        ranges.sort_by_key(|range| range.first);
        if ranges.is_empty() {
            return Err(Fault::before(ErrorKind::Other, "the cluster's slots are not assigned yet"));
        }
        Ok(Self(ranges))
    }

    /// In the order of their slots, each once.
    pub fn primaries(&self) -> Vec<&Address> {
        let mut found: Vec<&Address> = Vec::new();
        for range in &self.0 {
            if !found.contains(&&range.primary) {
                found.push(&range.primary);
            }
        }
        found
    }
}

/// `[first, last, [host, port, …], replicas…]`; an absent host is the one of the node that was asked.
fn range(row: &Value, said_by: &str) -> Option<Option<Range>> {
    let Value::Array(row) = row else { return None };
    let [Value::Int(first), Value::Int(last), Value::Array(primary), ..] = row.as_slice() else { return None };
    let [host, Value::Int(port), ..] = primary.as_slice() else { return None };
    let host = match host {
        Value::Nil => said_by.to_owned(),
        Value::BulkString(host) if host.is_empty() => said_by.to_owned(),
        Value::BulkString(host) if host == b"?" => return Some(None),
        Value::BulkString(host) => String::from_utf8(host.clone()).ok()?,
        _ => return None,
    };
    let slot = |number: i64| u16::try_from(number).ok().filter(|slot| *slot < COUNT);
    let (first, last) = (slot(*first)?, slot(*last)?);
    let primary = Address { host, port: u16::try_from(*port).ok()? };
    (first <= last).then_some(Some(Range { first, last, primary }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn view(reply: &str) -> Result<View, Fault> {
        View::read(&redis::parse_redis_value(reply.replace(' ', "\r\n").as_bytes()).unwrap(), "10.0.0.9")
    }

    fn at(host: &str, port: u16) -> Address {
        Address { host: host.to_owned(), port }
    }

    #[test]
    fn the_slot_of_a_key_is_the_one_that_the_cluster_specification_gives() {
        assert_eq!(CRC.checksum(b"123456789"), 0x31c3);
    }

    #[test]
    fn what_a_node_says_of_the_slots_is_read_with_hosts_left_out_and_unknown_ones() {
        let view =
            view("*3 *3 :8000 :16383 *2 $0  :2 *4 :0 :7998 *2 $1 a :1 *2 $1 r :9 *3 :7999 :7999 *2 $1 ? :3 ").unwrap();
        assert_eq!(view.primaries(), [&at("a", 1), &at("10.0.0.9", 2)]);
        let slots = Slots::new("p", &view, |primary| usize::from(primary.port));
        assert_eq!([0, 7998, 7999, 8000, 16_383].map(|slot: usize| slots.homes[slot]), [1, 1, 0, 2, 2]);
        assert_eq!([1, 2, 3].map(|shard| slots.first_of(shard)), [Some(0), Some(8000), None]);
    }

    #[test]
    fn a_reply_that_is_none_is_a_fault_and_no_panic() {
        let replies = [
            "*0 ",
            ":1 ",
            "*1 :1 ",
            "*1 *3 :0 :16384 *2 $1 a :1 ",
            "*1 *3 :5 :4 *2 $1 a :1 ",
            "*1 *3 :0 :1 *2 $1 a :99999 ",
        ];
        assert!(replies.iter().all(|reply| view(reply).is_err()));
    }

    #[test]
    fn a_key_made_for_a_slot_has_it() {
        let view = view("*1 *3 :0 :16383 *2 $1 a :1 ").unwrap();
        let slots = Slots::new("staunch", &view, |_| 0);
        for slot in [0, 1, 8191, 16_383] {
            let key = slots.key_in(slot, "gateways");
            assert_eq!(CRC.checksum(key.as_bytes()) % COUNT, slot);
            assert!(key.starts_with("staunch:gateways:"));
        }
    }
}
