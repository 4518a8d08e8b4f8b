//! The streams of an HTTP/2 connection as the gateway sees them: request bodies bounded in size and pace, answers that
//! know whether the client takes them, and what both tell of the connection as a whole.

use super::pace::Pace;
use crate::http1::{Timer, trailer};
use crate::message::{Body, BodyError};
use crate::proxy::Bounds;
use bytes::Bytes;
use http_body::{Frame, SizeHint};
use hyper::body::Incoming;
use std::cell::{Cell, RefCell};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::time::Instant;

/// What a connection's streams are doing.
#[derive(Debug)]
pub struct Activity {
    open: Cell<usize>,
    /// Whether there ever was one.
    begun: Cell<bool>,
    /// Answers of which a piece has been handed out and is not taken yet.
    untaken: RefCell<Vec<Rc<Answer>>>,
    /// When a stream was last opened, closed, or had a piece taken.
    moved: Cell<Instant>,
}

/// An answer's body, shared by the stream that sends it and the connection that watches over it.
#[derive(Debug)]
struct Answer {
    body: RefCell<Body>,
    /// When the piece was handed out that is not taken yet.
    since: Cell<Instant>,
    given_up: Cell<bool>,
}

/// How it is with a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum State {
    /// At work or allowed to be idle; to be looked at again then.
    Fine(Instant),
    /// Idle for too long.
    Idle,
    /// The client takes none of its answers.
    Stalled,
}

impl Activity {
    #[must_use]
    pub fn new() -> Rc<Self> {
        let (open, begun, untaken) = (Cell::new(0), Cell::new(false), RefCell::default());
        Rc::new(Self { open, begun, untaken, moved: Cell::new(Instant::now()) })
    }

    #[must_use]
    pub fn open_streams(&self) -> usize {
        self.open.get()
    }

    /// Whether the client has made a request.
    #[must_use]
    pub fn has_begun(&self) -> bool {
        self.begun.get()
    }

    /// Lets go of answers of which the client has not taken a piece for so long, whatever it does on other streams: what they are
    /// read from is free for others. Such a stream is reset when the client takes on. Tells when to look again.
    pub fn give_up(&self, stall: Duration) -> Option<Instant> {
        let now = Instant::now();
        let untaken = self.untaken.borrow();
        let waiting = untaken.iter().filter(|answer| !answer.given_up.get());
        waiting.fold(None, |next, answer| match answer.since.get() + stall {
            until if until <= now => {
                answer.given_up.set(true);
                answer.body.take();
                next
            }
            until => Some(next.map_or(until, |next: Instant| next.min(until))),
        })
    }

    #[must_use]
    pub fn state(&self, idle: Duration, stall: Duration) -> State {
        let (now, moved) = (Instant::now(), self.moved.get());
        match (self.open.get(), self.untaken.borrow().len()) {
            (0, _) if moved + idle <= now => State::Idle,
            (0, _) => State::Fine(moved + idle),
            (_, 1..) if moved + stall <= now => State::Stalled,
            (_, 1..) => State::Fine(moved + stall),
            _ => State::Fine(now + idle.min(stall)),
        }
    }
}

/// One open stream in its connection's count.
#[derive(Debug)]
pub struct Open {
    activity: Rc<Activity>,
    /// The head of the answer has been given.
    answered: Rc<Cell<bool>>,
}

impl Open {
    #[must_use]
    pub fn new(activity: &Rc<Activity>) -> Self {
        activity.open.set(activity.open.get() + 1);
        activity.begun.set(true);
        activity.moved.set(Instant::now());
        Self { activity: activity.clone(), answered: Rc::default() }
    }

    /// The request's body.
    #[must_use]
    pub fn request_body(&self, incoming: Incoming, bounds: &Bounds) -> RequestStream {
        RequestStream {
            incoming,
            allowed: bounds.max_body_bytes,
            pace: Pace::new(bounds.body_grace(), bounds.stall_timeout),
            timer: Timer::default(),
            answered: self.answered.clone(),
        }
    }

    /// The same stream once more: what it opened goes on when it has been answered.
    #[must_use]
    pub fn again(&self) -> Self {
        Self::new(&self.activity)
    }

    /// The answer's body; the stream stays open as long as it.
    #[must_use]
    pub fn answer_body(self, body: Body) -> AnswerStream {
        self.answered.set(true);
        let answer = Answer { body: RefCell::new(body), since: Cell::new(Instant::now()), given_up: Cell::new(false) };
        AnswerStream { answer: Rc::new(answer), open: self }
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.activity.open.set(self.activity.open.get() - 1);
        self.activity.moved.set(Instant::now());
    }
}

/// The body of a request, bounded by `max_body_bytes` and in how slowly it may come.
pub struct RequestStream {
    incoming: Incoming,
    allowed: u64,
    pace: Pace,
    timer: Timer,
    /// Both sides speak then, as in a streaming call, and may be silent; the connection's pings tell whether it lives.
    answered: Rc<Cell<bool>>,
}

impl http_body::Body for RequestStream {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let body = self.get_mut();
        match Pin::new(&mut body.incoming).poll_frame(cx) {
            Poll::Ready(next) => Poll::Ready(next.map(|frame| body.take(frame.map_err(|_| BodyError::ClientGone)?))),
            Poll::Pending if body.answered.get() => Poll::Pending,
            Poll::Pending => body.timer.poll_at(body.pace.wait(), cx).map(|()| Some(Err(BodyError::TooSlow))),
        }
    }

    fn is_end_stream(&self) -> bool {
        self.incoming.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.incoming.size_hint()
    }
}

impl RequestStream {
    fn take(&mut self, mut frame: Frame<Bytes>) -> Result<Frame<Bytes>, BodyError> {
        if let Some(trailers) = frame.trailers_mut() {
            trailer::keep_harmless(trailers);
        }
        let length = frame.data_ref().map_or(0, |data| data.len() as u64);
        self.pace.moved(length);
        self.allowed = self.allowed.checked_sub(length).ok_or(BodyError::TooLarge)?;
        Ok(frame)
    }
}

/// The body of an answer. `hyper` asks for the next piece when the client has made room for it.
pub struct AnswerStream {
    answer: Rc<Answer>,
    open: Open,
}

impl AnswerStream {
    fn hold(&self, untaken: bool) {
        let mut list = self.open.activity.untaken.borrow_mut();
        list.retain(|answer| !Rc::ptr_eq(answer, &self.answer));
        if untaken {
            self.answer.since.set(Instant::now());
            list.push(self.answer.clone());
        }
    }
}

impl http_body::Body for AnswerStream {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        if self.answer.given_up.get() {
            return Poll::Ready(Some(Err(BodyError::TooSlow)));
        }
        self.open.activity.moved.set(Instant::now());
        let next = Pin::new(&mut *self.answer.body.borrow_mut()).poll_frame(cx);
        self.hold(matches!(next, Poll::Ready(Some(Ok(_)))));
        next
    }

    fn is_end_stream(&self) -> bool {
        !self.answer.given_up.get() && self.answer.body.borrow().is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.answer.body.borrow().size_hint()
    }
}

impl Drop for AnswerStream {
    fn drop(&mut self) {
        self.hold(false);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use http_body_util::BodyExt;

    const IDLE: Duration = Duration::from_secs(75);
    const STALL: Duration = Duration::from_secs(60);

    #[tokio::test(start_paused = true)]
    async fn a_connection_is_idle_only_once_its_last_answer_has_been_taken() {
        let activity = Activity::new();
        let mut answer = Open::new(&activity).answer_body(Body::from(Bytes::from_static(b"abc")));
        tokio::time::advance(IDLE).await;
        assert!(matches!(activity.state(IDLE, STALL), State::Fine(_)));
        answer.frame().await.unwrap().unwrap();
        assert!(answer.frame().await.is_none());
        drop(answer);
        assert_eq!(activity.state(IDLE, STALL), State::Fine(Instant::now() + IDLE));
        tokio::time::advance(IDLE).await;
        assert_eq!(activity.state(IDLE, STALL), State::Idle);
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_takes_no_piece_for_too_long_has_stalled() {
        let activity = Activity::new();
        let mut answer = Open::new(&activity).answer_body(Body::from(Bytes::from_static(b"abc")));
        answer.frame().await.unwrap().unwrap();
        tokio::time::advance(STALL - Duration::from_secs(1)).await;
        assert!(matches!(activity.state(IDLE, STALL), State::Fine(_)));
        tokio::time::advance(Duration::from_secs(1)).await;
        assert_eq!(activity.state(IDLE, STALL), State::Stalled);
    }

    #[tokio::test(start_paused = true)]
    async fn an_answer_that_is_not_taken_is_given_up_though_others_are() {
        let activity = Activity::new();
        let answer = |text: &'static [u8]| Open::new(&activity).answer_body(Body::from(Bytes::from_static(text)));
        let mut left_lying = answer(b"abc");
        left_lying.frame().await.unwrap().unwrap();
        for _ in 0..4 {
            assert!(activity.give_up(STALL).is_some());
            tokio::time::advance(STALL / 4).await;
            answer(b"another").frame().await.unwrap().unwrap();
        }
        assert_eq!(activity.give_up(STALL), None);
        assert!(matches!(activity.state(IDLE, STALL), State::Fine(_)), "the connection goes on");
        assert_eq!(left_lying.frame().await.unwrap().unwrap_err(), BodyError::TooSlow);
    }
}
