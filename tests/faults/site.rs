//! Gateways, nodes, and a link from each gateway to each node that can be broken.

use crate::support::gateway::{Gateway, Setup};
use crate::support::link::{BLACK_HOLE, CUT, DROP_REPLIES, Link, Network, PASS};
use crate::support::redis::RedisServer;
use crate::support::upstream::Upstream;
use crate::support::wait::eventually;

use crate::plan::Fault;

/// Of one check: what a busy machine adds stays below it.
pub const TIMEOUT_MS: u64 = 1000;

pub struct Site {
    pub gateways: Vec<Gateway>,
    pub nodes: Vec<RedisServer>,
    pub upstream: Upstream,
    /// By gateway, then by node.
    links: Vec<Vec<Link>>,
    _network: Network,
}

/// What a fault is done to, and by how many it is noticed.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    pub node: usize,
    pub fault: Fault,
}

impl Site {
    /// `policy` is the text below the store's tables.
    pub fn start(gateways: usize, nodes: usize, policy: &str) -> Self {
        let (network, upstream) = (Network::start(), Upstream::start());
        let nodes: Vec<RedisServer> = (0..nodes).map(|_| RedisServer::start()).collect();
        let to_all = |_| nodes.iter().map(|node| network.link(node.address())).collect();
        let links: Vec<Vec<Link>> = (0..gateways).map(to_all).collect();
        let text = |links: &Vec<Link>| store(links) + policy + &upstream.table();
        let started = links.iter().map(|links| Setup::new(text(links)).start()).collect();
        let site = Self { gateways: started, nodes, upstream, links, _network: network };
        for node in 0..site.nodes.len() {
            eventually("contact", || site.all_up(node));
        }
        site
    }

    pub fn is_up(&self, gateway: usize, node: usize) -> bool {
        let shard = format!("shard=\"n{node}\"");
        let page = self.gateways[gateway].metrics();
        let value = |name: &str| {
            let line = page.lines().find(|line| line.starts_with(name) && line.contains(&shard)).unwrap_or_default();
            line.ends_with(" 1")
        };
        let (up, degraded) = (value("staunch_store_up{"), value("staunch_store_degraded{"));
        up && !degraded
    }

    pub fn all_up(&self, node: usize) -> bool {
        (0..self.gateways.len()).all(|gateway| self.is_up(gateway, node))
    }

    /// Whether the first gateway alone is to notice a fault, or all.
    pub fn touched(&self, fault: Fault) -> usize {
        if fault == Fault::Partition { 1 } else { self.gateways.len() }
    }

    pub fn wait_until_degraded(&self, target: Target) {
        for gateway in 0..self.touched(target.fault) {
            let what = format!("gateway {gateway} gives n{} up", target.node);
            eventually(&what, || {
                let labels = format!("shard=\"n{}\"", target.node);
                self.gateways[gateway].metric("staunch_store_degraded", &[&labels]) > 0.5
            });
        }
    }

    /// Which node holds a key of the limit `p/l`.
    pub fn home(&self, key: &str) -> usize {
        let (_, name) = self.gateways[0].counter("p/l", key);
        name.trim_start_matches('n').parse().expect("a node of ours")
    }

    pub fn errors(&self, node: usize) -> Vec<(String, f64)> {
        let shard = format!("shard=\"n{node}\"");
        let pages: Vec<String> = self.gateways.iter().map(Gateway::metrics).collect();
        let lines = pages.iter().flat_map(|page| page.lines());
        let errors = lines.filter(|line| line.starts_with("staunch_store_errors_total{") && line.contains(&shard));
        let read = |line: &str| {
            let kind = line.split("kind=\"").nth(1)?.split('"').next()?.to_owned();
            let count: f64 = line.rsplit(' ').next()?.parse().ok()?;
            (count > 0.0).then_some((kind, count))
        };
        errors.filter_map(read).collect()
    }

    pub fn begin(&mut self, target: Target) {
        let Target { node, fault } = target;
        match fault {
            Fault::Killed => self.nodes[node].kill(),
            Fault::Stopped => self.nodes[node].stop(),
            Fault::LateABit => self.late(node, 20),
            Fault::TooLate => self.late(node, TIMEOUT_MS + 500),
            Fault::ConnectionsCut => self.set(node, usize::MAX, CUT),
            Fault::BlackHole => self.set(node, usize::MAX, BLACK_HOLE),
            Fault::Partition => self.set(node, 1, BLACK_HOLE),
            Fault::RepliesLost => self.set(node, usize::MAX, DROP_REPLIES),
            Fault::MemoryFull => self.command(node, &["CONFIG", "SET", "maxmemory", "1"]),
            Fault::ReadOnly => self.command(node, &["REPLICAOF", "127.0.0.1", "1"]),
            Fault::ScriptsFlushed => self.command(node, &["SCRIPT", "FLUSH"]),
            Fault::RestartedEmpty => self.nodes[node].restart(),
        }
    }

    pub fn mend(&mut self, target: Target) {
        let Target { node, fault } = target;
        match fault {
            Fault::Killed => self.nodes[node].restart(),
            Fault::Stopped => self.nodes[node].cont(),
            Fault::LateABit | Fault::TooLate => self.late(node, 0),
            Fault::ConnectionsCut | Fault::BlackHole | Fault::Partition | Fault::RepliesLost => {
                self.set(node, usize::MAX, PASS);
            }
            Fault::MemoryFull => self.command(node, &["CONFIG", "SET", "maxmemory", "0"]),
            Fault::ReadOnly => self.command(node, &["REPLICAOF", "NO", "ONE"]),
            Fault::ScriptsFlushed | Fault::RestartedEmpty => {}
        }
    }

    fn set(&self, node: usize, gateways: usize, mode: u8) {
        self.links.iter().take(gateways).for_each(|links| links[node].set(mode));
    }

    fn late(&self, node: usize, delay_ms: u64) {
        self.links.iter().for_each(|links| links[node].delay_ms(delay_ms));
    }

    pub fn command(&self, node: usize, words: &[&str]) {
        redis::cmd(words[0]).arg(&words[1..]).exec(&mut self.nodes[node].ask()).expect("the node takes it");
    }
}

fn store(links: &[Link]) -> String {
    let node = |(i, link): (usize, &Link)| format!("{{ name = \"n{i}\", url = \"{}\" }}", link.url());
    let nodes: Vec<String> = links.iter().enumerate().map(node).collect();
    format!(
        "[store]\nbackend = \"redis\"\n[store.redis]\nnodes = [{}]\ntimeout = \"{TIMEOUT_MS}ms\"\n\
         breaker = {{ failures = 2, retry_after = \"50ms\" }}\n[log]\naccess = \"off\"\n",
        nodes.join(", ")
    )
}
