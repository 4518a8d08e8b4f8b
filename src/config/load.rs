//! From a file to a checked configuration, or to all that is wrong with it.

use super::listeners::{read_admin, read_listeners};
use super::model::Config;
use super::policies::read_policies;
use super::problem::{Place, Problem, Problems};
use super::reader::{NOT_SUPPORTED, Source, Table};
use super::routes::{Names, read_routes};
use super::settings::{read_client_ip, read_hot_keys, read_log, read_responses};
use super::store::read_store;
use super::upstreams::read_upstreams;
use siphasher::sip128::{Hasher128, SipHasher24};
use std::fs::File;
use std::hash::Hasher;
use std::io::Read;
use std::path::Path;
use toml::de::DeTable;

/// No sensible file is larger; one that is (a device, a log) is not read to its end.
const FILE_BYTES_MAX: u64 = 16 << 20;

/// Reads and checks a file, with variables from the process's environment.
pub fn load(path: &Path) -> Result<Config, Problems> {
    let text = read(path)?;
    parse(&path.display().to_string(), &text, &|name| std::env::var(name).ok())
}

/// The text of a file.
pub fn read(path: &Path) -> Result<String, Problems> {
    let name = path.display().to_string();
    let mut bytes = Vec::new();
    let read = File::open(path).and_then(|file| file.take(FILE_BYTES_MAX + 1).read_to_end(&mut bytes));
    match read {
        Err(error) => return Err(Problems::whole(&name, format!("cannot be read: {error}"))),
        Ok(length) if u64::try_from(length).is_ok_and(|length| length > FILE_BYTES_MAX) => {
            return Err(Problems::whole(&name, "is larger than 16 MiB; a configuration is smaller".to_owned()));
        }
        Ok(_) => {}
    }
    String::from_utf8(bytes).map_err(|error| {
        let valid = error.utf8_error().valid_up_to();
        let text = String::from_utf8_lossy(&error.as_bytes()[..valid]).into_owned();
        let message = "this is no UTF-8; save the file in that encoding".to_owned();
        Problems::new(&name, vec![Problem { place: Some(Place::of(&text, valid)), path: String::new(), message }])
    })
}

/// Checks a text. `name` is what the problems call the file, and its folder is where relative paths begin; `environment` answers for `${NAME}`.
pub fn parse(name: &str, text: &str, environment: &dyn Fn(&str) -> Option<String>) -> Result<Config, Problems> {
    let (document, errors) = DeTable::parse_recoverable(text);
    if !errors.is_empty() {
        return Err(Problems::new(name, errors.iter().map(|error| syntax_problem(text, error)).collect()));
    }
    let folder = Path::new(name).parent().unwrap_or(Path::new(""));
    let source = Source::new(text, environment, folder);
    let config = read_all(&Table::root(&source, document.get_ref()));
    if source.is_sound() { Ok(config) } else { Err(source.into_problems(name)) }
}

/// Only the parser's own words: its `Display` would repeat the line, passwords and all.
fn syntax_problem(text: &str, error: &toml::de::Error) -> Problem {
    let byte = error.span().map_or(text.len(), |span| span.start);
    let message = error.message().split_whitespace().collect::<Vec<_>>().join(" ");
    Problem {
        place: Some(Place::of(text, byte)),
        path: String::new(),
        message: format!("this is no valid TOML: {message}"),
    }
}

fn read_all(root: &Table<'_>) -> Config {
    let mut addresses = Vec::new();
    let listeners = read_listeners(root, &mut addresses);
    let admin = read_admin(root, &mut addresses);
    let client_ip = read_client_ip(root);
    let store = read_store(root);
    let hot_keys = read_hot_keys(root);
    let log = read_log(root);
    let responses = read_responses(root);
    let upstreams = read_upstreams(root, admin.as_ref().map(|admin| admin.address));
    let policies = read_policies(root, store.on_failure);
    let routes = read_routes(root, &Names { upstreams: &upstreams, policies: &policies });
    for table in ["plans", "consumers"] {
        if let Some(value) = root.get(table) {
            value.problem_at_key(NOT_SUPPORTED);
        }
    }
    root.finish();
    Config { listeners, admin, client_ip, store, hot_keys, log, responses, upstreams, policies, routes }
}

/// A digest of a file's bytes, the same on every machine: what `/status` shows, and what tells a changed file from a touched one.
#[must_use]
pub fn hash(text: &[u8]) -> String {
    let mut hasher = SipHasher24::new();
    hasher.write(text);
    format!("{:032x}", hasher.finish128().as_u128())
}
