//! Bodies taken out of their framing. The decoder holds no buffer: it cuts what has come and says what it still needs.

use super::framing::Framing;
use super::head::{self, HeadError};
use bytes::{Bytes, BytesMut};
use http::HeaderMap;

/// A chunk line or trailer section longer than this is an attack or a mistake.
const MAX_LINE: usize = 4096;
const MAX_TRAILERS: usize = 16 * 1024;

#[derive(Debug)]
pub enum Progress {
    Data(Bytes),
    /// Only after a chunked body, and only if there were any.
    Trailers(HeaderMap),
    /// Nothing more can be cut from what is there.
    NeedMore,
    End,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Decoder {
    Length(u64),
    /// Before a chunk's size line.
    ChunkSize,
    /// Inside a chunk, so many octets left.
    ChunkData(u64),
    /// Before the CRLF that closes a chunk.
    ChunkEnd,
    Trailers,
    UntilClose,
    Done,
    /// After an error: what is left cannot be cut any more.
    Broken,
}

impl Decoder {
    #[must_use]
    pub fn new(framing: Framing) -> Self {
        match framing {
            Framing::None => Self::Done,
            Framing::Length(length) => Self::Length(length),
            Framing::Chunked => Self::ChunkSize,
            Framing::UntilClose => Self::UntilClose,
        }
    }

    #[must_use]
    pub fn is_done(self) -> bool {
        self == Self::Done
    }

    /// The octets still to come, where that is known.
    #[must_use]
    pub fn remaining(self) -> Option<u64> {
        match self {
            Self::Length(left) => Some(left),
            Self::Done => Some(0),
            _ => None,
        }
    }

    /// Cuts the next piece off the front of `input`. An error stays one.
    pub fn decode(&mut self, input: &mut BytesMut) -> Result<Progress, &'static str> {
        self.cut(input).inspect_err(|_| *self = Self::Broken)
    }

    fn cut(&mut self, input: &mut BytesMut) -> Result<Progress, &'static str> {
        loop {
            match *self {
                Self::Done => return Ok(Progress::End),
                Self::Broken => return Err("a body that was malformed before"),
                Self::Length(_) | Self::ChunkData(_) | Self::UntilClose if input.is_empty() => {
                    return Ok(Progress::NeedMore);
                }
                Self::Length(left) => {
                    let data = cut(input, left);
                    let left = left - data.len() as u64;
                    *self = if left == 0 { Self::Done } else { Self::Length(left) };
                    return Ok(Progress::Data(data));
                }
                Self::ChunkData(left) => {
                    let data = cut(input, left);
                    let left = left - data.len() as u64;
                    *self = if left == 0 { Self::ChunkEnd } else { Self::ChunkData(left) };
                    return Ok(Progress::Data(data));
                }
                Self::UntilClose => return Ok(Progress::Data(input.split().freeze())),
                Self::ChunkEnd => match input.get(..2) {
                    Some(b"\r\n") => {
                        let _ = input.split_to(2);
                        *self = Self::ChunkSize;
                    }
                    Some(_) => return Err("a chunk not closed by CRLF"),
                    None => return Ok(Progress::NeedMore),
                },
                Self::ChunkSize => match size_line(input)? {
                    Some(0) => *self = Self::Trailers,
                    Some(size) => *self = Self::ChunkData(size),
                    None => return Ok(Progress::NeedMore),
                },
                Self::Trailers => return self.trailers(input),
            }
        }
    }

    /// The connection has ended: was that the body's end?
    pub fn finish(&mut self) -> Result<(), &'static str> {
        match self {
            Self::Done => Ok(()),
            Self::UntilClose => {
                *self = Self::Done;
                Ok(())
            }
            _ => Err("the connection ended within a body"),
        }
    }

    fn trailers(&mut self, input: &mut BytesMut) -> Result<Progress, &'static str> {
        if input.starts_with(b"\r\n") {
            let _ = input.split_to(2);
            *self = Self::Done;
            return Ok(Progress::End);
        }
        match head::section_length(input, MAX_TRAILERS) {
            Ok(Some(length)) => {
                let section = input.split_to(length).freeze();
                *self = Self::Done;
                head::trailer_fields(&section).map(Progress::Trailers)
            }
            Ok(None) => Ok(Progress::NeedMore),
            Err(HeadError::TooLarge) => Err("a trailer section that is too long"),
            Err(HeadError::Malformed(_)) => Err("an invalid trailer field"),
        }
    }
}

fn cut(input: &mut BytesMut, most: u64) -> Bytes {
    let length = usize::try_from(most).unwrap_or(usize::MAX).min(input.len());
    input.split_to(length).freeze()
}

/// Takes a chunk's size line off the input: hexadecimal digits, optional extensions, CRLF (RFC 9112 §7.1).
fn size_line(input: &mut BytesMut) -> Result<Option<u64>, &'static str> {
    let Some(end) = memchr::memchr(b'\n', input) else {
        return if input.len() > MAX_LINE { Err("a chunk line that is too long") } else { Ok(None) };
    };
    if end > MAX_LINE {
        return Err("a chunk line that is too long");
    }
    let line = input.split_to(end + 1);
    let Some(line) = line.strip_suffix(b"\r\n") else { return Err("a chunk line ended by a bare LF") };
    let digits = line.iter().take_while(|octet| octet.is_ascii_hexdigit()).count();
    if digits == 0 || digits > 15 {
        return Err("an invalid chunk size");
    }
    extension(&line[digits..])?;
    let size = line[..digits].iter().fold(0, |sum, digit| sum * 16 + u64::from(hex(*digit)));
    Ok(Some(size))
}

/// Chunk extensions are dropped on the way on (we chunk anew), but must be plain text after a semicolon.
fn extension(text: &[u8]) -> Result<(), &'static str> {
    let text = text.trim_ascii_start();
    let plain = text.iter().all(|octet| matches!(octet, b'\t' | b' '..=b'~' | 0x80..));
    if text.is_empty() || (text[0] == b';' && plain) { Ok(()) } else { Err("junk after a chunk size") }
}

fn hex(digit: u8) -> u8 {
    match digit {
        b'0'..=b'9' => digit - b'0',
        b'a'..=b'f' => digit - b'a' + 10,
        _ => digit - b'A' + 10,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Decodes a text given in pieces of `step` octets; the data, or the error.
    fn decode(framing: Framing, text: &[u8], step: usize) -> Result<(Vec<u8>, bool, usize), &'static str> {
        let (mut decoder, mut input, mut data) = (Decoder::new(framing), BytesMut::new(), Vec::new());
        for (count, piece) in text.chunks(step).enumerate() {
            input.extend_from_slice(piece);
            loop {
                match decoder.decode(&mut input)? {
                    Progress::Data(bytes) => data.extend_from_slice(&bytes),
                    Progress::NeedMore => break,
                    Progress::Trailers(_) => {}
                    Progress::End => {
                        let unread = text.len() - count * step - piece.len();
                        return Ok((data, true, unread + input.len()));
                    }
                }
            }
        }
        Ok((data, false, input.len()))
    }

    #[test]
    fn a_body_is_the_same_however_it_was_cut() {
        let text = b"5\r\nhello\r\n6;a=\"b\"\r\n world\r\n0\r\nX-T: 1\r\n\r\nGET /";
        for step in 1..text.len() {
            let (data, done, left) = decode(Framing::Chunked, text, step).unwrap();
            assert_eq!((data.as_slice(), done, left), (&b"hello world"[..], true, 5), "step {step}");
        }
        assert_eq!(decode(Framing::Length(3), b"abcdef", 2).unwrap(), (b"abc".to_vec(), true, 3));
    }

    #[test]
    fn chunk_tricks_are_refused() {
        for text in [
            &b"5\nhello\r\n0\r\n\r\n"[..],
            b"5\r\nhello0\r\n\r\n",
            b"5\r\nhello\n0\r\n\r\n",
            b"0x5\r\nhello\r\n0\r\n\r\n",
            b"+5\r\nhello\r\n0\r\n\r\n",
            b" 5\r\nhello\r\n0\r\n\r\n",
            b"\r\nhello\r\n0\r\n\r\n",
            b"5 x\r\nhello\r\n0\r\n\r\n",
            b"5;a\0b\r\nhello\r\n0\r\n\r\n",
            b"5;a\rb\r\nhello\r\n0\r\n\r\n",
            b"fffffffffffffffff\r\n",
            b"0\r\nX : 1\r\n\r\n",
            b"0\r\nX: 1\n\r\n\r\n",
        ] {
            assert!(decode(Framing::Chunked, text, 3).is_err(), "{:?}", String::from_utf8_lossy(text));
        }
    }

    #[test]
    fn an_end_of_the_connection_ends_only_a_body_that_lasts_until_then() {
        assert!(Decoder::new(Framing::UntilClose).finish().is_ok());
        assert!(Decoder::new(Framing::Length(1)).finish().is_err());
        assert!(Decoder::new(Framing::Chunked).finish().is_err());
        assert!(Decoder::new(Framing::None).finish().is_ok());
    }
}
