//! Hosts that operators drain: nothing new is sent to them, and what runs there ends as it would.
//!
//! A host is drained by its name, whichever run of its agent is here and whichever manager leads, until an
//! operator takes it back. It may still send: what only it has, others can get.

use super::parts::DRAINED_MAX;
use super::words::{Denial, Drained, PathRequest, Receivers};
use super::{Leases, RecordKey};
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use polycast_planning::{Group, HostId};

impl Leases {
    /// Names of the hosts that are drained, each with the number of paths that lead from it or to it, and of
    /// requests that wait for one.
    #[must_use]
    pub fn drained_hosts(&self) -> Vec<(&str, usize)> {
        let hosts = &self.parts.hosts;
        if hosts.is_empty() {
            return Vec::new();
        }
        let mut counts: BTreeMap<&str, usize> = hosts.iter().map(|name| (name.as_str(), 0)).collect();
        let mut count = |names: BTreeSet<&str>| {
            for name in names {
                if let Some(count) = counts.get_mut(name) {
                    *count += 1;
                }
            }
        };
        for lease in self.leases.values() {
            let receivers = lease.grant.receiver_names().chain(&lease.grant.further_sources);
            count(receivers.map(String::as_str).chain([lease.key.agent.name.as_str()]).collect());
        }
        for (pending, waiting) in self.pending.values() {
            let hosts = pending.group.hosts().filter_map(|host| self.members.name_of(host));
            count(hosts.chain([waiting.key.agent.name.as_str()]).collect());
        }
        counts.into_iter().collect()
    }

    /// An operator drains a host, or takes it back.
    pub(super) fn drain_host(&mut self, name: &str, is_out: bool) -> Result<Drained, String> {
        let is_drained = self.parts.hosts.contains(name);
        if !is_drained && !self.members.has_heard_of(name) {
            return Err(format!("there is no agent '{name}'"));
        }
        if is_out && !is_drained && self.parts.hosts.len() >= DRAINED_MAX {
            return Err(format!("{DRAINED_MAX} hosts are drained already: take some back with drain --undo"));
        }
        let is_new =
            if is_out { self.parts.hosts.insert(String::from(name)) } else { self.parts.hosts.remove(name) };
        self.touch(RecordKey::Parts);
        Ok(Drained { is_new, moved: 0, ended: 0 })
    }

    /// Checks that none of these is drained.
    pub(super) fn check_drained(&self, names: &[String]) -> Result<(), Denial> {
        match names.iter().find(|name| self.parts.hosts.contains(*name)) {
            Some(name) => Err(Denial::Draining(name.clone())),
            None => Ok(()),
        }
    }

    /// Refuses a new transfer to a host that is drained and named, and leaves such hosts out of one to all.
    /// The rest of an object of which a part was sent belongs to a transfer that runs, and a stream is
    /// received where a user has asked for it.
    pub(super) fn spare_drained(
        &self,
        request: &PathRequest,
        (mut group, mut missed): (Group, Vec<String>),
    ) -> Result<(Group, Vec<String>), Denial> {
        let goes_on = request.remaining_bytes < request.object_bytes;
        if goes_on || request.agent.request(request.request).is_stream() {
            return Ok((group, missed));
        }
        match &request.receivers {
            Receivers::Named(names) => self.check_drained(names)?,
            Receivers::All => {
                missed.retain(|name| !self.parts.hosts.contains(name));
                let is_drained = |host: &HostId| {
                    self.members.name_of(*host).is_some_and(|name| self.parts.hosts.contains(name))
                };
                group.receivers.retain(|host| !is_drained(host));
                if group.receivers.is_empty() {
                    return Err(Denial::NobodyElse);
                }
            }
        }
        Ok((group, missed))
    }
}
