//! `[[routes]]`: which requests go where, and which policies hold for them. Names become indices here.

use super::listeners::TIMEOUTS;
use super::model::{Policy, Route, Upstream};
use super::pattern::{parse_strip_prefix, read_method};
use super::reader::{Table, Value};
use super::text::Text;
use crate::route::{Conflict, HeaderPattern, HostPattern, PathPattern, Pattern, conflicts};
use http::{HeaderName, HeaderValue};
use std::collections::HashMap;

/// What routes may name.
pub struct Names<'a> {
    pub upstreams: &'a [Upstream],
    pub policies: &'a [Policy],
}

pub fn read_routes(root: &Table<'_>, names: &Names<'_>) -> Vec<Route> {
    let example = "at least one `[[routes]]` with `path` and `upstream`";
    let Some(value) = root.required("routes", example) else { return Vec::new() };
    let Some(items) = value.array("tables") else { return Vec::new() };
    if items.is_empty() {
        value.problem(&format!("no route; write {example}"));
    }
    let mut routes = Vec::new();
    let mut seen = Seen::default();
    for table in items.iter().filter_map(Value::table) {
        let route = read_route(&table, names, &mut seen);
        table.finish();
        routes.extend(route);
    }
    seen.report_conflicts();
    routes
}

fn read_route<'a>(table: &Table<'a>, names: &Names<'_>, seen: &mut Seen<'a>) -> Option<Route> {
    let path = table.required("path", "one such as `path = \"/*\"`").and_then(|value| value.text());
    let pattern = path.as_ref().and_then(|text| text.read(PathPattern::parse));
    let name = table.get("name").and_then(|value| route_name(&value));
    let hosts = list(table, "hosts", |text| text.read(HostPattern::parse));
    let methods = list(table, "methods", read_method);
    let headers = table.get("headers").map_or(Some(Vec::new()), |value| read_headers(&value));
    let upstream =
        table.required("upstream", "the name of one of the `[upstreams]`").and_then(|value| upstream(&value, names));
    let policies = table.get("policies").map_or(Some(Vec::new()), |value| policies(&value, names));
    let strip_prefix = table.get("strip_prefix").and_then(|value| {
        let text = value.text()?;
        text.parsed(|text| parse_strip_prefix(text, pattern.as_ref()))
    });
    let response_timeout = table.get("response_timeout").and_then(|value| value.duration(&TIMEOUTS));
    let path = path?;
    let default_name = path.expanded.clone();
    seen.name(name.as_ref(), &path);
    let matches = Pattern { hosts: hosts?, path: pattern?, methods: methods?, headers: headers? };
    seen.pattern(path, matches.clone());
    let upstream = upstream?;
    Some(Route {
        name: name.map_or(default_name, |text| text.expanded),
        matches,
        upstream,
        policies: policies?,
        strip_prefix,
        response_timeout: response_timeout.unwrap_or(names.upstreams[upstream].response_timeout),
    })
}

fn route_name<'a>(value: &Value<'a>) -> Option<Text<'a>> {
    let text = value.text()?;
    let sound = !text.expanded.is_empty() && text.expanded.len() <= 256 && !text.expanded.contains(char::is_control);
    if !sound {
        text.problem("is no name; write 1 to 256 characters without control characters");
    }
    sound.then_some(text)
}

/// A list that may be left out, and is not empty: an empty one would match nothing, or everything.
fn list<T: PartialEq>(table: &Table<'_>, key: &'static str, read: impl Fn(&Text<'_>) -> Option<T>) -> Option<Vec<T>> {
    let Some(value) = table.get(key) else { return Some(Vec::new()) };
    let items = value.array("strings")?;
    if items.is_empty() {
        value.problem("the list is empty; leave it out to match any");
        return None;
    }
    let read: Vec<Option<T>> = items.iter().map(|item| read(&item.text()?)).collect();
    let mut distinct = Vec::new();
    for item in read {
        let item = item?;
        if !distinct.contains(&item) {
            distinct.push(item);
        }
    }
    Some(distinct)
}

fn read_headers(value: &Value<'_>) -> Option<Vec<(HeaderName, HeaderPattern)>> {
    let mut headers: Vec<(HeaderName, HeaderPattern)> = Vec::new();
    let mut sound = true;
    for (name, entry) in value.table()?.entries() {
        let header = HeaderName::from_bytes(name.as_bytes()).ok();
        let pattern = entry.text().and_then(|text| header_pattern(&text));
        match &header {
            None => entry.problem_at_key("this is no header name; write letters, digits and `-`, such as `x-tenant`"),
            Some(header) if headers.iter().any(|(other, _)| other == header) => {
                entry.problem_at_key("another entry names the same header; leave one out");
            }
            Some(_) => {}
        }
        match header.zip(pattern) {
            Some(both) => headers.push(both),
            None => sound = false,
        }
    }
    sound.then_some(headers)
}

fn header_pattern(text: &Text<'_>) -> Option<HeaderPattern> {
    if text.expanded == "*" {
        return Some(HeaderPattern::Present);
    }
    text.parsed(|text| match HeaderValue::from_str(text) {
        Ok(_) if text.trim() == text => Ok(HeaderPattern::Value(text.to_owned())),
        _ => Err("is no header value; write it without control characters and outer spaces, or `*` for any".into()),
    })
}

fn upstream(value: &Value<'_>, names: &Names<'_>) -> Option<usize> {
    let known: Vec<&str> = names.upstreams.iter().map(|upstream| upstream.name.as_str()).collect();
    index(&value.text()?, "upstream", &known)
}

fn policies(value: &Value<'_>, names: &Names<'_>) -> Option<Vec<usize>> {
    let known: Vec<&str> = names.policies.iter().map(|policy| policy.name.as_str()).collect();
    let texts = value.texts()?;
    let found: Vec<Option<usize>> = texts.iter().map(|text| index(text, "policy", &known)).collect();
    let mut indices = Vec::new();
    for (text, policy) in texts.iter().zip(found) {
        let policy = policy?;
        if indices.contains(&policy) {
            text.problem("is in the list twice; leave one out");
        }
        indices.push(policy);
    }
    Some(indices)
}

fn index(text: &Text<'_>, what: &str, known: &[&str]) -> Option<usize> {
    let index = known.iter().position(|name| *name == text.expanded);
    if index.is_none() {
        text.unknown(what, known);
    }
    index
}

/// The routes read so far: no two may have one name, or match the same requests.
#[derive(Default)]
struct Seen<'a> {
    /// Whether each was written.
    names: HashMap<String, bool>,
    patterns: Vec<Pattern>,
    /// Where each pattern's path stands.
    paths: Vec<Text<'a>>,
}

impl<'a> Seen<'a> {
    /// Routes that leave their name out may share a path; a name that was written is a route's own.
    fn name(&mut self, written: Option<&Text<'_>>, path: &Text<'_>) {
        let text = written.unwrap_or(path);
        let other_written = self.names.insert(text.expanded.clone(), written.is_some());
        if other_written.is_some_and(|other_written| other_written || written.is_some()) {
            text.problem("is the name of another route; give each a `name` of its own");
        }
    }

    fn pattern(&mut self, path: Text<'a>, pattern: Pattern) {
        self.patterns.push(pattern);
        self.paths.push(path);
    }

    fn report_conflicts(&self) {
        for Conflict { first, second } in conflicts(&self.patterns) {
            let line = self.paths[first].value.line();
            self.paths[second].problem(&format!(
                "matches the same requests as the route in line {line}; change one, or leave it out"
            ));
        }
    }
}
