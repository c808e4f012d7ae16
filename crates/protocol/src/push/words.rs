//! Settings, inputs, outputs and status of the sender, and the receivers that they name.

use super::attempt::{AttemptInterval, FullRate};
use super::geometry::Geometry;
use super::overlay::Candidates;
use crate::session::{PROGRESS_WITHIN, Why};
use alloc::collections::BTreeSet;
use alloc::vec::Vec;
use core::ops::Range;
use polycast_types::{Duration, Handle, Location, RangeSet, Rate};
use polycast_wire::control::Control;
use polycast_wire::data::{CODED_FRAGMENTS_MAX, FRAGMENT_TAGS_LEN, HEADER_LEN, SEALED_FRAGMENTS_MAX};

/// A receiver of this transfer.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct PeerId(pub u32);

/// Policy for a receiver that is slower than the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SlowPolicy {
    /// All go as fast as the slowest.
    Wait,
    /// One that has held the others for this long, and without which they are faster, is not waited for: it
    /// catches up at its own pace.
    CatchUp {
        /// Time for which it may hold the others.
        after: Duration,
    },
    /// As before, but it is given up.
    Drop {
        /// Time for which it may hold the others.
        after: Duration,
    },
}

impl SlowPolicy {
    /// Shipped policy: it catches up, and holds the others for no longer than it takes to see that it does.
    pub const SHIPPED: SlowPolicy = SlowPolicy::CatchUp { after: Duration::from_millis(30) };

    /// The same patience, but one that is slower is given up.
    #[must_use]
    pub fn dropping(self) -> SlowPolicy {
        self.patience().map_or(self, |after| SlowPolicy::Drop { after })
    }

    /// Returns the time for which one may hold the others; `None` for no limit.
    #[must_use]
    pub fn patience(self) -> Option<Duration> {
        match self {
            SlowPolicy::Wait => None,
            SlowPolicy::CatchUp { after } | SlowPolicy::Drop { after } => Some(after),
        }
    }
}

/// Settings of a sender.
#[derive(Clone, Debug)]
pub struct SenderConfig {
    /// The transfer.
    pub handle: Handle,
    /// The object's division.
    pub geometry: Geometry,
    /// Number of fragments that one `Send` may hold (what one segmented datagram takes).
    pub batch: u32,
    /// Rate of a dedicated path, counted with IP and UDP headers; `None` where the path is shared.
    pub rate: Option<Rate>,
    /// Set if there is a data channel; without one every receiver fetches over TCP at once.
    pub multicast: bool,
    /// Number of fragments that the path was granted for; `None` for all that are needed.
    pub allowance: Option<u64>,
    /// Interval of attempt sending (`i_a`).
    pub attempt_interval: AttemptInterval,
    /// Condition on which attempts end.
    pub full_rate: FullRate,
    /// A receiver that the data channel does not reach for this long fetches over TCP.
    pub path_timeout: Duration,
    /// A receiver without sign of life for this long has failed.
    pub stall_timeout: Duration,
    /// A receiver that is served and verifies nothing more for this long has failed, whatever it says.
    pub progress_timeout: Duration,
    /// Receivers that are not done this long after the start have failed.
    pub deadline: Option<Duration>,
    /// Policy for slow receivers.
    pub slow: SlowPolicy,
    /// Time for which requests for patches are gathered, so that one patch can serve several receivers.
    pub patch_delay: Duration,
    /// Set if packets have tags, which take room.
    pub sealed: bool,
    /// The fragment that the stream begins with; after the last one comes the first.
    pub first: u64,
    /// Zone and rack of the source.
    pub location: Location,
}

impl SenderConfig {
    /// Returns the shipped settings: a shared path that all of the object may be sent on, and the times that
    /// daemons and simulations use. `batch` is the number of fragments that one segmented datagram takes.
    #[must_use]
    pub fn new(handle: Handle, geometry: Geometry, batch: u32) -> Self {
        SenderConfig {
            handle,
            geometry,
            batch,
            rate: None,
            multicast: true,
            allowance: None,
            attempt_interval: AttemptInterval::Adaptive,
            full_rate: FullRate::default(),
            path_timeout: Duration::from_millis(1_000),
            stall_timeout: Duration::from_secs(10),
            progress_timeout: PROGRESS_WITHIN,
            deadline: None,
            slow: SlowPolicy::SHIPPED,
            patch_delay: Duration::from_millis(10),
            sealed: false,
            first: 0,
            location: Location::default(),
        }
    }
}

impl SenderConfig {
    /// Bytes of a whole packet of the data channel.
    pub(super) fn packet_len(&self) -> u64 {
        let tags = if self.sealed { FRAGMENT_TAGS_LEN } else { 0 };
        u64::from(self.geometry.fragment_len) + (HEADER_LEN + tags) as u64
    }

    /// Returns true if a receiver whose packets wait so long before it takes them is held up by its disk or
    /// its processor.
    pub(super) fn is_held_up(&self, waited: Duration) -> bool {
        waited >= self.path_timeout / 4
    }

    /// Returns the number of fragments that a coded patch may combine.
    pub(super) fn coded_max(&self) -> usize {
        if self.sealed { SEALED_FRAGMENTS_MAX } else { CODED_FRAGMENTS_MAX }
    }
}

/// Events that a sender handles.
#[derive(Clone, Debug)]
pub enum Input<'a> {
    /// A receiver is ready, has this much room for datagrams, and holds these fragments already.
    Ready {
        /// Its number; never used before.
        peer: PeerId,
        /// Bytes of datagrams that its socket can hold.
        window_bytes: u64,
        /// Fragments that it holds.
        have: RangeSet,
        /// Its zone and rack.
        location: Location,
    },
    /// Enough receivers are ready: begin.
    Start,
    /// A frame came from a receiver.
    Control {
        /// From whom.
        peer: PeerId,
        /// Frame that came.
        control: &'a Control<'a>,
    },
    /// A receiver's control connection ended.
    Left {
        /// The receiver.
        peer: PeerId,
        /// Reason for it.
        why: Why,
    },
    /// The state of a receiver that is done or has failed is no longer needed.
    Forget {
        /// The receiver.
        peer: PeerId,
    },
    /// The others are not to wait for a receiver: it takes the stream as it comes, and asks for the rest.
    Unawaited {
        /// The receiver.
        peer: PeerId,
    },
    /// A candidate was of no use to a receiver of the mesh.
    Useless {
        /// The receiver that says so.
        peer: PeerId,
        /// The candidate.
        candidate: PeerId,
        /// Set if it is not to get it again.
        for_good: bool,
    },
    /// These receivers share a rack: the first may speak for the others, as soon as it names them.
    Rack {
        /// The one that speaks.
        speaker: PeerId,
        /// The others.
        members: BTreeSet<PeerId>,
    },
    /// No more receivers will join: finish when the present ones are settled.
    Close,
    /// More receivers will join after all, until the next `Close`.
    Open,
    /// The data channel must not be used any more: receivers that still take it go on over TCP.
    PathLost,
    /// Another data channel takes the place of the one before, or of one whose allowance is used up.
    Path {
        /// As in [`SenderConfig`].
        rate: Option<Rate>,
        /// As in [`SenderConfig`].
        attempt_interval: AttemptInterval,
        /// Number of fragments that it was granted for; `None` for the rest of the one before.
        allowance: Option<u64>,
    },
    /// Set-up of the data channel still goes on (`true`) or is over: no receiver goes over to TCP for not
    /// being reached by it meanwhile.
    PathWaits(bool),
}

/// Actions for the driver.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Output {
    /// As many fragments were sent as the path was granted for, and receivers need more: nothing comes on the
    /// data channel until there is another path.
    AllowanceUsed {
        /// Bytes that the receiver furthest behind has not verified.
        remaining_bytes: u64,
    },
    /// Send fragments `sn .. sn + count` on the data channel.
    Send {
        /// Round of the packets.
        round: u32,
        /// First fragment.
        sn: u64,
        /// Number of fragments.
        count: u32,
        /// Flags of the last packet; `FLAG_ATTEMPT` goes on all.
        flags: u8,
    },
    /// Send the XOR of these fragments (or the only one) on the data channel as a patch.
    SendPatch(Vec<u64>),
    /// Send these fragments to one receiver on its control connection (PTCH_DATA).
    Patch {
        /// To whom.
        peer: PeerId,
        /// The fragments.
        sns: Range<u64>,
    },
    /// Send a frame to one receiver.
    Control {
        /// To whom.
        peer: PeerId,
        /// The frame.
        control: Control<'static>,
    },
    /// Tell a receiver of its candidates in the mesh.
    Candidates(Candidates),
    /// A receiver is done (`None`) or given up, and why.
    Settled {
        /// The receiver.
        peer: PeerId,
        /// Reason for the failure, if it failed.
        failure: Option<Why>,
    },
    /// Every receiver is settled; nothing will follow.
    Finished,
}

/// Rates of a receiver that was slower than the others, and of the others, when they went on without it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slower {
    /// Rate that reached it.
    pub own: Rate,
    /// Rate that the others got.
    pub others: Rate,
}

impl core::fmt::Display for Slower {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "slower than the others: {} reached it while they were sent {}", self.own, self.others)
    }
}

/// Status of a receiver in a report.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerStatus {
    /// Bytes it has verified.
    pub verified_bytes: u64,
    /// Bytes that came to it as patches, once it is done.
    pub patched_bytes: u64,
    /// Bytes that it had already when it joined.
    pub spared_bytes: u64,
    /// Set if it fetches over TCP from others, and they from it.
    pub chained: bool,
    /// Set if the data channel has ever reached it.
    pub streamed: bool,
    /// Set if the data channel did not reach it, or no longer did, so that it went on over TCP.
    pub cut_off: bool,
    /// Packets have waited at it for long, by its own word: its disk or its processor did not keep up.
    pub held_up: bool,
    /// The others go on without waiting for it, as it is slower than they.
    pub slow: Option<Slower>,
}

/// Values that govern the pace of a sender.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pace {
    /// Congestion window in fragments.
    pub window: u64,
    /// Number of times that it was cut.
    pub cuts: u64,
    /// Set while only loss counts, because others fill the queue.
    pub follows_loss: bool,
    /// From a packet to its report, smoothed; the lateness of both ends is in it.
    pub round_trip: Duration,
    /// Longest queue on the way to a receiver.
    pub queue: Duration,
    /// Packets of the stream sent so far.
    pub packets: u64,
    /// Receivers that are too slow and get patches alone.
    pub slow: usize,
}
