//! TLS on a listener: versions, protocols, names, certificates that change, and clients that speak something else.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test stops at the first surprise")]

mod support;

use bytes::Bytes;
use http_body_util::{BodyExt, Empty};
use hyper_util::rt::{TokioExecutor, TokioIo};
use rustls::pki_types::CertificateDer;
use rustls::version::{TLS12, TLS13};
use std::fs;
use std::path::Path;
use std::process::Command;
use support::client::Connection;
use support::gateway::{BINARY, Gateway, Setup};
use support::tls::{Trust, issue};
use support::upstream::Upstream;
use support::wait::eventually;

const ROUTES: &str = "[[routes]]\npath = \"/*\"\nupstream = \"up\"\n";
const PAIR: &str = r#"tls = { certificate = "a.pem", private_key = "a.key" }"#;

/// A gateway with certificates beside its file.
fn start(listener: &str, certificates: &[(&str, &[&str])]) -> (Gateway, Upstream, Vec<CertificateDer<'static>>) {
    let upstream = Upstream::start();
    let issued = std::cell::RefCell::new(Vec::new());
    let gateway = Setup::new(upstream.table() + ROUTES).listener(listener).start_in(|folder, text| {
        issued.replace(certificates.iter().map(|(name, names)| issue(folder, name, names)).collect());
        let file = folder.join("staunch.toml");
        fs::write(&file, text).unwrap();
        file
    });
    (gateway, upstream, issued.into_inner())
}

#[test]
fn both_versions_serve_https_and_resume() {
    let (gateway, upstream, issued) = start(PAIR, &[("a", &["localhost"])]);
    for version in [&TLS12, &TLS13] {
        let trust = Trust::with(&issued, &[version], &[]);
        let mut first = trust.connect(gateway.port, "localhost").unwrap();
        assert_eq!(first.version(), Some(version.version));
        let path = format!("/{:?}", version.version);
        assert!(first.get(&path).unwrap().0.starts_with("HTTP/1.1 200"));
        assert!(first.get("/two").unwrap().0.starts_with("HTTP/1.1 200"), "kept alive");
        assert!(!first.is_resumed());
        assert_eq!(upstream.hit(&path).field("x-forwarded-proto"), Some("https"));
        let mut again = trust.connect(gateway.port, "localhost").unwrap();
        assert!(again.get("/three").is_ok());
        assert!(again.is_resumed(), "{:?}", version.version);
    }
}

#[test]
fn the_oldest_version_can_be_raised() {
    let (gateway, _upstream, issued) = start(&format!("{PAIR}\ntls_min_version = \"1.3\""), &[("a", &["localhost"])]);
    assert!(Trust::with(&issued, &[&TLS12], &[]).connect(gateway.port, "localhost").is_err());
    let mut newer = Trust::with(&issued, &[&TLS13], &[]).connect(gateway.port, "localhost").unwrap();
    assert!(newer.get("/").is_ok());
    eventually("the failure is counted", || {
        gateway.metric("staunch_handshake_failures_total", &["reason=\"tls\""]) == 1.0
    });
}

#[test]
fn http_2_is_chosen_by_alpn() {
    let (gateway, upstream, issued) = start(PAIR, &[("a", &["localhost"])]);
    let trust = Trust::with(&issued, rustls::ALL_VERSIONS, &[b"h2", b"http/1.1"]);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let answer = runtime.block_on(async {
        let socket = tokio::net::TcpStream::connect(("127.0.0.1", gateway.port)).await.unwrap();
        let name = "localhost".try_into().unwrap();
        let stream = tokio_rustls::TlsConnector::from(trust.0.clone()).connect(name, socket).await.unwrap();
        assert_eq!(stream.get_ref().1.alpn_protocol(), Some(&b"h2"[..]));
        let (mut sender, connection) =
            hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await.unwrap();
        tokio::spawn(connection);
        let request = http::Request::get("https://localhost/over-h2").body(Empty::<Bytes>::new()).unwrap();
        let answer = sender.send_request(request).await.unwrap();
        (answer.status(), answer.into_body().collect().await.unwrap().to_bytes())
    });
    assert_eq!(answer, (http::StatusCode::OK, Bytes::from_static(b"ok")));
    assert_eq!(upstream.hit("/over-h2").field("x-forwarded-proto"), Some("https"));
    let mut older =
        Trust::with(&issued, rustls::ALL_VERSIONS, &[b"http/1.1"]).connect(gateway.port, "localhost").unwrap();
    assert!(older.get("/").unwrap().0.starts_with("HTTP/1.1 200"));
}

#[test]
fn each_name_gets_its_certificate() {
    let several = r#"tls = [
  { certificate = "a.pem", private_key = "a.key" },
  { certificate = "b.pem", private_key = "b.key" },
  { certificate = "c.pem", private_key = "c.key" },
]"#;
    let names: [(&str, &[&str]); 3] = [("a", &["localhost"]), ("b", &["*.shop.example"]), ("c", &["api.shop.example"])];
    let (gateway, _upstream, issued) = start(several, &names);
    let trust = Trust::of(&issued);
    for (name, index) in [("localhost", 0), ("www.shop.example", 1), ("api.shop.example", 2)] {
        let connection = trust.connect(gateway.port, name).unwrap();
        assert_eq!(connection.certificate(), issued[index], "{name}");
    }
    let stranger = trust.connect(gateway.port, "elsewhere.example").unwrap_err();
    assert!(stranger.to_string().contains("certificate"), "the default's names do not fit: {stranger}");
}

#[test]
fn a_changed_pair_is_taken_up_and_a_broken_one_is_not() {
    let (gateway, _upstream, issued) = start(PAIR, &[("a", &["localhost"])]);
    let mut open = Trust::of(&issued).connect(gateway.port, "localhost").unwrap();
    assert!(open.get("/").is_ok());
    let reloads = |result: &str| gateway.metric("staunch_certificate_reloads_total", &[&format!("\"{result}\"")]);
    let folder = gateway.folder();

    let fresh = issue(folder, "a", &["localhost"]);
    eventually("the new certificate is taken up", || {
        Trust::of(std::slice::from_ref(&fresh)).connect(gateway.port, "localhost").is_ok()
    });
    assert!(open.get("/").is_ok(), "an open connection is not touched");
    eventually("it is counted", || (reloads("ok"), reloads("rejected")) == (1.0, 0.0));

    issue(folder, "b", &["localhost"]);
    fs::rename(folder.join("b.key"), folder.join("a.key")).unwrap();
    eventually("the mismatch is found", || reloads("rejected") == 1.0);
    eventually("it is told", || gateway.log().contains("is not the key of this certificate"));
    assert!(Trust::of(&[fresh]).connect(gateway.port, "localhost").is_ok(), "the one in force stays");

    let other = fs::read_to_string(folder.join("b.pem")).unwrap();
    fs::write(folder.join("a.pem"), other).unwrap();
    eventually("the whole pair is taken up", || reloads("ok") == 2.0);
    assert!(open.get("/").is_ok());
}

/// As Kubernetes publishes a secret, and with a reload of the configuration meanwhile.
#[test]
fn a_swapped_folder_and_a_reload_take_up_new_certificates() {
    let publish = |folder: &Path, version: &str| {
        let data = folder.join(format!("..{version}"));
        fs::create_dir(&data).unwrap();
        let issued = issue(&data, "a", &["localhost"]);
        std::os::unix::fs::symlink(data.file_name().unwrap(), folder.join("..fresh")).unwrap();
        fs::rename(folder.join("..fresh"), folder.join("..data")).unwrap();
        issued
    };
    let upstream = Upstream::start();
    let listener = r#"tls = { certificate = "..data/a.pem", private_key = "..data/a.key" }"#;
    let gateway = Setup::new(upstream.table() + ROUTES).listener(listener).start_in(|folder, text| {
        publish(folder, "1");
        fs::write(folder.join("staunch.toml"), text).unwrap();
        folder.join("staunch.toml")
    });
    let second = publish(gateway.folder(), "2");
    eventually("the swap is seen", || {
        Trust::of(std::slice::from_ref(&second)).connect(gateway.port, "localhost").is_ok()
    });
    let third = publish(gateway.folder(), "3");
    assert_eq!(gateway.reload().status, 200);
    assert!(Trust::of(&[third]).connect(gateway.port, "localhost").is_ok(), "a reload reads them at once");
}

#[test]
fn plain_http_on_a_tls_port_is_told_so() {
    let (gateway, upstream, _) = start(PAIR, &[("a", &["localhost"])]);
    let mut plain = Connection::open(gateway.port);
    let answer = plain.get("/", &[]);
    assert_eq!((answer.status, answer.field("connection")), (400, Some("close")));
    assert!(answer.text().contains("use https"), "{}", answer.text());
    let mut junk = Connection::open(gateway.port);
    junk.send([0; 40]);
    assert!(junk.is_closed());
    for reason in ["plain_http", "tls"] {
        eventually(reason, || {
            gateway.metric("staunch_handshake_failures_total", &[&format!("reason=\"{reason}\"")]) == 1.0
        });
    }
    assert!(upstream.hits().is_empty());
}

#[test]
fn a_handshake_that_does_not_come_to_its_end_is_cut() {
    let listener = format!("{PAIR}\nheader_timeout = \"300ms\"");
    let (gateway, _upstream, _) = start(&listener, &[("a", &["localhost"])]);
    let mut slow = Connection::open(gateway.port);
    slow.send([22, 3, 1, 2, 0, 1]);
    assert!(slow.is_closed());
    eventually("it is counted", || gateway.metric("staunch_handshake_failures_total", &["reason=\"timeout\""]) == 1.0);
}

#[test]
fn a_short_answer_is_one_record() {
    let (gateway, _upstream, issued) = start(PAIR, &[("a", &["localhost"])]);
    let mut connection = Trust::of(&issued).connect(gateway.port, "localhost").unwrap();
    connection.get("/").unwrap();
    connection.records();
    connection.get("/").unwrap();
    assert_eq!(connection.records(), [23]);
}

#[test]
fn what_is_wrong_with_a_pair_is_said_with_its_place() {
    let folder = tempfile::tempdir().unwrap();
    issue(folder.path(), "a", &["localhost"]);
    issue(folder.path(), "b", &["localhost"]);
    fs::write(folder.path().join("empty"), "nothing\n").unwrap();
    let cases = [
        (
            r#"tls = { certificate = "no.pem", private_key = "a.key" }"#,
            "3:23: listeners[0].tls.certificate: `no.pem` cannot be read",
        ),
        (
            r#"tls = { certificate = "empty", private_key = "a.key" }"#,
            "3:23: listeners[0].tls.certificate: `empty` holds no certificate",
        ),
        (
            r#"tls = { certificate = "a.pem", private_key = "a.pem" }"#,
            "3:46: listeners[0].tls.private_key: `a.pem` holds no private key",
        ),
        (
            r#"tls = { certificate = "a.pem", private_key = "b.key" }"#,
            "3:46: listeners[0].tls.private_key: `b.key` is not the key",
        ),
        (
            r#"tls = [{ certificate = "a.pem", private_key = "a.key" }, { certificate = "b.pem", private_key = "x.key" }]"#,
            "3:97: listeners[0].tls[1].private_key: `x.key` cannot be read",
        ),
        (r#"tls = { certificate = "a.pem" }"#, "3:7: listeners[0].tls.private_key: missing"),
        ("tls = []", "3:7: listeners[0].tls: no certificate"),
        ("tls = true", "3:7: listeners[0].tls: expected a table"),
        ("tls_min_version = \"1.3\"", "3:1: listeners[0].tls_min_version: there is no `tls`"),
        (&format!("{PAIR}\ntls_min_version = \"1.1\""), "4:19: listeners[0].tls_min_version: unknown value `1.1`"),
    ];
    for (lines, expected) in cases {
        let text = format!(
            "[[listeners]]\naddress = \"127.0.0.1:8080\"\n{lines}\n[upstreams.up]\nendpoints = [\"http://127.0.0.1:1\"]\n{ROUTES}"
        );
        let file = folder.path().join("staunch.toml");
        fs::write(&file, text).unwrap();
        let output = Command::new(BINARY).arg("check").arg(&file).output().unwrap();
        let told = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(78), "{lines}: {told}");
        assert!(told.contains(&format!("staunch.toml:{expected}")), "{lines}: {told}");
    }
}
