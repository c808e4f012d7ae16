//! Ends behind the local face of a node: sources that read objects, and receivers that assemble them.

use super::digest::digest_of;
use crate::transfer::assembler::{Assembler, Check};
use crate::transfer::bell::Bell;
use crate::transfer::pull::sums::Sums;
use polycast_net::object::{Changed, ObjectSource};
use polycast_net::seal::Seal;
use polycast_net::store::{PartFile, StoreError};
use polycast_protocol::pull::{
    Blocks, Data, Digest, Groups, Interest, ListPlace, Names, Receiver, ReceiverConfig, ReceiverInput,
    ReceiverOutput, Route, Source, SourceConfig, SourceInput, SourceOutput,
};
use polycast_protocol::push::Geometry;
use polycast_types::{Handle, Time};
use polycast_wire::control::Hash;
use polycast_wire::pull::digest_len;
use std::collections::VecDeque;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, mpsc};

/// The source of a transfer at a node.
pub struct SourceEnd {
    machine: Source,
    transfer: Handle,
    payload_len: u64,
    object: Arc<dyn ObjectSource>,
    /// Set if the object gives sealed bytes.
    sealed: bool,
    sums: Arc<Sums>,
    scratch: Vec<u8>,
}

impl SourceEnd {
    /// A source of this object; it knows the packets whose digests are known.
    #[must_use]
    pub(crate) fn new(
        config: SourceConfig,
        payload_len: u16,
        object: Arc<dyn ObjectSource>,
        sums: Arc<Sums>,
    ) -> Self {
        SourceEnd {
            transfer: config.transfer,
            machine: Source::new(config),
            payload_len: payload_len.into(),
            object,
            sealed: sums.is_sealed(),
            sums,
            scratch: Vec::new(),
        }
    }

    pub(super) fn transfer(&self) -> Handle {
        self.transfer
    }

    pub(super) fn machine(&self) -> &Source {
        &self.machine
    }

    pub(super) fn handle(&mut self, now: Time, input: SourceInput) {
        self.machine.handle(now, input);
    }

    /// Returns true if the interest names a packet of the object, by its digest too.
    pub(super) fn knows(&self, interest: &Interest) -> bool {
        self.sums.digest(interest.name.sn) == Some(interest.name.digest)
    }

    /// The next packet to send and its port, with its payload.
    pub(super) fn poll(&mut self, now: Time) -> io::Result<Option<(u8, Data, &[u8])>> {
        let Some(SourceOutput::Send { port, mut data }) = self.machine.poll(now) else { return Ok(None) };
        let sn = data.name.sn;
        // Only packets that are known are asked for, and none is forgotten.
        data.name.digest =
            self.sums.digest(sn).ok_or_else(|| io::Error::other("a packet without a digest"))?;
        if self.sums.list_packet(sn, &mut self.scratch) {
            return Ok(Some((port, data, &self.scratch)));
        }
        self.scratch.resize(data.length.into(), 0);
        self.object.read_exact_at(&mut self.scratch, sn * self.payload_len)?;
        let digest_len = digest_len(self.payload_len as u16);
        if self.sealed && digest_of(data.name.transfer, sn, &self.scratch, digest_len) != data.name.digest {
            // Other bytes must not be sealed under the same number.
            return Err(Changed::bytes().into());
        }
        Ok(Some((port, data, &self.scratch)))
    }
}

/// Event that a receiver reports while it runs.
pub enum ReceiverEvent {
    /// Nothing comes in a tree any more.
    Stalled {
        /// The tree.
        tree: u8,
    },
    /// Every byte is verified and in the part file; with the hashes that said so.
    Done(PartFile, Vec<Hash>),
    /// The object cannot be stored.
    Failed(StoreError),
}

/// A receiver of a transfer at a node.
pub struct ReceiverEnd {
    machine: Receiver,
    blocks: Blocks,
    transfer: Handle,
    geometry: Geometry,
    /// `None` once it has been given away.
    assembler: Option<Assembler>,
    /// Seal of the packets' payloads.
    seal: Option<Seal>,
    groups: Groups,
    names: Names,
    events: mpsc::Sender<ReceiverEvent>,
    /// Rings when there is an event.
    bell: Bell,
    verified_bytes: Arc<AtomicU64>,
}

impl ReceiverEnd {
    /// A receiver that writes to `assembler` what it opens with the seal, and knows these roots of lists;
    /// `verified` are the groups that it holds already. `verified_bytes` follows its progress.
    pub(crate) fn new(
        config: ReceiverConfig,
        geometry: Geometry,
        (assembler, seal): (Assembler, Option<Seal>),
        verified: Vec<bool>,
        roots: &[Digest],
        (events, bell): (mpsc::Sender<ReceiverEvent>, Bell),
        verified_bytes: Arc<AtomicU64>,
    ) -> Self {
        let packets = config.blocks.packets();
        assert_eq!(geometry.fragments(), packets, "sizes agree");
        let groups = Groups::new(geometry, verified);
        let mut machine = Receiver::new(config.clone());
        (0..packets)
            .filter(|&sn| groups.holds(sn))
            .for_each(|sn| machine.handle(Time::ZERO, ReceiverInput::Held { sns: sn..sn + 1 }));
        let done = groups.verified().iter().zip(0..).filter(|(verified, _)| **verified);
        verified_bytes.store(done.map(|(_, group)| group_len(&geometry, group)).sum(), Ordering::Relaxed);
        let mut end = ReceiverEnd {
            machine,
            blocks: config.blocks,
            transfer: config.transfer,
            geometry,
            assembler: Some(assembler),
            seal,
            groups,
            names: Names::new(config.blocks),
            events,
            bell,
            verified_bytes,
        };
        end.learn(Time::ZERO, roots);
        end
    }

    pub(super) fn transfer(&self) -> Handle {
        self.transfer
    }

    pub(super) fn begin(&mut self, now: Time) {
        self.machine.handle(now, ReceiverInput::Begin);
    }

    /// The roots of the lists of further sections have become known.
    pub(super) fn learn(&mut self, now: Time, roots: &[Digest]) {
        let until = self.names.learn(roots);
        self.machine.handle(now, ReceiverInput::Roots { until });
    }

    /// A packet of a list has come: it names others, or it is a part of the list itself.
    fn keep_list(&mut self, sn: u64, place: ListPlace, payload: &[u8]) {
        let mut opened = payload.to_vec();
        if let Some(seal) = &self.seal {
            seal.turn(sn, 0, &mut opened);
        }
        self.names.keep(place, &opened);
    }

    /// The list of a section is whole: it says the hashes of its groups, and the digests of its packets.
    fn listed(&mut self, now: Time, section: u64) -> Result<(), StoreError> {
        let groups = self.blocks.section_groups(section);
        let hashes = self.names.listed(section);
        let Some(assembler) = &mut self.assembler else { return Ok(()) };
        // A receiver that has looked at what it had knows some of the hashes already.
        let known = assembler.hashes().len() as u64;
        let skipped = known.saturating_sub(groups.start).min(groups.end - groups.start);
        for group in assembler.add_hashes(groups.start + skipped, &hashes[skipped as usize..]) {
            self.check(now, group)?;
        }
        Ok(())
    }

    /// Tells the end that waits, unless it is gone.
    fn tell(&self, event: ReceiverEvent) {
        if self.events.send(event).is_ok() {
            self.bell.ring();
        }
    }

    fn fail(&mut self, error: StoreError) {
        self.assembler = None;
        self.tell(ReceiverEvent::Failed(error));
    }

    pub(super) fn reroute(&mut self, now: Time, tree: u8, route: Option<Route>, begins: Option<u32>) {
        self.machine.handle(
            now,
            match (route, begins) {
                (Some(route), Some(block)) => ReceiverInput::Regained { tree, route, block },
                _ => ReceiverInput::Rerouted { tree, route },
            },
        );
    }

    /// Keeps what is verified for another try.
    pub(super) fn keep_for_later(&mut self) {
        if let Some(assembler) = self.assembler.as_mut().filter(|_| self.groups.verified().contains(&true)) {
            assembler.part_mut().keep_for_later();
        }
    }

    pub(super) fn deadline(&self) -> Option<Time> {
        self.machine.deadline()
    }

    /// Returns true once the receiver has nothing more to do.
    pub(super) fn is_over(&self) -> bool {
        self.assembler.is_none()
    }

    /// A packet has come; what is to be asked for next goes to `asks`.
    pub(super) fn data(&mut self, now: Time, data: Data, payload: &[u8], asks: &mut VecDeque<Interest>) {
        self.machine.handle(now, ReceiverInput::Data(data));
        self.poll(now, payload, asks);
    }

    /// Does what is to be done now.
    pub(super) fn poll(&mut self, now: Time, payload: &[u8], asks: &mut VecDeque<Interest>) {
        while let Some(output) = self.machine.poll(now) {
            match output {
                ReceiverOutput::Ask(mut interest) => {
                    let named = self.names.digest(interest.name.sn);
                    interest.name.digest = named.expect("only what is named is asked for");
                    asks.push_back(interest);
                }
                ReceiverOutput::Keep { sn, .. } => {
                    if let Err(error) = self.keep(now, sn, payload) {
                        return self.fail(error);
                    }
                }
                ReceiverOutput::Listed { section } => {
                    if let Err(error) = self.listed(now, section) {
                        return self.fail(error);
                    }
                }
                ReceiverOutput::Stalled { tree } => {
                    self.tell(ReceiverEvent::Stalled { tree });
                }
                // What counts is that all groups are verified.
                ReceiverOutput::Complete => {}
            }
        }
        if self.groups.left() == 0
            && let Some(assembler) = self.assembler.take()
        {
            let hashes = assembler.hashes().to_vec();
            self.tell(ReceiverEvent::Done(assembler.into_part(), hashes));
        }
    }

    fn keep(&mut self, now: Time, sn: u64, payload: &[u8]) -> Result<(), StoreError> {
        if let Some(place) = self.blocks.list_place(sn) {
            self.keep_list(sn, place, payload);
            return Ok(());
        }
        let Some(assembler) = &mut self.assembler else { return Ok(()) };
        match &self.seal {
            Some(seal) => {
                let mut opened = payload.to_vec();
                seal.turn(sn, 0, &mut opened);
                assembler.store(sn, &opened)?;
            }
            None => assembler.store(sn, payload)?,
        }
        self.groups.keep(sn);
        self.groups.of_packet(sn).try_for_each(|group| self.check(now, group))
    }

    /// Checks a group if it is whole. Where one before it was wrong it may lack a packet again that both
    /// have.
    fn check(&mut self, now: Time, group: u64) -> Result<(), StoreError> {
        let Some(assembler) = self.assembler.as_mut().filter(|_| self.groups.is_whole(group)) else {
            return Ok(());
        };
        match assembler.check(group)? {
            Check::Intact => {
                self.groups.intact(group);
                self.verified_bytes.fetch_add(group_len(&self.geometry, group), Ordering::Relaxed);
            }
            Check::Corrupt => {
                let sns = self.groups.corrupt(group);
                self.machine.handle(now, ReceiverInput::Corrupt { sns });
            }
            // It is checked as soon as its hash is there.
            Check::Later => {}
        }
        Ok(())
    }
}

fn group_len(geometry: &Geometry, group: u64) -> u64 {
    let bytes = geometry.group_bytes(group);
    bytes.end - bytes.start
}
