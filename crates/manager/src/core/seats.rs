//! The agents' places at the manager: what their sessions say goes to the machines, and answers go to their
//! queues. Which agents there are, and which may come back, the machine of leases knows.

use super::obey::{Answer, Message};
use super::{Core, Inner};
use crate::convert;
use crate::guard::Refused;
use polycast_api::error::{Kind, Refusal};
use polycast_api::manager::agent_message::Message as Said;
use polycast_api::manager::{self as api, ManagerMessage};
use polycast_planning::PlanId;
use polycast_protocol::directory::DirectoryInput;
use polycast_protocol::leases::{AgentKey, Going, Input, Join, NotMember, Output};
use polycast_protocol::stream::StreamsInput;
use polycast_types::Duration;
use serde_json::json;
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Instant;
use tokio::sync::mpsc;
use tonic::Status;

/// Messages on their way to an agent.
pub(super) type Outbox = mpsc::Sender<Result<ManagerMessage, Status>>;

/// Queues for answers to agents, one for each session that the machine knows.
#[derive(Debug, Default)]
pub(super) struct Seats(BTreeMap<AgentKey, Chair>);

/// A session: its number, its queue, and what its agent has last said of its host.
#[derive(Debug)]
struct Chair {
    number: u64,
    outbox: Outbox,
    node: Option<api::NodeReport>,
}

/// Letters of a program's version that are kept, and of the names of a rack and a zone.
const WORD_MAX: usize = 64;
/// Groups that one agent's account may name, members of each, and bytes of what it says of one.
const GROUPS_MAX: usize = 256;
const MEMBERS_MAX: usize = 256;
const GROUP_WORD_MAX: usize = 1_024;

/// Returns true if an agent's word about a group is no longer than any has to be.
fn is_bounded(group: &api::GroupReport) -> bool {
    let words = [&group.name, &group.fabric, &group.address, &group.trouble];
    let mut words = words.into_iter().chain(&group.members);
    group.members.len() <= MEMBERS_MAX && words.all(|word| word.len() <= GROUP_WORD_MAX)
}

impl Seats {
    /// Says to all agents why their sessions end.
    pub(super) fn tell_all(&self, why: &Refusal) {
        for chair in self.0.values() {
            // It finds its session ended where there is no room for this.
            let _ = chair.outbox.try_send(Err(why.clone().into()));
        }
    }

    /// Ends all sessions.
    pub(super) fn clear(&mut self) {
        self.0.clear();
    }

    /// All who have a session.
    pub(super) fn present(&self) -> impl Iterator<Item = &AgentKey> {
        self.0.keys()
    }

    /// The number of an agent's session, if it has one.
    pub(super) fn number_of(&self, agent: &AgentKey) -> Option<u64> {
        self.0.get(agent).map(|chair| chair.number)
    }

    /// Last accounts of the agents of their hosts.
    pub(super) fn nodes(&self) -> BTreeMap<String, api::NodeReport> {
        let said = |(agent, chair): (&AgentKey, &Chair)| Some((agent.name.clone(), chair.node.clone()?));
        self.0.iter().filter_map(said).collect()
    }

    fn note(&mut self, agent: &AgentKey, mut node: api::NodeReport) {
        let words = [&mut node.version, &mut node.rack, &mut node.zone];
        words.into_iter().filter(|word| word.len() > WORD_MAX).for_each(String::clear);
        node.groups.retain(is_bounded);
        node.groups.truncate(GROUPS_MAX);
        if let Some(chair) = self.0.get_mut(agent) {
            chair.node = Some(node);
        }
    }

    /// Ends the session of a run that has ended, and tells it so: another run may have its place, or it comes
    /// again when it lives.
    fn close(&mut self, agent: &AgentKey, how: Going) {
        let Some(Chair { outbox, .. }) = self.0.remove(agent) else { return };
        let name = agent.name.clone();
        let why = match how {
            Going::Left => return,
            Going::Restarted => NotMember::Superseded(name),
            Going::Died | Going::Silent => NotMember::Unknown(name),
        };
        // It finds its session ended where there is no room for this.
        let _ = outbox.try_send(Err(convert::not_member(&why).into()));
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
    /// Lets an agent in, if that can be; its answers go to `outbox` from then on, the first is `joined`.
    pub(crate) fn join(
        self: &Arc<Self>,
        join: Join,
        outbox: Outbox,
        joined: Message,
    ) -> Result<Seat, Refusal> {
        let agent = join.agent.clone();
        let number = self.with(|inner| inner.join(join, outbox, joined))?;
        self.changed.notify_one();
        Ok(Seat { core: Arc::clone(self), agent, number })
    }
}

impl Seat {
    /// Takes note of what its agent says of its host.
    pub(crate) fn note(&self, node: api::NodeReport) {
        self.core.with(|inner| inner.seats.note(&self.agent, node));
    }

    /// Does what a message says. A message that makes no sense ends the session.
    pub(crate) fn handle(&self, message: Said) -> Result<(), Refusal> {
        let came_at = Instant::now();
        self.core.with(|inner| {
            let now = inner.now();
            // One that was superseded has been told so; a session that is only gone begins again.
            let heard = inner.machine.hear(now, &self.agent, self.number);
            heard.map_err(|why| convert::not_member(&why))?;
            inner.take_in(&self.agent, message, came_at)
        })
    }

    /// Waits until the manager ends.
    pub(crate) async fn stopped(&self) {
        self.core.stopped().await;
    }
}

impl Drop for Seat {
    // Only the session ends here, which can be done at any time. Nothing of it is written, and the machine
    // hears of the agent when it has not come back.
    fn drop(&mut self) {
        let mut inner = self.core.lock();
        if inner.part(&self.agent, self.number) {
            tracing::info!(agent = %self.agent.name, "its session has ended");
            self.core.changed.notify_one();
        }
    }
}

impl Inner {
    /// Ends a session without a farewell; gives whether there was one of this number.
    fn part(&mut self, agent: &AgentKey, session: u64) -> bool {
        let is_there = self.seats.number_of(agent) == Some(session);
        if is_there {
            self.seats.0.remove(agent);
            let now = self.now();
            self.machine.handle(now, Input::Parted { agent: agent.clone(), session });
        }
        is_there
    }

    /// A run of an agent has ended, and so does all that depends on it here.
    pub(super) fn bury(&mut self, agent: AgentKey, how: Going) {
        match how {
            Going::Left | Going::Restarted => tracing::info!(agent = %agent.name, ?how, "gone"),
            Going::Died => tracing::warn!(agent = %agent.name, "has not come back"),
            Going::Silent => tracing::warn!(agent = %agent.name, "has been silent for too long"),
        }
        self.guard.note("gone", || json!({ "agent": agent.name, "how": format!("{how:?}") }));
        self.seats.close(&agent, how);
        self.forget_secrets_of(&agent);
        self.forget_objects_of(agent);
    }

    /// Lets an agent in; gives the number of its session.
    fn join(&mut self, join: Join, outbox: Outbox, joined: Message) -> Result<u64, Refusal> {
        if self.stopped {
            return Err(Refusal::new(Kind::ManagerUnreachable, "the manager is shutting down"));
        }
        let (agent, from, now) = (join.agent.clone(), join.from, self.now());
        self.machine.handle(now, Input::Join(join));
        let outputs: Vec<Output> = std::iter::from_fn(|| self.machine.poll(now)).collect();
        let (answer, others): (Vec<_>, Vec<_>) =
            outputs.into_iter().partition(|output| matches!(output, Output::Join { .. }));
        answer.into_iter().for_each(|output| self.obey(output));
        let Some(Answer::Join(answer)) = self.answer.take() else {
            unreachable!("every join is answered at once")
        };
        // It has its session before anything else is done: among the rest are words for it, of paths that it
        // has named.
        let seat = answer.inspect(|number| {
            // It is empty: there is room.
            let _ = outbox.try_send(Ok(ManagerMessage { message: Some(joined) }));
            // An earlier session of the same run ends with its queue.
            self.seats.0.insert(agent.clone(), Chair { number: *number, outbox, node: None });
        });
        if seat.is_ok() {
            // Before the end of an earlier run of it is known: what that had, this one may be about to say.
            self.directory.handle(now, DirectoryInput::Arrived { agent: agent.clone() });
        }
        others.into_iter().for_each(|output| self.obey(output));
        self.drain();
        let number = seat.map_err(|refusal| {
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
        let fields = json!({ "agent": agent.name, "from": from, "reason": refusal.message });
        self.guard.refuse(Refused::Join, fields);
    }

    /// Does what an agent's message says.
    fn take_in(&mut self, agent: &AgentKey, message: Said, came_at: Instant) -> Result<(), Refusal> {
        let key = agent.clone();
        match message {
            Said::Join(_) => return Err(Refusal::new(Kind::Invalid, "the agent has joined already")),
            Said::Heartbeat(beat) => {
                if let Some(node) = beat.node {
                    self.seats.note(agent, node);
                }
                self.heartbeat(agent, beat.number, convert::plan_ids(beat.leases)?)?;
            }
            Said::Leave(leave) => self.apply(Input::Leave { agent: key, keeps: leave.keeps }),
            Said::Request(request) => self.request(agent, request, came_at),
            Said::Withdraw(withdraw) => {
                self.apply(Input::Withdraw { request: agent.request(withdraw.request_id) });
            }
            Said::Extend(extend) => self.extend(agent, extend),
            Said::Release(release) => {
                let (request, plan) = (agent.request(release.request_id), PlanId(release.response_id));
                let api::Release { unreached, reached_all, took_us, unreachable, reachable, .. } = release;
                if !unreachable.is_empty() || !reachable.is_empty() {
                    self.apply(Input::Reached { agent: key, unreachable, reachable });
                }
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
            Said::JoinStream(join) => self.join_stream(agent, join),
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
        let checked = convert::check_name(&name);
        match checked.and_then(|()| convert::path_request(agent.clone(), request)) {
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
        let judged = convert::extend(agent, extend).and_then(|input| {
            self.judge_change(&input)?;
            Ok(input)
        });
        match judged {
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

    /// Puts a message into the queue of an agent's session, if it still is the one that is meant.
    pub(super) fn post(&mut self, agent: &AgentKey, number: Option<u64>, message: ManagerMessage) {
        let Some(Chair { number: of_session, outbox, .. }) = self.seats.0.get(agent) else { return };
        let of_session = *of_session;
        if number.is_some_and(|number| number != of_session) {
            return;
        }
        if let Err(mpsc::error::TrySendError::Full(_)) = outbox.try_send(Ok(message)) {
            tracing::warn!(agent = %agent.name, "it does not read its answers: its session ends");
            self.part(agent, of_session);
        }
    }
}
