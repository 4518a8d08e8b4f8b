//! What was admitted while a node was away is charged to it when it answers again.

mod support;

use staunch::algorithm::{Algorithm, Quota};
use staunch::store::Check;
use staunch::store::redis::{Client, Settings, Shards};
use std::time::Duration;
use support::link::{DROP_REPLIES, Link, PASS};
use support::log::logged;
use support::redis::RedisServer;
use support::store::{ask, check, is_up, left, on_a_core, settings, shards, until};

fn owed(algorithm: Algorithm) -> Check {
    Check { cost: 7, ..check(algorithm as u128, algorithm, 10) }
}

#[test]
fn it_is_charged_before_the_shard_is_asked_again_and_only_as_far_as_the_limit_goes() {
    let mut server = RedisServer::start();
    let shards = shards(&[("owed", server.url())]);
    on_a_core(async {
        tokio::spawn(shards.clone().maintain());
        until(|| is_up(&shards)).await;
        let client = Client::new(shards.clone());
        for units in [7, 10] {
            server.kill();
            while !shards.is_open(0) {
                ask(&client, check(99, Algorithm::FixedWindow, 10)).await.unwrap_err();
            }
            for algorithm in Algorithm::ALL {
                // The second time twice: 14 of 10.
                (0..units / 5).for_each(|_| shards.owe(&owed(algorithm)));
            }
            server.restart();
            until(|| is_up(&shards)).await;
            for algorithm in Algorithm::ALL {
                assert_eq!(left(&client, owed(algorithm)).await, 10 - units, "{algorithm:?}");
            }
        }
    });
}

#[test]
fn it_is_charged_too_when_the_failures_did_not_open_the_breaker() {
    let server = RedisServer::start();
    on_a_core(async {
        let link = Link::to(server.address()).await;
        let shards = shards(&[("brief", link.url())]);
        tokio::spawn(shards.clone().maintain());
        until(|| is_up(&shards)).await;
        let client = Client::new(shards.clone());
        let (mine, other) = (owed(Algorithm::TokenBucket), check(99, Algorithm::FixedWindow, 10));
        link.set(DROP_REPLIES);
        ask(&client, other).await.unwrap_err();
        shards.owe(&mine);
        link.set(PASS);
        ask(&client, other).await.unwrap();
        assert!(is_up(&shards));
        while left(&client, mine).await != 3 {
            tokio::task::yield_now().await;
        }
    });
}

#[test]
fn a_shard_heals_and_is_paid_though_traffic_goes_on_to_be_admitted_without_it() {
    let mut server = RedisServer::start();
    let shards = shards(&[("busy", server.url())]);
    let mine = Check { cost: 1, ..check(1, Algorithm::FixedWindow, 1_000_000_000) };
    on_a_core(async {
        tokio::spawn(shards.clone().maintain());
        until(|| is_up(&shards)).await;
        server.kill();
        until(|| shards.is_open(0)).await;
        let traffic = std::thread::spawn({
            let shards = shards.clone();
            move || {
                let mut owed = 0;
                while shards.is_open(0) && owed < 100_000_000 {
                    shards.owe(&mine);
                    owed += 1;
                }
                owed
            }
        });
        server.restart();
        let healed = tokio::time::timeout(support::wait::PATIENCE, until(|| is_up(&shards))).await;
        assert!(healed.is_ok(), "it is paid for ever");
        let owed = traffic.join().unwrap();
        let client = Client::new(shards.clone());
        while left(&client, mine).await != 1_000_000_000 - owed {
            tokio::task::yield_now().await;
        }
    });
}

#[test]
fn a_reload_does_not_forget_it() {
    let mut server = RedisServer::start();
    let nodes = [("kept", server.url())];
    server.kill();
    let before = shards(&nodes);
    on_a_core(async {
        before.owe(&owed(Algorithm::FixedWindow));
        let shards = Shards::reloaded(Settings { failures: 9, ..settings(&nodes) }, &before);
        before.retire(Some(&shards));
        drop(before);
        server.restart();
        tokio::spawn(shards.clone().maintain());
        until(|| is_up(&shards)).await;
        assert_eq!(left(&Client::new(shards.clone()), owed(Algorithm::FixedWindow)).await, 3);
    });
}

#[test]
fn what_is_over_is_not_charged_to_a_later_window() {
    let mut server = RedisServer::start();
    let shards = shards(&[("old", server.url())]);
    let quota = Quota { units: 10, period_us: 200_000, burst: 10 };
    let old = |algorithm| Check { quota, ..owed(algorithm) };
    on_a_core(async {
        tokio::spawn(shards.clone().maintain());
        until(|| is_up(&shards)).await;
        server.kill();
        Algorithm::ALL.into_iter().for_each(|algorithm| shards.owe(&old(algorithm)));
        // Two windows, and more than the bucket's refill.
        tokio::time::sleep(Duration::from_millis(450)).await;
        server.restart();
        until(|| is_up(&shards)).await;
        let client = Client::new(shards.clone());
        for algorithm in Algorithm::ALL {
            assert_eq!(left(&client, old(algorithm)).await, 10, "{algorithm:?}");
        }
    });
}

#[test]
fn what_nobody_will_be_paid_any_more_is_told_of() {
    let nodes = [("gone", "redis://127.0.0.1:1".to_owned())];
    let said = logged(|| {
        let before = shards(&nodes);
        before.owe(&owed(Algorithm::FixedWindow));
        let next = Shards::reloaded(Settings { key_prefix: "another".to_owned(), ..settings(&nodes) }, &before);
        before.retire(Some(&next));
    });
    assert!(said.contains("not all that was admitted") && said.contains("units=7"), "{said}");
}

#[test]
fn a_node_that_has_forgotten_the_gateways_does_not_lower_their_number_at_once() {
    let mut server = RedisServer::start();
    let nodes = [("forgetful", server.url())];
    let (one, other) = (shards(&nodes), Shards::of_gateway(settings(&nodes), "other".to_owned(), None));
    on_a_core(async {
        let gone = tokio::spawn(other.clone().maintain());
        until(|| is_up(&other)).await;
        tokio::spawn(one.clone().maintain());
        until(|| one.gateways() == 2).await;
        gone.abort();
        server.kill();
        until(|| one.is_open(0)).await;
        server.restart();
        until(|| is_up(&one)).await;
        assert_eq!(one.gateways(), 2);
    });
}

#[test]
fn what_finds_no_room_is_told_of() {
    let mut server = RedisServer::start();
    let shards = shards(&[("full", server.url())]);
    let said = logged(|| {
        on_a_core(async {
            let mine = owed(Algorithm::FixedWindow);
            ask(&Client::new(shards.clone()), mine).await.unwrap();
            shards.owe(&mine);
            tokio::spawn(shards.clone().maintain());
            while left(&Client::new(shards.clone()), mine).await != 0 {
                tokio::task::yield_now().await;
            }
            server.kill();
            until(|| !is_up(&shards)).await;
        });
    });
    assert!(said.contains("not all that was admitted") && said.contains("units=4"), "{said}");
}
