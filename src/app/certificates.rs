//! A listener's certificates in force, and their files: read anew when one has changed, whatever becomes of the configuration.
//! Authorities' tools write a chain and its key one after the other, so a change is taken up once the files have rested.

use crate::config::certificates::{KeyPair, Unusable};
use crate::config::model;
use crate::config::watch::Look;
use crate::listener::tls::Tls;
use rustls::sign::CertifiedKey;
use std::sync::Arc;

#[derive(Debug)]
pub struct Secured {
    pub tls: Tls,
    settings: model::ListenerTls,
    /// As the files hold them, or held them when they were last of use; in the order of the file.
    pairs: Vec<Arc<CertifiedKey>>,
    seen: Vec<Option<Look>>,
    /// The files changed at the last look.
    changed: bool,
}

impl Secured {
    /// Reads the files. Settings that stay keep what clients resume their sessions by.
    pub fn new(settings: &model::ListenerTls, before: Option<&Self>) -> Result<Self, String> {
        // First, so that no change falls between.
        let seen = looks(settings);
        let load = |pair: &KeyPair| pair.load().map_err(|unusable| pair.sentence(&unusable));
        let pairs: Vec<_> = settings.pairs.iter().map(load).collect::<Result<_, _>>()?;
        let tls = match before.filter(|before| before.settings.min_version == settings.min_version) {
            Some(before) => before.tls.clone(),
            None => Tls::new(pairs.clone(), settings.min_version).map_err(|error| format!("no TLS: {error}"))?,
        };
        Ok(Self { tls, settings: settings.clone(), pairs, seen, changed: false })
    }

    /// Shows clients the pairs that were read.
    pub fn serve(&self) {
        self.tls.replace(self.pairs.clone());
    }

    /// Whether the files have changed, and rest. Call it every second.
    pub fn is_due(&mut self) -> bool {
        let seen = looks(&self.settings);
        let differs = seen != self.seen;
        self.seen = seen;
        std::mem::replace(&mut self.changed, differs) && !differs
    }

    /// Reads the files anew and serves what is good; a pair that is not stays as it was. What is wrong, one sentence a pair.
    pub fn reload(&mut self) -> Vec<String> {
        let mut wrong = Vec::new();
        for (pair, in_force) in self.settings.pairs.iter().zip(&mut self.pairs) {
            match pair.load() {
                Ok(fresh) => *in_force = fresh,
                Err(unusable) => wrong.push(sentence(pair, &unusable)),
            }
        }
        self.serve();
        wrong
    }
}

fn sentence(pair: &KeyPair, unusable: &Unusable) -> String {
    format!("{}; the certificate in force stays", pair.sentence(unusable))
}

fn looks(settings: &model::ListenerTls) -> Vec<Option<Look>> {
    settings.pairs.iter().flat_map(|pair| [Look::at(&pair.certificate), Look::at(&pair.private_key)]).collect()
}
