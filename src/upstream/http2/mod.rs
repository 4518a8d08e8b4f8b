//! HTTP/2 to an endpoint (RFC 9113): one core's connections to it, each shared by many requests.
//!
//! A connection has a task of its own that moves its frames; an exchange is driven by the client's task, and dropping it
//! resets its stream. The `h2` crate itself and not `hyper` above it: which streams the endpoint never looked at, and how
//! many it takes at once, is told only there.

mod answer;
mod exchange;
mod link;
mod request;
mod tunnel;
mod upload;

pub(super) use exchange::exchange;
pub(super) use link::{Link, Open, open};

use crate::clock;
use std::cell::{Cell, RefCell};
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;
use tokio::sync::Mutex;

/// One core's HTTP/2 connections to one endpoint.
#[derive(Debug)]
pub struct Links {
    links: RefCell<Vec<Rc<Link>>>,
    /// Whoever finds no room opens a connection, and those that come meanwhile wait for that one.
    opening: Mutex<()>,
    failures: Cell<u64>,
    last_failure: RefCell<String>,
    idle_timeout: Duration,
}

impl Links {
    pub(super) fn new(idle_timeout: Duration) -> Self {
        let (links, opening) = (RefCell::default(), Mutex::default());
        Self { links, opening, failures: Cell::default(), last_failure: RefCell::default(), idle_timeout }
    }

    /// A stream on a connection that has room for it, opened if there is none.
    pub(super) async fn stream(&self, open: impl Future<Output = io::Result<Link>>) -> io::Result<Open> {
        if let Some(stream) = self.free() {
            return Ok(stream);
        }
        let failures = self.failures.get();
        let _turn = self.opening.lock().await;
        if let Some(stream) = self.free() {
            return Ok(stream);
        }
        if self.failures.get() != failures {
            return Err(io::Error::other(self.last_failure.borrow().clone()));
        }
        match open.await {
            Ok(link) => {
                let link = Rc::new(link);
                self.links.borrow_mut().push(link.clone());
                Ok(Open::new(link))
            }
            Err(error) => {
                self.failures.set(failures + 1);
                self.last_failure.replace(error.to_string());
                Err(error)
            }
        }
    }

    /// The first that has room, so that those at the end can become idle.
    fn free(&self) -> Option<Open> {
        self.sweep();
        let links = self.links.borrow();
        links.iter().find(|link| link.has_room()).cloned().map(Open::new)
    }

    /// Closes what has been idle for too long, and lets go of what has ended.
    pub(super) fn sweep(&self) {
        let now = clock::now();
        self.links.borrow_mut().retain(|link| link.is_usable() && !link.is_idle(now, self.idle_timeout));
    }

    /// Lets go of those that do not lead `here`: they get no more streams.
    pub(super) fn keep(&self, here: impl Fn(io::Result<SocketAddr>) -> bool) {
        self.links.borrow_mut().retain(|link| here(link.peer()));
    }
}
