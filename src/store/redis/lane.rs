//! One core's way to one shard: a queue, a connection, and a bounded number of calls in flight.
//!
//! What is queued in one turn of the event loop leaves in one call: the first to queue spawns the flush, which runs after
//! all tasks that are ready now. There is no timer, so a lone check waits for nobody. Whatever happens, each job is answered
//! by its deadline, and no job is sent twice once it may have been run. What the node refused without running it is handed
//! on (`routes`).

use super::batch::{Batch, Job, Part, Queue, Reply, Waiting};
use super::call::{self, Order};
use super::connect::{Address, Link};
use super::fault::{Fault, Next};
use super::routes::Routes;
use super::shard::Shard;
use crate::clock;
use crate::store::{ErrorKind, StoreError};
use redis::{Cmd, FromRedisValue};
use smallvec::SmallVec;
use std::cell::{Cell, RefCell};
use std::pin::pin;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::{Notify, oneshot};
use tokio::time::timeout_at;

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
    /// Of the shard, in the map's list of shards.
    index: Cell<usize>,
    /// Whether each key needs a script call of its own.
    parts_keys: Cell<bool>,
    shard: Arc<Shard>,
    timeout: Duration,
    prefix: Arc<str>,
    routes: Weak<Routes>,
    queue: RefCell<Queue>,
    flushing: Cell<bool>,
    calls: Cell<usize>,
    call_ended: Notify,
    link: RefCell<Option<(Rc<Link>, u64)>>,
    last_reply: Cell<Instant>,
}

impl Lane {
    pub fn new(shard: Arc<Shard>, timeout: Duration, prefix: Arc<str>, routes: Weak<Routes>) -> Rc<Self> {
        Rc::new(Self {
            index: Cell::new(0),
            parts_keys: Cell::new(false),
            shard,
            timeout,
            prefix,
            routes,
            queue: RefCell::default(),
            flushing: Cell::new(false),
            calls: Cell::new(0),
            call_ended: Notify::new(),
            link: RefCell::new(None),
            last_reply: Cell::new(clock::now()),
        })
    }

    pub fn set_place(&self, index: usize, parts_keys: bool) {
        self.index.set(index);
        self.parts_keys.set(parts_keys);
    }

    pub fn is_to(&self, shard: &Arc<Shard>) -> bool {
        Arc::ptr_eq(&self.shard, shard)
    }

    pub fn address(&self) -> Option<Address> {
        self.shard.target.address()
    }

    /// Queues a job. It is answered by its deadline; at once if the shard is open or too many wait already.
    pub fn ask(self: &Rc<Self>, job: Job) -> oneshot::Receiver<Outcome> {
        let (answer, receiver) = oneshot::channel();
        self.push(Waiting { job, deadline: clock::now() + self.timeout, answer, hops: 0, asking: false });
        receiver
    }

    /// The same for one that has waited before.
    pub fn push(self: &Rc<Self>, waiting: Waiting) {
        if self.shard.breaker().is_open() {
            let _ = waiting.answer.send(Err(self.open_error()));
            return;
        }
        if self.queue.borrow().len() >= QUEUE_MAX {
            let fault = Fault::before(ErrorKind::Timeout, "queue full");
            let _ = waiting.answer.send(Err(self.error(&fault)));
            // Too much is asked here; that says nothing about the shard.
            self.shard.note(&fault);
            return;
        }
        self.queue.borrow_mut().push(waiting);
        if !self.flushing.replace(true) {
            tokio::task::spawn_local(self.clone().flush());
        }
    }

    /// Nothing was sent.
    fn open_error(&self) -> StoreError {
        StoreError { kind: self.shard.last_kind(), shard: self.index.get(), maybe_applied: false }
    }

    fn error(&self, fault: &Fault) -> StoreError {
        fault.on(self.index.get())
    }

    async fn flush(self: Rc<Self>) {
        if let Some((link, batch)) = self.send_all_but_last().await {
            self.call(link, batch).await;
        }
    }

    /// The last batch needs no task of its own; what comes while it is under way starts another flush.
    async fn send_all_but_last(self: &Rc<Self>) -> Option<(Rc<Link>, Batch)> {
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
    async fn next_batch(&self) -> Option<(Rc<Link>, Batch)> {
        loop {
            if self.shard.breaker().is_open() {
                self.queue.borrow_mut().fail(self.open_error());
            }
            let deadline = self.queue.borrow().next_deadline()?;
            let ready = timeout_at(deadline.into(), self.ready()).await;
            // Whose deadline has passed before the call leaves is not sent at all.
            let fault = Fault::before(ErrorKind::Timeout, "no connection within the timeout");
            if self.queue.borrow_mut().expire(clock::now(), &fault, self.index.get()) {
                self.shard.failed(&fault);
            }
            match ready {
                Err(_) => {}
                Ok(Ok(link)) => {
                    let batch = self.queue.borrow_mut().take(GROUPS_MAX);
                    if !batch.is_empty() {
                        self.calls.set(self.calls.get() + 1);
                        let batch = if self.parts_keys.get() { Batch::by_key(batch) } else { Batch::whole(batch) };
                        return Some((link, batch));
                    }
                }
                Ok(Err(fault)) => {
                    let mut waiting = self.queue.take();
                    if self.may_repeat(&fault) {
                        self.hand_on(waiting, &fault);
                    } else {
                        self.shard.failed(&fault);
                        waiting.fail(self.error(&fault));
                    }
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
        let era = self.shard.era();
        if let Some((link, made_at)) = &*self.link.borrow()
            && !link.ended()
            && *made_at == era
        {
            return Ok(link.clone());
        }
        self.link.take();
        let link = Rc::new(self.shard.target.connect().await?);
        self.link.replace(Some((link.clone(), era)));
        Ok(link)
    }

    async fn call(self: Rc<Self>, link: Rc<Link>, mut batch: Batch) {
        let _call = OnDrop(|| {
            self.calls.set(self.calls.get() - 1);
            self.call_ended.notify_one();
        });
        self.shard.metrics.requests.inc();
        let started = clock::now();
        let results = self.results(&link, &mut batch).await;
        let ended = clock::now();
        self.last_reply.set(ended);
        self.shard.observe(ended.duration_since(started));
        if let Some(results) = results {
            self.judge(&link, &results);
            for (mut part, result) in batch.parts.into_iter().zip(results) {
                match result {
                    Ok(rows) => part.jobs.answer(rows),
                    Err(fault) if self.may_repeat(&fault) => self.hand_on(part.jobs, &fault),
                    Err(fault) => part.jobs.fail(self.error(&fault)),
                }
            }
        }
    }

    /// What the results of one call say about the shard, and about the connection.
    fn judge(&self, link: &Rc<Link>, results: &call::Results) {
        let faults = || results.iter().filter_map(|result| result.as_ref().err());
        if let Some(fault) = faults().find(|fault| !self.may_repeat(fault)) {
            self.failed(link, fault);
        } else if results.iter().any(|result| result.as_ref().map_or_else(|fault| fault.next != Next::Again, |_| true))
        {
            self.shard.answered();
        }
        if faults().any(|fault| fault.kind == ErrorKind::Readonly) {
            self.retire(link);
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

    fn may_repeat(&self, fault: &Fault) -> bool {
        fault.next != Next::Nothing && self.routes.upgrade().is_some_and(|routes| routes.may_repeat(fault))
    }

    /// Whom nobody else can answer in time is answered with the fault; that is a failure of the shard after all.
    fn hand_on(&self, refused: Queue, fault: &Fault) {
        let routes = self.routes.upgrade();
        let mut has_failed = false;
        for waiting in refused.into_iter() {
            let left = match &routes {
                Some(routes) => routes.hand_on(waiting, fault, self),
                None => Some(waiting),
            };
            if let Some(waiting) = left {
                if !std::mem::replace(&mut has_failed, true) {
                    self.shard.failed(fault);
                }
                let _ = waiting.answer.send(Err(self.error(fault)));
            }
        }
    }

    /// Runs the calls; jobs whose deadline passes meanwhile are answered, others of the same call may still be in time.
    /// `None`: nobody waits any more.
    async fn results(&self, link: &Rc<Link>, batch: &mut Batch) -> Option<call::Results> {
        let order = |part: &Part| Order { call: call::encode(&self.prefix, part.jobs.jobs()), asking: part.asking };
        let orders: SmallVec<[Order<'_>; 1]> = batch.parts.iter().map(order).collect();
        let mut running = pin!(call::run(link.connection(), &orders));
        let fault = Fault::late();
        let mut is_late = false;
        loop {
            let deadline = batch.next_deadline()?;
            if let Ok(results) = timeout_at(deadline.into(), &mut running).await {
                return Some(results);
            }
            if batch.expire(clock::now(), &fault, self.index.get()) && !is_late {
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

    /// One command outside the batches.
    pub async fn command<T: FromRedisValue>(&self, command: &Cmd, asking: bool) -> Result<T, Fault> {
        let mut connection = self.connected().await?.connection();
        let mut pipeline = redis::pipe();
        if asking {
            pipeline.cmd("ASKING").ignore();
        }
        pipeline.add_command(command.clone());
        let (reply,) = pipeline.query_async(&mut connection).await.map_err(|error| Fault::calling(&error))?;
        Ok(reply)
    }

    /// A command outside the batches has failed for good.
    pub fn gave_up(&self, fault: &Fault) -> StoreError {
        self.link.take();
        self.shard.failed(fault);
        self.error(fault)
    }
}

/// Runs its closure when dropped: after a panic too the lane goes on.
struct OnDrop<F: FnMut()>(F);

impl<F: FnMut()> Drop for OnDrop<F> {
    fn drop(&mut self) {
        self.0();
    }
}
