//! What goes on beside the requests for the endpoints in force: health checks, and names looked up again. A task goes on
//! through a reload that leaves what it serves as it was.

use crate::config::compile::Compiled;
use crate::upstream::health::{self, Health};
use crate::upstream::resolve::{self, Name};
use crate::upstream::state::State;
use crate::upstream::{Endpoint, Upstream};
use std::sync::Arc;
use std::time::Duration;
use tokio::task::{AbortHandle, JoinSet, spawn_local};
use tokio::time::timeout;

/// How long start and reload wait for the names of endpoints. What is not known by then is looked up on; requests for it
/// get 502 meanwhile.
const FIRST_LOOK: Duration = Duration::from_secs(2);

#[derive(Debug, Default)]
pub struct Endpoints {
    watched: Vec<(Watched, AbortHandle)>,
    followed: Vec<(Arc<Name>, AbortHandle)>,
}

/// What a health check depends on. The state is another one where the upstream, the endpoint or the checks are.
#[derive(Debug)]
struct Watched {
    state: Arc<State>,
    slow_start: Duration,
}

/// Looks up the names of which nothing is known yet; call it before requests are sent there.
pub async fn find(compiled: &Compiled) {
    let mut looking = JoinSet::new();
    for name in names(compiled).filter(|name| !name.is_known()) {
        let name = name.clone();
        looking.spawn_local(async move { name.look_up(&resolve::system).await });
    }
    let _ = timeout(FIRST_LOOK, async { while looking.join_next().await.is_some() {} }).await;
}

impl Endpoints {
    /// Takes up what a configuration that is in force now asks for, and leaves off what it does not.
    pub fn take_up(&mut self, compiled: &Compiled) {
        self.watch(&compiled.upstreams);
        let mut wanted: Vec<&Arc<Name>> = names(compiled).collect();
        keep(&mut self.followed, |name| take(&mut wanted, |wanted| Arc::ptr_eq(wanted, name)));
        while let Some(name) = wanted.pop() {
            wanted.retain(|other| !Arc::ptr_eq(other, name));
            let followed = name.clone();
            let task = spawn_local(async move { followed.follow(resolve::system).await });
            self.followed.push((name.clone(), task.abort_handle()));
        }
    }

    fn watch(&mut self, upstreams: &[Arc<Upstream>]) {
        let mut wanted: Vec<(&Arc<Upstream>, &Endpoint, &Health)> = Vec::new();
        for upstream in upstreams {
            let health = upstream.health.iter();
            wanted.extend(health.flat_map(|health| upstream.endpoints.iter().map(move |one| (upstream, one, health))));
        }
        keep(&mut self.watched, |watched| {
            take(&mut wanted, |(upstream, endpoint, _)| watched.is_of(upstream, endpoint))
        });
        while let Some((upstream, endpoint, health)) = wanted.pop() {
            // An endpoint that is listed twice is asked once.
            wanted.retain(|(_, other, _)| !Arc::ptr_eq(&other.state, &endpoint.state));
            let watched = Watched { state: endpoint.state.clone(), slow_start: upstream.slow_start };
            let (upstream, endpoint, health) = (upstream.clone(), endpoint.clone(), health.clone());
            let task = spawn_local(async move { health::watch(&upstream, &endpoint, &health).await });
            self.watched.push((watched, task.abort_handle()));
        }
    }
}

impl Watched {
    fn is_of(&self, upstream: &Upstream, endpoint: &Endpoint) -> bool {
        Arc::ptr_eq(&endpoint.state, &self.state) && upstream.slow_start == self.slow_start
    }
}

fn names(compiled: &Compiled) -> impl Iterator<Item = &Arc<Name>> {
    compiled.upstreams.iter().flat_map(|upstream| &upstream.endpoints).filter_map(|endpoint| endpoint.place.name())
}

/// Ends the tasks of what is not to stay.
fn keep<T>(tasks: &mut Vec<(T, AbortHandle)>, mut stays: impl FnMut(&T) -> bool) {
    tasks.retain(|(what, task)| {
        let stays = stays(what);
        if !stays {
            task.abort();
        }
        stays
    });
}

/// Takes all that are meant; false where there are none.
fn take<T>(wanted: &mut Vec<T>, mut is: impl FnMut(&T) -> bool) -> bool {
    let before = wanted.len();
    wanted.retain(|wanted| !is(wanted));
    wanted.len() < before
}
