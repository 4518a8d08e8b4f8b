//! Counters on a real Redis Cluster: exact with several gateways, while slots move, and after a primary was killed.

mod support;

use redis::AsyncCommands as _;
use staunch::algorithm::Algorithm;
use staunch::clock;
use staunch::store::redis::script::key_text;
use staunch::store::redis::{Client, Settings, Shards, Topology};
use staunch::store::{Check, CounterKey};
use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};
use support::cluster::{Cluster, slot};
use support::gateway::Gateway;
use support::store::{ask, gateways, left, metric, on_a_core, settings_of, until};
use support::upstream::Upstream;
use support::wait::eventually;

fn settings(cluster: &Cluster) -> Settings {
    settings_of(Topology::Cluster, &cluster.nodes)
}

fn check(key: u128, units: u64) -> Check {
    support::store::check(key, Algorithm::FixedWindow, units)
}

fn text(key: u128) -> Vec<u8> {
    key_text("staunch", CounterKey(key))
}

fn keys_expire(cluster: &Cluster) {
    let lives = cluster.lives();
    assert!(!lives.is_empty() && lives.iter().all(|(_, life)| *life > 0), "{lives:?}");
}

#[test]
fn several_gateways_admit_exactly_the_limit_on_every_algorithm_and_every_primary() {
    let cluster = Cluster::of(3);
    on_a_core(async {
        let gateways = gateways(&settings(&cluster), 3).await;
        let names: Vec<_> = gateways[0].health().into_iter().map(|shard| shard.name).collect();
        let addresses: Vec<_> = cluster.nodes.iter().map(|node| node.address().to_string()).collect();
        assert_eq!(names, addresses, "shards are named by the primaries' addresses, in the order of the slots");
        for algorithm in Algorithm::ALL {
            let mut tasks = Vec::new();
            for key in 0..12 {
                let check = support::store::check(key + 100 * algorithm as u128, algorithm, 10);
                assert_eq!(gateways[0].home_of(check.key), addresses[cluster.holder(&text(check.key.0))]);
                for gateway in &gateways {
                    let client = Client::new(gateway.clone());
                    tasks.push((
                        key,
                        tokio::task::spawn_local(async move {
                            let mut admitted = 0;
                            for _ in 0..8 {
                                admitted += u64::from(ask(&client, check).await.unwrap().decision.admitted);
                            }
                            admitted
                        }),
                    ));
                }
            }
            let mut admitted = [0; 12];
            for (key, task) in tasks {
                admitted[usize::try_from(key).unwrap()] += task.await.unwrap();
            }
            assert_eq!(admitted, [10; 12], "{algorithm:?}");
        }
        // Each gateway sees all, though the first knew of none.
        for gateway in &gateways {
            tokio::spawn(gateway.clone().maintain());
        }
        until(|| gateways.iter().all(|gateway| gateway.gateways() == 3)).await;
    });
    keys_expire(&cluster);
}

#[test]
fn limits_on_several_slots_are_charged_all_or_none_and_two_of_one_slot_too() {
    let cluster = Cluster::of(3);
    on_a_core(async {
        let gateways = gateways(&settings(&cluster), 1).await;
        let client = Client::new(gateways[0].clone());
        let twin = (1..).find(|key| slot(&text(*key)) == slot(&text(0))).unwrap();
        let other = (1..).find(|key| cluster.holder(&text(*key)) != cluster.holder(&text(0))).unwrap();
        for (second, third) in [(twin, other), (other, other + 1)] {
            let checks = [check(second, 100), check(0, 3), check(third, 100)];
            assert!(client.reset(CounterKey(0)).await.is_ok());
            let before = (left(&client, checks[0]).await, left(&client, checks[2]).await);
            for _ in 0..3 {
                let answers = client.decide(&checks).await;
                assert!(answers.iter().all(|answer| answer.unwrap().charged));
            }
            // The dry one refuses; what the others took is the asker's to give back.
            let answers = client.decide(&checks).await;
            let admitted: Vec<_> = answers.iter().map(|answer| answer.unwrap().decision.admitted).collect();
            assert_eq!(admitted, [true, false, true]);
            for (check, answer) in checks.iter().zip(&answers).filter(|(_, answer)| answer.unwrap().charged) {
                client.give_back(check, answer.unwrap().at_us).await.unwrap();
            }
            assert_eq!((left(&client, checks[0]).await, left(&client, checks[2]).await), (before.0 - 3, before.1 - 3));
            assert_eq!(left(&client, checks[1]).await, 0);
        }
        assert!(client.reset(CounterKey(0)).await.unwrap());
        assert!(!client.reset(CounterKey(0)).await.unwrap());
    });
    keys_expire(&cluster);
}

#[test]
fn a_slot_on_its_way_is_asked_for_where_its_keys_are() {
    let cluster = Cluster::of(2);
    on_a_core(async {
        let gateways = gateways(&settings(&cluster), 1).await;
        let client = Client::new(gateways[0].clone());
        // `old` is there before its slot begins to move, `new` is not, and shares its slot with nobody.
        let [old, new] = [0, 1].map(|nth| (0..).filter(|key| cluster.holder(&text(*key)) == 0).nth(nth).unwrap());
        assert!(ask(&client, check(old, 9)).await.unwrap().charged);
        for key in [old, new] {
            cluster.begin_to_move(slot(&text(key)), 0, 1);
        }
        for expected in [8, 7] {
            let checks = [check(old, 9), check(new, 9)];
            let answers = client.decide(&checks).await;
            assert_eq!(answers[0].unwrap().decision.after.remaining, expected - 1, "still at its old node");
            assert_eq!(answers[1].unwrap().decision.after.remaining, expected, "made at its new node");
        }
        let is_at = |node: usize, key: u128| {
            let url = cluster.nodes[node].url();
            async move {
                let mut node = redis::Client::open(url).unwrap().get_multiplexed_async_connection().await.unwrap();
                let found: Vec<Vec<u8>> = node.keys("*").await.unwrap();
                found.contains(&text(key))
            }
        };
        assert!(is_at(0, old).await && is_at(1, new).await && !is_at(0, new).await);
        cluster.move_keys(slot(&text(old)), 0, 1);
        assert_eq!(left(&client, check(old, 9)).await, 6, "it has moved, its slot has not");
        assert!(ask(&client, check(old, 9)).await.unwrap().charged);
        for key in [old, new] {
            cluster.end_to_move(slot(&text(key)), 1);
        }
        assert_eq!((left(&client, check(old, 9)).await, left(&client, check(new, 9)).await), (5, 7));
        // By now the map says so as well.
        until(|| gateways[0].home_of(CounterKey(old)) == cluster.nodes[1].address().to_string()).await;
        assert!(client.reset(CounterKey(old)).await.unwrap());
        assert_eq!(gateways[0].health().iter().filter(|shard| shard.up).count(), 2);
    });
    keys_expire(&cluster);
}

#[test]
fn slots_that_move_under_traffic_cost_no_answer_and_admit_no_one_twice() {
    const KEYS: u128 = 40;
    let cluster = Arc::new(Cluster::of(3));
    on_a_core(async {
        let gateways = gateways(&settings(&cluster), 2).await;
        let moving = Rc::new(Cell::new(true));
        let mut tasks = Vec::new();
        for (key, gateway) in (0..KEYS).flat_map(|key| gateways.iter().map(move |gateway| (key, gateway))) {
            let (client, moving) = (Client::new(gateway.clone()), moving.clone());
            tasks.push(tokio::task::spawn_local(async move {
                let (mut admitted, mut asked) = (0, 0);
                while moving.get() || asked < 60 {
                    admitted += u64::from(ask(&client, check(key, 50)).await.unwrap().charged);
                    asked += 1;
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
                (key, admitted)
            }));
        }
        // As an operator would, the slots of half the keys, one after the other, on a thread of its own.
        let (mover, moves) = (cluster.clone(), tokio::sync::oneshot::channel());
        let done = moves.0;
        std::thread::spawn(move || {
            for key in 0..KEYS / 2 {
                let (slot, from) = (slot(&text(key)), mover.holder(&text(key)));
                mover.begin_to_move(slot, from, (from + 1) % 3);
                std::thread::sleep(Duration::from_millis(5));
                mover.move_keys(slot, from, (from + 1) % 3);
                mover.end_to_move(slot, (from + 1) % 3);
            }
            done.send(())
        });
        moves.1.await.unwrap();
        moving.set(false);
        let mut admitted = vec![0; usize::try_from(KEYS).unwrap()];
        for task in tasks {
            let (key, mine) = task.await.unwrap();
            admitted[usize::try_from(key).unwrap()] += mine;
        }
        assert!(admitted.iter().all(|count| *count == 50), "{admitted:?}");
    });
    keys_expire(&cluster);
}

#[test]
fn a_killed_primary_is_followed_to_its_replica_without_a_restart() {
    let mut cluster = Cluster::with_replicas(3);
    on_a_core(async {
        let gateways = gateways(&settings(&cluster), 2).await;
        let clients: Vec<_> = gateways.iter().map(|gateway| Client::new(gateway.clone())).collect();
        let [lost, kept] = [0, 1].map(|node| (0..).find(|key| cluster.holder(&text(*key)) == node).unwrap());
        let (lost, kept) = (check(lost, 300), check(kept, 1_000_000));
        let before = cluster.nodes[0].address().to_string();
        for _ in 0..10 {
            assert!(ask(&clients[0], lost).await.unwrap().charged);
        }
        let up = format!("shard=\"{before}\"");
        assert_eq!(metric("staunch_store_up", &up), 1);

        // Replication is asynchronous: what the replica has not heard of when its primary dies is forgotten.
        let begun = clock::now();
        let mut admitted: Vec<Instant> = Vec::new();
        let mut killed = None;
        let mut is_back = false;
        let mut doubtful = 0_usize;
        loop {
            for client in &clients {
                match ask(client, lost).await {
                    Ok(answer) if answer.charged => admitted.push(clock::now()),
                    Ok(_) => is_back = killed.is_some(),
                    Err(error) => doubtful += usize::from(error.maybe_applied),
                }
                ask(client, kept).await.unwrap();
            }
            if admitted.len() == 100 && killed.is_none() {
                cluster.nodes[0].kill();
                killed = Some(clock::now());
            }
            if is_back {
                break;
            }
            assert!(begun.elapsed() < support::wait::PATIENCE, "{:?}", gateways[0].health());
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        let killed = killed.unwrap();
        let unheard = admitted.iter().filter(|at| **at <= killed && killed.duration_since(**at) < LAG).count();
        assert!(admitted.len() + 10 <= 300 + unheard, "{} of 300, {unheard} just before", admitted.len() + 10);
        assert!(admitted.len() + 10 + doubtful >= 300, "{} and {doubtful}", admitted.len());
        for gateway in &gateways {
            until(|| gateway.health().iter().all(|shard| shard.up && shard.name != before)).await;
            assert_eq!(gateway.health().len(), 3);
            assert_eq!(gateway.home_of(lost.key), cluster.nodes[3].address().to_string());
        }
        assert!(!staunch::telemetry::metrics::render().contains(&up), "{before} is still on the page");
    });
    keys_expire(&cluster);
}

/// What a replica is behind at most, on one machine, and however busy that is.
const LAG: Duration = Duration::from_secs(1);

#[test]
fn what_was_admitted_while_a_primary_was_away_is_charged_to_its_successor() {
    let mut cluster = Cluster::with_replicas(3);
    on_a_core(async {
        let gateways = gateways(&settings(&cluster), 1).await;
        let client = Client::new(gateways[0].clone());
        let key = (0..).find(|key| cluster.holder(&text(*key)) == 0).unwrap();
        let check = check(key, 100);
        assert!(ask(&client, check).await.unwrap().charged);
        cluster.in_step(0);
        cluster.nodes[0].kill();
        until(|| !gateways[0].health()[0].up).await;
        gateways[0].owe(&Check { cost: 30, ..check });
        until(|| gateways[0].health().iter().all(|shard| shard.up)).await;
        until(|| gateways[0].home_of(check.key) == cluster.nodes[3].address().to_string()).await;
        while left(&client, check).await != 69 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    });
}

#[test]
fn a_node_that_is_no_cluster_is_told_as_such_and_never_counted_on() {
    let server = support::redis::RedisServer::start();
    on_a_core(async {
        let settings = settings_of(Topology::Cluster, std::slice::from_ref(&server));
        let shards = Shards::new(settings);
        tokio::spawn(shards.clone().maintain());
        until(|| shards.health()[0].last_error.is_some()).await;
        let health = shards.health().remove(0);
        assert_eq!((health.name.as_str(), health.up), ("cluster", false));
        let told = health.last_error.unwrap();
        assert!(told.contains("cluster support disabled"), "{told}");
        assert!(ask(&Client::new(shards.clone()), check(1, 5)).await.is_err());
    });
}

#[test]
fn two_gateways_in_front_of_a_cluster_hold_every_limit_and_follow_it_to_a_new_primary() {
    let mut cluster = Cluster::with_replicas(3);
    let upstream = Upstream::start();
    let nodes: Vec<_> = cluster.nodes.iter().map(|node| format!("\"{}\"", node.url())).collect();
    let text = format!(
        "[store]\nbackend = \"redis\"\non_failure = \"closed\"\n[store.redis]\ntopology = \"cluster\"\nnodes = [{}]\n\
         timeout = \"5s\"\n[policies.p]\nlimits = [\n{{ name = \"all\", key = \"global\", quota = \"90/7d\" }},\n\
         {{ name = \"each\", key = \"header:x-key\", quota = \"20/7d\" }},\n]\n[[routes]]\npath = \"/*\"\n\
         upstream = \"up\"\npolicies = [\"p\"]\n{}",
        nodes[..2].join(", "),
        upstream.table()
    );
    let gateways = [Gateway::start(&text), Gateway::start(&text)];
    let spend = |times: usize, keys: std::ops::Range<usize>| {
        let mut passed = 0;
        for (at, key) in (0..times).flat_map(|at| keys.clone().map(move |key| (at, key))) {
            let status = gateways[at % 2].get_as(&format!("client-{key}"), "/").status;
            assert!([200, 429].contains(&status), "{status}");
            passed += usize::from(status == 200);
        }
        passed
    };
    // What a refused request took from the one limit is given back to it, so that all that are due pass in the end.
    assert_eq!(spend(25, 0..3), 60);
    let mut passed = 60;
    eventually("the rest of the limit for all", || {
        passed += spend(1, 3..6);
        passed == 90
    });
    assert_eq!(spend(2, 3..9), 0);

    let (before, home) = gateways[0].counter("p/all", "");
    assert_eq!(before, 0);
    let lost = cluster.nodes.iter().position(|node| node.address().to_string() == home).unwrap();
    cluster.in_step(lost);
    cluster.nodes[lost].kill();
    let successor = cluster.nodes[lost + 3].address().to_string();
    for gateway in &gateways {
        eventually("the gateway to follow", || {
            let page = gateway.metrics();
            page.contains(&format!("staunch_store_up{{shard=\"{successor}\"}} 1")) && !page.contains(&home)
        });
        assert_eq!(gateway.counter("p/all", ""), (0, successor.clone()));
    }
    assert_eq!(spend(2, 3..9), 0, "nothing was forgotten");
}

#[test]
fn what_is_asked_before_the_cluster_was_seen_is_decided_when_it_has_been() {
    let cluster = Cluster::of(2);
    on_a_core(async {
        let shards = Shards::new(settings(&cluster));
        let client = Client::new(shards.clone());
        tokio::spawn(shards.clone().maintain());
        let checks: Vec<_> = (0..8).map(|key| check(key, 5)).collect();
        assert!(client.decide(&checks).await.iter().all(|answer| answer.unwrap().charged));
        assert_eq!(shards.health().len(), 2);
    });
}
