//! A host that sends by push: drives `protocol::push::Sender`, clocked by its network card.

use super::Alarm;
use super::receiver::Serving;
use super::streams::StreamId;
use crate::packet::{LinkId, NodeId};
use alloc::collections::BTreeMap;
use alloc::string::String;
use alloc::vec::Vec;
use polycast_protocol::push::{AttemptInterval, Geometry, PeerId, Sender, SenderConfig, SlowPolicy};
use polycast_types::{Duration, Handle, RangeSet, Rate, Time};
use polycast_wire::control::Control;
use polycast_wire::data::{HEADER_LEN, IP_UDP_LEN};

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
    /// Bytes of datagrams that a receiver's socket holds.
    pub window_bytes: u64,
    /// Time that a receiver takes for one packet.
    pub service: Duration,
    /// Receivers that are not done this long after the start have failed.
    pub deadline: Option<Duration>,
    /// A receiver without sign of life for this long has failed.
    pub stall_timeout: Duration,
    /// Policy for slow receivers.
    pub slow: SlowPolicy,
    /// Whether there is a data channel; without one everybody is chained.
    pub multicast: bool,
    /// Until when receivers may join after the start; at the start itself if `None`.
    pub open_until: Option<Time>,
}

impl Default for PushConfig {
    fn default() -> Self {
        PushConfig {
            fragment_bytes: 1_448,
            group_bytes: 256 << 10,
            rate: None,
            attempt_interval: AttemptInterval::Adaptive,
            window_bytes: 1 << 20,
            service: Duration::ZERO,
            deadline: None,
            stall_timeout: Duration::from_secs(10),
            slow: SlowPolicy::DropToPatches { after: Duration::from_secs(2) },
            multicast: true,
            open_until: None,
        }
    }
}

/// A datagram takes at most this much.
const DATAGRAM_BYTES_MAX: u32 = 64 << 10;

impl PushConfig {
    /// Bytes on a link of a packet that holds a fragment, without the frame around it.
    #[must_use]
    pub fn packet_bytes(&self) -> u32 {
        self.fragment_bytes + (HEADER_LEN + IP_UDP_LEN) as u32
    }

    pub(super) fn geometry(&self, object_len: u64) -> Geometry {
        Geometry { object_len, fragment_len: self.fragment_bytes, group_len: self.group_bytes }
    }

    pub(super) fn sender(&self, handle: u32, object_len: u64) -> SenderConfig {
        SenderConfig {
            handle: Handle(handle.into()),
            geometry: self.geometry(object_len),
            batch: self.batch(),
            rate: self.rate,
            multicast: self.multicast,
            allowance: None,
            attempt_interval: self.attempt_interval,
            path_timeout: Duration::from_millis(1_000),
            stall_timeout: self.stall_timeout,
            deadline: self.deadline,
            slow: self.slow,
            patch_delay: Duration::from_millis(10),
        }
    }

    /// Fragments of one segmented datagram.
    pub(super) fn batch(&self) -> u32 {
        (DATAGRAM_BYTES_MAX / self.packet_bytes()).clamp(1, 64)
    }
}

/// One receiver as its source knows it.
pub(super) struct PeerSlot {
    pub(super) receiver: u32,
    pub(super) stream: StreamId,
    pub(super) ready: bool,
}

/// The source of a push transfer.
pub struct PushSource {
    pub(super) node: NodeId,
    /// `None` while it is crashed.
    pub(super) machine: Option<Sender>,
    pub(super) handle: u32,
    pub(super) peers: BTreeMap<PeerId, PeerSlot>,
    pub(super) serving: Vec<Serving>,
    pub(super) expected: u32,
    pub(super) ready: u32,
    pub(super) started: bool,
    pub(super) closed: bool,
    pub(super) alarm: Alarm,
    /// A link whose queue must drain before more is sent.
    pub(super) waits_for: Option<LinkId>,
    pub(super) finished_at: Option<Time>,
    /// When attempt sending ended for the first time.
    pub(super) full_rate_at: Option<Time>,
    /// Receivers that were given up, and why.
    pub(super) failures: BTreeMap<u32, String>,
    /// Fragments sent on the data channel, patches on it, and fragments sent as PTCH_DATA.
    pub(super) fragments_sent: u64,
    pub(super) patches_sent: u64,
    pub(super) unicast_fragments: u64,
}

impl PushSource {
    pub(super) fn new(node: NodeId) -> Self {
        PushSource {
            node,
            machine: None,
            handle: 0,
            peers: BTreeMap::new(),
            serving: Vec::new(),
            expected: 0,
            ready: 0,
            started: false,
            closed: false,
            alarm: Alarm::default(),
            waits_for: None,
            finished_at: None,
            full_rate_at: None,
            failures: BTreeMap::new(),
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

    /// Whether its host has crashed, or has not begun.
    #[must_use]
    pub fn is_crashed(&self) -> bool {
        self.machine.is_none()
    }

    /// When every receiver was settled.
    #[must_use]
    pub fn finished_at(&self) -> Option<Time> {
        self.finished_at
    }

    /// When full rate began for the first time: until then single attempts were sent.
    #[must_use]
    pub fn full_rate_at(&self) -> Option<Time> {
        self.full_rate_at
    }

    /// Receivers that were given up, by number, and why.
    #[must_use]
    pub fn failures(&self) -> &BTreeMap<u32, String> {
        &self.failures
    }

    /// Fragments sent on the data channel, coded patches on it, and fragments sent over TCP.
    #[must_use]
    pub fn sent(&self) -> (u64, u64, u64) {
        (self.fragments_sent, self.patches_sent, self.unicast_fragments)
    }

    /// Begins a transfer to so many receivers.
    pub(super) fn begin(&mut self, machine: Sender, handle: u32, expected: u32) {
        *self = PushSource {
            machine: Some(machine),
            handle,
            expected,
            alarm: core::mem::take(&mut self.alarm),
            fragments_sent: self.fragments_sent,
            patches_sent: self.patches_sent,
            unicast_fragments: self.unicast_fragments,
            ..PushSource::new(self.node)
        };
    }
}

/// What a HAVE says.
pub(super) fn have_of(control: &Control<'_>) -> Option<RangeSet> {
    match control {
        Control::Have(ranges) => Some(ranges.iter().cloned().collect()),
        _ => None,
    }
}
