//! The rate-limit fields of an answer: `X-RateLimit-*` from the tightest limit, `RateLimit` and `RateLimit-Policy`
//! (draft-ietf-httpapi-ratelimit-headers, RFC 9651 syntax) from all of them.
//!
//! Promises each field once, whatever the upstream sent, and nothing that a client could be misled by: waits are rounded
//! up, and where no wait helps none is told (no `t`, no `X-RateLimit-Reset`). On every request's path: written in wire form
//! into one buffer, without formatting machinery.

use super::{Reset, Style};
use crate::limit::{Allowance, Limit, Name, Policy, Told, window_us};
use crate::message::Lines;
use http::{HeaderMap, HeaderName};

/// RFC 9651 §3.3.1: fifteen digits.
const INTEGER_MAX: u64 = 999_999_999_999_999;
const SECOND_US: u64 = 1_000_000;

/// Writes the rate-limit fields of an answer of a limited route. `told` may be empty there (all limits exempt, skipped,
/// unlimited or shadow), and then none come.
///
/// `wall_us` is the wall clock, for `X-RateLimit-Reset` as an epoch.
pub fn annotate(lines: &mut Lines, told: &[Told], style: &Style, wall_us: u64) {
    let Some(tightest) = tightest(told) else { return };
    if style.x_ratelimit {
        lines.add("x-ratelimit-limit: ", |text| integer(text, tightest.capacity));
        lines.add("x-ratelimit-remaining: ", |text| integer(text, tightest.remaining));
        if let Some(wait_us) = wait_us(tightest) {
            let reset = reset(wait_us, tightest.refused, style.reset, wall_us);
            lines.add("x-ratelimit-reset: ", |text| integer(text, reset));
        }
    }
    if style.ratelimit {
        lines.add("ratelimit-policy: ", |text| list(text, told, policy));
        lines.add("ratelimit: ", |text| list(text, told, standing));
    }
}

/// Room that `annotate` needs for most names.
#[must_use]
pub fn room(told: &[Told]) -> usize {
    160 + 96 * told.len()
}

/// The refused one with the longest wait, "no wait helps" being the longest; else the one with the fewest remaining;
/// of equals the first.
#[must_use]
pub fn tightest<'t, 'l>(told: &'t [Told<'l>]) -> Option<&'t Told<'l>> {
    // Smaller is tighter; `min_by_key` keeps the first of equals.
    told.iter().min_by_key(|told| {
        if told.refused { (0, u64::MAX - told.retry_after_us.unwrap_or(u64::MAX)) } else { (1, told.remaining) }
    })
}

/// Whole seconds, rounded up.
#[must_use]
pub fn seconds_up(us: u64) -> u64 {
    us.div_ceil(SECOND_US)
}

/// The seconds of `Retry-After`: rounded up, and never 0, which clients read as "at once".
#[must_use]
pub fn retry_after_s(us: u64) -> u64 {
    seconds_up(us).max(1)
}

/// Until the limit is whole again; of a refused one, until the request would pass. `None`: never.
fn wait_us(told: &Told) -> Option<u64> {
    if told.refused { told.retry_after_us } else { Some(told.reset_us) }
}

fn delta_s(wait_us: u64, refused: bool) -> u64 {
    if refused { retry_after_s(wait_us) } else { seconds_up(wait_us) }
}

fn reset(wait_us: u64, refused: bool, form: Reset, wall_us: u64) -> u64 {
    match form {
        Reset::Epoch => seconds_up(wall_us.saturating_add(wait_us)),
        Reset::Delta => delta_s(wait_us, refused),
    }
}

fn list(text: &mut Vec<u8>, told: &[Told], member: impl Fn(&mut Vec<u8>, &Told)) {
    for (index, told) in told.iter().enumerate() {
        if index > 0 {
            text.extend_from_slice(b", ");
        }
        member(text, told);
    }
}

fn policy(text: &mut Vec<u8>, told: &Told) {
    match told.policy {
        Policy::Written(written) => text.extend_from_slice(written),
        Policy::Window(window_us) => write_policy(text, told.name, told.capacity, window_us),
    }
}

/// A limit's member of `RateLimit-Policy`: `"name";q=100;w=60`. A limit without a window (`concurrency`) has no `w`.
fn write_policy(text: &mut Vec<u8>, name: &Name, capacity: u64, window_us: u64) {
    text.extend_from_slice(name.quoted().as_bytes());
    parameter(text, b";q=", capacity);
    if window_us > 0 {
        parameter(text, b";w=", seconds_up(window_us));
    }
}

/// A limit's member for the quota that nearly all of its keys have, written when a configuration is loaded.
#[must_use]
pub fn policy_of(limit: &Limit, name: &Name) -> Box<[u8]> {
    let Allowance::Limited(quota) = limit.allowance else { return Box::default() };
    let mut text = Vec::new();
    write_policy(&mut text, name, limit.algorithm.capacity(&quota), window_us(&quota, limit.algorithm));
    text.into()
}

/// `"name";r=99;t=60`.
fn standing(text: &mut Vec<u8>, told: &Told) {
    text.extend_from_slice(told.name.quoted().as_bytes());
    parameter(text, b";r=", told.remaining);
    if let Some(wait_us) = wait_us(told) {
        parameter(text, b";t=", delta_s(wait_us, told.refused));
    }
}

#[inline]
fn parameter(text: &mut Vec<u8>, name: &[u8; 3], value: u64) {
    text.extend_from_slice(name);
    integer(text, value.min(INTEGER_MAX));
}

#[inline]
pub(super) fn integer(text: &mut Vec<u8>, value: u64) {
    match u8::try_from(value) {
        // Where a request is refused, what remains is mostly one digit, and a digit needs no buffer and no copy.
        Ok(digit @ 0..=9) => text.push(b'0' + digit),
        _ => text.extend_from_slice(itoa::Buffer::new().format(value).as_bytes()),
    }
}

/// Removes every rate-limit field an upstream sent on a limited route, its dialects included (`x-ratelimit-used`, …): a mixture of
/// two limiters' fields is worse than either. Most answers have none, and pay one look at their names.
pub fn strip(headers: &mut HeaderMap) {
    let theirs = |name: &&HeaderName| {
        let name = name.as_str();
        name.starts_with("x-ratelimit-") || name == "ratelimit" || name == "ratelimit-policy"
    };
    while let Some(name) = headers.keys().find(theirs).cloned() {
        headers.remove(name);
    }
}
