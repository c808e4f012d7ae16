//! Fate of receivers that an agent names, some of which are lost, silent, or away.

use super::{Plant, World, index};
use alloc::collections::BTreeSet;
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use polycast_protocol::leases::{Grant, Receivers, RequestKey};

impl World {
    /// Returns the receivers that an agent requests under this number; groups that change while they wait are
    /// checked elsewhere.
    fn asked(&self, request: &RequestKey) -> Option<&Vec<String>> {
        let agent = &self.agents[index(&request.agent.name)];
        let ask = agent.ask.as_ref().filter(|ask| self.wire.is_some() && ask.number == request.request)?;
        match &ask.receivers {
            Receivers::Named(names) if agent.incarnation == request.agent.incarnation => Some(names),
            _ => None,
        }
    }

    /// Every receiver that was asked for has the path, or is named as one that it does not lead to.
    pub(super) fn check_named(&self, request: &RequestKey, grant: &Grant) -> Result<(), String> {
        let missed = grant.missed.iter().filter(|_| self.plant != Some(Plant::HideMissed));
        let named: BTreeSet<&String> = grant.receiver_names().chain(missed).collect();
        match self.asked(request).into_iter().flatten().find(|name| !named.contains(name)) {
            Some(name) => {
                Err(format!("{} asked for {name}, and does not hear what became of it", request.agent.name))
            }
            None => Ok(()),
        }
    }
}
