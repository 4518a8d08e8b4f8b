//! The parsers of HTTP/1.1 under any bytes: no panic, the same result however the bytes were cut, and what was read and
//! written again reads the same.

#![allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]

use bytes::BytesMut;
use http::{HeaderMap, Method, Version};
use proptest::prelude::*;
use staunch::http1::head::{take_request, take_response};
use staunch::http1::{Decoder, Framing, HeadError, Progress, encode, framing};
use staunch::message::{Request, Response};

const LIMIT: usize = 4096;

fn request_head(input: &mut BytesMut, limit: usize) -> Result<Option<Request>, HeadError> {
    let mut request = Request::default();
    Ok(take_request(input, limit, &mut request)?.then_some(request))
}

fn response_head(input: &mut BytesMut, limit: usize) -> Result<Option<(Response, Version)>, HeadError> {
    let mut response = Response::default();
    let version = take_response(input, limit, &mut response)?;
    Ok(version.map(|version| (response, version)))
}

/// Pieces that parsers stumble over, strung together at random.
fn text(pieces: &'static [&'static str]) -> impl Strategy<Value = Vec<u8>> {
    let piece = prop_oneof![
        12 => proptest::sample::select(pieces).prop_map(|piece| piece.as_bytes().to_vec()),
        1 => proptest::collection::vec(any::<u8>(), 0..4),
    ];
    proptest::collection::vec(piece, 0..24).prop_map(|pieces| pieces.concat())
}

const HEAD: &[&str] = &[
    "GET / HTTP/1.1\r\n",
    "POST /a?b HTTP/1.0\r\n",
    "HTTP/1.1 200 OK\r\n",
    "HTTP/1.1 204\r\n",
    "Host: x\r\n",
    "A: b\r\n",
    "Content-Length: 5\r\n",
    "Transfer-Encoding: chunked\r\n",
    "Connection: close\r\n",
    "X: \t y \r\n",
    "\r\n",
    "\r",
    "\n",
    " ",
    "\t",
    ":",
    "\0",
    "\u{7f}",
    "é",
    "GET",
    "/",
    "HTTP/1.1",
    "\r\n\r\n",
    "\r\n folded\r\n",
    "0",
    "5",
    ";",
    "X :1\r\n",
];
const CHUNKS: &[&str] = &[
    "5\r\nhello\r\n",
    "1\r\nx\r\n",
    "0\r\n\r\n",
    "0\r\nX-T: 1\r\n\r\n",
    "0\r\n",
    "a;x=y\r\n0123456789\r\n",
    "\r\n",
    "\r",
    "\n",
    "5",
    "f",
    "F",
    ";",
    "=",
    "\"",
    " ",
    "-",
    "+",
    "0x",
    "ffffffffffffffff\r\n",
    "X-T: 1\r\n",
    "hello",
    "\0",
    "é",
    "00000",
];

/// Reads a head from input that grows by the pieces; the error, or the head as text and what is left behind it.
fn read<H>(
    pieces: &[&[u8]],
    take: impl Fn(&mut BytesMut, usize) -> Result<Option<H>, HeadError>,
    show: impl Fn(&H) -> String,
) -> Result<Option<(String, Vec<u8>)>, HeadError> {
    let mut input = BytesMut::new();
    for (index, piece) in pieces.iter().enumerate() {
        input.extend_from_slice(piece);
        if let Some(head) = take(&mut input, LIMIT)? {
            let rest = pieces[index + 1..].concat();
            return Ok(Some((show(&head), [&input[..], &rest].concat())));
        }
    }
    Ok(None)
}

fn cut(text: &[u8], step: usize) -> Vec<&[u8]> {
    text.chunks(step.max(1)).collect()
}

#[derive(PartialEq, Debug)]
struct Body {
    data: Vec<u8>,
    trailers: Option<HeaderMap>,
    ended: bool,
    failed: bool,
    left: Vec<u8>,
}

fn decode(framing: Framing, pieces: &[&[u8]]) -> Body {
    let (mut decoder, mut input) = (Decoder::new(framing), BytesMut::new());
    let mut body = Body { data: Vec::new(), trailers: None, ended: false, failed: false, left: Vec::new() };
    for (index, piece) in pieces.iter().enumerate() {
        input.extend_from_slice(piece);
        loop {
            match decoder.decode(&mut input) {
                Ok(Progress::Data(data)) => body.data.extend_from_slice(&data),
                Ok(Progress::Trailers(trailers)) => body.trailers = Some(trailers),
                Ok(Progress::NeedMore) => break,
                Ok(Progress::End) => {
                    body.ended = true;
                    body.left = [&input[..], &pieces[index + 1..].concat()].concat();
                    return body;
                }
                Err(_) => {
                    assert!(decoder.decode(&mut input).is_err(), "an error stays one");
                    body.failed = true;
                    return body;
                }
            }
        }
    }
    body
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1500))]

    #[test]
    fn a_request_head_is_the_same_however_it_was_cut(text in text(HEAD), step in 1_usize..20) {
        let show = |head: &Request| format!("{head:?}");
        let whole = read(&[&text], request_head, show);
        let pieces = read(&cut(&text, step), request_head, show);
        // A head that is refused early is refused whole too; which fault is told may differ.
        prop_assert_eq!(whole.is_err(), pieces.is_err());
        if whole.is_ok() {
            prop_assert_eq!(whole, pieces);
        }
    }

    #[test]
    fn a_response_head_is_the_same_however_it_was_cut(text in text(HEAD), step in 1_usize..20) {
        let show = |head: &(Response, Version)| format!("{head:?}");
        let whole = read(&[&text], response_head, show);
        let pieces = read(&cut(&text, step), response_head, show);
        prop_assert_eq!(whole.is_err(), pieces.is_err());
        if whole.is_ok() {
            prop_assert_eq!(whole, pieces);
        }
    }

    #[test]
    fn a_request_head_written_again_reads_the_same(text in text(HEAD)) {
        let mut input = BytesMut::from(&text[..]);
        let Ok(Some(head)) = request_head(&mut input, LIMIT) else { return Ok(()) };
        let mut again = Vec::new();
        encode::request_line(&mut again, &head.method, |line| line.extend_from_slice(&head.target));
        encode::fields(&mut again, &head.headers);
        encode::head_end(&mut again);
        let mut again = BytesMut::from(&again[..]);
        let same = request_head(&mut again, 2 * LIMIT).unwrap().unwrap();
        prop_assert!(again.is_empty());
        prop_assert_eq!((&same.method, &same.target, &same.headers), (&head.method, &head.target, &head.headers));
        if head.version == Version::HTTP_11 {
            prop_assert_eq!(
                framing::of_request(head.version, &head.headers),
                framing::of_request(same.version, &same.headers)
            );
        }
    }

    #[test]
    fn a_response_head_written_again_reads_the_same(text in text(HEAD)) {
        let mut input = BytesMut::from(&text[..]);
        let Ok(Some((head, _))) = response_head(&mut input, LIMIT) else { return Ok(()) };
        let mut again = Vec::new();
        encode::status_line(&mut again, head.status);
        encode::fields(&mut again, &head.headers);
        encode::head_end(&mut again);
        let mut again = BytesMut::from(&again[..]);
        let (same, _) = response_head(&mut again, 2 * LIMIT).unwrap().unwrap();
        prop_assert!(again.is_empty());
        prop_assert_eq!((same.status, &same.headers), (head.status, &head.headers));
        let framed = |head: &Response| {
            framing::of_response(&Method::GET, head.status, Version::HTTP_11, &head.headers)
        };
        prop_assert_eq!(framed(&head), framed(&same));
    }

    #[test]
    fn a_chunked_body_is_the_same_however_it_was_cut(text in text(CHUNKS), step in 1_usize..20) {
        let (whole, pieces) = (decode(Framing::Chunked, &[&text]), decode(Framing::Chunked, &cut(&text, step)));
        prop_assert_eq!(whole, pieces);
    }

    #[test]
    fn a_sized_body_is_the_same_however_it_was_cut(text in text(CHUNKS), step in 1_usize..20, length in 1_u64..64) {
        let framing = Framing::Length(length);
        prop_assert_eq!(decode(framing, &[&text]), decode(framing, &cut(&text, step)));
    }

    #[test]
    fn a_chunked_body_written_is_read_as_it_was(
        chunks in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 1..40), 0..8),
        trailer in proptest::option::of("[ -~]{0,12}"),
        step in 1_usize..20,
    ) {
        let mut again = Vec::new();
        for chunk in &chunks {
            encode::chunk_start(&mut again, chunk.len());
            again.extend_from_slice(chunk);
            encode::chunk_end(&mut again);
        }
        let trailers = trailer.map(|value| HeaderMap::from_iter([("x-t".parse().unwrap(), value.trim().parse().unwrap())]));
        encode::last_chunk(&mut again, trailers.as_ref());
        let same = decode(Framing::Chunked, &cut(&again, step));
        prop_assert!(same.ended && same.left.is_empty());
        prop_assert_eq!(same.data, chunks.concat());
        prop_assert_eq!(same.trailers, trailers);
    }

    #[test]
    fn any_bytes_are_read_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..600), step in 1_usize..64) {
        let _ = request_head(&mut BytesMut::from(&bytes[..]), 256);
        let _ = response_head(&mut BytesMut::from(&bytes[..]), 256);
        let _ = decode(Framing::Chunked, &cut(&bytes, step));
    }
}
