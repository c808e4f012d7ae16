//! A host that sends by push: drives `protocol::session::Roster` and `protocol::push::Sender`, clocked by its
//! network card.

use super::Alarm;
use super::keys::Keyring;
use super::receiver::Serving;
use super::streams::StreamId;
use crate::packet::{LinkId, NodeId};
use alloc::boxed::Box;
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::string::String;
use alloc::vec::Vec;
use polycast_protocol::push::overlay::Seeding;
use polycast_protocol::push::{
    AttemptInterval, BATCH_MAX, FullRate, Geometry, PeerId, Sender, SenderConfig, SlowPolicy,
};
use polycast_protocol::session::{Expected, Roster, RosterConfig, Verdicts};
use polycast_types::{Duration, Handle, Location, RangeSet, Rate, Time};
use polycast_wire::control::Salt;
use polycast_wire::data::{FRAGMENT_TAGS_LEN, HEADER_LEN, IP_UDP_LEN};

/// Settings of a push transfer; the defaults are those of the daemons.
#[derive(Clone, Debug)]
pub struct PushConfig {
    /// Bytes of a fragment.
    pub fragment_bytes: u32,
    /// Bytes of a hash group.
    pub group_bytes: u32,
    /// Rate of a dedicated path, or `None` where the path is shared.
    pub rate: Option<Rate>,
    /// Time between attempts.
    pub attempt_interval: AttemptInterval,
    /// Rule for the end of attempts.
    pub full_rate: FullRate,
    /// Bytes of datagrams that a receiver's socket holds.
    pub window_bytes: u64,
    /// Time that a receiver takes for one packet.
    pub service: Duration,
    /// Receivers that are not done this long after the start have failed.
    pub deadline: Option<Duration>,
    /// A receiver without sign of life for this long has failed.
    pub stall_timeout: Duration,
    /// Time that receivers may take to join.
    pub join_timeout: Duration,
    /// Policy for slow receivers.
    pub slow: SlowPolicy,
    /// Set if there is a data channel; without one all receivers fetch over TCP.
    pub multicast: bool,
    /// Bytes that a path is granted for; all that are needed if `None`.
    pub allowance: Option<u64>,
    /// Time until there is another path when the allowance is used up.
    pub next_path: Duration,
    /// Set if receivers are counted and come by themselves; otherwise they are called by name.
    pub counted: bool,
    /// So many receivers, one after the other, share a rack, and one of them speaks for it; below 2 each is
    /// on its own.
    pub rack: u32,
    /// Set if packets are sealed; the world then has an attacker.
    pub sealed: bool,
}

impl Default for PushConfig {
    fn default() -> Self {
        let (fragment_bytes, group_bytes) = (1_448, 256 << 10);
        let geometry = Geometry { object_len: 0, fragment_len: fragment_bytes, group_len: group_bytes };
        let shipped = SenderConfig::new(Handle(0), geometry, 1);
        PushConfig {
            fragment_bytes,
            group_bytes,
            rate: shipped.rate,
            attempt_interval: shipped.attempt_interval,
            full_rate: shipped.full_rate,
            window_bytes: 1 << 20,
            service: Duration::ZERO,
            deadline: shipped.deadline,
            stall_timeout: shipped.stall_timeout,
            join_timeout: Duration::from_secs(30),
            slow: shipped.slow,
            multicast: shipped.multicast,
            allowance: None,
            next_path: Duration::ZERO,
            counted: false,
            rack: 0,
            sealed: false,
        }
    }
}

/// A datagram takes at most this much.
const DATAGRAM_BYTES_MAX: u32 = 64 << 10;

impl PushConfig {
    /// Bytes on a link of a packet that holds a fragment, without the frame around it.
    #[must_use]
    pub fn packet_bytes(&self) -> u32 {
        let tags = if self.sealed { FRAGMENT_TAGS_LEN } else { 0 };
        self.fragment_bytes + (HEADER_LEN + tags + IP_UDP_LEN) as u32
    }

    pub(super) fn geometry(&self, object_len: u64) -> Geometry {
        Geometry { object_len, fragment_len: self.fragment_bytes, group_len: self.group_bytes }
    }

    pub(super) fn sender(&self, handle: u32, object_len: u64) -> SenderConfig {
        let handle = Handle(handle.into());
        SenderConfig {
            rate: self.rate,
            multicast: self.multicast,
            allowance: self.fragments_of(self.allowance),
            attempt_interval: self.attempt_interval,
            full_rate: self.full_rate,
            stall_timeout: self.stall_timeout,
            deadline: self.deadline,
            slow: self.slow,
            sealed: self.sealed,
            ..SenderConfig::new(handle, self.geometry(object_len), self.batch())
        }
    }

    pub(super) fn roster(&self, handle: u32, object_len: u64, expected: Expected) -> RosterConfig {
        RosterConfig {
            join_timeout: self.join_timeout,
            stall_timeout: self.stall_timeout,
            ..RosterConfig::new(Handle(handle.into()), expected, object_len, Verdicts::Sender)
        }
    }

    /// Fragments for which a path is granted that is granted for so many bytes.
    pub(super) fn fragments_of(&self, bytes: Option<u64>) -> Option<u64> {
        bytes.map(|bytes| bytes.div_ceil(self.fragment_bytes.into()).max(1))
    }

    /// Fragments of one segmented datagram.
    pub(super) fn batch(&self) -> u32 {
        (DATAGRAM_BYTES_MAX / self.packet_bytes()).clamp(1, BATCH_MAX as u32)
    }
}

/// The connection of a receiver, as its source knows it.
pub(super) struct Conn {
    pub(super) receiver: u32,
    /// Values from HELLO.
    pub(super) window_bytes: u64,
    pub(super) serve_port: u16,
    pub(super) location: Location,
    /// Salt that selects the bytes that it shows in the end.
    pub(super) salt: Salt,
    /// Fragments to send as PTCH_DATA when the connection has room.
    pub(super) patches: RangeSet,
    /// Set once the last message was sent; it is sent once.
    pub(super) dismissed: bool,
    /// Set once the sender has settled it; it does so once.
    pub(super) settled: bool,
}

/// A transfer that runs, from the first call to the last word.
pub(super) struct Sending {
    /// The transfer's name on the wire.
    pub(super) handle: u32,
    pub(super) roster: Roster,
    pub(super) machine: Sender,
    pub(super) conns: BTreeMap<StreamId, Conn>,
    pub(super) serving: Vec<Serving>,
    /// Groups that it gives to the members of a mesh, entries that the takers show, and the time of the next
    /// check that they may take.
    pub(super) seeding: Seeding,
    pub(super) entries: BTreeMap<u64, PeerId>,
    pub(super) give_at: Time,
    /// Peers that each receiver was sent as candidates.
    pub(super) candidates: BTreeMap<PeerId, BTreeSet<PeerId>>,
    /// A link whose queue must drain before more is sent.
    pub(super) waits_for: Option<LinkId>,
    /// The number of its data channel; 0 for none.
    pub(super) channel: u32,
    /// The receivers that were on the path go on over TCP.
    pub(super) without_path: bool,
    /// Fragments that the path was granted for, and those sent on it at full rate.
    pub(super) granted: Option<u64>,
    pub(super) spent: u64,
    /// Receivers that were taken out before they were settled, and not added again.
    pub(super) removed: BTreeSet<String>,
    pub(super) over: bool,
    /// Keys that its packets are sealed with, and the connections that were sent them and have not ended.
    pub(super) keys: Keyring,
    pub(super) members: BTreeSet<StreamId>,
    /// Fragments that were on the data channel, whether a receiver got them or not.
    pub(super) ever_sent: RangeSet,
}

impl Sending {
    /// Returns true if a receiver takes groups that it gives.
    pub(super) fn gives(&self) -> bool {
        !self.serving.is_empty()
    }
}

/// The source of a push transfer.
pub struct PushSource {
    pub(super) node: NodeId,
    /// `None` while it is crashed, or has not begun.
    pub(super) run: Option<Box<Sending>>,
    pub(super) alarm: Alarm,
    pub(super) finished_at: Option<Time>,
    /// Time at which attempt sending ended for the first time.
    pub(super) full_rate_at: Option<Time>,
    /// Fragments sent on the data channel, patches on it, and fragments sent as PTCH_DATA.
    pub(super) fragments_sent: u64,
    pub(super) patches_sent: u64,
    pub(super) unicast_fragments: u64,
}

impl PushSource {
    pub(super) fn new(node: NodeId) -> Self {
        PushSource {
            node,
            run: None,
            alarm: Alarm::default(),
            finished_at: None,
            full_rate_at: None,
            fragments_sent: 0,
            patches_sent: 0,
            unicast_fragments: 0,
        }
    }

    /// Its host.
    #[must_use]
    pub fn node(&self) -> NodeId {
        self.node
    }

    /// Returns true if its host has crashed, or has not begun.
    #[must_use]
    pub fn is_crashed(&self) -> bool {
        self.run.is_none()
    }

    /// Returns the time at which every receiver was settled.
    #[must_use]
    pub fn finished_at(&self) -> Option<Time> {
        self.finished_at
    }

    /// Returns the time at which full rate began for the first time: until then single attempts were sent.
    #[must_use]
    pub fn full_rate_at(&self) -> Option<Time> {
        self.full_rate_at
    }

    /// The source's end of the session; `None` while it is crashed, or has not begun.
    #[must_use]
    pub fn roster(&self) -> Option<&Roster> {
        self.run.as_ref().map(|run| &run.roster)
    }

    /// Fragments sent on the data channel, coded patches on it, and fragments sent over TCP.
    #[must_use]
    pub fn sent(&self) -> (u64, u64, u64) {
        (self.fragments_sent, self.patches_sent, self.unicast_fragments)
    }

    /// The number of the data channel in use.
    pub(super) fn channel(&self) -> u32 {
        self.run.as_ref().map_or(0, |run| run.channel)
    }
}
