//! A listener's certificates and keys, read from their PEM files: for `check`, at start, and each time a file has changed.
//! What is wrong with one says which of the two files is at fault, and shows nothing of what is in it.

use rustls::crypto::ring::default_provider;
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::sign::CertifiedKey;
use rustls::{Error, InconsistentKeys};
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// A chain of certificates is a few KiB; what is larger (a device, a log) is not read to its end.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// Where a certificate chain and its key are.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct KeyPair {
    pub certificate: PathBuf,
    pub private_key: PathBuf,
}

/// What is wrong with one of the files: the rest of a sentence that starts with its path.
#[derive(Debug, PartialEq, Eq)]
pub enum Unusable {
    Certificate(String),
    PrivateKey(String),
}

impl KeyPair {
    /// The chain with its key, which belong together.
    pub fn load(&self) -> Result<Arc<CertifiedKey>, Unusable> {
        let chain = chain(&self.certificate).map_err(Unusable::Certificate)?;
        let key = key(&self.private_key).map_err(Unusable::PrivateKey)?;
        match CertifiedKey::from_der(chain, key, &default_provider()) {
            Ok(pair) => Ok(Arc::new(pair)),
            Err(Error::InconsistentKeys(InconsistentKeys::KeyMismatch)) => Err(Unusable::PrivateKey(
                "is not the key of this certificate; write the one that its request was made with".to_owned(),
            )),
            Err(Error::InvalidCertificate(error)) => Err(Unusable::Certificate(format!(
                "begins with a certificate that cannot be used ({error:?}); write a chain whose first is the server's"
            ))),
            Err(_) => Err(Unusable::PrivateKey(
                "holds no key of a kind that can be used; write an RSA (2048 bits or more), ECDSA (P-256, P-384) or Ed25519 one"
                    .to_owned(),
            )),
        }
    }

    /// What is wrong, as a sentence for the log.
    #[must_use]
    pub fn sentence(&self, unusable: &Unusable) -> String {
        match unusable {
            Unusable::Certificate(wrong) => format!("`{}` {wrong}", self.certificate.display()),
            Unusable::PrivateKey(wrong) => format!("`{}` {wrong}", self.private_key.display()),
        }
    }
}

fn chain(path: &Path) -> Result<Vec<CertificateDer<'static>>, String> {
    let text = read(path)?;
    let chain: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&text).collect();
    match chain {
        Ok(chain) if !chain.is_empty() => Ok(chain),
        Ok(_) | Err(pem::Error::NoItemsFound) => {
            Err("holds no certificate; write a PEM file with `BEGIN CERTIFICATE`, the server's first".to_owned())
        }
        Err(_) => Err("is no well-formed PEM; write the chain as its authority gave it out".to_owned()),
    }
}

fn key(path: &Path) -> Result<PrivateKeyDer<'static>, String> {
    match PrivateKeyDer::from_pem_slice(&read(path)?) {
        Ok(key) => Ok(key),
        Err(pem::Error::NoItemsFound) => {
            Err("holds no private key; write a PEM file with `BEGIN PRIVATE KEY`, not encrypted".to_owned())
        }
        Err(_) => Err("is no well-formed PEM; write the key as it was made".to_owned()),
    }
}

fn read(path: &Path) -> Result<Vec<u8>, String> {
    let mut octets = Vec::new();
    let read = File::open(path).and_then(|file| file.take(FILE_BYTES_MAX + 1).read_to_end(&mut octets));
    match read {
        Ok(_) if octets.len() as u64 > FILE_BYTES_MAX => {
            Err("is larger than 1 MiB; certificates are smaller".to_owned())
        }
        Ok(_) => Ok(octets),
        Err(error) => {
            let advice = match error.kind() {
                io::ErrorKind::PermissionDenied => "let the gateway's user read it",
                _ => "write the path of a PEM file, seen from the folder of this file",
            };
            Err(format!("cannot be read: {error}; {advice}"))
        }
    }
}
