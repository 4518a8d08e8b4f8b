//! Rendezvous hashing: each name has a score for a digest, and the digest belongs to the name with the highest.
//!
//! Everybody works it out alone and all agree, whatever the order of the names; a name that is added takes its share from
//! each of the others, one that leaves gives its own away, and no other digest moves. The hash is part of the contract
//! between versions: changing it moves every counter of a sharded store.

use siphasher::sip::SipHasher13;

/// What of a name goes into its scores.
#[must_use]
pub fn hash(name: &str) -> u64 {
    SipHasher13::new().hash(name.as_bytes())
}

/// What of a digest goes into every score: both halves count, and neither alone decides.
#[must_use]
pub fn fold(digest: u128) -> u64 {
    #[allow(clippy::cast_possible_truncation, reason = "the two halves of a 128-bit digest")]
    let (high, low) = ((digest >> 64) as u64, digest as u64);
    low ^ mix(high)
}

/// The score of a name, by its hash, for a folded digest.
#[must_use]
pub fn score(name: u64, folded: u64) -> u64 {
    mix(name ^ folded)
}

/// The finaliser of `SplitMix64`: every bit of the input reaches every bit of the output.
fn mix(mut bits: u64) -> u64 {
    bits = bits.wrapping_add(0x9e37_79b9_7f4a_7c15);
    bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    bits ^ (bits >> 31)
}
