//! The program as an operator starts it: its own process, a file, two ports; ended when dropped.
//!
//! A test writes the file without `[[listeners]]` and `[admin]`; those are put in front of it here.

use super::client::{self, Answer};
use super::ports;
use super::wait::{PATIENCE, eventually};
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex};
use tempfile::TempDir;

pub const BINARY: &str = env!("CARGO_BIN_EXE_staunch");
pub const TOKEN: &str = "an-admin-token-that-nobody-may-see";

/// What to start; `Setup::new(text).start()` is the usual.
#[derive(Clone, Debug, Default)]
pub struct Setup {
    text: String,
    listener: String,
    arguments: Vec<String>,
    variables: Vec<(String, String)>,
    clock: Vec<(&'static str, String)>,
}

impl Setup {
    pub fn new(text: impl Into<String>) -> Self {
        Self { text: text.into(), ..Self::default() }
    }

    /// More lines of the listener's table.
    pub fn listener(mut self, lines: &str) -> Self {
        lines.clone_into(&mut self.listener);
        self
    }

    pub fn arguments(mut self, arguments: &[&str]) -> Self {
        self.arguments.extend(arguments.iter().map(ToString::to_string));
        self
    }

    pub fn variable(mut self, name: &str, value: &str) -> Self {
        self.variables.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Turns the process's clock, as faketime says it: `+1h`.
    pub fn clock(mut self, offset: &str) -> Self {
        self.clock.push(("FAKETIME", offset.to_owned()));
        self
    }

    /// The same, as the file says whenever the process looks at its clock; durations are real.
    pub fn clock_by(mut self, file: &Path) -> Self {
        self.clock.push(("FAKETIME_TIMESTAMP_FILE", file.display().to_string()));
        self.clock.extend([("FAKETIME_NO_CACHE", "1".to_owned()), ("DONT_FAKE_MONOTONIC", "1".to_owned())]);
        self
    }

    pub fn start(&self) -> Gateway {
        self.start_in(|folder, text| {
            let path = folder.join("staunch.toml");
            fs::write(&path, text).expect("a file in a folder of our own");
            path
        })
    }

    /// `publish` puts the text where it belongs in the folder, and tells the path to give to the program.
    pub fn start_in(&self, publish: impl Fn(&Path, &str) -> PathBuf) -> Gateway {
        // Another process of the machine may take a port between the look and the binding: then others.
        for _ in 0..5 {
            let folder = tempfile::tempdir().expect("a folder");
            let (port, admin) = (ports::free(), ports::free());
            let file = publish(folder.path(), &with_ports(&self.text, &self.listener, port, admin));
            let (process, log) = self.spawn(&file);
            let folder = Arc::new(folder);
            let mut gateway = Gateway { process, port, admin, folder, file, listener: self.listener.clone(), log };
            if gateway.comes_up() {
                return gateway;
            }
            assert!(gateway.log().contains("cannot listen on"), "it did not start:\n{}", gateway.log());
        }
        panic!("no free ports");
    }

    /// A second process with another's file and addresses, once it is ready.
    pub fn start_beside(&self, other: &Gateway) -> Gateway {
        let (process, log) = self.spawn(&other.file);
        let (file, folder, listener) = (other.file.clone(), other.folder.clone(), other.listener.clone());
        let gateway = Gateway { process, port: other.port, admin: other.admin, folder, file, listener, log };
        // Its admin address would be answered by either.
        eventually("the second process is ready", || gateway.log().contains(" ready: "));
        gateway
    }

    fn spawn(&self, file: &Path) -> (Child, Arc<Mutex<String>>) {
        let mut command = Command::new(BINARY);
        if !self.clock.is_empty() {
            // Not through the `faketime` command: it starts the program as a child that would outlive it.
            command.env("LD_PRELOAD", faketime()).envs(self.clock.iter().map(|(name, value)| (name, value)));
        }
        command.args(["run", "--config"]).arg(file).args(&self.arguments);
        command.envs(self.variables.iter().map(|(name, value)| (name, value)));
        let mut process = command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the program can be started");
        let log = Arc::new(Mutex::new(String::new()));
        let (lines, kept) = (BufReader::new(process.stderr.take().expect("piped")).lines(), log.clone());
        std::thread::spawn(move || {
            for line in lines.map_while(Result::ok) {
                let mut kept = kept.lock().expect("nobody panics while holding it");
                kept.push_str(&line);
                kept.push('\n');
            }
        });
        (process, log)
    }
}

/// Debian's library that turns a process's clock.
fn faketime() -> PathBuf {
    let folders = fs::read_dir("/usr/lib").expect("a Linux system").flatten();
    let mut libraries = folders.map(|folder| folder.path().join("faketime/libfaketime.so.1"));
    libraries.find(|library| library.exists()).expect("Debian's package faketime is installed")
}

/// The whole file.
fn with_ports(text: &str, listener: &str, port: u16, admin: u16) -> String {
    format!(
        "[[listeners]]\naddress = \"127.0.0.1:{port}\"\n{listener}\n\n\
         [admin]\naddress = \"127.0.0.1:{admin}\"\ntoken = \"{TOKEN}\"\n\n{text}"
    )
}

#[derive(Debug)]
pub struct Gateway {
    process: Child,
    pub port: u16,
    pub admin: u16,
    folder: Arc<TempDir>,
    pub file: PathBuf,
    listener: String,
    log: Arc<Mutex<String>>,
}

impl Gateway {
    pub fn start(text: impl Into<String>) -> Self {
        Setup::new(text).start()
    }

    /// False when it ended instead.
    fn comes_up(&mut self) -> bool {
        let begun = staunch::clock::now();
        while begun.elapsed() < PATIENCE {
            if self.process.try_wait().expect("a child can be asked").is_some() {
                // What it said last may still be on its way through the pipe.
                std::thread::sleep(std::time::Duration::from_millis(50));
                return false;
            }
            if client::try_get(self.admin, "/readyz").is_some_and(|answer| answer.status == 200) {
                return true;
            }
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
        panic!("not ready:\n{}", self.log());
    }

    pub fn get(&self, path: &str) -> Answer {
        client::get(self.port, path, &[])
    }

    pub fn get_as(&self, key: &str, path: &str) -> Answer {
        client::get(self.port, path, &[("x-key", key)])
    }

    pub fn ask_admin(&self, path: &str) -> Answer {
        client::get(self.admin, path, &[])
    }

    pub fn metrics(&self) -> String {
        self.ask_admin("/metrics").text()
    }

    /// The sum over the lines of this name that hold all the labels.
    pub fn metric(&self, name: &str, labels: &[&str]) -> f64 {
        let page = self.metrics();
        let lines = page.lines().filter(|line| {
            line.strip_prefix(name).is_some_and(|rest| rest.starts_with([' ', '{']))
                && labels.iter().all(|label| line.contains(label))
        });
        lines.map(|line| line.rsplit(' ').next().and_then(|value| value.parse::<f64>().ok()).expect("a number")).sum()
    }

    /// What is left on a counter, and the shard where it lives.
    pub fn counter(&self, names: &str, key: &str) -> (u64, String) {
        let answer = self.ask_admin(&format!("/limits/{names}?key={key}"));
        assert_eq!(answer.status, 200, "{}", answer.text());
        let view = answer.json();
        let remaining = view["remaining"].as_u64().expect("a number");
        (remaining, view["shard"].as_str().unwrap_or_default().to_owned())
    }

    pub fn log(&self) -> String {
        self.log.lock().expect("nobody panics while holding it").clone()
    }

    /// The whole file with another text below listener and admin.
    pub fn whole(&self, text: &str) -> String {
        with_ports(text, &self.listener, self.port, self.admin)
    }

    /// Writes the file in place.
    pub fn rewrite(&self, text: &str) {
        fs::write(&self.file, self.whole(text)).expect("a file of our own");
    }

    pub fn reload(&self) -> Answer {
        let mut admin = client::Connection::open(self.admin);
        admin.send(format!(
            "POST /reload HTTP/1.1\r\nhost: 127.0.0.1\r\nauthorization: Bearer {TOKEN}\r\ncontent-length: 0\r\n\r\n"
        ));
        admin.answer()
    }

    pub fn signal(&self, signal: &str) {
        let status = Command::new("kill").args([signal, &self.pid().to_string()]).status().expect("kill runs");
        assert!(status.success());
    }

    pub fn has_ended(&mut self) -> bool {
        self.process.try_wait().expect("a child can be asked").is_some()
    }

    pub fn ends(&mut self) -> ExitStatus {
        let mut status = None;
        eventually("the gateway's end", || {
            status = self.process.try_wait().expect("a child can be asked");
            status.is_some()
        });
        status.expect("just seen")
    }

    fn pid(&self) -> u32 {
        self.process.id()
    }

    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// Files and sockets that it has open.
    pub fn files(&self) -> usize {
        fs::read_dir(format!("/proc/{}/fd", self.pid())).expect("a process of ours").count()
    }

    /// Resident memory now, and the most it ever was, in KiB.
    pub fn memory_kib(&self) -> (u64, u64) {
        let status = fs::read_to_string(format!("/proc/{}/status", self.pid())).expect("a process of ours");
        let field = |name: &str| {
            let line = status.lines().find(|line| line.starts_with(name)).expect("Linux tells it");
            line.split_whitespace().nth(1).and_then(|value| value.parse().ok()).expect("a number of KiB")
        };
        (field("VmRSS:"), field("VmHWM:"))
    }
}

impl Drop for Gateway {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
        if std::thread::panicking() {
            let log = self.log();
            let from = log.len().saturating_sub(3000);
            eprintln!("--- the end of the gateway's log\n{}", log.get(from..).unwrap_or(&log));
        }
    }
}
