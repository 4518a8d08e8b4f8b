//! Sentinels: asks them where the primary is, now and then and whenever a failure suggests that it has moved.
//!
//! A sentinel is entered as its URL says, or without credentials where it has none; the primary with those of the URL.

use super::ask::ask_all;
use super::most_agreed;
use crate::store::ErrorKind;
use crate::store::redis::Shards;
use crate::store::redis::connect::{Address, Entry};
use crate::store::redis::fault::Fault;
use redis::{RedisConnectionInfo, Value};
use std::time::Duration;
use tokio::time::{sleep, timeout};

/// A failover that breaks no connection (a primary cut off from the sentinels, not from here) is followed after this.
const EVERY: Duration = Duration::from_secs(1);
/// Between two questions at least, however many failures there are.
const PAUSE: Duration = Duration::from_millis(50);

pub async fn follow(shards: &Shards, master: &str) {
    loop {
        let shard = &shards.map().shards[0];
        match ask(shards, master).await {
            Ok(entry) => {
                let address = entry.address().map(|address| address.to_string());
                if shard.target.tell(entry) {
                    tracing::info!(shard = shard.name, primary = address, "the sentinels name the primary");
                }
            }
            Err(fault) => shard.target.tell_unknown(fault),
        }
        sleep(PAUSE).await;
        let _ = timeout(EVERY, shards.stale().notified()).await;
    }
}

async fn ask(shards: &Shards, master: &str) -> Result<Entry, Fault> {
    let mut question = redis::cmd("SENTINEL");
    question.arg("GET-MASTER-ADDR-BY-NAME").arg(master);
    let within = shards.settings().timeout;
    let named: Vec<Entry> = shards.entries().iter().map(|entry| entry.with(sentinels_own)).collect();
    let mut answers = ask_all(&named, &question, within).await;
    let refused = |answer: &Result<Value, Fault>| answer.as_ref().is_err_and(|fault| fault.kind == ErrorKind::Auth);
    if answers.iter().all(refused) {
        let unnamed: Vec<Entry> =
            shards.entries().iter().map(|entry| entry.with(|_| RedisConnectionInfo::default())).collect();
        let without = ask_all(&unnamed, &question, within).await;
        if !without.iter().all(refused) {
            answers = without;
        }
    }
    let address = most_agreed(answers.into_iter().map(|answer| read(&answer?, master)).collect())?;
    shards.entries().first().map(|entry| entry.at(&address)).ok_or_else(|| unknown(master))
}

/// Sentinels have no databases.
fn sentinels_own(settings: &RedisConnectionInfo) -> RedisConnectionInfo {
    settings.clone().set_db(0)
}

fn read(answer: &Value, master: &str) -> Result<Address, Fault> {
    match answer {
        Value::Array(parts) => {
            let [Value::BulkString(host), Value::BulkString(port)] = parts.as_slice() else {
                return Err(unknown(master));
            };
            let text = format!("{}:{}", String::from_utf8_lossy(host), String::from_utf8_lossy(port));
            Address::parse(&text, "").ok_or_else(|| unknown(master))
        }
        _ => Err(unknown(master)),
    }
}

fn unknown(master: &str) -> Fault {
    Fault::before(ErrorKind::Other, format!("no sentinel knows a master named `{master}`"))
}
