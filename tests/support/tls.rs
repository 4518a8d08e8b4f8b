//! Certificates of our own making, and a client that trusts them.

use super::wait::PATIENCE;
use rcgen::{CertificateParams, KeyPair};
use rustls::crypto::ring::default_provider;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, ClientConnection, HandshakeKind, RootCertStore, StreamOwned, SupportedProtocolVersion};
use std::fs;
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, TcpStream};
use std::path::Path;
use std::sync::Arc;

/// Writes `NAME.pem` and `NAME.key` into the folder, for these DNS names.
pub fn issue(folder: &Path, name: &str, names: &[&str]) -> CertificateDer<'static> {
    let key = KeyPair::generate().expect("a key");
    let names: Vec<String> = names.iter().map(ToString::to_string).collect();
    let certificate = CertificateParams::new(names).expect("names").self_signed(&key).expect("a certificate");
    fs::write(folder.join(format!("{name}.pem")), certificate.pem()).expect("a folder of our own");
    fs::write(folder.join(format!("{name}.key")), key.serialize_pem()).expect("a folder of our own");
    certificate.der().clone()
}

/// One client's settings: whom it trusts, and what it remembers for resuming.
#[derive(Clone, Debug)]
pub struct Trust(pub Arc<ClientConfig>);

impl Trust {
    pub fn of(certificates: &[CertificateDer<'static>]) -> Self {
        Self::with(certificates, rustls::ALL_VERSIONS, &[])
    }

    pub fn with(
        certificates: &[CertificateDer<'static>],
        versions: &[&'static SupportedProtocolVersion],
        protocols: &[&[u8]],
    ) -> Self {
        let mut roots = RootCertStore::empty();
        certificates.iter().for_each(|certificate| roots.add(certificate.clone()).expect("a certificate"));
        let mut config = ClientConfig::builder_with_provider(Arc::new(default_provider()))
            .with_protocol_versions(versions)
            .expect("versions that ring has")
            .with_root_certificates(roots)
            .with_no_client_auth();
        config.alpn_protocols = protocols.iter().map(|protocol| protocol.to_vec()).collect();
        Self(Arc::new(config))
    }

    /// Connects and shakes hands.
    pub fn connect(&self, port: u16, name: &str) -> io::Result<Secure> {
        self.over(TcpStream::connect((Ipv4Addr::LOCALHOST, port))?, name)
    }

    /// Shakes hands on a connection that has been used.
    pub fn over(&self, stream: TcpStream, name: &str) -> io::Result<Secure> {
        stream.set_read_timeout(Some(PATIENCE))?;
        let name = ServerName::try_from(name.to_owned()).expect("a DNS name");
        let session = ClientConnection::new(self.0.clone(), name).map_err(io::Error::other)?;
        let mut stream = StreamOwned::new(session, Wire { stream, read: Vec::new() });
        while stream.conn.is_handshaking() {
            stream.conn.complete_io(&mut stream.sock)?;
        }
        Ok(Secure(stream))
    }
}

/// The socket below TLS, and what came from it.
#[derive(Debug)]
pub struct Wire {
    stream: TcpStream,
    read: Vec<u8>,
}

impl Read for Wire {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.stream.read(buffer)?;
        self.read.extend_from_slice(&buffer[..read]);
        Ok(read)
    }
}

impl Write for Wire {
    fn write(&mut self, octets: &[u8]) -> io::Result<usize> {
        self.stream.write(octets)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.stream.flush()
    }
}

#[derive(Debug)]
pub struct Secure(StreamOwned<ClientConnection, Wire>);

impl Secure {
    /// `GET`, and the answer to it: its head, and its body of the length that it tells.
    pub fn get(&mut self, path: &str) -> io::Result<(String, String)> {
        self.0.write_all(format!("GET {path} HTTP/1.1\r\nhost: localhost\r\n\r\n").as_bytes())?;
        let mut text = String::new();
        loop {
            let mut buffer = [0; 4096];
            match self.0.read(&mut buffer)? {
                0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                read => text.push_str(&String::from_utf8_lossy(&buffer[..read])),
            }
            let Some((head, body)) = text.split_once("\r\n\r\n") else { continue };
            let length = head.lines().find_map(|line| line.strip_prefix("content-length: ")).unwrap_or("0");
            if body.len() >= length.parse().expect("a length") {
                return Ok((head.to_owned(), body.to_owned()));
            }
        }
    }

    pub fn certificate(&self) -> CertificateDer<'static> {
        self.0.conn.peer_certificates().expect("shaken hands")[0].clone().into_owned()
    }

    pub fn is_resumed(&self) -> bool {
        self.0.conn.handshake_kind() == Some(HandshakeKind::Resumed)
    }

    pub fn version(&self) -> Option<rustls::ProtocolVersion> {
        self.0.conn.protocol_version()
    }

    /// The records that have come since this was last asked, as their content types.
    pub fn records(&mut self) -> Vec<u8> {
        let octets = std::mem::take(&mut self.0.sock.read);
        let (mut rest, mut kinds) = (octets.as_slice(), Vec::new());
        while let [kind, _, _, high, low, after @ ..] = rest {
            kinds.push(*kind);
            rest = &after[usize::from(u16::from_be_bytes([*high, *low]))..];
        }
        kinds
    }
}
