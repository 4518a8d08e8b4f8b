//! The rules of the house that no compiler holds, read off the source tree: which room may import which, what is named
//! in one place only, how long a file and a function may be. What clippy can hold is in `clippy.toml`.
//!
//! A rule that is in the way is changed here, with its reason, in the commit that needs it.

use std::fs;
use std::path::{Path, PathBuf};

/// Lowest first. A room imports only from lower rows, and from the rooms before it in its own row.
const ROWS: &[&[&str]] = &[
    &["clock", "units", "lifecycle"],
    &["telemetry"],
    &["message", "http1", "trust"],
    &["algorithm", "route", "identify"],
    &["store", "upstream"],
    &["limit"],
    &["respond"],
    &["proxy"],
    &["config", "admin", "listener"],
    &["runtime", "app", "command"],
    &["main"],
];

/// What is named in one place: the word, where it may stand, and why nowhere else.
const CONFINED: &[(&str, &[&str], &str)] = &[
    ("redis::", &["src/store/redis", "src/store/mod.rs"], "a store is one folder; mod.rs means that folder"),
    ("prometheus::", &["src/telemetry/metrics"], "every name, help and bucket is in one file; what counts, beside it"),
    // std's Instant is banned in clippy.toml, which knows it from tokio's; that one a test can turn.
    ("SystemTime::now(", &["src/clock.rs"], "a test turns the clock"),
    ("StatusCode::BAD_", ANSWERING, ANSWERS),
    ("StatusCode::NOT_FOUND", ANSWERING, ANSWERS),
    ("StatusCode::REQUEST_", ANSWERING, ANSWERS),
    ("StatusCode::PAYLOAD_", ANSWERING, ANSWERS),
    ("StatusCode::TOO_MANY", ANSWERING, ANSWERS),
    ("StatusCode::INTERNAL_", ANSWERING, ANSWERS),
    ("StatusCode::SERVICE_", ANSWERING, ANSWERS),
    ("StatusCode::GATEWAY_", ANSWERING, ANSWERS),
    ("\"token_bucket\"", &["src/algorithm", "src/command/demo.rs"], NAMES),
    ("\"sliding_window_log\"", &["src/algorithm"], NAMES),
    ("\"sliding_window_counter\"", &["src/algorithm"], NAMES),
    ("\"fixed_window\"", &["src/algorithm"], NAMES),
];
const ANSWERING: &[&str] = &["src/respond", "src/admin"];
const ANSWERS: &str = "how the gateway fails is decided in one room; the admin pages have their own answers";
const NAMES: &str = "the registry knows the algorithms' names, ask it; the demo is a configuration";

const FILE_LINES_MAX: usize = 400;
const FUNCTION_LINES_MAX: usize = 70;

/// Fewer would mean that this test looks at the wrong folder.
const FILES_MIN: usize = 16;

struct Source {
    /// Relative to the repository, with forward slashes.
    path: String,
    text: String,
}

impl Source {
    /// The program's own lines, numbered from 1: without comments, and without tests (a closing `#[cfg(test)]` module, or
    /// a file of its own named `tests.rs`).
    fn code(&self) -> impl Iterator<Item = (usize, &str)> {
        let text = if self.is_tests() { "" } else { &self.text };
        text.lines()
            .enumerate()
            .take_while(|(_, line)| !line.starts_with("#[cfg(test)]"))
            .map(|(index, line)| (index + 1, line))
            .filter(|(_, line)| !line.trim_start().starts_with("//"))
    }

    fn is_tests(&self) -> bool {
        self.path.ends_with("/tests.rs")
    }

    /// The same lines, with a `use` over several of them joined into its first.
    fn imports(&self) -> Vec<(usize, String)> {
        let mut joined: Vec<(usize, String)> = Vec::new();
        for (line, text) in self.code() {
            match joined.last_mut() {
                Some((_, open))
                    if open.trim_start().trim_start_matches("pub ").starts_with("use ") && !open.ends_with(';') =>
                {
                    open.push_str(text.trim());
                }
                _ => joined.push((line, text.to_owned())),
            }
        }
        joined
    }

    fn room(&self) -> &str {
        let below = self.path.strip_prefix("src/").unwrap_or(&self.path);
        below.split(['/', '.']).next().unwrap_or(below)
    }
}

#[test]
fn a_room_imports_only_from_lower_rooms() {
    check(|source, faults| {
        if source.room() == "lib" {
            return; // declares all rooms, imports none
        }
        let Some(own) = rank(source.room()) else {
            faults.push(format!("{}: the room `{}` has no row in tests/house.rs", source.path, source.room()));
            return;
        };
        for (line, text) in source.imports() {
            for room in rooms_named(&text) {
                if room != source.room() && rank(&room).is_some_and(|other| other > own) {
                    faults.push(format!(
                        "{}:{line}: `{}` imports `{room}`, which is above it",
                        source.path,
                        source.room()
                    ));
                }
            }
        }
    });
}

#[test]
fn what_belongs_to_one_place_is_named_nowhere_else() {
    check(|source, faults| {
        for (word, places, reason) in CONFINED {
            if places.iter().any(|place| source.path.starts_with(place)) {
                continue;
            }
            for (line, text) in source.code().filter(|(_, text)| names(text, word)) {
                faults.push(format!(
                    "{}:{line}: `{word}` belongs to {places:?} ({reason}): {}",
                    source.path,
                    text.trim()
                ));
            }
        }
    });
}

#[test]
fn a_file_can_be_read_in_one_sitting_and_says_first_what_it_owns() {
    check(|source, faults| {
        let lines = source.text.lines().count();
        if lines > FILE_LINES_MAX {
            faults.push(format!("{}: {lines} lines, more than {FILE_LINES_MAX}", source.path));
        }
        if !source.text.starts_with("//!") && !source.is_tests() {
            faults
                .push(format!("{}: does not begin with `//!`: what it owns, promises, leaves to others", source.path));
        }
    });
}

#[test]
fn a_function_fits_a_screen() {
    check(|source, faults| {
        for (name, line, length) in functions(&source.text) {
            if length > FUNCTION_LINES_MAX {
                faults.push(format!(
                    "{}:{line}: `{name}` has {length} lines, more than {FUNCTION_LINES_MAX}",
                    source.path
                ));
            }
        }
    });
}

#[test]
fn types_are_nouns_and_getters_are_named_by_what_they_give() {
    check(|source, faults| {
        for (line, text) in source.code() {
            let words: Vec<&str> = text.split(|c: char| !c.is_alphanumeric() && c != '_').collect();
            for pair in words.windows(2) {
                let vague = ["Manager", "Helper", "Util", "Utils", "Impl", "Info"];
                if ["struct", "enum", "trait"].contains(&pair[0]) && vague.iter().any(|word| pair[1].ends_with(word)) {
                    faults.push(format!("{}:{line}: `{}` does not say what it is", source.path, pair[1]));
                }
                if pair[0] == "fn" && pair[1].starts_with("get_") && !pair[1].starts_with("get_or_") {
                    faults.push(format!("{}:{line}: `{}`: drop the `get_`", source.path, pair[1]));
                }
            }
        }
    });
}

#[test]
fn every_room_of_the_table_that_the_crate_declares_was_seen() {
    let sources = sources();
    let library = fs::read_to_string(root().join("src/lib.rs")).expect("src/lib.rs");
    let declared: Vec<&str> =
        library.lines().filter_map(|line| line.strip_prefix("pub mod ")?.strip_suffix(';')).collect();
    assert!(declared.len() >= 10, "src/lib.rs declares {declared:?}");
    for room in declared {
        assert!(rank(room).is_some(), "`{room}` has no row");
        assert!(sources.iter().any(|source| source.room() == room), "no file of `{room}` was read");
    }
}

/// Runs a rule over every file of `src` and fails with all that it found.
fn check(rule: impl Fn(&Source, &mut Vec<String>)) {
    let sources = sources();
    assert!(sources.len() >= FILES_MIN, "only {} files under src", sources.len());
    let mut faults = Vec::new();
    for source in &sources {
        rule(source, &mut faults);
    }
    assert!(faults.is_empty(), "{} faults in {} files:\n{}", faults.len(), sources.len(), faults.join("\n"));
}

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

fn sources() -> Vec<Source> {
    let mut found = Vec::new();
    collect(&root().join("src"), &mut found);
    found
}

fn collect(folder: &Path, found: &mut Vec<Source>) {
    for entry in fs::read_dir(folder).expect("a folder of sources") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            collect(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let text = fs::read_to_string(&path).expect("a source file in UTF-8");
            let path = path.strip_prefix(root()).expect("below the root").to_string_lossy().replace('\\', "/");
            found.push(Source { path, text });
        }
    }
}

/// The place of a room in the table; higher imports lower.
fn rank(room: &str) -> Option<usize> {
    ROWS.iter().flat_map(|row| row.iter()).position(|name| *name == room)
}

/// The rooms that a line names as `crate::room` or `staunch::room`, in a group of braces too.
fn rooms_named(line: &str) -> Vec<String> {
    let mut rooms = Vec::new();
    for root in ["crate::", "staunch::"] {
        for (at, _) in line.match_indices(root) {
            let rest = &line[at + root.len()..];
            match rest.strip_prefix('{') {
                Some(group) => rooms.extend(heads_of(group)),
                None => rooms.push(identifier(rest)),
            }
        }
    }
    rooms.retain(|room| !room.is_empty());
    rooms
}

/// The first identifier of each entry of a group, nested groups left out.
fn heads_of(group: &str) -> Vec<String> {
    let mut depth = 0;
    let mut heads = vec![identifier(group)];
    for (at, character) in group.char_indices() {
        match character {
            '{' => depth += 1,
            '}' => depth -= 1,
            ',' if depth == 0 => heads.push(identifier(group[at + 1..].trim_start())),
            _ => {}
        }
        if depth < 0 {
            break;
        }
    }
    heads
}

fn identifier(text: &str) -> String {
    text.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect()
}

/// Whether a line names a word; a crate's only where a path begins with it: `redis::` is not in `store::redis::`.
fn names(line: &str, word: &str) -> bool {
    let is_crate = word.starts_with(char::is_lowercase);
    let continues = |c: char| c.is_alphanumeric() || c == '_' || (is_crate && c == ':');
    line.match_indices(word).any(|(at, _)| !line[..at].ends_with(continues))
}

/// Name, first line and length of every function: rustfmt closes a body at the indentation that it began with.
fn functions(text: &str) -> Vec<(String, usize, usize)> {
    let lines: Vec<&str> = text.lines().collect();
    let mut found = Vec::new();
    for (first, line) in lines.iter().enumerate() {
        let Some(name) = function_name(line) else { continue };
        let indent = &line[..line.len() - line.trim_start().len()];
        let close = format!("{indent}}}");
        let body = lines[first..].iter().position(|line| *line == close);
        let head_only = lines[first..].iter().position(|line| line.ends_with(';') && line.starts_with(indent));
        match (body, line.ends_with('}')) {
            (Some(last), false) if head_only != Some(0) => found.push((name, first + 1, last + 1)),
            _ => found.push((name, first + 1, 1)),
        }
    }
    found
}

fn function_name(line: &str) -> Option<String> {
    let mut words = line.split_whitespace().peekable();
    while let Some(word) = words.next() {
        let modifier = ["pub", "const", "async", "unsafe", "extern"].contains(&word) || word.starts_with("pub(");
        if word == "fn" {
            return words.next().map(identifier);
        }
        if !modifier {
            return None;
        }
    }
    None
}

#[test]
fn the_readers_of_this_test_see_what_they_should() {
    assert_eq!(rooms_named("use crate::store::{memory, redis};"), ["store"]);
    assert_eq!(rooms_named("use crate::{clock, store::{memory, redis}, limit::Limiter};"), ["clock", "store", "limit"]);
    assert_eq!(rooms_named("    let now = crate::clock::now_us();"), ["clock"]);
    let text = "use crate::{\n    clock,\n    limit::{self, Limiter},\n};\nfn a() {}\n".to_owned();
    let imports = Source { path: "src/store/mod.rs".to_owned(), text }.imports();
    assert_eq!(imports.len(), 2);
    assert_eq!(rooms_named(&imports[0].1), ["clock", "limit"]);
    assert!(names("use redis::Client;", "redis::"));
    assert!(!names("use crate::store::redis::Shards;", "redis::"));
    assert!(names("let t = std::time::SystemTime::now();", "SystemTime::now("));
    let text =
        "impl A {\n    pub async fn long(\n        &self,\n    ) -> u8 {\n        1\n    }\n\n    fn short() {}\n}\n";
    assert_eq!(functions(text), [("long".to_owned(), 2, 5), ("short".to_owned(), 8, 1)]);
}
