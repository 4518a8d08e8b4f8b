//! The Redis store over real nodes: exact under bursts, all or nothing per shard, each shard on its own.

mod support;

use staunch::algorithm::Algorithm;
use staunch::store::redis::{Client, Settings, Shards};
use staunch::store::{Answer, Check};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use support::redis::RedisServer;
use support::store::{check, key_on, on_a_core, until};

/// With a timeout that no busy machine reaches.
fn settings(servers: &[RedisServer]) -> Settings {
    let names: Vec<_> = (0..servers.len()).map(|i| format!("n{i}")).collect();
    let nodes: Vec<_> = names.iter().map(String::as_str).zip(servers.iter().map(RedisServer::url)).collect();
    Settings { timeout: Duration::from_secs(20), ..support::store::settings(&nodes) }
}

fn servers(count: usize) -> Vec<RedisServer> {
    (0..count).map(|_| RedisServer::start()).collect()
}

async fn one(client: &Client, check: Check) -> Answer {
    support::store::ask(client, check).await.expect("the node answers")
}

fn commands(server: &RedisServer, command: &[&str]) -> redis::Value {
    let mut connection = redis::Client::open(server.url()).unwrap().get_connection().unwrap();
    let mut whole = redis::cmd(command[0]);
    command[1..].iter().for_each(|argument| {
        whole.arg(*argument);
    });
    whole.query(&mut connection).unwrap()
}

fn script_calls(server: &RedisServer) -> u64 {
    let redis::Value::BulkString(text) = commands(server, &["INFO", "commandstats"]) else { panic!("INFO is a text") };
    let text = String::from_utf8(text).unwrap();
    let calls = |line: &str| line.split("calls=").nth(1)?.split(',').next()?.parse::<u64>().ok();
    text.lines().filter(|line| line.starts_with("cmdstat_eval")).filter_map(calls).sum()
}

#[test]
fn a_burst_over_many_cores_admits_exactly_the_limit() {
    for (nodes, algorithm) in [1, 3].into_iter().flat_map(|nodes| Algorithm::ALL.map(|algorithm| (nodes, algorithm))) {
        let servers = servers(nodes);
        let shards = Shards::new(settings(&servers));
        let burst = || {
            let shards = shards.clone();
            on_a_core(async move {
                let client = Client::new(shards);
                let ask = |client: Rc<Client>| async move { one(&client, check(7, algorithm, 100)).await };
                let tasks: Vec<_> = (0..200).map(|_| tokio::task::spawn_local(ask(client.clone()))).collect();
                let mut admitted = 0;
                for task in tasks {
                    admitted += usize::from(task.await.unwrap().decision.admitted);
                }
                admitted
            })
        };
        let admitted: usize = std::thread::scope(|scope| {
            let cores: Vec<_> = (0..3).map(|_| scope.spawn(burst)).collect();
            cores.into_iter().map(|core| core.join().unwrap()).sum()
        });
        assert_eq!(admitted, 100, "{algorithm:?} on {nodes} nodes");
    }
}

#[test]
fn of_three_tiers_on_three_shards_an_exhausted_one_is_seen_and_the_others_can_be_given_back() {
    let servers = servers(3);
    let shards = Shards::new(settings(&servers));
    on_a_core(async {
        let client = Client::new(shards.clone());
        for dry in 0..3 {
            let tier = |shard: usize| {
                let key = key_on(&shards, shard, 10 + dry);
                check(key, Algorithm::SlidingWindowCounter, if shard == dry { 2 } else { 50 })
            };
            let tiers = [tier(0), tier(1), tier(2)];
            for _ in 0..2 {
                assert!(client.decide(&tiers).await.iter().all(|answer| answer.unwrap().charged));
            }
            let answers = client.decide(&tiers).await;
            for (shard, answer) in answers.iter().enumerate() {
                let answer = answer.unwrap();
                assert_eq!((answer.decision.admitted, answer.charged), (shard != dry, shard != dry));
                if answer.charged {
                    client.give_back(&tiers[shard], answer.at_us).await.unwrap();
                }
            }
            for (shard, tier) in tiers.iter().enumerate() {
                let left = client.inspect(tier.key, tier.algorithm, &tier.quota).await.unwrap().before.remaining;
                assert_eq!(left, if shard == dry { 0 } else { 48 });
            }
        }
    });
}

#[test]
fn answers_come_in_the_order_of_the_checks_wherever_their_keys_lie() {
    let servers = servers(3);
    let shards = Shards::new(settings(&servers));
    on_a_core(async {
        let client = Client::new(shards.clone());
        let homes = [2, 0, 2, 1, 0, 1, 2];
        let checks: Vec<_> = homes
            .iter()
            .enumerate()
            .map(|(i, home)| check(key_on(&shards, *home, i), Algorithm::FixedWindow, 100 + i as u64))
            .collect();
        let answers = client.decide(&checks).await;
        assert_eq!(answers.len(), checks.len());
        for (i, answer) in answers.iter().enumerate() {
            assert_eq!(answer.unwrap().decision.after.remaining, 99 + i as u64);
        }
        assert!(client.decide(&[]).await.is_empty());
    });
}

#[test]
fn checks_that_gather_in_one_turn_travel_in_one_call() {
    let servers = servers(1);
    on_a_core(async {
        let client = Client::new(Shards::new(settings(&servers)));
        one(&client, check(1, Algorithm::FixedWindow, 5)).await;
        let before = script_calls(&servers[0]);
        let ask = |client: Rc<Client>, key| async move { one(&client, check(key, Algorithm::FixedWindow, 5)).await };
        let tasks: Vec<_> = (0..60).map(|key| tokio::task::spawn_local(ask(client.clone(), key))).collect();
        for task in tasks {
            assert!(task.await.unwrap().charged);
        }
        assert_eq!(script_calls(&servers[0]) - before, 1);
    });
}

#[test]
fn a_check_whose_client_has_gone_before_it_left_is_never_sent() {
    let servers = servers(1);
    on_a_core(async {
        let client = Client::new(Shards::new(settings(&servers)));
        let mine = check(1, Algorithm::FixedWindow, 5);
        let mut gone = Box::pin(client.decide(std::slice::from_ref(&mine)));
        std::future::poll_fn(|context| {
            assert!(gone.as_mut().poll(context).is_pending());
            std::task::Poll::Ready(())
        })
        .await;
        drop(gone);
        assert_eq!(one(&client, mine).await.decision.after.remaining, 4);
    });
}

#[test]
fn a_script_flush_under_load_is_seen_by_nobody() {
    let servers = servers(1);
    let shards = Shards::new(settings(&servers));
    let url = servers[0].url();
    std::thread::scope(|scope| {
        let load = scope.spawn(|| {
            on_a_core(async {
                let client = Client::new(shards.clone());
                let ask = |client: Rc<Client>| async move { one(&client, check(3, Algorithm::TokenBucket, 150)).await };
                let mut admitted = 0;
                for _ in 0..60 {
                    let tasks: Vec<_> = (0..5).map(|_| tokio::task::spawn_local(ask(client.clone()))).collect();
                    for task in tasks {
                        admitted += usize::from(task.await.unwrap().charged);
                    }
                }
                admitted
            })
        });
        let mut connection = redis::Client::open(url).unwrap().get_connection().unwrap();
        while !load.is_finished() {
            redis::cmd("SCRIPT").arg("FLUSH").exec(&mut connection).unwrap();
        }
        assert_eq!(load.join().unwrap(), 150);
    });
    assert_eq!(shards.health()[0].last_error, None);
}

#[test]
fn every_key_carries_the_prefix_and_expires() {
    let servers = servers(1);
    let mut settings = settings(&servers);
    settings.key_prefix = "shop-a".to_owned();
    let shards = Shards::new(settings);
    on_a_core(async {
        let watch = tokio::spawn(shards.clone().maintain());
        let client = Client::new(shards.clone());
        for (key, algorithm) in (0..).zip(Algorithm::ALL) {
            let check = check(key, algorithm, 5);
            let answer = one(&client, check).await;
            client.give_back(&check, answer.at_us).await.unwrap();
            client.charge_up_to(&check).await.unwrap();
        }
        until(|| shards.health()[0].clock_skew_us.is_some()).await;
        watch.abort();
    });
    let mut connection = redis::Client::open(servers[0].url()).unwrap().get_connection().unwrap();
    let keys: Vec<Vec<u8>> = redis::cmd("KEYS").arg("*").query(&mut connection).unwrap();
    assert_eq!(keys.len(), Algorithm::ALL.len() + 1);
    for key in keys {
        assert!(key.starts_with(b"shop-a:"), "{key:?}");
        let left: i64 = redis::cmd("PTTL").arg(&key).query(&mut connection).unwrap();
        assert!((1..=7_200_000).contains(&left), "{key:?} lives {left} ms");
    }
}

#[test]
fn a_reset_forgets_one_counter_and_says_whether_it_was_there() {
    let servers = servers(3);
    on_a_core(async {
        let client = Client::new(Shards::new(settings(&servers)));
        for algorithm in Algorithm::ALL {
            let (mine, other) = (check(1, algorithm, 5), check(2, algorithm, 5));
            one(&client, mine).await;
            one(&client, other).await;
            assert!(client.reset(mine.key).await.unwrap());
            assert!(!client.reset(mine.key).await.unwrap());
            assert_eq!(one(&client, mine).await.decision.after.remaining, 4);
            assert_eq!(one(&client, other).await.decision.after.remaining, 3);
            client.reset(mine.key).await.unwrap();
            client.reset(other.key).await.unwrap();
        }
    });
}

#[test]
fn a_charge_of_what_was_admitted_elsewhere_takes_what_fits_and_no_more() {
    let servers = servers(1);
    on_a_core(async {
        let client = Client::new(Shards::new(settings(&servers)));
        for (key, algorithm) in (0..).zip(Algorithm::ALL) {
            let check = Check { cost: 7, ..check(key, algorithm, 10) };
            assert_eq!(client.charge_up_to(&check).await.unwrap(), 7);
            assert_eq!(client.charge_up_to(&check).await.unwrap(), 3, "{algorithm:?}");
            assert_eq!(client.charge_up_to(&check).await.unwrap(), 0);
        }
    });
}

#[test]
fn gateways_see_each_other_and_forget_nobody_while_a_shard_is_down() {
    let mut servers = servers(2);
    let gateways: Vec<_> = (0..3)
        .map(|i| Shards::of_gateway(settings(&servers), format!("gateway-{i}"), None))
        .collect::<Vec<Arc<Shards>>>();
    on_a_core(async {
        assert_eq!(gateways[0].gateways(), 1);
        for (i, gateway) in gateways.iter().enumerate() {
            let watch = tokio::spawn(gateway.clone().maintain());
            until(|| gateway.health().iter().all(|shard| shard.clock_skew_us.is_some())).await;
            watch.abort();
            assert_eq!(gateway.gateways(), i as u64 + 1);
        }
        servers.iter_mut().for_each(RedisServer::kill);
        assert_eq!(gateways[2].gateways(), 3);
        let skew = gateways[0].health()[0].clock_skew_us.unwrap();
        assert!(skew.abs() < 1_000_000, "the same machine, {skew} µs apart");
    });
}

#[test]
fn after_a_reload_a_node_that_stayed_keeps_its_state_and_one_that_left_leaves_the_metrics() {
    let mut servers = servers(3);
    let name =
        |settings: &mut Settings| settings.nodes.iter_mut().for_each(|node| node.name.insert_str(0, "reloaded-"));
    let (mut before, mut after) = (settings(&servers[..2]), settings(&servers));
    name(&mut before);
    name(&mut after);
    after.nodes.remove(0);
    after.nodes.reverse();
    on_a_core(async {
        let shards = Shards::new(before);
        let client = Client::new(shards.clone());
        let key = key_on(&shards, 1, 1);
        one(&client, check(key, Algorithm::FixedWindow, 5)).await;
        let before = shards;
        let shards = Shards::reloaded(after, &before);
        before.retire(Some(&shards));
        let up: Vec<_> = shards.health().into_iter().map(|shard| (shard.name, shard.up)).collect();
        assert_eq!(up, [("reloaded-n2".to_owned(), false), ("reloaded-n1".to_owned(), true)]);
        let page = staunch::telemetry::metrics::render();
        assert!(page.contains("staunch_store_up{shard=\"reloaded-n1\"} 1"));
        assert!(!page.contains("staunch_store_up{shard=\"reloaded-n0\"}"));
        servers[1].kill();
        let client = Client::new(shards.clone());
        let check = check(key_on(&shards, 1, 2), Algorithm::FixedWindow, 5);
        assert_eq!(client.decide(&[check]).await[0].unwrap_err().shard, 1);
    });
}
