//! Messages written: heads in one piece, chunks in their framing. Field values were checked when they were read or made,
//! so nothing written here can end a line early.

use bytes::{BufMut, BytesMut};
use http::{HeaderMap, Method, StatusCode};

pub fn request_line(out: &mut BytesMut, method: &Method, target: &[u8]) {
    out.reserve(method.as_str().len() + target.len() + 16);
    out.put_slice(method.as_str().as_bytes());
    out.put_u8(b' ');
    out.put_slice(target);
    out.put_slice(b" HTTP/1.1\r\n");
}

pub fn status_line(out: &mut BytesMut, status: StatusCode) {
    if status == StatusCode::OK {
        out.put_slice(b"HTTP/1.1 200 OK\r\n");
        return;
    }
    out.put_slice(b"HTTP/1.1 ");
    out.put_slice(status.as_str().as_bytes());
    out.put_u8(b' ');
    out.put_slice(status.canonical_reason().unwrap_or("").as_bytes());
    out.put_slice(b"\r\n");
}

pub fn fields(out: &mut BytesMut, headers: &HeaderMap) {
    for (name, value) in headers {
        field(out, name.as_str(), value.as_bytes());
    }
}

pub fn field(out: &mut BytesMut, name: &str, value: &[u8]) {
    out.reserve(name.len() + value.len() + 4);
    out.put_slice(name.as_bytes());
    out.put_slice(b": ");
    out.put_slice(value);
    out.put_slice(b"\r\n");
}

pub fn content_length(out: &mut BytesMut, length: u64) {
    field(out, "content-length", itoa::Buffer::new().format(length).as_bytes());
}

pub fn head_end(out: &mut BytesMut) {
    out.put_slice(b"\r\n");
}

/// A chunk's size line; the data and `chunk_end` follow.
pub fn chunk_start(out: &mut BytesMut, length: usize) {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let digits = (usize::BITS - length.leading_zeros()).div_ceil(4).max(1);
    for place in (0..digits).rev() {
        out.put_u8(DIGITS[(length >> (4 * place)) & 15]);
    }
    out.put_slice(b"\r\n");
}

pub fn chunk_end(out: &mut BytesMut) {
    out.put_slice(b"\r\n");
}

/// The last chunk, with the trailer fields if there are any.
pub fn last_chunk(out: &mut BytesMut, trailers: Option<&HeaderMap>) {
    out.put_slice(b"0\r\n");
    if let Some(trailers) = trailers {
        fields(out, trailers);
    }
    out.put_slice(b"\r\n");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunk_sizes_are_hexadecimal_without_leading_zeros() {
        for (length, text) in [(1, "1\r\n"), (15, "f\r\n"), (16, "10\r\n"), (65_536, "10000\r\n"), (0, "0\r\n")] {
            let mut out = BytesMut::new();
            chunk_start(&mut out, length);
            assert_eq!(out, text);
        }
    }
}
