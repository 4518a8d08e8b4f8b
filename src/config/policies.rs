//! `[policies.NAME]`: named lists of limits.

use super::limits::read_limit;
use super::model::{Limit, OnFailure, Policy};
use super::reader::{Table, Value, is_name};
use super::store::ON_FAILURE;

/// Every policy that the file names, also faulty ones: a route that names them is right in that.
pub fn read_policies(root: &Table<'_>, default: OnFailure) -> Vec<Policy> {
    let Some(table) = root.table("policies") else { return Vec::new() };
    table.entries().into_iter().map(|(name, value)| read_policy(name, &value, default)).collect()
}

fn read_policy(name: String, value: &Value<'_>, default: OnFailure) -> Policy {
    value.check_name(&name);
    let mut policy = Policy { name, on_store_failure: default, limits: Vec::new() };
    let Some(table) = value.table() else { return policy };
    policy.on_store_failure = table.choice("on_store_failure", default, &ON_FAILURE);
    let example = "one such as `limits = [{ name = \"per-ip\", key = \"client_ip\", quota = \"100/1m\" }]`";
    if let Some(limits) = table.required("limits", example) {
        policy.limits = read_limits(&limits);
    }
    table.finish();
    policy
}

fn read_limits(value: &Value<'_>) -> Vec<Limit> {
    let items = value.array("tables").unwrap_or_default();
    let mut names: Vec<String> = Vec::new();
    let mut limits = Vec::new();
    for item in items {
        let Some(table) = item.table() else { continue };
        let name =
            table.required("name", "one such as `name = \"per-ip\"`").and_then(|value| limit_name(&value, &mut names));
        limits.extend(read_limit(&table, name));
    }
    limits
}

/// Names are told to clients in a structured field's string, and are labels of metrics.
fn limit_name(value: &Value<'_>, taken: &mut Vec<String>) -> Option<String> {
    let text = value.text()?;
    let name = text.parsed(|name| {
        let sound = is_name(name);
        if sound { Ok(name.to_owned()) } else { Err("is no name; write 1 to 128 printable ASCII characters".into()) }
    })?;
    if taken.contains(&name) {
        text.problem("is the name of another limit of this policy; give each its own");
    }
    taken.push(name.clone());
    Some(name)
}
