//! How slowly a client may send or take, so that a trickle cannot hold a connection for good: Apache's rule
//! (`mod_reqtimeout`: so long at first, and longer as octets come), and nginx's bound on each pause besides.
//!
//! Only the time spent waiting for the client counts; what the other side took is not charged to it.

use std::time::Duration;
use tokio::time::Instant;

/// Octets that earn one more second of waiting; Apache's default `MinRate`.
const OCTETS_A_SECOND: u64 = 500;

#[derive(Debug)]
pub struct Pace {
    /// The longest single wait.
    pause: Duration,
    /// Waiting that is still allowed.
    left: Duration,
    waiting_since: Option<Instant>,
}

impl Pace {
    /// `grace`: waiting that costs no octets.
    #[must_use]
    pub fn new(grace: Duration, pause: Duration) -> Self {
        Self { pause, left: grace, waiting_since: None }
    }

    /// The client is waited for: until when.
    pub fn wait(&mut self) -> Instant {
        *self.waiting_since.get_or_insert_with(Instant::now) + self.left.min(self.pause)
    }

    /// The client has sent or taken so much.
    pub fn moved(&mut self, octets: u64) {
        if let Some(since) = self.waiting_since.take() {
            self.left = self.left.saturating_sub(since.elapsed());
        }
        let earned = Duration::from_micros(octets.saturating_mul(1_000_000 / OCTETS_A_SECOND));
        self.left = self.left.saturating_add(earned);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GRACE: Duration = Duration::from_secs(20);
    const PAUSE: Duration = Duration::from_secs(60);

    #[tokio::test(start_paused = true)]
    async fn a_trickle_is_cut_when_its_grace_is_spent() {
        let (mut pace, begun) = (Pace::new(GRACE, PAUSE), Instant::now());
        for _ in 0..19 {
            assert!(pace.wait() > Instant::now());
            tokio::time::advance(Duration::from_secs(1)).await;
            pace.moved(1);
        }
        // 19 octets have earned 38 ms.
        assert_eq!(pace.wait(), begun + GRACE + Duration::from_millis(38));
    }

    #[tokio::test(start_paused = true)]
    async fn a_steady_sender_earns_its_time_and_never_more_than_one_pause() {
        let mut pace = Pace::new(GRACE, PAUSE);
        for _ in 0..1000 {
            assert!(pace.wait() > Instant::now());
            tokio::time::advance(Duration::from_secs(10)).await;
            pace.moved(5000);
        }
        assert_eq!(pace.wait(), Instant::now() + GRACE);
        pace.moved(1 << 40);
        assert_eq!(pace.wait(), Instant::now() + PAUSE);
    }
}
