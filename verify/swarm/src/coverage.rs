//! Counts of the faults that were drawn and of the inputs that happened to each machine: a case that a swarm
//! has not drawn, it has not tested.
//!
//! Inputs are named by a `match` without a wildcard, so that a new one does not compile before it has a name
//! here, and with its name it is in the table, where it counts as missing until a case draws it.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use core::cell::RefCell;
use polycast_protocol::delivery::Input as DeliveryInput;
use polycast_protocol::push::overlay::UpstreamsInput;
use polycast_protocol::push::{ReceiverInput, SenderInput};
use polycast_protocol::rack::{CentralInput, LeafInput};
use polycast_protocol::session::{GuestInput, RosterInput, TellingInput};
use polycast_protocol::stream::{OrderInput, StreamsInput};
use polycast_protocol::{leases, pull, push, rack};
use polycast_simulator::packet::Faults;
use polycast_simulator::packet::hooks::{Act, Event, Observer};
use polycast_simulator::packet::world::{Happening, Taking};

/// Counts by name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Coverage(Vec<(&'static str, u64)>);

impl Coverage {
    /// Counts one.
    pub(crate) fn hit(&mut self, name: &'static str) {
        self.add(name, 1);
    }

    fn add(&mut self, name: &'static str, count: u64) {
        // There are few names in a run, and each has mostly one address: this costs no comparison of letters.
        let known = self.0.iter_mut().find(|(other, _)| core::ptr::eq(*other, name));
        match known {
            Some((_, before)) => *before += count,
            None => self.0.push((name, count)),
        }
    }

    /// Counts the faults of the packets of a case, and nothing else yet.
    pub(crate) fn of(faults: &Faults) -> Self {
        let mut coverage = Coverage::default();
        coverage.faults(faults);
        coverage
    }

    /// Counts what goes wrong with the packets of a case.
    pub(crate) fn faults(&mut self, faults: &Faults) {
        for (ppm, name) in [
            (faults.loss_ppm, PACKETS_LOST),
            (faults.corruption_ppm, PACKETS_CORRUPT),
            (faults.duplication_ppm, PACKETS_DOUBLED),
            (faults.reordering_ppm, PACKETS_REORDERED),
        ] {
            if ppm > 0 {
                self.hit(name);
            }
        }
    }

    /// Adds what another run has counted.
    pub fn merge(&mut self, other: &Coverage) {
        other.0.iter().for_each(|(name, count)| self.add(name, *count));
    }

    /// Returns all acts of an attacker, each with the number of times that it happened, also those that never
    /// did.
    #[must_use]
    pub fn attacks(&self) -> BTreeMap<&'static str, u64> {
        let mut table: BTreeMap<&'static str, u64> = ATTACKS.iter().map(|name| (*name, 0)).collect();
        for (name, count) in &self.0 {
            if let Some(known) = table.get_mut(name) {
                *known += count;
            }
        }
        table
    }

    /// All names in their order, each with how often it happened, also those that never did.
    #[must_use]
    pub fn table(&self) -> BTreeMap<&'static str, u64> {
        let mut table: BTreeMap<&'static str, u64> =
            ALL.iter().flat_map(|names| names.iter()).map(|name| (*name, 0)).collect();
        for (name, count) in &self.0 {
            *table.entry(name).or_default() += count;
        }
        table
    }
}

/// Counts of the events of a world, which tells them while it runs.
#[derive(Default)]
pub(crate) struct Seen(RefCell<Coverage>);

impl Seen {
    /// Returns the counts so far.
    pub(crate) fn coverage(&self) -> Coverage {
        self.0.borrow().clone()
    }
}

impl Observer for Seen {
    fn see(&self, event: Event<'_>) {
        self.0.borrow_mut().hit(name_of(event));
    }
}

/// The name of an event of a world.
fn name_of(event: Event<'_>) -> &'static str {
    match event {
        Event::Sender(input) => of_sender(input),
        Event::Receiver(input) => of_receiver(input),
        Event::Upstreams(input) => of_upstreams(input),
        Event::Roster(input) => of_roster(input),
        Event::Guest(input) => of_guest(input),
        Event::Forwarder(input) => of_forwarder(input),
        Event::PullSource(input) => of_pull_source(input),
        Event::PullReceiver(input) => of_pull_receiver(input),
        Event::Happening(happening) => of_happening(happening),
        Event::Pages(Taking::Taken) => PAGES_TAKEN,
        Event::Pages(Taking::Open) => PAGES_OPEN,
        Event::Pages(Taking::Awaited) => PAGES_AWAITED,
        Event::Attack(act) => of_act(act),
    }
}

/// The name of an act of a world's attacker.
fn of_act(act: Act) -> &'static str {
    match act {
        Act::Drops => ATTACK_DROPS,
        Act::Delays => ATTACK_DELAYS,
        Act::Repeats => ATTACK_REPEATS,
        Act::Changes => ATTACK_CHANGES,
        Act::DropsSegment => ATTACK_DROPS_SEGMENT,
        Act::DelaysSegment => ATTACK_DELAYS_SEGMENT,
        Act::RepeatsSegment => ATTACK_REPEATS_SEGMENT,
        Act::ChangesSegment => ATTACK_CHANGES_SEGMENT,
        Act::CutsIn => ATTACK_CUTS_IN,
        Act::Replays => ATTACK_REPLAYS,
        Act::ReplaysEarlier => ATTACK_REPLAYS_EARLIER,
        Act::SendsChanged => ATTACK_SENDS_CHANGED,
        Act::Injects => ATTACK_INJECTS,
        Act::Floods => ATTACK_FLOODS,
        Act::ForgesOne => ATTACK_FORGES_ONE,
        Act::Calls => ATTACK_CALLS,
        Act::SpeaksAs => ATTACK_SPEAKS_AS,
        Act::MemberForges => ATTACK_MEMBER_FORGES,
        Act::MemberJumps => ATTACK_MEMBER_JUMPS,
        Act::MemberPatches => ATTACK_MEMBER_PATCHES,
        Act::Unproven => ATTACK_UNPROVEN,
        Act::LiesProgress => ATTACK_LIES_PROGRESS,
        Act::LiesPosition => ATTACK_LIES_POSITION,
        Act::Asks => ATTACK_ASKS,
        Act::Complains => ATTACK_COMPLAINS,
        Act::ServesWrong => ATTACK_SERVES_WRONG,
        Act::SourceLies => ATTACK_SOURCE_LIES,
        Act::Lacks => ATTACK_LACKS,
        Act::Blames => ATTACK_BLAMES,
        Act::Boasts => ATTACK_BOASTS,
        Act::Keeps => ATTACK_KEEPS,
        Act::Fetches => ATTACK_FETCHES,
        Act::TurnedAway => ATTACK_TURNED_AWAY,
    }
}

/// A function that names inputs, and the list of its names.
macro_rules! kinds {
    ($function:ident, $names:ident, $type:ty: $($pattern:pat => $name:literal,)+) => {
        /// The name of an input.
        pub(crate) fn $function(input: &$type) -> &'static str {
            match input { $($pattern => $name,)+ }
        }
        static $names: &[&str] = &[$($name,)+];
    };
}

kinds!(of_telling, TELLING, TellingInput:
    TellingInput::Hashed(_) => "telling: Hashed",
    TellingInput::Looked { .. } => "telling: Looked",
);

kinds!(of_leases, LEASES, leases::Input:
    leases::Input::Join(_) => "leases: Join",
    leases::Input::Heartbeat { .. } => "leases: Heartbeat",
    leases::Input::Leave { .. } => "leases: Leave",
    leases::Input::Parted { .. } => "leases: Parted",
    leases::Input::SetUp { .. } => "leases: SetUp",
    leases::Input::Failed { .. } => "leases: Failed",
    leases::Input::Repaired { .. } => "leases: Repaired",
    leases::Input::Found { .. } => "leases: Found",
    leases::Input::Request(_) => "leases: Request",
    leases::Input::Withdraw { .. } => "leases: Withdraw",
    leases::Input::Extend { .. } => "leases: Extend",
    leases::Input::Release { .. } => "leases: Release",
    leases::Input::Fared { .. } => "leases: Fared",
    leases::Input::Reached { .. } => "leases: Reached",
    leases::Input::Unlit { .. } => "leases: Unlit",
    leases::Input::Drain { .. } => "leases: Drain",
    leases::Input::DrainHost { .. } => "leases: DrainHost",
    leases::Input::Advised { .. } => "leases: Advised",
);

kinds!(of_delivery, DELIVERY, DeliveryInput:
    DeliveryInput::Start { .. } => "delivery: Start",
    DeliveryInput::Granted { .. } => "delivery: Granted",
    DeliveryInput::Denied(_) => "delivery: Denied",
    DeliveryInput::EndsAt(_) => "delivery: EndsAt",
    DeliveryInput::UsedUp { .. } => "delivery: UsedUp",
    DeliveryInput::Ended(_) => "delivery: Ended",
    DeliveryInput::Change(_) => "delivery: Change",
    DeliveryInput::Cancel => "delivery: Cancel",
    DeliveryInput::Tick => "delivery: Tick",
);

kinds!(of_streams, STREAMS, StreamsInput:
    StreamsInput::Arrived { .. } => "streams: Arrived",
    StreamsInput::Gone { .. } => "streams: Gone",
    StreamsInput::Create { .. } => "streams: Create",
    StreamsInput::End { .. } => "streams: End",
    StreamsInput::Join { .. } => "streams: Join",
    StreamsInput::At { .. } => "streams: At",
    StreamsInput::Leave { .. } => "streams: Leave",
    StreamsInput::Response { .. } => "streams: Response",
    StreamsInput::Changed { .. } => "streams: Changed",
    StreamsInput::Replanned { .. } => "streams: Replanned",
    StreamsInput::Ended { .. } => "streams: Ended",
);

kinds!(of_order, ORDER, OrderInput:
    OrderInput::Piece { .. } => "order: Piece",
);

kinds!(of_central, CENTRAL, CentralInput<'_>:
    CentralInput::Set { .. } => "central: Set",
    CentralInput::Forget { .. } => "central: Forget",
    CentralInput::FromLeaf { .. } => "central: FromLeaf",
);

kinds!(of_leaf, LEAF, LeafInput<'_>:
    LeafInput::FromAgent { .. } => "leaf: FromAgent",
    LeafInput::FromCentral(_) => "leaf: FromCentral",
    LeafInput::Relabelled { .. } => "leaf: Relabelled",
);

kinds!(of_rack_agent, RACK_AGENT, rack::AgentInput<'_>:
    rack::AgentInput::Message(_) => "rack agent: Message",
);

kinds!(of_feedback, FEEDBACK, push::feedback::FeedbackInput<'_>:
    push::feedback::FeedbackInput::Said { .. } => "feedback: Said",
    push::feedback::FeedbackInput::Left { .. } => "feedback: Left",
);

kinds!(of_forwarder, FORWARDER, pull::ForwarderInput:
    pull::ForwarderInput::Packet { .. } => "forwarder: Packet",
);

kinds!(of_pull_source, PULL_SOURCE, pull::SourceInput:
    pull::SourceInput::Interest { .. } => "pull source: Interest",
    pull::SourceInput::TreeGone { .. } => "pull source: TreeGone",
    pull::SourceInput::TreeBack { .. } => "pull source: TreeBack",
    pull::SourceInput::Port { .. } => "pull source: Port",
);

kinds!(of_pull_receiver, PULL_RECEIVER, pull::ReceiverInput:
    pull::ReceiverInput::Held { .. } => "pull receiver: Held",
    pull::ReceiverInput::Begin => "pull receiver: Begin",
    pull::ReceiverInput::Roots { .. } => "pull receiver: Roots",
    pull::ReceiverInput::Data(_) => "pull receiver: Data",
    pull::ReceiverInput::Corrupt { .. } => "pull receiver: Corrupt",
    pull::ReceiverInput::Rerouted { .. } => "pull receiver: Rerouted",
    pull::ReceiverInput::Regained { .. } => "pull receiver: Regained",
);

kinds!(of_sender, SENDER, SenderInput<'_>:
    SenderInput::Ready { .. } => "push sender: Ready",
    SenderInput::Start => "push sender: Start",
    SenderInput::Control { .. } => "push sender: Control",
    SenderInput::Left { .. } => "push sender: Left",
    // The swarm's receivers get on between their connections, and are waited for. `tests/push/hostile.rs` of
    // the protocol draws the others.
    SenderInput::Forget { .. } | SenderInput::Unawaited { .. } => "push sender: Forget",
    SenderInput::Useless { .. } => "push sender: Useless",
    SenderInput::Rack { .. } => "push sender: Rack",
    SenderInput::Close => "push sender: Close",
    SenderInput::Open => "push sender: Open",
    SenderInput::PathLost => "push sender: PathLost",
    SenderInput::Path { .. } => "push sender: Path",
    SenderInput::PathWaits(_) => "push sender: PathWaits",
);

kinds!(of_receiver, RECEIVER, ReceiverInput<'_>:
    ReceiverInput::Held { .. } => "push receiver: Held",
    ReceiverInput::Begin => "push receiver: Begin",
    ReceiverInput::Data { .. } => "push receiver: Data",
    ReceiverInput::Patched { .. } => "push receiver: Patched",
    ReceiverInput::Sent { .. } => "push receiver: Sent",
    ReceiverInput::Checked { .. } => "push receiver: Checked",
    ReceiverInput::Fetched { .. } => "push receiver: Fetched",
    ReceiverInput::Chained => "push receiver: Chained",
    ReceiverInput::Control(_) => "push receiver: Control",
    ReceiverInput::Committed { .. } => "push receiver: Committed",
    ReceiverInput::HeldUp => "push receiver: HeldUp",
    ReceiverInput::NothingWaits => "push receiver: NothingWaits",
);

kinds!(of_upstreams, UPSTREAMS, UpstreamsInput<'_>:
    UpstreamsInput::Candidates { .. } => "upstreams: Candidates",
    UpstreamsInput::Opened(_) => "upstreams: Opened",
    UpstreamsInput::Closed(..) => "upstreams: Closed",
    UpstreamsInput::Heard(..) => "upstreams: Heard",
    UpstreamsInput::Has(..) => "upstreams: Has",
    // An attacker's receiver alone gives wrong bytes, and hashes come before candidates here: tests of the
    // machine draw both.
    UpstreamsInput::Came(..) | UpstreamsInput::Wrong(..) => "upstreams: Came",
    UpstreamsInput::Verified(_) => "upstreams: Verified",
    UpstreamsInput::HeldUp | UpstreamsInput::Tick => "upstreams: Tick",
);

kinds!(of_roster, ROSTER, RosterInput<'_>:
    RosterInput::Hello { .. } => "roster: Hello",
    RosterInput::Frame { .. } => "roster: Frame",
    RosterInput::Gone { .. } => "roster: Gone",
    RosterInput::Told { .. } => "roster: Told",
    RosterInput::Informed { .. } => "roster: Informed",
    RosterInput::Unproven { .. } => "roster: Unproven",
    RosterInput::NotComing { .. } => "roster: NotComing",
    RosterInput::Add(_) => "roster: Add",
    RosterInput::Remove(_) => "roster: Remove",
    RosterInput::Fewer(_) => "roster: Fewer",
    RosterInput::Fail { .. } => "roster: Fail",
    RosterInput::Settled { .. } => "roster: Settled",
    RosterInput::Over(_) => "roster: Over",
);

kinds!(of_guest, GUEST, GuestInput<'_>:
    GuestInput::Frame(_) => "guest: Frame",
    GuestInput::Gone(_) => "guest: Gone",
    GuestInput::Stored { resumes: false } => "guest: Stored",
    GuestInput::Stored { resumes: true } => "guest: Stored, resumes",
    GuestInput::Verifiable => "guest: Verifiable",
    GuestInput::Checked => "guest: Checked",
    GuestInput::Failed(_) => "guest: Failed",
    GuestInput::Serves(_) => "guest: Serves",
    GuestInput::Committed => "guest: Committed",
);

kinds!(of_happening, HAPPENINGS, Happening:
    Happening::Link { .. } => "world: Link",
    Happening::Node { .. } => "world: Node",
    Happening::Faults { .. } => "world: Faults",
    Happening::Turn { .. } => "world: Turn",
    Happening::Reroute => "world: Reroute",
    Happening::CrashReceiver { .. } => "world: CrashReceiver",
    Happening::JoinReceiver { .. } => "world: JoinReceiver",
    Happening::AddReceiver { .. } => "world: AddReceiver",
    Happening::RemoveReceiver { .. } => "world: RemoveReceiver",
    Happening::CutOff { .. } => "world: CutOff",
    Happening::Mood { .. } => "world: Mood",
    Happening::BreakControl { .. } => "world: BreakControl",
    Happening::BreakMesh { .. } => "world: BreakMesh",
    Happening::CrashSource { .. } => "world: CrashSource",
    Happening::CancelSource { .. } => "world: CancelSource",
    Happening::StartTransfer { .. } => "world: StartTransfer",
    Happening::Service { .. } => "world: Service",
    Happening::Hold { .. } => "world: Hold",
    Happening::StartFlow { .. } => "world: StartFlow",
    Happening::Relabel { .. } => "world: Relabel",
    Happening::LosePath { .. } => "world: LosePath",
    Happening::SwitchPath { .. } => "world: SwitchPath",
    Happening::PathWaits { .. } => "world: PathWaits",
    Happening::NotComing { .. } => "world: NotComing",
    Happening::Broken { .. } => "world: Broken",
);

/// Names of what is drawn.
macro_rules! events {
    ($names:ident: $($name:ident = $text:literal,)+) => {
        $(pub(crate) static $name: &str = $text;)+
        static $names: &[&str] = &[$($text,)+];
    };
}

events! { EVENTS:
    PACKETS_LOST = "packets are lost",
    PACKETS_CORRUPT = "packets are corrupt",
    PACKETS_DOUBLED = "packets come twice",
    PACKETS_REORDERED = "packets are overtaken",
    PAGES_TAKEN = "object takes the pages of an older version",
    PAGES_OPEN = "older version keeps its pages, which a process has open",
    PAGES_AWAITED = "older version keeps its pages, which a process is about to open",
    PULL_CRASH = "node of a pull transfer crashes",
    PULL_LINK = "link of a pull transfer is cut, or joined again",
    MANAGER_CRASHES = "manager crashes",
    MANAGER_CRASHES_WITH_WAITING = "manager crashes while requests wait",
    LEADER_CRASHES = "leader crashes",
    LEADER_PAUSES = "leader pauses",
    LEADER_SUPERSEDED = "leader finds that another one leads",
    MANAGER_CUT_OFF = "manager is cut off from the store",
    STORE_SILENT = "store answers no manager",
    STORE_FULL = "store is full",
    STORE_FORGETS = "store forgets its history",
    WRITE_REFUSED = "write is refused by a full store",
    WRITE_SLOW = "write takes its time",
    WRITE_UNANSWERED = "answer to a write is lost",
    RESTORED = "manager goes on from records",
    CHOSEN_BY_TIME = "manager chooses a fabric by time",
    SLOWER_PASSED = "fabric is passed over because it is slower",
    CHOSEN_AS_LEARNED = "choice goes by what was learned",
    DRAINED_NAMED = "request names a host that is drained",
    LEARNED_RESTORED = "leader goes on with what was learned",
    RECORD_LOST = "record of a path cannot be read",
    ADVICE_FOLLOWED = "answer of an external scheduler is carried out",
    ADVICE_LATE = "answer of an external scheduler is late",
    ADVICE_WRONG = "answer of an external scheduler cannot be",
    ADVICE_UNREACHED = "external scheduler is not reached",
    AGENT_CRASHES = "agent crashes",
    AGENT_LEAVES = "agent leaves",
    CALLS_CUT = "agent's calls wait",
    ANSWERS_CUT = "agent's answers wait",
    SESSION_BREAKS = "agent gives its session up",
    DEVICE_FAILS = "device does not set a path up",
    RESOURCE_FAILS = "resource fails",
    PATH_REPLANNED = "path is planned anew",
    PATH_KEPT = "path is kept ready",
    PART_GRANTED = "part of a request is granted",
    TIME_OVER = "lease ends by its time",
    DELIVERY_PATH_LOST = "path of a delivery is lost",
    DELIVERY_PART = "path for a part of an object is granted",
    DELIVERY_DENIED = "further path is denied",
    DELIVERY_REKEYED = "delivery goes on under other keys",
    CARRIER_BREAKS = "transfer of a delivery breaks down",
    DELTA_LEAVES = "delta leaves receivers without the object",
    MEMBER_STOPS = "member of an overlay stands still",
    MEMBER_DIES = "member of an overlay dies",
    MEMBER_BOASTS = "member of an overlay says that it has everything, and gives nothing",
    MEMBER_SPOILS = "member of an overlay gives wrong bytes",
    MEMBER_COMES = "member of an overlay comes later than others",
    MEMBERS_IN_ZONES = "members of an overlay are in several zones and racks",
    FLOWS_ARE_LIMITED = "network limits each connection of an overlay",
    MEMBER_HAS_LANES = "member of an overlay has several connections to another one",
    MEMBER_DRIPS = "member of an overlay gives next to nothing of what it says it has",
    MEMBER_HIDDEN = "member of an overlay cannot be reached by the others",
    STREAM_SOURCE_CRASHES = "stream's agent crashes",
    STREAM_SESSION_BREAKS = "stream's agent loses its session",
    STREAM_MANAGER_CRASHES = "manager of streams crashes",
    STREAM_PATH_FAILS = "stream's path fails",
    PIECE_LOST = "piece of a message is lost",
    PIECE_DOUBLED = "piece of a message comes twice",
    PIECE_LATE = "piece of a message is overtaken",
    MESSAGES_GIVEN_UP = "gap in a stream is said",
    PIECE_PLAYED = "piece that was recorded is played to a receiver",
    MESSAGE_FORGOTTEN = "message that lacks a piece is forgotten",
    CENTRAL_CRASHES = "central controller crashes",
    LEAF_CRASHES = "leaf controller crashes",
    RACK_AGENT_CRASHES = "agent of a rack crashes",
    RACK_AGENT_MUTE = "agent of a rack is mute",
    RACK_MESSAGE_LOST = "message of a rack is lost",
    RACK_MESSAGE_DOUBLED = "message of a rack comes twice",
    RACK_FULL = "change of labels is refused",
    RACK_CONFIRMED = "change of labels is confirmed",
    RACK_AGENT_RETURNS = "agent of a rack was only late",
    RECEIVER_BEHIND = "receiver of a rack is put out",
    FEEDBACK_LOST = "report in a rack is lost",
    RECEIVER_STARTS_ANEW = "receiver of a rack starts anew",
}

events! { ATTACKS:
    ATTACK_INSIDE = "attacker has a receiver",
    ATTACK_REMOVED = "attacker's receiver is taken out",
    ATTACK_DROPS = "attacker drops a packet",
    ATTACK_DELAYS = "attacker holds a packet back",
    ATTACK_REPEATS = "attacker sends a packet a second time",
    ATTACK_CHANGES = "attacker changes a packet on its way",
    ATTACK_DROPS_SEGMENT = "attacker drops a segment of a connection",
    ATTACK_DELAYS_SEGMENT = "attacker holds a segment back",
    ATTACK_REPEATS_SEGMENT = "attacker sends a segment a second time",
    ATTACK_CHANGES_SEGMENT = "attacker changes a segment, and its connection ends",
    ATTACK_CUTS_IN = "attacker writes into a connection of others",
    ATTACK_REPLAYS = "attacker sends a packet that it has kept",
    ATTACK_REPLAYS_EARLIER = "attacker sends a packet of another transfer",
    ATTACK_SENDS_CHANGED = "attacker sends a packet that it has changed",
    ATTACK_INJECTS = "attacker sends a packet of its own making",
    ATTACK_FLOODS = "attacker sends as many packets as the source",
    ATTACK_FORGES_ONE = "attacker sends one packet, and nothing else",
    ATTACK_CALLS = "attacker calls a receiver without a permit",
    ATTACK_SPEAKS_AS = "attacker says HELLO in another's name",
    ATTACK_MEMBER_FORGES = "member forges a fragment",
    ATTACK_MEMBER_JUMPS = "member forges a position",
    ATTACK_MEMBER_PATCHES = "member forges a coded patch",
    ATTACK_UNPROVEN = "member says that it has the object, without the proof",
    ATTACK_LIES_PROGRESS = "member lies of its progress",
    ATTACK_LIES_POSITION = "member lies of where it has begun",
    ATTACK_ASKS = "member asks for what it has",
    ATTACK_COMPLAINS = "member says that packets were forged",
    ATTACK_CHANGES_INTEREST = "attacker changes an interest on its way",
    ATTACK_HOLDS_UP = "attacker holds up what is said on a connection",
    ATTACK_ASKS_NODES = "attacker asks nodes for packets",
    ATTACK_MEMBER_LISTS = "member forges a packet of a list of names",
    NODE_DOUBTS = "node drops other bytes than a name says",
    ATTACK_SERVES_WRONG = "member serves wrong bytes in the mesh",
    ATTACK_SOURCE_LIES = "source offers or sends what it has not called for",
    ATTACK_LACKS = "member says that it lacks what it does not",
    ATTACK_BLAMES = "member says of another one that it is of no use",
    ATTACK_BOASTS = "member says that it has everything",
    ATTACK_KEEPS = "member does not give what it is asked for",
    ATTACK_FETCHES = "member asks an end of the mesh for all it has",
    ATTACK_TURNED_AWAY = "one without a right ticket is turned away",
}

static ALL: &[&[&str]] = &[
    EVENTS,
    LEASES,
    DELIVERY,
    STREAMS,
    ORDER,
    CENTRAL,
    LEAF,
    RACK_AGENT,
    FEEDBACK,
    FORWARDER,
    PULL_SOURCE,
    PULL_RECEIVER,
    SENDER,
    RECEIVER,
    UPSTREAMS,
    ROSTER,
    GUEST,
    TELLING,
    HAPPENINGS,
];
