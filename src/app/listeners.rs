//! The addresses in use: what a configuration adds is bound before anything changes, so that a bad address leaves all as it
//! was; what it drops is closed once the new policy is in force, without touching open connections.

use super::App;
use crate::admin;
use crate::config::compile::bounds;
use crate::config::model::{self, Config};
use crate::listener::{self, Settings};
use crate::telemetry::metrics::ListenerMetrics;
use std::collections::HashMap;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use tokio::net::TcpListener;
use tokio::task::AbortHandle;

#[derive(Debug, Default)]
pub struct Listeners {
    open: HashMap<SocketAddr, Settings>,
    admin: Option<(SocketAddr, AbortHandle)>,
}

/// What a configuration asks for, bound and not yet serving.
#[derive(Debug)]
pub struct Bound {
    sockets: Vec<(model::Listener, Vec<std::net::TcpListener>)>,
    admin: Option<std::net::TcpListener>,
    admin_stays: bool,
    listeners: Vec<model::Listener>,
}

impl Listeners {
    /// Binds the addresses that are not in use yet, each once for each core.
    pub fn bind_new(&self, config: &Config, cores: usize) -> Result<Bound, String> {
        let mut sockets = Vec::new();
        for listener in &config.listeners {
            if !self.open.contains_key(&listener.address) {
                let bound = listener::bind(listener.address, cores);
                let bound = bound.map_err(|error| cannot_listen("listeners", listener.address, &error))?;
                sockets.push((listener.clone(), bound));
            }
        }
        let wanted = config.admin.as_ref().map(|admin| admin.address);
        let admin_stays = wanted == self.admin_address();
        let admin = wanted.filter(|_| !admin_stays).map(|address| {
            listener::bind(address, 1)
                .map_err(|error| cannot_listen("admin", address, &error))
                .map(|mut sockets| sockets.pop())
        });
        let admin = admin.transpose()?.flatten();
        Ok(Bound { sockets, admin, admin_stays, listeners: config.listeners.clone() })
    }

    pub fn admin_address(&self) -> Option<SocketAddr> {
        self.admin.as_ref().map(|(address, _)| *address)
    }

    /// The open listeners with their open connections, by address.
    pub fn connections(&self) -> Vec<(SocketAddr, usize)> {
        let mut list: Vec<_> =
            self.open.iter().map(|(address, open)| (*address, open.open.load(Ordering::Relaxed))).collect();
        list.sort_unstable();
        list
    }
}

impl Bound {
    /// Serves what was bound, with the app's cores and its admin listener, and closes what is no longer asked for.
    pub async fn serve(self, app: &Rc<App>) {
        for (listener, sockets) in self.sockets {
            let (address, settings) = (listener.address, settings(&listener, None));
            app.state.borrow_mut().listeners.open.insert(address, settings.clone());
            for (core, socket) in app.cores.iter().zip(sockets) {
                core.listen(address, socket, settings.clone()).await;
            }
            tracing::info!(%address, cores = app.cores.len(), "listening");
        }
        let known: Vec<_> = app.state.borrow().listeners.open.keys().copied().collect();
        for address in known {
            match self.listeners.iter().find(|listener| listener.address == address) {
                Some(listener) => change(app, listener).await,
                None => close(app, address).await,
            }
        }
        if !self.admin_stays {
            serve_admin(app, self.admin);
        }
    }
}

async fn change(app: &Rc<App>, listener: &model::Listener) {
    let address = listener.address;
    let settings = settings(listener, app.state.borrow().listeners.open.get(&address));
    app.state.borrow_mut().listeners.open.insert(address, settings.clone());
    for core in &app.cores {
        core.change(address, settings.clone()).await;
    }
}

async fn close(app: &Rc<App>, address: SocketAddr) {
    app.state.borrow_mut().listeners.open.remove(&address);
    for core in &app.cores {
        core.close(address).await;
    }
    tracing::info!(%address, "no longer listening");
}

fn serve_admin(app: &Rc<App>, socket: Option<std::net::TcpListener>) {
    let mut state = app.state.borrow_mut();
    if let Some((address, task)) = state.listeners.admin.take() {
        task.abort();
        tracing::info!(%address, "admin no longer listening");
    }
    let socket =
        socket.map(|socket| socket.local_addr().and_then(|address| Ok((address, TcpListener::from_std(socket)?))));
    match socket.transpose() {
        Ok(Some((address, socket))) => {
            let task = tokio::task::spawn_local(admin::serve(socket, Rc::new(app.clone()))).abort_handle();
            state.listeners.admin = Some((address, task));
            tracing::info!(%address, "admin listening");
        }
        Ok(None) => {}
        Err(error) => tracing::error!(%error, "the admin listener cannot serve"),
    }
}

/// A listener's settings; the counts go on from those it had. Its label is its port: an address would put what looks like
/// a client's on the metrics page.
fn settings(listener: &model::Listener, before: Option<&Settings>) -> Settings {
    let (open, metrics) = before.map_or_else(
        || (Arc::default(), ListenerMetrics::new(&format!(":{}", listener.address.port()))),
        |before| (before.open.clone(), before.metrics.clone()),
    );
    Settings { bounds: bounds(listener), max_connections: listener.max_connections, open, metrics }
}

fn cannot_listen(table: &str, address: SocketAddr, error: &std::io::Error) -> String {
    format!("{table}: cannot listen on {address}: {error}")
}
