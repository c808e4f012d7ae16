//! The source's part in a mesh: receivers are told of their candidates, and say what they lack and who was of
//! no use.

use super::{Control, Input, Run, guest_of};
use polycast_protocol::push::PeerId;
use polycast_protocol::push::overlay::Candidates;
use polycast_wire::control::{CandidateEnd, End, Fault, NOWHERE, Overlay, Share};
use std::net::SocketAddr;
use std::ops::Range;

/// Message of a receiver about the mesh.
#[derive(Clone, Debug)]
pub(super) enum Word {
    /// None of its candidates has these groups.
    Lacks(Vec<Range<u64>>),
    /// A candidate was of no use.
    Fault(SocketAddr, Fault),
    /// So many bytes came from each of these; from the source under `None`.
    Came(Vec<(Option<SocketAddr>, u64)>),
}

impl Word {
    pub(super) fn of(control: &Control<'_>) -> Option<Self> {
        match control {
            Control::Overlay(Overlay::Lacks(groups)) => Some(Word::Lacks(groups.clone())),
            Control::Overlay(Overlay::Fault { address, port, why }) => {
                Some(Word::Fault(SocketAddr::new(*address, *port), *why))
            }
            Control::Overlay(Overlay::Came(ends)) => {
                let named = ends.iter().map(|end| ((end.address, end.port), end.bytes));
                let ends = named.map(|(end, bytes)| ((end != NOWHERE).then(|| SocketAddr::from(end)), bytes));
                Some(Word::Came(ends.collect()))
            }
            _ => None,
        }
    }
}

impl Run {
    /// Tells a receiver whom it may fetch from.
    pub(super) fn tell_candidates(&mut self, told: &Candidates) {
        self.account.chain_used = true;
        // It fetches them there.
        self.patches.remove(&told.peer);
        self.served.set_apart(told.peer, told.is_apart);
        let entry = if told.takes { self.served.entry_of(told.peer) } else { 0 };
        let mut places: Vec<(SocketAddr, PeerId, Option<String>, Share)> = Vec::new();
        for (peer, share) in &told.from {
            let Some(guest) = self.session.guest(guest_of(*peer)) else { continue };
            let Some(serve) = guest.serve else { continue };
            self.crossings.serves(serve, &guest.location.zone);
            // Two behind one address cannot be told apart: one of them is reached there.
            if serve.port() != 0 && !places.iter().any(|(known, ..)| *known == serve) {
                places.push((serve, *peer, self.session.name_to_tell(guest_of(*peer)), *share));
            }
        }
        let ends = places.iter().map(|(serve, _, name, share)| {
            let address = serve.ip().to_canonical();
            CandidateEnd { end: End { address, port: serve.port(), name: name.as_deref() }, share: *share }
        });
        let (is_behind_head, ends) = (told.is_behind_head, ends.collect());
        let guest = self.session.guest(guest_of(told.peer));
        let has_zone = guest.is_some_and(|guest| !guest.location.zone.is_empty());
        if has_zone && !self.candidates.contains_key(&told.peer) {
            // A receiver of an earlier commit says where its bytes came from unasked, or passes over this.
            self.session.tell(guest_of(told.peer), &Control::Overlay(Overlay::Lacks(Vec::new())));
        }
        let frame = Control::Overlay(Overlay::Candidates { entry, is_behind_head, ends });
        self.session.tell(guest_of(told.peer), &frame);
        let known = places.into_iter().map(|(serve, peer, ..)| (serve, peer)).collect();
        self.candidates.insert(told.peer, known);
    }

    /// Hears what a receiver says of the mesh.
    pub(super) fn hear_of_mesh(&mut self, by: PeerId, word: Word) {
        match word {
            Word::Lacks(groups) => {
                self.served.lack(by, &groups);
                let (now, control) = (self.now(), &Control::Overlay(Overlay::Lacks(groups)));
                self.machine.handle(now, Input::Control { peer: by, control });
            }
            Word::Fault(about, why) => self.hear_complaint(by, about, why),
            Word::Came(ends) => {
                if let Some(guest) = self.session.guest(guest_of(by)) {
                    self.crossings.came(by, &guest.location.zone, &ends);
                }
            }
        }
    }

    /// A receiver says that a candidate was of no use to it: one that it was told of.
    fn hear_complaint(&mut self, by: PeerId, about: SocketAddr, why: Fault) {
        let known = self.candidates.get(&by).into_iter().flatten();
        let Some((_, candidate)) = { known }.find(|(serve, _)| *serve == about).copied() else { return };
        if why.is_a_complaint() {
            self.served.complain(by, candidate);
        }
        // A connection ends for many reasons.
        if !matches!(why, Fault::Unreachable | Fault::Ended) {
            self.name_culprit(by, candidate, why);
        }
        let now = self.now();
        self.machine.handle(now, Input::Useless { peer: by, candidate, for_good: why.is_for_good() });
    }

    /// Notes once of each candidate what is said of it.
    fn name_culprit(&mut self, by: PeerId, candidate: PeerId, why: Fault) {
        let name = |peer: PeerId| self.session.roster.entry(guest_of(peer)).map(|entry| entry.name.clone());
        let (Some(by), Some(about)) = (name(by), name(candidate)) else { return };
        if self.blamed.insert((candidate, why)) {
            tracing::warn!(%by, %about, %why, "a receiver says that another one is of no use to it");
            let now = self.now();
            self.account.note(now, format!("{by} says of {about}: {why}"));
        }
    }
}
