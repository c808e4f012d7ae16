//! A receiver, as the agents' are: it knows names from lists, opens what comes, and checks groups against
//! hashes.

use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use core::ops::Range;
use polycast_protocol::pull::{Blocks, Digest, Groups, Names, Receiver, ReceiverConfig, ReceiverInput};
use polycast_protocol::push::Geometry;
use polycast_simulator::packet::world::keys::{self, Keyring};
use polycast_types::{Handle, Time};
use polycast_wire::control::Hash;

/// A host that is to have the object, over all transfers of it.
pub(super) struct Host {
    pub(super) node: u32,
    pub(super) name: String,
    pub(super) bytes: Vec<u8>,
    pub(super) verified: Vec<bool>,
    pub(super) done_at: Option<Time>,
    pub(super) removed: bool,
    /// Number of its connection to the source, and whether that connection stands.
    pub(super) conn: u32,
    pub(super) stands: bool,
    pub(super) end: Option<End>,
}

/// Its part in one transfer.
pub(super) struct End {
    pub(super) handle: Handle,
    pub(super) machine: Receiver,
    pub(super) names: Names,
    blocks: Blocks,
    /// Number of known roots.
    roots: usize,
    keys: Keyring,
    /// State of each group; made when the host begins.
    groups: Groups,
    hashes: Vec<Hash>,
}

impl End {
    pub(super) fn new(config: ReceiverConfig, groups: Groups, keys: Keyring) -> Self {
        let (handle, blocks) = (config.transfer, config.blocks);
        let (names, machine) = (Names::new(blocks), Receiver::new(config));
        End { handle, machine, names, blocks, roots: 0, keys, groups, hashes: Vec::new() }
    }

    /// These are the roots so far. Gives how many sections have one.
    pub(super) fn learn(&mut self, roots: &[Digest]) -> u64 {
        let further = &roots[self.roots.min(roots.len())..];
        self.roots = self.roots.max(roots.len());
        self.names.learn(further)
    }
}

impl Host {
    pub(super) fn new(node: u32, geometry: &Geometry) -> Self {
        Host {
            node,
            name: format!("host {node}"),
            bytes: alloc::vec![0; geometry.object_len as usize],
            verified: alloc::vec![false; geometry.groups() as usize],
            done_at: None,
            removed: false,
            conn: 0,
            stands: false,
            end: None,
        }
    }

    /// It takes part in a transfer, and holds what it has verified before.
    pub(super) fn begin(&mut self, now: Time, geometry: &Geometry, mut end: End) {
        for sn in (0..geometry.fragments()).filter(|sn| end.groups.holds(*sn)) {
            end.machine.handle(now, ReceiverInput::Held { sns: sn..sn + 1 });
        }
        self.end = Some(end);
    }

    /// A packet has come, and is kept; `damage` changes a bit of it in memory. Where `skips` is set groups
    /// are not looked at.
    pub(super) fn keep(
        &mut self,
        now: Time,
        geometry: &Geometry,
        (sn, payload): (u64, &[u8]),
        damage: Option<u64>,
        skips: bool,
    ) {
        let Some(end) = &mut self.end else { return };
        let mut opened = payload.to_vec();
        end.keys.turn(sn, &mut opened);
        if let Some(place) = end.blocks.list_place(sn) {
            return end.names.keep(place, &opened);
        }
        if let Some(draw) = damage {
            let at = (draw / 8) as usize % opened.len();
            opened[at] ^= 1 << (draw % 8);
        }
        let bytes = geometry.fragment_bytes(sn);
        for group in end.groups.of_packet(sn) {
            if self.verified[group as usize] {
                continue;
            }
            let within = geometry.group_bytes(group);
            let (from, to) = (bytes.start.max(within.start), bytes.end.min(within.end));
            let part = &opened[(from - bytes.start) as usize..(to - bytes.start) as usize];
            self.bytes[from as usize..to as usize].copy_from_slice(part);
        }
        end.groups.keep(sn);
        for group in end.groups.of_packet(sn) {
            self.check(now, geometry, group, skips);
        }
    }

    /// The list of a section is whole.
    pub(super) fn listed(&mut self, now: Time, geometry: &Geometry, section: u64, skips: bool) {
        let Some(end) = &mut self.end else { return };
        let hashes = end.names.listed(section);
        end.hashes.extend(hashes);
        let groups: Range<u64> = end.blocks.section_groups(section);
        groups.for_each(|group| self.check(now, geometry, group, skips));
    }

    /// Checks a group that is whole, if its hash is known.
    fn check(&mut self, now: Time, geometry: &Geometry, group: u64, skips: bool) {
        let (Some(end), at) = (&mut self.end, group as usize) else { return };
        let Some(hash) = end.hashes.get(at) else { return };
        if !end.groups.is_whole(group) {
            return;
        }
        let bytes = geometry.group_bytes(group);
        if skips || *hash == keys::hash(&self.bytes[bytes.start as usize..bytes.end as usize]) {
            self.verified[at] = true;
            return end.groups.intact(group);
        }
        let sns = end.groups.corrupt(group);
        end.machine.handle(now, ReceiverInput::Corrupt { sns });
    }

    pub(super) fn is_whole(&self) -> bool {
        self.verified.iter().all(|verified| *verified)
    }
}
