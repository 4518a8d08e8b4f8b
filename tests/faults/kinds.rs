//! Each kind of error, provoked for real: it is named in the metrics and in the line that says the shard is degraded, and is
//! over when its cause is.

use crate::support::gateway::Gateway;
use crate::support::redis::RedisServer;
use crate::support::upstream::Upstream;
use crate::support::wait::eventually;

const POLICY: &str = "[policies.p]\non_store_failure = \"closed\"\n\
                      limits = [{ name = \"l\", key = \"header:x-key\", quota = \"5/7d\" }]\n\
                      [[routes]]\npath = \"/*\"\nupstream = \"up\"\npolicies = [\"p\"]\n";

fn is_up(gateway: &Gateway) -> bool {
    gateway.metric("staunch_store_up", &[]) > 0.5
}

fn command(server: &RedisServer, words: &[&str]) {
    redis::cmd(words[0]).arg(&words[1..]).exec(&mut server.ask()).expect("the node takes it");
}

/// Spoils a node, sees that it is told, mends it, sees that it is over.
fn told(
    kind: &str,
    mut server: RedisServer,
    spoil: impl FnOnce(&mut RedisServer),
    mend: impl FnOnce(&mut RedisServer),
) {
    let upstream = Upstream::start();
    let gateway = Gateway::start(format!(
        "[store]\nbackend = \"redis\"\n[store.redis]\nnodes = [{{ name = \"n\", url = \"{}\" }}]\ntimeout = \"1s\"\n\
         breaker = {{ failures = 2, retry_after = \"50ms\" }}\n{POLICY}{}",
        server.url(),
        upstream.table()
    ));
    eventually("contact", || is_up(&gateway));
    assert_eq!(gateway.get_as("before", "/").status, 200);
    spoil(&mut server);
    eventually(kind, || {
        let status = gateway.get_as("k", "/").status;
        assert!([503, 429, 200].contains(&status), "{kind}: {status}");
        gateway.metric("staunch_store_degraded", &["shard=\"n\""]) > 0.5
    });
    let labels = ["shard=\"n\"", &format!("kind=\"{kind}\"")];
    assert!(gateway.metric("staunch_store_errors_total", &labels) >= 1.0, "{kind}: {}", gateway.metrics());
    let line = |line: &str| {
        line.contains("store shard is degraded")
            && line.contains("shard=\"n\"")
            && line.contains(&format!("kind=\"{kind}\""))
    };
    eventually("the log names it", || gateway.log().lines().any(line));
    mend(&mut server);
    eventually(kind, || is_up(&gateway) && gateway.get_as("after", "/").status == 200);
    let statuses: Vec<_> = (0..6).map(|_| gateway.get_as("then", "/").status).collect();
    assert_eq!(statuses, [200, 200, 200, 200, 200, 429], "{kind}");
}

#[test]
fn a_stopped_node_is_a_timeout() {
    told("timeout", RedisServer::start(), |server| server.stop(), |server| server.cont());
}

#[test]
fn a_killed_node_is_a_failure_to_connect() {
    told("connect", RedisServer::start(), RedisServer::kill, RedisServer::restart);
}

#[test]
fn a_password_that_was_changed_is_a_failure_of_credentials() {
    let spoil = |server: &mut RedisServer| {
        let mut operator = server.ask();
        redis::cmd("CONFIG").arg(&["SET", "requirepass", "changed"]).exec(&mut operator).unwrap();
        redis::cmd("CLIENT").arg(&["KILL", "TYPE", "normal", "SKIPME", "yes"]).exec(&mut operator).unwrap();
    };
    let mend = |server: &mut RedisServer| {
        let url = server.url().replace("redis://", "redis://:changed@");
        let mut operator = redis::Client::open(url).unwrap().get_connection().unwrap();
        redis::cmd("CONFIG").arg(&["SET", "requirepass", ""]).exec(&mut operator).unwrap();
    };
    told("auth", RedisServer::start(), spoil, mend);
}

#[test]
fn a_node_without_a_command_that_the_script_calls_is_a_failure_of_the_script() {
    // The user may do everything but tell the time: scripts start, and break off.
    let spoil = |server: &mut RedisServer| command(server, &["ACL", "SETUSER", "default", "-time"]);
    let mend = |server: &mut RedisServer| command(server, &["ACL", "SETUSER", "default", "+time"]);
    told("script", RedisServer::start(), spoil, mend);
}

#[test]
fn a_demoted_node_is_read_only() {
    let spoil = |server: &mut RedisServer| command(server, &["REPLICAOF", "127.0.0.1", "1"]);
    let mend = |server: &mut RedisServer| command(server, &["REPLICAOF", "NO", "ONE"]);
    told("readonly", RedisServer::start(), spoil, mend);
}

#[test]
fn a_node_whose_memory_is_full_says_so() {
    let spoil = |server: &mut RedisServer| {
        command(server, &["CONFIG", "SET", "maxmemory-policy", "noeviction"]);
        command(server, &["CONFIG", "SET", "maxmemory", "1"]);
    };
    let mend = |server: &mut RedisServer| command(server, &["CONFIG", "SET", "maxmemory", "0"]);
    told("oom", RedisServer::start(), spoil, mend);
}

#[test]
fn a_node_that_reads_its_data_back_is_loading() {
    let folder = tempfile::tempdir().expect("a folder");
    let folder = folder.path().to_str().expect("a name in UTF-8");
    // Redis's own brake on loading, so that it takes seconds whatever the machine: 20 000 keys of 100 µs and more each.
    let brake = ["--key-load-delay", "100", "--loading-process-events-interval-bytes", "1024"];
    let server = RedisServer::start_with(&[&["--enable-debug-command", "yes", "--dir", folder], &brake[..]].concat());
    let spoil = |server: &mut RedisServer| {
        command(server, &["DEBUG", "POPULATE", "20000"]);
        let mut operator = server.ask();
        std::thread::spawn(move || redis::cmd("DEBUG").arg("RELOAD").exec(&mut operator));
    };
    told("loading", server, spoil, |_| ());
}
