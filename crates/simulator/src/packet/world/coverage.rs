//! How often the machines were told what, and what failed: the swarm shows that it leaves nothing out.

use super::Happening;
use alloc::collections::BTreeMap;
use polycast_protocol::push::{ReceiverInput, SenderInput};
use polycast_protocol::session::{GuestInput, RosterInput};

/// Counts by name. Matches without a wildcard: what is new has to be named here.
#[derive(Clone, Debug, Default)]
pub(super) struct Coverage(pub(super) BTreeMap<&'static str, u64>);

impl Coverage {
    pub(super) fn count(&mut self, what: &'static str) {
        *self.0.entry(what).or_default() += 1;
    }
}

/// Counts of what receivers were told: one for nearly every packet.
pub(super) type ReceiverCounts = [u64; RECEIVER.len()];

pub(super) const RECEIVER: [&str; 9] = [
    "receiver: Held",
    "receiver: Begin",
    "receiver: Data",
    "receiver: Patched",
    "receiver: Checked",
    "receiver: Fetched",
    "receiver: Chained",
    "receiver: Control",
    "receiver: Committed",
];

pub(super) fn of_receiver(input: &ReceiverInput<'_>) -> usize {
    match input {
        ReceiverInput::Held { .. } => 0,
        ReceiverInput::Begin => 1,
        ReceiverInput::Data { .. } => 2,
        ReceiverInput::Patched { .. } => 3,
        ReceiverInput::Checked { .. } => 4,
        ReceiverInput::Fetched { .. } => 5,
        ReceiverInput::Chained => 6,
        ReceiverInput::Control(_) => 7,
        ReceiverInput::Committed => 8,
    }
}

pub(super) fn of_sender(input: &SenderInput<'_>) -> &'static str {
    match input {
        SenderInput::Ready { .. } => "sender: Ready",
        SenderInput::Start => "sender: Start",
        SenderInput::Control { .. } => "sender: Control",
        SenderInput::Left { .. } => "sender: Left",
        SenderInput::Rack { .. } => "sender: Rack",
        SenderInput::Close => "sender: Close",
        SenderInput::Open => "sender: Open",
        SenderInput::PathLost => "sender: PathLost",
        SenderInput::Path { .. } => "sender: Path",
        SenderInput::PathWaits(_) => "sender: PathWaits",
    }
}

pub(super) fn of_roster(input: &RosterInput<'_>) -> &'static str {
    match input {
        RosterInput::Hello { .. } => "roster: Hello",
        RosterInput::Frame { .. } => "roster: Frame",
        RosterInput::Gone { .. } => "roster: Gone",
        RosterInput::Told { .. } => "roster: Told",
        RosterInput::NotComing { .. } => "roster: NotComing",
        RosterInput::Add(_) => "roster: Add",
        RosterInput::Remove(_) => "roster: Remove",
        RosterInput::Fail { .. } => "roster: Fail",
        RosterInput::Settled { .. } => "roster: Settled",
        RosterInput::Over(_) => "roster: Over",
    }
}

pub(super) fn of_guest(input: &GuestInput<'_>) -> &'static str {
    match input {
        GuestInput::Frame(_) => "guest: Frame",
        GuestInput::Gone(_) => "guest: Gone",
        GuestInput::Stored { resumes: false } => "guest: Stored",
        GuestInput::Stored { resumes: true } => "guest: Stored, resumes",
        GuestInput::Verifiable => "guest: Verifiable",
        GuestInput::Checked => "guest: Checked",
        GuestInput::Failed(_) => "guest: Failed",
        GuestInput::UpstreamGone => "guest: UpstreamGone",
        GuestInput::Serves(_) => "guest: Serves",
        GuestInput::Committed => "guest: Committed",
    }
}

pub(super) fn of_happening(happening: &Happening) -> &'static str {
    match happening {
        Happening::Link { .. } => "fault: Link",
        Happening::Node { .. } => "fault: Node",
        Happening::Faults { .. } => "fault: Faults",
        Happening::Turn { .. } => "fault: Turn",
        Happening::Reroute => "fault: Reroute",
        Happening::CrashReceiver { .. } => "fault: CrashReceiver",
        Happening::JoinReceiver { .. } => "fault: JoinReceiver",
        Happening::AddReceiver { .. } => "fault: AddReceiver",
        Happening::RemoveReceiver { .. } => "fault: RemoveReceiver",
        Happening::CutOff { .. } => "fault: CutOff",
        Happening::Mood { .. } => "fault: Mood",
        Happening::BreakControl { .. } => "fault: BreakControl",
        Happening::BreakChain { .. } => "fault: BreakChain",
        Happening::CrashSource { .. } => "fault: CrashSource",
        Happening::CancelSource { .. } => "fault: CancelSource",
        Happening::StartTransfer { .. } => "fault: StartTransfer",
        Happening::Service { .. } => "fault: Service",
        Happening::StartFlow { .. } => "fault: StartFlow",
        Happening::Relabel { .. } => "fault: Relabel",
        Happening::LosePath { .. } => "fault: LosePath",
        Happening::SwitchPath { .. } => "fault: SwitchPath",
        Happening::PathWaits { .. } => "fault: PathWaits",
        Happening::NotComing { .. } => "fault: NotComing",
        Happening::Broken { .. } => "fault: Broken",
    }
}
