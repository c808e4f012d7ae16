//! Receivers that share a rack: the source hears one of them (Orca appendix A.4).

use super::{Control, Input, PeerId, Run, Stage, guest_of};
use polycast_wire::control::MEMBERS_MAX;
use std::collections::{BTreeMap, BTreeSet};

impl Run {
    /// Lets the first receiver of every rack speak for the others of its rack.
    pub(super) fn gather_racks(&mut self) {
        let racks = self.spec.steering.racks();
        let mut of_rack: BTreeMap<u32, Vec<PeerId>> = BTreeMap::new();
        for entry in self.session.roster.entries().filter(|entry| entry.stage == Stage::Ready) {
            if let (Some(rack), Some(guest)) = (racks.get(&entry.name), entry.guest) {
                of_rack.entry(*rack).or_default().push(PeerId(guest.0));
            }
        }
        for peers in of_rack.values() {
            let Some((&speaker, others)) = peers.split_first() else { continue };
            let serve = self.session.guest(guest_of(speaker)).and_then(|guest| guest.serve);
            let Some(address) = serve else { continue };
            let members: BTreeSet<PeerId> = others.iter().copied().take(MEMBERS_MAX).collect();
            if members.is_empty() {
                continue;
            }
            let numbers = members.iter().map(|member| member.0).collect();
            self.machine.handle(self.now(), Input::Rack { speaker, members: members.clone() });
            self.session.tell(guest_of(speaker), &Control::Gather { own: speaker.0, members: numbers });
            let name = self.session.name_to_tell(guest_of(speaker));
            for member in members {
                let (address, port, name) = (address.ip().to_canonical(), address.port(), name.as_deref());
                let told = Control::Speaker { member: member.0, address, port, name };
                self.session.tell(guest_of(member), &told);
            }
        }
    }
}
