//! Permissions that a manager gives, and its records of them: the key that it signs permits with, the policy,
//! and the audit log.

use crate::audit::AuditLogs;
use crate::policy::Policy;
use polycast_net::permit::PermitKey;
use polycast_net::seal::Secret;
use polycast_types::Printable;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::time::Instant;

/// Refusals of one kind are said at most once in this time: any host can bring some of them about as often as
/// it likes.
pub(crate) const SAY: Duration = Duration::from_secs(1);

/// Subject of a manager's refusal.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Refused {
    /// A connection.
    Connection,
    /// An agent that would join.
    Join,
    /// A certificate for a token.
    Certificate,
    /// A permit.
    Permit,
    /// A path for a transfer.
    Request,
    /// The removal of objects at other agents.
    Removal,
}

impl Refused {
    /// Returns its name in the audit log, and its words in the other log.
    fn words(self) -> (&'static str, &'static str) {
        match self {
            Refused::Connection => ("connection-refused", "a connection cannot be taken"),
            Refused::Join => ("join-refused", "an agent is turned down"),
            Refused::Certificate => ("certificate-refused", "no certificate is given"),
            Refused::Permit => ("permit-refused", "no permit is given"),
            Refused::Request => ("refused", "a request is refused"),
            Refused::Removal => ("removal-refused", "no removal is passed on"),
        }
    }

    /// Returns true if a host that is no member can cause the refusal.
    fn is_of_strangers(self) -> bool {
        matches!(self, Refused::Connection | Refused::Join | Refused::Certificate)
    }
}

/// Refusals of one kind.
#[derive(Debug, Default)]
struct Refusals {
    /// Time when one was last logged, if one was.
    said_at: Option<Instant>,
    /// Number of refusals since then.
    times: u64,
    /// Last refusal since then.
    last: Option<Value>,
}

/// It is shared by all parts that let an agent in or allow something.
pub(crate) struct Guard {
    /// True if agents show their certificates: only then a permit means anything.
    permits: bool,
    /// Lifetime of a permit, in seconds.
    permit_s: u64,
    signer: Mutex<Option<Arc<PermitKey>>>,
    policy: Mutex<Arc<Policy>>,
    audit: Option<AuditLogs>,
    refusals: Mutex<BTreeMap<Refused, Refusals>>,
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
        Guard::new(false, 0, Policy::default(), None)
    }
}

fn locked<T: Clone>(of: &Mutex<T>) -> T {
    // Nothing panics while it is locked.
    of.lock().unwrap_or_else(PoisonError::into_inner).clone()
}

impl Guard {
    /// One with this policy; with `permits` it signs what it allows, once it has a key.
    pub(crate) fn new(permits: bool, permit_s: u64, policy: Policy, audit: Option<AuditLogs>) -> Self {
        let (signer, refusals) = (Mutex::default(), Mutex::default());
        Guard { permits, permit_s, signer, policy: Mutex::new(Arc::new(policy)), audit, refusals }
    }

    /// Writes down what has happened, where there is an audit log; `fields` gives an object.
    pub(crate) fn note(&self, what: &'static str, fields: impl FnOnce() -> Value) {
        if let Some(audit) = &self.audit {
            audit.note(what, fields());
        }
    }

    /// Says what was refused, in the log and in the audit log: at once where the last one of its kind was
    /// said a second ago, and with the next one otherwise, or when [`Guard::say_refusals`] is called.
    /// `fields` is an object.
    pub(crate) fn refuse(&self, what: Refused, fields: Value) {
        let mut all = self.refusals.lock().unwrap_or_else(PoisonError::into_inner);
        let refusals = all.entry(what).or_default();
        (refusals.times, refusals.last) = (refusals.times + 1, Some(fields));
        if refusals.said_at.is_none_or(|at| at.elapsed() >= SAY) {
            self.say(what, refusals);
        }
    }

    /// Says what was refused and has not been said.
    pub(crate) fn say_refusals(&self) {
        let mut all = self.refusals.lock().unwrap_or_else(PoisonError::into_inner);
        all.iter_mut().for_each(|(what, refusals)| self.say(*what, refusals));
    }

    fn say(&self, what: Refused, refusals: &mut Refusals) {
        let Some(mut fields) = refusals.last.take() else { return };
        let times = std::mem::take(&mut refusals.times);
        refusals.said_at = Some(Instant::now());
        let (kind, words) = what.words();
        let text = fields.to_string();
        let refusal = Printable(&text);
        if what.is_of_strangers() {
            tracing::warn!(times, %refusal, "{words}");
        } else {
            tracing::info!(times, %refusal, "{words}");
        }
        if let Some(audit) = &self.audit {
            fields["times"] = json!(times);
            audit.refuse(kind, fields);
        }
    }

    /// Writes what waits to be written; nothing is written any more.
    pub(crate) fn close(&self) {
        self.say_refusals();
        if let Some(audit) = &self.audit {
            audit.close();
        }
    }

    /// Returns true if the guard signs permits.
    pub(crate) fn signs(&self) -> bool {
        self.permits
    }

    /// Returns the lifetime of a permit, in seconds.
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

    /// Returns the policy, which states what is allowed.
    pub(crate) fn policy(&self) -> Arc<Policy> {
        locked(&self.policy)
    }

    /// Goes by this policy from now on.
    pub(crate) fn take_policy(&self, policy: Policy) {
        let mut held = self.policy.lock().unwrap_or_else(PoisonError::into_inner);
        let revoked = held.revoked().clone();
        *held = Arc::new(policy.without(revoked));
    }

    /// Allows an agent nothing any more, since its certificate has been revoked; or all that the policy does,
    /// since it has come with another one.
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::audit::AuditSettings;

    fn lines(path: &std::path::Path) -> Vec<Value> {
        let text = std::fs::read_to_string(path).unwrap();
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    /// Refusals fill neither log, and push out nothing that was allowed.
    #[tokio::test(start_paused = true)]
    async fn a_kind_of_refusal_is_written_once_a_second_and_apart() {
        let folder = tempfile::tempdir().unwrap();
        let settings = AuditSettings::new(folder.path().join("audit"), 1 << 20, 2);
        let (allowed, refused) = (settings.path.clone(), settings.refusals().path);
        let guard = Guard::new(true, 60, Policy::default(), Some(AuditLogs::open(settings).unwrap()));
        guard.note("join", || json!({ "agent": "a" }));
        for number in 0..100_000 {
            guard.refuse(Refused::Certificate, json!({ "number": number }));
        }
        guard.refuse(Refused::Request, json!({ "number": 7 }));
        tokio::time::advance(SAY).await;
        guard.refuse(Refused::Certificate, json!({ "number": 100_000 }));
        guard.refuse(Refused::Certificate, json!({ "number": 100_001 }));
        guard.close();
        let written: Vec<_> = lines(&refused)
            .into_iter()
            .map(|line| (line["what"].clone(), line["number"].clone(), line["times"].clone()))
            .collect();
        let wanted = [
            ("certificate-refused", 0, 1),
            ("refused", 7, 1),
            ("certificate-refused", 100_000, 100_000),
            ("certificate-refused", 100_001, 1),
        ];
        assert_eq!(written, wanted.map(|(what, number, times)| (json!(what), json!(number), json!(times))));
        assert_eq!(lines(&allowed).len(), 1);
    }
}
