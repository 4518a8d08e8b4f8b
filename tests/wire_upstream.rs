//! What upstreams answer that is odd, and what the client must see of it: a well-formed answer, a 502 of ours, or a
//! connection visibly cut. Never a hang, and never a second answer that the first has spoilt.

#![allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]

mod support;

use Wanted::{Cut, Refused, Told};
use support::wire::{Answer, Client, Gateway, Step, Upstream};

#[derive(Clone, Copy, PartialEq, Debug)]
enum Wanted {
    /// An answer of this status and body.
    Told(u16, &'static str),
    /// A problem document of ours, with this status.
    Refused(u16),
    /// No whole answer, and the connection's end.
    Cut,
}

struct Case {
    target: &'static str,
    /// `|` stands between pieces that arrive one by one, a final `$` for the connection's end.
    answer: &'static str,
    wanted: Wanted,
}

const fn case(target: &'static str, answer: &'static str, wanted: Wanted) -> Case {
    Case { target, answer, wanted }
}

#[rustfmt::skip]
const CASES: &[Case] = &[
    // Framing as it should be.
    case("/length", "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello", Told(200, "hello")),
    case("/length-in-pieces", "HTTP/1.1 200 OK\r\nContent-|Length: 5\r\n\r|\nhe|llo", Told(200, "hello")),
    case("/no-body", "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", Told(200, "")),
    case("/chunked", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n6\r\n world\r\n0\r\n\r\n", Told(200, "hello world")),
    case("/chunked-in-pieces", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5|\r\nhel|lo\r|\n0\r\n|\r|\n", Told(200, "hello")),
    case("/chunked-extensions", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5;a=b;c=\"d\"\r\nhello\r\n0;z\r\n\r\n", Told(200, "hello")),
    case("/chunked-trailers", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\nX-Sum: 42\r\n\r\n", Told(200, "hello")),
    case("/until-close", "HTTP/1.1 200 OK\r\nX-A: 1\r\n\r\nuntil| the end$", Told(200, "until the end")),
    case("/http10", "HTTP/1.0 200 OK\r\nX-A: 1\r\n\r\nold$", Told(200, "old")),
    case("/http10-keep-alive", "HTTP/1.0 200 OK\r\nConnection: keep-alive\r\nContent-Length: 3\r\n\r\nold", Told(200, "old")),
    case("/then-close", "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok$", Told(200, "ok")),
    case("/close-told", "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\nok$", Told(200, "ok")),
    // Status lines.
    case("/no-reason", "HTTP/1.1 200\r\nContent-Length: 2\r\n\r\nok", Told(200, "ok")),
    case("/999", "HTTP/1.1 999 Odd\r\nContent-Length: 2\r\n\r\nok", Told(999, "ok")),
    case("/099", "HTTP/1.1 099 Odd\r\nContent-Length: 2\r\n\r\nok$", Refused(502)),
    case("/two-digits", "HTTP/1.1 20 Odd\r\nContent-Length: 2\r\n\r\nok$", Refused(502)),
    case("/http2-version", "HTTP/2.0 200 OK\r\nContent-Length: 2\r\n\r\nok$", Refused(502)),
    case("/garbage", "SSH-2.0-OpenSSH_9.2\r\n$", Refused(502)),
    case("/garbage-and-silence", "SSH-2.0-OpenSSH_9.2\n", Refused(502)),
    case("/empty", "$", Refused(502)),
    case("/half-a-head", "HTTP/1.1 200 OK\r\nContent-Le$", Refused(502)),
    case("/silence", "", Refused(504)),
    // Interim answers.
    case("/100", "HTTP/1.1 100 Continue\r\n\r\n|HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok", Told(200, "ok")),
    case("/100-together", "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok", Told(200, "ok")),
    case("/103", "HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n|HTTP/1.1 103 Early Hints\r\n\r\n|HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok", Told(200, "ok")),
    case("/100-and-close", "HTTP/1.1 100 Continue\r\n\r\n$", Refused(502)),
    case("/100-and-silence", "HTTP/1.1 100 Continue\r\n\r\n", Refused(504)),
    case("/101", "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: upgrade\r\n\r\nraw", Refused(502)),
    // Answers that have no body, whatever they say or send.
    case("/204", "HTTP/1.1 204 No Content\r\nX-A: 1\r\n\r\n", Told(204, "")),
    case("/204-length", "HTTP/1.1 204 No Content\r\nContent-Length: 5\r\n\r\n", Told(204, "")),
    case("/204-body", "HTTP/1.1 204 No Content\r\nContent-Length: 5\r\n\r\nhello", Told(204, "")),
    case("/204-length-later", "HTTP/1.1 204 No Content\r\nContent-Length: 5\r\n\r\n|hello", Told(204, "")),
    case("/204-body-later", "HTTP/1.1 204 No Content\r\n\r\n|hello", Told(204, "")),
    case("/204-chunked", "HTTP/1.1 204 No Content\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", Told(204, "")),
    case("/304-length", "HTTP/1.1 304 Not Modified\r\nETag: \"x\"\r\nContent-Length: 1234\r\n\r\n", Told(304, "")),
    case("/304-body", "HTTP/1.1 304 Not Modified\r\nContent-Length: 5\r\n\r\nhello", Told(304, "")),
    case("/205", "HTTP/1.1 205 Reset Content\r\nContent-Length: 0\r\n\r\n", Told(205, "")),
    // Octets that belong to nobody.
    case("/stray", "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nokSTRAY", Told(200, "ok")),
    case("/stray-later", "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok|STRAY", Told(200, "ok")),
    case("/second-answer", "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nokHTTP/1.1 200 OK\r\nX-Poison: 1\r\nContent-Length: 6\r\n\r\npoison", Told(200, "ok")),
    case("/second-answer-later", "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok|HTTP/1.1 200 OK\r\nX-Poison: 1\r\nContent-Length: 6\r\n\r\npoison", Told(200, "ok")),
    case("/stray-after-chunks", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\npoison", Told(200, "ok")),
    // Lengths that contradict each other, or nothing that we can cut by.
    case("/two-lengths", "HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nhello!$", Refused(502)),
    case("/two-lengths-in-one", "HTTP/1.1 200 OK\r\nContent-Length: 5, 6\r\n\r\nhello!$", Refused(502)),
    case("/negative-length", "HTTP/1.1 200 OK\r\nContent-Length: -5\r\n\r\nhello$", Refused(502)),
    case("/signed-length", "HTTP/1.1 200 OK\r\nContent-Length: +5\r\n\r\nhello$", Refused(502)),
    case("/huge-length", "HTTP/1.1 200 OK\r\nContent-Length: 18446744073709551621\r\n\r\nhello$", Refused(502)),
    case("/length-and-chunked", "HTTP/1.1 200 OK\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n$", Refused(502)),
    case("/gzip-chunked", "HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n$", Refused(502)),
    case("/unknown-coding", "HTTP/1.1 200 OK\r\nTransfer-Encoding: foo\r\n\r\nhello$", Refused(502)),
    case("/chunked-twice", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n$", Refused(502)),
    case("/http10-chunked", "HTTP/1.0 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n$", Refused(502)),
    // Heads that two readers could cut differently.
    case("/bare-lf", "HTTP/1.1 200 OK\nX-A: 1\nContent-Length: 2\n\nok$", Refused(502)),
    case("/one-bare-lf", "HTTP/1.1 200 OK\r\nX-A: 1\nX-B: 2\r\nContent-Length: 2\r\n\r\nok$", Refused(502)),
    case("/bare-cr", "HTTP/1.1 200 OK\r\nX-A: 1\rX-B: 2\r\nContent-Length: 2\r\n\r\nok$", Refused(502)),
    case("/cr-cr-lf", "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\r\nok", Refused(502)),
    case("/folded", "HTTP/1.1 200 OK\r\nX-F: one\r\n two\r\nContent-Length: 2\r\n\r\nok$", Refused(502)),
    case("/nul", "HTTP/1.1 200 OK\r\nX-A: a\0b\r\nContent-Length: 2\r\n\r\nok$", Refused(502)),
    case("/escape", "HTTP/1.1 200 OK\r\nX-A: \x1b[31m\r\nContent-Length: 2\r\n\r\nok$", Refused(502)),
    case("/bad-name", "HTTP/1.1 200 OK\r\nX A: 1\r\nContent-Length: 2\r\n\r\nok$", Refused(502)),
    case("/no-colon", "HTTP/1.1 200 OK\r\nX-A\r\nContent-Length: 2\r\n\r\nok$", Refused(502)),
    case("/space-before-colon", "HTTP/1.1 200 OK\r\nContent-Length : 2\r\n\r\nok$", Refused(502)),
    // Bodies that do not come to their end.
    case("/cut-length", "HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhello$", Cut),
    case("/cut-before-the-body", "HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n$", Cut),
    case("/cut-chunk", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n6\r\n wo$", Cut),
    case("/cut-before-a-chunk", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n$", Cut),
    case("/cut-before-the-last-line", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n$", Cut),
    case("/bad-chunk-size", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n|zz\r\n", Cut),
    case("/bad-first-chunk", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n-5\r\nhello\r\n0\r\n\r\n", Cut),
    case("/chunk-bare-lf", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n5\nhello\r\n0\r\n\r\n", Cut),
    case("/chunk-not-closed", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhelloworld\r\n0\r\n\r\n", Cut),
    case("/bad-trailers", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\nX-A : 1\r\n\r\n", Cut),
    case("/trailers-bare-lf", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\nX-A: 1\n", Cut),
];

const FINE: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nfine";

fn steps(answer: &str) -> Vec<Step> {
    let (octets, closes) = answer.strip_suffix('$').map_or((answer, false), |octets| (octets, true));
    let mut steps = Vec::new();
    for piece in octets.split('|') {
        if !steps.is_empty() {
            steps.push(Step::Apart);
        }
        steps.push(Step::Send(piece.as_bytes().to_vec()));
    }
    steps.extend(closes.then_some(Step::Close));
    steps
}

fn start() -> (Upstream, Gateway) {
    let upstream = Upstream::start(|target| {
        let known = CASES.iter().find(|case| case.target == target);
        known.map_or_else(|| special(target), |case| steps(case.answer))
    });
    let gateway = Gateway::start(upstream.address, "", "");
    (upstream, gateway)
}

fn special(target: &str) -> Vec<Step> {
    match target {
        "/huge-head" => {
            let head = format!("HTTP/1.1 200 OK\r\nX-Big: {}\r\nContent-Length: 2\r\n\r\nok", "a".repeat(1 << 20));
            vec![Step::Send(head.into_bytes())]
        }
        "/many-fields" | "/too-many-fields" => {
            let head = format!(
                "HTTP/1.1 200 OK\r\n{}Content-Length: 2\r\n\r\nok",
                "X-A: 1\r\n".repeat(if target == "/too-many-fields" { 2000 } else { 500 })
            );
            vec![Step::Send(head.into_bytes())]
        }
        "/endless-hints" => std::iter::repeat_n(Step::Send(b"HTTP/1.1 103 Early Hints\r\n\r\n".to_vec()), 100)
            .chain([Step::Hang])
            .collect(),
        "/fields" => steps(
            "HTTP/1.1 200 OK\r\nConnection: X-Hop, keep-alive\r\nX-Hop: secret\r\nKeep-Alive: timeout=5\r\n\
             Proxy-Connection: keep-alive\r\nSet-Cookie: a=1\r\nSet-Cookie: b=2\r\nContent-Length: 2\r\n\r\nok",
        ),
        "/smuggling-trailers" => steps(
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\nX-Sum: 42\r\nContent-Length: 7\r\n\
             Set-Cookie: a=1\r\n\r\n",
        ),
        "/socket" => steps(
            "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: upgrade\r\nContent-Length: 3\r\n\r\n\
             octets$",
        ),
        "/other-protocol" => {
            steps("HTTP/1.1 101 Switching Protocols\r\nUpgrade: foo\r\nConnection: upgrade\r\n\r\nraw")
        }
        "/early/refusal" => {
            steps("HTTP/1.1 413 Content Too Large\r\nConnection: close\r\nContent-Length: 2\r\n\r\nno$")
        }
        "/early/answer" => steps("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nearly"),
        _ => vec![Step::Send(FINE.to_vec())],
    }
}

/// Whether an answer is what was wanted; the words for the report if not.
fn judge(wanted: Wanted, answer: Result<&Answer, &String>) -> Result<(), String> {
    let well = match (wanted, answer) {
        (Told(status, body), Ok(answer)) => answer.status == status && answer.body == body.as_bytes(),
        (Refused(status), Ok(answer)) => {
            answer.status == status && answer.values("content-type") == ["application/problem+json"]
        }
        (Cut, Err(_)) => true,
        _ => false,
    };
    if well { Ok(()) } else { Err(format!("wanted {wanted:?}, got {answer:?}")) }
}

#[test]
fn an_odd_answer_reaches_the_client_whole_or_not_at_all_and_spoils_no_other() {
    let (upstream, gateway) = start();
    let mut faults = Vec::new();
    for case in CASES {
        let mut client = Client::connect(gateway.address);
        let answer = client.get(case.target);
        if let Err(why) = judge(case.wanted, answer.as_ref()) {
            faults.push(format!("{}: {why}", case.target));
        }
        if case.wanted == Cut {
            assert_eq!(client.rest(), b"", "{}", case.target);
        } else {
            // What came late has come by then.
            std::thread::sleep(std::time::Duration::from_millis(if case.answer.contains('|') { 40 } else { 0 }));
            if let Err(why) = judge(Told(200, "fine"), client.get("/fine").as_ref()) {
                faults.push(format!("{}, the request behind it: {why}", case.target));
            }
        }
    }
    assert!(faults.is_empty(), "{} of {}:\n{}", faults.len(), CASES.len(), faults.join("\n"));
    assert_eq!(upstream.take_malformed(), [""; 0]);
}

#[test]
fn an_answer_to_head_has_no_body_whatever_the_upstream_sends() {
    for answer in [
        "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n",
        "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello",
        "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n|hello",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
        "HTTP/1.1 200 OK\r\n\r\n",
    ] {
        let upstream = Upstream::start(move |target| match target {
            "/head" => steps(answer),
            _ => vec![Step::Send(FINE.to_vec())],
        });
        let gateway = Gateway::start(upstream.address, "", "");
        let mut client = Client::connect(gateway.address);
        client.send(b"HEAD /head HTTP/1.1\r\nHost: wire.test\r\n\r\n");
        let head = client.answer(true).unwrap();
        assert_eq!(head.status, 200, "{answer:?}");
        if answer.contains("Length") {
            assert_eq!(head.values("content-length"), ["5"], "{answer:?}");
        }
        std::thread::sleep(std::time::Duration::from_millis(40));
        assert_eq!(client.get("/fine").unwrap().body, b"fine", "{answer:?}");
    }
}

#[test]
fn a_204_tells_no_length_and_hop_by_hop_fields_stay_behind() {
    let (_upstream, gateway) = start();
    let mut client = Client::connect(gateway.address);
    let answer = client.get("/204-length").unwrap();
    assert_eq!(answer.values("content-length"), [""; 0]);
    let answer = client.get("/fields").unwrap();
    assert_eq!(answer.values("set-cookie"), ["a=1", "b=2"]);
    for name in ["x-hop", "keep-alive", "proxy-connection"] {
        assert_eq!(answer.values(name), [""; 0], "{name}");
    }
    let answer = client.get("/smuggling-trailers").unwrap();
    assert_eq!((answer.body.as_slice(), answer.trailers.as_str()), (&b"ok"[..], "x-sum: 42\n"));
}

#[test]
fn a_head_without_end_is_refused_and_hints_without_end_time_out() {
    let (_upstream, gateway) = start();
    for (target, status) in [("/huge-head", 502), ("/too-many-fields", 502), ("/endless-hints", 504)] {
        let mut client = Client::connect(gateway.address);
        let answer = client.get(target);
        assert!(judge(Refused(status), answer.as_ref()).is_ok(), "{target}: {answer:?}");
        assert_eq!(client.get("/fine").unwrap().body, b"fine");
    }
    assert_eq!(Client::connect(gateway.address).get("/many-fields").unwrap().values("x-a").len(), 500);
}

#[test]
fn an_answer_before_the_requests_end_is_passed_on_at_once() {
    let (_upstream, gateway) = start();
    for (target, status, body) in [("/early/refusal", 413, "no"), ("/early/answer", 200, "early")] {
        let mut client = Client::connect(gateway.address);
        client
            .send(format!("POST {target} HTTP/1.1\r\nHost: wire.test\r\nContent-Length: 500000\r\n\r\nabc").as_bytes());
        let answer = client.answer(false).unwrap();
        assert_eq!((answer.status, answer.body.as_slice()), (status, body.as_bytes()), "{target}");
        // The rest of that body must never be read as a request.
        client.send(b"GET /fine HTTP/1.1\r\nHost: wire.test\r\n\r\n");
        assert!(client.answer(false).is_err(), "{target}");
    }
}

#[test]
fn an_answer_cut_for_an_old_client_is_cut_for_it_too() {
    let (_upstream, gateway) = start();
    let mut client = Client::connect(gateway.address);
    client.send(b"GET /chunked HTTP/1.0\r\n\r\n");
    let answer = client.answer(false).unwrap();
    assert_eq!((answer.body.as_slice(), answer.values("transfer-encoding").len()), (&b"hello world"[..], 0));
    assert_eq!(answer.values("connection"), ["close"]);
}

#[test]
fn a_switch_of_protocols_is_passed_on_only_to_the_one_that_was_asked_for() {
    let (_upstream, gateway) = start();
    let ask = |target: &str| {
        format!("GET {target} HTTP/1.1\r\nHost: wire.test\r\nConnection: Upgrade\r\nUpgrade: WebSocket\r\n\r\n")
    };
    let mut client = Client::connect(gateway.address);
    client.send(ask("/socket").as_bytes());
    let answer = client.answer(false).unwrap();
    assert_eq!(
        (answer.status, answer.values("upgrade"), answer.values("content-length")),
        (101, vec!["websocket"], vec![])
    );
    client.socket.shutdown(std::net::Shutdown::Write).unwrap();
    assert_eq!(client.rest(), b"octets");
    let mut client = Client::connect(gateway.address);
    client.send(ask("/other-protocol").as_bytes());
    assert!(judge(Refused(502), client.answer(false).as_ref()).is_ok());
}
