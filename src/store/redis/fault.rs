//! Why a node gave no answer: Redis's own words turned into the kinds the operator is told, with a text fit for a log.

use crate::store::{ErrorKind, StoreError};
use crate::telemetry::metrics::{Label, StoreErrorKind};
use redis::{RedisError, ServerErrorKind};

/// A failed call, before it is known whose checks were in it.
#[derive(Clone, Debug)]
pub(super) struct Fault {
    pub kind: ErrorKind,
    /// What a person should read; holds no secret.
    pub text: String,
    /// Whether the node may have run the call all the same.
    pub maybe_applied: bool,
}

impl Fault {
    /// A failure before anything was sent.
    pub fn before(kind: ErrorKind, text: impl Into<String>) -> Self {
        Self { kind, text: text.into(), maybe_applied: false }
    }

    /// A failure while connecting; nothing that counts was sent yet.
    pub fn connecting(error: &RedisError) -> Self {
        Self { maybe_applied: false, ..Self::calling(error) }
    }

    /// A failure of a call that was handed to the connection.
    pub fn calling(error: &RedisError) -> Self {
        let kind = kind(error);
        // What the node says before it runs the script took nothing; a script that broke half way, or a reply that never
        // came, may have.
        let maybe_applied = match kind {
            ErrorKind::Auth | ErrorKind::Readonly | ErrorKind::Loading | ErrorKind::Oom => false,
            ErrorKind::Script => !is_no_script(error),
            ErrorKind::Timeout | ErrorKind::Connect => true,
            ErrorKind::Other => error.code() != Some("BUSY"),
        };
        let text = if kind == ErrorKind::Auth { auth_text(error) } else { error.to_string() };
        Self { kind, text, maybe_applied }
    }

    pub fn on(&self, shard: usize) -> StoreError {
        StoreError { kind: self.kind, shard, maybe_applied: self.maybe_applied }
    }
}

pub(super) fn is_no_script(error: &RedisError) -> bool {
    error.kind() == redis::ErrorKind::Server(ServerErrorKind::NoScript)
}

fn auth_text(error: &RedisError) -> String {
    match error.code() {
        Some(code) => format!("authentication failed ({code})"),
        None => "authentication failed".to_owned(),
    }
}

fn kind(error: &RedisError) -> ErrorKind {
    match error.kind() {
        redis::ErrorKind::AuthenticationFailed => ErrorKind::Auth,
        redis::ErrorKind::Io if error.is_timeout() => ErrorKind::Timeout,
        redis::ErrorKind::Io => ErrorKind::Connect,
        redis::ErrorKind::Server(kind) => server_kind(kind, error.detail().unwrap_or_default()),
        redis::ErrorKind::Extension => match error.code() {
            Some("NOAUTH" | "WRONGPASS") => ErrorKind::Auth,
            Some("OOM") => ErrorKind::Oom,
            _ => ErrorKind::Other,
        },
        _ => ErrorKind::Other,
    }
}

fn server_kind(kind: ServerErrorKind, detail: &str) -> ErrorKind {
    match kind {
        ServerErrorKind::BusyLoading => ErrorKind::Loading,
        ServerErrorKind::ReadOnly => ErrorKind::Readonly,
        ServerErrorKind::NoPerm => ErrorKind::Auth,
        ServerErrorKind::NoScript => ErrorKind::Script,
        // Redis before 7 wraps what a command in a script was refused with into the script's own error.
        ServerErrorKind::ResponseError if detail.contains("-OOM ") => ErrorKind::Oom,
        ServerErrorKind::ResponseError if detail.contains("-READONLY ") => ErrorKind::Readonly,
        ServerErrorKind::ResponseError => ErrorKind::Script,
        _ => ErrorKind::Other,
    }
}

pub(super) fn label(kind: ErrorKind) -> StoreErrorKind {
    match kind {
        ErrorKind::Timeout => StoreErrorKind::Timeout,
        ErrorKind::Connect => StoreErrorKind::Connect,
        ErrorKind::Auth => StoreErrorKind::Auth,
        ErrorKind::Script => StoreErrorKind::Script,
        ErrorKind::Readonly => StoreErrorKind::Readonly,
        ErrorKind::Loading => StoreErrorKind::Loading,
        ErrorKind::Oom => StoreErrorKind::Oom,
        ErrorKind::Other => StoreErrorKind::Other,
    }
}

pub(super) fn text(kind: ErrorKind) -> &'static str {
    label(kind).text()
}
