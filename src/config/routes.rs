//! `[[routes]]`: which requests go where, and which policies hold for them. Names become indices here.

use super::listeners::TIMEOUTS;
use super::model::{Policy, Route, Upstream};
use super::pattern::{parse_host, parse_path, parse_strip_prefix, read_method};
use super::problem::Place;
use super::reader::{Table, Value};
use super::text::Text;
use crate::route::{HeaderPattern, HostPattern, PathPattern, Pattern, Segment};
use http::{HeaderName, HeaderValue, Method};

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
    routes
}

fn read_route(table: &Table<'_>, names: &Names<'_>, seen: &mut Seen) -> Option<Route> {
    let path = table.required("path", "one such as `path = \"/*\"`").and_then(|value| value.text());
    let pattern = path.as_ref().and_then(|text| text.parsed(parse_path));
    let name = table.get("name").and_then(|value| route_name(&value));
    let hosts = list(table, "hosts", |text| text.parsed(parse_host));
    let methods = list(table, "methods", read_method);
    let headers = table.get("headers").map_or(Some(Vec::new()), |value| read_headers(&value));
    let upstream =
        table.required("upstream", "the name of one of the `[upstreams]`").and_then(|value| upstream(&value, names));
    let policies = table.get("policies").map_or(Some(Vec::new()), |value| policies(&value, names));
    let strip_prefix = table.get("strip_prefix").and_then(|value| {
        let text = value.text()?;
        text.parsed(|text| parse_strip_prefix(text, pattern.as_ref().unwrap_or(&ANYTHING)))
    });
    let response_timeout = table.get("response_timeout").and_then(|value| value.duration(&TIMEOUTS));
    let path = path?;
    let default_name = path.shown.clone();
    seen.name(name.as_ref(), &default_name);
    let matches = Pattern { hosts: hosts?, path: pattern?, methods: methods?, headers: headers? };
    seen.pattern(&path, &matches);
    let upstream = upstream?;
    Some(Route {
        name: name.map_or(default_name, |text| text.text),
        matches,
        upstream,
        policies: policies?,
        strip_prefix,
        response_timeout: response_timeout.unwrap_or(names.upstreams[upstream].response_timeout),
    })
}

/// Stands for a path that could not be read, so that nothing more is said of it.
static ANYTHING: PathPattern = PathPattern { segments: Vec::new(), prefix: true };

fn route_name<'a>(value: &Value<'a>) -> Option<Text<'a>> {
    let text = value.text()?;
    let sound = !text.text.is_empty() && text.text.len() <= 256 && !text.text.contains(char::is_control);
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
        value.problem("is empty; leave it out to match any");
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
            None => entry.problem_at_key("is no header name; write letters, digits and `-`, such as `x-tenant`"),
            Some(header) if headers.iter().any(|(other, _)| other == header) => {
                entry.problem_at_key("names the same header as another entry; leave one out");
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
    if text.text == "*" {
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
    let index = known.iter().position(|name| *name == text.text);
    if index.is_none() {
        text.unknown(what, known);
    }
    index
}

/// The routes read so far: no two may have one name, or match the same requests.
#[derive(Default)]
struct Seen {
    names: Vec<String>,
    patterns: Vec<(Pattern, usize)>,
}

impl Seen {
    /// Routes that leave their name out may share a path; a name that was written is a route's own.
    fn name(&mut self, written: Option<&Text<'_>>, default: &str) {
        let name = written.map_or(default, |text| text.text.as_str());
        if let Some(text) = written
            && self.names.iter().any(|other| other == name)
        {
            text.problem("is the name of another route; give each its own");
        }
        self.names.push(name.to_owned());
    }

    fn pattern(&mut self, path: &Text<'_>, pattern: &Pattern) {
        let canonical = canonical(pattern);
        let at = path.value.key_at;
        match self.patterns.iter().find(|(other, _)| *other == canonical) {
            Some((_, other)) => {
                let line = Place::of(path.value.source.text, *other).line;
                path.problem(&format!(
                    "matches the same requests as the route in line {line}; change one, or leave it out"
                ));
            }
            None => self.patterns.push((canonical, at)),
        }
    }
}

/// Two patterns match the same requests exactly if their canonical forms are equal.
fn canonical(pattern: &Pattern) -> Pattern {
    let mut canonical = pattern.clone();
    for segment in &mut canonical.path.segments {
        if let Segment::Any(name) = segment {
            name.clear();
        }
    }
    canonical.hosts.sort_by_key(host_text);
    canonical.methods.sort_by(|one, other| Method::as_str(one).cmp(other.as_str()));
    canonical.headers.sort_by(|one, other| one.0.as_str().cmp(other.0.as_str()));
    canonical
}

fn host_text(host: &HostPattern) -> String {
    match host {
        HostPattern::Exact(name) => name.clone(),
        HostPattern::Under(name) => format!("*.{name}"),
    }
}
