//! Agents that go: what ends with them, and what goes on without them.

use super::words::{AgentKey, Denial, Going, NotMember, Output, ReleaseReason};
use super::{Leases, RecordKey};
use alloc::string::String;
use alloc::vec::Vec;
use polycast_planning::{HostId, PlanId, RequestId};

impl Leases {
    /// Takes a member out; requests that wait for it as a receiver are told or go on without it.
    pub(super) fn remove(&mut self, name: &str, how: Going) {
        let Some(member) = self.members.remove(name) else { return };
        if matches!(how, Going::Died | Going::Silent) {
            self.members.lose(name, member.heard_at);
        }
        self.touch(RecordKey::Member(String::from(name)));
        let host = member.host;
        self.note_gone(name, host);
        let concerned: Vec<RequestId> = self
            .pending
            .iter()
            .filter(|(_, (pending, _))| {
                pending.group.receivers.contains(&host) || pending.group.source == host
            })
            .map(|(id, _)| *id)
            .collect();
        for id in concerned {
            let Some((pending, waiting)) = self.pending.get_mut(&id) else { continue };
            let denial = if pending.group.source == host {
                Denial::NotMember(NotMember::Unknown(String::from(name)))
            } else {
                pending.group.receivers.remove(&host);
                if !waiting.all || how != Going::Left {
                    waiting.missed.push(String::from(name));
                }
                let (some_are_left, all) = (!pending.group.receivers.is_empty(), waiting.all);
                self.touch(RecordKey::Pending(id));
                if some_are_left {
                    continue;
                }
                if all { Denial::NobodyElse } else { Denial::Lost(String::from(name)) }
            };
            self.deny(id, denial);
        }
        self.undecided = true;
        self.outputs.push_back(Output::Gone { agent: member.key(name), how });
    }

    /// Ends everything that a run of an agent holds or waits for, but its groups: their packets do not go
    /// through the agent, whose next run goes on with them. Without one they expire.
    pub(super) fn forget(&mut self, agent: &AgentKey) {
        let own = agent.request(0)..=agent.request(u64::MAX);
        let held = self.by_request.range(own.clone()).filter(|(key, _)| !key.is_group());
        let held: Vec<PlanId> = held.map(|(_, id)| *id).collect();
        for id in held {
            self.end(id, ReleaseReason::HolderGone);
        }
        let waiting: Vec<RequestId> = self.pending_by_key.range(own).map(|(_, id)| *id).collect();
        for id in waiting {
            self.take_pending(id);
        }
        self.early.forget(agent);
        self.undecided = true;
    }

    /// Notes the name of a receiver with each path that leads to it: by its name it can be taken out still.
    fn note_gone(&mut self, name: &str, host: HostId) {
        // Settings may have given it its number for good.
        if self.members.number(name) == Some(host) {
            return;
        }
        let led_to = self.network.running().filter(|(_, running)| running.group.receivers.contains(&host));
        for id in led_to.map(|(id, _)| id).collect::<Vec<_>>() {
            if let Some(lease) = self.leases.get_mut(&id) {
                lease.gone.insert(host, String::from(name));
                self.touch(RecordKey::Lease(id));
            }
        }
    }
}
