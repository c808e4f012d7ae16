//! What a manager allows, and what it writes down of that: the key that it signs permits with, the policy, and the audit log.

use crate::audit::AuditLog;
use crate::policy::Policy;
use polycast_net::permit::PermitKey;
use polycast_net::seal::Secret;
use serde_json::Value;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

/// It is shared by all parts that let an agent in or allow something.
pub(crate) struct Guard {
    /// Whether agents show their certificates: only then a permit says anything.
    permits: bool,
    /// How long a permit holds, in seconds.
    permit_s: u64,
    signer: Mutex<Option<Arc<PermitKey>>>,
    policy: Mutex<Arc<Policy>>,
    audit: Option<AuditLog>,
}

/// Keys must not get into a log.
impl fmt::Debug for Guard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Guard(..)")
    }
}

/// One that allows everything, and signs nothing.
impl Default for Guard {
    fn default() -> Self {
        Guard { permits: false, permit_s: 0, signer: Mutex::default(), policy: Mutex::default(), audit: None }
    }
}

fn locked<T: Clone>(of: &Mutex<T>) -> T {
    // Nothing panics while it is locked.
    of.lock().unwrap_or_else(PoisonError::into_inner).clone()
}

impl Guard {
    /// One with this policy; with `permits` it signs what it allows, once it has a key.
    pub(crate) fn new(permits: bool, permit_s: u64, policy: Policy, audit: Option<AuditLog>) -> Self {
        Guard { permits, permit_s, signer: Mutex::default(), policy: Mutex::new(Arc::new(policy)), audit }
    }

    /// Writes down what has happened, where there is an audit log; `fields` gives an object.
    pub(crate) fn note(&self, what: &'static str, fields: impl FnOnce() -> Value) {
        if let Some(audit) = &self.audit {
            audit.note(what, fields());
        }
    }

    /// Writes what waits to be written; nothing is written any more.
    pub(crate) fn close(&self) {
        if let Some(audit) = &self.audit {
            audit.close();
        }
    }

    /// Whether it signs permits.
    pub(crate) fn signs(&self) -> bool {
        self.permits
    }

    /// How long a permit holds, in seconds.
    pub(crate) fn permit_s(&self) -> u64 {
        self.permit_s
    }

    /// Signs with this key from now on.
    pub(crate) fn sign_with(&self, seed: &Secret) {
        if self.permits {
            let key = Arc::new(PermitKey::new(seed));
            *self.signer.lock().unwrap_or_else(PoisonError::into_inner) = Some(key);
        }
    }

    /// The key that permits are signed with.
    pub(crate) fn signer(&self) -> Option<Arc<PermitKey>> {
        locked(&self.signer)
    }

    /// What is allowed.
    pub(crate) fn policy(&self) -> Arc<Policy> {
        locked(&self.policy)
    }

    /// Goes by this policy from now on.
    pub(crate) fn take_policy(&self, policy: Policy) {
        let mut held = self.policy.lock().unwrap_or_else(PoisonError::into_inner);
        let revoked = held.revoked().clone();
        *held = Arc::new(policy.without(revoked));
    }

    /// Allows an agent nothing any more, since its certificate has been revoked; or all that the policy does, since it has come with
    /// another one.
    pub(crate) fn revoke(&self, agent: &str, is_revoked: bool) {
        let mut held = self.policy.lock().unwrap_or_else(PoisonError::into_inner);
        if held.revoked().contains(agent) == is_revoked {
            return;
        }
        let mut revoked = held.revoked().clone();
        if is_revoked {
            revoked.insert(agent.to_string());
        } else {
            revoked.remove(agent);
        }
        let policy = Policy::clone(&held);
        *held = Arc::new(policy.without(revoked));
    }
}
