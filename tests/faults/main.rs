//! Real gateways and real nodes, and everything that comes between them: killed, stopped, late, cut off, full. After each the
//! count is judged (exact where the store was reachable, within the documented bound where it was not), and nothing may have leaked.
//!
//! `matrix` runs cases of `plan` over a `site`, with `load`, and judges them; `kinds` provokes each kind of error; `restless` takes
//! nodes down and up at random.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test stops at the first surprise")]
#![allow(clippy::disallowed_methods, reason = "how long a process may take is told by the system's clock")]

#[path = "../support/mod.rs"]
mod support;

mod kinds;
mod load;
mod matrix;
mod plan;
mod restless;
mod site;
