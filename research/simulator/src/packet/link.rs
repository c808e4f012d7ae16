//! One direction of a link: its settings, its faults and what it has counted.

use alloc::collections::VecDeque;
use alloc::vec::Vec;
use core::mem::offset_of;
use polycast_types::{Duration, Rate, Time};

/// Settings of one direction of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkConfig {
    /// Rate at which bits leave; a packet takes `rate.time_for(bytes)`, rounded up to a nanosecond.
    pub rate: Rate,
    /// From the last bit's departure to its arrival.
    pub delay: Duration,
    /// The most bytes that wait or are being sent, in each priority; what does not fit is dropped, but for
    /// what a host sends itself ([`super::Network::send_own`]).
    pub queue_bytes: u64,
    /// Number of priorities, 1 to 8. Priority 0 goes first; with one priority all packets are in one queue,
    /// which costs one event a packet in place of two.
    pub priorities: u8,
    /// Faults on the way.
    pub faults: Faults,
}

impl LinkConfig {
    /// A link without faults, with one priority and a queue of 256 KiB.
    #[must_use]
    pub const fn new(rate: Rate, delay: Duration) -> Self {
        LinkConfig { rate, delay, queue_bytes: 256 << 10, priorities: 1, faults: Faults::NONE }
    }
}

/// Frequency of each fault of a packet on the way, in parts of a million.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Faults {
    /// It is lost after it has been sent.
    pub loss_ppm: u32,
    /// Its content changes: [`super::Packet::corrupt`].
    pub corruption_ppm: u32,
    /// It arrives twice.
    pub duplication_ppm: u32,
    /// It is late by up to `reordering_delay`, so that others overtake it.
    pub reordering_ppm: u32,
    /// The most that a late packet is late.
    pub reordering_delay: Duration,
}

impl Faults {
    /// Nothing goes wrong.
    pub const NONE: Faults = Faults {
        loss_ppm: 0,
        corruption_ppm: 0,
        duplication_ppm: 0,
        reordering_ppm: 0,
        reordering_delay: Duration::ZERO,
    };
}

impl Default for Faults {
    fn default() -> Self {
        Faults::NONE
    }
}

/// Reason for dropping a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DropCause {
    /// The queue had no room.
    Queue,
    /// The link's loss took it.
    Loss,
    /// The link was down, or went down while the packet waited or was on the way.
    Down,
}

/// Counters of one direction of a link.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LinkCounters {
    /// Packets that the queue took.
    pub packets: u64,
    /// Bytes of these.
    pub bytes: u64,
    /// Packets that the queue had no room for.
    pub queue_drops: u64,
    /// Packets lost by the link's loss.
    pub losses: u64,
    /// Packets lost because the link was down.
    pub down_drops: u64,
    /// Packets whose content was changed.
    pub corruptions: u64,
    /// Packets that were made to arrive twice.
    pub duplications: u64,
    /// Packets that were made late.
    pub reorderings: u64,
}

impl LinkCounters {
    /// Packets dropped for any cause.
    #[must_use]
    pub fn drops(&self) -> u64 {
        self.queue_drops + self.losses + self.down_drops
    }

    pub(super) fn add_drop(&mut self, cause: DropCause) {
        match cause {
            DropCause::Queue => self.queue_drops += 1,
            DropCause::Loss => self.losses += 1,
            DropCause::Down => self.down_drops += 1,
        }
    }
}

/// State that the engine touches for every packet: two cache lines, the first of which holds the state that a
/// packet's way depends on. The fields lie in this order, which `repr(C)` keeps the compiler from changing.
#[repr(C, align(64))]
pub(super) struct LinkState {
    /// Time at which the last bit of the packets taken so far leaves; used with one priority.
    pub(super) free_at: Time,
    pub(super) rate: Rate,
    pub(super) delay: Duration,
    /// The time that the queue's bytes take at the rate.
    pub(super) queue_time: Duration,
    pub(super) from: u32,
    pub(super) to: u32,
    /// The other direction, or `u32::MAX`.
    pub(super) reverse: u32,
    /// Packets sent in an earlier epoch were lost: the link was down since.
    pub(super) epoch: u32,
    /// Index into the tables of classes; `u32::MAX` with one priority.
    pub(super) classes: u32,
    pub(super) up: bool,
    pub(super) faulty: bool,
    /// The world asks to be told when the link has nothing more to send.
    pub(super) watched: bool,
    /// The time that the most bytes that ever waited take at the rate; used with one priority.
    pub(super) queue_peak: Duration,
    pub(super) counters: LinkCounters,
}

const _: () = assert!(size_of::<LinkState>() == 128 && offset_of!(LinkState, counters) == 64);

/// The queues of a link with several priorities.
pub(super) struct Classes<P> {
    pub(super) queues: Vec<VecDeque<(u32, P)>>,
    pub(super) queued_bytes: Vec<u64>,
    pub(super) queue_bytes: u64,
    /// The most bytes that waited, in all priorities together.
    pub(super) queue_peak_bytes: u64,
    /// Priority and size of the packet that is being sent.
    pub(super) sending: Option<(u8, u32)>,
}

impl<P> Classes<P> {
    pub(super) fn new(config: &LinkConfig) -> Self {
        let count = usize::from(config.priorities);
        Classes {
            queues: (0..count).map(|_| VecDeque::new()).collect(),
            queued_bytes: alloc::vec![0; count],
            queue_bytes: config.queue_bytes,
            queue_peak_bytes: 0,
            sending: None,
        }
    }

    /// The next packet to send: first in, first out of the first priority that has one.
    pub(super) fn next(&mut self) -> Option<(u8, u32, P)> {
        let priority = self.queues.iter().position(|queue| !queue.is_empty())?;
        let (bytes, packet) = self.queues[priority].pop_front()?;
        Some((priority as u8, bytes, packet))
    }

    /// Forgets everything; how many packets waited.
    pub(super) fn clear(&mut self) -> u64 {
        let waited = self.queues.iter().map(VecDeque::len).sum::<usize>() as u64;
        self.queues.iter_mut().for_each(VecDeque::clear);
        self.queued_bytes.fill(0);
        self.sending = None;
        waited
    }
}
