//! Gateways with their caches, shards with their counters, and a network between them that delays, drops and refuses, in
//! virtual time. Every clock is its own. What is asked and answered goes the way of `limit::hot`'s own tasks.

use staunch::algorithm::{Algorithm, Quota, State};
use staunch::limit::failure::Seen;
use staunch::limit::hot::{Attempt, Due, Held, Hot, Landed, Leaving, Patience, Word};
use staunch::store::{Answer, Ask, Check, CounterKey, ErrorKind, StoreError};
use staunch::telemetry::metrics::Source;
use std::collections::BTreeMap;
use std::time::Duration;
use tokio::sync::oneshot;

const EPOCH: u64 = 1_796_000_000_000_000;
const RETRIES_MAX: u32 = 8;
pub const TIMEOUT: u64 = 50_000;

/// What one history is made of.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    pub gateways: usize,
    pub algorithm: Algorithm,
    pub quota: Quota,
    pub ttl_us: u64,
    /// Two limits on two shards for every request, instead of one.
    pub is_tiered: bool,
    /// Of a hundred messages.
    pub failing: u64,
    pub delay_max_us: u64,
    pub cost_max: u64,
}

pub struct World {
    pub plan: Plan,
    pub rng: fastrand::Rng,
    pub now: u64,
    sequence: u64,
    events: BTreeMap<(u64, u64), Event>,
    gateways: Vec<Gateway>,
    pub shards: Vec<Shard>,
    /// By limit: when (the shard's clock), how much, and what was told to be left.
    pub admitted: Vec<Vec<(u64, u64, u64)>>,
    /// Refusals without a failure: when they were decided and told (the first shard's clock), and of what cost.
    pub refused: Vec<(u64, u64, u64)>,
    pub store_calls: u64,
}

struct Gateway {
    hot: Hot,
    skew: u64,
    waiting: Vec<(Request, usize, oneshot::Receiver<Landed>)>,
}

pub struct Shard {
    pub state: State,
    skew: u64,
}

#[derive(Clone)]
struct Request {
    gateway: usize,
    checks: Vec<Check>,
    patience: Patience,
    retries: u32,
}

/// A request on its way to several shards.
struct Trip {
    request: Request,
    words: Vec<Word>,
    begun: u64,
    answers: Vec<Option<(Result<Answer, StoreError>, bool)>>,
}

type TripId = std::rc::Rc<std::cell::RefCell<Trip>>;

enum Event {
    Arrive { gateway: usize, cost: u64 },
    Reach { trip: TripId, at: usize, reply_is_lost: bool },
    Land { trip: TripId, at: usize, result: Result<Answer, StoreError> },
    Timer { gateway: usize, limit: usize },
    GiveBack { gateway: usize, limit: usize, units: u64, charged_at: u64, held: Option<Held> },
    GivenBack { gateway: usize, limit: usize, held: Option<Held>, result: Result<(), StoreError> },
}

impl World {
    pub fn new(plan: Plan, seed: u64) -> Self {
        let mut rng = fastrand::Rng::with_seed(seed);
        let limits = if plan.is_tiered { 2 } else { 1 };
        let hot = || Hot::new(Duration::from_micros(plan.ttl_us), 1000).expect("a ttl");
        let mut skew = || rng.u64(0..7_200_000_000);
        let gateways = (0..plan.gateways).map(|_| Gateway { hot: hot(), skew: skew(), waiting: Vec::new() }).collect();
        let shards = (0..limits).map(|_| Shard { state: State::new(plan.algorithm), skew: skew() }).collect();
        Self {
            plan,
            rng,
            now: EPOCH,
            sequence: 0,
            events: BTreeMap::new(),
            gateways,
            shards,
            admitted: vec![Vec::new(); limits],
            refused: Vec::new(),
            store_calls: 0,
        }
    }

    pub fn arrive(&mut self, after: u64, gateway: usize, cost: u64) {
        self.schedule(after, Event::Arrive { gateway, cost });
    }

    /// Until nothing is on its way any more.
    pub fn run(&mut self) {
        while let Some(((at, _), event)) = self.events.pop_first() {
            self.now = at;
            self.happen(event);
        }
        assert!(self.gateways.iter().all(|gateway| gateway.waiting.is_empty()), "somebody waits for ever");
    }

    pub fn node_now(&self, limit: usize) -> u64 {
        self.now + self.shards[limit].skew
    }

    fn local(&self, gateway: usize) -> u64 {
        self.now + self.gateways[gateway].skew
    }

    fn schedule(&mut self, after: u64, event: Event) {
        self.sequence += 1;
        self.events.insert((self.now + after, self.sequence), event);
    }

    fn delay(&mut self) -> u64 {
        self.rng.u64(1..=self.plan.delay_max_us)
    }

    fn fails(&mut self) -> bool {
        self.rng.u64(0..100) < self.plan.failing
    }

    fn happen(&mut self, event: Event) {
        match event {
            Event::Arrive { gateway, cost } => {
                let check = |limit| Check {
                    key: CounterKey(limit as u128),
                    algorithm: self.plan.algorithm,
                    quota: self.plan.quota,
                    cost,
                    enforced: true,
                };
                let checks = (0..self.shards.len()).map(check).collect();
                self.step(Request { gateway, checks, patience: Patience::default(), retries: 0 }, None);
            }
            Event::Reach { trip, at, reply_is_lost } => self.reach(trip, at, reply_is_lost),
            Event::Land { trip, at, result } => self.land(&trip, at, result),
            Event::Timer { gateway, limit } => self.tend(gateway, limit),
            Event::GiveBack { gateway, limit, units, charged_at, held } => {
                let (now, quota) = (self.node_now(limit), self.plan.quota);
                let (failure, delay) = (self.fails(), self.delay());
                let is_applied = !failure || self.rng.bool();
                if is_applied {
                    self.shards[limit].state.release(&quota, now, units, charged_at);
                }
                let result = if failure { Err(lost(limit, is_applied || self.rng.bool())) } else { Ok(()) };
                self.schedule(delay, Event::GivenBack { gateway, limit, held, result });
            }
            Event::GivenBack { gateway, limit, held, result } => {
                let now = self.local(gateway);
                let hot = &self.gateways[gateway].hot;
                if let Some(held) = held {
                    if hot.given_back(CounterKey(limit as u128), held, result, now).needs_timer {
                        self.schedule(0, Event::Timer { gateway, limit });
                    }
                    self.wake(gateway);
                } else {
                    hot.freed(CounterKey(limit as u128), now);
                }
            }
        }
    }

    /// One attempt; `waited` is the check it waited for until now.
    fn step(&mut self, request: Request, waited: Option<usize>) {
        let now = self.local(request.gateway);
        let attempt = self.gateways[request.gateway].hot.attempt(&request.checks, &request.patience, now);
        if let Some(at) = waited {
            self.gateways[request.gateway].hot.waited(&request.checks[at]);
        }
        match attempt {
            Attempt::Answered(settled) if settled.passes => {
                for (limit, seen) in settled.seen.iter().enumerate() {
                    let Seen::Decided { decision, source: Source::Lease } = seen else { panic!("{seen:?}") };
                    let at = self.node_now(limit);
                    self.admitted[limit].push((at, request.checks[limit].cost, decision.after.remaining));
                }
            }
            Attempt::Answered(_) => {
                let at = self.node_now(0);
                self.refused.push((at, at, request.checks[0].cost));
            }
            Attempt::Wait { at, landed } => self.gateways[request.gateway].waiting.push((request, at, landed)),
            Attempt::Ask(words) => self.depart(request, words.to_vec()),
        }
    }

    fn depart(&mut self, request: Request, words: Vec<Word>) {
        let answers = vec![None; words.len()];
        let asked: Vec<usize> = (0..words.len()).filter(|i| matches!(words[*i], Word::Ask(_))).collect();
        let trip = TripId::new(Trip { request, words, begun: self.now, answers }.into());
        for at in &asked {
            self.store_calls += 1;
            let (trip, at, delay) = (trip.clone(), *at, self.delay());
            match (self.fails(), self.rng.u8(0..3)) {
                (true, 0) => self.schedule(delay, Event::Land { trip, at, result: Err(lost(at, false)) }),
                (true, 1) => self.schedule(TIMEOUT, Event::Land { trip, at, result: Err(lost(at, true)) }),
                (failing, _) => self.schedule(delay, Event::Reach { trip, at, reply_is_lost: failing }),
            }
        }
        if asked.is_empty() {
            self.finish(&trip);
        }
    }

    fn reach(&mut self, trip: TripId, at: usize, reply_is_lost: bool) {
        let ask = {
            let trip = trip.borrow();
            let Word::Ask(leaving) = trip.words[at] else { panic!("only questions travel") };
            leaving.ask(&trip.request.checks[at])
        };
        let now = self.node_now(at);
        let answer = self.shards[at].decide(&ask, now);
        let result = if reply_is_lost { Err(lost(at, true)) } else { Ok(answer) };
        let delay = if reply_is_lost { TIMEOUT } else { self.delay() };
        self.schedule(delay, Event::Land { trip, at, result });
    }

    fn land(&mut self, trip: &TripId, at: usize, result: Result<Answer, StoreError>) {
        let (gateway, check, leaving) = {
            let trip = trip.borrow();
            let Word::Ask(leaving) = trip.words[at] else { panic!("only questions travel") };
            (trip.request.gateway, trip.request.checks[at], leaving)
        };
        let now = self.local(gateway);
        let landfall = self.gateways[gateway].hot.land(&check, &leaving, &result, now);
        if landfall.needs_timer {
            self.schedule(0, Event::Timer { gateway, limit: at });
        }
        let told = result.map(|mut answer| {
            answer.decision.after.remaining += landfall.held;
            answer
        });
        trip.borrow_mut().answers[at] = Some((told, landfall.is_stale));
        let words = trip.borrow().words.clone();
        let is_whole = (0..words.len()).all(|i| !is_asked(&words[i]) || trip.borrow().answers[i].is_some());
        if is_whole {
            self.finish(trip);
        }
        self.wake(gateway);
    }

    fn finish(&mut self, trip: &TripId) {
        let trip = trip.borrow();
        let answers: Vec<_> = trip.answers.iter().flatten().collect();
        let refused = answers.iter().any(|(result, _)| result.is_ok_and(|answer| !answer.decision.admitted));
        let failed = trip.words.iter().any(|word| matches!(word, Word::Failed(_)))
            || answers.iter().any(|(result, _)| result.is_err());
        let is_stale = answers.iter().any(|(_, is_stale)| *is_stale) && trip.request.retries < RETRIES_MAX;
        if !refused && !failed {
            return self.admit(&trip);
        }
        self.undo(&trip);
        if is_stale {
            let mut request = trip.request.clone();
            (request.patience.waits, request.patience.last) = (0, None);
            request.retries += 1;
            self.step(request, None);
        } else if refused {
            let decided_at = answers.iter().find_map(|(result, _)| result.ok()).expect("somebody refused").at_us;
            self.refused.push((decided_at, self.node_now(0), trip.request.checks[0].cost));
        }
    }

    fn admit(&mut self, trip: &Trip) {
        for (limit, word) in trip.words.iter().enumerate() {
            let cost = trip.request.checks[limit].cost;
            let (at, left) = match (word, trip.answers[limit]) {
                (_, Some((Ok(answer), _))) => (answer.at_us, answer.decision.after.remaining),
                (Word::Spent { decision, .. }, _) => (trip.begun + self.shards[limit].skew, decision.after.remaining),
                _ => panic!("{word:?} admits nobody"),
            };
            self.admitted[limit].push((at, cost, left));
        }
    }

    /// The request does not pass: what it took goes back.
    fn undo(&mut self, trip: &Trip) {
        let gateway = trip.request.gateway;
        for (limit, word) in trip.words.iter().enumerate() {
            let check = trip.request.checks[limit];
            let charged_at = match (word, trip.answers[limit]) {
                (Word::Spent { charged_at, .. }, _) if self.gateways[gateway].hot.unspend(&check, *charged_at) => {
                    continue;
                }
                (Word::Spent { charged_at, .. }, _) => *charged_at,
                (_, Some((Ok(answer), _))) if answer.charged => answer.at_us,
                _ => continue,
            };
            let delay = self.delay();
            self.schedule(delay, Event::GiveBack { gateway, limit, units: check.cost, charged_at, held: None });
        }
    }

    fn tend(&mut self, gateway: usize, limit: usize) {
        let now = self.local(gateway);
        match self.gateways[gateway].hot.due(CounterKey(limit as u128), now) {
            Due::Nothing => {}
            Due::InFlight => self.schedule(self.plan.ttl_us, Event::Timer { gateway, limit }),
            Due::At(at) => self.schedule(at - now, Event::Timer { gateway, limit }),
            Due::Now(held) => {
                let (back, delay) = (held.returned(), self.delay());
                let (units, charged_at) = (back.units, back.charged_at);
                self.schedule(delay, Event::GiveBack { gateway, limit, units, charged_at, held: Some(held) });
            }
        }
    }

    fn wake(&mut self, gateway: usize) {
        let waiting = std::mem::take(&mut self.gateways[gateway].waiting);
        for (mut request, at, mut landed) in waiting {
            match landed.try_recv() {
                Err(oneshot::error::TryRecvError::Empty) => {
                    self.gateways[gateway].waiting.push((request, at, landed));
                }
                told => {
                    request.patience.failures.resize(request.checks.len(), None);
                    let error = told.ok().flatten();
                    request.patience.failures[at] = error.map(|error| StoreError { maybe_applied: false, ..error });
                    (request.patience.waits, request.patience.last) =
                        (request.patience.waits + 1, Some(request.checks[at].key));
                    self.step(request, Some(at));
                }
            }
        }
    }
}

impl Shard {
    /// What the script does with one check.
    fn decide(&mut self, ask: &Ask, now: u64) -> Answer {
        let Check { quota, cost, algorithm, .. } = ask.check;
        if ask.back.units > 0 {
            self.state.release(&quota, now, ask.back.units, ask.back.charged_at);
        }
        let decision = self.state.decide(&quota, now, cost);
        let mut answer = Answer::new(decision, decision.admitted, now);
        if decision.admitted {
            self.state.charge(&quota, now, cost);
            answer.leased = self.state.lease(&quota, now, ask.lease);
            let reset_us = self.state.decide(&quota, now, 0).before.reset_us;
            answer.lease_lasts_us = algorithm.lease_lasts_us(&quota, answer.leased, reset_us);
        }
        answer
    }
}

fn is_asked(word: &Word) -> bool {
    matches!(word, Word::Ask(Leaving { .. }))
}

fn lost(shard: usize, maybe_applied: bool) -> StoreError {
    StoreError { kind: ErrorKind::Timeout, shard, maybe_applied }
}
