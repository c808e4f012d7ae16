//! What the sender is told, what it orders, and what it says of itself.

use super::super::attempt::{AttemptInterval, FullRate};
use super::super::geometry::Geometry;
use super::super::overlay::Candidates;
use crate::session::{PROGRESS_WITHIN, Why};
use alloc::collections::BTreeSet;
use alloc::vec::Vec;
use core::ops::Range;
use polycast_types::{Duration, Handle, RangeSet, Rate};
use polycast_wire::control::Control;
use polycast_wire::data::{CODED_FRAGMENTS_MAX, FRAGMENT_TAGS_LEN, HEADER_LEN, SEALED_FRAGMENTS_MAX};

/// A receiver of this transfer.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct PeerId(pub u32);

/// What to do about a receiver that is slower than the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SlowPolicy {
    /// All go as fast as the slowest.
    Wait,
    /// One that has held the others for this long, and without which they are faster, is not waited for: it catches up at
    /// its own pace.
    CatchUp {
        /// How long it may hold the others.
        after: Duration,
    },
    /// As before, but it is given up.
    Drop {
        /// How long it may hold the others.
        after: Duration,
    },
}

impl SlowPolicy {
    /// What is shipped: it catches up, and holds the others for no longer than it takes to see that it does.
    pub const SHIPPED: SlowPolicy = SlowPolicy::CatchUp { after: Duration::from_millis(30) };

    /// The same patience, but one that is slower is given up.
    #[must_use]
    pub fn dropping(self) -> SlowPolicy {
        self.patience().map_or(self, |after| SlowPolicy::Drop { after })
    }

    /// How long one may hold the others; `None` for as long as it likes.
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
    /// How many fragments one `Send` may hold (what one segmented datagram takes).
    pub batch: u32,
    /// Rate of a dedicated path, counted with IP and UDP headers; `None` where the path is shared.
    pub rate: Option<Rate>,
    /// Whether there is a data channel; without one every receiver fetches over TCP at once.
    pub multicast: bool,
    /// How many fragments the path was granted for; `None` for all that are needed.
    pub allowance: Option<u64>,
    /// Interval of attempt sending (`i_a`).
    pub attempt_interval: AttemptInterval,
    /// When attempts end.
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
    /// How long requests for patches are gathered, so that one patch can serve several receivers.
    pub patch_delay: Duration,
    /// Whether packets have tags, which take room.
    pub sealed: bool,
    /// The fragment that the stream begins with; after the last one comes the first.
    pub first: u64,
}

impl SenderConfig {
    /// What is shipped: a shared path that all of the object may be sent on, and the times that daemons and simulations use.
    /// `batch` is how many fragments one segmented datagram takes.
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
        }
    }
}

impl SenderConfig {
    /// Bytes of a whole packet of the data channel.
    pub(super) fn packet_len(&self) -> u64 {
        let tags = if self.sealed { FRAGMENT_TAGS_LEN } else { 0 };
        u64::from(self.geometry.fragment_len) + (HEADER_LEN + tags) as u64
    }

    /// Whether a receiver whose packets wait so long before it takes them is held up by its disk or its processor.
    pub(super) fn is_held_up(&self, waited: Duration) -> bool {
        waited >= self.path_timeout / 4
    }

    /// How many fragments a coded patch may combine.
    pub(super) fn coded_max(&self) -> usize {
        if self.sealed { SEALED_FRAGMENTS_MAX } else { CODED_FRAGMENTS_MAX }
    }
}

/// What happens to a sender.
#[derive(Clone, Debug)]
pub enum Input<'a> {
    /// A receiver is ready, has this much room for datagrams, and holds these fragments already.
    Ready {
        /// Its number; never used before.
        peer: PeerId,
        /// Bytes of datagrams that its socket can hold.
        window_bytes: u64,
        /// What it holds.
        have: RangeSet,
    },
    /// Enough receivers are ready: begin.
    Start,
    /// A frame came from a receiver.
    Control {
        /// From whom.
        peer: PeerId,
        /// What it said.
        control: &'a Control<'a>,
    },
    /// A receiver's control connection ended.
    Left {
        /// Which.
        peer: PeerId,
        /// Why.
        why: Why,
    },
    /// What is known of a receiver that is done or has failed is not needed any more.
    Forget {
        /// Which.
        peer: PeerId,
    },
    /// The others are not to wait for a receiver: it takes the stream as it comes, and asks for the rest.
    Unawaited {
        /// Which.
        peer: PeerId,
    },
    /// A candidate was of no use to a receiver of the mesh.
    Useless {
        /// The receiver that says so.
        peer: PeerId,
        /// Of whom.
        candidate: PeerId,
        /// Whether it is not to get it again.
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
        /// How many fragments it was granted for; `None` for what is left of the one before.
        allowance: Option<u64>,
    },
    /// Whether the data channel is still being set up: no receiver goes over to TCP for not being reached by it meanwhile.
    PathWaits(bool),
}

/// What the driver is to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Output {
    /// As many fragments were sent as the path was granted for, and receivers need more: nothing comes on the data channel
    /// until there is another path.
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
        /// How many.
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
        /// Which.
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
        /// Which.
        peer: PeerId,
        /// Why it failed, if it did.
        failure: Option<Why>,
    },
    /// Every receiver is settled; nothing will follow.
    Finished,
}

/// How much slower than the others a receiver was when they went on without it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slower {
    /// What reached it.
    pub own: Rate,
    /// What was sent to them.
    pub others: Rate,
}

impl core::fmt::Display for Slower {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "slower than the others: {} reached it while they were sent {}", self.own, self.others)
    }
}

/// What a report shows of a receiver.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerStatus {
    /// Bytes it has verified.
    pub verified_bytes: u64,
    /// Bytes that came to it as patches, once it is done.
    pub patched_bytes: u64,
    /// Bytes that it had already when it joined.
    pub spared_bytes: u64,
    /// Whether it fetches over TCP from others, and they from it.
    pub chained: bool,
    /// Whether the data channel has ever reached it.
    pub streamed: bool,
    /// Whether the data channel did not reach it, or no longer did, so that it went on over TCP.
    pub cut_off: bool,
    /// Packets have waited at it for long, by its own word: its disk or its processor did not keep up.
    pub held_up: bool,
    /// The others go on without waiting for it, as it is slower than they.
    pub slow: Option<Slower>,
}

/// What governs the pace of a sender.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pace {
    /// Congestion window in fragments.
    pub window: u64,
    /// How often it was cut.
    pub cuts: u64,
    /// Whether only loss counts, because others fill the queue.
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
