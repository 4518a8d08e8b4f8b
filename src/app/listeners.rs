//! The addresses in use: what a configuration adds is bound before anything changes, so that a bad address leaves all as it
//! was; what it drops is closed once the new policy is in force, without touching open connections.

use super::App;
use super::certificates::Secured;
use crate::admin;
use crate::config::compile::bounds;
use crate::config::model::{self, Config};
use crate::identify::Prefixes;
use crate::listener::Settings;
use crate::listener::per_client::PerClient;
use crate::listener::socket::{self, Inherited, Listening, Sharing};
use crate::telemetry::metrics::{ListenerMetrics, Reload};
use std::collections::HashMap;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use tokio::net::TcpListener;
use tokio::task::AbortHandle;

#[derive(Debug)]
pub struct Listeners {
    open: HashMap<SocketAddr, Open>,
    admin: Option<(SocketAddr, AbortHandle)>,
    inherited: Inherited,
    sharing: Sharing,
}

#[derive(Debug)]
struct Open {
    settings: Arc<Settings>,
    secured: Option<Secured>,
}

/// What a configuration asks for, bound and not yet serving.
#[derive(Debug)]
pub struct Bound {
    listeners: Vec<Prepared>,
    prefixes: Prefixes,
    admin: Option<Listening>,
    admin_stays: bool,
}

#[derive(Debug)]
struct Prepared {
    listener: model::Listener,
    secured: Option<Secured>,
    /// `None`: its address is in use already.
    sockets: Option<Vec<Listening>>,
}

impl Listeners {
    #[must_use]
    pub fn new(inherited: Inherited, sharing: Sharing) -> Self {
        Self { open: HashMap::new(), admin: None, inherited, sharing }
    }

    /// Who was to be replaced is not looked for again: what a reload adds is nobody else's.
    pub fn have_taken_over(&mut self) {
        self.sharing = Sharing::Refused;
    }

    /// Reads the certificates, and binds the addresses that are not in use yet, each once for each core.
    pub fn bind_new(&self, config: &Config, cores: usize) -> Result<Bound, String> {
        let listeners =
            config.listeners.iter().map(|listener| self.prepare(listener, cores)).collect::<Result<_, _>>()?;
        let wanted = config.admin.as_ref().map(|admin| admin.address);
        let admin_stays = wanted == self.admin_address();
        let admin = wanted
            .filter(|_| !admin_stays)
            .map(|address| self.bind("admin", address, 1).map(|mut sockets| sockets.pop()))
            .transpose()?
            .flatten();
        let prefixes = Prefixes { ipv4: config.client_ip.ipv4_prefix, ipv6: config.client_ip.ipv6_prefix };
        Ok(Bound { listeners, prefixes, admin, admin_stays })
    }

    fn prepare(&self, listener: &model::Listener, cores: usize) -> Result<Prepared, String> {
        let open = self.open.get(&listener.address);
        let before = open.and_then(|open| open.secured.as_ref());
        let secured = listener.tls.as_ref().map(|tls| Secured::new(tls, before)).transpose();
        let secured = secured.map_err(|wrong| format!("listeners: {}: {wrong}", listener.address))?;
        let sockets = match open {
            Some(_) => None,
            None => Some(self.bind("listeners", listener.address, cores)?),
        };
        Ok(Prepared { listener: listener.clone(), secured, sockets })
    }

    fn bind(&self, table: &str, address: SocketAddr, cores: usize) -> Result<Vec<Listening>, String> {
        let sockets =
            self.inherited.listen(address, cores).unwrap_or_else(|| socket::bind(address, cores, self.sharing));
        sockets.map_err(|error| format!("{table}: cannot listen on {address}: {error}"))
    }

    /// Takes up certificates whose files have changed. Call it every second.
    pub fn refresh_certificates(&mut self) {
        for (address, open) in &mut self.open {
            let Some(secured) = open.secured.as_mut() else { continue };
            if secured.is_due() {
                let wrong = secured.reload();
                for sentence in &wrong {
                    tracing::error!(%address, "{sentence}");
                }
                if wrong.is_empty() {
                    tracing::info!(%address, "certificates reloaded");
                }
                let result = if wrong.is_empty() { Reload::Ok } else { Reload::Rejected };
                open.settings.metrics.certificates_reloaded(result);
            }
        }
    }

    pub fn admin_address(&self) -> Option<SocketAddr> {
        self.admin.as_ref().map(|(address, _)| *address)
    }

    /// The open listeners with their open connections, by address.
    pub fn connections(&self) -> Vec<(SocketAddr, usize)> {
        let mut list: Vec<_> =
            self.open.iter().map(|(address, open)| (*address, open.settings.open.load(Ordering::Relaxed))).collect();
        list.sort_unstable();
        list
    }
}

impl Bound {
    /// Serves what was bound, with the app's cores and its admin listener, and closes what is no longer asked for.
    pub async fn serve(self, app: &Rc<App>) {
        let wanted: Vec<_> = self.listeners.iter().map(|prepared| prepared.listener.address).collect();
        for prepared in self.listeners {
            serve(app, prepared, self.prefixes).await;
        }
        let known: Vec<_> = app.state.borrow().listeners.open.keys().copied().collect();
        for address in known.into_iter().filter(|address| !wanted.contains(address)) {
            close(app, address).await;
        }
        if !self.admin_stays {
            serve_admin(app, self.admin.map(|listening| listening.socket));
        }
    }
}

async fn serve(app: &Rc<App>, prepared: Prepared, prefixes: Prefixes) {
    let Prepared { listener, secured, sockets } = prepared;
    let address = listener.address;
    secured.iter().for_each(Secured::serve);
    let settings = {
        let open = &mut app.state.borrow_mut().listeners.open;
        let before = open.get(&address).map(|open| &*open.settings);
        let settings = Arc::new(settings(&listener, secured.as_ref(), prefixes, before));
        open.insert(address, Open { settings: settings.clone(), secured });
        settings
    };
    let Some(sockets) = sockets else {
        for core in &app.cores {
            core.change(address, settings.clone()).await;
        }
        return;
    };
    // More sockets than cores: some cores listen on several.
    for (core, socket) in app.cores.iter().cycle().zip(sockets) {
        core.listen(address, socket, settings.clone()).await;
    }
    tracing::info!(%address, cores = app.cores.len(), tls = listener.tls.is_some(), "listening");
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
fn settings(
    listener: &model::Listener,
    secured: Option<&Secured>,
    prefixes: Prefixes,
    before: Option<&Settings>,
) -> Settings {
    let (open, metrics) = before.map_or_else(
        || (Arc::default(), ListenerMetrics::new(&format!(":{}", listener.address.port()))),
        |before| (before.open.clone(), before.metrics.clone()),
    );
    let clients = before.and_then(|before| before.per_client.as_ref()).map(|before| before.open.clone());
    let per_client =
        listener.max_connections_per_client.map(|max| PerClient { max, prefixes, open: clients.unwrap_or_default() });
    Settings {
        bounds: bounds(listener),
        tls: secured.map(|secured| secured.tls.clone()),
        proxy_protocol: listener.proxy_protocol,
        max_connections: listener.max_connections,
        per_client,
        open,
        metrics,
    }
}
