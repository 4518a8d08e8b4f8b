//! Requests from several connections to every gateway at once, and what became of them by key.

use crate::plan::Load;
use crate::support::client::{Answer, Connection};
use std::collections::BTreeMap;

/// Of one key.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Tally {
    /// Told the whole limit: charged in the store, or in advance.
    pub counted: u64,
    /// Told a share of the limit: decided by a gateway alone.
    pub local: u64,
    /// Told nothing: let through as it came.
    pub uncounted: u64,
    pub refused: u64,
    pub unavailable: u64,
}

impl Tally {
    pub fn admitted(&self) -> u64 {
        self.counted + self.local + self.uncounted
    }

    fn add(&mut self, other: &Self) {
        self.counted += other.counted;
        self.local += other.local;
        self.uncounted += other.uncounted;
        self.refused += other.refused;
        self.unavailable += other.unavailable;
    }
}

pub type Tallies = BTreeMap<String, Tally>;

/// The limit that all keys have, and which of them are asked for how often.
#[derive(Clone, Debug)]
pub struct Keys {
    pub names: Vec<String>,
    pub quota: u64,
    load: Load,
}

impl Keys {
    pub fn of(load: Load) -> Self {
        let (count, quota) = match load {
            Load::SingleKey => (1, 150),
            Load::Zipf => (12, 40),
            Load::Uniform => (12, 20),
        };
        Self { names: (0..count).map(|i| format!("key-{i}")).collect(), quota, load }
    }

    /// As many keys, and another limit.
    pub fn with_quota(self, quota: u64) -> Self {
        Self { quota, ..self }
    }

    fn draw(&self, rng: &mut fastrand::Rng) -> &str {
        let count = self.names.len();
        let at = match self.load {
            Load::SingleKey => 0,
            Load::Uniform => rng.usize(0..count),
            Load::Zipf => {
                // Whole numbers for up to twelve keys.
                let weight = |at: usize| 27_720 / (at + 1);
                let mut left = rng.usize(0..(0..count).map(weight).sum());
                let is_it = |at: &usize| {
                    let is_it = left < weight(*at);
                    left = left.saturating_sub(weight(*at));
                    is_it
                };
                (0..count).find(is_it).unwrap_or_default()
            }
        };
        &self.names[at]
    }
}

/// One request; what it is told is held against the limit.
pub fn ask(client: &mut Connection, key: &str, quota: u64) -> (Tally, Answer) {
    let answer = client.get("/", &[("x-key", key)]);
    let told = answer.field("x-ratelimit-limit").and_then(|limit| limit.parse::<u64>().ok());
    if let Some(limit) = told {
        assert!(limit <= quota && answer.number("x-ratelimit-remaining") <= limit, "{answer:?}");
    }
    let mut tally = Tally::default();
    match (answer.status, told) {
        (200, None) => tally.uncounted = 1,
        (200, Some(limit)) if limit == quota => tally.counted = 1,
        (200, Some(_)) => tally.local = 1,
        (429, _) => tally.refused = 1,
        (503, _) => tally.unavailable = 1,
        _ => panic!("{answer:?}"),
    }
    (tally, answer)
}

/// So many requests in all, from three connections to each gateway.
pub fn run(ports: &[u16], keys: &Keys, count: usize, seed: u64) -> Tallies {
    const CONNECTIONS: usize = 3;
    let each = count.div_ceil(ports.len() * CONNECTIONS);
    let mut all = Tallies::new();
    std::thread::scope(|scope| {
        let clients: Vec<_> = (0..ports.len() * CONNECTIONS)
            .map(|nth| {
                let (port, mut rng) =
                    (ports[nth / CONNECTIONS], fastrand::Rng::with_seed(seed.wrapping_add(nth as u64)));
                scope.spawn(move || {
                    let (mut client, mut tallies) = (Connection::open(port), Tallies::new());
                    for _ in 0..each {
                        let key = keys.draw(&mut rng);
                        tallies.entry(key.to_owned()).or_default().add(&ask(&mut client, key, keys.quota).0);
                    }
                    tallies
                })
            })
            .collect();
        clients.into_iter().for_each(|client| merge(&mut all, &client.join().expect("a client ends")));
    });
    all
}

pub fn merge(all: &mut Tallies, more: &Tallies) {
    more.iter().for_each(|(key, tally)| all.entry(key.clone()).or_default().add(tally));
}
