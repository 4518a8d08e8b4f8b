//! A client that speaks bytes: one connection, or a thousand at once. What it cannot read as HTTP/1.1 ends the test.

use super::wait::PATIENCE;
use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Shutdown, SocketAddr, TcpStream};
use std::time::Duration;

#[derive(Clone, Debug, Default)]
pub struct Answer {
    pub status: u16,
    /// Names in lower case.
    pub fields: Vec<(String, String)>,
    pub body: Vec<u8>,
}

impl Answer {
    pub fn field(&self, name: &str) -> Option<&str> {
        self.fields.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }

    pub fn number(&self, name: &str) -> u64 {
        let value = self.field(name).unwrap_or_else(|| panic!("no {name} in {self:?}"));
        value.parse().unwrap_or_else(|_| panic!("{name}: {value}"))
    }

    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    pub fn json(&self) -> serde_json::Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|error| panic!("{error}: {}", self.text()))
    }
}

/// `GET` on a connection of its own.
pub fn get(port: u16, path: &str, fields: &[(&str, &str)]) -> Answer {
    Connection::open(port).get(path, fields)
}

/// The same, where it may be that nobody answers.
pub fn try_get(port: u16, path: &str) -> Option<Answer> {
    Connection::try_open(port)?.try_get(path)
}

pub fn request(method: &str, path: &str, fields: &[(&str, &str)]) -> String {
    let mut text = format!("{method} {path} HTTP/1.1\r\nhost: localhost\r\n");
    for (name, value) in fields {
        text.push_str(&format!("{name}: {value}\r\n"));
    }
    text + "\r\n"
}

#[derive(Debug)]
pub struct Connection {
    pub stream: TcpStream,
    /// Read and not yet used.
    input: Vec<u8>,
}

impl Connection {
    pub fn open(port: u16) -> Self {
        Self::try_open(port).unwrap_or_else(|| panic!("nobody listens on {port}"))
    }

    pub fn try_open(port: u16) -> Option<Self> {
        let address = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), port);
        let stream = TcpStream::connect_timeout(&address, Duration::from_secs(5)).ok()?;
        stream.set_read_timeout(Some(PATIENCE)).ok()?;
        stream.set_nodelay(true).ok()?;
        Some(Self { stream, input: Vec::new() })
    }

    pub fn send(&mut self, bytes: impl AsRef<[u8]>) {
        self.stream.write_all(bytes.as_ref()).expect("the connection takes it");
    }

    pub fn get(&mut self, path: &str, fields: &[(&str, &str)]) -> Answer {
        self.send(request("GET", path, fields));
        self.answer()
    }

    /// The same, where it may be that the other side closes.
    pub fn try_get(&mut self, path: &str) -> Option<Answer> {
        self.stream.write_all(request("GET", path, &[]).as_bytes()).ok()?;
        self.try_answer()
    }

    /// The next answer, whole.
    pub fn answer(&mut self) -> Answer {
        self.try_answer().expect("an answer")
    }

    pub fn try_answer(&mut self) -> Option<Answer> {
        let mut answer = self.try_head()?;
        if answer.field("transfer-encoding").is_some_and(|coding| coding == "chunked") {
            while let Some(chunk) = self.chunk() {
                answer.body.extend_from_slice(&chunk);
            }
        } else if let Some(length) = answer.field("content-length") {
            let length = length.parse().ok()?;
            while self.input.len() < length {
                self.more()?;
            }
            answer.body = self.input.drain(..length).collect();
        } else if !(answer.status == 204 || answer.status == 304 || answer.status < 200) {
            while self.more().is_some() {}
            answer.body = std::mem::take(&mut self.input);
        }
        Some(answer)
    }

    /// Status and fields; the body is left to be read.
    pub fn head(&mut self) -> Answer {
        self.try_head().expect("the head of an answer")
    }

    pub fn try_head(&mut self) -> Option<Answer> {
        let end = loop {
            match self.input.windows(4).position(|window| window == b"\r\n\r\n") {
                Some(end) => break end,
                None => self.more()?,
            };
        };
        let head: Vec<u8> = self.input.drain(..end + 4).collect();
        let text = String::from_utf8_lossy(&head[..end]).into_owned();
        let mut lines = text.split("\r\n");
        let status = lines.next()?.strip_prefix("HTTP/1.1 ")?.get(..3)?.parse().ok()?;
        let fields = lines.filter_map(|line| line.split_once(':'));
        let fields = fields.map(|(name, value)| (name.to_ascii_lowercase(), value.trim().to_owned())).collect();
        Some(Answer { status, fields, body: Vec::new() })
    }

    /// The next chunk of a chunked body; `None` at its end.
    pub fn chunk(&mut self) -> Option<Vec<u8>> {
        let line = loop {
            match self.input.windows(2).position(|window| window == b"\r\n") {
                Some(end) => break end,
                None => self.more().expect("a chunk's size"),
            };
        };
        let size: Vec<u8> = self.input.drain(..line + 2).collect();
        let size = usize::from_str_radix(std::str::from_utf8(&size[..line]).expect("hexadecimal"), 16).expect("a size");
        while self.input.len() < size + 2 {
            self.more().expect("the whole chunk");
        }
        let chunk: Vec<u8> = self.input.drain(..size + 2).take(size).collect();
        (size > 0).then_some(chunk)
    }

    /// Reads and counts `octets` of a body, keeping none.
    pub fn discard(&mut self, octets: usize) {
        let mut left = octets - self.input.len().min(octets);
        self.input.clear();
        let mut buffer = vec![0; 1 << 16];
        while left > 0 {
            let read = self.stream.read(&mut buffer).expect("the body goes on");
            assert!(read > 0, "{left} octets are missing");
            left = left.saturating_sub(read);
        }
    }

    pub fn exact(&mut self, octets: usize) -> Vec<u8> {
        while self.input.len() < octets {
            self.more().expect("more octets");
        }
        self.input.drain(..octets).collect()
    }

    /// All that comes until the other side closes.
    pub fn rest(&mut self) -> Vec<u8> {
        while self.more().is_some() {}
        std::mem::take(&mut self.input)
    }

    /// Whether the other side closed it, with nothing unread. Waits for that.
    pub fn is_closed(&mut self) -> bool {
        self.input.is_empty()
            && match self.stream.read(&mut [0; 1]) {
                Ok(read) => read == 0,
                Err(error) => error.kind() == ErrorKind::ConnectionReset,
            }
    }

    pub fn leave(self) {
        let _ = self.stream.shutdown(Shutdown::Both);
    }

    fn more(&mut self) -> Option<()> {
        let mut buffer = [0; 1 << 14];
        let read = self.stream.read(&mut buffer).ok().filter(|read| *read > 0)?;
        self.input.extend_from_slice(&buffer[..read]);
        Some(())
    }
}

/// So many requests at once, each on a connection of its own that was open before the first is sent, dealt out to the
/// ports in turn; the status of each.
pub fn burst(ports: &[u16], requests: &[String]) -> Vec<u16> {
    let _ = rlimit::increase_nofile_limit(u64::MAX);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let mut open = Vec::new();
        for (request, port) in requests.iter().zip(ports.iter().cycle()) {
            let stream = tokio::net::TcpStream::connect((Ipv4Addr::LOCALHOST, *port)).await.expect("a connection");
            open.push((stream, request.replacen("\r\n", "\r\nconnection: close\r\n", 1)));
        }
        let asking: Vec<_> = open.into_iter().map(|(stream, request)| tokio::spawn(ask(stream, request))).collect();
        let mut statuses = Vec::new();
        for asked in asking {
            statuses.push(tokio::time::timeout(PATIENCE, asked).await.expect("an answer in time").expect("no panic"));
        }
        statuses
    })
}

async fn ask(mut stream: tokio::net::TcpStream, request: String) -> u16 {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    stream.write_all(request.as_bytes()).await.expect("the connection takes it");
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).await.expect("an answer");
    let status = answer.get(9..12).and_then(|status| std::str::from_utf8(status).ok());
    status.and_then(|status| status.parse().ok()).unwrap_or_else(|| panic!("{}", String::from_utf8_lossy(&answer)))
}
