//! One limit, compiled: what it asks the store about a request, or why it need not ask.

use super::Name;
use crate::algorithm::{Algorithm, Quota};
use crate::identify::{Facts, Keyer};
use crate::store::{Check, CounterKey};
use crate::telemetry::metrics::LimitMetrics;
use crate::telemetry::top::{self, Named};
use ipnet::IpNet;
use std::collections::{HashMap, HashSet};
use std::net::IpAddr;
use std::sync::Arc;

/// A limit as one route has it.
#[derive(Clone, Debug)]
pub struct RouteLimit {
    pub limit: Arc<Limit>,
    pub told_as: Name,
    /// As `RateLimit-Policy` tells it, for the limit's own quota.
    pub policy: Box<[u8]>,
}

#[derive(Debug)]
pub struct Limit {
    pub policy: Arc<str>,
    pub name: Arc<str>,
    pub keyer: Keyer,
    pub algorithm: Algorithm,
    pub allowance: Allowance,
    pub cost: u64,
    pub on_missing_key: OnMissingKey,
    /// Evaluated and counted, and refuses nobody.
    pub shadow: bool,
    pub exceptions: Exceptions,
    pub on_failure: OnFailure,
    pub metrics: Arc<LimitMetrics>,
}

/// What a key may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Allowance {
    Unlimited,
    /// `0/…`: refuses always. The period is kept for what is told to clients.
    Nothing {
        period_us: u64,
    },
    Limited(Quota),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnMissingKey {
    Skip,
    Reject,
    ClientIp,
    Shared,
}

/// What becomes of a request whose counter cannot be reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnFailure {
    Local,
    Open,
    Closed,
}

/// An entry of `exempt` or `overrides`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Matcher {
    /// Compared with the client's address (exempt: always; overrides: for keys with `client_ip` in them).
    Net(IpNet),
    /// Compared with the key's value as sent.
    Value(String),
}

/// Keys for which a limit does not hold, or holds with another allowance.
#[derive(Debug, Default)]
pub struct Exceptions {
    exempt_nets: Vec<IpNet>,
    exempt_values: HashSet<Box<[u8]>>,
    /// Longest prefix first.
    override_nets: Vec<(IpNet, Allowance)>,
    override_values: HashMap<Box<[u8]>, Allowance>,
}

/// What a limit has to say to a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Question {
    Exempt,
    /// The key is missing, and the limit is skipped for it.
    Skipped,
    /// The key is missing, and the request is the worse for it.
    MissingKey,
    Unlimited,
    /// Refused whatever the counter says.
    Never {
        period_us: u64,
    },
    /// The check that was handed on.
    Ask,
}

impl Limit {
    /// `ask` is given the check to put to the store, if there is one.
    pub(super) fn question(&self, facts: &Facts<'_>, ask: impl FnOnce(Check)) -> Question {
        if self.exceptions.exempts_address(facts.client) {
            return Question::Exempt;
        }
        let digest = self.keyer.digest(facts);
        let mut allowance = self.allowance;
        if self.exceptions.need_value() {
            let value = self.keyer.value(facts);
            if value.as_deref().is_some_and(|value| self.exceptions.exempt_values.contains(value)) {
                return Question::Exempt;
            }
            let client = self.keyer.client_ip_part().filter(|_| digest.is_some()).map(|_| facts.client);
            allowance = self.exceptions.allowance(client, value.as_deref()).unwrap_or(allowance);
        }
        let digest = match (digest, self.on_missing_key) {
            (Some(digest), _) => digest,
            (None, OnMissingKey::Skip) => return Question::Skipped,
            (None, OnMissingKey::Reject) => return Question::MissingKey,
            (None, OnMissingKey::ClientIp) => self.keyer.digest_of_client(facts.client),
            (None, OnMissingKey::Shared) => self.keyer.digest_shared(),
        };
        match allowance {
            Allowance::Unlimited => Question::Unlimited,
            Allowance::Nothing { period_us } => Question::Never { period_us },
            Allowance::Limited(quota) => {
                ask(self.check(CounterKey(digest), quota));
                Question::Ask
            }
        }
    }

    /// This key's name in the list of those refused most: the value where it is nobody's secret, else a few bits of the digest.
    pub(super) fn named(&self, digest: u128, facts: &Facts<'_>) -> Named {
        let value = if self.keyer.is_secret() { None } else { self.keyer.value(facts) };
        let key = value.map_or_else(|| top::hashed(digest), |value| top::shown(&String::from_utf8_lossy(&value)));
        Named { policy: self.policy.clone(), limit: self.name.clone(), key }
    }

    /// An override may be smaller than the limit's cost: such a key's requests cost all it has.
    fn check(&self, key: CounterKey, quota: Quota) -> Check {
        let cost = self.cost.min(self.algorithm.capacity(&quota));
        Check { key, algorithm: self.algorithm, quota, cost, enforced: !self.shadow }
    }

    /// The quota that holds for a key given by its value, as an operator asks for it.
    #[must_use]
    pub fn allowance_of(&self, client: Option<IpAddr>, value: &[u8]) -> Allowance {
        self.exceptions.allowance(client, Some(value)).unwrap_or(self.allowance)
    }
}

impl Exceptions {
    #[must_use]
    pub fn new(exempt: &[Matcher], overrides: &[(Matcher, Allowance)]) -> Self {
        let mut exceptions = Self::default();
        for matcher in exempt {
            match matcher {
                Matcher::Net(net) => exceptions.exempt_nets.push(*net),
                Matcher::Value(value) => {
                    exceptions.exempt_values.insert(value.as_bytes().into());
                }
            }
        }
        for (matcher, allowance) in overrides {
            match matcher {
                Matcher::Net(net) => exceptions.override_nets.push((*net, *allowance)),
                Matcher::Value(value) => {
                    exceptions.override_values.insert(value.as_bytes().into(), *allowance);
                }
            }
        }
        exceptions.override_nets.sort_by_key(|(net, _)| std::cmp::Reverse(net.prefix_len()));
        exceptions
    }

    fn exempts_address(&self, client: IpAddr) -> bool {
        self.exempt_nets.iter().any(|net| net.contains(&client))
    }

    fn need_value(&self) -> bool {
        !(self.exempt_values.is_empty() && self.override_values.is_empty() && self.override_nets.is_empty())
    }

    fn allowance(&self, client: Option<IpAddr>, value: Option<&[u8]>) -> Option<Allowance> {
        let by_address = || {
            let client = client?;
            self.override_nets.iter().find(|(net, _)| net.contains(&client)).map(|(_, allowance)| *allowance)
        };
        value.and_then(|value| self.override_values.get(value).copied()).or_else(by_address)
    }
}
