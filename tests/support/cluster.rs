//! A real Redis Cluster: its own processes, joined by hand, with slots that can be moved and primaries that can be killed.

use super::certificates::Authority;
use super::ports;
use super::redis::RedisServer;
use super::wait::eventually;
use redis::Value;
use tempfile::TempDir;

pub const SLOTS: usize = 16_384;
/// A busy machine must not look like a dead node.
const PATIENT_MS: u64 = 60_000;

#[derive(Debug)]
pub struct Cluster {
    /// The primaries, in the order of their slots, then their replicas in the same order.
    pub nodes: Vec<RedisServer>,
    /// In the same order, where there is TLS.
    pub tls_ports: Vec<u16>,
    /// Where nodes keep what they know of each other; removed after they have ended.
    _folder: TempDir,
}

impl Cluster {
    /// Primaries with no replica.
    pub fn of(primaries: usize) -> Self {
        Self::start(primaries, 0, PATIENT_MS, None)
    }

    /// The same, joined by TLS, and spoken to with TLS on the ports that are told with it.
    pub fn with_tls(primaries: usize, authority: &Authority) -> Self {
        Self::start(primaries, 0, PATIENT_MS, Some(authority))
    }

    /// As many replicas as primaries; a primary that is silent for two seconds is replaced.
    pub fn with_replicas(primaries: usize) -> Self {
        Self::start(primaries, primaries, 2000, None)
    }

    fn start(primaries: usize, replicas: usize, node_timeout_ms: u64, authority: Option<&Authority>) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let (mut buses, mut tls_ports) = (Vec::new(), Vec::new());
        let mut node = |i: usize| {
            let (bus, timeout) = (ports::free().to_string(), node_timeout_ms.to_string());
            let file = folder.path().join(format!("nodes-{i}.conf"));
            let file = file.to_str().expect("a name of ours").to_owned();
            let tls = authority.map(|authority| {
                tls_ports.push(ports::free());
                [authority.redis(tls_ports[i]), ["--tls-cluster", "yes"].map(str::to_owned).to_vec()].concat()
            });
            let tls = tls.unwrap_or_default();
            let plain = [
                "--cluster-enabled",
                "yes",
                "--cluster-config-file",
                &file,
                "--cluster-port",
                &bus,
                "--cluster-node-timeout",
                &timeout,
                // One primary's death is to be the others' no more than elsewhere.
                "--cluster-require-full-coverage",
                "no",
                "--repl-diskless-sync-delay",
                "0",
            ];
            let server =
                RedisServer::start_with(&plain.into_iter().chain(tls.iter().map(String::as_str)).collect::<Vec<_>>());
            buses.push(bus);
            server
        };
        let nodes: Vec<_> = (0..primaries + replicas).map(&mut node).collect();
        for (i, node) in nodes.iter().enumerate() {
            cluster(node, &["SET-CONFIG-EPOCH", &(i + 1).to_string()]);
            cluster(node, &["MEET", "127.0.0.1", &nodes[0].port().to_string(), &buses[0]]);
            if i < primaries {
                let edge = |i: usize| SLOTS * i / primaries;
                cluster(node, &["ADDSLOTSRANGE", &edge(i).to_string(), &(edge(i + 1) - 1).to_string()]);
            }
        }
        let cluster = Self { nodes, tls_ports, _folder: folder };
        cluster.agree();
        for (replica, primary) in cluster.nodes[primaries..].iter().zip(&cluster.nodes) {
            self::cluster(replica, &["REPLICATE", &id(primary)]);
        }
        eventually("each node to know each replica", || {
            cluster.nodes.iter().all(|node| {
                text(node, &["NODES"]).matches(" slave ").count()
                    + text(node, &["NODES"]).matches("myself,slave").count()
                    == replicas
            })
        });
        eventually("the replicas to be in step", || cluster.nodes.iter().take(replicas).all(feeds_a_replica));
        cluster
    }

    /// Waits until all nodes know all others and say that the cluster works.
    fn agree(&self) {
        let known = format!("cluster_known_nodes:{}", self.nodes.len());
        eventually("the cluster to be whole", || {
            self.nodes
                .iter()
                .map(|node| text(node, &["INFO"]))
                .all(|info| info.contains("cluster_state:ok") && info.contains(&known))
        });
    }

    /// Waits until a primary's replica has heard of all that was written. (`WAIT` knows of its own connection's writes only.)
    pub fn in_step(&self, primary: usize) {
        let offset = |node: &RedisServer| {
            let info = said(node, &["INFO", "replication"]);
            let line = info.lines().find_map(|line| line.strip_prefix("master_repl_offset:"));
            line.and_then(|offset| offset.trim().parse::<u64>().ok()).expect("an offset")
        };
        let (primary, replica) = (&self.nodes[primary], &self.nodes[primary + self.nodes.len() / 2]);
        let is_linked = || said(replica, &["INFO", "replication"]).contains("master_link_status:up");
        eventually("the replica to have heard of all", || is_linked() && offset(primary) == offset(replica));
    }

    /// The place of the primary that holds a key.
    pub fn holder(&self, key: &[u8]) -> usize {
        let slots = self.slots();
        slots[slot(key)]
    }

    /// The place of the holder of each slot, in the words of the first node that runs.
    fn slots(&self) -> Vec<usize> {
        let node = self.nodes.iter().find(|node| node.is_running()).expect("a node runs");
        let ranges: Vec<(usize, usize, Vec<Value>)> = redis::cmd("CLUSTER")
            .arg("SLOTS")
            .query::<Vec<Vec<Value>>>(&mut node.ask())
            .expect("CLUSTER SLOTS")
            .into_iter()
            .map(|row| {
                let number = |value: &Value| redis::from_redis_value_ref::<usize>(value).expect("a number");
                let primary = redis::from_redis_value_ref(&row[2]).expect("a node");
                (number(&row[0]), number(&row[1]), primary)
            })
            .collect();
        let mut slots = vec![usize::MAX; SLOTS];
        for (first, last, primary) in ranges {
            let port = redis::from_redis_value_ref::<u16>(&primary[1]).expect("a port");
            let place = self.nodes.iter().position(|node| node.port() == port).expect("one of ours");
            slots[first..=last].fill(place);
        }
        slots
    }

    /// Begins to move a slot: from now on keys that are not there yet are made at its new node.
    pub fn begin_to_move(&self, slot: usize, from: usize, to: usize) {
        let slot = slot.to_string();
        cluster(&self.nodes[to], &["SETSLOT", &slot, "IMPORTING", &id(&self.nodes[from])]);
        cluster(&self.nodes[from], &["SETSLOT", &slot, "MIGRATING", &id(&self.nodes[to])]);
    }

    /// Moves what lies in the slot.
    pub fn move_keys(&self, slot: usize, from: usize, to: usize) {
        let (mut source, target) = (self.nodes[from].ask(), self.nodes[to].port());
        let mut command = redis::cmd("CLUSTER");
        let keys: Vec<Vec<u8>> = command.arg("GETKEYSINSLOT").arg(slot).arg(1000).query(&mut source).expect("keys");
        for key in keys {
            let mut migrate = redis::cmd("MIGRATE");
            migrate.arg("127.0.0.1").arg(target).arg(key).arg(0).arg(5000);
            migrate.exec(&mut source).expect("MIGRATE");
        }
    }

    /// Tells every primary that the slot has moved.
    pub fn end_to_move(&self, slot: usize, to: usize) {
        let id = id(&self.nodes[to]);
        // Its new node first: a slot that nobody holds would be an error.
        cluster(&self.nodes[to], &["SETSLOT", &slot.to_string(), "NODE", &id]);
        for node in &self.nodes {
            cluster(node, &["SETSLOT", &slot.to_string(), "NODE", &id]);
        }
    }

    /// Keys of all primaries with their lives in milliseconds; -1 is none.
    pub fn lives(&self) -> Vec<(Vec<u8>, i64)> {
        let primaries =
            self.nodes.iter().filter(|node| node.is_running() && text(node, &["NODES"]).contains("myself,master"));
        primaries.flat_map(RedisServer::lives).collect()
    }
}

/// Whether a primary sends what is written to its replica: it holds that back until the replica has loaded all there was and
/// has said so, which is once a second.
pub fn feeds_a_replica(primary: &RedisServer) -> bool {
    said(primary, &["INFO", "replication"]).contains("state=online")
}

pub fn slot(key: &[u8]) -> usize {
    usize::from(crc::Crc::<u16>::new(&crc::CRC_16_XMODEM).checksum(key)) % SLOTS
}

fn id(node: &RedisServer) -> String {
    text(node, &["MYID"])
}

fn cluster(node: &RedisServer, arguments: &[&str]) {
    redis::cmd("CLUSTER").arg(arguments).exec(&mut node.ask()).unwrap_or_else(|error| panic!("{arguments:?}: {error}"));
}

fn text(node: &RedisServer, arguments: &[&str]) -> String {
    said(node, &[&["CLUSTER"], arguments].concat())
}

/// What a node says, as text.
pub fn said(node: &RedisServer, command: &[&str]) -> String {
    let mut whole = redis::cmd(command[0]);
    whole.arg(&command[1..]);
    whole.query(&mut node.ask()).unwrap_or_else(|error| panic!("{command:?}: {error}"))
}
