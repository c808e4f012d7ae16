//! Requests that come before their receivers.
//!
//! Agents come back to a manager that has just begun one after the other. A request that names an agent that
//! is not here yet waits as long as one may take; after that there is no such agent.

use super::Leases;
use super::words::{AgentKey, PathRequest, RequestKey};
use alloc::collections::BTreeMap;
use polycast_types::Time;

/// Requests whose receivers are not all here.
#[derive(Debug, Default)]
pub(super) struct Early {
    requests: BTreeMap<RequestKey, PathRequest>,
    /// Until when they may come.
    until: Time,
}

impl Early {
    pub(super) fn expect_until(&mut self, until: Time) {
        self.until = until;
    }

    pub(super) fn keep(&mut self, key: RequestKey, request: PathRequest) {
        self.requests.insert(key, request);
    }

    pub(super) fn withdraw(&mut self, request: &RequestKey) {
        self.requests.remove(request);
    }

    pub(super) fn forget(&mut self, agent: &AgentKey) {
        self.requests.retain(|key, _| !key.is_of(agent));
    }

    pub(super) fn deadline(&self) -> Option<Time> {
        (!self.requests.is_empty()).then_some(self.until)
    }

    pub(super) fn is_over(&self, now: Time) -> bool {
        !self.requests.is_empty() && self.until <= now
    }

    pub(super) fn len(&self) -> usize {
        self.requests.len()
    }
}

impl Leases {
    /// Returns true if an agent that is not here may still be on its way.
    pub(super) fn may_yet_come(&self, now: Time) -> bool {
        now < self.early.until && self.early.len() + self.pending.len() < self.config.pending_max
    }

    /// Asks again for all that has waited for receivers.
    pub(super) fn reconsider(&mut self, now: Time) {
        for (_, request) in core::mem::take(&mut self.early.requests) {
            self.request(now, request);
        }
    }
}
