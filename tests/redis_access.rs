//! How the Redis store enters a node: passwords, users, TLS; and that no secret is ever shown.

mod support;

use staunch::algorithm::Algorithm;
use staunch::store::redis::Client;
use staunch::store::{Check, ErrorKind};
use std::process::Command;
use support::log::logged;
use support::redis::RedisServer;
use support::store::{ask, is_degraded, metric, on_a_core, shards, until};

fn check() -> Check {
    support::store::check(1, Algorithm::FixedWindow, 5)
}

#[test]
fn wrong_or_missing_credentials_are_told_at_once_and_never_shown() {
    let server = RedisServer::start_with(&["--requirepass", "right-secret"]);
    let port = server.port();
    for (name, user) in [("wrong", ":wrong-secret@"), ("stranger", "bob:wrong-secret@"), ("missing", "")] {
        let shards = shards(&[(name, format!("redis://{user}127.0.0.1:{port}"))]);
        let said = logged(|| {
            on_a_core(async {
                tokio::spawn(shards.clone().maintain());
                until(|| is_degraded(&shards)).await;
                let error = ask(&Client::new(shards.clone()), check()).await.unwrap_err();
                assert_eq!((error.kind, error.maybe_applied), (ErrorKind::Auth, false), "{name}");
            });
        });
        assert!(metric("staunch_store_errors_total", &format!("kind=\"auth\",shard=\"{name}\"")) >= 1);
        assert!(said.contains("ERROR") && said.contains("authentication failed") && said.contains(name), "{said}");
        assert!(!format!("{said}{shards:?}{:?}", shards.health()).contains("secret"));
    }
    let right = shards(&[("right", format!("redis://:right-secret@127.0.0.1:{port}"))]);
    on_a_core(async {
        assert!(ask(&Client::new(right.clone()), check()).await.unwrap().charged);
    });
    assert!(!format!("{right:?}").contains("secret"));
}

#[test]
fn an_acl_user_that_may_not_run_scripts_is_an_authentication_failure() {
    let users: Vec<_> = "--user bob on >pass ~* +@all -@scripting --user amy on >pass ~* +@all".split(' ').collect();
    let server = RedisServer::start_with(&users);
    let shards = |name, user| shards(&[(name, format!("redis://{user}:pass@127.0.0.1:{}", server.port()))]);
    on_a_core(async {
        let bob = shards("bob", "bob");
        assert_eq!(ask(&Client::new(bob.clone()), check()).await.unwrap_err().kind, ErrorKind::Auth);
        assert!(is_degraded(&bob));
        assert!(ask(&Client::new(shards("amy", "amy")), check()).await.unwrap().charged);
    });
}

#[test]
fn a_node_behind_tls_is_used_if_its_certificate_is_trusted_and_refused_if_not() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let openssl = |arguments: &str| {
        let command =
            arguments.split(' ').map(|word: &str| word.strip_prefix('@').map_or_else(|| word.to_owned(), path));
        let output = Command::new("openssl").args(command).output().expect("openssl is installed");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    };
    std::fs::write(path("names"), "subjectAltName=DNS:localhost,IP:127.0.0.1").unwrap();
    for ca in ["ca", "other"] {
        openssl(&format!(
            "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -subj /CN={ca} -keyout @{ca}.key -out @{ca}.pem"
        ));
    }
    openssl("req -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -subj /CN=node -keyout @node.key -out @node.csr");
    openssl(
        "x509 -req -in @node.csr -CA @ca.pem -CAkey @ca.key -CAcreateserial -days 2 -extfile @names -out @node.pem",
    );
    let plain = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let tls_port = plain.local_addr().unwrap().port();
    drop(plain);
    let (cert, key, ca) = (path("node.pem"), path("node.key"), path("ca.pem"));
    let tls = ["--tls-port", &tls_port.to_string(), "--tls-cert-file", &cert, "--tls-key-file", &key];
    let _server =
        RedisServer::start_with(&[&tls[..], &["--tls-ca-cert-file", &ca, "--tls-auth-clients", "no"]].concat());
    // The trusted roots come from the environment, which belongs to the whole process: hence one process for each case.
    for (roots, expected) in [("ca.pem", "answered"), ("other.pem", "refused")] {
        let child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "over_tls", "--ignored", "--nocapture"])
            .env("SSL_CERT_FILE", path(roots))
            .env("STAUNCH_TEST_TLS_PORT", tls_port.to_string())
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&child.stdout);
        assert!(
            child.status.success() && said.contains(expected),
            "{roots}: {said}{}",
            String::from_utf8_lossy(&child.stderr)
        );
    }
}

#[test]
#[ignore = "a part of the test of TLS, which starts it with the environment it needs"]
fn over_tls() {
    let port = std::env::var("STAUNCH_TEST_TLS_PORT").expect("started by the test of TLS");
    for host in ["localhost", "127.0.0.1"] {
        let shards = shards(&[("tls", format!("rediss://{host}:{port}"))]);
        on_a_core(async {
            match ask(&Client::new(shards.clone()), check()).await {
                Ok(answer) => println!("answered, charged: {}", answer.charged),
                Err(error) => {
                    assert_eq!(error.kind, ErrorKind::Connect);
                    let text = shards.health()[0].last_error.clone().unwrap();
                    assert!(text.contains("certificate"), "{text}");
                    println!("refused: {text}");
                }
            }
        });
    }
}
