//! Nodes that go down and come up at random, twenty times: each gateway's mode follows both ways, and says so once.

use crate::load::{self, Keys};
use crate::plan::{Fault, Load};
use crate::site::{Site, Target};
use crate::support::wait::eventually;

const TIMES: usize = 20;
const WAYS: [Fault; 7] = [
    Fault::Killed,
    Fault::Stopped,
    Fault::ConnectionsCut,
    Fault::BlackHole,
    Fault::Partition,
    Fault::MemoryFull,
    Fault::ReadOnly,
];
const POLICY: &str = "[policies.p]\nlimits = [{ name = \"l\", key = \"header:x-key\", quota = \"150/7d\" }]\n\
                      [[routes]]\npath = \"/*\"\nupstream = \"up\"\npolicies = [\"p\"]\n";

#[test]
fn the_mode_follows_a_node_down_and_up_twenty_times() {
    let seed = std::env::var("SEED").map_or(7, |seed| seed.parse().expect("a number"));
    let mut rng = fastrand::Rng::with_seed(seed);
    let mut site = Site::start(2, 2, POLICY);
    let ports: Vec<u16> = site.gateways.iter().map(|gateway| gateway.port).collect();
    let keys = Keys::of(Load::Uniform).with_quota(150);
    let mut changes = [[0; 2]; 2];
    load::run(&ports, &keys, 60, seed);
    let files: Vec<usize> = site.gateways.iter().map(|gateway| gateway.files()).collect();
    for time in 0..TIMES {
        let target = Target { node: rng.usize(0..2), fault: WAYS[rng.usize(0..WAYS.len())] };
        eprintln!("SEED={seed}, {time}: {target:?}");
        site.begin(target);
        load::run(&ports, &keys, 36, rng.u64(..));
        site.wait_until_degraded(target);
        let touched = site.touched(target.fault);
        (0..touched).for_each(|gateway| changes[gateway][target.node] += 1);
        assert!((touched..2).all(|gateway| site.is_up(gateway, target.node)), "the other gateway has it");
        assert!(site.all_up(1 - target.node), "the other node is as it was");
        site.mend(target);
        eventually("recovery", || site.all_up(target.node));
        let before: u64 = load::run(&ports, &keys, 12, rng.u64(..)).values().map(|tally| tally.unavailable).sum();
        assert_eq!(before, 0);
    }
    for (gateway, changes) in site.gateways.iter().zip(changes) {
        for (node, changes) in changes.into_iter().enumerate() {
            let said = |what: &str| {
                let log = gateway.log();
                log.lines().filter(|line| line.contains(what) && line.contains(&format!("n{node}"))).count()
            };
            eventually("each change is one line", || {
                (said("store shard is degraded"), said("store shard answers again")) == (changes, changes)
            });
        }
        assert!(!gateway.log().contains("panicked"));
    }
    for (gateway, files) in site.gateways.iter().zip(files) {
        eventually("nothing stays open", || gateway.files() < files + TIMES);
    }
    for node in &site.nodes {
        let lives = node.lives();
        assert!(lives.iter().all(|(_, left)| *left != -1), "a key without expiry: {lives:?}");
    }
}
