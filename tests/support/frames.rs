//! HTTP/2 (RFC 9113), frame by frame: a client that writes what it is given, well-formed or not.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

pub const DATA: u8 = 0;
pub const HEADERS: u8 = 1;
pub const RST_STREAM: u8 = 3;
pub const SETTINGS: u8 = 4;
pub const PING: u8 = 6;
pub const GOAWAY: u8 = 7;
pub const WINDOW_UPDATE: u8 = 8;
pub const CONTINUATION: u8 = 9;
pub const END_STREAM: u8 = 1;
pub const END_HEADERS: u8 = 4;

pub type Fields<'f> = &'f [(&'f str, &'f str)];

#[derive(Debug)]
pub struct Frame {
    pub kind: u8,
    pub flags: u8,
    pub stream: u32,
    pub payload: Vec<u8>,
}

/// A client that writes frames as they are given.
pub struct H2 {
    pub socket: TcpStream,
}

impl H2 {
    pub fn connect(address: SocketAddr) -> Self {
        let mut socket = TcpStream::connect(address).unwrap();
        socket.set_read_timeout(Some(Duration::from_secs(15))).unwrap();
        socket.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").unwrap();
        let mut h2 = Self { socket };
        h2.frame(SETTINGS, 0, 0, &[]);
        h2
    }

    /// Errors do not matter: the gateway may have closed while this is being sent.
    pub fn frame(&mut self, kind: u8, flags: u8, stream: u32, payload: &[u8]) {
        let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
        let head = [&length[1..], &[kind, flags], &stream.to_be_bytes()].concat();
        let _ = self.socket.write_all(&[&head, payload].concat());
    }

    pub fn request(&mut self, stream: u32, fields: Fields<'_>) {
        self.frame(HEADERS, END_HEADERS | END_STREAM, stream, &block(fields));
    }

    /// The next frame; none at the connection's end. Silence is a hang.
    pub fn next(&mut self) -> Option<Frame> {
        let mut head = [0; 9];
        match self.socket.read_exact(&mut head) {
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => panic!("a hang"),
            Err(_) => return None,
            Ok(()) => {}
        }
        let length = u32::from_be_bytes([0, head[0], head[1], head[2]]);
        let mut payload = vec![0; usize::try_from(length).unwrap()];
        self.socket.read_exact(&mut payload).ok()?;
        let stream = u32::from_be_bytes(head[5..9].try_into().unwrap());
        Some(Frame { kind: head[3], flags: head[4], stream, payload })
    }

    /// What becomes of a stream: its status (as far as HPACK's static table tells it), a reset, or the connection's end.
    pub fn outcome(&mut self, stream: u32) -> Outcome {
        loop {
            match self.next() {
                None => return Outcome::Closed,
                Some(frame) if frame.kind == GOAWAY && frame.payload[4..8] != [0; 4] => return Outcome::Closed,
                Some(frame) if frame.stream != stream => {}
                Some(frame) if frame.kind == RST_STREAM => return Outcome::Reset,
                Some(frame) if frame.kind == HEADERS => {
                    return Outcome::Status(frame.payload[0], frame.flags & END_STREAM != 0);
                }
                Some(_) => {}
            }
        }
    }
}

/// `Status`: the first octet of the field block, and whether the answer ends with its head.
#[derive(PartialEq, Debug)]
pub enum Outcome {
    Status(u8, bool),
    Reset,
    Closed,
}

/// HPACK's static index of `:status: 200`, `204`, `400`.
pub const OK: u8 = 0x88;
pub const NO_CONTENT: u8 = 0x89;
pub const BAD_REQUEST: u8 = 0x8c;

/// Fields as literals that are not indexed, so that any octets can be sent.
pub fn block(fields: Fields<'_>) -> Vec<u8> {
    let mut block = Vec::new();
    for (name, value) in fields {
        block.push(0);
        for text in [name, value] {
            // Texts of 127 octets and more go on in a second octet; none here is longer than 254.
            if let Some(rest) = text.len().checked_sub(127) {
                block.extend([127, u8::try_from(rest).unwrap()]);
            } else {
                block.push(u8::try_from(text.len()).unwrap());
            }
            block.extend_from_slice(text.as_bytes());
        }
    }
    block
}
