//! Permissions: requests are judged by the policy when they come, and the path of each transfer gets a
//! permit, which the source shows to its receivers.

use super::Inner;
use super::obey::{Message, some_of};
use crate::convert;
use crate::guard::Refused;
use crate::policy::{Ban, Policy, Usage};
use polycast_api::error::{Kind, Refusal};
use polycast_api::manager as api;
use polycast_net::permit::Group;
use polycast_planning::{Channel, Plan, PlanId};
use polycast_protocol::leases::{AgentKey, Input, LeaseView, PathRequest, Receivers, RequestKey};
use polycast_protocol::stream::StreamsInput;
use polycast_types::Handle;
use polycast_wire::control::NOWHERE;
use polycast_wire::permit::{HASH_LEN, Permit};
use serde_json::json;
use std::collections::BTreeMap;
use std::net::IpAddr;

/// The names of objects on paths that have a permit: a lease does not know its object's.
#[derive(Debug, Default)]
pub(super) struct Permitted(BTreeMap<PlanId, String>);

impl Permitted {
    /// A path has gone back.
    pub(super) fn forget(&mut self, plan: PlanId) {
        self.0.remove(&plan);
    }
}

impl From<Ban> for Refusal {
    fn from(ban: Ban) -> Self {
        Refusal::new(Kind::NotAllowed, ban.to_string())
    }
}

fn left_out(name: &str, ban: &Ban) -> api::LeftOut {
    api::LeftOut { name: name.to_string(), reason: ban.to_string() }
}

/// The multicast group of a plan's data channel; zeros where it has none.
fn group_of(plan: &Plan) -> (IpAddr, u16) {
    match plan.channel {
        Channel::Multicast { group, .. } | Channel::Label { group, .. } => group,
        Channel::Chain { .. } | Channel::SourceRoutes { .. } => NOWHERE,
    }
}

/// The rate of a path that is lent to one source alone.
fn rate_of(plan: &Plan) -> u64 {
    match &plan.channel {
        Channel::Multicast { rate, .. } | Channel::Label { rate, .. } => rate.map_or(0, |rate| rate.0),
        Channel::Chain { .. } | Channel::SourceRoutes { .. } => 0,
    }
}

/// Judges a member of a stream by those whom it would hear; to those of a `shared` one it sends, too.
fn judge_member<'a>(
    policy: &Policy,
    (stream, shared): (&str, bool),
    member: &str,
    others: impl IntoIterator<Item = &'a String>,
) -> Result<(), Ban> {
    for other in others.into_iter().filter(|other| *other != member) {
        policy.send(other, stream, member)?;
        if shared {
            policy.send(member, stream, other)?;
        }
    }
    Ok(())
}

/// The bytes of a request that quotas count: how many a group will carry is not known.
fn bytes_of(key: &RequestKey, bytes: u64) -> u64 {
    if key.is_group() { 0 } else { bytes }
}

impl Inner {
    /// Returns the current usage of an agent.
    fn usage(&self, agent: &AgentKey) -> Usage {
        let mut usage = Usage::default();
        for lease in self.machine.leases().filter(|lease| lease.key.agent.name == agent.name) {
            usage.rate_bps = usage.rate_bps.saturating_add(rate_of(&lease.grant.plan));
            if !lease.key.is_stream() {
                usage.transfers += 1;
                usage.bytes = usage.bytes.saturating_add(bytes_of(lease.key, lease.grant.accepted_bytes));
            }
        }
        let waits = |key: &&AgentKey| key.name == agent.name;
        for pending in self.machine.pending().filter(|pending| waits(&&pending.key.agent)) {
            if !pending.key.is_stream() {
                usage.transfers += 1;
                usage.bytes = usage.bytes.saturating_add(bytes_of(pending.key, pending.bytes));
            }
        }
        usage
    }

    /// Checks that the policy allows a request. In a request for all, receivers that may not have the object
    /// are left out of the permit; here at least one has to be left.
    pub(super) fn judge_request(&self, request: &PathRequest, name: &str) -> Result<(), Refusal> {
        let (policy, source) = (self.guard.policy(), &request.agent.name);
        match &request.receivers {
            Receivers::Named(names) => {
                for source in request.further_sources.iter().chain([source]) {
                    let others = names.iter().filter(|receiver| *receiver != source);
                    others.clone().try_for_each(|receiver| policy.send(source, name, receiver))?;
                }
            }
            Receivers::All => {
                let others =
                    self.machine.members().map(|(member, _)| member).filter(|member| member != source);
                let judged: Vec<_> = others.map(|member| policy.send(source, name, member)).collect();
                if judged.iter().all(Result::is_err)
                    && let Some(Err(ban)) = judged.into_iter().next()
                {
                    return Err(ban.into());
                }
            }
        }
        let key = request.agent.request(request.request);
        let is_known = self.machine.leases().any(|lease| *lease.key == key)
            || self.machine.pending().any(|pending| *pending.key == key);
        // One that is said again has been allowed already.
        if !is_known {
            let bytes = bytes_of(&key, request.remaining_bytes);
            policy.begin(source, self.usage(&request.agent), bytes)?;
        }
        Ok(())
    }

    /// Checks that the policy lets an agent receive a stream; in a shared one, that it and all others may
    /// send to each other. A stream without a source is refused elsewhere.
    pub(super) fn judge_listener(&self, agent: &AgentKey, stream: &str) -> Result<(), Refusal> {
        let Some(view) = self.streams.streams().find(|view| view.name == stream) else { return Ok(()) };
        // Receivers of a stream of one source hear that alone.
        let members = view.receivers.iter().filter(|_| view.shared);
        let others = members.chain([&view.source]);
        Ok(judge_member(&self.guard.policy(), (stream, view.shared), &agent.name, others)?)
    }

    /// Judges the agents that asked to hear a stream before it was there, as it comes: its source was not
    /// known then.
    pub(super) fn judge_waiting(&mut self, stream: &str, source: &str, shared: bool) {
        let policy = self.guard.policy();
        let mut heard = vec![source.to_string()];
        let waiting: Vec<AgentKey> = self.streams.waiting(stream).cloned().collect();
        for agent in waiting {
            match judge_member(&policy, (stream, shared), &agent.name, heard.iter()) {
                Ok(()) if shared => heard.push(agent.name),
                Ok(()) => {}
                Err(ban) => {
                    self.stream(StreamsInput::Leave { agent: agent.clone(), name: stream.to_string() });
                    self.refuse_listener(&agent, stream, &ban.into());
                }
            }
        }
    }

    fn refuse_listener(&mut self, agent: &AgentKey, stream: &str, refusal: &Refusal) {
        let news = Some(api::stream_news::News::Refused(convert::denied(0, refusal)));
        self.tell(agent, Message::Stream(api::StreamNews { name: stream.to_string(), news }));
    }

    /// An agent asks to hear a stream.
    pub(super) fn join_stream(&mut self, agent: &AgentKey, join: api::JoinStream) {
        let api::JoinStream { name, ask, sends } = join;
        match self.judge_listener(agent, &name) {
            Ok(()) => {
                let sends = sends.map(Handle);
                self.stream(StreamsInput::Join { agent: agent.clone(), name, ask, sends });
            }
            Err(refusal) => self.refuse_listener(agent, &name, &refusal),
        }
    }

    /// Gives an agent the permit of a path that it holds, or says why there is none.
    pub(super) fn permit(&mut self, agent: &AgentKey, ask: api::AskPermit) {
        let response_id = ask.response_id;
        let permitted = self.permitted(agent, ask).unwrap_or_else(|refusal| {
            self.guard.refuse(
                Refused::Permit,
                json!({ "lease": response_id, "source": agent.name, "reason": refusal.message }),
            );
            let denied = Some(convert::denied(0, &refusal));
            api::Permitted { response_id, denied, ..Default::default() }
        });
        self.tell(agent, Message::Permitted(permitted));
    }

    fn permitted(&mut self, agent: &AgentKey, ask: api::AskPermit) -> Result<api::Permitted, Refusal> {
        let api::AskPermit { response_id, name, data_size, root } = ask;
        let guard = self.guard.clone();
        let Some(signer) = guard.signer() else {
            return Err(Refusal::new(
                Kind::Invalid,
                "this manager gives no permits: its agents do not show who they are",
            ));
        };
        let root = root_of(&root)?;
        convert::check_name(&name)?;
        let is_meant = |lease: &LeaseView<'_>| {
            lease.grant.plan_id.0 == response_id && lease.key.agent == *agent && !lease.key.is_stream()
        };
        let Some(lease) = self.machine.leases().find(is_meant) else {
            let message = format!("the path {response_id} is not lent to '{}'", agent.name);
            return Err(Refusal::new(Kind::RequestUnknown, message));
        };
        let address = self.address_of(agent)?;
        let policy = guard.policy();
        policy.rate(&agent.name, self.usage(agent).rate_bps)?;
        let (mut allowed, mut out) = (Vec::new(), Vec::new());
        for receiver in lease.grant.receiver_names() {
            match policy.send(&agent.name, &name, receiver) {
                Ok(()) => allowed.push(receiver.clone()),
                Err(ban) => out.push((left_out(receiver, &ban), ban)),
            }
        }
        let group = Group::new(allowed);
        if group.is_empty()
            && let Some((_, ban)) = out.pop()
        {
            return Err(ban.into());
        }
        let now_s = self.around_s();
        let plan = &lease.grant.plan;
        let signed = signer.sign(&Permit {
            lease: response_id,
            source: &agent.name,
            address,
            object: lease.object,
            object_len: data_size,
            root,
            name: &name,
            fabric: &plan.fabric.to_string(),
            channel: group_of(plan),
            pulled: matches!(plan.channel, Channel::SourceRoutes { .. }),
            receivers: u32::try_from(group.len()).unwrap_or(u32::MAX),
            group: group.hash(),
            from_unix_s: now_s,
            until_unix_s: now_s.saturating_add(guard.permit_s()),
        });
        guard.note("permit", || {
            json!({
                "lease": response_id, "source": agent.name, "object": lease.object.to_string(), "name": name,
                "bytes": data_size, "fabric": plan.fabric.to_string(), "until_unix_s": now_s.saturating_add(guard.permit_s()),
                "receivers": some_of(lease.grant.receiver_names()), "receivers_count": group.len(),
                "left_out": out.iter().map(|(left_out, _)| &left_out.name).take(16).collect::<Vec<_>>(),
            })
        });
        self.permits.0.insert(PlanId(response_id), name);
        Ok(api::Permitted {
            response_id,
            permit: signed.bytes,
            signature: signed.signature.to_vec(),
            left_out: out.into_iter().map(|(left_out, _)| left_out).collect(),
            denied: None,
        })
    }

    /// Checks that the policy allows what a group would become: each source has to be allowed to send to each
    /// member. No transfer of ours brings the packets, which would leave a host out.
    pub(super) fn judge_change(&self, input: &Input) -> Result<(), Refusal> {
        let Input::Extend { request, add, remove, sources, .. } = input else { return Ok(()) };
        if !request.is_group() || add.is_empty() && sources.is_empty() {
            return Ok(());
        }
        let Some(lease) = self.machine.leases().find(|lease| lease.key == request) else { return Ok(()) };
        let Some(name) = self.permits.0.get(&lease.grant.plan_id) else { return Ok(()) };
        let (policy, stays) = (self.guard.policy(), |name: &&String| !remove.contains(name));
        let all_sources = lease.grant.further_sources.iter().filter(stays).chain(sources);
        let members: Vec<&String> = lease.grant.receiver_names().filter(stays).chain(add).collect();
        for source in all_sources.chain([&lease.key.agent.name]) {
            let mut others = members.iter().filter(|member| **member != source);
            others.try_for_each(|member| policy.send(source, name, member))?;
        }
        Ok(())
    }

    /// Returns the address of an agent.
    fn address_of(&self, agent: &AgentKey) -> Result<IpAddr, Refusal> {
        let member = self.machine.members().find(|(member, _)| *member == agent.name);
        let unknown = || Refusal::new(Kind::NotJoined, format!("the manager does not know '{}'", agent.name));
        member.map(|(_, member)| member.address.0).ok_or_else(unknown)
    }

    /// The time of day in seconds.
    fn around_s(&self) -> u64 {
        self.around.wall_ns() / 1_000_000_000
    }

    /// Goes by a new policy: takes receivers out of transfers that it does not allow any more.
    pub(super) fn enforce(&mut self) {
        let policy = self.guard.policy();
        let mut bans = Vec::new();
        for lease in self.machine.leases() {
            let Some(name) = self.permits.0.get(&lease.grant.plan_id) else { continue };
            let source = &lease.key.agent.name;
            let judge = |receiver: &String| {
                let sources = lease.grant.further_sources.iter().chain([source]);
                let mut others = sources.filter(|source| *source != receiver);
                others.try_for_each(|source| policy.send(source, name, receiver))
            };
            let judged = lease.grant.receiver_names().map(|receiver| (receiver, judge(receiver)));
            let out = judged.filter_map(|(receiver, judged)| Some(left_out(receiver, &judged.err()?)));
            let receivers: Vec<_> = out.collect();
            if !receivers.is_empty() {
                let response_id = lease.grant.plan_id.0;
                bans.push((lease.key.agent.clone(), api::Banned { response_id, receivers }));
            }
        }
        for (agent, banned) in bans {
            tracing::warn!(source = %agent.name, response = banned.response_id, receivers = banned.receivers.len(),
                "the policy does not allow a transfer any more");
            self.guard.note("banned", || {
                let names = banned.receivers.iter().map(|left_out| &left_out.name);
                json!({
                    "lease": banned.response_id, "source": agent.name, "receivers": some_of(names),
                    "receivers_count": banned.receivers.len(),
                })
            });
            self.tell(&agent, Message::Banned(banned));
        }
        let heard: Vec<_> = self.streams.streams().collect();
        for stream in heard {
            // By the source first: it stays, and others have to go.
            let mut stays = vec![stream.source.clone()];
            let kind = (stream.name.as_str(), stream.shared);
            let (heard, out): (Vec<_>, Vec<_>) = stream
                .receivers
                .iter()
                .partition(|receiver| judge_member(&policy, kind, receiver, [&stream.source]).is_ok());
            out.into_iter().for_each(|receiver| self.ban_listener(&stream.name, receiver));
            for receiver in heard.into_iter().filter(|_| stream.shared) {
                match judge_member(&policy, kind, receiver, stays.iter()) {
                    Ok(()) => stays.push(receiver.clone()),
                    Err(_) => self.ban_listener(&stream.name, receiver),
                }
            }
        }
    }

    fn ban_listener(&mut self, stream: &str, receiver: &str) {
        let Some(agent) = self.seats.present().find(|key| key.name == receiver).cloned() else { return };
        tracing::warn!(stream, receiver, "the policy does not let it hear a stream any more");
        self.stream(StreamsInput::Leave { agent: agent.clone(), name: stream.to_string() });
        // It is told why it is out.
        self.join_stream(&agent, api::JoinStream { name: stream.to_string(), ..Default::default() });
    }

    /// Hands a request to the machine, where the policy allows it.
    pub(super) fn begin_request(&mut self, request: PathRequest, name: &str) {
        match self.judge_request(&request, name) {
            Ok(()) => self.apply(Input::Request(request)),
            Err(refusal) => {
                self.guard.refuse(
                    Refused::Request,
                    json!({
                        "source": request.agent.name, "request": request.request, "object": request.object.to_string(),
                        "name": name, "reason": refusal.message,
                    }),
                );
                self.tell(&request.agent, Message::Denied(convert::denied(request.request, &refusal)));
            }
        }
    }
}

/// A root hash as an agent says it; empty: it is not known.
fn root_of(bytes: &[u8]) -> Result<Option<[u8; HASH_LEN]>, Refusal> {
    if bytes.is_empty() {
        return Ok(None);
    }
    let wrong = |_| Refusal::new(Kind::Invalid, format!("a root hash of {} bytes is none", bytes.len()));
    bytes.try_into().map(Some).map_err(wrong)
}
