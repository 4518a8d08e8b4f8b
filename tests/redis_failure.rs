//! The Redis store when nodes fail: how long it takes, what is said, how it heals, and that nothing is charged twice.

mod support;

use staunch::algorithm::Algorithm;
use staunch::store::redis::{Client, Settings, Shards};
use staunch::store::{Check, ErrorKind};
use std::rc::Rc;
use support::link::{BLACK_HOLE, DROP_REPLIES, Link, PASS};
use support::log::logged;
use support::redis::RedisServer;
use support::store::{FAILURES, ask, is_degraded, is_up, key_on, left, metric, on_a_core, shards, until};

fn check(key: u128, units: u64) -> Check {
    support::store::check(key, Algorithm::FixedWindow, units)
}

#[test]
fn a_killed_node_is_given_up_after_the_given_failures_and_used_again_when_it_is_back() {
    let mut server = RedisServer::start();
    let shards = shards(&[("killed", server.url())]);
    on_a_core(async {
        tokio::spawn(shards.clone().maintain());
        until(|| is_up(&shards)).await;
        let client = Client::new(shards.clone());
        ask(&client, check(1, 5)).await.unwrap();
        for _ in 0..4 {
            let recoveries = shards.recoveries(0);
            server.kill();
            for i in 0..FAILURES {
                assert!(!shards.is_open(0), "open after {i} failures");
                assert_eq!(ask(&client, check(1, 5)).await.unwrap_err().kind, ErrorKind::Connect);
            }
            assert!(shards.is_open(0) && is_degraded(&shards) && !is_up(&shards));
            assert_eq!(metric("staunch_store_up", "shard=\"killed\""), 0);
            assert_eq!(metric("staunch_store_degraded", "shard=\"killed\""), 1);
            let refused = ask(&client, check(1, 5)).await.unwrap_err();
            assert_eq!((refused.kind, refused.maybe_applied), (ErrorKind::Connect, false));
            server.restart();
            until(|| is_up(&shards)).await;
            assert_eq!(metric("staunch_store_up", "shard=\"killed\""), 1);
            assert_eq!(shards.recoveries(0), recoveries + 1);
            assert!(ask(&client, check(1, 5)).await.unwrap().charged);
            assert_eq!(left(&client, check(1, 5)).await, 4, "it came back empty");
        }
    });
}

#[test]
fn an_open_shard_is_not_touched_by_checks() {
    let server = RedisServer::start();
    on_a_core(async {
        let link = Link::to(server.address()).await;
        let shards = shards(&[("untouched", link.url())]);
        let client = Client::new(shards.clone());
        ask(&client, check(1, 5)).await.unwrap();
        link.set(BLACK_HOLE);
        while !shards.is_open(0) {
            ask(&client, check(1, 5)).await.unwrap_err();
        }
        let (connections, errors) =
            (link.connections(), metric("staunch_store_errors_total", "kind=\"timeout\",shard=\"untouched\""));
        for key in 0..500 {
            ask(&client, check(key, 5)).await.unwrap_err();
        }
        assert_eq!(link.connections(), connections);
        assert_eq!(metric("staunch_store_errors_total", "kind=\"timeout\",shard=\"untouched\""), errors);
        assert_eq!(errors, u64::from(FAILURES));
    });
}

#[test]
fn a_node_restarted_while_idle_is_used_again_without_an_error() {
    let mut server = RedisServer::start();
    let shards = shards(&[("restarted", server.url())]);
    on_a_core(async {
        let client = Client::new(shards.clone());
        for _ in 0..3 {
            assert!(ask(&client, check(1, 5)).await.unwrap().charged);
            server.restart();
        }
        assert!(ask(&client, check(1, 5)).await.unwrap().charged);
        assert_eq!(shards.health()[0].last_error, None);
    });
}

#[test]
fn a_stopped_node_delays_only_its_own_shard_and_wakes_without_charging_twice() {
    let servers = [RedisServer::start(), RedisServer::start()];
    let shards = shards(&[("stopped", servers[0].url()), ("awake", servers[1].url())]);
    on_a_core(async {
        tokio::spawn(shards.clone().maintain());
        until(|| shards.health().iter().all(|shard| shard.up)).await;
        let client = Client::new(shards.clone());
        let (stopped, awake) = (check(key_on(&shards, 0, 0), 100), check(key_on(&shards, 1, 0), 100));
        ask(&client, stopped).await.unwrap();
        servers[0].stop();
        let both = [stopped, awake];
        let answers = client.decide(&both).await;
        let error = answers[0].unwrap_err();
        assert_eq!((error.kind, error.shard, error.maybe_applied), (ErrorKind::Timeout, 0, true));
        assert!(answers[1].unwrap().charged);
        // A new connection is accepted by the kernel of a stopped node; no check may be handed to it.
        let error = ask(&client, stopped).await.unwrap_err();
        assert_eq!((error.kind, error.maybe_applied), (ErrorKind::Timeout, false));
        while !shards.is_open(0) {
            ask(&client, stopped).await.unwrap_err();
        }
        assert!(!shards.is_open(1));
        servers[0].cont();
        until(|| shards.health()[0].up).await;
        let left = left(&client, stopped).await;
        assert!([98, 99].contains(&left), "one was charged, one may have been: {left} left");
    });
}

#[test]
fn a_black_holed_connection_is_not_kept() {
    let server = RedisServer::start();
    on_a_core(async {
        let link = Link::to(server.address()).await;
        let shards = shards(&[("hole", link.url())]);
        tokio::spawn(shards.clone().maintain());
        until(|| is_up(&shards)).await;
        // The second core's connection idles through the trouble, and is as dead as the first's.
        let (busy, idle) = (Client::new(shards.clone()), Client::new(shards.clone()));
        ask(&busy, check(1, 5)).await.unwrap();
        ask(&idle, check(2, 5)).await.unwrap();
        link.set(BLACK_HOLE);
        while !shards.is_open(0) {
            assert_eq!(ask(&busy, check(1, 5)).await.unwrap_err().kind, ErrorKind::Timeout);
        }
        link.set(PASS);
        until(|| is_up(&shards)).await;
        assert!(ask(&busy, check(1, 5)).await.unwrap().charged);
        assert!(ask(&idle, check(2, 5)).await.unwrap().charged);
    });
}

#[test]
fn lost_replies_never_charge_twice() {
    let server = RedisServer::start();
    on_a_core(async {
        let link = Link::to(server.address()).await;
        let shards = shards(&[("lost", link.url())]);
        tokio::spawn(shards.clone().maintain());
        until(|| is_up(&shards)).await;
        let client = Client::new(shards.clone());
        let (mut counted, mut doubtful) = (0, 0);
        for _ in 0..3 {
            link.set(DROP_REPLIES);
            for _ in 0..=FAILURES {
                match ask(&client, check(1, 1000)).await {
                    Ok(_) => counted += 1,
                    Err(error) => doubtful += u64::from(error.maybe_applied),
                }
            }
            link.set(PASS);
            until(|| is_up(&shards)).await;
            ask(&client, check(1, 1000)).await.unwrap();
            counted += 1;
        }
        let charged = 1000 - left(&client, check(1, 1000)).await;
        assert!(doubtful > 0);
        assert!((counted..=counted + doubtful).contains(&charged), "{charged} charged, {counted} + {doubtful} sent");
    });
}

#[test]
fn a_core_that_was_held_up_past_the_deadline_still_takes_the_reply_that_is_there() {
    let server = RedisServer::start();
    let shards = shards(&[("held", server.url())]);
    on_a_core(async {
        let client = Client::new(shards.clone());
        ask(&client, check(1, 5)).await.unwrap();
        for _ in 0..3 {
            let other = client.clone();
            let asked = tokio::task::spawn_local(async move { ask(&other, check(2, 5)).await });
            // The call leaves, and the thread does something else for longer than the timeout.
            for _ in 0..5 {
                tokio::task::yield_now().await;
            }
            std::thread::sleep(support::store::TIMEOUT * 2);
            assert!(asked.await.unwrap().unwrap().charged);
        }
    });
}

#[test]
fn a_connection_lost_with_many_calls_in_it_is_one_failure() {
    let mut server = RedisServer::start();
    let shards = shards(&[("reset", server.url())]);
    on_a_core(async {
        let client = Client::new(shards.clone());
        ask(&client, check(1, 5)).await.unwrap();
        server.stop();
        let one = |client: Rc<Client>, key| async move { ask(&client, check(key, 5)).await };
        let mut tasks = Vec::new();
        for key in 0..10 {
            tasks.push(tokio::task::spawn_local(one(client.clone(), key)));
            // Each in a turn of its own, and so in a call of its own.
            for _ in 0..3 {
                tokio::task::yield_now().await;
            }
        }
        server.restart();
        for task in tasks {
            let error = task.await.unwrap().unwrap_err();
            assert_eq!((error.kind, error.maybe_applied), (ErrorKind::Connect, true));
        }
        assert!(!shards.is_open(0));
        assert!(ask(&client, check(1, 5)).await.unwrap().charged);
        assert_eq!(shards.recoveries(0), 1);
    });
}

#[test]
fn a_request_abandoned_between_two_shards_gives_back_what_it_was_granted() {
    let servers = [RedisServer::start(), RedisServer::start()];
    let shards = shards(&[("first", servers[0].url()), ("second", servers[1].url())]);
    on_a_core(async {
        let client = Client::new(shards.clone());
        let both = [check(key_on(&shards, 0, 0), 5), check(key_on(&shards, 1, 0), 5)];
        client.decide(&both).await;
        servers[1].stop();
        let other = client.clone();
        let abandoned = tokio::task::spawn_local(async move { other.decide(&both).await });
        while left(&client, both[0]).await != 3 {
            tokio::task::yield_now().await;
        }
        abandoned.abort();
        while left(&client, both[0]).await != 4 {
            tokio::task::yield_now().await;
        }
        servers[1].cont();
        assert!(abandoned.await.unwrap_err().is_cancelled());
    });
}

#[test]
fn a_crowd_at_a_hung_node_is_answered_within_its_deadline_and_only_some_of_it_was_sent() {
    let server = RedisServer::start();
    // Long enough for a busy machine to queue the whole crowd before its first deadline.
    let timeout = 10 * support::store::TIMEOUT;
    let shards = Shards::new(Settings { timeout, ..support::store::settings(&[("crowd", server.url())]) });
    on_a_core(async {
        let client = Client::new(shards.clone());
        ask(&client, check(1, 5)).await.unwrap();
        server.stop();
        let one = |client: Rc<Client>, key| async move { ask(&client, check(key, 5)).await };
        let tasks: Vec<_> = (0..20_000).map(|key| tokio::task::spawn_local(one(client.clone(), key))).collect();
        let mut sent = 0;
        for task in tasks {
            let error = task.await.unwrap().unwrap_err();
            assert_eq!(error.kind, ErrorKind::Timeout);
            sent += u64::from(error.maybe_applied);
        }
        assert!((1..=16 * 64).contains(&sent), "{sent} in flight at once");
        server.cont();
    });
}

#[test]
fn a_node_that_ends_while_nobody_asks_it_is_told_of() {
    let mut server = RedisServer::start();
    let shards = shards(&[("unasked", server.url())]);
    on_a_core(async {
        tokio::spawn(shards.clone().maintain());
        until(|| is_up(&shards)).await;
        server.kill();
        until(|| is_degraded(&shards) && !is_up(&shards)).await;
        server.restart();
        until(|| is_up(&shards) && !is_degraded(&shards)).await;
    });
}

#[test]
fn started_while_its_node_is_down_it_says_so_and_heals() {
    let mut server = RedisServer::start();
    server.kill();
    let shards = shards(&[("absent", server.url())]);
    on_a_core(async {
        assert!(!is_up(&shards) && !is_degraded(&shards));
        tokio::spawn(shards.clone().maintain());
        until(|| is_degraded(&shards)).await;
        server.restart();
        until(|| is_up(&shards)).await;
        assert!(ask(&Client::new(shards.clone()), check(1, 5)).await.unwrap().charged);
        assert_eq!(shards.recoveries(0), 1);
    });
}

#[test]
fn a_node_that_cannot_be_written_to_stays_degraded_until_it_can() {
    let server = RedisServer::start();
    let mut operator = redis::Client::open(server.url()).unwrap().get_connection().unwrap();
    let mut set = |command: [&str; 4]| {
        let mut whole = redis::cmd(command[0]);
        command[1..].iter().filter(|word| !word.is_empty()).for_each(|word| _ = whole.arg(*word));
        whole.exec(&mut operator).unwrap();
    };
    let cases = [
        (ErrorKind::Readonly, ["REPLICAOF", "127.0.0.1", "1", ""], ["REPLICAOF", "NO", "ONE", ""]),
        (ErrorKind::Oom, ["CONFIG", "SET", "maxmemory", "1"], ["CONFIG", "SET", "maxmemory", "0"]),
    ];
    for (kind, breaks, mends) in cases {
        let name = format!("{kind:?}");
        let shards = shards(&[(&name, server.url())]);
        on_a_core(async {
            tokio::spawn(shards.clone().maintain());
            until(|| is_up(&shards)).await;
            let client = Client::new(shards.clone());
            set(breaks);
            for _ in 0..FAILURES {
                let error = ask(&client, check(1, 50)).await.unwrap_err();
                assert_eq!((error.kind, error.maybe_applied), (kind, false));
            }
            assert!(is_degraded(&shards));
            // The node answers; what fails is the writing, and the probe must notice.
            let errors =
                || metric("staunch_store_errors_total", &format!("kind=\"{}\",shard=\"{name}\"", name.to_lowercase()));
            until(|| errors() >= u64::from(FAILURES) + 2).await;
            assert!(is_degraded(&shards));
            set(mends);
            until(|| is_up(&shards)).await;
            assert!(ask(&client, check(1, 50)).await.unwrap().charged);
        });
    }
}

#[test]
fn each_change_of_a_shard_is_one_log_line_that_names_it() {
    let mut server = RedisServer::start();
    let shards = shards(&[("spoken", server.url())]);
    let said = logged(|| {
        on_a_core(async {
            tokio::spawn(shards.clone().maintain());
            until(|| is_up(&shards)).await;
            let client = Client::new(shards.clone());
            server.kill();
            for _ in 0..60 {
                ask(&client, check(1, 5)).await.unwrap_err();
            }
            server.restart();
            until(|| is_up(&shards)).await;
            ask(&client, check(1, 5)).await.unwrap();
        });
    });
    let lines: Vec<_> = said.lines().collect();
    assert_eq!(lines.len(), 3, "{said}");
    assert!(lines.iter().all(|line| line.contains("shard=\"spoken\"")), "{said}");
    assert_eq!([0, 2].map(|line: usize| lines[line].contains("answers again")), [false, true], "{said}");
    assert!(lines[0].contains("INFO") && lines[1].contains("WARN") && lines[2].contains("INFO"), "{said}");
}
