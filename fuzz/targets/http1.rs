//! HTTP/1.1 as both sides read it: a message, an error, or a wait for more; and the same however it was cut into pieces.
#![no_main]

use bytes::BytesMut;
use http::Method;
use libfuzzer_sys::fuzz_target;
use staunch::http1::{Decoder, Framing, Progress, framing, head};
use staunch::message::{Request, Response};

const LIMIT: usize = 4096;

/// What a body came to: its octets, whether it ended, and whether it was refused.
fn body(framing: Framing, pieces: &[&[u8]]) -> (Vec<u8>, bool, bool) {
    let (mut decoder, mut input, mut data) = (Decoder::new(framing), BytesMut::new(), Vec::new());
    for piece in pieces {
        input.extend_from_slice(piece);
        loop {
            match decoder.decode(&mut input) {
                Ok(Progress::Data(more)) => data.extend_from_slice(&more),
                Ok(Progress::Trailers(_)) => {}
                Ok(Progress::End) => return (data, true, false),
                Ok(Progress::NeedMore) => break,
                Err(_) => return (data, false, true),
            }
        }
    }
    (data, decoder.is_done(), false)
}

fn request(pieces: &[&[u8]]) -> Option<(Framing, Vec<u8>)> {
    let mut input = BytesMut::new();
    for (nth, piece) in pieces.iter().enumerate() {
        input.extend_from_slice(piece);
        let mut found = Request::default();
        match head::take_request(&mut input, LIMIT, &mut found) {
            Ok(true) => {
                let rest = [&input[..], &pieces[nth + 1..].concat()].concat();
                return Some((framing::of_request(found.version, &found.headers).ok()?, rest));
            }
            Ok(false) => {}
            Err(_) => return None,
        }
    }
    None
}

fuzz_target!(|octets: &[u8]| {
    let Some((step, octets)) = octets.split_first() else { return };
    let pieces: Vec<&[u8]> = octets.chunks(usize::from(*step).max(1)).collect();
    let whole = request(&[octets]);
    if octets.len() < LIMIT {
        assert_eq!(whole, request(&pieces));
    }
    if let Some((framing, rest)) = whole {
        let pieces: Vec<&[u8]> = rest.chunks(usize::from(*step).max(1)).collect();
        assert_eq!(body(framing, &[&rest]), body(framing, &pieces));
    }
    let mut input = BytesMut::from(octets);
    let mut found = Response::default();
    if let Ok(Some(version)) = head::take_response(&mut input, LIMIT, &mut found)
        && let Ok(framing) = framing::of_response(&Method::GET, found.status, version, &found.headers)
    {
        body(framing, &[&input]);
    }
});
