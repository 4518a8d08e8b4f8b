//! A certification authority for one test, made by openssl, and what a node needs of it.

use std::process::Command;
use tempfile::TempDir;

const KEY: &str = "-newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes";

#[derive(Debug)]
pub struct Authority {
    folder: TempDir,
}

impl Authority {
    /// With a certificate for this machine, and another authority that nobody should trust.
    pub fn new() -> Self {
        let authority = Self { folder: tempfile::tempdir().expect("a folder") };
        std::fs::write(authority.path("names"), "subjectAltName=DNS:localhost,IP:127.0.0.1").expect("a file");
        for ca in ["ca", "other"] {
            authority.openssl(&format!("req -x509 {KEY} -days 2 -subj /CN={ca} -keyout @{ca}.key -out @{ca}.pem"));
        }
        authority.openssl(&format!("req {KEY} -subj /CN=node -keyout @node.key -out @node.csr"));
        authority.openssl(
            "x509 -req -in @node.csr -CA @ca.pem -CAkey @ca.key -CAcreateserial -days 2 -extfile @names -out @node.pem",
        );
        authority
    }

    /// Of `ca.pem`, `other.pem`, `node.pem`, `node.key`.
    pub fn path(&self, name: &str) -> String {
        self.folder.path().join(name).to_str().expect("a name in UTF-8").to_owned()
    }

    /// The arguments of a redis-server that also listens with TLS.
    pub fn redis(&self, tls_port: u16) -> Vec<String> {
        let (port, of) = (tls_port.to_string(), |name: &str| self.path(name));
        let files = [("--tls-cert-file", "node.pem"), ("--tls-key-file", "node.key"), ("--tls-ca-cert-file", "ca.pem")];
        let files = files.map(|(argument, name)| [argument.to_owned(), of(name)]).concat();
        let plain = ["--tls-port", &port, "--tls-auth-clients", "no"].map(str::to_owned);
        [&plain[..], &files[..]].concat()
    }

    fn openssl(&self, arguments: &str) {
        let word = |word: &str| word.strip_prefix('@').map_or_else(|| word.to_owned(), |name| self.path(name));
        let output =
            Command::new("openssl").args(arguments.split(' ').map(word)).output().expect("openssl is installed");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }
}

/// Runs an ignored test of this very program as a process of its own, which alone trusts `roots`: trusted roots come from the
/// environment, and that belongs to the whole process. Gives what it said.
pub fn trusting(roots: &str, test: &str, variables: &[(&str, String)]) -> String {
    let child = Command::new(std::env::current_exe().expect("a program"))
        .args(["--exact", test, "--ignored", "--nocapture"])
        .env("SSL_CERT_FILE", roots)
        .envs(variables.iter().map(|(name, value)| (name, value)))
        .output()
        .expect("this program runs");
    let said = String::from_utf8_lossy(&child.stdout).into_owned();
    assert!(child.status.success(), "{said}{}", String::from_utf8_lossy(&child.stderr));
    said
}
