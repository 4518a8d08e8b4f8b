//! The composition root: builds all parts from a configuration, binds before it serves, reloads, drains.
//!
//! It runs on the control thread, with the admin listener and what tends the store; requests are the cores' alone.

mod certificates;
mod control;
mod endpoints;
mod listeners;
mod store;

use crate::clock::{self, Micros};
use crate::config::compile::{Compiled, Compiler};
use crate::config::load;
use crate::config::model::{self, Config};
use crate::config::problem::Problems;
use crate::lifecycle::Lifecycle;
use crate::limit::hot::Hot;
use crate::listener::socket::{Inherited, Sharing};
use crate::runtime::{Core, Policy};
use crate::telemetry::log;
use crate::telemetry::metrics::{self, Reload};
use endpoints::Endpoints;
use listeners::Listeners;
use std::cell::RefCell;
use std::io;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};
use store::Tended;

/// The crate's version.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");
/// The commit it was built from.
pub const COMMIT: &str = env!("STAUNCH_COMMIT");

/// How often expired counters are swept out of memory and counted.
const SWEEP_EVERY: Duration = Duration::from_secs(1);
/// A flood of keys evicts thousands a second.
const EVICTIONS_SAID_EVERY: Duration = Duration::from_mins(1);
/// Counters looked at in one sweep: 10^6 keys are gone through in a few seconds, and no request waits for long.
const SWEEP_BUDGET: usize = 200_000;

/// What the command line says beside the file; it wins.
#[derive(Clone, Copy, Debug)]
pub struct Overrides {
    pub log_level: Option<tracing::level_filters::LevelFilter>,
    pub log_format: Option<log::Format>,
    /// Cores to serve on; default: as many as the process may use.
    pub workers: Option<usize>,
    pub sharing: Sharing,
}

/// Where the configuration comes from.
#[derive(Clone, Debug)]
pub enum Source {
    File(PathBuf),
    /// A text of our own, under a name for messages: the demo.
    Text {
        name: String,
        text: String,
    },
}

/// Why the process could not start.
#[derive(Debug)]
pub enum StartError {
    Configuration(Problems),
    /// An address that cannot be bound, a thread that cannot be made.
    Run(String),
}

#[derive(Debug)]
pub struct App {
    source: Source,
    overrides: Overrides,
    started: Instant,
    lifecycle: Lifecycle,
    cores: Vec<Core>,
    state: RefCell<State>,
    /// One reload at a time.
    reloading: tokio::sync::Mutex<()>,
}

/// What a reload replaces.
#[derive(Debug)]
struct State {
    config: Config,
    compiled: Compiled,
    compiler: Compiler,
    store: Tended,
    /// In front of the store.
    hot: Option<Arc<Hot>>,
    listeners: Listeners,
    endpoints: Endpoints,
    /// Of the file in force.
    hash: String,
    /// Of the file that was tried last; the same bytes are not tried again unless somebody asks.
    tried: String,
    loaded_at_us: Micros,
    rejected: Option<(Micros, String)>,
}

impl Source {
    fn name(&self) -> String {
        match self {
            Self::File(path) => path.display().to_string(),
            Self::Text { name, .. } => name.clone(),
        }
    }

    /// The file's path, if there is one to watch.
    #[must_use]
    pub fn path(&self) -> Option<&Path> {
        if let Self::File(path) = self { Some(path) } else { None }
    }

    /// Reads and checks; with the hash of what was read.
    fn load(&self) -> Result<(Config, String), Problems> {
        let text = match self {
            Self::File(path) => load::read(path)?,
            Self::Text { text, .. } => text.clone(),
        };
        let config = load::parse(&self.name(), &text, &|name| std::env::var(name).ok())?;
        Ok((config, load::hash(text.as_bytes())))
    }
}

impl App {
    /// Builds everything and binds every address; serves when this returns. Call it in the control thread's local runtime.
    pub async fn start(source: Source, overrides: Overrides, inherited: Inherited) -> Result<Rc<Self>, StartError> {
        let started = clock::now();
        let (config, hash) = source.load().map_err(StartError::Configuration)?;
        log::change(log_settings(&config.log, &overrides));
        metrics::build(VERSION, COMMIT);
        let mut compiler = Compiler::default();
        let compiled = compiler.compile(&config).map_err(StartError::Run)?;
        let cores = overrides.workers.unwrap_or_else(cores_available);
        let listeners = Listeners::new(inherited, overrides.sharing);
        let bound = listeners.bind_new(&config, cores).map_err(StartError::Run)?;
        let store = Tended::new(&config.store);
        let hot = store::cache(&config);
        endpoints::find(&compiled).await;
        let policy = Policy { snapshot: compiled.snapshot.clone(), store: store.counters().clone(), hot: hot.clone() };
        let cores =
            start_cores(cores, &policy).map_err(|error| StartError::Run(format!("cannot start a core: {error}")))?;
        let app = Rc::new(Self {
            source,
            overrides,
            started,
            lifecycle: Lifecycle::default(),
            cores,
            state: RefCell::new(State {
                config,
                compiled,
                compiler,
                store,
                hot,
                listeners,
                endpoints: Endpoints::default(),
                tried: hash.clone(),
                hash,
                loaded_at_us: clock::wall_us(),
                rejected: None,
            }),
            reloading: tokio::sync::Mutex::default(),
        });
        app.take_up_endpoints();
        bound.serve(&app).await;
        app.state.borrow_mut().listeners.have_taken_over();
        metrics::loaded();
        app.lifecycle.serving();
        let counts = app.state.borrow().config.counts();
        tracing::info!(file = app.source.name(), version = VERSION, "ready: {counts}");
        Ok(app)
    }

    /// Does for ever what comes round each second: takes up certificates that changed, sweeps expired counters out of memory,
    /// tells of those that were forgotten for want of room, and lets the upstreams know that time has passed.
    pub async fn tend(&self) {
        let (mut evicted, mut said, mut say_at) = (0, 0, clock::now());
        loop {
            tokio::time::sleep(SWEEP_EVERY).await;
            let memory = self.state.borrow().store.counters().memory().clone();
            memory.sweep(clock::now_us(), SWEEP_BUDGET);
            self.state.borrow_mut().listeners.refresh_certificates();
            store::sweep(self.state.borrow().hot.as_ref());
            self.state.borrow().compiled.upstreams.iter().for_each(|upstream| upstream.tick());
            let before = std::mem::replace(&mut evicted, memory.evicted_live());
            metrics::keys_in_memory(memory.len(), evicted - before);
            if evicted > said && clock::now() >= say_at {
                tracing::warn!(
                    counters = evicted - said,
                    "store.max_keys is too small: counters in use were forgotten"
                );
                (said, say_at) = (evicted, clock::now() + EVICTIONS_SAID_EVERY);
            }
        }
    }

    /// Takes up the file anew if its bytes have changed; a bad file leaves everything as it is.
    pub async fn reload_if_changed(self: &Rc<Self>) {
        let read = self.source.path().map(crate::config::watch::fingerprint);
        let tried = self.state.borrow().tried.clone();
        // What is not there at the moment (a rename is under way) will be noticed again.
        if let Some(Ok(hash)) = read
            && hash != tried
        {
            let _ = self.reload().await;
        }
    }

    /// Takes up the file anew. An error holds the problems, one a line; everything is then as it was.
    pub async fn reload(self: &Rc<Self>) -> Result<(), String> {
        let _one_at_a_time = self.reloading.lock().await;
        let result = self.try_reload().await;
        match &result {
            Ok(()) => {
                metrics::reloaded(Reload::Ok);
                tracing::info!(
                    file = self.source.name(),
                    "configuration reloaded: {}",
                    self.state.borrow().config.counts()
                );
            }
            Err(problems) => self.reject(problems),
        }
        result
    }

    fn reject(&self, problems: &str) {
        if let Some(Ok(hash)) = self.source.path().map(crate::config::watch::fingerprint) {
            self.state.borrow_mut().tried = hash;
        }
        metrics::reloaded(Reload::Rejected);
        tracing::error!(file = self.source.name(), "reload rejected; the configuration in force stays");
        for problem in problems.lines() {
            tracing::error!("{problem}");
        }
        self.state.borrow_mut().rejected = Some((clock::wall_us(), problems.to_owned()));
    }

    async fn try_reload(self: &Rc<Self>) -> Result<(), String> {
        let (config, hash) = self.source.load().map_err(|problems| problems.to_string())?;
        let (compiled, bound) = {
            let mut state = self.state.borrow_mut();
            (state.compiler.compile(&config)?, state.listeners.bind_new(&config, self.cores.len())?)
        };
        endpoints::find(&compiled).await;
        // Leases go back before the change: they were taken under the limits and the shards of before.
        self.release().await;
        let policy = {
            let mut state = self.state.borrow_mut();
            let before = state.config.store.clone();
            state.store.change(&before, &config.store);
            state.hot = store::cache(&config);
            let (store, hot) = (state.store.counters().clone(), state.hot.clone());
            let policy = Policy { snapshot: compiled.snapshot.clone(), store, hot };
            state.compiled = compiled;
            state.config = config;
            state.tried.clone_from(&hash);
            state.hash = hash;
            state.loaded_at_us = clock::wall_us();
            state.rejected = None;
            policy
        };
        log::change(log_settings(&self.state.borrow().config.log, &self.overrides));
        for core in &self.cores {
            core.replace(policy.clone()).await;
        }
        self.take_up_endpoints();
        bound.serve(self).await;
        Ok(())
    }

    fn take_up_endpoints(&self) {
        let state = &mut *self.state.borrow_mut();
        state.compiler.retain(&state.compiled);
        state.endpoints.take_up(&state.compiled);
    }

    async fn release(&self) {
        let (hot, counters) = {
            let state = self.state.borrow();
            (state.hot.clone(), state.store.counters().clone())
        };
        store::release(hot, &counters).await;
    }

    /// Nothing new is admitted here: the other gateways share what is `local` among themselves.
    async fn leave(&self) {
        let shards = self.state.borrow().store.counters().shards().cloned();
        if let Some(shards) = shards {
            shards.leave().await;
        }
    }

    /// Finishes what is in flight, for at most so long; then ends the cores.
    pub async fn drain(&self, at_most: Duration) {
        self.lifecycle.draining();
        tracing::info!("draining");
        let drained = async {
            self.release().await;
            let mut draining = Vec::with_capacity(self.cores.len());
            for core in &self.cores {
                draining.push(core.drain().await);
            }
            self.leave().await;
            for drained in draining {
                let _ = drained.await;
            }
            // What the last requests did not use.
            self.release().await;
        };
        if tokio::time::timeout(at_most, drained).await.is_err() {
            tracing::warn!("the time to drain is over; closing what is still open");
        }
    }

    /// Ends the cores, whatever is still open.
    pub async fn stop(&self) {
        for core in &self.cores {
            core.stop().await;
        }
        tracing::info!("stopped");
    }

    /// The first listener's address and the admin listener's, as bound.
    #[must_use]
    pub fn addresses(&self) -> (Vec<std::net::SocketAddr>, Option<std::net::SocketAddr>) {
        let state = self.state.borrow();
        (state.config.listeners.iter().map(|listener| listener.address).collect(), state.listeners.admin_address())
    }
}

fn start_cores(count: usize, policy: &Policy) -> io::Result<Vec<Core>> {
    (0..count).map(|number| Core::start(number, policy.clone())).collect()
}

/// As many as the process may use: affinity and the cgroup's quota are taken into account.
fn cores_available() -> usize {
    std::thread::available_parallelism().map_or(1, std::num::NonZero::get)
}

fn log_settings(log: &model::Log, overrides: &Overrides) -> log::Settings {
    let format = match log.format {
        model::LogFormat::Text => log::Format::Text,
        model::LogFormat::Json => log::Format::Json,
    };
    log::Settings { level: overrides.log_level.unwrap_or(log.level), format: overrides.log_format.unwrap_or(format) }
}
