//! A deadline that is cheap to move: the timer underneath is armed once and re-armed only when it fires too early or
//! would fire too late. A connection that serves thousands of requests a second touches it about once a time-out.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use tokio::time::{Instant, Sleep, sleep_until};

#[derive(Debug, Default)]
pub struct Timer {
    sleep: Option<Pin<Box<Sleep>>>,
}

impl Timer {
    /// Ready once `at` has passed.
    pub fn poll_at(&mut self, at: Instant, cx: &mut Context<'_>) -> Poll<()> {
        let sleep = self.sleep.get_or_insert_with(|| Box::pin(sleep_until(at)));
        if sleep.deadline() > at {
            sleep.as_mut().reset(at);
        }
        while sleep.as_mut().poll(cx).is_ready() {
            if sleep.deadline() >= at {
                return Poll::Ready(());
            }
            sleep.as_mut().reset(at);
        }
        Poll::Pending
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::future::poll_fn;
    use std::time::Duration;

    #[tokio::test(start_paused = true)]
    async fn a_deadline_may_be_moved_later_and_earlier() {
        let (mut timer, start) = (Timer::default(), Instant::now());
        let at = |seconds| start + Duration::from_secs(seconds);
        let mut once = async |seconds| poll_fn(|cx| Poll::Ready(timer.poll_at(at(seconds), cx).is_ready())).await;
        assert!(!once(10).await);
        assert!(!once(20).await);
        tokio::time::advance(Duration::from_secs(11)).await;
        assert!(!once(20).await);
        assert!(!once(15).await);
        tokio::time::advance(Duration::from_secs(4)).await;
        assert!(once(15).await);
        assert!(!once(30).await);
    }
}
