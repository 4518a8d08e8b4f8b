//! One question to several nodes at the same time.

use crate::store::ErrorKind;
use crate::store::redis::connect::Entry;
use crate::store::redis::fault::Fault;
use redis::{Cmd, Value};
use std::time::Duration;
use tokio::task::JoinSet;
use tokio::time::timeout;

/// Each on a connection of its own and within the timeout; the answers are in the order of the nodes.
pub(super) async fn ask_all(entries: &[Entry], question: &Cmd, within: Duration) -> Vec<Result<Value, Fault>> {
    let mut asking = JoinSet::new();
    for (at, entry) in entries.iter().cloned().enumerate() {
        let question = question.clone();
        asking.spawn(async move {
            let answer = timeout(within, async { entry.connect().await?.query(&question).await });
            let late = || Fault::before(ErrorKind::Timeout, "no answer within the timeout");
            (at, answer.await.unwrap_or_else(|_| Err(late())).map_err(plain))
        });
    }
    let mut answers = asking.join_all().await;
    answers.sort_by_key(|(at, _)| *at);
    answers.into_iter().map(|(_, answer)| answer).collect()
}

/// No check was in it, and no script: what a node calls an error is that it is not what it is taken for.
fn plain(fault: Fault) -> Fault {
    let kind = if fault.kind == ErrorKind::Script { ErrorKind::Other } else { fault.kind };
    Fault { kind, maybe_applied: false, ..fault }
}
