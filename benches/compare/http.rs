//! A load's connection: one request with a key after the other, and the status of each answer.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

pub struct Connection {
    stream: TcpStream,
    answer: [u8; 4096],
}

impl Connection {
    pub fn open(address: SocketAddr) -> io::Result<Self> {
        let stream = TcpStream::connect(address)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(Duration::from_secs(10)))?;
        Ok(Self { stream, answer: [0; 4096] })
    }

    pub fn get(&mut self, path: &str, user: &str) -> io::Result<u16> {
        self.stream.write_all(format!("GET {path} HTTP/1.1\r\nhost: origin\r\nx-user: {user}\r\n\r\n").as_bytes())?;
        self.read_answer()
    }

    /// Reads one answer that tells its length.
    fn read_answer(&mut self) -> io::Result<u16> {
        let wrong = |why: &str| io::Error::other(why.to_owned());
        let mut filled = 0;
        loop {
            let read = self.stream.read(&mut self.answer[filled..])?;
            if read == 0 {
                return Err(wrong("the connection was closed, or an answer is too long"));
            }
            filled += read;
            let text = String::from_utf8_lossy(&self.answer[..filled]);
            let Some((head, body)) = text.split_once("\r\n\r\n") else { continue };
            let length = head.lines().find_map(|line| {
                let (name, value) = line.split_once(':')?;
                name.eq_ignore_ascii_case("content-length").then(|| value.trim().parse::<usize>().ok())?
            });
            if body.len() >= length.ok_or_else(|| wrong("an answer without a length"))? {
                let status = head.strip_prefix("HTTP/1.1 ").and_then(|rest| rest.get(..3)?.parse().ok());
                return status.ok_or_else(|| wrong(head));
            }
        }
    }
}
