//! The end of serving, as one core's connections see it: first "finish what you have", then "stop".

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::future::poll_fn;
use std::rc::Rc;
use std::task::{Poll, Waker};
use std::time::Duration;

/// For a new connection while the gateway drains: a handshake and a request over a slow link, sent without a pause.
const FIRST_OCTETS: Duration = Duration::from_secs(1);

#[derive(Debug, Default)]
pub struct Drain {
    draining: Cell<bool>,
    over: Cell<bool>,
    next: Cell<u64>,
    /// The task of each open connection and listening socket, to be woken when draining begins: an idle one has nothing else to wake it.
    open: RefCell<HashMap<u64, Waker>>,
}

/// An open connection; dropped at its end.
#[derive(Debug)]
pub struct Open {
    drain: Rc<Drain>,
    number: u64,
}

impl Drain {
    #[must_use]
    pub fn is_draining(&self) -> bool {
        self.draining.get()
    }

    /// Idle connections close now, busy ones after the answer in hand, new ones after their first.
    pub fn begin(&self) {
        self.draining.set(true);
        self.wake_all();
    }

    /// What is still open has had its time.
    pub fn end(&self) {
        self.over.set(true);
        self.wake_all();
    }

    #[must_use]
    pub fn open_connections(&self) -> usize {
        self.open.borrow().len()
    }

    /// Ready when the time to drain is over.
    pub async fn ended(&self) {
        poll_fn(|_| if self.over.get() { Poll::Ready(()) } else { Poll::Pending }).await;
    }

    /// Ready when a client that has said nothing yet need not be waited for any longer: draining has begun, and what a new
    /// connection was made for would have come. It does not know that it reached a gateway that goes, and would take a
    /// close for a failure.
    pub async fn left_behind(&self) {
        poll_fn(|_| if self.draining.get() { Poll::Ready(()) } else { Poll::Pending }).await;
        tokio::time::sleep(FIRST_OCTETS).await;
    }

    /// Enters the running task as an open connection.
    pub async fn enter(self: Rc<Self>) -> Open {
        let waker = poll_fn(|cx| Poll::Ready(cx.waker().clone())).await;
        let number = self.next.replace(self.next.get() + 1);
        self.open.borrow_mut().insert(number, waker);
        Open { drain: self, number }
    }

    fn wake_all(&self) {
        self.open.borrow().values().for_each(Waker::wake_by_ref);
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.drain.open.borrow_mut().remove(&self.number);
    }
}
