//! Messages written: heads in one piece, chunks in their framing. Field values were checked when they were read or made,
//! so nothing written here can end a line early. Into vectors: to put a piece into `BytesMut` costs twice as much.

use http::{HeaderMap, Method, StatusCode};

/// `target` writes the request's target.
pub fn request_line(out: &mut Vec<u8>, method: &Method, target: impl FnOnce(&mut Vec<u8>)) {
    out.extend_from_slice(method.as_str().as_bytes());
    out.push(b' ');
    target(out);
    out.extend_from_slice(b" HTTP/1.1\r\n");
}

pub fn status_line(out: &mut Vec<u8>, status: StatusCode) {
    if status == StatusCode::OK {
        out.extend_from_slice(b"HTTP/1.1 200 OK\r\n");
        return;
    }
    out.extend_from_slice(b"HTTP/1.1 ");
    out.extend_from_slice(status.as_str().as_bytes());
    out.push(b' ');
    out.extend_from_slice(status.canonical_reason().unwrap_or("").as_bytes());
    out.extend_from_slice(b"\r\n");
}

pub fn fields(out: &mut Vec<u8>, headers: &HeaderMap) {
    for (name, value) in headers {
        field(out, name.as_str(), value.as_bytes());
    }
}

pub fn field(out: &mut Vec<u8>, name: &str, value: &[u8]) {
    out.extend_from_slice(name.as_bytes());
    out.extend_from_slice(b": ");
    out.extend_from_slice(value);
    out.extend_from_slice(b"\r\n");
}

pub fn content_length(out: &mut Vec<u8>, length: u64) {
    field(out, "content-length", itoa::Buffer::new().format(length).as_bytes());
}

pub fn head_end(out: &mut Vec<u8>) {
    out.extend_from_slice(b"\r\n");
}

/// A chunk's size line; the data and `chunk_end` follow.
pub fn chunk_start(out: &mut Vec<u8>, length: usize) {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let digits = (usize::BITS - length.leading_zeros()).div_ceil(4).max(1);
    for place in (0..digits).rev() {
        out.push(DIGITS[(length >> (4 * place)) & 15]);
    }
    out.extend_from_slice(b"\r\n");
}

pub fn chunk_end(out: &mut Vec<u8>) {
    out.extend_from_slice(b"\r\n");
}

/// The last chunk, with the trailer fields if there are any.
pub fn last_chunk(out: &mut Vec<u8>, trailers: Option<&HeaderMap>) {
    out.extend_from_slice(b"0\r\n");
    if let Some(trailers) = trailers {
        fields(out, trailers);
    }
    out.extend_from_slice(b"\r\n");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunk_sizes_are_hexadecimal_without_leading_zeros() {
        for (length, text) in [(1, "1\r\n"), (15, "f\r\n"), (16, "10\r\n"), (65_536, "10000\r\n"), (0, "0\r\n")] {
            let mut out = Vec::new();
            chunk_start(&mut out, length);
            assert_eq!(out, text.as_bytes());
        }
    }
}
