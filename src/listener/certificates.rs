//! Which certificate a client gets: by the server name it asks for (RFC 6066 §3), an exact name before a wildcard, the first
//! pair of the file where it names none or one that nobody knows. Replaced while connections are open, which keep theirs.

use arc_swap::ArcSwap;
use rustls::SignatureScheme;
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use std::collections::HashMap;
use std::sync::Arc;
use webpki::EndEntityCert;

#[derive(Debug)]
pub struct Certificates(ArcSwap<ByName>);

#[derive(Debug, Default)]
struct ByName {
    /// In the order of the file.
    all: Vec<Arc<CertifiedKey>>,
    /// Lower case; what follows `*.` of a wildcard. Several have one name when their keys are of several kinds.
    exact: HashMap<String, Vec<Arc<CertifiedKey>>>,
    wildcard: HashMap<String, Vec<Arc<CertifiedKey>>>,
}

impl Certificates {
    #[must_use]
    pub fn new(pairs: Vec<Arc<CertifiedKey>>) -> Self {
        Self(ArcSwap::from_pointee(ByName::new(pairs)))
    }

    /// For the handshakes that begin from now on.
    pub fn replace(&self, pairs: Vec<Arc<CertifiedKey>>) {
        self.0.store(Arc::new(ByName::new(pairs)));
    }
}

impl ResolvesServerCert for Certificates {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        self.0.load().choose(hello.server_name(), hello.signature_schemes())
    }
}

impl ByName {
    fn new(all: Vec<Arc<CertifiedKey>>) -> Self {
        let mut named = Self::default();
        for pair in &all {
            // A certificate without names, or with addresses alone, can be the first of the file.
            let Some(Ok(certificate)) = pair.cert.first().map(EndEntityCert::try_from) else { continue };
            for name in certificate.valid_dns_names() {
                let (names, name) = match name.strip_prefix("*.") {
                    Some(parent) => (&mut named.wildcard, parent),
                    None => (&mut named.exact, name),
                };
                names.entry(name.to_ascii_lowercase()).or_default().push(pair.clone());
            }
        }
        Self { all, ..named }
    }

    fn choose(&self, name: Option<&str>, schemes: &[SignatureScheme]) -> Option<Arc<CertifiedKey>> {
        let name = name.map(str::to_ascii_lowercase).unwrap_or_default();
        let exact = self.exact.get(&name);
        // A wildcard stands for one label (RFC 9525 §6.3).
        let wildcard = || self.wildcard.get(name.split_once('.')?.1);
        let pairs = exact.or_else(wildcard).unwrap_or(&self.all);
        let fits = |pair: &&Arc<CertifiedKey>| pair.key.choose_scheme(schemes).is_some();
        pairs.iter().find(fits).or(pairs.first()).cloned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};

    fn pair(names: &[&str], algorithm: &'static rcgen::SignatureAlgorithm) -> Arc<CertifiedKey> {
        let key = rcgen::KeyPair::generate_for(algorithm).unwrap();
        let names: Vec<String> = names.iter().map(ToString::to_string).collect();
        let certificate = rcgen::CertificateParams::new(names).unwrap().self_signed(&key).unwrap();
        let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.serialize_der()));
        let provider = rustls::crypto::ring::default_provider();
        Arc::new(CertifiedKey::from_der(vec![certificate.der().clone()], key, &provider).unwrap())
    }

    const BOTH: [SignatureScheme; 2] = [SignatureScheme::ECDSA_NISTP256_SHA256, SignatureScheme::ED25519];

    #[test]
    fn an_exact_name_comes_before_a_wildcard_and_the_first_is_for_all_others() {
        let ecdsa = &rcgen::PKCS_ECDSA_P256_SHA256;
        let names = [&["default.example"][..], &["*.Example.org", "example.org"], &["api.example.org"], &["10.0.0.1"]];
        let pairs: Vec<_> = names.iter().map(|names| pair(names, ecdsa)).collect();
        let certificates = ByName::new(pairs.clone());
        let chosen = |name: Option<&str>| {
            let chosen = certificates.choose(name, &BOTH).unwrap();
            pairs.iter().position(|pair| Arc::ptr_eq(pair, &chosen)).unwrap()
        };
        let cases = [
            (None, 0),
            (Some("unknown.example"), 0),
            (Some("example.org"), 1),
            (Some("WWW.example.org"), 1),
            (Some("api.example.org"), 2),
            (Some("a.api.example.org"), 0),
            (Some("org"), 0),
        ];
        for (name, expected) in cases {
            assert_eq!(chosen(name), expected, "{name:?}");
        }
    }

    #[test]
    fn of_two_keys_for_one_name_the_client_gets_one_that_it_can_verify() {
        let pairs =
            vec![pair(&["a.example"], &rcgen::PKCS_ED25519), pair(&["a.example"], &rcgen::PKCS_ECDSA_P256_SHA256)];
        let certificates = ByName::new(pairs.clone());
        let chosen = |schemes: &[SignatureScheme]| certificates.choose(Some("a.example"), schemes).unwrap();
        assert!(Arc::ptr_eq(&chosen(&BOTH), &pairs[0]));
        assert!(Arc::ptr_eq(&chosen(&BOTH[..1]), &pairs[1]));
    }
}
