//! The API behind the gateway. It keeps what reached it, which is the truth that a limit is judged by, and does per path
//! what a test asks of it. It runs on a thread of its own and ends when dropped.

use super::ports;
use std::collections::HashMap;
use std::io;
use std::net::Ipv4Addr;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Notify, mpsc, oneshot};

#[derive(Clone, Debug)]
pub struct Hit {
    pub method: String,
    pub target: String,
    /// Names in lower case.
    pub fields: Vec<(String, String)>,
    pub body: Vec<u8>,
    /// Which of the upstream's connections brought it, from 1.
    pub connection: usize,
}

impl Hit {
    pub fn field(&self, name: &str) -> Option<&str> {
        self.fields.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }

    pub fn path(&self) -> &str {
        self.target.split('?').next().unwrap_or_default()
    }
}

/// What a path does. Any other answers 200 with `ok`.
#[derive(Clone, Debug)]
pub enum Reply {
    /// These octets, whatever they are; then the connection is closed.
    Raw(String),
    /// These octets; the connection is kept.
    Bytes(String),
    /// Closes without an answer.
    Close,
    /// Closes without an answer where the connection has been used before.
    CloseReused,
    /// Answers once it is let.
    Hold(Arc<Notify>),
    /// Chunks, as they are fed.
    Stream(Arc<tokio::sync::Mutex<mpsc::Receiver<Vec<u8>>>>),
    /// So many octets.
    Flood(usize),
    /// Switches to WebSocket, and gives every octet back.
    Echo,
}

#[derive(Debug)]
pub struct Upstream {
    pub port: u16,
    kept: Arc<Kept>,
    end: Option<oneshot::Sender<()>>,
}

#[derive(Debug, Default)]
struct Kept {
    hits: Mutex<Vec<Hit>>,
    replies: Mutex<HashMap<String, Reply>>,
    connections: AtomicUsize,
    octets: AtomicU64,
    abandoned: AtomicUsize,
}

impl Upstream {
    pub fn start() -> Self {
        Self::start_at(None)
    }

    /// On a port where nobody listens, or listened before it.
    pub fn start_on(port: u16) -> Self {
        Self::start_at(Some(port))
    }

    fn start_at(port: Option<u16>) -> Self {
        let kept = Arc::new(Kept::default());
        let (end, ended) = oneshot::channel();
        let wanted = port;
        let (port_known, port) = std::sync::mpsc::sync_channel(1);
        let serving = kept.clone();
        std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
            runtime.block_on(async {
                let listener = loop {
                    if let Ok(listener) =
                        TcpListener::bind((Ipv4Addr::LOCALHOST, wanted.unwrap_or_else(ports::free))).await
                    {
                        break listener;
                    }
                };
                port_known.send(listener.local_addr().expect("bound").port()).expect("the test waits for it");
                tokio::select! { () = serve(listener, serving) => {}, _ = ended => {} }
            });
        });
        Self { port: port.recv().expect("it starts"), kept, end: Some(end) }
    }

    /// `[upstreams.up]` for the file.
    pub fn table(&self) -> String {
        format!("[upstreams.up]\nendpoints = [\"http://127.0.0.1:{}\"]\n", self.port)
    }

    pub fn on(&self, path: &str, reply: Reply) {
        self.kept.replies.lock().expect("no panic").insert(path.to_owned(), reply);
    }

    /// Makes a path answer chunk by chunk; dropping the sender ends the body.
    pub fn stream(&self, path: &str) -> mpsc::Sender<Vec<u8>> {
        let (feed, fed) = mpsc::channel(16);
        self.on(path, Reply::Stream(Arc::new(tokio::sync::Mutex::new(fed))));
        feed
    }

    pub fn hold(&self, path: &str) -> Arc<Notify> {
        let gate = Arc::new(Notify::new());
        self.on(path, Reply::Hold(gate.clone()));
        gate
    }

    pub fn hits(&self) -> Vec<Hit> {
        self.kept.hits.lock().expect("no panic").clone()
    }

    /// The only one for this path.
    pub fn hit(&self, path: &str) -> Hit {
        let hits: Vec<Hit> = self.hits().into_iter().filter(|hit| hit.path() == path).collect();
        assert_eq!(hits.len(), 1, "requests for {path}: {hits:?}");
        hits.into_iter().next().expect("just counted")
    }

    pub fn count(&self, path: &str) -> usize {
        self.kept.hits.lock().expect("no panic").iter().filter(|hit| hit.path() == path).count()
    }

    /// Forgets the requests so far.
    pub fn forget(&self) {
        self.kept.hits.lock().expect("no panic").clear();
    }

    pub fn connections(&self) -> usize {
        self.kept.connections.load(Ordering::SeqCst)
    }

    /// Octets of request bodies so far.
    pub fn octets(&self) -> u64 {
        self.kept.octets.load(Ordering::SeqCst)
    }

    /// How often the other side left before its answer was over.
    pub fn abandoned(&self) -> usize {
        self.kept.abandoned.load(Ordering::SeqCst)
    }
}

impl Drop for Upstream {
    fn drop(&mut self) {
        drop(self.end.take());
    }
}

async fn serve(listener: TcpListener, kept: Arc<Kept>) {
    while let Ok((stream, _)) = listener.accept().await {
        let number = kept.connections.fetch_add(1, Ordering::SeqCst) + 1;
        let connection = Served::new(stream, number, kept.clone());
        // An error is a connection that the other side gave up.
        tokio::spawn(async move { connection.run().await });
    }
}

struct Served {
    read: OwnedReadHalf,
    write: OwnedWriteHalf,
    input: Vec<u8>,
    number: usize,
    kept: Arc<Kept>,
}

impl Served {
    fn new(stream: TcpStream, number: usize, kept: Arc<Kept>) -> Self {
        let _ = stream.set_nodelay(true);
        let (read, write) = stream.into_split();
        Self { read, write, input: Vec::new(), number, kept }
    }

    async fn run(mut self) -> io::Result<()> {
        let mut served = 0;
        loop {
            let mut hit = self.head().await?;
            let index = {
                let mut hits = self.kept.hits.lock().expect("no panic");
                hits.push(hit.clone());
                hits.len() - 1
            };
            self.body(&mut hit).await?;
            let reply = self.kept.replies.lock().expect("no panic").get(hit.path()).cloned();
            self.kept.hits.lock().expect("no panic")[index].body.clone_from(&hit.body);
            if !self.reply(reply, served > 0).await? {
                return Ok(());
            }
            served += 1;
        }
    }

    async fn head(&mut self) -> io::Result<Hit> {
        let end = loop {
            match self.input.windows(4).position(|window| window == b"\r\n\r\n") {
                Some(end) => break end,
                None => self.more().await?,
            };
        };
        let head: Vec<u8> = self.input.drain(..end + 4).collect();
        let text = String::from_utf8_lossy(&head[..end]).into_owned();
        let mut lines = text.split("\r\n");
        let mut first = lines.next().unwrap_or_default().split(' ').map(ToOwned::to_owned);
        let (method, target) = (first.next().unwrap_or_default(), first.next().unwrap_or_default());
        let fields = lines.filter_map(|line| line.split_once(':'));
        let fields = fields.map(|(name, value)| (name.to_ascii_lowercase(), value.trim().to_owned())).collect();
        Ok(Hit { method, target, fields, body: Vec::new(), connection: self.number })
    }

    /// Keeps the first 64 KiB, counts the rest.
    async fn body(&mut self, hit: &mut Hit) -> io::Result<()> {
        if hit.field("transfer-encoding").is_some() {
            loop {
                let line = loop {
                    match self.input.windows(2).position(|window| window == b"\r\n") {
                        Some(end) => break end,
                        None => self.more().await?,
                    };
                };
                let size: Vec<u8> = self.input.drain(..line + 2).collect();
                let size =
                    std::str::from_utf8(&size[..line]).ok().and_then(|size| usize::from_str_radix(size, 16).ok());
                let size = size.ok_or(io::ErrorKind::InvalidData)?;
                self.take(size, hit).await?;
                let mut end = Hit { body: Vec::new(), ..hit.clone() };
                self.take(2, &mut end).await?;
                if size == 0 {
                    return Ok(());
                }
            }
        }
        let length = hit.field("content-length").and_then(|length| length.parse().ok()).unwrap_or(0);
        self.take(length, hit).await
    }

    async fn take(&mut self, mut octets: usize, hit: &mut Hit) -> io::Result<()> {
        while octets > 0 {
            if self.input.is_empty() {
                self.more().await?;
            }
            let piece: Vec<u8> = self.input.drain(..octets.min(self.input.len())).collect();
            octets -= piece.len();
            self.kept.octets.fetch_add(piece.len() as u64, Ordering::SeqCst);
            if hit.body.len() < 1 << 16 {
                hit.body.extend_from_slice(&piece);
            }
        }
        Ok(())
    }

    /// False: the connection is over.
    async fn reply(&mut self, reply: Option<Reply>, reused: bool) -> io::Result<bool> {
        const OK: &[u8] = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok";
        match reply {
            None => self.write.write_all(OK).await.map(|()| true),
            Some(Reply::Raw(text)) => self.write.write_all(text.as_bytes()).await.map(|()| false),
            Some(Reply::Bytes(text)) => self.write.write_all(text.as_bytes()).await.map(|()| true),
            Some(Reply::Close) => Ok(false),
            Some(Reply::CloseReused) if reused => Ok(false),
            Some(Reply::CloseReused) => self.write.write_all(OK).await.map(|()| true),
            Some(Reply::Hold(gate)) => {
                let mut octet = [0; 1];
                tokio::select! {
                    () = gate.notified() => self.write.write_all(OK).await.map(|()| true),
                    _ = self.read.read(&mut octet) => {
                        self.kept.abandoned.fetch_add(1, Ordering::SeqCst);
                        Ok(false)
                    }
                }
            }
            Some(Reply::Stream(feed)) => self.stream(&feed).await,
            Some(Reply::Flood(octets)) => self.flood(octets).await.map(|()| true),
            Some(Reply::Echo) => self.echo().await.map(|()| false),
        }
    }

    async fn stream(&mut self, feed: &tokio::sync::Mutex<mpsc::Receiver<Vec<u8>>>) -> io::Result<bool> {
        let head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n";
        self.write.write_all(head).await?;
        let mut feed = feed.lock().await;
        let mut octet = [0; 1];
        loop {
            tokio::select! {
                piece = feed.recv() => match piece {
                    Some(piece) => {
                        let mut chunk = format!("{:x}\r\n", piece.len()).into_bytes();
                        chunk.extend_from_slice(&piece);
                        chunk.extend_from_slice(b"\r\n");
                        self.write.write_all(&chunk).await?;
                    }
                    None => return self.write.write_all(b"0\r\n\r\n").await.map(|()| true),
                },
                _ = self.read.read(&mut octet) => {
                    self.kept.abandoned.fetch_add(1, Ordering::SeqCst);
                    return Ok(false);
                }
            }
        }
    }

    async fn flood(&mut self, octets: usize) -> io::Result<()> {
        let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {octets}\r\n\r\n");
        self.write.write_all(head.as_bytes()).await?;
        let piece = vec![b'x'; 1 << 16];
        let mut left = octets;
        while left > 0 {
            let part = left.min(piece.len());
            self.write.write_all(&piece[..part]).await?;
            left -= part;
        }
        Ok(())
    }

    async fn echo(&mut self) -> io::Result<()> {
        let head = b"HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\n";
        self.write.write_all(head).await?;
        loop {
            let back = std::mem::take(&mut self.input);
            self.write.write_all(&back).await?;
            self.more().await?;
        }
    }

    async fn more(&mut self) -> io::Result<()> {
        self.input.reserve(1 << 16);
        match self.read.read_buf(&mut self.input).await? {
            0 => Err(io::ErrorKind::UnexpectedEof.into()),
            _ => Ok(()),
        }
    }
}
