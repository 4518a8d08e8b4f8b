//! `[upstreams.NAME]`, `tls`: whom an `https` endpoint must prove to be. The files are read and tried here, so that what is
//! wrong with them is told with the rest.

use super::reader::{Table, Value};
use crate::upstream::tls::{Part, Settings, Tls};
use rustls::pki_types::ServerName;
use std::sync::Arc;

/// `https`: whether it has such an endpoint; without one the table would have no effect, and is a mistake.
pub fn read(upstream: &Table<'_>, https: bool) -> Option<Arc<Tls>> {
    let Some(value) = upstream.get("tls") else { return if https { trusting_the_system(upstream) } else { None } };
    if !https {
        value
            .problem_at_key("no endpoint is `https`, so this has no effect; write `https://` there, or leave this out");
    }
    let table = value.table()?;
    let parts =
        Parts { ca: table.get("ca"), certificate: table.get("certificate"), private_key: table.get("private_key") };
    let server_name = table.get("server_name").and_then(|value| server_name(&value));
    let verify = table.boolean("verify", true);
    table.finish();
    if let (false, Some(ca)) = (verify, &parts.ca) {
        ca.problem("this is trusted by nobody while `verify` is false; leave one of the two out");
    }
    let ca = parts.ca.as_ref().map(Value::file);
    let identity = parts.identity()?;
    let settings = Settings { ca: ca.map_or(Some(None), |read| read.map(Some))?, identity, server_name, verify };
    match Tls::new(&settings) {
        Ok(tls) => Some(Arc::new(tls)),
        Err((part, why)) => {
            parts.problem(part, &why, &value);
            None
        }
    }
}

fn trusting_the_system(upstream: &Table<'_>) -> Option<Arc<Tls>> {
    let settings = Settings { ca: None, identity: None, server_name: None, verify: true };
    match Tls::new(&settings) {
        Ok(tls) => Some(Arc::new(tls)),
        Err((_, why)) => {
            upstream.problem(&format!("an endpoint is `https`, and {why}; name one in `tls = {{ ca = \"ca.pem\" }}`"));
            None
        }
    }
}

fn server_name(value: &Value<'_>) -> Option<ServerName<'static>> {
    value.text()?.parsed(|name| {
        ServerName::try_from(name.to_owned()).map_err(|_| {
            "is no host name and no address; write the name in the certificate, such as `api.internal`".into()
        })
    })
}

/// The keys that name files.
struct Parts<'a> {
    ca: Option<Value<'a>>,
    certificate: Option<Value<'a>>,
    private_key: Option<Value<'a>>,
}

impl Parts<'_> {
    /// Certificate and key as read; the outer `None` is a problem that has been told.
    fn identity(&self) -> Option<Option<(Vec<u8>, Vec<u8>)>> {
        match (&self.certificate, &self.private_key) {
            (None, None) => Some(None),
            (Some(certificate), Some(key)) => {
                let (certificate, key) = (certificate.file(), key.file());
                Some(Some((certificate?, key?)))
            }
            (Some(value), None) => {
                value.problem("a certificate without its key; add `private_key`");
                None
            }
            (None, Some(value)) => {
                value.problem("a key without its certificate; add `certificate`");
                None
            }
        }
    }

    fn problem(&self, part: Part, why: &str, whole: &Value<'_>) {
        let place = match part {
            Part::Ca => self.ca.as_ref(),
            Part::Certificate => self.certificate.as_ref(),
            Part::PrivateKey => self.private_key.as_ref(),
            Part::SystemRoots => None,
        };
        match place.map(|value| (value, value.text())) {
            Some((_, Some(text))) => text.problem(&format!("{why}; name a PEM file that does")),
            _ => whole.problem(why),
        }
    }
}
