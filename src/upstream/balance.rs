//! Which endpoint is next: smooth weighted round robin, worked out once.

use std::sync::atomic::{AtomicUsize, Ordering};

/// An order in which each endpoint comes as often as its weight says, spread as evenly as can be (nginx's smooth
/// weighted round robin). All cores take turns in the same order.
#[derive(Debug)]
pub struct Rotation {
    order: Vec<usize>,
    next: AtomicUsize,
}

impl Rotation {
    /// `weights`: at least one, each ≥ 1.
    #[must_use]
    pub fn new(weights: &[u32]) -> Self {
        let divisor = weights.iter().copied().fold(0, gcd).max(1);
        let weights: Vec<i64> = weights.iter().map(|weight| i64::from(weight / divisor)).collect();
        let total: i64 = weights.iter().sum();
        let mut current = vec![0_i64; weights.len()];
        let order = (0..total).map(|_| heaviest(&mut current, &weights, total)).collect();
        Self { order, next: AtomicUsize::new(0) }
    }

    /// The index of the endpoint whose turn it is.
    pub fn turn(&self) -> usize {
        self.order[self.next.fetch_add(1, Ordering::Relaxed) % self.order.len()]
    }
}

fn heaviest(current: &mut [i64], weights: &[i64], total: i64) -> usize {
    let mut best = 0;
    for index in 0..weights.len() {
        current[index] += weights[index];
        if current[index] > current[best] {
            best = index;
        }
    }
    current[best] -= total;
    best
}

fn gcd(a: u32, b: u32) -> u32 {
    if b == 0 { a } else { gcd(b, a % b) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn turns(weights: &[u32], count: usize) -> Vec<usize> {
        let rotation = Rotation::new(weights);
        (0..count).map(|_| rotation.turn()).collect()
    }

    #[test]
    fn endpoints_take_turns_by_weight_and_evenly_spread() {
        assert_eq!(turns(&[1, 1], 4), [0, 1, 0, 1]);
        assert_eq!(turns(&[5, 1, 1], 7), [0, 0, 1, 0, 2, 0, 0]);
        assert_eq!(turns(&[200, 600], 4), turns(&[1, 3], 4));
        assert_eq!(turns(&[7], 3), [0, 0, 0]);
    }
}
