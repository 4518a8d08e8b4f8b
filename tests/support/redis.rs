//! A real redis-server for one test: its own process on a free port, nothing saved, ended when dropped.
//!
//! It can be killed, frozen and brought back on the same port; a test that needs Redis and cannot start it fails.
#![allow(clippy::expect_used, clippy::disallowed_methods, reason = "as the tests; benches include this file alone")]

use super::ports;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

const READY_WITHIN: Duration = Duration::from_secs(20);

#[derive(Debug)]
pub struct RedisServer {
    port: u16,
    /// A sentinel writes what it learns into its configuration file.
    file: Option<PathBuf>,
    arguments: Vec<String>,
    /// `None` while killed.
    process: Option<Child>,
}

impl RedisServer {
    pub fn start() -> Self {
        Self::start_with(&[])
    }

    /// With more arguments of redis-server, such as `["--requirepass", "secret"]`.
    pub fn start_with(arguments: &[&str]) -> Self {
        let arguments: Vec<String> = arguments.iter().map(ToString::to_string).collect();
        // Between finding a free port and binding it another test may take it: then another port.
        for _ in 0..10 {
            let mut server = Self { port: ports::free(), file: None, arguments: arguments.clone(), process: None };
            if server.spawn() {
                return server;
            }
        }
        panic!("redis-server did not start on any of ten free ports");
    }

    /// A sentinel that watches over a primary under the name `mymaster`, one of three.
    pub fn sentinel(folder: &Path, primary: &Self, arguments: &[&str]) -> Self {
        Self::sentinel_of(folder, primary.port, arguments)
    }

    /// The same, of a primary's port: that of plain words, or that of TLS.
    pub fn sentinel_of(folder: &Path, primary: u16, arguments: &[&str]) -> Self {
        let text = format!(
            "sentinel monitor mymaster 127.0.0.1 {primary} 2\nsentinel down-after-milliseconds mymaster 1000\n\
             sentinel failover-timeout mymaster 6000\n"
        );
        for _ in 0..10 {
            let port = ports::free();
            let file = folder.join(format!("sentinel-{port}.conf"));
            std::fs::write(&file, &text).expect("a file in a folder of our own");
            let arguments = [&["--sentinel"], arguments].concat().iter().map(ToString::to_string).collect();
            let mut server = Self { port, file: Some(file), arguments, process: None };
            if server.spawn() {
                return server;
            }
        }
        panic!("no sentinel started on any of ten free ports");
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    pub fn address(&self) -> SocketAddr {
        (Ipv4Addr::LOCALHOST, self.port).into()
    }

    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    /// Ends it as a crash would: SIGKILL, everything lost.
    pub fn kill(&mut self) {
        if let Some(mut process) = self.process.take() {
            process.kill().expect("a child can be killed");
            process.wait().expect("a killed child ends");
        }
    }

    /// Freezes it: connections stay open and nothing answers (SIGSTOP).
    pub fn stop(&self) {
        self.signal("-STOP");
    }

    /// Lets a frozen one run on (SIGCONT).
    pub fn cont(&self) {
        self.signal("-CONT");
    }

    /// Kills it if it runs, and starts it empty on the same port.
    pub fn restart(&mut self) {
        self.kill();
        assert!(self.spawn(), "redis-server did not start again on port {}", self.port);
    }

    pub fn is_running(&self) -> bool {
        self.process.is_some()
    }

    /// A connection that asks it directly.
    pub fn ask(&self) -> redis::Connection {
        let client = redis::Client::open(self.url()).expect("a URL of ours");
        client.get_connection().expect("the server answers")
    }

    /// Every key, with its time to live in milliseconds; -1 is none.
    pub fn lives(&self) -> Vec<(Vec<u8>, i64)> {
        let mut server = self.ask();
        let keys: Vec<Vec<u8>> = redis::cmd("KEYS").arg("*").query(&mut server).expect("KEYS");
        let life = |key: Vec<u8>| {
            let left = redis::cmd("PTTL").arg(&key).query(&mut server).expect("PTTL");
            (key, left)
        };
        keys.into_iter().map(life).collect()
    }

    fn signal(&self, signal: &str) {
        let process = self.process.as_ref().expect("the server was killed");
        let status = Command::new("kill").args([signal, &process.id().to_string()]).status().expect("kill runs");
        assert!(status.success(), "kill {signal} failed");
    }

    /// Starts the process and waits until it answers; false when it ended instead (the port was taken).
    fn spawn(&mut self) -> bool {
        let mut process = Command::new("redis-server")
            .args(&self.file)
            .args(["--port", &self.port.to_string(), "--bind", "127.0.0.1"])
            .args(["--save", "", "--appendonly", "no", "--dir", "/tmp", "--daemonize", "no", "--loglevel", "warning"])
            .args(&self.arguments)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("redis-server is installed");
        let started = staunch::clock::now();
        while started.elapsed() < READY_WITHIN {
            if process.try_wait().expect("a child can be asked").is_some() {
                return false;
            }
            if answers(self.address()) {
                self.process = Some(process);
                return true;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        process.kill().expect("a child can be killed");
        process.wait().expect("a killed child ends");
        false
    }
}

impl Drop for RedisServer {
    fn drop(&mut self) {
        self.kill();
    }
}

/// `+PONG`, or `-NOAUTH` from one that wants a password: both mean it is up. Not so `-LOADING`.
fn answers(address: SocketAddr) -> bool {
    let Ok(mut stream) = TcpStream::connect_timeout(&address, Duration::from_secs(1)) else { return false };
    let mut reply = [0; 5];
    stream.set_read_timeout(Some(Duration::from_secs(1))).is_ok()
        && stream.write_all(b"PING\r\n").is_ok()
        && stream.read_exact(&mut reply).is_ok()
        && (&reply == b"+PONG" || &reply == b"-NOAU")
}
