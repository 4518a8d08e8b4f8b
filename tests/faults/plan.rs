//! What is tried: a case is one choice of each factor. A selection covers every pair of choices with few cases, in an order
//! drawn from a seed; beyond those, cases are drawn at random.

use std::collections::BTreeSet;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fault {
    Killed,
    Stopped,
    LateABit,
    TooLate,
    ConnectionsCut,
    BlackHole,
    /// Between the first gateway and the node alone.
    Partition,
    RepliesLost,
    MemoryFull,
    ReadOnly,
    ScriptsFlushed,
    RestartedEmpty,
}

impl Fault {
    pub const ALL: [Self; 12] = [
        Self::Killed,
        Self::Stopped,
        Self::LateABit,
        Self::TooLate,
        Self::ConnectionsCut,
        Self::BlackHole,
        Self::Partition,
        Self::RepliesLost,
        Self::MemoryFull,
        Self::ReadOnly,
        Self::ScriptsFlushed,
        Self::RestartedEmpty,
    ];

    /// The node forgets what it has counted.
    pub fn empties(self) -> bool {
        matches!(self, Self::Killed | Self::RestartedEmpty)
    }

    /// Nobody may notice.
    pub fn is_harmless(self) -> bool {
        matches!(self, Self::LateABit | Self::ScriptsFlushed)
    }

    /// It lasts until it is mended, and the breaker must open.
    pub fn degrades(self) -> bool {
        !self.is_harmless() && self != Self::RestartedEmpty
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Load {
    SingleKey,
    Zipf,
    Uniform,
}

#[derive(Clone, Copy, Debug)]
pub struct Case {
    pub fault: Fault,
    pub gateways: usize,
    pub nodes: usize,
    pub load: Load,
    pub algorithm: &'static str,
    pub on_failure: &'static str,
    pub ttl: &'static str,
    pub seed: u64,
}

const GATEWAYS: [usize; 4] = [1, 2, 4, 8];
const NODES: [usize; 4] = [1, 2, 3, 5];
const LOADS: [Load; 3] = [Load::SingleKey, Load::Zipf, Load::Uniform];
const ALGORITHMS: [&str; 4] = ["fixed_window", "sliding_window_log", "sliding_window_counter", "token_bucket"];
const FAILURES: [&str; 3] = ["local", "closed", "open"];
const TTLS: [&str; 2] = ["10ms", "0ms"];
/// How many choices each factor has.
const CHOICES: [usize; 7] = [12, 4, 4, 3, 4, 3, 2];

type Choice = [usize; 7];
/// A factor's choice beside another's.
type Pair = ((usize, usize), (usize, usize));

impl Case {
    fn of(choice: &Choice, seed: u64) -> Self {
        Self {
            fault: Fault::ALL[choice[0]],
            gateways: GATEWAYS[choice[1]],
            nodes: NODES[choice[2]],
            load: LOADS[choice[3]],
            algorithm: ALGORITHMS[choice[4]],
            on_failure: FAILURES[choice[5]],
            ttl: TTLS[choice[6]],
            seed,
        }
    }
}

/// The first `count` cases of the seed's order; as long as a pair is left that none of them holds, each adds some.
pub fn cases(seed: u64, count: usize) -> Vec<Case> {
    let mut rng = fastrand::Rng::with_seed(seed);
    choices(&mut rng, count).iter().map(|choice| Case::of(choice, rng.u64(..))).collect()
}

fn choices(rng: &mut fastrand::Rng, count: usize) -> Vec<Choice> {
    let mut missing = all_pairs();
    let mut chosen = Vec::new();
    while chosen.len() < count {
        // The best of some, each of which holds one that is missing.
        let candidates: Vec<Choice> = (0..40).map(|_| candidate(rng, &missing)).collect();
        let gain = |choice: &Choice| pairs(choice).filter(|pair| missing.contains(pair)).count();
        let best = candidates.into_iter().max_by_key(gain).expect("some");
        pairs(&best).for_each(|pair| _ = missing.remove(&pair));
        chosen.push(best);
    }
    chosen
}

fn candidate(rng: &mut fastrand::Rng, missing: &BTreeSet<Pair>) -> Choice {
    let mut choice = CHOICES.map(|choices| rng.usize(0..choices));
    if !missing.is_empty()
        && let Some(((one, of_one), (other, of_other))) = missing.iter().nth(rng.usize(0..missing.len()))
    {
        (choice[*one], choice[*other]) = (*of_one, *of_other);
    }
    choice
}

fn pairs(choice: &Choice) -> impl Iterator<Item = Pair> {
    (0..choice.len()).flat_map(move |one| (0..one).map(move |other| ((other, choice[other]), (one, choice[one]))))
}

fn all_pairs() -> BTreeSet<Pair> {
    let of_two = |other: usize, one: usize| {
        (0..CHOICES[other]).flat_map(move |a| (0..CHOICES[one]).map(move |b| ((other, a), (one, b))))
    };
    (0..CHOICES.len()).flat_map(|one| (0..one).flat_map(move |other| of_two(other, one))).collect()
}

#[test]
fn some_sixty_cases_hold_every_pair_of_choices() {
    for seed in 0..3 {
        let chosen = choices(&mut fastrand::Rng::with_seed(seed), 64);
        let held: BTreeSet<Pair> = chosen.iter().flat_map(pairs).collect();
        assert_eq!(held, all_pairs(), "seed {seed}");
    }
}
