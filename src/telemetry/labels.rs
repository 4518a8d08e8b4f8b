//! The closed sets of label values: what may become of a request, a decision, a call to a shard.

/// A closed set of label values.
pub trait Label: Copy + 'static {
    const ALL: &'static [Self];
    fn text(self) -> &'static str;
    fn index(self) -> usize;
}

macro_rules! label {
    ($(#[$doc:meta])* $name:ident { $($variant:ident = $text:literal),* $(,)? }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
        pub enum $name { $($variant),* }
        impl Label for $name {
            const ALL: &'static [Self] = &[$(Self::$variant),*];
            fn text(self) -> &'static str {
                match self { $(Self::$variant => $text),* }
            }
            fn index(self) -> usize {
                self as usize
            }
        }
    };
}

label!(
    /// How a request ended.
    Outcome {
        Forwarded = "forwarded", Limited = "limited", QueuedOut = "queued_out", Unavailable = "unavailable",
        BadRequest = "bad_request", NoRoute = "no_route", UpstreamError = "upstream_error",
    }
);
label!(
    /// What one limit said.
    Verdict {
        Allowed = "allowed", Limited = "limited", ShadowLimited = "shadow_limited", Delayed = "delayed",
        Exempt = "exempt", Skipped = "skipped",
    }
);
label!(
    /// Who answered.
    Source { Lease = "lease", DenialCache = "denial_cache", Store = "store", Local = "local" }
);
label!(
    /// Why a store gave no answer.
    StoreErrorKind {
        Timeout = "timeout", Connect = "connect", Auth = "auth", Script = "script", Readonly = "readonly",
        Loading = "loading", Oom = "oom", Other = "other",
    }
);
label!(
    /// What became of a reload.
    Reload { Ok = "ok", Rejected = "rejected" }
);
label!(
    /// What became of a further try that a request might have had.
    Retry { Sent = "sent", OverBudget = "over_budget" }
);
label!(
    /// Why a connection ended before HTTP began on it.
    HandshakeFailure {
        Stranger = "stranger", ProxyHeader = "proxy_header", Tls = "tls", PlainHttp = "plain_http", Timeout = "timeout",
    }
);
