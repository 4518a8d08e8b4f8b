//! How the Redis store enters a node: passwords, users, TLS; and that no secret is ever shown.

mod support;

use staunch::algorithm::Algorithm;
use staunch::store::redis::Client;
use staunch::store::{Check, ErrorKind};
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
