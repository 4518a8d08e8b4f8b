//! Why a node gave no answer: Redis's own words turned into the kinds the operator is told, with a text fit for a log.

use crate::store::{ErrorKind, StoreError};
use crate::telemetry::metrics::{Label, StoreErrorKind};
use redis::{RedisError, ServerErrorKind};
use std::borrow::Cow;

/// What a node says instead of running a script that writes, and that has no kind of its own.
const REFUSALS: [&str; 9] =
    ["BUSY", "MISCONF", "MASTERDOWN", "CLUSTERDOWN", "MOVED", "ASK", "TRYAGAIN", "CROSSSLOT", "NOREPLICAS"];

/// A failed call, before it is known whose checks were in it.
#[derive(Clone, Debug)]
pub(super) struct Fault {
    pub kind: ErrorKind,
    /// What a person should read; holds no secret.
    pub text: Cow<'static, str>,
    /// Whether the node may have run the call all the same.
    pub maybe_applied: bool,
    pub next: Next,
}

/// What may be done with a call that was refused and not run, where the topology is one that moves.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Next {
    Nothing,
    /// The key lives at another node (`host:port`) by now.
    Moved(String),
    /// The key may be on its way to another node; that one is to be asked this once.
    Ask(String),
    /// In a moment it may be run, perhaps by another node.
    Again,
}

impl Fault {
    /// A failure before anything was sent.
    pub fn before(kind: ErrorKind, text: impl Into<Cow<'static, str>>) -> Self {
        Self { kind, text: text.into(), maybe_applied: false, next: Next::Nothing }
    }

    /// Refused for now.
    pub fn passing(kind: ErrorKind, text: impl Into<Cow<'static, str>>) -> Self {
        Self { next: Next::Again, ..Self::before(kind, text) }
    }

    /// A call that was sent, and whose reply did not come in time.
    pub fn late() -> Self {
        Self {
            kind: ErrorKind::Timeout,
            text: "no reply within the timeout".into(),
            maybe_applied: true,
            next: Next::Nothing,
        }
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
            ErrorKind::Other => !error.code().is_some_and(|code| REFUSALS.contains(&code)),
        };
        let text = if kind == ErrorKind::Auth { auth_text(error) } else { error.to_string() }.into();
        Self { kind, text, maybe_applied, next: next(error) }
    }

    /// Whether the next call would fail as well, so that waiting for more failures is of no use.
    pub fn is_lasting(&self, ever_answered: bool) -> bool {
        self.kind == ErrorKind::Auth || (self.kind == ErrorKind::Connect && !ever_answered)
    }

    pub fn on(&self, shard: usize) -> StoreError {
        StoreError { kind: self.kind, shard, maybe_applied: self.maybe_applied }
    }
}

fn next(error: &RedisError) -> Next {
    let redis::ErrorKind::Server(kind) = error.kind() else { return Next::Nothing };
    match (kind, error.redirect_node()) {
        (ServerErrorKind::Moved, Some((node, _))) => Next::Moved(node.to_owned()),
        (ServerErrorKind::Ask, Some((node, _))) => Next::Ask(node.to_owned()),
        (ServerErrorKind::TryAgain | ServerErrorKind::ClusterDown | ServerErrorKind::ReadOnly, _) => Next::Again,
        _ => Next::Nothing,
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
        // Redis before 7 wraps what a command in a script was refused with into the script's own error.
        ServerErrorKind::ResponseError if detail.contains("-OOM ") => ErrorKind::Oom,
        ServerErrorKind::ResponseError if detail.contains("-READONLY ") => ErrorKind::Readonly,
        ServerErrorKind::NoScript | ServerErrorKind::ResponseError => ErrorKind::Script,
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

#[cfg(test)]
mod tests {
    use super::*;

    fn told(reply: &str) -> Fault {
        let value = redis::parse_redis_value(reply.as_bytes()).unwrap();
        Fault::calling(&value.extract_error().unwrap_err())
    }

    #[test]
    fn what_a_node_says_is_told_apart_and_only_a_broken_script_may_have_charged() {
        let cases = [
            ("-LOADING Redis is loading the dataset in memory\r\n", ErrorKind::Loading, false),
            ("-READONLY You can't write against a read only replica.\r\n", ErrorKind::Readonly, false),
            ("-OOM command not allowed when used memory > 'maxmemory'.\r\n", ErrorKind::Oom, false),
            ("-ERR Error running script (call to f_1): @user_script:1: -OOM command not\r\n", ErrorKind::Oom, false),
            ("-NOAUTH Authentication required.\r\n", ErrorKind::Auth, false),
            ("-WRONGPASS invalid username-password pair or user is disabled.\r\n", ErrorKind::Auth, false),
            ("-NOPERM this user has no permissions to run the 'evalsha' command\r\n", ErrorKind::Auth, false),
            ("-NOSCRIPT No matching script. Please use EVAL.\r\n", ErrorKind::Script, false),
            ("-ERR user_script:7: attempt to index a nil value\r\n", ErrorKind::Script, true),
            ("-BUSY Redis is busy running a script.\r\n", ErrorKind::Other, false),
            ("-MISCONF Redis is configured to save RDB snapshots\r\n", ErrorKind::Other, false),
            ("-WRONGTYPE Operation against a key holding the wrong kind of value\r\n", ErrorKind::Other, true),
        ];
        for (reply, kind, maybe_applied) in cases {
            let fault = told(reply);
            assert_eq!((fault.kind, fault.maybe_applied), (kind, maybe_applied), "{reply}: {}", fault.text);
        }
    }

    #[test]
    fn what_a_cluster_says_instead_of_running_a_call_tells_where_or_when_to_repeat_it() {
        let cases = [
            ("-MOVED 3999 10.0.0.1:6381\r\n", Next::Moved("10.0.0.1:6381".to_owned())),
            ("-ASK 3999 fd00::1:6381\r\n", Next::Ask("fd00::1:6381".to_owned())),
            ("-TRYAGAIN Multiple keys request during rehashing of slot\r\n", Next::Again),
            ("-CLUSTERDOWN The cluster is down\r\n", Next::Again),
            ("-READONLY You can't write against a read only replica.\r\n", Next::Again),
            ("-CROSSSLOT Keys in request don't hash to the same slot\r\n", Next::Nothing),
        ];
        for (reply, next) in cases {
            let fault = told(reply);
            assert_eq!((fault.next, fault.maybe_applied), (next, false), "{reply}: {}", fault.text);
        }
        assert_eq!(told("-OOM command not allowed\r\n").next, Next::Nothing);
    }

    #[test]
    fn a_connection_that_broke_may_have_charged_and_one_that_was_never_made_has_not() {
        let broken = RedisError::from(std::io::Error::from(std::io::ErrorKind::ConnectionReset));
        assert_eq!((Fault::calling(&broken).kind, Fault::calling(&broken).maybe_applied), (ErrorKind::Connect, true));
        assert!(!Fault::connecting(&broken).maybe_applied);
    }
}
