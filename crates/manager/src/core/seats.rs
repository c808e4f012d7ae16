//! The agents' places at the manager: sessions that are there, and agents whose session has ended without a farewell.

use super::obey::{Answer, Message};
use super::{Core, Inner};
use crate::config::ManagerConfig;
use crate::convert;
use polycast_api::error::{Kind, Refusal};
use polycast_api::manager::agent_message::Message as Said;
use polycast_api::manager::{self as api, ManagerMessage};
use polycast_planning::PlanId;
use polycast_protocol::directory::DirectoryInput;
use polycast_protocol::leases::{AgentKey, Input, Join, NotMember, Output};
use polycast_protocol::stream::StreamsInput;
use polycast_types::{Duration, Time};
use serde_json::json;
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Instant;
use tokio::sync::mpsc;
use tonic::Status;

/// Messages on their way to an agent.
pub(super) type Outbox = mpsc::Sender<Result<ManagerMessage, Status>>;

/// Agents that have not come back and are remembered.
const LOST_MAX: usize = 1_024;

/// All places. There is at most one session for each agent's name.
#[derive(Debug)]
pub(super) struct Seats {
    sessions: BTreeMap<AgentKey, Session>,
    /// Agents whose sessions have ended without a farewell.
    missing: BTreeMap<AgentKey, Missing>,
    /// Agents that have not come back, and when they were heard of last.
    lost: BTreeMap<String, Time>,
    last_number: u64,
    /// How long an agent may take to come back.
    reconnect: Duration,
    /// A session that was heard of so lately is alive.
    alive: Duration,
    /// How many agents may come from one address.
    of_address_max: usize,
}

#[derive(Debug)]
struct Session {
    number: u64,
    outbox: Outbox,
    /// The address that its connection comes from, whatever the agent says of itself.
    from: IpAddr,
    heard_at: Time,
}

/// An agent that may come back.
#[derive(Clone, Copy, Debug)]
struct Missing {
    until: Time,
    /// Where its last session came from; not known where that was another manager's.
    from: Option<IpAddr>,
}

impl Seats {
    pub(super) fn new(config: &ManagerConfig) -> Self {
        Seats {
            sessions: BTreeMap::new(),
            missing: BTreeMap::new(),
            lost: BTreeMap::new(),
            last_number: 0,
            reconnect: super::millis(config.reconnect_ms),
            // Two heartbeats, and half of one for the way.
            alive: super::millis(config.heartbeat_ms.saturating_mul(5) / 2),
            of_address_max: config.address_agents_max,
        }
    }

    /// Whether an agent may come from there: it may not take the name of one that lives, or that may come back to its own
    /// address, and no address has all the places.
    fn admit(
        &self,
        now: Time,
        agent: &AgentKey,
        from: IpAddr,
        known: Option<([u8; 4], u16)>,
    ) -> Result<(), Refusal> {
        let is_other = |key: &AgentKey| key.name == agent.name && key.incarnation != agent.incarnation;
        let taken = |by: IpAddr| {
            let message = format!(
                "the name '{}' is taken by the agent at {by}: stop that one first, or take another name",
                agent.name
            );
            Err(Refusal::new(Kind::NameTaken, message))
        };
        if let Some((_, session)) = self.sessions.iter().find(|(key, _)| is_other(key))
            && (now.since(session.heard_at) < self.alive || session.from != from)
        {
            return taken(session.from);
        }
        if let Some((_, missing)) = self.missing.iter().find(|(key, _)| is_other(key)) {
            let of_member = || known.map_or(from, |(address, _)| address.into());
            let home = missing.from.unwrap_or_else(of_member);
            if home != from {
                return taken(home);
            }
        }
        let sessions =
            self.sessions.iter().filter(|(key, session)| session.from == from && key.name != agent.name);
        let missing =
            self.missing.iter().filter(|(key, missing)| missing.from == Some(from) && key.name != agent.name);
        let count = sessions.count() + missing.count();
        if count >= self.of_address_max {
            let message = format!(
                "{count} agents have joined from {from}, as many as may: the manager's setting 'address-agents-max' says so"
            );
            return Err(Refusal::new(Kind::Full, message));
        }
        Ok(())
    }

    /// No agent could be heard until now.
    pub(super) fn excuse(&mut self, now: Time) {
        for missing in self.missing.values_mut() {
            missing.until = missing.until.max(now + self.reconnect);
        }
        self.sessions.values_mut().for_each(|session| session.heard_at = now);
    }

    /// Ends all sessions.
    pub(super) fn clear(&mut self) {
        self.sessions.clear();
    }

    /// The number of an agent's session, if it has one.
    pub(super) fn number_of(&self, agent: &AgentKey) -> Option<u64> {
        self.sessions.get(agent).map(|session| session.number)
    }

    /// Agents that have not come back, and when they were heard of last.
    pub(super) fn lost(&self) -> impl Iterator<Item = (&String, Time)> {
        self.lost.iter().map(|(name, heard_at)| (name, *heard_at))
    }

    /// Remembers one that has not come back; of too many the one that was heard of first goes.
    fn remember_lost(&mut self, name: &str, heard_at: Time) {
        self.lost.insert(name.to_string(), heard_at);
        if self.lost.len() > LOST_MAX
            && let Some(oldest) = self.lost.iter().min_by_key(|(_, heard_at)| **heard_at)
        {
            let oldest = oldest.0.clone();
            self.lost.remove(&oldest);
        }
    }

    /// All who have a session.
    pub(super) fn present(&self) -> impl Iterator<Item = &AgentKey> {
        self.sessions.keys()
    }

    /// When the first of those who are missing is dead.
    pub(super) fn deadline(&self) -> Option<Time> {
        self.missing.values().map(|missing| missing.until).min()
    }

    /// Takes an agent for dead if it has no session by then.
    pub(super) fn await_until(&mut self, agent: AgentKey, until: Time) {
        self.missing.insert(agent, Missing { until, from: None });
    }

    /// Those who have not come back in time; they are not waited for any more.
    fn take_dead(&mut self, now: Time) -> Vec<AgentKey> {
        self.missing.extract_if(.., |_, missing| missing.until <= now).map(|(agent, _)| agent).collect()
    }

    /// Ends earlier sessions of an agent's name. Another run of the agent is told so.
    fn supersede(&mut self, agent: &AgentKey) {
        self.missing.retain(|key, _| key.name != agent.name);
        self.sessions.retain(|key, session| {
            if key.name != agent.name {
                return true;
            }
            if key.incarnation != agent.incarnation {
                let refusal = convert::not_member(&NotMember::Superseded(agent.name.clone()));
                // It is told by its next message where there is no room for this one.
                let _ = session.outbox.try_send(Err(refusal.into()));
            }
            false
        });
    }

    /// Gives an agent a session; gives its number.
    fn seat(&mut self, now: Time, agent: AgentKey, from: IpAddr, outbox: Outbox) -> u64 {
        self.last_number += 1;
        self.lost.remove(&agent.name);
        let (number, heard_at) = (self.last_number, now);
        self.sessions.insert(agent, Session { number, outbox, from, heard_at });
        self.last_number
    }

    /// Ends a session without a farewell: the agent may come back. Gives whether there was one of this number.
    fn lose(&mut self, agent: &AgentKey, number: u64, now: Time) -> bool {
        let is_there = self.number_of(agent) == Some(number);
        if is_there && let Some(session) = self.sessions.remove(agent) {
            let missing = Missing { until: now + self.reconnect, from: Some(session.from) };
            self.missing.insert(agent.clone(), missing);
        }
        is_there
    }
}

/// An agent's place in the core; gone when dropped.
#[derive(Debug)]
pub(crate) struct Seat {
    core: Arc<Core>,
    agent: AgentKey,
    number: u64,
}

impl Core {
    /// Lets an agent in whose connection comes from there, if that can be; its answers go to `outbox` from then on, the first
    /// is `joined`.
    pub(crate) fn join(
        self: &Arc<Self>,
        join: Join,
        from: IpAddr,
        outbox: Outbox,
        joined: Message,
    ) -> Result<Seat, Refusal> {
        let agent = join.agent.clone();
        let number = self.with(|inner| inner.join(join, from, outbox, joined))?;
        self.changed.notify_one();
        Ok(Seat { core: Arc::clone(self), agent, number })
    }
}

impl Seat {
    /// Does what a message says. A message that makes no sense ends the session.
    pub(crate) fn handle(&self, message: Said) -> Result<(), Refusal> {
        let came_at = Instant::now();
        self.core.with(|inner| {
            if inner.seats.number_of(&self.agent) != Some(self.number) {
                // One that was superseded has been told so; a session that is only gone begins again.
                return Err(convert::not_member(&NotMember::Unknown(self.agent.name.clone())));
            }
            inner.note_heard(&self.agent);
            inner.take_in(&self.agent, message, came_at)
        })
    }

    /// Waits until the manager ends.
    pub(crate) async fn stopped(&self) {
        self.core.stopped().await;
    }
}

impl Drop for Seat {
    // Only the session ends here, which can be done at any time. Nothing of it is written, and the machine hears of the
    // agent when it has not come back.
    fn drop(&mut self) {
        let mut inner = self.core.lock();
        let now = inner.now();
        if inner.seats.lose(&self.agent, self.number, now) {
            tracing::info!(agent = %self.agent.name, "its session has ended");
            self.core.changed.notify_one();
        }
    }
}

impl Inner {
    fn note_heard(&mut self, agent: &AgentKey) {
        let now = self.now();
        if let Some(session) = self.seats.sessions.get_mut(agent) {
            session.heard_at = now;
        }
    }

    /// Lets an agent in; gives the number of its session.
    fn join(&mut self, join: Join, from: IpAddr, outbox: Outbox, joined: Message) -> Result<u64, Refusal> {
        if self.stopped {
            return Err(Refusal::new(Kind::ManagerUnreachable, "the manager is shutting down"));
        }
        let agent = join.agent.clone();
        let now = self.now();
        let known =
            self.machine.members().find(|(name, _)| *name == agent.name).map(|(_, member)| member.address);
        if let Err(refusal) = self.seats.admit(now, &agent, from, known) {
            tracing::warn!(agent = %agent.name, %from, %refusal, "turned down");
            self.note_refused_join(&agent, from, &refusal);
            return Err(refusal);
        }
        self.machine.handle(now, Input::Join(join));
        let outputs: Vec<Output> = std::iter::from_fn(|| self.machine.poll(now)).collect();
        let (answer, others): (Vec<_>, Vec<_>) =
            outputs.into_iter().partition(|output| matches!(output, Output::Join { .. }));
        answer.into_iter().for_each(|output| self.obey(output));
        let Some(Answer::Join(answer)) = self.answer.take() else {
            unreachable!("every join is answered at once")
        };
        // It has its session before anything else is done: among the rest are words for it, of paths that it has named.
        let seat = answer.map(|()| {
            self.seats.supersede(&agent);
            // It is empty: there is room.
            let _ = outbox.try_send(Ok(ManagerMessage { message: Some(joined) }));
            self.seats.seat(now, agent.clone(), from, outbox)
        });
        if seat.is_ok() {
            // Before the end of an earlier run of it is known: what that had, this one may be about to say.
            self.directory.handle(now, DirectoryInput::Arrived { agent: agent.clone() });
        }
        others.into_iter().for_each(|output| self.obey(output));
        self.drain();
        let number = seat.map_err(|refusal| {
            tracing::warn!(agent = %agent.name, %refusal, "turned down");
            let refusal = convert::join_refusal(&refusal);
            self.note_refused_join(&agent, from, &refusal);
            refusal
        })?;
        tracing::info!(agent = %agent.name, "joined");
        self.guard.note("join", || json!({ "agent": agent.name, "from": from }));
        self.stream(StreamsInput::Arrived { agent });
        Ok(number)
    }

    fn note_refused_join(&self, agent: &AgentKey, from: IpAddr, refusal: &Refusal) {
        self.guard
            .note("join-refused", || json!({ "agent": agent.name, "from": from, "reason": refusal.message }));
    }

    /// Does what an agent's message says.
    fn take_in(&mut self, agent: &AgentKey, message: Said, came_at: Instant) -> Result<(), Refusal> {
        let key = agent.clone();
        match message {
            Said::Join(_) => return Err(Refusal::new(Kind::Invalid, "the agent has joined already")),
            Said::Heartbeat(beat) => {
                self.heartbeat(agent, beat.number, convert::plan_ids(beat.leases)?)?;
            }
            Said::Leave(_) => {
                self.apply(Input::Leave { agent: key });
                self.seats.sessions.remove(agent);
            }
            Said::Request(request) => self.request(agent, request, came_at),
            Said::Withdraw(withdraw) => {
                self.apply(Input::Withdraw { request: agent.request(withdraw.request_id) });
            }
            Said::Extend(extend) => self.extend(agent, extend),
            Said::Release(release) => {
                let (request, plan) = (agent.request(release.request_id), PlanId(release.response_id));
                let api::Release { unreached, reached_all, took_us, .. } = release;
                if reached_all || !unreached.is_empty() || took_us.is_some() {
                    let took = took_us.map(|micros| Duration::from_nanos(micros.saturating_mul(1_000)));
                    let request = request.clone();
                    self.apply(Input::Fared { request, plan, unreached, reached_all, took });
                }
                self.apply(Input::Release { request, plan });
                self.keep_standing();
            }
            Said::CreateStream(create) => self.create_stream(agent, create),
            Said::EndStream(end) => self.stream(StreamsInput::End { agent: key, name: end.name }),
            Said::JoinStream(join) => self.join_stream(agent, join.name, join.ask),
            Said::StreamAt(at) => {
                let api::StreamAt { name, receiver, ask, next } = at;
                self.stream(StreamsInput::At { agent: key, name, receiver, ask, next });
            }
            Said::LeaveStream(leave) => self.stream(StreamsInput::Leave { agent: key, name: leave.name }),
            Said::Remove(remove) => self.pass_on_removal(agent, remove)?,
            Said::Removed(removed) => self.pass_back_removal(agent, removed),
            Said::AskPermit(ask) => self.permit(agent, ask),
            Said::Directory(word) => self.hear_word(agent, word)?,
        }
        Ok(())
    }

    fn request(&mut self, agent: &AgentKey, mut request: api::PathRequest, came_at: Instant) {
        let (id, name) = (request.request_id, std::mem::take(&mut request.name));
        match convert::path_request(agent.clone(), request) {
            Ok(request) => {
                self.set_ups.asked = Some((agent.request(id), came_at));
                self.begin_request(request, &name);
                self.set_ups.asked = None;
            }
            Err(refusal) => self.tell(agent, Message::Denied(convert::denied(id, &refusal))),
        }
    }

    fn extend(&mut self, agent: &AgentKey, extend: api::Extend) {
        let id = extend.request_id;
        match convert::extend(agent, extend) {
            Ok(input) => self.apply(input),
            Err(refusal) => {
                let denied = Some(convert::denied(id, &refusal));
                self.tell(agent, Message::Extended(api::Extended { request_id: id, granted: None, denied }));
            }
        }
    }

    fn heartbeat(&mut self, agent: &AgentKey, number: u64, leases: Vec<PlanId>) -> Result<(), Refusal> {
        self.apply(Input::Heartbeat { agent: agent.clone(), leases });
        let Some(Answer::Heartbeat(answer)) = self.answer.take() else {
            unreachable!("every heartbeat is answered at once")
        };
        let lost = answer.map_err(|error| convert::not_member(&error))?;
        let lost_leases = lost.into_iter().map(|id| id.0).collect();
        self.tell(agent, Message::Heartbeat(api::HeartbeatAnswer { number, lost_leases }));
        Ok(())
    }

    /// Agents that have not come back are dead.
    pub(super) fn bury(&mut self) {
        for agent in self.seats.take_dead(self.now()) {
            tracing::warn!(agent = %agent.name, "has not come back");
            let heard_at = self.machine.members().find(|(name, _)| *name == agent.name);
            let heard_at = heard_at.map_or(self.now(), |(_, member)| member.heard_at);
            self.seats.remember_lost(&agent.name, heard_at);
            self.apply(Input::Died { agent });
        }
    }

    /// Puts a message into the queue of an agent's session, if it still is the one that is meant.
    pub(super) fn post(&mut self, agent: &AgentKey, number: Option<u64>, message: ManagerMessage) {
        let Some(session) = self.seats.sessions.get(agent) else { return };
        let of_session = session.number;
        if number.is_some_and(|number| number != of_session) {
            return;
        }
        if let Err(mpsc::error::TrySendError::Full(_)) = session.outbox.try_send(Ok(message)) {
            tracing::warn!(agent = %agent.name, "it does not read its answers: its session ends");
            let now = self.now();
            self.seats.lose(agent, of_session, now);
        }
    }
}
