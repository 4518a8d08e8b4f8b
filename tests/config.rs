//! The loader from outside: the files we ship, a folder of small mistakes with the exact message for each, and texts at random.

use proptest::prelude::*;
use staunch::config::load::{load, parse};
use staunch::config::model::{Backend, Config};
use std::fs;
use std::path::{Path, PathBuf};

/// How many files `tests/config` holds; a file that is not seen proves nothing.
const MISTAKES: usize = 130;

fn environment(name: &str) -> Option<String> {
    match name {
        "TOKEN" => Some("tok-9c2f".to_owned()),
        "PASSWORD" | "REDIS_PASSWORD" => Some("pw-1d7a".to_owned()),
        "STAUNCH_ADMIN_TOKEN" => Some("a-token".to_owned()),
        _ => None,
    }
}

fn folder(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(name)
}

fn shipped(name: &str) -> Config {
    let text = fs::read_to_string(folder("config").join(name)).unwrap();
    parse(name, &text, &environment).unwrap_or_else(|problems| panic!("{problems}"))
}

/// The lines that a file promises: `# expect: LINE:COLUMN: …`, at its end so that they move nothing.
fn expected(text: &str) -> Vec<String> {
    text.lines().filter_map(|line| line.strip_prefix("# expect: ")).map(str::to_owned).collect()
}

#[test]
fn every_small_mistake_is_reported_in_exactly_the_promised_words() {
    let mut files: Vec<PathBuf> =
        fs::read_dir(folder("tests/config")).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    let mut wrong = String::new();
    for file in &files {
        let text = fs::read_to_string(file).unwrap();
        let said = match parse("f", &text, &environment) {
            Ok(_) => String::new(),
            Err(problems) => problems.to_string(),
        };
        let said: Vec<&str> = said.lines().map(|line| line.strip_prefix("f:").unwrap()).collect();
        if said.is_empty() || said != expected(&text) {
            let said: Vec<String> = said.iter().map(|line| format!("# expect: {line}")).collect();
            wrong.push_str(&format!("== {}\n{}\n", file.file_name().unwrap().display(), said.join("\n")));
        }
    }
    assert!(wrong.is_empty(), "said otherwise:\n{wrong}");
    assert_eq!(files.len(), MISTAKES);
}

#[test]
fn the_smallest_useful_file_loads_with_every_default() {
    let config = load(&folder("config/minimal.toml")).unwrap();
    assert_eq!(config.counts().to_string(), "1 routes, 1 policies, 1 limits");
    assert_eq!(config.store.backend, Backend::Memory);
    assert_eq!(config.routes[0].name, "/*");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn no_text_can_panic_the_loader(text in ".{0,200}") {
        let _ = parse("f", &text, &environment);
    }
}
