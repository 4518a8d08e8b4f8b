//! One limit of a policy: whose counter, how much, and for whom something else holds.

use super::exceptions::{read_exempt, read_overrides};
use super::key;
use super::model::{Allowance, Limit, OnMissingKey};
use super::reader::{NOT_SUPPORTED, Table, Value};
use super::text::Text;
use crate::algorithm::{Algorithm, Quota};
use crate::identify::KeySpec;
use crate::units::{NUMBER_MAX, Period, Rate, parse_rate};

const ON_MISSING_KEY: [(&str, OnMissingKey); 4] = [
    ("skip", OnMissingKey::Skip),
    ("reject", OnMissingKey::Reject),
    ("client_ip", OnMissingKey::ClientIp),
    ("shared", OnMissingKey::Shared),
];

/// Another issue's work: known, and said not to be there yet.
const NOT_YET: &str = "concurrency";

/// Reads all of it, and gives the limit if it is whole. The name was read by the caller, who knows the others.
pub fn read_limit(table: &Table<'_>, name: Option<String>) -> Option<Limit> {
    let key = table.required("key", "one such as `key = \"client_ip\"`").and_then(|value| key::read(&value));
    let terms = Terms::read(table);
    let quota = read_quota(table, &terms);
    let on_missing_key = table.choice("on_missing_key", OnMissingKey::Skip, &ON_MISSING_KEY);
    let shadow = table.choice("mode", false, &[("enforce", false), ("shadow", true)]);
    on_exceed(table);
    // Exemptions of a limit whose key is not understood are still read, as for any key.
    let spec = key.clone().unwrap_or(KeySpec { sources: Vec::new() });
    let exempt = table.get("exempt").map(|value| read_exempt(&value, &spec)).unwrap_or_default();
    let overrides = table.get("overrides").map(|value| read_overrides(&value, &spec, &terms)).unwrap_or_default();
    table.finish();
    let algorithm = terms.algorithm?;
    let cost = terms.cost;
    Some(Limit { name: name?, key: key?, algorithm, quota: quota?, cost, on_missing_key, shadow, exempt, overrides })
}

fn on_exceed(table: &Table<'_>) {
    let Some(value) = table.get("on_exceed") else { return };
    if value.is_string() {
        if value.choice(&[("reject", true), ("queue", false), ("slow_down", false)]) == Some(false) {
            value.problem(NOT_SUPPORTED);
        }
    } else if let Some(actions) = value.table() {
        for action in ["queue", "slow_down"].into_iter().filter_map(|action| actions.get(action)) {
            action.problem_at_key(NOT_SUPPORTED);
        }
        actions.finish();
        if actions.is_empty() {
            value.problem("no action; write `on_exceed = \"reject\"`");
        }
    }
}

/// What the quotas of a limit, its own and those of its overrides, have in common.
pub struct Terms {
    /// `None`: one that is unknown or not supported yet; that has been said.
    pub algorithm: Option<Algorithm>,
    pub cost: u64,
}

impl Terms {
    fn read(table: &Table<'_>) -> Self {
        let value = table.get("algorithm");
        let algorithm = match &value {
            None => Some(Algorithm::SlidingWindowCounter),
            Some(value) => value.text().and_then(|text| algorithm(&text)),
        };
        if let Some(value) = table.get("time_zone") {
            value.problem_at_key("calendar periods are not supported yet; leave it out");
        }
        Self { algorithm, cost: table.integer("cost", 1, 1..=NUMBER_MAX) }
    }
}

fn algorithm(text: &Text<'_>) -> Option<Algorithm> {
    let known = Algorithm::from_name(&text.expanded);
    if text.expanded == NOT_YET {
        text.not_supported();
    } else if known.is_none() {
        let names: Vec<&str> = Algorithm::ALL.iter().map(|algorithm| algorithm.name()).collect();
        text.unknown("algorithm", &names);
    }
    known
}

/// `quota` and `burst`, of a limit or of an override.
pub fn read_quota(table: &Table<'_>, terms: &Terms) -> Option<Allowance> {
    let burst_value = table.get("burst");
    let burst = burst_value.as_ref().and_then(|value| value.integer(1..=NUMBER_MAX));
    let quota = table.required("quota", "one such as `quota = \"100/1m\"`");
    let algorithm = terms.algorithm?;
    if algorithm != Algorithm::TokenBucket
        && let Some(value) = &burst_value
    {
        value
            .problem_at_key("only a `token_bucket` has a burst; leave it out, or write `algorithm = \"token_bucket\"`");
    }
    let text = quota?.text()?;
    let allowance = match text.parsed(parse_rate)? {
        Rate::Unlimited => return Some(Allowance::Unlimited),
        Rate::Per { period: Period::Calendar(_), .. } => {
            text.problem(
                "has a calendar period; calendar periods are not supported yet, write a duration such as `100/1d`",
            );
            return None;
        }
        Rate::Per { units: 0, period: Period::Fixed(period_us) } => return Some(Allowance::Nothing { period_us }),
        Rate::Per { units, period: Period::Fixed(period_us) } => {
            Quota { units, period_us, burst: burst.unwrap_or(units) }
        }
    };
    check_cost(&text.value, &allowance, terms);
    Some(Allowance::Limited(allowance))
}

/// What can never fit is a mistake. The quota's number may come from the environment, and is not shown.
fn check_cost(value: &Value<'_>, quota: &Quota, terms: &Terms) {
    let bucket = terms.algorithm == Some(Algorithm::TokenBucket);
    let (capacity, what) = if bucket { (quota.burst, "burst") } else { (quota.units, "quota") };
    if terms.cost > capacity {
        let cost = terms.cost;
        value.problem(&format!(
            "a cost of {cost} never fits into this {what}; write a larger {what} or a smaller `cost`"
        ));
    }
}
