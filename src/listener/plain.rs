//! A connection without TLS: HTTP/1.1, or HTTP/2 by prior knowledge, told from one another by their first octets.

use super::arrival::Protocol;
use super::drain::Drain;
use super::{http1, http2, spare};
use crate::proxy::{Gateway, Peer};
use bytes::BytesMut;
use std::io;
use std::rc::Rc;
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout};

/// `None`: the client left, or said nothing while the gateway drains.
pub async fn begin(
    io: TcpStream,
    peer: Rc<Peer>,
    gateway: Rc<Gateway>,
    drain: Rc<Drain>,
) -> Option<Protocol<TcpStream>> {
    let opened = Instant::now();
    let mut input = BytesMut::new();
    let speaks_http2 = tokio::select! {
        biased;
        answer = timeout(peer.bounds.header_timeout, starts_like_http2(&io, &mut input)) => answer,
        () = drain.left_behind() => return None,
    };
    match speaks_http2 {
        Ok(Ok(true)) => Some(Protocol::Other(Box::pin(http2::serve(http2::rewound(io, input), peer, gateway, drain)))),
        // A sender too slow for even this gets its 408 from the HTTP/1.1 side.
        Ok(Ok(false)) | Err(_) => Some(Protocol::Http1 { io, begun: http1::Begun { input, opened }, peer }),
        Ok(Err(_)) => None,
    }
}

/// Reads until it is clear whether the connection begins with the HTTP/2 preface.
async fn starts_like_http2(io: &TcpStream, input: &mut BytesMut) -> io::Result<bool> {
    loop {
        io.readable().await?;
        if input.capacity() == 0 {
            *input = spare::take();
        }
        match io.try_read_buf(input) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                // A socket may be called readable and be empty; a silent client shall cost no buffer.
                if input.is_empty() {
                    spare::put(std::mem::take(input));
                }
                continue;
            }
            Err(error) => return Err(error),
        }
        let compared = input.len().min(http2::PREFACE.len());
        if input[..compared] != http2::PREFACE[..compared] {
            return Ok(false);
        }
        if compared == http2::PREFACE.len() {
            return Ok(true);
        }
    }
}
