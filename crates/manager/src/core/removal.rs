//! Wishes to remove objects at other agents: the manager only passes them on, and the answers back.

use super::Inner;
use super::obey::{Message, some_of};
use crate::guard::Refused;
use crate::policy::Ban;
use polycast_api::error::{Kind, Refusal};
use polycast_api::manager as api;
use polycast_protocol::leases::AgentKey;
use serde_json::json;
use std::collections::BTreeSet;

/// Objects that one wish may name.
const OBJECTS_MAX: usize = 1_024;

impl Inner {
    /// Passes a wish on to the agents that it names, and tells the agent that wishes it which these are.
    pub(super) fn pass_on_removal(&mut self, agent: &AgentKey, wish: api::Remove) -> Result<(), Refusal> {
        let api::Remove { request_id, agents, all, objects, .. } = wish;
        if objects.len() > OBJECTS_MAX {
            let message = format!("{} objects to remove are more than {OBJECTS_MAX}", objects.len());
            return Err(Refusal::new(Kind::Invalid, message));
        }
        let named: BTreeSet<&String> = agents.iter().collect();
        let meant = |key: &&AgentKey| all || named.contains(&key.name);
        let present: Vec<AgentKey> = self.seats.present().filter(meant).cloned().collect();
        if let Err(ban) = self.judge_removal(agent, &objects, &present) {
            let fields = json!({ "agent": agent.name, "reason": ban.to_string() });
            self.guard.refuse(Refused::Removal, fields);
            let answer = api::Removed { request_id, refused: ban.to_string(), ..Default::default() };
            self.tell(agent, Message::Removed(answer));
            return Ok(());
        }
        let asked: Vec<String> = present.iter().map(|key| key.name.clone()).collect();
        let is_here = |name: &String| asked.binary_search(name).is_ok();
        // Those that are away, or have not come back, may have them still.
        let members = self.machine.members().map(|(name, _)| name);
        let known = members.chain(self.machine.lost().map(|(name, _)| name)).chain(self.machine.left());
        let known = known.filter(|_| all);
        let meant: BTreeSet<String> = named.into_iter().cloned().chain(known.map(str::to_string)).collect();
        let absent = meant.into_iter().filter(|name| !is_here(name)).collect();
        tracing::info!(agent = %agent.name, objects = objects.len(), agents = asked.len(), "removal passed on");
        self.guard.note("removal", || {
            let named = objects.iter().take(16).map(|object| match object.data_id {
                Some(number) => json!(number),
                None => json!(object.name),
            });
            json!({
                "agent": agent.name, "objects": named.collect::<Vec<_>>(), "objects_count": objects.len(),
                "at": some_of(asked.iter()), "at_count": asked.len(),
            })
        });
        let wished_by = agent.name.clone();
        let settles_ms = self.directory.settles_at().since(self.now()).as_millis();
        // Before the agents' own answers.
        let answer = api::Removed {
            request_id,
            wished_by: wished_by.clone(),
            asked,
            absent,
            settles_ms,
            ..Default::default()
        };
        self.tell(agent, Message::Removed(answer));
        for key in present {
            let (wished_by, objects) = (wished_by.clone(), objects.clone());
            let wish = api::Remove { request_id, wished_by, agents: Vec::new(), all: false, objects };
            self.tell(&key, Message::Remove(wish));
        }
        Ok(())
    }

    /// Checks that the policy lets an agent remove all these objects at all these other agents.
    fn judge_removal(
        &self,
        agent: &AgentKey,
        objects: &[api::ObjectChoice],
        at: &[AgentKey],
    ) -> Result<(), Ban> {
        let policy = self.guard.policy();
        for object in objects {
            let name = object.data_id.is_none().then_some(object.name.as_str());
            at.iter().try_for_each(|other| policy.remove(&agent.name, name, &other.name))?;
        }
        Ok(())
    }

    /// Passes an answer back, if the agent that it is for is still here.
    pub(super) fn pass_back_removal(&mut self, agent: &AgentKey, answer: api::Removed) {
        let api::Removed { request_id, wished_by, mut objects, under_way, .. } = answer;
        objects.truncate(OBJECTS_MAX);
        let Some(wisher) = self.seats.present().find(|key| key.name == wished_by).cloned() else { return };
        let agent = agent.name.clone();
        let answer = api::Removed { request_id, wished_by, agent, objects, under_way, ..Default::default() };
        self.tell(&wisher, Message::Removed(answer));
    }
}
