//! The loader from outside: the files we ship, and a folder of small mistakes with the exact message for each.

use staunch::algorithm::{Algorithm, Quota};
use staunch::config::load::{load, parse};
use staunch::config::model::{
    Allowance, Backend, Config, Limit, Listener, Matcher, OnFailure, OnMissingKey, RefusalBody, Upstream,
};
use staunch::identify::KeySource;
use staunch::route::{HeaderPattern, HostPattern, PathPattern, Segment};
use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// How many files `tests/config` holds; a file that is not seen proves nothing.
const MISTAKES: usize = 146;

fn environment(name: &str) -> Option<String> {
    match name {
        "TOKEN" => Some("tok-9c2f".to_owned()),
        "PASSWORD" | "REDIS_PASSWORD" => Some("pw-1d7a".to_owned()),
        "QUOTA" => Some("7/1m".to_owned()),
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
            writeln!(wrong, "== {}\n{}", file.file_name().unwrap().display(), said.join("\n")).unwrap();
        }
    }
    assert!(wrong.is_empty(), "said otherwise:\n{wrong}");
    assert_eq!(files.len(), MISTAKES);
}

/// What is promised for a good text; a bad one is the test's own mistake.
fn good(text: &str) -> Config {
    parse("f", text, &environment).unwrap_or_else(|problems| panic!("{problems}"))
}

/// The one limit of a small file with these further keys.
fn limit(keys: &str) -> Limit {
    let text = SMALL.replace("key = \"client_ip\", quota = \"100/1m\"", keys);
    good(&text).policies[0].limits[0].clone()
}

const SMALL: &str = include_str!("../config/minimal.toml");

#[test]
fn the_smallest_useful_file_loads_with_every_default() {
    let config = load(&folder("config/minimal.toml")).unwrap();
    assert_eq!(config.counts().to_string(), "1 routes, 1 policies, 1 limits");
    assert_eq!(config.routes[0].name, "/*");
    let annotated = shipped("staunch.toml");
    // The annotated file spells the defaults out; leaving them out must mean the same.
    assert_eq!(config.client_ip, annotated.client_ip);
    assert_eq!(config.store, annotated.store);
    assert_eq!(config.hot_keys, annotated.hot_keys);
    assert_eq!(config.log, annotated.log);
    assert_eq!(config.responses, annotated.responses);
    let listener = Listener { address: annotated.listeners[0].address, ..config.listeners[0].clone() };
    assert_eq!(listener, annotated.listeners[0]);
    let upstream = Upstream { endpoints: annotated.upstreams[0].endpoints.clone(), ..config.upstreams[0].clone() };
    assert_eq!(upstream, annotated.upstreams[0]);
    assert_eq!(config.policies[0].on_store_failure, OnFailure::Local);
    let limit = &config.policies[0].limits[0];
    assert_eq!(limit.algorithm, Algorithm::SlidingWindowCounter);
    assert_eq!((limit.cost, limit.on_missing_key, limit.shadow), (1, OnMissingKey::Skip, false));
    assert_eq!(limit.quota, Allowance::Limited(Quota { units: 100, period_us: 60_000_000, burst: 100 }));
}

#[test]
fn the_annotated_file_says_what_it_means() {
    let config = shipped("staunch.toml");
    assert_eq!(config.counts().to_string(), "1 routes, 1 policies, 2 limits");
    assert_eq!(config.admin.unwrap().token.unwrap().reveal(), "a-token");
    let weights: Vec<_> =
        config.upstreams[0].endpoints.iter().map(|to| (to.host.as_str(), to.port, to.weight)).collect();
    assert_eq!(weights, [("10.0.0.1", 3000, 1), ("10.0.0.2", 3000, 2)]);
    let route = &config.routes[0];
    assert_eq!(route.response_timeout, Duration::from_secs(5));
    assert_eq!(route.strip_prefix.as_deref(), Some("/v1"));
    let hosts = [HostPattern::Exact("api.example.com".to_owned()), HostPattern::Under("example.org".to_owned())];
    assert_eq!(route.matches.hosts, hosts);
    assert_eq!(route.matches.headers[0].1, HeaderPattern::Present);
    let overrides = &config.policies[0].limits[1].overrides;
    let quota = Quota { units: 5000, period_us: 60_000_000, burst: 5000 };
    let value = |name: &str| Matcher::Value(name.to_owned());
    let expected = [
        (value("partner-1"), Allowance::Limited(quota)),
        (value("crawler"), Allowance::Nothing { period_us: 1_000_000 }),
        (value("ops"), Allowance::Unlimited),
    ];
    assert_eq!(overrides.as_slice(), expected);
}

#[test]
fn the_redis_file_names_its_nodes_and_hides_their_passwords() {
    let config = shipped("redis.toml");
    let Backend::Redis(redis) = &config.store.backend else { panic!("{:?}", config.store.backend) };
    let names: Vec<&str> = redis.nodes.iter().map(|node| node.name.as_str()).collect();
    assert_eq!(names, ["a", "b", "c"]);
    assert_eq!(redis.nodes[0].url.reveal(), "redis://:pw-1d7a@cache-a:6379");
    assert!(!format!("{config:?}").contains("pw-1d7a"));
}

#[test]
fn every_key_that_the_loader_knows_is_annotated() {
    let text = fs::read_to_string(folder("config/staunch.toml")).unwrap();
    let strange = "zzzzzzzz = 1\n";
    let headers: Vec<usize> = text.match_indices("\n[").map(|(at, _)| at + 1).collect();
    assert_eq!(headers.len(), 13);
    let mut known = 0;
    for header in headers {
        let line_end = header + text[header..].find('\n').unwrap() + 1;
        let spoiled = format!("{}{strange}{}", &text[..line_end], &text[line_end..]);
        let problems = parse("f", &spoiled, &environment).unwrap_err();
        assert_eq!(problems.list.len(), 1, "{problems}");
        let keys = problems.list[0].message.strip_prefix("unknown key; expected ").unwrap();
        for key in keys.split('`').skip(1).step_by(2) {
            let subtable = text.contains(&format!(".{key}]"));
            let written = ["", "# "].iter().any(|sign| text.contains(&format!("\n{sign}{key} = ")));
            // Announced in the text of `quota`, as it is of no use yet.
            assert!(written || subtable || key == "time_zone", "{key} is not annotated");
            known += 1;
        }
    }
    assert!(known > 60, "{known}");
}

#[test]
fn a_plain_node_is_named_by_its_host_and_port() {
    let redis =
        "[store]\nbackend = \"redis\"\n[store.redis]\nnodes = [\"redis://u:p@Cache\", \"rediss://[::1]:7001/3\"]\n";
    let config = good(&format!("{redis}{SMALL}"));
    let Backend::Redis(redis) = config.store.backend else { panic!() };
    let names: Vec<&str> = redis.nodes.iter().map(|node| node.name.as_str()).collect();
    assert_eq!(names, ["cache:6379", "[::1]:7001"]);
}

#[test]
fn a_key_is_one_source_or_a_list() {
    let every = r#"key = ["client_ip", "header:X-Api-Key", "cookie:Sid", "query:Api:Key", "host", "method", "path", "path_segment:2", "route", "bearer"], quota = "1/s""#;
    let sources = limit(every).key.sources;
    assert_eq!(sources.len(), 10);
    assert_eq!(sources[1], KeySource::Header(http::HeaderName::from_static("x-api-key")));
    assert_eq!(sources[2], KeySource::Cookie("Sid".to_owned()));
    assert_eq!(sources[3], KeySource::Query("Api:Key".to_owned()));
    assert_eq!(sources[7], KeySource::PathSegment(2));
    assert_eq!(limit("key = \"global\", quota = \"1/s\"").key.sources, [KeySource::Global]);
}

#[test]
fn quotas_are_read_with_their_burst() {
    let quota = |keys: &str| limit(&format!("key = \"global\", {keys}")).quota;
    let limited = |units, period_us, burst| Allowance::Limited(Quota { units, period_us, burst });
    assert_eq!(quota("quota = \"100/s\""), limited(100, 1_000_000, 100));
    assert_eq!(quota("quota = \"10/s\", algorithm = \"token_bucket\", burst = 50"), limited(10, 1_000_000, 50));
    assert_eq!(quota("quota = \"9007199254740992/3650d\""), limited(1 << 53, 315_360_000_000_000, 1 << 53));
    assert_eq!(quota("quota = \"unlimited\", cost = 9"), Allowance::Unlimited);
    assert_eq!(quota("quota = \"0/1s\", cost = 9"), Allowance::Nothing { period_us: 1_000_000 });
    let bucket = limit(
        r#"key = "host", algorithm = "token_bucket", quota = "1/s", burst = 9, overrides = { a = { quota = "5/s" }, b = { quota = "5/s", burst = 7 } }"#,
    );
    let overrides: Vec<Allowance> = bucket.overrides.iter().map(|(_, allowance)| *allowance).collect();
    assert_eq!(overrides, [limited(5, 1_000_000, 5), limited(5, 1_000_000, 7)]);
}

#[test]
fn an_exemption_is_a_network_or_a_value() {
    let net = |text: &str| Matcher::Net(text.parse().unwrap());
    let value = |text: &str| Matcher::Value(text.to_owned());
    let by_ip = limit(r#"key = "client_ip", quota = "1/s", exempt = ["10.1.2.3/8", "::1", "::ffff:10.0.0.0/104"]"#);
    assert_eq!(by_ip.exempt, [net("10.0.0.0/8"), net("::1/128"), net("10.0.0.0/8")]);
    let by_path = limit(r#"key = "path", quota = "1/s", exempt = ["/healthz", "10.0.0.0/8", "10.0.0.1"]"#);
    assert_eq!(by_path.exempt, [value("/healthz"), net("10.0.0.0/8"), net("10.0.0.1/32"), value("10.0.0.1")]);
}

#[test]
fn the_smallest_network_comes_first_whatever_the_order_in_the_file() {
    let keys = r#"key = "client_ip", quota = "1/s", overrides = { "10.0.0.0/8" = "unlimited", "10.1.0.0/16" = { quota = "0/1s" }, "10.1.2.3" = "unlimited" }"#;
    let prefixes: Vec<u8> = limit(keys)
        .overrides
        .iter()
        .map(|(matcher, _)| match matcher {
            Matcher::Net(network) => network.prefix_len(),
            Matcher::Value(value) => panic!("{value}"),
        })
        .collect();
    assert_eq!(prefixes, [32, 16, 8]);
}

#[test]
fn integers_may_be_written_in_every_form_of_toml() {
    for number in ["1_000", "+1000", "0x3E8", "0o1750", "0b1111101000"] {
        let config = good(&format!("[store]\nmax_keys = {number}\n{SMALL}"));
        assert_eq!(config.store.max_keys, 1000, "{number}");
    }
}

#[test]
fn policies_keep_the_order_of_the_file() {
    let config = good(&format!("{SMALL}\n[policies.b]\nlimits = []\n[policies.a]\nlimits = []\n"));
    let names: Vec<&str> = config.policies.iter().map(|policy| policy.name.as_str()).collect();
    assert_eq!(names, ["public", "b", "a"]);
}

#[test]
fn a_variable_is_replaced_in_strings_and_escaped_with_a_second_sign() {
    let text = format!(
        "[log]\n# ${{NOWHERE}}\n[responses]\nbody = {{ content_type = \"text/plain\", text = \"$${{TOKEN}} ${{TOKEN}} $5\" }}\n{SMALL}"
    );
    let expected =
        RefusalBody::Custom { content_type: "text/plain".to_owned(), text: "${TOKEN} tok-9c2f $5".to_owned() };
    assert_eq!(good(&text).responses.body, expected);
}

#[test]
fn paths_are_kept_in_the_form_of_requests() {
    let path = |path: &str| good(&SMALL.replace("/*", path)).routes[0].matches.path.clone();
    let literal = |text: &str| Segment::Literal(text.to_owned());
    let exact = |segments: Vec<Segment>| PathPattern { segments, prefix: false };
    assert_eq!(path("/"), exact(vec![]));
    assert_eq!(path("/*"), PathPattern { segments: vec![], prefix: true });
    assert_eq!(path("/login/"), exact(vec![literal("login")]));
    assert_eq!(path("/%7euser/aé;v=1"), exact(vec![literal("~user"), literal("a%C3%A9;v=1")]));
    let below = PathPattern { segments: vec![literal("users"), Segment::Any("id".to_owned())], prefix: true };
    assert_eq!(path("/users/{id}/*"), below);
}

#[test]
fn routes_that_differ_in_anything_live_side_by_side() {
    let more = [
        "path = \"/x\"",
        "path = \"/*\"\nmethods = [\"PURGE\"]",
        "path = \"/*\"\nhosts = [\"a\"]",
        "path = \"/*\"\nheaders = { a = \"*\" }",
        "path = \"/{a}/*\"",
    ];
    let more: Vec<String> = more.iter().map(|keys| format!("[[routes]]\n{keys}\nupstream = \"api\"\n")).collect();
    assert_eq!(good(&format!("{SMALL}{}", more.concat())).routes.len(), 6);
}

#[test]
fn a_file_that_cannot_be_read_is_named() {
    let nowhere = load(Path::new("/nowhere/staunch.toml")).unwrap_err().to_string();
    assert!(nowhere.starts_with("/nowhere/staunch.toml: cannot be read: "), "{nowhere}");
    let folder = tempfile::tempdir().unwrap();
    let latin = folder.path().join("latin.toml");
    fs::write(&latin, b"# ok\n# gr\xfc\xdfe\n").unwrap();
    let said = load(&latin).unwrap_err().to_string();
    assert!(said.ends_with("latin.toml:2:5: this is no UTF-8; save the file in that encoding"), "{said}");
}

#[test]
fn a_byte_order_mark_moves_no_column() {
    let said = parse("f", "\u{feff}nonsense = 1", &environment).unwrap_err().to_string();
    assert!(said.contains("f:1:1: nonsense: unknown key"), "{said}");
}
