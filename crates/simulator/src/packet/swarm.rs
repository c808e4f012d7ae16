//! The swarm: a seed draws a whole scenario with its faults, runs it and checks what must hold.
//!
//! Two phases, as in TigerBeetle's simulator: in the *safety* phase anything may fail and nothing may go
//! wrong; then everything is *healed*, and every receiver must get the exact object within a bounded time.
//! The checks are outside the machines: a fragment is kept once, a group is complete before it is checked,
//! nothing that was not verified counts, content ids are the object's, a label reaches nobody who has left.
//! A failure is one sentence; its seed replays it.

mod draw;
mod manager;
mod pull;
mod push;
mod session;
mod wire;

use alloc::collections::BTreeMap;
use alloc::string::String;
pub use draw::Random;

/// A bug that is put in on purpose, around the machines, to show that the swarm finds it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Plant {
    /// Patches for some fragments are never sent.
    DropPatch,
    /// Some interests never leave their receivers: their credit is skipped.
    SkipCredit,
    /// The session goes on with the label of an earlier group.
    StaleLabel,
    /// Receivers say that groups are intact which are not.
    SkipCheck,
    /// The rules of relays are not changed when one has failed.
    StaleRelays,
    /// A source of a pull transfer that comes back after a crash does not know the transfer any more.
    ForgetSource,
    /// Agents that join again do not name the leases that they use.
    ForgetLease,
    /// A grant never gets to the agent that asked.
    LoseGrant,
    /// A source goes on waiting for receivers that are taken out of its transfer.
    ForgetRemoval,
    /// A receiver that becomes ready while a transfer runs is never named to the transport.
    ForgetReady,
    /// A receiver is not told that its upstream is gone.
    ForgetUpstream,
    /// Receivers are not told of the data channel that takes the place of theirs.
    SilentSwitch,
    /// A source whose path's allowance is used up asks for no other path.
    IgnoreAllowance,
    /// What a rack's speaker reports counts for receivers that are not in its rack.
    ForeignRack,
}

/// What a seed has shown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// The seed.
    pub seed: u64,
    /// What was drawn, in a few words.
    pub case: String,
    /// What went wrong, in one sentence, if anything did.
    pub failure: Option<String>,
    /// A hash of every event in order.
    pub trace_hash: u64,
    /// Events of the run.
    pub events: u64,
    /// How often each thing has happened, and each machine was told each thing, by name.
    pub coverage: BTreeMap<&'static str, u64>,
}

/// Runs one seed, with a planted bug or without.
#[must_use]
pub fn run(seed: u64, plant: Option<Plant>) -> Verdict {
    let mut random = Random::new(seed);
    match random.below(10) {
        0 => manager::run(seed, &mut random, plant),
        1 | 2 => pull::run(seed, &mut random, plant),
        _ => push::run(seed, &mut random, plant),
    }
}

#[cfg(test)]
mod tests;
