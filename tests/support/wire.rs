//! The wire itself: a gateway as a process of its own, an upstream that answers given octets and keeps what it got, and a
//! client that sends given octets and reads answers by the book. Whoever waits too long panics: nothing may hang.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

/// Longer than any time-out of the gateway under test: a read that takes so long is a hang.
const HANG: Duration = Duration::from_secs(15);
/// So that two pieces arrive as two reads.
const APART: Duration = Duration::from_millis(25);

/// A gateway in front of one upstream.
#[derive(Debug)]
pub struct Gateway {
    process: Child,
    pub address: SocketAddr,
    _directory: tempfile::TempDir,
}

impl Gateway {
    /// `listener` and `route` are further lines of their tables.
    pub fn start(upstream: SocketAddr, listener: &str, route: &str) -> Self {
        // Between finding a free port and binding it another test may take it: then another port.
        let started = (0..10).find_map(|_| Self::try_start(upstream, listener, route));
        started.expect("the gateway did not start on any of ten free ports")
    }

    fn try_start(upstream: SocketAddr, listener: &str, route: &str) -> Option<Self> {
        let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("staunch.toml");
        let text = format!(
            "[[listeners]]\naddress = \"{address}\"\n{listener}\n[upstreams.wire]\nendpoints = [\"http://{upstream}\"]\n\
             response_timeout = \"3s\"\n[[routes]]\npath = \"/*\"\nupstream = \"wire\"\n{route}\n"
        );
        std::fs::write(&file, text).unwrap();
        let mut process = Command::new(env!("CARGO_BIN_EXE_staunch"))
            .args(["run", "--drain", "0s", "--config"])
            .arg(&file)
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut log = BufReader::new(process.stderr.take().unwrap());
        let mut line = String::new();
        while !line.contains(" ready: ") {
            line.clear();
            if log.read_line(&mut line).unwrap() == 0 {
                let _ = process.wait();
                return None;
            }
        }
        thread::spawn(move || std::io::copy(&mut log, &mut std::io::sink()));
        Some(Self { process, address, _directory: directory })
    }
}

impl Drop for Gateway {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// A request as the upstream read it, strictly.
#[derive(Clone, Debug)]
pub struct Seen {
    /// Request line and field lines, without the empty one.
    pub head: String,
    pub body: Vec<u8>,
    pub trailers: String,
}

impl Seen {
    pub fn target(&self) -> &str {
        self.head.split(' ').nth(1).unwrap_or_default()
    }

    /// All values of a field, by its lower-case name.
    pub fn values(&self, name: &str) -> Vec<&str> {
        values(&self.head, name)
    }
}

/// What an upstream does, in order.
#[derive(Clone, Debug)]
pub enum Step {
    Send(Vec<u8>),
    /// Lets what was sent arrive by itself.
    Apart,
    Close,
    /// Reads no more requests and stays silent.
    Hang,
}

type Script = dyn Fn(&str) -> Vec<Step> + Send + Sync;

/// An upstream that answers each target with its script. What it reads that is no well-formed request stands in `malformed`.
pub struct Upstream {
    pub address: SocketAddr,
    seen: Arc<Mutex<Vec<Seen>>>,
    malformed: Arc<Mutex<Vec<String>>>,
}

impl Upstream {
    pub fn start(script: impl Fn(&str) -> Vec<Step> + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let (seen, malformed) = (Arc::default(), Arc::default());
        let upstream = Self { address, seen: Arc::clone(&seen), malformed: Arc::clone(&malformed) };
        let script: Arc<Script> = Arc::new(script);
        thread::spawn(move || {
            for socket in listener.incoming() {
                let (script, seen, malformed) = (script.clone(), seen.clone(), malformed.clone());
                thread::spawn(move || {
                    // A connection that is broken off between two requests is no request.
                    match serve(&socket.unwrap(), &*script, &seen) {
                        Err(why) if !why.starts_with("broken") => malformed.lock().unwrap().push(why),
                        _ => {}
                    }
                });
            }
        });
        upstream
    }

    /// The requests since the last call.
    pub fn take_seen(&self) -> Vec<Seen> {
        std::mem::take(&mut *self.seen.lock().unwrap())
    }

    pub fn take_malformed(&self) -> Vec<String> {
        std::mem::take(&mut *self.malformed.lock().unwrap())
    }
}

/// Targets below `/early` are answered before their bodies are read.
fn serve(socket: &TcpStream, script: &Script, seen: &Mutex<Vec<Seen>>) -> Result<(), String> {
    socket.set_nodelay(true).unwrap();
    let mut reader = BufReader::new(socket);
    loop {
        let Some(head) = read_head(&mut reader)? else { return Ok(()) };
        let target = head.split(' ').nth(1).unwrap_or_default().to_owned();
        let early = target.starts_with("/early");
        let (body, trailers) = if early { Default::default() } else { read_body(&mut reader, &head, false)? };
        seen.lock().unwrap().push(Seen { head, body, trailers });
        for step in script(&target) {
            match step {
                // The gateway may have gone already; that is for the client's side of the test to see.
                Step::Send(octets) => drop((&*socket).write_all(&octets)),
                Step::Apart => thread::sleep(APART),
                Step::Close => {
                    let _ = socket.shutdown(Shutdown::Write);
                    let _ = std::io::copy(&mut reader, &mut std::io::sink());
                    return Ok(());
                }
                Step::Hang => {
                    let _ = std::io::copy(&mut reader, &mut std::io::sink());
                    return Ok(());
                }
            }
        }
        if early {
            let _ = std::io::copy(&mut reader, &mut std::io::sink());
            return Ok(());
        }
    }
}

/// An answer, read by its framing.
#[derive(Debug, Default)]
pub struct Answer {
    pub status: u16,
    pub head: String,
    pub body: Vec<u8>,
    pub trailers: String,
}

impl Answer {
    pub fn values(&self, name: &str) -> Vec<&str> {
        values(&self.head, name)
    }
}

/// A client's connection.
#[derive(Debug)]
pub struct Client {
    pub socket: TcpStream,
    reader: BufReader<TcpStream>,
}

impl Client {
    pub fn connect(address: SocketAddr) -> Self {
        let socket = TcpStream::connect(address).unwrap();
        socket.set_nodelay(true).unwrap();
        socket.set_read_timeout(Some(HANG)).unwrap();
        let reader = BufReader::new(socket.try_clone().unwrap());
        Self { socket, reader }
    }

    /// Errors do not matter: the gateway may have refused and closed while this is being sent.
    pub fn send(&mut self, octets: &[u8]) {
        let _ = self.socket.write_all(octets);
    }

    /// Sends each octet by itself.
    pub fn drip(&mut self, octets: &[u8]) {
        for octet in octets {
            self.send(&[*octet]);
            thread::yield_now();
        }
    }

    /// The next answer; what is wrong with it, or that the connection ended before its end. Interim answers are skipped.
    pub fn answer(&mut self, to_head: bool) -> Result<Answer, String> {
        loop {
            let head = read_head(&mut self.reader)?.ok_or("closed without an answer")?;
            let status: u16 = head.split(' ').nth(1).and_then(|code| code.parse().ok()).ok_or("no status")?;
            if (100..200).contains(&status) && status != 101 {
                continue;
            }
            let (body, trailers) = if to_head || matches!(status, 101 | 204 | 304) {
                Default::default()
            } else {
                read_body(&mut self.reader, &head, true)?
            };
            return Ok(Answer { status, head, body, trailers });
        }
    }

    pub fn get(&mut self, target: &str) -> Result<Answer, String> {
        self.send(format!("GET {target} HTTP/1.1\r\nHost: wire.test\r\n\r\n").as_bytes());
        self.answer(false)
    }

    /// What still comes until the gateway closes.
    pub fn rest(&mut self) -> Vec<u8> {
        let mut rest = Vec::new();
        match self.reader.read_to_end(&mut rest) {
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => panic!("the connection stays open"),
            _ => rest,
        }
    }
}

fn values<'h>(head: &'h str, name: &str) -> Vec<&'h str> {
    let fields = head.lines().skip(1).filter_map(|line| line.split_once(':'));
    fields.filter(|(field, _)| field.eq_ignore_ascii_case(name)).map(|(_, value)| value.trim()).collect()
}

/// A head, strictly: every line ends in CRLF, every field has a token for a name and no control character in its value.
fn read_head(reader: &mut impl BufRead) -> Result<Option<String>, String> {
    let mut head = String::new();
    loop {
        let Some(line) = read_line(reader)? else {
            return if head.is_empty() { Ok(None) } else { Err(format!("cut within a head: {head:?}")) };
        };
        if line.is_empty() {
            return Ok(Some(head));
        }
        if !head.is_empty() {
            check_field(&line)?;
            head.push('\n');
        }
        head.push_str(&line);
    }
}

fn check_field(line: &str) -> Result<(), String> {
    let (name, value) = line.split_once(':').ok_or_else(|| format!("no colon: {line:?}"))?;
    let token = |octet: u8| octet.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&octet);
    let well =
        !name.is_empty() && name.bytes().all(token) && !value.bytes().any(|octet| octet < b' ' && octet != b'\t');
    if well { Ok(()) } else { Err(format!("a bad field: {line:?}")) }
}

/// A line without its CRLF; none at the end of the connection.
fn read_line(reader: &mut impl BufRead) -> Result<Option<String>, String> {
    let mut line = Vec::new();
    match reader.read_until(b'\n', &mut line) {
        Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => panic!("a hang, after {line:?}"),
        Err(error) => return Err(format!("broken: {error}")),
        Ok(0) => return Ok(None),
        Ok(_) => {}
    }
    let line = line.strip_suffix(b"\r\n").ok_or_else(|| format!("no CRLF: {:?}", String::from_utf8_lossy(&line)))?;
    Ok(Some(line.iter().map(|octet| char::from(*octet)).collect()))
}

/// A body and its trailer lines. `answers`: without a length it lasts until the connection's end.
fn read_body(reader: &mut impl BufRead, head: &str, answers: bool) -> Result<(Vec<u8>, String), String> {
    match (&values(head, "transfer-encoding")[..], &values(head, "content-length")[..]) {
        (["chunked"], []) => read_chunks(reader),
        ([], [length]) => {
            let length = length.parse().map_err(|_| format!("a bad length: {length}"))?;
            Ok((read_exactly(reader, length)?, String::new()))
        }
        ([], []) if answers => {
            let mut body = Vec::new();
            reader.read_to_end(&mut body).map_err(|error| format!("broken: {error}"))?;
            Ok((body, String::new()))
        }
        ([], []) => Ok(Default::default()),
        (codings, lengths) => Err(format!("framed by {codings:?} and {lengths:?}")),
    }
}

fn read_chunks(reader: &mut impl BufRead) -> Result<(Vec<u8>, String), String> {
    let mut body = Vec::new();
    loop {
        let line = read_line(reader)?.ok_or("cut before a chunk")?;
        let size = usize::from_str_radix(&line, 16).map_err(|_| format!("a bad chunk size: {line:?}"))?;
        if size == 0 {
            break;
        }
        body.extend(read_exactly(reader, size)?);
        if read_line(reader)?.as_deref() != Some("") {
            return Err("a chunk that is not closed".into());
        }
    }
    let mut trailers = String::new();
    loop {
        let line = read_line(reader)?.ok_or("cut within trailers")?;
        if line.is_empty() {
            return Ok((body, trailers));
        }
        check_field(&line)?;
        trailers = trailers + &line + "\n";
    }
}

fn read_exactly(reader: &mut impl BufRead, length: usize) -> Result<Vec<u8>, String> {
    let mut body = vec![0; length];
    match reader.read_exact(&mut body) {
        Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => panic!("a hang within a body"),
        Err(_) => Err("cut within a body".into()),
        Ok(()) => Ok(body),
    }
}
