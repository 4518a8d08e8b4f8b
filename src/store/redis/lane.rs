//! One core's way to one shard: a queue, a connection, and a bounded number of calls in flight.
//!
//! What is queued in one turn of the event loop leaves in one call: the first to queue spawns the flush, which runs after
//! all tasks that are ready now. There is no timer, so a lone check waits for nobody. Whatever happens, each job is answered
//! by its deadline, and no job is sent twice once it may have been run.

use super::batch::{Job, Queue, Reply, Waiting};
use super::call;
use super::connect::Link;
use super::fault::Fault;
use super::script::Told;
use super::shard::Shard;
use crate::clock;
use crate::store::{ErrorKind, StoreError};
use redis::{Cmd, FromRedisValue};
use std::cell::{Cell, RefCell};
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::{Notify, oneshot};
use tokio::time::{timeout, timeout_at};

/// Groups in one call: beyond 64 the node's cost per check falls no further, and others wait for it longer.
const GROUPS_MAX: usize = 64;
/// Enough for 64 groups each to keep a node busy over a link of several milliseconds; beyond, jobs gather.
const CALLS_MAX: usize = 16;
/// At 100 000 checks a second on a core this is more than a timeout's worth: what is behind it could not be answered in time.
const QUEUE_MAX: usize = 8192;
/// A connection this long without a reply may have been closed unseen.
const IDLE_AFTER: Duration = Duration::from_millis(5);

pub(super) type Outcome = Result<Reply, StoreError>;

#[derive(Debug)]
pub(super) struct Lane {
    /// Of the shard, in the list of shards.
    index: usize,
    shard: Arc<Shard>,
    timeout: Duration,
    prefix: Arc<str>,
    queue: RefCell<Queue>,
    flushing: Cell<bool>,
    calls: Cell<usize>,
    call_ended: Notify,
    link: RefCell<Option<(Rc<Link>, u64)>>,
    last_reply: Cell<Instant>,
}

impl Lane {
    pub fn new(index: usize, shard: Arc<Shard>, timeout: Duration, prefix: Arc<str>) -> Rc<Self> {
        Rc::new(Self {
            index,
            shard,
            timeout,
            prefix,
            queue: RefCell::default(),
            flushing: Cell::new(false),
            calls: Cell::new(0),
            call_ended: Notify::new(),
            link: RefCell::new(None),
            last_reply: Cell::new(clock::now()),
        })
    }

    /// Queues a job. It is answered by its deadline; at once if the shard is open or too many wait already.
    pub fn ask(self: &Rc<Self>, job: Job) -> oneshot::Receiver<Outcome> {
        let (answer, receiver) = oneshot::channel();
        if self.shard.breaker().is_open() {
            let _ = answer.send(Err(self.open_error()));
            return receiver;
        }
        if self.queue.borrow().len() >= QUEUE_MAX {
            let fault = Fault::before(ErrorKind::Timeout, "queue full");
            let _ = answer.send(Err(fault.on(self.index)));
            // Too much is asked here; that says nothing about the shard.
            self.shard.note(&fault);
            return receiver;
        }
        self.queue.borrow_mut().push(Waiting { job, deadline: clock::now() + self.timeout, answer });
        if !self.flushing.replace(true) {
            tokio::task::spawn_local(self.clone().flush());
        }
        receiver
    }

    /// Nothing was sent.
    fn open_error(&self) -> StoreError {
        StoreError { kind: self.shard.last_kind(), shard: self.index, maybe_applied: false }
    }

    async fn flush(self: Rc<Self>) {
        if let Some((link, batch)) = self.send_all_but_last().await {
            self.call(link, batch).await;
        }
    }

    /// The last batch needs no task of its own; what comes while it is under way starts another flush.
    async fn send_all_but_last(self: &Rc<Self>) -> Option<(Rc<Link>, Queue)> {
        let _flushing = OnDrop(|| self.flushing.set(false));
        while let Some((link, batch)) = self.next_batch().await {
            if self.queue.borrow().is_empty() {
                return Some((link, batch));
            }
            tokio::task::spawn_local(self.clone().call(link, batch));
        }
        None
    }

    /// Waits for a connection and a free call, at most as long as somebody waits for them. `None`: nobody waits any more.
    async fn next_batch(&self) -> Option<(Rc<Link>, Queue)> {
        loop {
            if self.shard.breaker().is_open() {
                self.queue.borrow_mut().fail(self.open_error());
            }
            let deadline = self.queue.borrow().next_deadline()?;
            let ready = timeout_at(deadline.into(), self.ready()).await;
            // Whose deadline has passed before the call leaves is not sent at all.
            let fault = Fault::before(ErrorKind::Timeout, "no connection within the timeout");
            if self.queue.borrow_mut().expire(clock::now(), &fault, self.index) {
                self.shard.failed(&fault);
            }
            match ready {
                Err(_) => {}
                Ok(Ok(link)) => {
                    let batch = self.queue.borrow_mut().take(GROUPS_MAX);
                    if !batch.is_empty() {
                        self.calls.set(self.calls.get() + 1);
                        return Some((link, batch));
                    }
                }
                Ok(Err(fault)) => {
                    self.shard.failed(&fault);
                    self.queue.borrow_mut().fail(fault.on(self.index));
                }
            }
        }
    }

    async fn ready(&self) -> Result<Rc<Link>, Fault> {
        while self.calls.get() >= CALLS_MAX {
            self.call_ended.notified().await;
        }
        if self.calls.get() == 0 && clock::now().duration_since(self.last_reply.get()) > IDLE_AFTER {
            // Whether the node has closed the connection meanwhile is learnt from the event loop's next turn.
            tokio::task::yield_now().await;
        }
        self.connected().await
    }

    /// The connection, made anew if it has ended or is older than the shard's last failure.
    async fn connected(&self) -> Result<Rc<Link>, Fault> {
        let openings = self.shard.breaker().openings();
        if let Some((link, made_at)) = &*self.link.borrow()
            && !link.ended()
            && *made_at == openings
        {
            return Ok(link.clone());
        }
        self.link.take();
        let link = Rc::new(self.shard.target.connect().await?);
        self.link.replace(Some((link.clone(), openings)));
        Ok(link)
    }

    async fn call(self: Rc<Self>, link: Rc<Link>, mut batch: Queue) {
        let _call = OnDrop(|| {
            self.calls.set(self.calls.get() - 1);
            self.call_ended.notify_one();
        });
        self.shard.metrics.requests.inc();
        let started = clock::now();
        let outcome = self.rows(&link, &mut batch).await;
        let ended = clock::now();
        self.last_reply.set(ended);
        self.shard.observe(ended.duration_since(started));
        match outcome {
            None => {}
            Some(Ok(rows)) => {
                self.shard.answered();
                batch.answer(rows.into_iter());
            }
            Some(Err(fault)) => {
                self.failed(&link, &fault);
                batch.fail(fault.on(self.index));
            }
        }
    }

    fn failed(&self, link: &Rc<Link>, fault: &Fault) {
        if matches!(fault.kind, ErrorKind::Script | ErrorKind::Oom | ErrorKind::Loading) {
            return self.shard.failed(fault);
        }
        // A broken connection is of no use, and a demoted primary's address may name another node by now.
        let is_first = self.retire(link);
        if is_first || fault.kind != ErrorKind::Connect {
            self.shard.failed(fault);
        } else {
            // One connection was lost, however many calls were in it.
            self.shard.note(fault);
        }
    }

    /// Runs the call; jobs whose deadline passes meanwhile are answered, others of the same call may still be in time.
    /// `None`: nobody waits any more.
    async fn rows(&self, link: &Rc<Link>, batch: &mut Queue) -> Option<Result<Vec<Told>, Fault>> {
        let call = call::encode(&self.prefix, batch.jobs());
        let mut running = pin!(call::run(link.connection(), &call));
        let fault = Fault::late();
        let mut is_late = false;
        loop {
            let deadline = batch.next_deadline()?;
            if let Ok(result) = timeout_at(deadline.into(), &mut running).await {
                return Some(result);
            }
            if batch.expire(clock::now(), &fault, self.index) && !is_late {
                is_late = true;
                self.retire(link);
                self.shard.failed(&fault);
            }
        }
    }

    /// Starts no more calls on this connection; it ends with the last call in it, so no late reply meets another's question.
    /// Says whether it was the one in use.
    fn retire(&self, link: &Rc<Link>) -> bool {
        let mut current = self.link.borrow_mut();
        current.take_if(|(current, _)| Rc::ptr_eq(current, link)).is_some()
    }

    /// One command outside the batches, for an operator.
    pub async fn command<T: FromRedisValue>(&self, command: &Cmd) -> Result<T, StoreError> {
        let trip = async {
            let mut connection = self.connected().await?.connection();
            command.query_async(&mut connection).await.map_err(|error| Fault::calling(&error))
        };
        let result = match timeout(self.timeout, trip).await {
            Ok(result) => result,
            Err(_) => Err(Fault::late()),
        };
        result.map_err(|fault| {
            self.link.take();
            self.shard.failed(&fault);
            fault.on(self.index)
        })
    }
}

/// Runs its closure when dropped: after a panic too the lane goes on.
struct OnDrop<F: FnMut()>(F);

impl<F: FnMut()> Drop for OnDrop<F> {
    fn drop(&mut self) {
        self.0();
    }
}
