//! Intake of a receiver on the data channel.

use super::origins::Origins;
use super::{Forged, ReceiverSpec};
use crate::transfer::assembler::HeaderRoom;
use polycast_net::seal::Seal;
use polycast_net::udp::{DataReceiver, SEGMENTS_MAX};
use polycast_types::{Duration, Time};
use polycast_wire::data::{FRAGMENT_TAGS_LEN, HEADER_LEN};
use rand_core::Rng;
use rand_pcg::Pcg64Mcg;

/// Room for what follows the expected fragments in one receive.
const OVERFLOW_LEN: usize = 64 << 10;
/// An end that has not looked at its data channel for so long was held up, as by its disk. It looks with
/// every batch that it takes, and losses are gathered for 12 ms before they are asked for.
const HELD_UP: Duration = Duration::from_millis(10);

/// The data channel, and the buffers of the receive path.
pub(super) struct Intake {
    pub(super) data: DataReceiver,
    pub(super) loss: Option<(Pcg64Mcg, u64)>,
    /// Taken out while in use.
    pub(super) headers: Vec<HeaderRoom>,
    pub(super) outers: Vec<u8>,
    pub(super) overflow: Vec<u8>,
    pub(super) linear: Vec<u8>,
    pub(super) sum: Vec<u8>,
    pub(super) expected: usize,
    /// Time of the last check for waiting datagrams.
    pub(super) looked_at: Time,
    /// Datagram batches taken from the data channel so far.
    pub(super) batches: u64,
    /// The senders of the packets.
    pub(super) origins: Origins,
    /// Seal of the packets.
    pub(super) seal: Option<Seal>,
    /// Packets that came for the transfer and were not its source's.
    pub(super) forged: Forged,
}

impl Intake {
    pub(super) fn new(spec: &ReceiverSpec, data: DataReceiver, outer_len: usize, seal: Option<Seal>) -> Self {
        let loss = (spec.options.loss > 0.0).then(|| {
            let seed = name_seed(spec.options.seed, &spec.name);
            (Pcg64Mcg::new(u128::from(seed) << 1 | 1), (spec.options.loss * u64::MAX as f64) as u64)
        });
        Intake {
            data,
            loss,
            headers: vec![[0; HEADER_LEN + FRAGMENT_TAGS_LEN]; SEGMENTS_MAX],
            outers: vec![0; outer_len * SEGMENTS_MAX],
            overflow: vec![0; OVERFLOW_LEN],
            linear: Vec::new(),
            sum: Vec::new(),
            expected: SEGMENTS_MAX,
            looked_at: Time::ZERO,
            batches: 0,
            origins: Origins::default(),
            seal,
            forged: Forged::default(),
        }
    }

    /// Returns true if the next datagram falls to the loss that was asked for.
    pub(super) fn loses(&mut self) -> bool {
        self.loss.as_mut().is_some_and(|(rng, threshold)| rng.next_u64() < *threshold)
    }

    /// Returns true if this end was held up, and has to check what has come meanwhile.
    pub(super) fn was_held_up(&self, now: Time) -> bool {
        now.since(self.looked_at) >= HELD_UP
    }
}

/// Every receiver loses other packets, and the same ones again with the same seed.
fn name_seed(seed: u64, name: &str) -> u64 {
    name.bytes().fold(seed ^ 0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}
