//! The command line: what each command says, where it says it, and its exit code.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test stops at the first surprise")]

mod support;

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Output, Stdio};
use support::gateway::{BINARY, Gateway};
use support::upstream::Upstream;
use support::{client, ports};

fn staunch(arguments: &[&str]) -> Output {
    Command::new(BINARY).args(arguments).stdin(Stdio::null()).output().unwrap()
}

fn out(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn err(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Ended whatever happens.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn version_and_help_go_to_stdout() {
    let version = staunch(&["--version"]);
    assert_eq!(version.status.code(), Some(0));
    assert!(out(&version).starts_with(concat!("staunch ", env!("CARGO_PKG_VERSION"), " (")), "{}", out(&version));
    let help = staunch(&["--help"]);
    assert_eq!(help.status.code(), Some(0));
    for command in ["run", "demo", "check"] {
        assert!(out(&help).contains(command), "{}", out(&help));
    }
}

#[test]
fn wrong_usage_is_2() {
    for arguments in [
        &[][..],
        &["fly"],
        &["run"],
        &["run", "--config"],
        &["check"],
        &["run", "--config", "x", "--log-level", "loud"],
    ] {
        let output = staunch(arguments);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {}", err(&output));
        assert!(out(&output).is_empty() && !err(&output).is_empty(), "{arguments:?}");
    }
}

#[test]
fn check_counts_what_a_good_file_holds() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/config");
    let minimal = staunch(&["check", &format!("{folder}/minimal.toml")]);
    assert_eq!((minimal.status.code(), err(&minimal).as_str()), (Some(0), ""));
    assert!(out(&minimal).starts_with("ok: 1 route"), "{}", out(&minimal));
}

#[test]
fn check_tells_all_that_is_wrong_at_once_on_stderr_and_so_does_run() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("bad.toml");
    let text = "[[listeners]]\naddress = \"127.0.0.1:0\"\n[upstreams.api]\nendpoints = [\"http://127.0.0.1:1\"]\n\
                [policies.p]\nlimits = [{ name = \"l\", key = \"client_ipp\", quota = \"many\" }]\n\
                [[routes]]\npath = \"/*\"\nupstream = \"apo\"\npolicy = [\"p\"]\n";
    std::fs::write(&file, text).unwrap();
    let path = file.to_str().unwrap();
    for arguments in [&["check", path][..], &["run", "--config", path]] {
        let output = staunch(arguments);
        assert_eq!((output.status.code(), out(&output).as_str()), (Some(78), ""));
        let told = err(&output);
        for (line, part) in [(6, "client_ipp"), (6, "many"), (9, "apo"), (10, "policy")] {
            let place = format!("{path}:{line}:");
            assert!(
                told.lines().any(|told| told.starts_with(&place) && told.contains(part)),
                "{place} {part} in\n{told}"
            );
        }
    }
    let missing = staunch(&["run", "--config", "/nowhere/staunch.toml"]);
    assert_eq!(missing.status.code(), Some(78), "{}", err(&missing));
}

#[test]
fn an_address_that_is_taken_is_a_failure_to_run() {
    let upstream = Upstream::start();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("taken.toml");
    let text = format!(
        "[[listeners]]\naddress = \"127.0.0.1:{0}\"\n[upstreams.up]\nendpoints = [\"http://127.0.0.1:{0}\"]\n\
         [[routes]]\npath = \"/*\"\nupstream = \"up\"\n",
        upstream.port
    );
    std::fs::write(&file, text).unwrap();
    let output = staunch(&["run", "--config", file.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(1));
    assert!(err(&output).contains(&format!("127.0.0.1:{}", upstream.port)), "{}", err(&output));
}

#[test]
fn healthcheck_tells_by_its_exit_code() {
    let upstream = Upstream::start();
    let gateway = Gateway::start(upstream.table() + "[[routes]]\npath = \"/*\"\nupstream = \"up\"\n");
    let of = |port: u16| staunch(&["healthcheck", "--admin", &format!("127.0.0.1:{port}")]).status.code();
    assert_eq!(of(gateway.admin), Some(0));
    assert_eq!(of(ports::free()), Some(1));
}

#[test]
fn the_demo_needs_no_file_and_prints_what_to_try() {
    let child =
        Command::new(BINARY).arg("demo").stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn();
    let mut demo = Running(child.unwrap());
    let mut lines = BufReader::new(demo.0.stdout.take().unwrap()).lines().map(Result::unwrap);
    let mut port_of = |name: &str| -> u16 {
        let line = lines.by_ref().find(|line| line.starts_with(name)).unwrap();
        let address = line.split("http://127.0.0.1:").nth(1).unwrap();
        address.split_whitespace().next().unwrap().parse().unwrap()
    };
    let (gateway, admin) = (port_of("gateway"), port_of("admin"));
    let tries: Vec<_> =
        lines.by_ref().take_while(|line| !line.contains("Ctrl-C")).filter(|line| line.contains("curl ")).collect();
    assert_eq!(tries.len(), 3, "{tries:?}");
    let first = client::get(gateway, "/hello", &[]);
    assert_eq!(first.status, 200);
    assert!(first.text().starts_with("GET /hello HTTP/1.1\n"), "{}", first.text());
    assert!(first.field("x-ratelimit-remaining").is_some());
    assert_eq!(client::get(admin, "/readyz", &[]).status, 200);
    let statuses: Vec<_> = (0..4).map(|_| client::get(gateway, "/keyed/", &[("x-api-key", "alice")]).status).collect();
    assert_eq!(statuses, [200, 200, 200, 429]);
    assert_eq!(client::get(gateway, "/keyed/", &[]).status, 400);
    let stopped = Command::new("kill").args(["-INT", &demo.0.id().to_string()]).status().unwrap();
    assert!(stopped.success());
    assert_eq!(demo.0.wait().unwrap().code(), Some(0));
}
