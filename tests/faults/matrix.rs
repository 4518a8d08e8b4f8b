//! Cases over real processes, several at a time, each judged by what its keys were admitted and by what is left behind.

use crate::load::{self, Keys, Tallies};
use crate::plan::{self, Case, Fault};
use crate::site::{Site, Target};
use crate::support::client::Connection;
use crate::support::wait::eventually;
use std::sync::Mutex;

/// In the ordinary run; `FAULT_CASES` asks for more, of `SEED` or of one that is drawn and told.
const CASES: usize = 32;
const AT_A_TIME: usize = 4;
const REQUESTS: usize = 150;

/// What a gateway may keep open beside what it had open before: idle connections to the upstream, and from the tests.
const FILES_MORE: usize = 24;
const MEMORY_MORE_KIB: u64 = 32 * 1024;

fn number(variable: &str) -> Option<u64> {
    std::env::var(variable).ok().map(|text| text.parse().expect("a number"))
}

#[test]
fn whatever_comes_between_gateways_and_nodes_the_count_holds_and_nothing_leaks() {
    let more = number("FAULT_CASES");
    let drawn = if more.is_some() { fastrand::u64(..1_000_000) } else { 1 };
    let seed = number("SEED").unwrap_or(drawn);
    let count = more.map_or(CASES, |count| usize::try_from(count).expect("a number of cases"));
    let cases = Mutex::new(plan::cases(seed, count).into_iter().enumerate());
    let failed = Mutex::new(Vec::new());
    let next = || cases.lock().expect("nobody panics while holding it").next();
    std::thread::scope(|scope| {
        for _ in 0..AT_A_TIME {
            scope.spawn(|| {
                while let Some((nth, case)) = next() {
                    let told = std::panic::catch_unwind(|| run(&case));
                    if told.is_err() {
                        failed.lock().expect("nobody panics while holding it").push((nth, case));
                    }
                }
            });
        }
    });
    let failed = failed.into_inner().expect("all have ended");
    let told: Vec<String> = failed.iter().map(|(nth, case)| format!("case {nth}: {case:?}")).collect();
    assert!(failed.is_empty(), "SEED={seed} FAULT_CASES={count}: {} failed\n{}", failed.len(), told.join("\n"));
}

fn policy(case: &Case, quota: u64) -> String {
    format!(
        "[hot_keys]\nttl = \"{}\"\n[policies.p]\non_store_failure = \"{}\"\n\
         limits = [{{ name = \"l\", key = \"header:x-key\", quota = \"{quota}/7d\", algorithm = \"{}\" }}]\n\
         [[routes]]\npath = \"/*\"\nupstream = \"up\"\npolicies = [\"p\"]\n",
        case.ttl, case.on_failure, case.algorithm
    )
}

fn run(case: &Case) {
    let keys = Keys::of(case.load);
    let mut site = Site::start(case.gateways, case.nodes, &policy(case, keys.quota));
    let ports: Vec<u16> = site.gateways.iter().map(|gateway| gateway.port).collect();
    let target = Target { node: site.home(&keys.names[0]), fault: case.fault };
    if case.on_failure == "local" && case.gateways > 1 {
        see_each_other(&site, target.node);
    }
    let mut tallies = load::run(&ports, &keys, REQUESTS, case.seed);
    let before: Vec<_> = site.gateways.iter().map(|gateway| (gateway.files(), gateway.memory_kib().0)).collect();

    let during = std::thread::scope(|scope| {
        let asking = scope.spawn(|| load::run(&ports, &keys, REQUESTS, !case.seed));
        site.begin(target);
        asking.join().expect("the clients end")
    });
    load::merge(&mut tallies, &during);
    if case.fault.degrades() {
        site.wait_until_degraded(target);
        load::merge(&mut tallies, &load::run(&ports, &keys, REQUESTS, case.seed + 1));
    }
    site.mend(target);
    (0..case.nodes).for_each(|node| eventually("recovery", || site.all_up(node)));

    use_up(&site, &keys, &mut tallies);
    judge(&site, case, &keys, target, &tallies);
    leaves_nothing_behind(&site, &before);
}

/// The first to start hears of the last with its second heartbeat.
fn see_each_other(site: &Site, node: usize) {
    eventually("two heartbeats of each", || {
        let stats: String = redis::cmd("INFO").arg("commandstats").query(&mut site.nodes[node].ask()).expect("INFO");
        let calls = stats.lines().find_map(|line| line.strip_prefix("cmdstat_zadd:calls=")).unwrap_or_default();
        calls
            .split(',')
            .next()
            .is_some_and(|calls| calls.parse().is_ok_and(|calls: usize| calls >= 2 * site.gateways.len()))
    });
}

/// Asks for every key until all gateways refuse it: what can be admitted has been.
fn use_up(site: &Site, keys: &Keys, tallies: &mut Tallies) {
    let mut clients: Vec<_> = site.gateways.iter().map(|gateway| Connection::open(gateway.port)).collect();
    for key in &keys.names {
        let mut refusals = 0;
        while refusals < 3 {
            let mut all_refuse = true;
            for client in &mut clients {
                let (tally, answer) = load::ask(client, key, keys.quota);
                load::merge(tallies, &Tallies::from([(key.clone(), tally)]));
                all_refuse &= answer.status == 429;
            }
            refusals = if all_refuse { refusals + 1 } else { 0 };
            // What another gateway holds comes back when its lease ends.
            std::thread::sleep(std::time::Duration::from_millis(if all_refuse { 15 } else { 0 }));
        }
    }
}

fn judge(site: &Site, case: &Case, keys: &Keys, target: Target, tallies: &Tallies) {
    let share = (keys.quota / case.gateways as u64).max(1);
    for (key, tally) in tallies {
        let home = site.home(key);
        let errors = site.errors(home);
        let told = format!("{key} on n{home}: {tally:?} of {}, errors {errors:?}", keys.quota);
        let is_touched = home == target.node && !case.fault.is_harmless();
        if !is_touched {
            // A machine that stands still for a second looks like a node that does; nothing else may.
            assert!(errors.iter().all(|(kind, _)| kind == "timeout"), "{told}");
        }
        if !is_touched && errors.is_empty() {
            assert_eq!((tally.admitted(), tally.counted, tally.unavailable), (keys.quota, keys.quota, 0), "{told}");
            eventually("the store holds what was admitted", || site.gateways[0].counter("p/l", key).0 == 0);
            continue;
        }
        let lives = 1 + u64::from(case.fault.empties() && is_touched);
        let bound = match case.on_failure {
            "local" => keys.quota * lives + share * case.gateways as u64,
            _ => keys.quota * lives,
        };
        assert!(tally.admitted() - tally.uncounted <= bound, "more than {bound}: {told}");
        assert!(tally.uncounted == 0 || case.on_failure == "open", "{told}");
        assert!(tally.unavailable == 0 || case.on_failure == "closed", "{told}");
        assert!(
            tally.local == 0 || (case.on_failure == "local" && tally.local <= share * case.gateways as u64),
            "{told}"
        );
    }
    let admitted: u64 = tallies.values().map(load::Tally::admitted).sum();
    assert_eq!(site.upstream.count("/") as u64, admitted);
}

fn leaves_nothing_behind(site: &Site, before: &[(usize, u64)]) {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    for node in &site.nodes {
        let lives = node.lives();
        assert!(lives.iter().all(|(_, left)| *left != -1), "a key without expiry: {lives:?}");
        eventually("no more connections than one a core and one to watch", || {
            let list: String = redis::cmd("CLIENT").arg("LIST").query(&mut node.ask()).expect("CLIENT LIST");
            list.lines().filter(|line| line.contains("lib-name=staunch")).count() <= site.gateways.len() * (cores + 1)
        });
    }
    for (gateway, (files, memory)) in site.gateways.iter().zip(before) {
        eventually("what was opened is closed", || gateway.files() <= files + FILES_MORE);
        let now = gateway.memory_kib().0;
        assert!(now <= memory + MEMORY_MORE_KIB, "{memory} KiB before, {now} KiB after");
        assert!(!gateway.log().contains("panicked"), "{}", gateway.log());
    }
}

#[test]
fn each_fault_is_in_the_ordinary_run() {
    let cases = plan::cases(1, CASES);
    assert!(Fault::ALL.iter().all(|fault| cases.iter().any(|case| case.fault == *fault)));
}
