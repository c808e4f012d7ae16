//! An agent, as the manager's core sees it and as it sees itself (`agent::daemon::manager_link`).
//!
//! It has a session with one manager at a time. Words of a session come in their order, sometimes late; what
//! was on its way when a session ends is lost, and the next one begins with what was not confirmed.

use super::office::{Call, Session};
use alloc::collections::{BTreeMap, VecDeque};
use alloc::string::String;
use alloc::vec::Vec;
use polycast_planning::{Plan, PlanId};
use polycast_protocol::leases::{AgentKey, Grant, HeldLease, Output, Receivers};
use polycast_types::{AppId, DataId, Duration, ObjectId, Time};

/// Request of an agent.
#[derive(Clone, Debug)]
pub(super) struct Ask {
    pub(super) number: u64,
    pub(super) receivers: Receivers,
    pub(super) object_bytes: u64,
    /// Bytes of the object that are still to be sent.
    pub(super) bytes: u64,
    pub(super) divisible: bool,
    pub(super) lease: Option<Duration>,
    /// The session in which it was asked.
    pub(super) said: Option<Session>,
    /// Time of the first request.
    pub(super) asked_at: Option<Time>,
    /// It is not asked again before.
    pub(super) not_before: Time,
}

/// A lease as its holder has it.
#[derive(Clone, Debug)]
pub(super) struct Held {
    pub(super) lease: HeldLease,
    pub(super) plan: Plan,
    /// The earliest time at which its time may be over.
    pub(super) until: Option<Time>,
    /// Bytes that remain to be sent when the path is used up.
    pub(super) rest: u64,
}

/// An agent.
#[derive(Debug, Default)]
pub(super) struct Agent {
    pub(super) incarnation: u64,
    /// Down until then.
    pub(super) down_until: Time,
    pub(super) session: Option<Session>,
    /// Number of the manager that it tries, modulo the number of managers.
    pub(super) tries: usize,
    pub(super) next_beat: Time,
    /// Calls, and answers, wait until then.
    pub(super) calls_cut: Time,
    pub(super) answers_cut: Time,
    pub(super) calls: VecDeque<Call>,
    pub(super) inbox: VecDeque<Output>,
    /// Times at which the unanswered heartbeats were sent.
    pub(super) beats: VecDeque<Time>,
    /// Time at which the last answered heartbeat was sent.
    pub(super) contact: Time,
    pub(super) ask: Option<Ask>,
    pub(super) held: BTreeMap<PlanId, Held>,
    /// Time at which each of its transfers is over.
    pub(super) ends: BTreeMap<PlanId, Time>,
    /// Releases, and withdrawals where there is no path, that no heartbeat has confirmed; and when they were
    /// said.
    pub(super) owed: Vec<(u64, Option<PlanId>, Time)>,
}

impl Agent {
    pub(super) fn new() -> Self {
        Agent { incarnation: 1, ..Agent::default() }
    }

    /// Its session is over.
    pub(super) fn hang_up(&mut self) {
        self.session = None;
        self.calls.clear();
        self.inbox.clear();
        self.beats.clear();
    }

    /// It begins anew and knows nothing.
    pub(super) fn restart(&mut self, until: Time) {
        let (cuts, contact) = ((self.calls_cut, self.answers_cut), self.contact);
        let incarnation = self.incarnation + 1;
        *self = Agent { incarnation, down_until: until, contact, ..Agent::default() };
        (self.calls_cut, self.answers_cut) = cuts;
    }
}

pub(super) fn object(number: u64) -> ObjectId {
    ObjectId { app: AppId::default(), data: DataId(number) }
}

/// Returns the part of a grant that an agent keeps.
pub(super) fn held(ask: &Ask, grant: &Grant) -> Held {
    let lease = HeldLease {
        request: ask.number,
        plan: grant.plan_id,
        object: object(ask.number),
        further_sources: Vec::new(),
        receivers: names(grant),
        bytes: grant.accepted_bytes,
        fabric: grant.plan.fabric.into(),
        channel: grant.plan.channel.clone(),
        kept: (!grant.plan.commands.is_empty()).then(|| grant.plan.clone()),
        left: None,
        only: false,
    };
    // What it has said of the time while it waited may count from the moment after the grant.
    let span = ask.lease.into_iter().chain(grant.lease).min();
    let until = span.map(|span| ask.asked_at.unwrap_or_default() + span);
    Held { lease, plan: grant.plan.clone(), until, rest: ask.bytes - grant.accepted_bytes }
}

/// All receivers of a path, also those whose agents are not there: it is planned for them.
pub(super) fn names(grant: &Grant) -> Vec<String> {
    grant.receiver_names().cloned().collect()
}

impl Held {
    /// The path goes another way.
    pub(super) fn follow(&mut self, plan: &Plan) {
        self.lease.channel = plan.channel.clone();
        self.lease.fabric = plan.fabric.into();
        self.lease.kept = (!plan.commands.is_empty()).then(|| plan.clone());
        self.plan = plan.clone();
    }

    /// As it names it to a manager.
    pub(super) fn named(&self, now: Time) -> HeldLease {
        HeldLease { left: self.until.map(|until| until.since(now)), ..self.lease.clone() }
    }
}

pub(super) fn key(name: String, agent: &Agent) -> AgentKey {
    AgentKey { name, incarnation: agent.incarnation }
}
