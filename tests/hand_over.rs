//! One process follows another on the same addresses, under load: no connection is refused, and no request fails.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test stops at the first surprise")]

mod support;

use std::fs;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::JoinHandle;
use support::client;
use support::gateway::{BINARY, Setup};
use support::ports;
use support::upstream::Upstream;
use support::wait::{PATIENCE, eventually};

const ROUTES: &str = "[[routes]]\npath = \"/*\"\nupstream = \"up\"\n";
const CLIENTS: usize = 4;

/// Clients that connect, ask once and close, all the time.
struct Load {
    end: Arc<AtomicBool>,
    served: Arc<AtomicUsize>,
    clients: Vec<JoinHandle<Vec<String>>>,
}

impl Load {
    fn start(port: u16) -> Self {
        let (end, served) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
        let client = |_| {
            let (end, served) = (end.clone(), served.clone());
            std::thread::spawn(move || {
                let mut failures = Vec::new();
                while !end.load(Ordering::Relaxed) {
                    match ask(port) {
                        Ok(answer) if answer.starts_with("HTTP/1.1 200") => _ = served.fetch_add(1, Ordering::Relaxed),
                        Ok(answer) => failures.push(format!("answered {answer:?}")),
                        Err(error) => failures.push(error.to_string()),
                    }
                }
                failures
            })
        };
        let clients = (0..CLIENTS).map(client).collect();
        Self { end, served, clients }
    }

    /// Waits for so many more answers.
    fn goes_on(&self, answers: usize) {
        let until = self.served.load(Ordering::Relaxed) + answers;
        eventually("the load goes on", || self.served.load(Ordering::Relaxed) >= until);
    }

    fn end(self) -> Vec<String> {
        self.end.store(true, Ordering::Relaxed);
        self.clients.into_iter().flat_map(|client| client.join().unwrap()).collect()
    }
}

fn ask(port: u16) -> std::io::Result<String> {
    let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port))?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.write_all(b"GET / HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n")?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    Ok(answer)
}

#[test]
fn a_process_takes_over_from_another_under_load() {
    let upstream = Upstream::start();
    let setup = Setup::new(upstream.table() + ROUTES);
    let mut current = setup.start();
    let refused = Command::new(BINARY).args(["run", "--config"]).arg(&current.file).output().unwrap();
    assert_eq!(refused.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&refused.stderr).contains("cannot listen on"), "a second process by mistake");

    let load = Load::start(current.port);
    load.goes_on(100);
    for _ in 0..3 {
        let mut next = setup.clone().arguments(&["--take-over"]).start_beside(&current);
        load.goes_on(100);
        current.signal("-TERM");
        assert_eq!(current.ends().code(), Some(0), "{}", current.log());
        load.goes_on(100);
        std::mem::swap(&mut current, &mut next);
    }
    assert_eq!(load.end(), Vec::<String>::new());
}

/// A process with a socket at descriptor 3, as systemd passes it.
fn activated(config: &Path, socket: &TcpListener) -> Child {
    let socket: OwnedFd = socket.try_clone().unwrap().into();
    Command::new("sh")
        .args(["-c", "export LISTEN_PID=$$ LISTEN_FDS=1; exec \"$0\" run --config \"$1\" 3<&0 </dev/null", BINARY])
        .arg(config)
        .stdin(Stdio::from(socket))
        .stderr(Stdio::null())
        .spawn()
        .unwrap()
}

#[test]
fn an_inherited_socket_outlives_the_processes_that_serve_it() {
    let upstream = Upstream::start();
    let socket = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let (port, admin) = (socket.local_addr().unwrap().port(), ports::free());
    let folder = tempfile::tempdir().unwrap();
    let config = folder.path().join("staunch.toml");
    let (table, ready) =
        (upstream.table(), || client::try_get(admin, "/readyz").is_some_and(|answer| answer.status == 200));
    let text = format!(
        "[[listeners]]\naddress = \"127.0.0.1:{port}\"\n[admin]\naddress = \"127.0.0.1:{admin}\"\n{table}{ROUTES}"
    );
    fs::write(&config, text).unwrap();
    let mut process = activated(&config, &socket);
    let load = Load::start(port);
    for _ in 0..3 {
        eventually("it is ready", ready);
        load.goes_on(100);
        let killed = Command::new("kill").args(["-TERM", &process.id().to_string()]).status().unwrap();
        assert!(killed.success());
        assert_eq!(process.wait().unwrap().code(), Some(0));
        process = activated(&config, &socket);
    }
    load.goes_on(100);
    let failures = load.end();
    process.kill().unwrap();
    process.wait().unwrap();
    assert_eq!(failures, Vec::<String>::new());
}
