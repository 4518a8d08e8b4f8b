//! TLS to an endpoint: whom it must be, and who we are to it. Made when the configuration is loaded, so that a missing or
//! broken file is found then; the sessions of a configuration are resumed as long as it is in force.

use super::stream::Stream;
use crate::trust;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::{ClientConfig, DigitallySignedStruct, Error, RootCertStore, SignatureScheme};
use siphasher::sip128::{Hasher128, SipHasher24};
use std::hash::{Hash, Hasher};
use std::io;
use std::sync::Arc;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

const HTTP1: &[u8] = b"http/1.1";
const HTTP2: &[u8] = b"h2";

/// What an operator says of an upstream's TLS; files as read, in PEM.
#[derive(Clone, Hash)]
pub struct Settings {
    /// Only what these signed is trusted; none: what the system trusts.
    pub ca: Option<Vec<u8>>,
    /// Our own certificate and its private key.
    pub identity: Option<(Vec<u8>, Vec<u8>)>,
    /// Whom the certificate must name, and what the endpoint is asked for; none: the endpoint's host.
    pub server_name: Option<ServerName<'static>>,
    pub verify: bool,
}

/// Which setting is wrong.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Part {
    SystemRoots,
    Ca,
    Certificate,
    PrivateKey,
}

#[derive(Clone, Debug)]
pub struct Tls {
    http1: Arc<ClientConfig>,
    http2: Arc<ClientConfig>,
    server_name: Option<ServerName<'static>>,
    verify: bool,
    /// Of the settings: a connection made by others is not used.
    digest: u128,
}

impl PartialEq for Tls {
    fn eq(&self, other: &Self) -> bool {
        self.digest == other.digest
    }
}

impl Eq for Tls {}

impl Hash for Tls {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.digest.hash(state);
    }
}

impl Tls {
    pub fn new(settings: &Settings) -> Result<Self, (Part, String)> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = ClientConfig::builder_with_provider(provider.clone())
            .with_safe_default_protocol_versions()
            .map_err(|error| (Part::SystemRoots, error.to_string()))?;
        let builder = if settings.verify {
            builder.with_root_certificates(roots(settings.ca.as_deref())?)
        } else {
            builder.dangerous().with_custom_certificate_verifier(Arc::new(Unverified(provider)))
        };
        let mut config = match &settings.identity {
            None => builder.with_no_client_auth(),
            Some((certificate, private_key)) => {
                let chain = certificates(certificate).map_err(|why| (Part::Certificate, why))?;
                let key = PrivateKeyDer::from_pem_slice(private_key)
                    .map_err(|_| (Part::PrivateKey, "holds no private key in PEM".to_owned()))?;
                builder.with_client_auth_cert(chain, key).map_err(|error| (Part::PrivateKey, unfit(&error)))?
            }
        };
        let mut hasher = SipHasher24::new();
        settings.hash(&mut hasher);
        config.alpn_protocols = vec![HTTP1.to_vec()];
        let http1 = Arc::new(config.clone());
        config.alpn_protocols = vec![HTTP2.to_vec()];
        Ok(Self {
            http1,
            http2: Arc::new(config),
            server_name: settings.server_name.clone(),
            verify: settings.verify,
            digest: hasher.finish128().as_u128(),
        })
    }

    /// False: anybody may be the endpoint.
    #[must_use]
    pub fn verifies(&self) -> bool {
        self.verify
    }

    /// The handshake. `http2`: the endpoint must agree to it.
    pub(super) async fn connect(&self, host: &str, http2: bool, io: TcpStream) -> io::Result<Stream> {
        let name = match &self.server_name {
            Some(name) => name.clone(),
            None => ServerName::try_from(host.to_owned()).map_err(|error| failed(&error))?,
        };
        let config = if http2 { &self.http2 } else { &self.http1 };
        let io = TlsConnector::from(config.clone()).connect(name, io).await.map_err(|error| failed(&error))?;
        if http2 && io.get_ref().1.alpn_protocol() != Some(HTTP2) {
            return Err(failed(&"the endpoint does not speak HTTP/2"));
        }
        Ok(Stream::tls(io))
    }
}

fn failed(error: &dyn std::fmt::Display) -> io::Error {
    io::Error::other(format!("TLS: {error}"))
}

fn unfit(error: &Error) -> String {
    match error {
        Error::InconsistentKeys(_) => "is not the key of the certificate".to_owned(),
        other => format!("cannot be used: {other}"),
    }
}

fn roots(ca: Option<&[u8]>) -> Result<Arc<RootCertStore>, (Part, String)> {
    let Some(pem) = ca else { return trust::system_roots().map_err(|why| (Part::SystemRoots, why)) };
    let mut roots = RootCertStore::empty();
    for certificate in certificates(pem).map_err(|why| (Part::Ca, why))? {
        roots.add(certificate).map_err(|error| (Part::Ca, format!("holds a certificate that is no CA's: {error}")))?;
    }
    Ok(Arc::new(roots))
}

fn certificates(pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, String> {
    match CertificateDer::pem_slice_iter(pem).collect::<Result<Vec<_>, _>>() {
        Ok(found) if !found.is_empty() => Ok(found),
        _ => Err("holds no certificate in PEM".to_owned()),
    }
}

/// `verify = false`: the connection is encrypted, and may be to anybody.
#[derive(Debug)]
struct Unverified(Arc<CryptoProvider>);

impl ServerCertVerifier for Unverified {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls12_signature(message, certificate, signature, &self.0.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, certificate, signature, &self.0.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}
