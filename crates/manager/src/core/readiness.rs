//! Words about a stream's path that wait until the racks' switches have answered. Messages are not repaired:
//! what goes out before a switch has its rule is lost, so a source hears of its path, and a receiver that it
//! has joined, when the rules are there.
//!
//! A switch that fails delays others for no longer than its answer takes: receivers behind the others hear
//! the stream.

use super::Inner;
use super::obey::Message;
use crate::devices::DeviceId;
use polycast_planning::{DeviceCommand, Plan, PlanId};
use polycast_protocol::leases::AgentKey;
use std::collections::BTreeMap;

/// Words that wait for one path; more are said at once. A stream's receivers are told one word each.
const WORDS_MAX: usize = 4_096;

/// Messages that wait, by path.
#[derive(Debug, Default)]
pub(super) struct Readiness {
    /// Number of changes that devices have been asked for and have not answered, by path.
    under_way: BTreeMap<PlanId, usize>,
    words: BTreeMap<PlanId, Vec<(AgentKey, Message)>>,
}

impl Readiness {
    /// Devices are asked for a change of a path.
    pub(super) fn begins(&mut self, plan: PlanId) {
        *self.under_way.entry(plan).or_default() += 1;
    }

    /// They have answered; gives whether they have answered all that they were asked.
    fn ends(&mut self, plan: PlanId) -> bool {
        match self.under_way.get_mut(&plan) {
            Some(count) if *count > 1 => {
                *count -= 1;
                false
            }
            _ => {
                self.under_way.remove(&plan);
                true
            }
        }
    }

    /// A path is no more.
    pub(super) fn forget(&mut self, plan: PlanId) {
        self.words.remove(&plan);
    }

    /// Returns true if messages wait for the path.
    pub(super) fn has_words(&self, plan: PlanId) -> bool {
        self.words.contains_key(&plan)
    }

    pub(super) fn is_under_way(&self, plan: PlanId) -> bool {
        self.under_way.contains_key(&plan)
    }
}

/// Returns true if racks' switches have rules for a path, or doors. Other labels are put on by agents of
/// racks, which answer for themselves.
pub(super) fn has_rules(plan: &Plan) -> bool {
    let is_rule = |command: &DeviceCommand| {
        matches!(DeviceId::of(command), DeviceId::Tor(_)) || matches!(command, DeviceCommand::LeafDoor { .. })
    };
    plan.commands.iter().any(is_rule)
}

impl Inner {
    /// Says something about a stream's path when devices have it.
    pub(super) fn tell_when_ready(&mut self, plan: PlanId, agent: &AgentKey, message: Message) {
        let words = self.readiness.words.entry(plan).or_default();
        if words.len() < WORDS_MAX {
            words.push((agent.clone(), message));
        } else {
            self.tell(agent, message);
        }
    }

    /// Tells a receiver where a stream comes, when that way is there.
    pub(super) fn tell_joined(
        &mut self,
        source: &str,
        plan_of: impl Fn(&Plan) -> bool,
        agent: &AgentKey,
        message: Message,
    ) {
        let is_it = |plan: &Plan, agent: &str| agent == source && plan_of(plan) && has_rules(plan);
        let waits = self
            .machine
            .leases()
            .find(|lease| lease.key.is_stream() && is_it(&lease.grant.plan, &lease.key.agent.name))
            .map(|lease| lease.grant.plan_id);
        match waits {
            Some(plan) if self.readiness.is_under_way(plan) => self.tell_when_ready(plan, agent, message),
            _ => self.tell(agent, message),
        }
    }

    /// Devices have answered a change of a path.
    pub(super) fn answered(&mut self, plan: PlanId) {
        if self.readiness.ends(plan) {
            self.say_words(plan);
        }
    }

    /// Says what waits for a path.
    pub(super) fn say_words(&mut self, plan: PlanId) {
        for (agent, message) in self.readiness.words.remove(&plan).unwrap_or_default() {
            self.tell(&agent, message);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_changes_of_a_path_are_waited_for() {
        let mut readiness = Readiness::default();
        let (one, other) = (PlanId(1), PlanId(2));
        readiness.begins(one);
        readiness.begins(one);
        readiness.begins(other);
        assert_eq!((readiness.ends(one), readiness.is_under_way(one)), (false, true));
        assert_eq!((readiness.ends(one), readiness.is_under_way(one)), (true, false));
        assert!(readiness.is_under_way(other));
        assert!(readiness.ends(PlanId(3)), "one that an earlier manager has asked for");
    }
}
