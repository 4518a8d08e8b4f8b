//! The table of routes: from (host, path, method, fields) to what the most specific matching route carries.
//!
//! Most specific is decided in this order, whatever the order in the file: the host (exact, then the longest `*.domain`,
//! then any); the path, at the leftmost segment where two patterns differ (literal, then `{id}`, then the end of a prefix);
//! methods given; the number of fields asked for. A route that matches in part gives way to the next best: a `POST` to a path
//! whose own route is for `GET` falls to the prefix above it. Hosts come first, as virtual hosts do in nginx and Envoy and
//! host names in the Kubernetes Gateway API: a route for `api.example.com` beats any route without a host.

use super::matcher::{Conditions, Conflict, conflicts, rank};
use super::tree::{Leaf, Sought, Tree};
use super::{HostPattern, Pattern};
use http::{HeaderMap, Method};
use std::collections::HashMap;

#[derive(Debug)]
pub struct Table<T> {
    exact: HashMap<Box<str>, Tree>,
    /// By the domain of `*.domain`.
    under: HashMap<Box<str>, Tree>,
    any: Tree,
    carried: Vec<T>,
}

impl<T> Table<T> {
    /// Refuses two routes that match the same set of requests; `conflicts` names all such pairs.
    pub fn new(routes: Vec<(Pattern, T)>) -> Result<Self, Conflict> {
        if let Some(&conflict) = conflicts(routes.iter().map(|(pattern, _)| pattern)).first() {
            return Err(conflict);
        }
        let (patterns, carried): (Vec<Pattern>, Vec<T>) = routes.into_iter().unzip();
        let mut table = Self { exact: HashMap::new(), under: HashMap::new(), any: Tree::default(), carried };
        let mut order: Vec<usize> = (0..patterns.len()).collect();
        // Stable: what is equally specific stays in the order of the file.
        order.sort_by_cached_key(|&route| rank(&patterns[route]));
        for route in order {
            table.insert(&patterns[route], route);
        }
        Ok(table)
    }

    fn insert(&mut self, pattern: &Pattern, route: usize) {
        let leaf = Leaf { conditions: Conditions::of(pattern), route };
        if pattern.hosts.is_empty() {
            self.any.insert(&pattern.path, leaf);
            return;
        }
        for host in &pattern.hosts {
            let tree = match host {
                HostPattern::Exact(name) => self.exact.entry(name.as_str().into()).or_default(),
                HostPattern::Under(domain) => self.under.entry(domain.as_str().into()).or_default(),
            };
            tree.insert(&pattern.path, leaf.clone());
        }
    }

    /// `host` and `path` in their normal, matching forms.
    #[must_use]
    pub fn find(&self, host: &str, path: &str, method: &Method, headers: &HeaderMap) -> Option<&T> {
        let sought = Sought { method, headers };
        let rest = path.strip_prefix('/').unwrap_or(path);
        let rest = rest.strip_suffix('/').unwrap_or(rest);
        let rest = (!rest.is_empty()).then_some(rest);
        let found = self.exact.get(host).and_then(|tree| tree.find(rest, sought));
        let found = found.or_else(|| self.find_under(host, rest, sought));
        let route = found.or_else(|| self.any.find(rest, sought))?;
        self.carried.get(route)
    }

    fn find_under(&self, host: &str, rest: Option<&str>, sought: Sought<'_>) -> Option<usize> {
        if self.under.is_empty() {
            return None;
        }
        let domains = host.match_indices('.').map(|(dot, _)| &host[dot + 1..]);
        domains.filter_map(|domain| self.under.get(domain)).find_map(|tree| tree.find(rest, sought))
    }

    /// What the routes carry, in the order of the file.
    pub fn iter(&self) -> impl Iterator<Item = &T> {
        self.carried.iter()
    }
}

#[cfg(test)]
mod tests;
