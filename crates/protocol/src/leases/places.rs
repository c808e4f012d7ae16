//! Places for paths: how many an agent holds, and how many lead to a host. They are counted as paths come and
//! go: a look at each path that is lent would make every decision the slower the more are lent.

use super::words::{AgentKey, RequestKey};
use super::{Leases, Waiting};
use alloc::collections::{BTreeMap, BTreeSet};
use polycast_planning::{Group, HostId, Pending, PlanId, RequestId};

/// The places that are taken; no count is zero.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct Places {
    /// Paths of any kind by their holder.
    held: BTreeMap<AgentKey, usize>,
    /// Paths for objects by the hosts that they lead to.
    led_to: BTreeMap<HostId, usize>,
}

/// Counts one more, or one fewer.
fn count<K: Ord>(counts: &mut BTreeMap<K, usize>, key: K, comes: bool) {
    if comes {
        *counts.entry(key).or_default() += 1;
    } else if let Some(count) = counts.get_mut(&key) {
        *count = count.saturating_sub(1);
        if *count == 0 {
            counts.remove(&key);
        }
    }
}

impl Places {
    /// Returns the number of paths that an agent has.
    pub(super) fn held_by(&self, agent: &AgentKey) -> usize {
        self.held.get(agent).copied().unwrap_or_default()
    }

    /// An agent holds one more path.
    pub(super) fn hold(&mut self, agent: &AgentKey) {
        match self.held.get_mut(agent) {
            Some(count) => *count += 1,
            None => drop(self.held.insert(agent.clone(), 1)),
        }
    }

    /// An agent holds one path fewer.
    pub(super) fn let_go(&mut self, agent: &AgentKey) {
        if let Some(count) = self.held.get_mut(agent) {
            *count = count.saturating_sub(1);
            if *count == 0 {
                self.held.remove(agent);
            }
        }
    }

    /// A path leads to a group, or no longer does; those of streams and groups take no place at receivers.
    pub(super) fn lead(&mut self, key: &RequestKey, group: &Group, comes: bool) {
        if key.is_transfer() {
            group.receivers.iter().for_each(|host| count(&mut self.led_to, *host, comes));
        }
    }
}

impl Leases {
    /// Counts a path that is held at its receivers, or counts it no more.
    pub(super) fn lead(&mut self, id: PlanId, comes: bool) {
        if let Some((lease, running)) = self.leases.get(&id).zip(self.network.get(id)) {
            self.places.lead(&lease.key, &running.group, comes);
        }
    }

    /// The requests that wait and whose ends have a place for one more path.
    pub(super) fn with_place(&self) -> BTreeSet<RequestId> {
        // Places that those before in the queue take, beside those that are lent.
        let mut before = Places::default();
        let mut has_place = |pending: &Pending, waiting: &Waiting| {
            // An agent that has all the paths that one may have waits beside the others, and holds nothing
            // that they could have.
            let agent = &waiting.key.agent;
            if self.places.held_by(agent) + before.held_by(agent) >= self.config.agent_leases_max {
                return false;
            }
            before.hold(agent);
            // One that waits for one of its receivers keeps its places at the others: those that came later
            // do not pass it for good.
            let mut has_room = true;
            for host in &pending.group.receivers {
                let lent = self.places.led_to.get(host).copied().unwrap_or_default();
                let waits = before.led_to.entry(*host).or_default();
                has_room &= lent + *waits < self.config.receiver_leases_max;
                *waits += 1;
            }
            has_room
        };
        let pending = self.pending.values().filter(|(pending, waiting)| has_place(pending, waiting));
        pending.map(|(pending, _)| pending.id).collect()
    }
}
