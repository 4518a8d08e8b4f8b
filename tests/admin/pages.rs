//! What is served, and what a call that is not served is told.

use crate::process::{BEARER, TOKEN, call, process, with};
use staunch::admin::{Counter, Readiness};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

#[test]
fn every_page_is_served_to_this_host_without_a_token() {
    with(&process(Some(TOKEN)), async |address| {
        for (path, kind) in [
            ("/healthz", "text/plain; charset=utf-8"),
            ("/readyz", "text/plain; charset=utf-8"),
            ("/metrics", "text/plain; version=0.0.4; charset=utf-8"),
            ("/status", "application/json"),
            ("/top", "application/json"),
            ("/", "text/html; charset=utf-8"),
        ] {
            let answer = call(address, &format!("GET {path}"), &[]).await;
            assert_eq!(answer.status, 200, "{path}");
            assert!(
                answer.has(&format!("content-type: {kind}")) && answer.has("cache-control: no-store"),
                "{}",
                answer.head
            );
            assert!(!answer.body.is_empty());
            let head = call(address, &format!("HEAD {path}"), &[]).await;
            assert_eq!((head.status, head.body.as_str()), (200, ""), "{path}");
        }
    });
}

#[test]
fn readiness_follows_the_process_and_names_degraded_shards() {
    let process = process(None);
    with(&process, async |address| {
        for (readiness, status, body) in [
            (Readiness::Starting, 503, "starting\n"),
            (Readiness::Ready { degraded: vec![] }, 200, "ok\n"),
            (Readiness::Ready { degraded: vec!["n0".into(), "n2".into()] }, 200, "ok, store degraded: n0, n2\n"),
            (Readiness::Draining, 503, "draining\n"),
        ] {
            process.readiness.replace(readiness);
            let answer = call(address, "GET /readyz", &[]).await;
            assert_eq!((answer.status, answer.body.as_str()), (status, body));
            assert_eq!(call(address, "GET /healthz", &[]).await.status, 200);
        }
    });
}

#[test]
fn status_and_top_have_their_documented_shapes() {
    with(&process(None), async |address| {
        let status = call(address, "GET /status", &[]).await.json();
        assert_eq!(
            (&status["state"], &status["version"], &status["uptime_seconds"]),
            (&"ready".into(), &"0.1.0".into(), &5.into())
        );
        assert_eq!(status["configuration"]["last_error"]["problems"], "\"papyrus\"");
        assert_eq!(status["store"]["shards"][0]["name"], "n0");
        assert_eq!(status["limits"][0]["totals"]["allowed"], 7);
        let top = call(address, "GET /top", &[]).await.json();
        let first = serde_json::json!({"policy": "p", "limit": "l", "key": "192.0.2.7", "refusals": 30, "error": 0});
        assert_eq!((&top["keys"][0], &top["keys"][1]["key"]), (&first, &"#ffffff".into()));
    });
}

#[test]
fn the_page_for_people_escapes_what_it_shows_and_runs_nothing() {
    with(&process(None), async |address| {
        let page = call(address, "GET /", &[]).await;
        assert!(page.body.contains("<html") && page.body.contains("/etc/&lt;staunch&gt;.toml"));
        assert!(page.body.contains("<pre>&quot;papyrus&quot;</pre>") && !page.body.contains("<script"));
        assert!(page.head.contains("content-security-policy: default-src 'none'"));
    });
}

#[test]
fn a_counter_is_named_by_its_path_and_its_key_by_the_query() {
    let process = process(Some(TOKEN));
    with(&process, async |address| {
        let view = call(address, "GET /limits/p/l%2F1?key=a&key=b", &[]).await;
        assert_eq!((view.status, &view.json()["remaining"], &view.json()["limit"]), (200, &2.into(), &"l/1".into()));
        for (path, status) in [
            ("/limits/p/nothing?key=a", 404),
            ("/limits/p?key=a", 404),
            ("/limits/p/l/x?key=a", 404),
            ("/limits//l?key=a", 404),
            ("/limits/p/address?key=a", 400),
            ("/limits/p/away?key=a", 503),
            ("/limits/p/l?key=%4", 400),
            ("/limits/p/l?key=%zz", 400),
            ("/limits/p/%FF?key=a", 400),
            ("/limits/p/l?kye=a", 400),
        ] {
            let answer = call(address, &format!("GET {path}"), &[]).await;
            assert_eq!(answer.status, status, "{path}");
            assert_eq!(answer.json()["status"], status, "{path}");
        }
        assert_eq!(call(address, "DELETE /limits/p/l?key=%00%ff+", &[BEARER]).await.status, 200);
        let expected = Counter { policy: "p".into(), limit: "l".into(), key: vec![vec![0, 0xff, b'+']] };
        assert_eq!(*process.reset.borrow(), [expected]);
    });
}

#[test]
fn a_rejected_reload_answers_with_the_problems() {
    let process = process(Some(TOKEN));
    process.bad_file.set(true);
    with(&process, async |address| {
        let answer = call(address, "POST /reload", &[BEARER]).await;
        assert_eq!((answer.status, answer.body.as_str()), (422, "staunch.toml:1:1: quota: no; yes\n"));
    });
}

#[test]
fn other_paths_and_methods_are_told_what_there_is() {
    with(&process(Some(TOKEN)), async |address| {
        assert_eq!(call(address, "GET /nothing-here", &[]).await.json()["status"], 404);
        for (line, allow) in [
            ("GET /reload", "POST"),
            ("POST /status", "GET, HEAD"),
            ("OPTIONS /metrics", "GET, HEAD"),
            ("PUT /limits/p/l?key=k", "GET, HEAD, DELETE"),
        ] {
            let answer = call(address, line, &[BEARER]).await;
            assert_eq!(answer.status, 405, "{line}");
            assert!(answer.has(&format!("allow: {allow}")), "{}", answer.head);
        }
    });
}

#[test]
fn more_callers_than_fit_wait_for_their_turn() {
    with(&process(None), async |address| {
        let mut idle = Vec::new();
        for _ in 0..64 {
            idle.push(TcpStream::connect(address).await.unwrap());
        }
        let late = call(address, "GET /healthz", &[]);
        tokio::pin!(late);
        // Every one of the 64 has its connection before the late one, and answers while that waits.
        for stream in &mut idle {
            stream.write_all(b"GET /healthz HTTP/1.1\r\n\r\n").await.unwrap();
            let mut byte = [0];
            tokio::select! {
                read = stream.read_exact(&mut byte) => { read.unwrap(); }
                _ = &mut late => panic!("a 65th connection was served"),
            }
        }
        idle.pop();
        assert_eq!(late.await.status, 200);
    });
}
