//! Staunch: a reverse proxy that limits rates.
//!
//! What a request meets, in order, is the order of the rooms; `proxy::service` reads as the life of one request:
//!
//! ```text
//! snapshot   the policy in force, taken once and kept to the end          proxy/policy.rs
//! client     peer, trusted forwarding fields → the client's address       proxy/client_addr.rs
//! normalise  the path, once, for matching and for forwarding              route/path.rs
//! route      host, path, method, headers → the route                      route/
//! identify   each limit's key from the request                            identify/
//! decide     all limits together → one outcome                            limit/
//!              1 a lease or a remembered refusal answers at once            limit/hot/
//!              2 the rest goes to the store in one call                     store/ → algorithm/
//!              3 a shard down: the policy's failure action                  limit/failure.rs
//! respond    refuse, or …                                                 respond/
//! forward    … pick an endpoint, send, stream back                        upstream/
//! annotate   the fields of the decision on whatever answer goes out       respond/fields.rs
//! record     one metric update, one log line                              telemetry/
//! ```
//!
//! A room imports only from rooms before it; `tests/house.rs` holds the table:
//! `clock units lifecycle` · `telemetry` · `message http1 trust` · `algorithm route identify` · `store upstream` · `limit` ·
//! `respond` · `proxy` · `config admin listener` · `runtime app command` · `main`.

#![warn(clippy::unwrap_used, clippy::expect_used, reason = "a panic ends a request that should have been answered")]

pub mod admin;
pub mod algorithm;
pub mod app;
pub mod clock;
pub mod command;
pub mod config;
pub mod http1;
pub mod identify;
pub mod lifecycle;
pub mod limit;
pub mod listener;
pub mod message;
pub mod proxy;
pub mod respond;
pub mod route;
pub mod runtime;
pub mod store;
pub mod telemetry;
pub mod trust;
pub mod units;
pub mod upstream;
