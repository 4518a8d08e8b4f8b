//! What the documents say, held against the program: every file and link they name, every example, every table.

use staunch::algorithm::Algorithm;
use staunch::telemetry::metrics::{
    self, EndpointMetrics, HandshakeFailure, Label, LimitMetrics, ListenerMetrics, Outcome, Reload, Retry,
    RetryMetrics, RouteMetrics, ShardMetrics, Source, StoreErrorKind, Verdict,
};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::Duration;

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

fn read(path: &str) -> String {
    fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

fn staunch(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_staunch"))
        .args(arguments)
        .env("STAUNCH_UPSTREAM", "http://127.0.0.1:3000")
        .env("STAUNCH_ADMIN_TOKEN", "of-this-test")
        .env("REDIS_PASSWORD", "of-this-test")
        .output()
        .unwrap()
}

/// What `staunch check` says of a text.
fn check(text: &str) -> Output {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("staunch.toml");
    fs::write(&file, text).unwrap();
    staunch(&["check", file.to_str().unwrap()])
}

fn assert_accepted(name: &str, output: &Output) {
    let told = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{name}: {}", String::from_utf8_lossy(&output.stderr));
    assert!(told.starts_with("ok: "), "{name}: {told}");
}

/// The fenced blocks of one language.
fn blocks(text: &str, language: &str) -> Vec<String> {
    let fence = format!("```{language}\n");
    text.split(&fence).skip(1).map(|rest| rest.split("```").next().unwrap().to_owned()).collect()
}

/// The cells of the rows between two markers; a row begins with a name in backticks, a head does not.
fn table(text: &str, from: &str, to: &str) -> Vec<Vec<String>> {
    let part = text.split(from).nth(1).and_then(|rest| rest.split(to).next()).unwrap_or_else(|| panic!("no `{from}`"));
    part.lines()
        .filter(|line| line.starts_with("| `"))
        .map(|line| line.trim_matches('|').split(" |").map(|cell| cell.trim_matches(['|', ' ']).to_owned()).collect())
        .collect()
}

/// What stands between backticks.
fn quoted(text: &str) -> BTreeSet<String> {
    text.split('`').skip(1).step_by(2).map(str::to_owned).collect()
}

/// Every metric with its labels, as the page shows them once each has counted something.
fn metrics_of_the_program() -> BTreeMap<String, BTreeSet<String>> {
    RouteMetrics::new("r").count(Outcome::Forwarded, 0.1);
    let limit = LimitMetrics::new("p", "l");
    limit.count(Verdict::Allowed, Source::Store);
    limit.uncounted();
    let shard = ShardMetrics::new("s");
    shard.requests.inc();
    shard.observe(0.1);
    shard.error(StoreErrorKind::ALL[0]);
    shard.up(true);
    shard.degraded(false);
    shard.clock_skew(0.0);
    let listener = ListenerMetrics::new("l");
    listener.active.set(1);
    listener.handshake_failed(HandshakeFailure::ALL[0]);
    listener.certificates_reloaded(Reload::Ok);
    metrics::upstream_duration("u").observe(Duration::from_millis(100));
    EndpointMetrics::new("u", "e").up(true);
    RetryMetrics::new("u").count(Retry::Sent);
    metrics::decision_durations()[0].observe(Duration::from_millis(100));
    metrics::reloaded(Reload::Ok);
    metrics::build("v", "c");

    let page = metrics::render();
    let mut found: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for line in page.lines() {
        if let Some(typed) = line.strip_prefix("# TYPE ") {
            found.insert(typed.split(' ').next().unwrap().to_owned(), BTreeSet::new());
        } else if let Some((name, labels)) = line.split_once('{') {
            let base = ["_bucket", "_sum", "_count"].iter().find_map(|end| name.strip_suffix(end));
            let name = base.filter(|base| found.contains_key(*base)).unwrap_or(name);
            let labels = labels.split('}').next().unwrap().split(',').filter_map(|pair| pair.split('=').next());
            found.get_mut(name).unwrap().extend(labels.filter(|label| *label != "le").map(str::to_owned));
        }
    }
    found
}

#[test]
fn the_readme_lists_every_metric_with_its_labels_and_no_other() {
    let rows = table(&read("README.md"), "<!-- metrics:", "<!-- end of metrics -->");
    let told: BTreeMap<String, BTreeSet<String>> =
        rows.iter().map(|row| (row[0].trim_matches('`').to_owned(), quoted(&row[1]))).collect();
    assert!(told.len() >= 15, "{told:?}");
    assert_eq!(told, metrics_of_the_program());
}

#[test]
fn the_readme_lists_every_algorithm_and_no_other() {
    let rows = table(&read("README.md"), "### Which algorithm", "### Several limits");
    let told: BTreeSet<String> = rows.iter().flat_map(|row| quoted(&row[0])).collect();
    let known: BTreeSet<String> = Algorithm::ALL.iter().map(|algorithm| algorithm.name().to_owned()).collect();
    assert_eq!(told, known);
}

#[test]
fn the_examples_of_the_readme_are_accepted() {
    let examples = blocks(&read("README.md"), "toml");
    assert_eq!(examples.len(), 2, "the quick start, and every option of a limit");
    assert_accepted("the quick start", &check(&examples[0]));
    let with_limit = examples[0].replace("[[routes]]", &format!("{}\n[[routes]]", examples[1]));
    let with_limit =
        with_limit.replace("limits = [{ name = \"per-ip\", key = \"client_ip\", quota = \"100/1m\" }]", "");
    assert_accepted("the limit with every option", &check(&with_limit));
}

#[test]
fn every_configuration_that_comes_along_is_accepted() {
    let mut seen = 0;
    for folder in ["config", "deploy/docker"] {
        for entry in fs::read_dir(root().join(folder)).unwrap() {
            let path = entry.unwrap().path();
            if path.extension().is_some_and(|extension| extension == "toml") {
                assert_accepted(&path.display().to_string(), &staunch(&["check", path.to_str().unwrap()]));
                seen += 1;
            }
        }
    }
    assert!(seen >= 4, "{seen} files");
}

#[test]
fn what_is_said_not_to_be_supported_yet_is_refused_in_these_words() {
    let quick_start = &blocks(&read("README.md"), "toml")[0];
    let unsupported = [
        ("\"100/1m\"", "\"100/day\", algorithm = \"fixed_window\""),
        ("\"100/1m\"", "\"20\", algorithm = \"concurrency\""),
        ("\"100/1m\"", "\"100/1m\", on_exceed = { slow_down = { delay = \"500ms\" } }"),
        ("\"client_ip\"", "\"jwt:sub\""),
        ("\"client_ip\"", "\"consumer\""),
    ];
    for (plain, changed) in unsupported {
        let text = quick_start.replacen(plain, changed, 1);
        assert_ne!(&text, quick_start);
        let output = check(&text);
        let told = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(78), "{changed}: {told}");
        assert!(told.contains("not supported yet"), "{changed}: {told}");
    }
}

#[test]
fn the_readme_lists_every_command_and_no_other() {
    let rows = table(&read("README.md"), "| command | does |", "Exit codes:");
    let told: BTreeSet<String> = rows
        .iter()
        .filter_map(|row| row[0].trim_matches('`').split(' ').nth(1))
        .filter(|word| !word.starts_with('-'))
        .map(str::to_owned)
        .collect();
    let help = String::from_utf8(staunch(&["--help"]).stdout).unwrap();
    let listed = help.split("Commands:\n").nth(1).unwrap().split("\n\n").next().unwrap();
    let known: BTreeSet<String> = listed
        .lines()
        .filter(|line| line.starts_with("  ") && !line.starts_with("   "))
        .filter_map(|line| line.split_whitespace().next())
        .filter(|command| *command != "help")
        .map(str::to_owned)
        .collect();
    assert!(known.len() >= 4, "{help}");
    assert_eq!(told, known);
}

#[test]
fn every_file_that_a_document_links_to_exists() {
    let mut seen = 0;
    for document in ["README.md", "CONTRIBUTING.md", "CHANGELOG.md"] {
        for target in read(document).split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
            if !target.starts_with("https://") {
                assert!(Path::new(&root().join(target)).exists(), "{document}: {target}");
                seen += 1;
            }
        }
    }
    assert!(seen >= 6, "{seen} links");
}
