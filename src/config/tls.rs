//! `tls` and `tls_min_version` of a listener: one certificate, or several by the names that they are for.

use super::certificates::{KeyPair, Unusable};
use super::model::{ListenerTls, TlsVersion};
use super::reader::{Table, Value};
use super::text::Text;

const EXAMPLE: &str = "{ certificate = \"cert.pem\", private_key = \"key.pem\" }";

pub fn read_tls(listener: &Table<'_>) -> Option<ListenerTls> {
    let versions = [("1.2", TlsVersion::Tls12), ("1.3", TlsVersion::Tls13)];
    let min_version = listener.get("tls_min_version");
    let Some(value) = listener.get("tls") else {
        if let Some(version) = min_version {
            version.problem_at_key("there is no `tls` that it would be for; leave it out, or write that too");
        }
        return None;
    };
    let min_version = min_version.and_then(|value| value.choice(&versions)).unwrap_or(TlsVersion::Tls12);
    Some(ListenerTls { pairs: read_pairs(&value), min_version })
}

fn read_pairs(value: &Value<'_>) -> Vec<KeyPair> {
    if value.is_table() {
        return read_pair(value).into_iter().collect();
    }
    if value.raw.get_ref().as_array().is_none() {
        value.expected(&format!("a table such as `{EXAMPLE}`, or an array of them"));
        return Vec::new();
    }
    let items = value.array("tables").unwrap_or_default();
    if items.is_empty() {
        value.problem(&format!("no certificate; write at least one, such as `tls = {EXAMPLE}`"));
    }
    items.iter().filter_map(read_pair).collect()
}

fn read_pair(value: &Value<'_>) -> Option<KeyPair> {
    let table = value.table()?;
    let certificate = table.required("certificate", "one such as `certificate = \"cert.pem\"`");
    let private_key = table.required("private_key", "one such as `private_key = \"key.pem\"`");
    table.finish();
    let (certificate, private_key) = (certificate?.text(), private_key?.text());
    let (certificate, private_key) = (certificate?, private_key?);
    let path = |text: &Text<'_>| text.value.source.folder.join(&text.expanded);
    let pair = KeyPair { certificate: path(&certificate), private_key: path(&private_key) };
    match pair.load() {
        Ok(_) => return Some(pair),
        Err(Unusable::Certificate(wrong)) => certificate.problem(&wrong),
        Err(Unusable::PrivateKey(wrong)) => private_key.problem(&wrong),
    }
    None
}
