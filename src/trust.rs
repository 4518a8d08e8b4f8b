//! Whom a TLS client of ours trusts when nothing else is said.

use rustls::RootCertStore;
use std::sync::{Arc, OnceLock};

/// The system's roots, or those in `SSL_CERT_FILE` and `SSL_CERT_DIR`. Read once a process: it takes milliseconds.
pub fn system_roots() -> Result<Arc<RootCertStore>, String> {
    static ROOTS: OnceLock<Result<Arc<RootCertStore>, String>> = OnceLock::new();
    ROOTS.get_or_init(read_roots).clone()
}

fn read_roots() -> Result<Arc<RootCertStore>, String> {
    let found = rustls_native_certs::load_native_certs();
    let mut roots = RootCertStore::empty();
    let (added, _) = roots.add_parsable_certificates(found.certs);
    if added == 0 {
        let why = found.errors.first().map(|error| format!(": {error}")).unwrap_or_default();
        return Err(format!("no trusted root certificate found{why}"));
    }
    Ok(Arc::new(roots))
}
