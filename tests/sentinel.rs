//! Counters on a primary that sentinels watch over: found, followed through a failover, and never written to as a replica.

mod support;

use staunch::algorithm::Algorithm;
use staunch::clock;
use staunch::store::redis::{Client, Shards, Topology};
use staunch::store::{Check, ErrorKind};
use std::time::Duration;
use support::cluster::{feeds_a_replica, said};
use support::redis::RedisServer;
use support::store::{ask, gateways, is_up, left, on_a_core, settings_of, until};
use support::wait::{PATIENCE, eventually};
use tempfile::TempDir;

struct Watched {
    primary: RedisServer,
    replica: RedisServer,
    sentinels: Vec<RedisServer>,
    _folder: TempDir,
}

impl Watched {
    fn start() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let primary = RedisServer::start_with(&["--repl-diskless-sync-delay", "0"]);
        let replica = RedisServer::start_with(&["--replicaof", "127.0.0.1", &primary.port().to_string()]);
        eventually("the replica to be in step", || feeds_a_replica(&primary));
        let sentinels: Vec<_> = (0..3).map(|_| RedisServer::sentinel(folder.path(), &primary, &[])).collect();
        eventually("the sentinels to know each other and the replica", || {
            sentinels.iter().all(|sentinel| {
                let info = said(sentinel, &["INFO", "sentinel"]);
                info.contains("status=ok") && info.contains("slaves=1,sentinels=3")
            })
        });
        Self { primary, replica, sentinels, _folder: folder }
    }
}

fn topology() -> Topology {
    Topology::Sentinel { master: "mymaster".to_owned() }
}

fn check(key: u128, units: u64) -> Check {
    support::store::check(key, Algorithm::FixedWindow, units)
}

/// Sentinels close a node's connections when they change its role.
fn is_replica(server: &RedisServer) -> bool {
    let mut node = server.ask();
    let info = redis::cmd("INFO").arg("replication").query::<String>(&mut node);
    info.is_ok_and(|info| info.contains("role:slave"))
}

fn keys_expire(server: &RedisServer) {
    let lives = server.lives();
    assert!(!lives.is_empty() && lives.iter().all(|(_, life)| *life > 0), "{lives:?}");
}

#[test]
fn a_killed_primary_is_followed_to_its_replica_and_comes_back_as_one() {
    let mut watched = Watched::start();
    on_a_core(async {
        let gateways = gateways(&settings_of(topology(), &watched.sentinels), 2).await;
        assert_eq!(gateways[0].health()[0].name, "mymaster");
        let clients: Vec<_> = gateways.iter().map(|gateway| Client::new(gateway.clone())).collect();
        let (begun, mut admitted, mut doubtful, mut killed) = (clock::now(), Vec::new(), 0, None);
        loop {
            let mut is_dry = false;
            for client in &clients {
                match ask(client, check(1, 300)).await {
                    Ok(answer) if answer.charged => admitted.push(clock::now()),
                    Ok(_) => is_dry = true,
                    Err(error) => doubtful += usize::from(error.maybe_applied),
                }
            }
            if admitted.len() >= 100 && killed.is_none() {
                watched.primary.kill();
                killed = Some(clock::now());
            }
            if is_dry {
                break;
            }
            assert!(begun.elapsed() < PATIENCE, "{:?}", gateways[0].health());
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        // Replication is asynchronous: what the replica has not heard of is forgotten.
        let killed = killed.unwrap();
        let unheard = admitted.iter().filter(|at| **at <= killed && killed.duration_since(**at) < LAG).count();
        assert!(admitted.len() <= 300 + unheard, "{} of 300, {unheard} just before", admitted.len());
        assert!(admitted.len() + doubtful >= 300, "{} and {doubtful}", admitted.len());
        // It comes back empty and as a primary, until the sentinels tell it what it is; it is not asked meanwhile.
        watched.primary.restart();
        let (client, begun) = (&clients[0], clock::now());
        while !is_replica(&watched.primary) {
            assert_eq!(left(client, check(1, 300)).await, 0);
            assert!(begun.elapsed() < PATIENCE, "the sentinels leave it a primary");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    });
    keys_expire(&watched.replica);
}

/// What a replica is behind at most, on one machine, and however busy that is.
const LAG: Duration = Duration::from_secs(1);

#[test]
fn an_ordered_failover_under_traffic_costs_no_answer_but_those_under_way() {
    let watched = Watched::start();
    on_a_core(async {
        let gateways = gateways(&settings_of(topology(), &watched.sentinels), 1).await;
        let client = Client::new(gateways[0].clone());
        let (begun, mut admitted, mut under_way, mut ordered) = (clock::now(), 0, 0, false);
        while !(ordered && is_replica(&watched.primary) && !is_replica(&watched.replica)) {
            for _ in 0..20 {
                match ask(&client, check(1, 100_000)).await {
                    Ok(answer) => admitted += u64::from(answer.charged),
                    // The sentinels close the demoted one's connections, with what is in them.
                    Err(error) => {
                        assert_eq!((error.kind, error.maybe_applied), (ErrorKind::Connect, true));
                        under_way += 1;
                    }
                }
            }
            if admitted >= 100 && !ordered {
                ordered = redis::cmd("SENTINEL")
                    .arg("FAILOVER")
                    .arg("mymaster")
                    .exec(&mut watched.sentinels[0].ask())
                    .is_ok();
            }
            assert!(begun.elapsed() < PATIENCE, "{:?}", gateways[0].health());
        }
        // A refusal of the demoted one is met by going to the new primary; nothing was lost but what was on its way between.
        assert!(ask(&client, check(1, 100_000)).await.unwrap().charged);
        let remaining = left(&client, check(1, 100_000)).await;
        assert!(remaining + admitted + 1 + under_way >= 100_000, "{remaining} left, {admitted} admitted");
        assert!(under_way <= 2, "{under_way} of one client, which asks one thing at a time");
        assert!(is_up(&gateways[0]));
    });
    keys_expire(&watched.replica);
}

#[test]
fn a_password_is_for_the_primary_and_for_sentinels_that_want_one() {
    let password = ["--requirepass", "sentinels-secret"];
    let primary = RedisServer::start_with(&password);
    let folder = tempfile::tempdir().unwrap();
    for (sentinel, left_before) in [(&[][..], 5), (&password[..], 4)] {
        let sentinel = RedisServer::sentinel(folder.path(), &primary, sentinel);
        let mut settings = settings_of(topology(), std::slice::from_ref(&sentinel));
        settings.nodes[0].url =
            staunch::units::Secret::new(format!("redis://:sentinels-secret@127.0.0.1:{}/3", sentinel.port()));
        on_a_core(async {
            let shards = Shards::new(settings);
            tokio::spawn(shards.clone().maintain());
            until(|| is_up(&shards)).await;
            let client = Client::new(shards.clone());
            assert_eq!(left(&client, check(1, 5)).await, left_before);
            assert!(ask(&client, check(1, 5)).await.unwrap().charged);
            assert!(!format!("{shards:?}").contains("secret"));
        });
    }
}

#[test]
fn a_name_that_no_sentinel_knows_and_nodes_that_are_no_sentinels_are_told_as_such() {
    let server = RedisServer::start();
    let folder = tempfile::tempdir().unwrap();
    let sentinel = RedisServer::sentinel(folder.path(), &server, &[]);
    let unknown = Topology::Sentinel { master: "another".to_owned() };
    for (node, topology, expected) in
        [(&sentinel, unknown, "no sentinel knows a master named `another`"), (&server, topology(), "unknown command")]
    {
        on_a_core(async {
            let shards = Shards::new(settings_of(topology, std::slice::from_ref(node)));
            tokio::spawn(shards.clone().maintain());
            until(|| shards.health()[0].last_error.is_some()).await;
            let told = shards.health()[0].last_error.clone().unwrap();
            assert!(told.to_lowercase().contains(expected), "{told}");
            let error = ask(&Client::new(shards.clone()), check(1, 5)).await.unwrap_err();
            assert_eq!((error.kind, error.maybe_applied), (ErrorKind::Other, false));
        });
    }
}
