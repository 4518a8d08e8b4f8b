//! The admin listener over a real socket, in front of a process made of fixed answers.

use staunch::admin::status::{
    Configuration, Endpoint, Limit, Listener, RejectedReload, Shard, Store, Totals, Upstream,
};
use staunch::admin::{self, Control, ControlError, Counter, CounterView, Readiness, Status};
use staunch::telemetry::top::{Named, Refused, hashed};
use staunch::units::Secret;
use std::cell::{Cell, RefCell};
use std::net::SocketAddr;
use std::rc::Rc;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

const TOKEN: &str = "s3cret";
const BEARER: &str = "Authorization: Bearer s3cret";

struct Process {
    token: Option<&'static str>,
    readiness: RefCell<Readiness>,
    bad_file: Cell<bool>,
    reset: RefCell<Vec<Counter>>,
}

impl Control for Process {
    fn readiness(&self) -> Readiness {
        self.readiness.borrow().clone()
    }

    fn status(&self) -> Status {
        status()
    }

    fn token(&self) -> Option<Secret> {
        self.token.map(|token| Secret::new(token.to_owned()))
    }

    fn worst(&self) -> Vec<Refused> {
        let named = |key: String| Named { policy: "p".into(), limit: "l".into(), key };
        vec![
            Refused { named: named("192.0.2.7".into()), refusals: 30, error: 0 },
            Refused { named: named(hashed(u128::MAX)), refusals: 3, error: 1 },
        ]
    }

    async fn reload(&self) -> Result<(), String> {
        if self.bad_file.get() { Err("staunch.toml:1:1: quota: no; yes\n".to_owned()) } else { Ok(()) }
    }

    async fn inspect(&self, counter: &Counter) -> Result<CounterView, ControlError> {
        match counter.limit.as_str() {
            "l/1" => Ok(CounterView {
                policy: counter.policy.clone(),
                limit: counter.limit.clone(),
                algorithm: "token_bucket".to_owned(),
                quota: "3/1h".to_owned(),
                capacity: 3,
                remaining: u64::try_from(counter.key.len()).unwrap(),
                reset_ms: 1,
                shard: None,
            }),
            "away" => Err(ControlError::Unavailable("Shard n0 does not answer.".to_owned())),
            "address" => Err(ControlError::BadKey("The key is an address.".to_owned())),
            _ => Err(ControlError::Unknown("No such limit.".to_owned())),
        }
    }

    async fn reset(&self, counter: &Counter) -> Result<(), ControlError> {
        self.reset.borrow_mut().push(counter.clone());
        Ok(())
    }
}

fn status() -> Status {
    Status {
        version: "0.1.0".to_owned(),
        commit: "abc".to_owned(),
        uptime_seconds: 5,
        configuration: Configuration {
            file: "/etc/<staunch>.toml".to_owned(),
            hash: "0011".to_owned(),
            loaded_at: "2026-11-30T17:41:00.000000Z".to_owned(),
            last_error: Some(RejectedReload {
                at: "2026-11-30T17:42:00.000000Z".to_owned(),
                problems: "\"papyrus\"".to_owned(),
            }),
        },
        listeners: vec![Listener { address: "127.0.0.1:8080".to_owned(), connections: 2 }],
        store: Store {
            backend: "redis",
            memory_keys: 0,
            shards: vec![Shard {
                name: "n0".to_owned(),
                state: "down",
                degraded: true,
                last_error: Some("timeout".to_owned()),
            }],
        },
        upstreams: vec![Upstream {
            name: "api".to_owned(),
            endpoints: vec![Endpoint { address: "127.0.0.1:3000".to_owned(), state: "up", weight: 1 }],
        }],
        limits: vec![Limit {
            policy: "p".to_owned(),
            limit: "l".to_owned(),
            algorithm: "fixed_window".to_owned(),
            quota: "3/1h".to_owned(),
            mode: "enforce",
            totals: Totals { allowed: 7, ..Totals::default() },
        }],
    }
}

struct Answer {
    status: u16,
    head: String,
    body: String,
}

impl Answer {
    fn json(&self) -> serde_json::Value {
        serde_json::from_str(&self.body).unwrap()
    }

    fn has(&self, field: &str) -> bool {
        self.head.lines().any(|line| line.eq_ignore_ascii_case(field))
    }
}

/// One call on a connection of its own, `Host` as a browser on this host would send it unless the fields bring one.
async fn call(address: SocketAddr, line: &str, fields: &[&str]) -> Answer {
    let mut stream = TcpStream::connect(address).await.unwrap();
    let host = if fields.iter().any(|field| field.starts_with("Host:")) {
        String::new()
    } else {
        format!("Host: {address}\r\n")
    };
    let fields: String = fields.iter().map(|field| format!("{field}\r\n")).collect();
    stream.write_all(format!("{line} HTTP/1.1\r\n{host}{fields}Connection: close\r\n\r\n").as_bytes()).await.unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).await.unwrap();
    let (head, body) = text.split_once("\r\n\r\n").unwrap();
    Answer { status: head[9..12].parse().unwrap(), head: head.to_owned(), body: body.to_owned() }
}

fn process(token: Option<&'static str>) -> Rc<Process> {
    Rc::new(Process {
        token,
        readiness: RefCell::new(Readiness::Ready { degraded: vec![] }),
        bad_file: Cell::new(false),
        reset: RefCell::default(),
    })
}

/// Serves a process while a test talks to it.
fn with(process: &Rc<Process>, test: impl AsyncFnOnce(SocketAddr)) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::select! {
            () = admin::serve(listener, process.clone()) => panic!("the listener ended"),
            () = test(address) => {}
        }
    });
}

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
fn what_changes_something_needs_the_token() {
    let process = process(Some(TOKEN));
    with(&process, async |address| {
        for line in ["POST /reload", "DELETE /limits/p/l?key=k"] {
            for fields in [
                &[][..],
                &["Authorization: Bearer wrong"],
                &["Authorization: Basic s3cret"],
                &["Authorization: Bearer "],
            ] {
                let answer = call(address, line, fields).await;
                assert_eq!(answer.status, 401, "{line} {fields:?}");
                assert!(answer.has("www-authenticate: Bearer"));
            }
            assert_eq!(call(address, line, &[BEARER, BEARER]).await.status, 401, "two credentials are none");
            assert!(process.reset.borrow().is_empty());
            let answer = call(address, line, &["Authorization: bearer s3cret"]).await;
            assert_eq!((answer.status, answer.body.as_str()), (200, "ok\n"));
        }
        assert_eq!(process.reset.borrow().len(), 1);
    });
}

#[test]
fn without_a_configured_token_nothing_can_be_changed() {
    for token in [None, Some("")] {
        with(&process(token), async |address| {
            let answer = call(address, "POST /reload", &["Authorization: Bearer "]).await;
            assert_eq!(answer.status, 403);
            assert!(answer.json()["detail"].as_str().unwrap().contains("admin.token"));
        });
    }
}

#[test]
fn another_sites_page_can_neither_change_nor_read() {
    with(&process(Some(TOKEN)), async |address| {
        let own = format!("Origin: http://{address}");
        for (field, status) in [
            ("Origin: https://evil.example", 403),
            ("Origin: null", 403),
            ("Sec-Fetch-Site: cross-site", 403),
            ("Sec-Fetch-Site: same-site", 403),
            ("Sec-Fetch-Site: same-origin", 200),
            (own.as_str(), 200),
        ] {
            assert_eq!(call(address, "POST /reload", &[BEARER, field]).await.status, status, "{field}");
        }
        let rebound = ["Host: evil.example", "Origin: http://evil.example"];
        assert_eq!(call(address, "POST /reload", &[BEARER, rebound[0], rebound[1]]).await.status, 403);
        for (host, status) in [
            ("Host: evil.example", 403),
            ("Host: 127.0.0.1.evil.example:9090", 403),
            ("Host: localhost@evil.example", 403),
            ("Host: localhost:9090", 200),
            ("Host: LOCALHOST.", 200),
            ("Host: [::1]:9090", 200),
            ("Host: 10.0.0.1", 200),
        ] {
            assert_eq!(call(address, "GET /status", &[host]).await.status, status, "{host}");
        }
        assert_eq!(call(address, "GET http://evil.example/status", &[]).await.status, 403, "the target's host counts");
        assert_eq!(call(address, "GET /status", &["Host: admin.internal", BEARER]).await.status, 200);
        assert_eq!(call(address, "GET /readyz", &["Host: admin.internal"]).await.status, 200);
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
fn a_caller_from_elsewhere_needs_the_token_even_to_read() {
    use http::HeaderMap;
    use staunch::admin::access::{Caller, Need};
    let with_token: HeaderMap = [(http::header::AUTHORIZATION, BEARER[15..].parse().unwrap())].into_iter().collect();
    let (without, token) = (HeaderMap::new(), Secret::new(TOKEN.to_owned()));
    let may = |peer: &str, headers, need, token: Option<&Secret>| {
        let caller = Caller { peer: peer.parse().unwrap(), headers, authority: None };
        caller.may(need, token).map_err(|denied| denied.response().status().as_u16())
    };
    for peer in ["192.0.2.7", "::ffff:192.0.2.7", "2001:db8::1"] {
        assert_eq!(may(peer, &without, Need::Probe, None), Ok(()));
        assert_eq!(may(peer, &without, Need::Read, Some(&token)), Err(401));
        assert_eq!(may(peer, &without, Need::Read, None), Err(403));
        assert_eq!(may(peer, &with_token, Need::Read, Some(&token)), Ok(()));
        assert_eq!(may(peer, &with_token, Need::Change, Some(&token)), Ok(()));
    }
    for peer in ["127.0.0.1", "127.9.9.9", "::1", "::ffff:127.0.0.1"] {
        assert_eq!(may(peer, &without, Need::Read, Some(&token)), Ok(()));
        assert_eq!(may(peer, &without, Need::Change, Some(&token)), Err(401));
    }
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
