//! The overlay: receivers that multicast does not reach bring the object to each other over TCP.
//!
//! Four machines, none of which sees a payload:
//!
//! - [`Mesh`], at the source, gives every receiver a few others as candidates, so that all are connected with
//!   each other.
//! - [`Seeding`], at the source, gives every hash group away once (BitTorrent's super-seeding): who has it
//!   serves it to others. It gives a group again only where a receiver says that none of its candidates has
//!   it.
//! - [`Upstreams`], at a receiver, asks each of its candidates for groups at the rate at which they come from
//!   it. It is the only one that sees what an upstream really gives: it takes back what is late, and drops
//!   one that stalls or lies.
//! - [`Requests`], at both, bounds what one connection may ask for.
//!
//! A chain, a tree or a swarm follows from the rates of the paths; none of the machines chooses one.

mod mesh;
mod requests;
mod seeding;
mod upstreams;

pub use mesh::{Candidates, Mesh};
pub use requests::{Misuse, Requests};
pub use seeding::{Seeding, TAKERS_MAX};
pub use upstreams::{
    Candidate, Input as UpstreamsInput, Output as UpstreamsOutput, Refused, UpstreamId, Upstreams,
    UpstreamsConfig,
};

/// Mixes numbers into one that looks drawn: choices that have to differ between members, and to be the same
/// for the same seed.
fn mix(seed: u64, one: u64, other: u64) -> u64 {
    // The finaliser of SplitMix64 (Steele, Lea and Flood, 2014).
    let mut z = seed ^ one.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ other.wrapping_mul(0xd6e8_feb8_6659_fd93);
    z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ z >> 31
}
