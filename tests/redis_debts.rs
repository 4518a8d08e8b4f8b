//! What was admitted while a node was away is charged to it when it answers again.

mod support;

use staunch::algorithm::Algorithm;
use staunch::store::Check;
use staunch::store::redis::{Client, Shards};
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
        let shards = Shards::reloaded(settings(&nodes), &before);
        drop(before);
        server.restart();
        tokio::spawn(shards.clone().maintain());
        until(|| is_up(&shards)).await;
        assert_eq!(left(&Client::new(shards.clone()), owed(Algorithm::FixedWindow)).await, 3);
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
