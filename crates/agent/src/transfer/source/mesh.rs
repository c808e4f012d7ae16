//! The source's part in a mesh: receivers are told of their candidates, and say what they lack and who was of no use.

use super::{Control, Input, Run, guest_of};
use polycast_protocol::push::PeerId;
use polycast_protocol::push::overlay::Candidates;
use polycast_wire::control::{End, Fault, Overlay};
use std::net::{SocketAddr, SocketAddrV4};

/// What a receiver has said of a candidate.
#[derive(Clone, Copy, Debug)]
pub(super) struct Complaint {
    pub(super) by: PeerId,
    pub(super) about: SocketAddr,
    pub(super) why: Fault,
}

impl Complaint {
    pub(super) fn of(by: PeerId, control: &Control<'_>) -> Option<Self> {
        match control {
            Control::Overlay(Overlay::Fault { address, port, why }) => {
                Some(Complaint { by, about: SocketAddr::from((*address, *port)), why: *why })
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
        let entry = if told.takes { self.served.entry_of(told.peer) } else { 0 };
        let place = |peer: &PeerId| {
            let guest = guest_of(*peer);
            let Some(SocketAddr::V4(serve)) = self.session.guest(guest)?.serve else { return None };
            Some((serve, self.session.name_to_tell(guest)))
        };
        let places: Vec<(SocketAddrV4, Option<String>)> = told.from.iter().filter_map(place).collect();
        let ends = places.iter().map(|(serve, name)| End {
            address: serve.ip().octets(),
            port: serve.port(),
            name: name.as_deref(),
        });
        let frame = Control::Overlay(Overlay::Candidates { entry, ends: ends.collect() });
        self.session.tell(guest_of(told.peer), &frame);
    }

    /// A receiver says that a candidate was of no use to it.
    pub(super) fn hear_complaint(&mut self, complaint: Complaint) {
        let Complaint { by, about, why } = complaint;
        let Some(candidate) = self.session.guest_at(about) else { return };
        let candidate = PeerId(candidate.0);
        if why.is_a_complaint() {
            self.served.complain(by, candidate);
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
