//! Nodes behind TLS, in every topology: used if their certificate is trusted, refused if not.

mod support;

use staunch::algorithm::Algorithm;
use staunch::store::redis::script::key_text;
use staunch::store::redis::{Client, Node, Settings, Shards, Topology};
use staunch::store::{Check, CounterKey, ErrorKind};
use staunch::units::Secret;
use std::time::Duration;
use support::certificates::{Authority, trusting};
use support::cluster::{Cluster, slot};
use support::ports;
use support::redis::RedisServer;
use support::store::{ask, gateways, is_up, left, on_a_core, settings, until};

/// What the parts of these tests hear of their nodes: their URLs, by commas.
const NODES: &str = "STAUNCH_TEST_NODES";

fn check(key: u128) -> Check {
    support::store::check(key, Algorithm::FixedWindow, 5)
}

fn text(key: u128) -> Vec<u8> {
    key_text("staunch", CounterKey(key))
}

fn told(topology: Topology) -> Settings {
    let urls = std::env::var(NODES).expect("started by a test of this file");
    let node = |url: &str| Node { name: url.rsplit(':').next().unwrap().to_owned(), url: Secret::new(url.to_owned()) };
    let nodes = urls.split(',').map(node).collect();
    Settings { topology, nodes, timeout: Duration::from_secs(5), ..settings(&[]) }
}

#[test]
fn a_node_behind_tls_is_used_if_its_certificate_is_trusted_and_refused_if_not() {
    let (authority, port) = (Authority::new(), ports::free());
    let arguments = authority.redis(port);
    let _server = RedisServer::start_with(&arguments.iter().map(String::as_str).collect::<Vec<_>>());
    for host in ["localhost", "127.0.0.1"] {
        let url = format!("rediss://{host}:{port}");
        for (roots, expected) in [("ca.pem", "answered"), ("other.pem", "refused")] {
            let said = trusting(&authority.path(roots), "one_node", &[(NODES, url.clone())]);
            assert!(said.contains(expected), "{roots}: {said}");
        }
    }
}

#[test]
#[ignore = "a part of the test of one node, which starts it with the environment it needs"]
fn one_node() {
    let shards = Shards::new(told(Topology::Sharded));
    on_a_core(async {
        match ask(&Client::new(shards.clone()), check(1)).await {
            Ok(answer) => println!("answered, charged: {}", answer.charged),
            Err(error) => {
                assert_eq!(error.kind, ErrorKind::Connect);
                let text = shards.health()[0].last_error.clone().unwrap();
                assert!(text.contains("certificate"), "{text}");
                println!("refused: {text}");
            }
        }
    });
}

#[test]
fn a_cluster_that_is_entered_with_tls_is_spoken_to_with_tls_wherever_a_slot_goes() {
    let authority = Authority::new();
    let cluster = Cluster::with_tls(2, &authority);
    let moved = (0..).find(|key| cluster.holder(&text(*key)) == 0).unwrap();
    cluster.begin_to_move(slot(&text(moved)), 0, 1);
    let url = format!("rediss://127.0.0.1:{}", cluster.tls_ports[0]);
    let variables = [(NODES, url), ("STAUNCH_TEST_KEY", moved.to_string())];
    let said = trusting(&authority.path("ca.pem"), "a_cluster", &variables);
    let names: Vec<_> = cluster.tls_ports.iter().map(|port| format!("127.0.0.1:{port}")).collect();
    assert!(said.contains(&format!("{names:?}")), "{said}");
    // Both the keys that stayed and the one that was asked for on its way are counted where they belong.
    let size = |node: &RedisServer| redis::cmd("DBSIZE").query::<u64>(&mut node.ask()).unwrap();
    assert!(cluster.nodes.iter().map(size).all(|keys| keys > 1));
}

#[test]
#[ignore = "a part of the test of a cluster, which starts it with the environment it needs"]
fn a_cluster() {
    let moving: u128 = std::env::var("STAUNCH_TEST_KEY").unwrap().parse().unwrap();
    on_a_core(async {
        let gateways = gateways(&told(Topology::Cluster), 1).await;
        let client = Client::new(gateways[0].clone());
        println!("{:?}", gateways[0].health().iter().map(|shard| shard.name.clone()).collect::<Vec<_>>());
        for key in (0..20).chain([moving]) {
            assert!(ask(&client, check(key)).await.unwrap().charged);
            assert!(left(&client, check(key)).await < 5);
        }
    });
}

#[test]
fn sentinels_and_their_primary_are_spoken_to_with_tls() {
    let authority = Authority::new();
    let folder = tempfile::tempdir().unwrap();
    let [primary_port, sentinel_port] = [(); 2].map(|()| ports::free());
    let with = |port| [authority.redis(port), ["--tls-replication", "yes"].map(str::to_owned).to_vec()].concat();
    let (primary, sentinel) = (with(primary_port), with(sentinel_port));
    let primary = RedisServer::start_with(&primary.iter().map(String::as_str).collect::<Vec<_>>());
    let sentinel: Vec<_> = sentinel.iter().map(String::as_str).collect();
    let _sentinel = RedisServer::sentinel_of(folder.path(), primary_port, &sentinel);
    let url = format!("rediss://127.0.0.1:{sentinel_port}");
    let said = trusting(&authority.path("ca.pem"), "a_sentinel", &[(NODES, url)]);
    assert!(said.contains("answered"), "{said}");
    assert!(!primary.lives().is_empty());
}

#[test]
#[ignore = "a part of the test of sentinels, which starts it with the environment it needs"]
fn a_sentinel() {
    let shards = Shards::new(told(Topology::Sentinel { master: "mymaster".to_owned() }));
    on_a_core(async {
        tokio::spawn(shards.clone().maintain());
        until(|| is_up(&shards)).await;
        assert!(ask(&Client::new(shards.clone()), check(1)).await.unwrap().charged);
        println!("answered");
    });
}
