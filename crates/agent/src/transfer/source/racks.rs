//! Receivers that share a rack: the source hears one of them (Orca appendix A.4).

use super::{Control, Input, PeerId, Run};
use polycast_wire::control::MEMBERS_MAX;
use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;

impl Run {
    /// Lets the first receiver of every rack speak for the others of its rack.
    pub(super) fn gather_racks(&mut self) {
        let racks = self.spec.steering.racks();
        let mut of_rack: BTreeMap<u32, Vec<PeerId>> = BTreeMap::new();
        for (id, conn) in self.conns.iter().filter(|(_, conn)| conn.joined && conn.settled.is_none()) {
            if let Some(rack) = racks.get(&conn.name) {
                of_rack.entry(*rack).or_default().push(*id);
            }
        }
        for peers in of_rack.values() {
            let Some((&speaker, others)) = peers.split_first() else { continue };
            let Some(SocketAddr::V4(address)) = self.conns.get(&speaker).and_then(|conn| conn.serve) else {
                continue;
            };
            let members: BTreeSet<PeerId> = others.iter().copied().take(MEMBERS_MAX).collect();
            if members.is_empty() {
                continue;
            }
            let numbers = members.iter().map(|member| member.0).collect();
            self.machine.handle(self.clock.now(), Input::Rack { speaker, members: members.clone() });
            self.tell(speaker, &Control::Gather { own: speaker.0, members: numbers });
            for member in members {
                let (address, port) = (address.ip().octets(), address.port());
                self.tell(member, &Control::Speaker { member: member.0, address, port });
            }
        }
    }
}
