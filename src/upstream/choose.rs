//! The choice of an endpoint: among those that are in and untried, else those that requests failed on, else those that this
//! request was tried on already. One that health checks have found unhealthy is never chosen.

use super::balance::{Balance, draw, home, less_busy_of_two, turn_or_draw};
use super::state::{Condition, FULL_SHARE, InFlight};
use super::{Endpoint, Upstream};
use crate::clock;
use smallvec::SmallVec;

/// An endpoint by its index, and what counts the request there, where that is counted.
#[derive(Debug)]
pub struct Chosen {
    pub index: usize,
    pub held: Option<InFlight>,
}

/// Why no endpoint can take a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoEndpoint {
    /// The health checks of all fail.
    Unhealthy,
    /// All that could take it have `max_connections` requests.
    Full,
}

/// How good an endpoint is for a request; the lowest is taken.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Rank {
    Fresh,
    Ejected,
    Tried,
    TriedAndEjected,
    Unhealthy,
}

type Weights = SmallVec<[u64; 16]>;

impl Upstream {
    /// An endpoint for a request that was tried on those in `tried`. `affinity`: what holds it to one endpoint.
    pub(super) fn choose(&self, affinity: Option<u128>, tried: &[usize]) -> Result<Chosen, NoEndpoint> {
        // The common case: all that it costs is the turn, and a look at one word.
        if self.balance == Balance::RoundRobin && tried.is_empty() && self.max_connections.is_none() {
            let index = self.rotation.turn();
            if self.endpoints[index].state.is_plain() {
                return Ok(Chosen { index, held: None });
            }
            return self.choose_with_care(None, tried, Some(index));
        }
        self.choose_with_care(affinity, tried, None)
    }

    fn choose_with_care(
        &self,
        affinity: Option<u128>,
        tried: &[usize],
        turn: Option<usize>,
    ) -> Result<Chosen, NoEndpoint> {
        let mut weights = self.weigh(affinity.is_some(), tried)?;
        let by_turn = self.balance != Balance::LeastRequests && affinity.is_none();
        let mut turn = turn.or_else(|| by_turn.then(|| self.rotation.turn()));
        while let Some(index) = self.pick(&weights, affinity, turn.take()) {
            if !self.counts_requests() {
                return Ok(Chosen { index, held: None });
            }
            if let Some(held) = self.endpoints[index].state.enter(self.max_connections) {
                return Ok(Chosen { index, held: Some(held) });
            }
            // Each round takes one endpoint out, so there are no more than endpoints.
            weights[index] = 0;
        }
        Err(NoEndpoint::Full)
    }

    /// Whether requests under way are counted for each endpoint; what nobody looks at costs nothing.
    #[must_use]
    pub fn counts_requests(&self) -> bool {
        self.balance == Balance::LeastRequests || self.max_connections.is_some()
    }

    /// Each endpoint's weight, 0 for those that are not to be picked.
    fn weigh(&self, by_key: bool, tried: &[usize]) -> Result<Weights, NoEndpoint> {
        let now = clock::now();
        let ranked: SmallVec<[Rank; 16]> = self
            .endpoints
            .iter()
            .enumerate()
            .map(|(index, endpoint)| {
                endpoint.state.settle(now, &self.ejection, self.slow_start);
                rank(endpoint, tried.contains(&index))
            })
            .collect();
        let best = ranked.iter().min().copied().filter(|best| *best != Rank::Unhealthy).ok_or(NoEndpoint::Unhealthy)?;
        let weight = |(endpoint, rank): (&Endpoint, &Rank)| match *rank == best {
            // A key keeps its home while that warms: what it cached is worth more than the difference.
            true if by_key => full(endpoint),
            true => u64::from(endpoint.weight) * endpoint.state.share(now),
            false => 0,
        };
        Ok(self.endpoints.iter().zip(&ranked).map(weight).collect())
    }

    fn pick(&self, weights: &[u64], affinity: Option<u128>, turn: Option<usize>) -> Option<usize> {
        match (self.balance, affinity, turn) {
            (Balance::LeastRequests, ..) => {
                less_busy_of_two(weights, |index| self.endpoints[index].state.in_flight() as u64)
            }
            (Balance::ConsistentHash, Some(digest), _) => home(weights, |index| self.endpoints[index].hash, digest),
            (_, _, Some(turn)) => turn_or_draw(turn, full(&self.endpoints[turn]), weights),
            (_, _, None) => draw(weights),
        }
    }
}

fn full(endpoint: &Endpoint) -> u64 {
    u64::from(endpoint.weight) * FULL_SHARE
}

fn rank(endpoint: &Endpoint, tried: bool) -> Rank {
    match (endpoint.state.condition(), tried) {
        (Condition::Unhealthy, _) => Rank::Unhealthy,
        (Condition::Healthy, false) => Rank::Fresh,
        (Condition::Ejected, false) => Rank::Ejected,
        (Condition::Healthy, true) => Rank::Tried,
        (Condition::Ejected, true) => Rank::TriedAndEjected,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::telemetry::metrics::{self, RetryMetrics};
    use crate::upstream::Registry;
    use crate::upstream::balance::Rotation;
    use crate::upstream::eject::Ejection;
    use crate::upstream::endpoint::{Transport, Wanted};
    use proptest::prelude::*;
    use std::time::Duration;

    const RULE: Ejection =
        Ejection { failures: 1, base_time: Duration::from_hours(1), max_time: Duration::from_hours(1) };

    const DIRECT: Transport = Transport { tls: None, http2: false };

    fn upstream(balance: Balance, count: u16) -> Upstream {
        let mut registry = Registry::default();
        let wanted = |port| Wanted {
            upstream: "choose",
            host: "10.0.0.1",
            port,
            transport: &DIRECT,
            weight: 1,
            idle_timeout: Duration::ZERO,
            resolve_every: Duration::ZERO,
            health: None,
        };
        Upstream {
            name: "choose".to_owned(),
            endpoints: (1..=count).map(|port| registry.endpoint(&wanted(port))).collect(),
            balance,
            rotation: Rotation::new(&vec![1; usize::from(count)]),
            connect_timeout: Duration::ZERO,
            idle_timeout: Duration::ZERO,
            retries: 1,
            retry_budget: 20,
            budget: registry.budget("choose"),
            ejection: RULE,
            health: None,
            slow_start: Duration::ZERO,
            max_connections: None,
            duration: metrics::upstream_duration("choose"),
            retried: RetryMetrics::new("choose"),
        }
    }

    /// 0: healthy, 1: ejected, 2: unhealthy.
    fn fare(endpoint: &Endpoint, how: u8) {
        match how {
            0 => {}
            1 => endpoint.state.failed("it broke", &RULE, || true),
            _ => endpoint.state.fell_ill("500"),
        }
    }

    fn balances() -> impl Strategy<Value = (Balance, Option<u128>)> {
        prop_oneof![
            Just((Balance::RoundRobin, None)),
            Just((Balance::LeastRequests, None)),
            Just((Balance::ConsistentHash, None)),
            any::<u128>().prop_map(|digest| (Balance::ConsistentHash, Some(digest))),
        ]
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(200))]

        #[test]
        fn the_best_there_is_is_taken_however_the_others_fare(
            (balance, affinity) in balances(),
            fares in prop::collection::vec((0_u8..3, any::<bool>()), 1..7),
        ) {
            let upstream = upstream(balance, u16::try_from(fares.len()).unwrap());
            upstream.endpoints.iter().zip(&fares).for_each(|(endpoint, (how, _))| fare(endpoint, *how));
            let tried: Vec<usize> = (0..fares.len()).filter(|index| fares[*index].1).collect();
            // Untried ones first, and the same order within: healthy, then ejected.
            let order = |(how, tried): &(u8, bool)| (*how < 2).then_some((*tried, *how));
            let best = fares.iter().filter_map(order).min();
            for _ in 0..8 {
                match upstream.choose(affinity, &tried) {
                    Ok(chosen) => prop_assert_eq!(order(&fares[chosen.index]), best),
                    Err(none) => prop_assert_eq!((none, best), (NoEndpoint::Unhealthy, None)),
                }
            }
        }

        #[test]
        fn as_many_requests_as_may_be_find_room_and_no_more(
            (balance, affinity) in balances(), count in 1_u16..6, cap in 1_usize..4,
        ) {
            let mut upstream = upstream(balance, count);
            upstream.max_connections = Some(cap);
            let room = usize::from(count) * cap;
            let held: Vec<Chosen> = (0..room).map(|_| upstream.choose(affinity, &[]).unwrap()).collect();
            prop_assert_eq!(upstream.choose(affinity, &[]).unwrap_err(), NoEndpoint::Full);
            drop(held);
            prop_assert!(upstream.choose(affinity, &[]).is_ok());
        }
    }
}
