#![no_std]
//! The swarm: a seed draws a whole scenario with its faults, runs it and checks what must hold: transfers by
//! push and pull and overlays, objects that are written to meanwhile, deliveries over several paths, managers
//! with agents, streams of messages, the controllers of racks and their feedback.
//!
//! Two phases, as in TigerBeetle's simulator: in the *safety* phase anything may fail and nothing may go
//! wrong; then everything is *healed*, and every receiver must get the exact object within a bounded time.
//! The checks are outside the machines: a fragment is kept once, a group is complete before it is checked,
//! nothing that was not verified counts, content ids are the object's, a label reaches no host that has left.
//! A failure is one sentence; its seed replays it.

#![warn(missing_docs)]

extern crate alloc;

mod attacker;
mod changed;
mod coverage;
mod deliveries;
mod draw;
mod feedback;
mod manager;
mod messages;
mod objects;
mod overlay;
mod pull;
mod push;
mod racks;
mod session;
mod slow;
mod wire;

use alloc::rc::Rc;
use alloc::string::String;
use core::ops::Range;
pub use coverage::Coverage;
pub use draw::Random;
use polycast_simulator::packet::hooks::{Hooks, Step, Tamper};

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
    /// Content of an older version in the place of a group passes for the group.
    OldGroup,
    /// An object that comes takes the pages of an older version though a process has that open.
    RecycleOpen,
    /// It takes them without waiting for a process that has found the older version and is about to open it.
    RecycleAtOnce,
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
    /// A receiver does not say which groups it gets from none of its candidates.
    ForgetLacks,
    /// Receivers are not told of the data channel that takes the place of theirs.
    SilentSwitch,
    /// A source whose path's allowance is used up asks for no other path.
    IgnoreAllowance,
    /// Reports of a rack's speaker count for receivers that are not in its rack.
    ForeignRack,
    /// A manager that goes on from records forgets what is lent, and lends it again.
    ForgetLent,
    /// A manager tells agents what is not written yet.
    WordsFirst,
    /// A manager takes a change for written that the store had no room for.
    TakeRefused,
    /// A manager that goes on from records forgets the requests that wait.
    ForgetWaiting,
    /// A manager does not see that the holder of a path has missed where it goes now.
    MissReplan,
    /// A manager that cannot read the record of a path lends at once, without waiting for the path's holder.
    LendInDoubt,
    /// Every manager gives its leases the same numbers.
    ReuseNumbers,
    /// A manager that is to choose by time takes the first fabric that is free.
    TakeSlower,
    /// A manager that goes on from records forgets how long transfers have taken.
    ForgetLearned,
    /// A central controller of racks takes what confirms an earlier run for a confirmation of its own.
    OldConfirmation,
    /// Agents of racks apply changes of streams that have ended.
    OldLabels,
    /// Progress of the speaker of a rack counts for all its receivers.
    SpeakerForAll,
    /// Gaps in a stream of messages are not said.
    HideGap,
    /// A piece of a message counts as kept and is not.
    LosePiece,
    /// A receiver that joins a stream takes messages that were recorded before.
    TakeRecorded,
    /// A source waits for a receiver that is slower than the others.
    WaitForAll,
    /// Two fragments are sealed with one nonce.
    ReuseNonce,
    /// A receiver that was taken out has the key of all that is still sent.
    KeepEpoch,
    /// A receiver takes part in whatever it is called for.
    SkipPermit,
    /// A packet's position is believed without a look at the tag of its header.
    BelievePosition,
    /// One that says that it has the object is believed.
    SkipProof,
    /// One may call itself what it likes.
    SkipName,
    /// A source of a pull transfer does not call a receiver again whose connection has ended.
    CallOnce,
    /// A packet that is not the source's takes a receiver as long as thirty that are.
    DearForgeries,
    /// A node takes what a packet carries for what its name says.
    SkipDigest,
    /// A node forgets which faces wait for packets when one comes with other bytes.
    ForgetWaiters,
    /// An agent whose session begins anew does not say what it has.
    ForgetHave,
    /// A manager that has just begun does not wait until agents have said what they have.
    NoSettling,
    /// Objects that a run of an agent had stay when another run of it comes.
    KeepGhosts,
    /// Receivers say that they have an object when it begins to come.
    EarlyHave,
    /// A manager lets receivers have any number of transfers.
    NoPlaces,
    /// A request for a path is said once, also where the session in which it was said has ended.
    AskOnce,
    /// A grant does not name the receivers that it does not lead to.
    HideMissed,
    /// Agents say of all that they have that it has come just now.
    NoAges,
    /// A source tells the last hash before it has looked whether its object is what it was.
    TellUnseen,
    /// A receiver takes whatever its source offers and sends.
    TakeAnything,
    /// One that fetches is served without a look at its ticket.
    SkipTicket,
    /// One that fetches is served on after it was taken out.
    KeepServing,
    /// A delivery asks for each of its paths as if it were the first one.
    FreshTime,
    /// A delivery does not give a path back that is used up.
    KeepPath,
    /// Changes between two carriers of a delivery are reported to neither.
    ForgetChanges,
    /// A source takes all receivers of a delta for those that have the object.
    DeltaForAll,
    /// A receiver believes what a delta makes of other bytes than those that it is against.
    BelieveBase,
    /// The source does not hear what a member of its overlay lacks.
    DropLacks,
    /// Members of an overlay do not hear of others than their first candidates.
    DropCandidates,
    /// A member of an overlay takes groups without a look at their hashes.
    SkipHash,
}

/// The bug of a world that leaves a step out. A new step does not compile before it has one here.
const fn without(step: Step) -> Plant {
    match step {
        Step::SendPatch => Plant::DropPatch,
        Step::NameReady => Plant::ForgetReady,
        Step::EndRemoved => Plant::ForgetRemoval,
        Step::SendChannel => Plant::SilentSwitch,
        Step::RequestPath => Plant::IgnoreAllowance,
        Step::KeepToRack => Plant::ForeignRack,
        Step::ChangeNonce => Plant::ReuseNonce,
        Step::ChangeKey => Plant::KeepEpoch,
        Step::InstallLabel => Plant::StaleLabel,
        Step::InstallRelays => Plant::StaleRelays,
        Step::CheckGroup => Plant::SkipCheck,
        Step::CheckOlder => Plant::OldGroup,
        Step::CheckReaders => Plant::RecycleOpen,
        Step::AwaitReaders => Plant::RecycleAtOnce,
        Step::CheckOffer => Plant::TakeAnything,
        Step::CheckPermit => Plant::SkipPermit,
        Step::CheckHeader => Plant::BelievePosition,
        Step::CheckProof => Plant::SkipProof,
        Step::CheckName => Plant::SkipName,
        Step::CheckTicket => Plant::SkipTicket,
        Step::EndFetch => Plant::KeepServing,
        Step::DropForgery => Plant::DearForgeries,
        Step::ReportLacks => Plant::ForgetLacks,
    }
}

impl Tamper for Plant {
    fn leaves_out(&self, step: Step) -> bool {
        *self == without(step)
    }
}

/// Counts of the events of a world, and the hooks by which it is seen and a bug planted.
fn hooks(plant: Option<Plant>) -> (Rc<coverage::Seen>, Hooks) {
    let seen = Rc::new(coverage::Seen::default());
    let hooks = Hooks::observed(seen.clone());
    let hooks = match plant {
        Some(plant) => hooks.tampered(Rc::new(plant)),
        None => hooks,
    };
    (seen, hooks)
}

/// Result of a seed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// The seed.
    pub seed: u64,
    /// Short description of the case that was drawn.
    pub case: String,
    /// Description of the failure in one sentence, if there was one.
    pub failure: Option<String>,
    /// A hash of every event in order.
    pub trace_hash: u64,
    /// Events of the run.
    pub events: u64,
    /// Number of times that each thing was drawn.
    pub coverage: Coverage,
}

/// A seed is first of all one of so many kinds; those that are named by nothing here are by push.
const KINDS: u64 = 20;
const MANAGERS: Range<u64> = 0..4;
const STREAMS: Range<u64> = 4..6;
const RACKS: Range<u64> = 6..7;
const FEEDBACK: Range<u64> = 7..8;
const PULL: Range<u64> = 8..11;
const OBJECTS: u64 = 18;
/// Some of these are about a slow receiver.
const SLOW: u64 = 19;
/// Some of these are about an object that is written to while it is sent, and some about a delivery over
/// several paths, or about an overlay.
const CHANGED: u64 = 17;
const DELIVERIES: Range<u64> = 0..4;
const OVERLAYS: Range<u64> = 4..8;

/// The command that runs a seed alone.
#[must_use]
pub fn command(seed: u64) -> String {
    alloc::format!("cargo xtask swarm --seeds {seed}..{}", seed + 1)
}

/// Runs one seed, with a planted bug or without.
#[must_use]
pub fn run(seed: u64, plant: Option<Plant>) -> Verdict {
    let mut random = Random::new(seed);
    match random.below(KINDS) {
        kind if MANAGERS.contains(&kind) => manager::run(seed, &mut random, plant),
        kind if STREAMS.contains(&kind) => messages::run(seed, &mut random, plant),
        kind if RACKS.contains(&kind) => racks::run(seed, &mut random, plant),
        kind if FEEDBACK.contains(&kind) => feedback::run(seed, &mut random, plant),
        kind if PULL.contains(&kind) => pull::run(seed, &mut random, plant),
        OBJECTS => objects::run(seed, &mut random, plant),
        // They take long: only a few of these are.
        SLOW if seed.is_multiple_of(50) => slow::run(seed, &mut random, plant),
        // They are short, and few are enough.
        CHANGED if seed % 10 == 8 => changed::run(seed, &mut random, plant),
        CHANGED if DELIVERIES.contains(&(seed % 10)) => deliveries::run(seed, &mut random, plant),
        CHANGED if OVERLAYS.contains(&(seed % 10)) => overlay::run(seed, &mut random, plant),
        _ => push::run(seed, &mut random, plant, None),
    }
}

/// The command that runs a seed with an attacker alone.
#[must_use]
pub fn command_attacked(seed: u64) -> String {
    alloc::format!("cargo xtask swarm --attacker --seeds {seed}..{}", seed + 1)
}

/// Runs one seed of sealed transfers in a network with an attacker, with a planted bug or without.
#[must_use]
pub fn run_attacked(seed: u64, plant: Option<Plant>) -> Verdict {
    attacker::run(seed, &mut Random::new(seed), plant)
}

#[cfg(test)]
mod tests;
