//! A process made of fixed answers behind the admin listener, and a caller of it.

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

pub const TOKEN: &str = "s3cret";
pub const BEARER: &str = "Authorization: Bearer s3cret";

pub struct Process {
    pub token: Option<&'static str>,
    pub readiness: RefCell<Readiness>,
    pub bad_file: Cell<bool>,
    pub reset: RefCell<Vec<Counter>>,
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
            gateways: 2,
            shards: vec![Shard {
                name: "n0".to_owned(),
                state: "down",
                degraded: true,
                last_error: Some("timeout".to_owned()),
                clock_skew_ms: Some(-3),
            }],
        },
        upstreams: vec![Upstream {
            name: "api".to_owned(),
            endpoints: vec![Endpoint {
                address: "127.0.0.1:3000".to_owned(),
                resolved: vec!["127.0.0.1".to_owned()],
                state: "ejected",
                since: "2026-11-30T23:00:00Z".to_owned(),
                weight: 1,
                connections: 3,
                requests: None,
                last_error: Some("no connection".to_owned()),
            }],
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

pub struct Answer {
    pub status: u16,
    pub head: String,
    pub body: String,
}

impl Answer {
    pub fn json(&self) -> serde_json::Value {
        serde_json::from_str(&self.body).unwrap()
    }

    pub fn has(&self, field: &str) -> bool {
        self.head.lines().any(|line| line.eq_ignore_ascii_case(field))
    }
}

/// One call on a connection of its own, `Host` as a browser on this host would send it unless the fields bring one.
pub async fn call(address: SocketAddr, line: &str, fields: &[&str]) -> Answer {
    let mut stream = TcpStream::connect(address).await.unwrap();
    let host = if fields.iter().any(|field| field.starts_with("Host:")) {
        String::new()
    } else {
        format!("Host: {address}\r\n")
    };
    let fields = fields.iter().fold(String::new(), |all, field| all + field + "\r\n");
    stream.write_all(format!("{line} HTTP/1.1\r\n{host}{fields}Connection: close\r\n\r\n").as_bytes()).await.unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).await.unwrap();
    let (head, body) = text.split_once("\r\n\r\n").unwrap();
    Answer { status: head[9..12].parse().unwrap(), head: head.to_owned(), body: body.to_owned() }
}

pub fn process(token: Option<&'static str>) -> Rc<Process> {
    Rc::new(Process {
        token,
        readiness: RefCell::new(Readiness::Ready { degraded: vec![] }),
        bad_file: Cell::new(false),
        reset: RefCell::default(),
    })
}

/// Serves a process while a test talks to it.
pub fn with(process: &Rc<Process>, test: impl AsyncFnOnce(SocketAddr)) {
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
