//! Whole gateways in virtual time: limiter, cache, batches, breakers, debts and the protocol are the program's; only nodes are played.
//! Each history is drawn from its seed. One that breaks a rule names the seed, which draws it again.
//! (`lease_simulation` tries the cache alone, many more times, and in time steps of a microsecond.)
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test stops at the first surprise")]

mod frame;
mod node;
mod world;

use node::Mode;
use staunch::algorithm::Algorithm;
use staunch::limit::OnFailure;
use tokio::runtime::{Builder, LocalOptions};
use world::{Plan, World};

/// In the ordinary run, of each property; `HISTORIES` asks for more.
const HISTORIES: u64 = 100;

fn number(variable: &str) -> Option<u64> {
    std::env::var(variable).ok().map(|text| text.parse().expect("a number"))
}

/// Runs histories, and names the seed of one that fails.
fn histories(first_seed: u64, history: impl AsyncFn(u64)) {
    let seeds = match number("SEED") {
        Some(seed) => seed..seed + 1,
        None => first_seed..first_seed + number("HISTORIES").unwrap_or(HISTORIES),
    };
    for seed in seeds {
        let told = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| in_virtual_time(history(seed))));
        assert!(told.is_ok(), "the history of SEED={seed} breaks the rule");
    }
}

fn in_virtual_time(history: impl Future<Output = ()>) {
    let runtime =
        Builder::new_current_thread().enable_all().start_paused(true).build_local(LocalOptions::default()).unwrap();
    // While a blocking task runs, time passes only as it is told to: sockets are not timers, and would not be waited for.
    let (end, ended) = std::sync::mpsc::sync_channel::<()>(0);
    let holding = runtime.spawn_blocking(move || ended.recv());
    runtime.block_on(history);
    drop(end);
    let _ = runtime.block_on(holding);
}

fn plan(rng: &mut fastrand::Rng) -> Plan {
    let mut any = |choices: &[u64]| choices[rng.usize(0..choices.len())];
    let (gateways, cores, nodes, limits) = (any(&[1, 2, 4]), any(&[1, 2]), any(&[1, 2, 3]), any(&[1, 2, 3]));
    let quotas = (0..limits).map(|_| any(&[5, 20, 50])).collect();
    let algorithm = Algorithm::ALL[usize::try_from(any(&[0, 1, 2, 3])).unwrap()];
    Plan {
        gateways: usize::try_from(gateways).unwrap(),
        cores: usize::try_from(cores).unwrap(),
        nodes: usize::try_from(nodes).unwrap(),
        algorithm,
        quotas,
        clients: u8::try_from(any(&[1, 2, 3])).unwrap(),
        on_failure: OnFailure::Local,
        ttl_ms: any(&[0, 3, 10, 40]),
        delay_max_ms: any(&[0, 1, 3]),
    }
}

/// Bursts and trickles, clients that leave, reloads, and as many troubles as are allowed.
async fn live(world: &mut World, rng: &mut fastrand::Rng, troubles: &[Mode]) {
    for _ in 0..rng.usize(3..8) {
        if !troubles.is_empty() && rng.u8(0..3) > 0 {
            let node = world.nodes[rng.usize(0..world.nodes.len())].clone();
            node.set(troubles[rng.usize(0..troubles.len())]);
        }
        for _ in 0..rng.u64(5..40) {
            for _ in 0..rng.usize(0..4) {
                let (gateway, core) = (rng.usize(0..world.plan.gateways), rng.usize(0..world.plan.cores));
                world.ask(gateway, core, rng.u8(0..world.plan.clients));
            }
            if rng.u8(0..20) == 0 {
                world.leave(rng.usize(..));
            }
            if rng.u8(0..20) == 0 {
                world.reload(rng.usize(0..world.plan.gateways));
            }
            world.pass(1).await;
        }
        if rng.bool() {
            world.nodes.iter().for_each(|node| node.set(Mode::Up));
            let pause = rng.u64(0..60);
            world.pass(pause).await;
        }
    }
}

const TROUBLES: [Mode; 3] = [Mode::Down, Mode::Stopped, Mode::Silent];

#[test]
fn without_failures_the_nodes_hold_exactly_what_was_admitted_however_limits_lie_and_clients_leave() {
    histories(0, async |seed| {
        let mut rng = fastrand::Rng::with_seed(seed);
        let mut world = World::begin(plan(&mut rng), seed).await;
        live(&mut world, &mut rng, &[]).await;
        world.settle().await;
        for ((limit, client), tally) in world.tallies.borrow().iter() {
            let (used, _) = world.used(*limit, *client);
            let told = format!("limit {limit}, client {client}: {tally:?}, {used} used, {:?}", world.plan);
            assert!(used <= world.plan.quotas[*limit], "{told}");
            assert!((tally.admitted..=tally.admitted + tally.abandoned).contains(&used), "{told}");
        }
    });
}

#[test]
fn whatever_fails_a_closed_limit_is_never_passed_and_nothing_is_given_back_that_was_not_taken() {
    histories(10_000, async |seed| {
        let mut rng = fastrand::Rng::with_seed(seed);
        let plan = Plan { on_failure: OnFailure::Closed, ..plan(&mut rng) };
        let mut world = World::begin(plan, seed).await;
        live(&mut world, &mut rng, &TROUBLES).await;
        world.settle().await;
        for ((limit, client), tally) in world.tallies.borrow().iter() {
            let (used, _) = world.used(*limit, *client);
            let told = format!("limit {limit}, client {client}: {tally:?}, {used} used, {:?}", world.plan);
            assert!(tally.admitted <= used && used <= world.plan.quotas[*limit], "{told}");
        }
    });
}

#[test]
fn whatever_fails_a_local_limit_keeps_its_bound_and_what_was_admitted_is_charged_save_what_is_in_doubt() {
    histories(20_000, async |seed| {
        let mut rng = fastrand::Rng::with_seed(seed);
        let mut world = World::begin(plan(&mut rng), seed).await;
        live(&mut world, &mut rng, &TROUBLES).await;
        world.settle().await;
        for ((limit, client), tally) in world.tallies.borrow().iter() {
            let ((used, doubtful), quota) = (world.used(*limit, *client), world.plan.quotas[*limit]);
            let told = format!(
                "limit {limit}, client {client}: {tally:?}, {used} used, {doubtful} in doubt, {:?}",
                world.plan
            );
            assert!(tally.admitted <= quota + tally.shares.iter().sum::<u64>(), "{told}");
            assert!(used <= quota && used + doubtful >= tally.admitted.min(quota), "{told}");
        }
    });
}

#[test]
fn a_node_that_forgets_admits_its_limit_anew_and_no_more() {
    histories(30_000, async |seed| {
        let mut rng = fastrand::Rng::with_seed(seed);
        let mut world = World::begin(plan(&mut rng), seed).await;
        live(&mut world, &mut rng, &TROUBLES[..1]).await;
        world.nodes.iter().for_each(|node| node.restart());
        let pause = rng.u64(0..30);
        world.pass(pause).await;
        world.nodes.iter().for_each(|node| node.set(Mode::Up));
        live(&mut world, &mut rng, &[]).await;
        world.settle().await;
        for ((limit, client), tally) in world.tallies.borrow().iter() {
            let quota = world.plan.quotas[*limit];
            let bound = 2 * quota + tally.shares.iter().sum::<u64>();
            assert!(tally.admitted <= bound, "limit {limit}, client {client}: {tally:?} {:?}", world.plan);
        }
    });
}
