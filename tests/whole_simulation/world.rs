//! Gateways as they are, from the limiter down to the bytes on a socket, and nodes that are played, in one thread and in virtual
//! time: a millisecond passes when everything that can happen in it has happened.

use super::frame::Units;
use super::node::{Mode, Node};
use staunch::algorithm::{Algorithm, Quota, State};
use staunch::clock;
use staunch::identify::{Facts, Identity, KeySource, KeySpec, Keyer, Namespace, Prefixes};
use staunch::limit::hot::{self, Hot};
use staunch::limit::{Allowance, Limit, Limiter, Name, OnFailure, OnMissingKey, Outcome, RouteLimit, Ruling};
use staunch::runtime::Counters;
use staunch::store::CounterKey;
use staunch::store::memory::Memory;
use staunch::store::redis::script::key_text;
use staunch::store::redis::{Node as Address, Settings, Shards, Topology};
use staunch::telemetry::metrics::LimitMetrics;
use staunch::telemetry::top::Top;
use staunch::units::Secret;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use tokio::task::{JoinHandle, spawn_local, yield_now};
use tokio::time::advance;

/// Ten times what a question and its answer take at the most.
const TIMEOUT_MS: u64 = 60;
/// Turns of the event loop in which a question and its answer can go back and forth.
const TURNS: usize = 8;

#[derive(Clone, Debug)]
pub struct Plan {
    pub gateways: usize,
    pub cores: usize,
    pub nodes: usize,
    pub algorithm: Algorithm,
    /// Of each limit: all of them are asked for by every request.
    pub quotas: Vec<u64>,
    pub clients: u8,
    pub on_failure: OnFailure,
    pub ttl_ms: u64,
    pub delay_max_ms: u64,
}

pub struct Gateway {
    in_force: Rc<RefCell<InForce>>,
    shards: Arc<Shards>,
    /// What it counts alone; a reload keeps it.
    local: Arc<Memory>,
}

/// What a reload replaces.
#[derive(Clone)]
struct InForce {
    cores: Vec<Rc<Limiter>>,
    hot: Option<Arc<Hot>>,
}

/// Of one counter.
#[derive(Clone, Copy, Default, Debug)]
pub struct Tally {
    pub admitted: u64,
    /// Of requests whose client left before they were answered: nobody was served for what they may have taken.
    pub abandoned: u64,
    /// The largest part of the limit that each gateway took for its own.
    pub shares: [u64; 4],
}

pub struct World {
    pub plan: Plan,
    pub nodes: Vec<Rc<Node>>,
    gateways: Vec<Gateway>,
    limits: Rc<Vec<RouteLimit>>,
    pub tallies: Rc<RefCell<BTreeMap<(usize, u8), Tally>>>,
    asking: Vec<(u8, JoinHandle<()>)>,
    _folder: tempfile::TempDir,
}

impl World {
    pub async fn begin(plan: Plan, seed: u64) -> Self {
        // The process's own windows begin where they always do, so that a seed replays them as well.
        let hour_us = 3_600_000_000;
        advance(Duration::from_micros(hour_us - clock::now_us() % hour_us + 600_000_000)).await;
        let folder = tempfile::tempdir().unwrap();
        let node = |nth: usize| {
            Node::start(folder.path().join(format!("n{nth}")), plan.delay_max_ms, seed.wrapping_add(nth as u64))
        };
        let nodes: Vec<Rc<Node>> = (0..plan.nodes).map(node).collect();
        let gateways = (0..plan.gateways).map(|nth| gateway(&plan, &nodes, nth)).collect();
        let limits = (0..plan.quotas.len()).map(|nth| limit(&plan, nth)).collect();
        let (limits, tallies) = (Rc::new(limits), Rc::default());
        let mut world = Self { plan, nodes, gateways, limits, tallies, asking: Vec::new(), _folder: folder };
        world.pass(60).await;
        world
    }

    pub async fn pass(&mut self, milliseconds: u64) {
        self.pass_in_steps(milliseconds, 1).await;
    }

    /// Where nothing much happens, with a coarser step.
    pub async fn pass_in_steps(&mut self, steps: u64, milliseconds: u64) {
        for _ in 0..steps {
            for _ in 0..TURNS {
                yield_now().await;
            }
            advance(Duration::from_millis(milliseconds)).await;
        }
        self.asking.retain(|(_, task)| !task.is_finished());
    }

    /// One request of a client at a gateway's core.
    pub fn ask(&mut self, gateway: usize, core: usize, client: u8) {
        let limiter = self.gateways[gateway].in_force.borrow().cores[core].clone();
        let (limits, tallies) = (self.limits.clone(), self.tallies.clone());
        let asking = spawn_local(async move {
            let headers = http::HeaderMap::new();
            let (begun, headers_of) = (clock::now(), facts(&headers, client));
            let mut ruling = Ruling::pass(begun);
            limiter.decide(&limits, &headers_of, begun, &mut ruling).await;
            note(&mut tallies.borrow_mut(), &ruling, &limits, (gateway, client));
        });
        self.asking.push((client, asking));
    }

    /// The same configuration put in force anew, in the order of the program: leases go back, then the cores change over.
    pub fn reload(&mut self, gateway: usize) {
        let (plan, Gateway { in_force, shards, local }) = (self.plan.clone(), &self.gateways[gateway]);
        let (in_force, counters) = (in_force.clone(), counters(shards, local));
        spawn_local(async move {
            let before = in_force.borrow().clone();
            before.release().await;
            in_force.replace(InForce::begin(&plan, &counters));
        });
    }

    /// A client that leaves: whatever its request has taken is nobody's.
    pub fn leave(&mut self, nth: usize) {
        if !self.asking.is_empty() {
            let (client, task) = self.asking.swap_remove(nth % self.asking.len());
            task.abort();
            let mut tallies = self.tallies.borrow_mut();
            (0..self.plan.quotas.len()).for_each(|limit| tallies.entry((limit, client)).or_default().abandoned += 1);
        }
    }

    /// Everything is mended and answered, leases are back and debts are paid.
    pub async fn settle(&mut self) {
        self.nodes.iter().for_each(|node| node.set(Mode::Up));
        self.pass(200).await;
        assert!(self.asking.is_empty(), "somebody waits for ever");
        assert!(self.nodes.iter().all(|node| node.begun_to_run == node.run_whole), "a node broke off");
        for gateway in &self.gateways {
            assert!(gateway.shards.health().iter().all(|shard| shard.up), "{:?}", gateway.shards.health());
        }
        let release = |gateway: &Gateway| {
            let in_force = gateway.in_force.borrow().clone();
            spawn_local(async move { in_force.release().await })
        };
        let released: Vec<_> = self.gateways.iter().map(release).collect();
        self.pass(2 * TIMEOUT_MS).await;
        assert!(released.iter().all(JoinHandle::is_finished));
        // A heartbeat later everything that was owed has been noticed.
        self.pass_in_steps(1100, 5).await;
    }

    /// What its node holds a counter to have used; and how much more it may have been told of, or had no room for.
    pub fn used(&self, limit: usize, client: u8) -> (u64, u64) {
        let headers = http::HeaderMap::new();
        let key = CounterKey(self.limits[limit].limit.keyer.digest(&facts(&headers, client)).unwrap());
        let (node, text) = (&self.nodes[self.gateways[0].shards.shard_of(key)], key_text("staunch", key));
        let quota = quota(&self.plan, limit);
        let states = node.states.borrow();
        let left = |state: &State| state.decide(&quota, node.now_us(), 0).before.remaining;
        let used = states.counters.get(&text).map_or(0, |state| quota.units - left(state));
        let of = |units: &Units| units.get(&text).copied().unwrap_or_default();
        (used, of(&node.doubtful.borrow()) + of(&states.no_room))
    }
}

fn facts(headers: &http::HeaderMap, client: u8) -> Facts<'_> {
    let client = IpAddr::V4(Ipv4Addr::new(10, 0, 0, client));
    Facts { client, method: &http::Method::GET, host: "", path: "/", query: None, headers, route: "" }
}

fn quota(plan: &Plan, limit: usize) -> Quota {
    Quota { units: plan.quotas[limit], period_us: 3_600_000_000, burst: plan.quotas[limit] }
}

fn limit(plan: &Plan, nth: usize) -> RouteLimit {
    let name: Arc<str> = format!("limit-{nth}").into();
    let spec = KeySpec { sources: vec![KeySource::ClientIp] };
    let identity = Identity { policy: "p", limit: &name, algorithm: "" };
    let prefixes = Prefixes { ipv4: 32, ipv6: 64 };
    let limit = Limit {
        policy: "p".into(),
        name: name.clone(),
        keyer: Keyer::new(Namespace::new("staunch"), identity, &spec, prefixes),
        algorithm: plan.algorithm,
        allowance: Allowance::Limited(quota(plan, nth)),
        cost: 1,
        on_missing_key: OnMissingKey::Skip,
        shadow: false,
        exceptions: staunch::limit::Exceptions::default(),
        on_failure: plan.on_failure,
        metrics: Arc::new(LimitMetrics::new("p", &name)),
    };
    RouteLimit { limit: Arc::new(limit), told_as: Name::new(&name), policy: Box::default() }
}

fn gateway(plan: &Plan, nodes: &[Rc<Node>], nth: usize) -> Gateway {
    let address = |(nth, node): (usize, &Rc<Node>)| Address {
        name: format!("n{nth}"),
        url: Secret::new(format!("redis+unix://{}", node.path.display())),
    };
    let settings = Settings {
        nodes: nodes.iter().enumerate().map(address).collect(),
        timeout: Duration::from_millis(TIMEOUT_MS),
        failures: 2,
        retry_after: Duration::from_millis(10),
        key_prefix: "staunch".to_owned(),
        topology: Topology::Sharded,
    };
    let shards = Shards::of_gateway(settings, format!("gateway-{nth}"), None);
    spawn_local(shards.clone().maintain());
    let local = Arc::new(Memory::new(1000));
    let in_force = InForce::begin(plan, &counters(&shards, &local));
    Gateway { in_force: Rc::new(RefCell::new(in_force)), shards, local }
}

fn counters(shards: &Arc<Shards>, local: &Arc<Memory>) -> Counters {
    Counters::Redis { shards: shards.clone(), local: local.clone() }
}

impl InForce {
    fn begin(plan: &Plan, counters: &Counters) -> Self {
        let hot = Hot::new(Duration::from_millis(plan.ttl_ms), 1000).map(Arc::new);
        let core = |_| Rc::new(Limiter::new(Rc::new(counters.open()), hot.clone(), Arc::new(Top::default())));
        Self { cores: (0..plan.cores).map(core).collect(), hot }
    }

    async fn release(&self) {
        if let Some(hot) = &self.hot {
            hot::release(hot, self.cores[0].store()).await;
        }
    }
}

fn note(tallies: &mut BTreeMap<(usize, u8), Tally>, ruling: &Ruling<'_>, limits: &[RouteLimit], of: (usize, u8)) {
    let (gateway, client) = of;
    for (nth, limit) in limits.iter().enumerate() {
        let tally = tallies.entry((nth, client)).or_default();
        tally.admitted += u64::from(ruling.outcome == Outcome::Pass);
        // With one gateway alive its share is the whole limit, and told as the limit is.
        if ruling.degraded
            && let Some(told) = ruling.told.iter().find(|told| *told.name == limit.told_as)
        {
            tally.shares[gateway] = tally.shares[gateway].max(told.capacity);
        }
    }
}
