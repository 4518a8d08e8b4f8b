//! One single-threaded runtime per core, each with its own listening sockets, connections and policy. Cores share the
//! counters in memory and the cache of hot keys, under many short locks, and nothing else that a request would wait for; the control thread tells them what to do, one order after the other.

use crate::limit::Limiter;
use crate::limit::hot::Hot;
use crate::listener::drain::Drain;
use crate::listener::socket::Listening;
use crate::listener::{Listener, Settings};
use crate::proxy::{Gateway, Snapshot};
use crate::store::Store;
use crate::store::memory::Memory;
use crate::store::redis::{Client, Shards};
use crate::telemetry::top::Top;
use std::collections::HashMap;
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::runtime::{Builder, LocalOptions};
use tokio::sync::{mpsc, oneshot};
use tokio::time::{MissedTickBehavior, interval, sleep};

/// How often idle upstream connections are looked over.
const SWEEP_EVERY: Duration = Duration::from_secs(5);
/// How often a draining core looks whether its last connection has gone.
const DRAIN_LOOK: Duration = Duration::from_millis(20);
/// Orders are few and quick; more than this waiting means that a core hangs.
const MAX_ORDERS: usize = 64;

/// A policy and the store it is held against, ready for any core.
#[derive(Clone, Debug)]
pub struct Policy {
    pub snapshot: Arc<Snapshot>,
    pub store: Counters,
    /// In front of the store, one for all cores.
    pub hot: Option<Arc<Hot>>,
}

/// What all cores share of a store; each makes its own `Store` of it.
#[derive(Clone, Debug)]
pub enum Counters {
    Memory(Arc<Memory>),
    Redis {
        shards: Arc<Shards>,
        /// Decides while a shard is away.
        local: Arc<Memory>,
    },
}

impl Counters {
    /// One core's way to the store; call it in the core's runtime.
    #[must_use]
    pub fn open(&self) -> Store {
        match self {
            Self::Memory(memory) => Store::Memory(memory.clone()),
            Self::Redis { shards, local } => {
                Store::Redis { client: Client::new(shards.clone()), shards: shards.clone(), local: local.clone() }
            }
        }
    }

    #[must_use]
    pub fn memory(&self) -> &Arc<Memory> {
        match self {
            Self::Memory(memory) | Self::Redis { local: memory, .. } => memory,
        }
    }

    #[must_use]
    pub fn shards(&self) -> Option<&Arc<Shards>> {
        match self {
            Self::Memory(_) => None,
            Self::Redis { shards, .. } => Some(shards),
        }
    }

    /// Whether connections opened for one serve the other.
    fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(self.memory(), other.memory())
            && match (self.shards(), other.shards()) {
                (Some(ours), Some(theirs)) => Arc::ptr_eq(ours, theirs),
                (None, None) => true,
                _ => false,
            }
    }
}

enum Order {
    Listen { address: SocketAddr, socket: Listening, settings: Arc<Settings> },
    Change { address: SocketAddr, settings: Arc<Settings> },
    Close { address: SocketAddr },
    Replace { policy: Policy, done: oneshot::Sender<()> },
    Drain { done: oneshot::Sender<()> },
    Stop { done: oneshot::Sender<()> },
}

/// A core as the control thread holds it.
#[derive(Debug)]
pub struct Core {
    orders: mpsc::Sender<Order>,
    /// The keys this core refused most.
    pub top: Arc<Top>,
}

impl Core {
    pub fn start(number: usize, policy: Policy) -> io::Result<Self> {
        let (orders, received) = mpsc::channel(MAX_ORDERS);
        let top = Arc::new(Top::default());
        let refused = top.clone();
        std::thread::Builder::new().name(format!("core-{number}")).spawn(
            move || match Builder::new_current_thread().enable_all().build_local(LocalOptions::default()) {
                Ok(runtime) => runtime.block_on(serve(received, policy, refused)),
                Err(error) => tracing::error!(%error, "could not start a core"),
            },
        )?;
        Ok(Self { orders, top })
    }

    pub async fn listen(&self, address: SocketAddr, socket: Listening, settings: Arc<Settings>) {
        self.tell(Order::Listen { address, socket, settings }).await;
    }

    /// New settings, for the connections that come from now on.
    pub async fn change(&self, address: SocketAddr, settings: Arc<Settings>) {
        self.tell(Order::Change { address, settings }).await;
    }

    /// Stops accepting on an address; its open connections go on.
    pub async fn close(&self, address: SocketAddr) {
        self.tell(Order::Close { address }).await;
    }

    /// Puts a policy in force; it is when this returns.
    pub async fn replace(&self, policy: Policy) {
        let (done, replaced) = oneshot::channel();
        self.tell(Order::Replace { policy, done }).await;
        let _ = replaced.await;
    }

    /// Accepts no more from now on; what is returned is ready when the last connection has ended.
    pub async fn drain(&self) -> oneshot::Receiver<()> {
        let (done, drained) = oneshot::channel();
        self.tell(Order::Drain { done }).await;
        drained
    }

    /// Ends the core, whatever is still open.
    pub async fn stop(&self) {
        let (done, stopped) = oneshot::channel();
        self.tell(Order::Stop { done }).await;
        let _ = stopped.await;
    }

    /// A core that is gone has logged why; there is nobody left to tell.
    async fn tell(&self, order: Order) {
        let _ = self.orders.send(order).await;
    }
}

/// A core's life.
async fn serve(mut orders: mpsc::Receiver<Order>, policy: Policy, top: Arc<Top>) {
    let mut core = Serving::new(policy, top);
    let mut sweep = interval(SWEEP_EVERY);
    sweep.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            order = orders.recv() => match order {
                Some(Order::Stop { done }) => {
                    core.drain.end();
                    tokio::task::yield_now().await;
                    drop(core);
                    let _ = done.send(());
                    return;
                }
                None => return,
                Some(order) => core.obey(order),
            },
            _ = sweep.tick() => core.gateway.sweep(),
        }
    }
}

struct Serving {
    gateway: Rc<Gateway>,
    drain: Rc<Drain>,
    /// More than one of an address only where more sockets were inherited than there are cores.
    listeners: HashMap<SocketAddr, Vec<Rc<Listener>>>,
    counters: Counters,
    store: Rc<Store>,
    top: Arc<Top>,
}

impl Serving {
    fn new(policy: Policy, top: Arc<Top>) -> Self {
        let store = Rc::new(policy.store.open());
        let gateway = Gateway::new(policy.snapshot, Limiter::new(store.clone(), policy.hot, top.clone()));
        let drain = Rc::default();
        Self { gateway, drain, listeners: HashMap::new(), counters: policy.store, store, top }
    }

    fn obey(&mut self, order: Order) {
        match order {
            Order::Listen { address, socket, settings } => self.listen(address, socket, settings),
            Order::Change { address, settings } => {
                for listener in self.listeners.get(&address).into_iter().flatten() {
                    listener.settings.replace(settings.clone());
                }
            }
            Order::Close { address } => {
                self.listeners.remove(&address).iter().flatten().for_each(|listener| listener.stop());
            }
            Order::Replace { policy, done } => {
                self.replace(policy);
                let _ = done.send(());
            }
            Order::Drain { done } => self.drain(done),
            Order::Stop { .. } => {}
        }
    }

    fn listen(&mut self, address: SocketAddr, listening: Listening, settings: Arc<Settings>) {
        let socket = match TcpListener::from_std(listening.socket) {
            Ok(socket) => socket,
            Err(error) => return tracing::error!(%address, %error, "could not listen"),
        };
        let listener = Listener::new(settings, listening.inherited);
        self.listeners.entry(address).or_default().push(listener.clone());
        tokio::task::spawn_local(listener.accept(socket, self.gateway.clone(), self.drain.clone()));
    }

    fn replace(&mut self, policy: Policy) {
        if !self.counters.is_same(&policy.store) {
            self.store = Rc::new(policy.store.open());
            self.counters = policy.store;
        }
        self.gateway.replace(policy.snapshot, Limiter::new(self.store.clone(), policy.hot, self.top.clone()));
    }

    fn drain(&mut self, done: oneshot::Sender<()>) {
        self.listeners.drain().for_each(|(_, listeners)| listeners.iter().for_each(|listener| listener.stop()));
        let drain = self.drain.clone();
        tokio::task::spawn_local(async move {
            // What waits in the listeners' queues is taken in before the rest is told to go.
            tokio::task::yield_now().await;
            drain.begin();
            while drain.open_connections() > 0 {
                sleep(DRAIN_LOOK).await;
            }
            let _ = done.send(());
        });
    }
}
