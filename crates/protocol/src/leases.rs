//! The manager's core: which agents are there, which ask for a path, and which hold one (Republic section
//! III-B, Table II).
//!
//! [`Leases`] is the whole state of a manager as one machine. Agents join, and say by heartbeats that they
//! live. A source's agent asks for a path; the scheduler decides about all requests that wait whenever
//! something has changed; what it grants is a lease. A lease ends when its holder releases it, leaves or
//! restarts, or when no heartbeat has named it for too long: what a dead agent held comes back by itself.
//!
//! Applications talk to it as in Blast, section IV-A: a request that can never be served is denied at once;
//! one that waits learns its place, gets its answer later, and can be changed (time, members) or withdrawn at
//! any time. Every decision looks at all requests that wait.
//!
//! A manager that restarts without records knows nothing. Agents join it again and name the leases that they
//! use, and it takes them over, so that no path is lent a second time while a transfer uses it. One that
//! knows what was lent takes over nothing that it does not know, however it is named.

mod advice;
mod changes;
mod check;
mod claims;
mod early;
mod external;
mod gone;
mod hosts;
mod members;
mod parts;
mod places;
mod set_up;
mod state;
mod words;

pub use advice::{Advice, AskedLease, AskedRequest, NoAdvice, Question};
pub use external::{Asked, ExternalConfig};
pub use members::{Member, Presence, SessionsConfig, Unreachable};
pub use state::{Record, RecordKey, SetAside, host_numbers};
pub use words::{
    AgentKey, Denial, Drained, GROUPS_FROM, Going, Grant, HeldLease, Input, Join, JoinRefusal, LeaseView,
    NotMember, Output, PathRequest, PathState, PendingView, Receivers, ReleaseReason, RequestKey,
    STREAMS_FROM, Suspect, Wait,
};

use alloc::collections::{BTreeMap, BTreeSet, VecDeque};
use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use changes::{GroupChange, several_sources};
use core::net::IpAddr;
use members::{Arrival, Members};
use polycast_planning::estimate::Estimate;
use polycast_planning::{
    Channel, Decision, Draft, FabricName, Fabrics, Group, HostId, NetworkState, Passed, PassedOver,
    PassedWhy, Pending, Plan, PlanId, Refusal, RequestId, Scheduler, Wish,
};
use polycast_types::{Duration, ObjectId, Time};

/// Limits and times of a manager.
#[derive(Clone, Debug)]
pub struct LeasesConfig {
    /// Time that a lease lives after the last heartbeat that named it.
    pub lease: Duration,
    /// An agent that has been silent for this long is gone.
    pub silence: Duration,
    /// Times and limits of agents' sessions.
    pub sessions: SessionsConfig,
    /// Maximum number of waiting requests.
    pub pending_max: usize,
    /// Maximum number of leases at the same time.
    pub leases_max: usize,
    /// Maximum number of them that one agent may hold.
    pub agent_leases_max: usize,
    /// Maximum number of them that may lead to one agent: more share its link, and it has to reject them.
    pub receiver_leases_max: usize,
    /// The most bytes of one grant, where a request is divisible.
    pub grant_bytes_max: u64,
    /// Maximum number of agents.
    pub agents_max: usize,
    /// Handling of a path whose devices fail.
    pub on_device_failure: OnDeviceFailure,
    /// Maximum number of returned paths that devices hold ready.
    pub kept_max: usize,
    /// Set where the circuit switch may hold paths that an earlier manager has leased: no circuit is leased
    /// until [`Input::Found`] has come, and resources that it names only when no agent has claimed them for
    /// this long.
    pub claims: Option<Duration>,
    /// Time that agents may take to join a manager that has just started.
    pub patience: Duration,
    /// Set if changes of the state are recorded, for [`Leases::changes`].
    pub recorded: bool,
    /// Number of the first lease. Two runs of a manager should not give the same numbers.
    pub first_plan: PlanId,
}

/// Handling of a path whose devices fail to set it up.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum OnDeviceFailure {
    /// The next fabric that has a path takes its place.
    #[default]
    Fallback,
    /// The transfer waits, and the devices are told again and again.
    Wait,
}

/// The numbers that a new manager gives to these names when [`Leases::know_host`] is called for each in this
/// order, for fabrics that have to be made before it.
pub fn known_hosts<'a>(names: impl IntoIterator<Item = &'a str>) -> impl Iterator<Item = (&'a str, HostId)> {
    let mut seen = BTreeSet::new();
    names.into_iter().filter(move |name| seen.insert(*name)).zip((0..).map(HostId))
}

/// Leases have numbers below this; those from the top are for what schedulers only try.
const PLANS_END: u64 = 1 << 63;
/// So many requests of one agent may wait in any case.
const AGENT_PENDING_MIN: usize = 16;

/// A path may be back by one of so many parts of its time later than estimated.
const LATE: u64 = 4;

/// A request that waits.
#[derive(Debug)]
struct Waiting {
    key: RequestKey,
    object: ObjectId,
    /// Set if it is for all agents: a receiver that leaves in good order is then not noted as missed.
    all: bool,
    /// Time that the path is requested for.
    lease: Option<Duration>,
    /// Receivers that are lost or silent: they hold no other.
    missed: Vec<String>,
    /// State that was last reported to its agent.
    told: Option<Wait>,
}

/// Knowledge of the leases that an earlier manager has granted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Claims {
    /// Nothing: devices have not said yet what they hold.
    Unknown,
    /// Resources that no agent claims until then are free.
    Until(Time),
    /// All that there is to know.
    Known,
}

/// A path that is lent.
#[derive(Debug)]
struct Lease {
    key: RequestKey,
    object: ObjectId,
    grant: Grant,
    granted_at: Time,
    expires_at: Time,
    /// Time when it ends however often it is named.
    ends_at: Option<Time>,
    /// Number of failures of its devices since they last succeeded.
    tries: u32,
    /// Set once it has been planned again since it was granted.
    moved: bool,
    /// Set if no other fabric may carry it.
    only: bool,
    /// Names of receivers of its group whose agents have gone, by the numbers that they had.
    gone: BTreeMap<HostId, String>,
    /// Report of its holder on its transfer, if any.
    fared: Option<parts::Fared>,
    /// Assumed duration, where it is for a whole object.
    assumed: Option<Estimate>,
    /// Time when it will be given back, as listed in [`Leases::overs`].
    over: Option<Time>,
}

impl Lease {
    /// Returns the time when it ends if nothing happens.
    fn due_at(&self) -> Time {
        self.ends_at.map_or(self.expires_at, |ends_at| ends_at.min(self.expires_at))
    }

    /// Returns the time by which other requests can count on the path: estimates are coarse, and a request
    /// that has waited for it gives up if it is not back by then.
    fn back_at(&self) -> Option<Time> {
        let takes = self.grant.estimate.or(self.grant.service);
        let back = takes.map(|takes| self.granted_at + takes + takes / LATE);
        back.into_iter().chain(self.ends_at).min()
    }

    /// Returns the time when it will be given back, as far as known.
    fn over_at(&self) -> Option<Time> {
        let takes = self.grant.estimate.or(self.grant.service);
        takes.map(|takes| self.granted_at + takes).into_iter().chain(self.ends_at).min()
    }
}

/// The manager's core.
#[derive(Debug)]
pub struct Leases {
    config: LeasesConfig,
    fabrics: Fabrics,
    schedulers: external::Schedulers,
    members: Members,
    network: NetworkState,
    /// Requests as the scheduler sees them, oldest first, with data that only the manager needs.
    pending: BTreeMap<RequestId, (Pending, Waiting)>,
    pending_by_key: BTreeMap<RequestKey, RequestId>,
    next_request: u64,
    next_plan: u64,
    leases: BTreeMap<PlanId, Lease>,
    by_request: BTreeMap<RequestKey, PlanId>,
    places: places::Places,
    expiries: BTreeSet<(Time, PlanId)>,
    /// Times when paths that others wait for will be given back, as far as known.
    overs: BTreeSet<(Time, PlanId)>,
    /// Times when the devices of paths are commanded again.
    retries: BTreeSet<(Time, PlanId)>,
    /// Set if something has changed since the scheduler last decided.
    undecided: bool,
    /// Time for a new decision: a path that a request waits for, though another is free, should be back.
    look_again: Option<Time>,
    claims: Claims,
    claimed: claims::Claimed,
    /// Requests for receivers that may yet come.
    early: early::Early,
    /// Parts that are suspected to be dead, and parts that are taken out of use.
    parts: parts::Parts,
    /// Records that have changed, where the settings ask for them.
    changed: BTreeSet<RecordKey>,
    restored: state::Restored,
    outputs: VecDeque<Output>,
}

/// Returns the number of an agent's requests among these.
fn held_by<T>(requests: &BTreeMap<RequestKey, T>, agent: &AgentKey) -> usize {
    requests.range(agent.request(0)..=agent.request(u64::MAX)).count()
}

impl Leases {
    /// A manager that knows no agent yet.
    #[must_use]
    pub fn new(config: LeasesConfig, fabrics: Fabrics, scheduler: alloc::boxed::Box<dyn Scheduler>) -> Self {
        let mut network = NetworkState::new(config.first_plan.0);
        network.set_circuits_known(config.claims.is_none());
        Leases {
            members: Members::new(config.agents_max, config.silence, config.sessions),
            network,
            next_plan: config.first_plan.0,
            fabrics,
            schedulers: external::Schedulers::new(scheduler),
            pending: BTreeMap::new(),
            pending_by_key: BTreeMap::new(),
            next_request: 0,
            leases: BTreeMap::new(),
            by_request: BTreeMap::new(),
            places: places::Places::default(),
            expiries: BTreeSet::new(),
            overs: BTreeSet::new(),
            retries: BTreeSet::new(),
            undecided: false,
            look_again: None,
            claims: if config.claims.is_some() { Claims::Unknown } else { Claims::Known },
            claimed: claims::Claimed::default(),
            early: early::Early::default(),
            parts: parts::Parts::default(),
            changed: BTreeSet::new(),
            restored: state::Restored::default(),
            outputs: VecDeque::new(),
            config,
        }
    }

    /// The number that the agent of this name has in plans whenever it is here. Fabrics that know the hosts'
    /// places need it before an agent joins: [`known_hosts`] gives the numbers that the first calls get.
    pub fn know_host(&mut self, name: &str) -> HostId {
        self.touch(RecordKey::Host(String::from(name)));
        self.members.know(name)
    }

    /// The same with a number that was chosen before, by [`host_numbers`].
    ///
    /// # Errors
    /// The number is another one's, or the name has another number: in a sentence.
    pub fn know_host_as(&mut self, name: &str, host: HostId) -> Result<(), String> {
        self.members.know_as(name, host)?;
        self.touch(RecordKey::Host(String::from(name)));
        Ok(())
    }

    /// Takes in what happened.
    pub fn handle(&mut self, now: Time, input: Input) {
        self.begin(now);
        self.expire(now);
        match input {
            Input::Join(join) => self.join(now, join),
            Input::Heartbeat { agent, leases } => self.heartbeat(now, agent, &leases),
            Input::Leave { agent, keeps } => self.leave(now, &agent, keeps),
            Input::Parted { agent, session } => drop(self.members.part(now, &agent, session)),
            Input::SetUp { plan, result } => self.set_up(now, plan, result),
            Input::Failed { failures } => self.fail(&failures),
            Input::Repaired { failures } => self.repair(&failures),
            Input::Found { commands } => self.found(now, &commands),
            Input::Request(request) => self.request(now, request),
            Input::Withdraw { request } => self.withdraw(&request),
            Input::Extend { request, time, add, remove, sources } => {
                self.extend(
                    now,
                    request,
                    time,
                    GroupChange { add: &add, remove: &remove, sources: &sources },
                );
            }
            Input::Release { request, plan } => self.release(now, &request, plan),
            Input::Reached { agent, unreachable, reachable } => {
                self.members.note_reached(now, &agent, &unreachable, &reachable);
            }
            Input::Fared { request, plan, unreached, reached_all, took } => {
                self.fared(&request, plan, &unreached, reached_all, took);
            }
            Input::Unlit { plan, receivers } => self.unlit(now, plan, &receivers),
            Input::Drain { part, is_out } => {
                let result = self.drain(part, is_out);
                self.outputs.push_back(Output::Drained { part, result });
            }
            Input::DrainHost { name, is_out } => {
                let result = self.drain_host(&name, is_out);
                self.outputs.push_back(Output::DrainedHost { name, result });
            }
            Input::Advised { number, advice } => self.advised(now, number, advice),
        }
        if cfg!(debug_assertions) {
            self.check();
        }
    }

    /// The next thing to do, until there is none.
    pub fn poll(&mut self, now: Time) -> Option<Output> {
        self.begin(now);
        self.expire(now);
        if self.outputs.is_empty() && core::mem::take(&mut self.undecided) {
            self.look_again = None;
            self.decide(now);
        }
        self.outputs.pop_front()
    }

    /// Returns the time to poll again even if nothing happens.
    #[must_use]
    pub fn deadline(&self) -> Option<Time> {
        let expiry = self.expiries.first().map(|(at, _)| *at);
        let retry = self.retries.first().map(|(at, _)| *at);
        let claims = match self.claims {
            Claims::Until(at) => Some(at),
            Claims::Unknown | Claims::Known => None,
        };
        let waits = [self.claimed.deadline(), self.early.deadline(), self.parts.deadline(), self.look_again];
        [expiry, retry, claims, self.members.deadline(), self.schedulers.deadline()]
            .into_iter()
            .chain(waits)
            .flatten()
            .min()
    }

    /// The agents, in the order of their names.
    pub fn members(&self) -> impl Iterator<Item = (&str, &Member)> {
        self.members.iter()
    }

    /// Returns the report of another agent that it cannot reach this member at its address.
    #[must_use]
    pub fn unreachable(&self, name: &str) -> Option<&Unreachable> {
        self.members.unreachable(name)
    }

    /// Agents that have not come back, and when they were heard of last.
    pub fn lost(&self) -> impl Iterator<Item = (&str, Time)> {
        self.members.lost()
    }

    /// Agents that have left in good order with what they have, and have not come again.
    pub fn left(&self) -> impl Iterator<Item = &str> {
        self.members.left()
    }

    /// The number of an agent's session, if it has one.
    #[must_use]
    pub fn session_of(&self, agent: &AgentKey) -> Option<u64> {
        self.members.session_of(agent)
    }

    /// Takes note that an agent was heard of in this session.
    ///
    /// # Errors
    /// It has no session of this number.
    pub fn hear(&mut self, now: Time, agent: &AgentKey, session: u64) -> Result<(), NotMember> {
        self.members.check(agent)?;
        if self.members.session_of(agent) != Some(session) {
            return Err(NotMember::Unknown(agent.name.clone()));
        }
        self.members.heard(now, agent)
    }

    /// The name of the agent that has this number in plans.
    #[must_use]
    pub fn name_of(&self, host: HostId) -> Option<&str> {
        self.members.name_of(host)
    }

    /// The leases, in the order of their numbers.
    pub fn leases(&self) -> impl Iterator<Item = LeaseView<'_>> {
        self.leases.values().map(|lease| LeaseView {
            key: &lease.key,
            object: lease.object,
            grant: &lease.grant,
            expires_at: lease.expires_at,
            ends_at: lease.ends_at,
        })
    }

    /// The requests that wait, oldest first.
    pub fn pending(&self) -> impl ExactSizeIterator<Item = PendingView<'_>> {
        self.pending.values().enumerate().map(|(before, (pending, waiting))| PendingView {
            key: &waiting.key,
            object: waiting.object,
            bytes: pending.remaining_bytes,
            receivers: pending.group.receivers.len(),
            since: pending.since,
            wait: waiting.told.unwrap_or(Wait { before, estimate: None }),
        })
    }

    /// Returns true if an agent's request for a path waits, for this object and to this receiver among
    /// others.
    #[must_use]
    pub fn waits(&self, agent: &AgentKey, object: ObjectId, receiver: &str) -> bool {
        let Some(member) = self.members.get(receiver) else { return false };
        let own = agent.request(0)..=agent.request(u64::MAX);
        let mut pending = self.pending_by_key.range(own).filter_map(|(_, id)| self.pending.get(id));
        pending.any(|(pending, waiting)| {
            waiting.object == object && pending.group.receivers.contains(&member.host)
        })
    }

    /// Returns true if a path for this object and receiver was granted after this time.
    #[must_use]
    pub fn has_begun(&self, agent: &AgentKey, object: ObjectId, receiver: &str, since: Time) -> bool {
        let own = agent.request(0)..=agent.request(u64::MAX);
        let mut leases = self.by_request.range(own).filter_map(|(_, id)| self.leases.get(id));
        let is_new = |lease: &Lease| lease.object == object && lease.granted_at > since;
        leases.any(|lease| is_new(lease) && lease.grant.receiver_names().any(|name| name == receiver))
    }

    /// Name of the built-in scheduler.
    #[must_use]
    pub fn scheduler(&self) -> &'static str {
        self.schedulers.built_in.name()
    }

    /// Names of the fabrics, best first.
    pub fn fabrics(&self) -> impl Iterator<Item = FabricName> {
        self.fabrics.names()
    }

    /// Returns the commands that devices keep all the time, for the present state of the network.
    #[must_use]
    pub fn standing_commands(&self) -> Vec<polycast_planning::DeviceCommand> {
        self.fabrics.standing_commands(&self.network)
    }

    fn join(&mut self, now: Time, join: Join) {
        let Join { agent, address, from, leases } = join;
        let result = match self.members.join(now, &agent, address, from) {
            Err(refusal) => Err(refusal),
            Ok(Arrival { session, before, is_again }) => {
                // All agents come again to each new leader, which has their records.
                if !is_again {
                    self.touch(RecordKey::Member(agent.name.clone()));
                }
                let host = self.members.number(&agent.name).expect("it has just joined");
                self.network.set_ipv6(host, address.0.to_canonical().is_ipv6());
                if let Some(incarnation) = before {
                    // The run before is dead, whatever it held or wanted is not needed any more.
                    let before = AgentKey { name: agent.name.clone(), incarnation };
                    self.forget(&before);
                    self.outputs.push_back(Output::Gone { agent: before, how: Going::Restarted });
                }
                for held in leases {
                    self.take_over(now, &agent, held);
                }
                self.reconsider(now);
                Ok(session)
            }
        };
        self.outputs.push_back(Output::Join { agent, result });
    }

    fn heartbeat(&mut self, now: Time, agent: AgentKey, leases: &[PlanId]) {
        let result = self.members.heard(now, &agent).map(|()| {
            let (held, lost): (Vec<PlanId>, Vec<PlanId>) = leases
                .iter()
                .partition(|id| self.leases.get(id).is_some_and(|lease| lease.key.is_of(&agent)));
            held.into_iter().for_each(|id| self.renew(now, id));
            lost
        });
        self.outputs.push_back(Output::Heartbeat { agent, result });
    }

    fn leave(&mut self, now: Time, agent: &AgentKey, keeps: bool) {
        if self.members.check(agent).is_ok() {
            self.remove(&agent.name.clone(), Going::Left);
            if keeps {
                self.members.let_go(now, &agent.name);
            }
            self.forget(agent);
        }
    }

    fn take_pending(&mut self, id: RequestId) -> Option<(Pending, Waiting)> {
        let (pending, waiting) = self.pending.remove(&id)?;
        self.pending_by_key.remove(&waiting.key);
        self.touch(RecordKey::Pending(id));
        Some((pending, waiting))
    }

    fn request(&mut self, now: Time, request: PathRequest) {
        let key = request.agent.request(request.request);
        let lent = self.by_request.get(&key).and_then(|id| Some((*id, self.leases.get(id)?)));
        if let Some((id, lease)) = lent {
            // Asked a second time: the answer may have been lost on its way, with most of the time for which
            // the path was lent.
            let response = if lease.object == request.object {
                let grant = lease.grant.clone();
                self.renew(now, id);
                Ok(grant)
            } else {
                Err(Denial::RequestTaken(request.request))
            };
            self.outputs.push_back(Output::Response { request: key, response });
            return;
        }
        if let Some((_, waiting)) = self.pending_by_key.get(&key).and_then(|id| self.pending.get_mut(id)) {
            // Still undecided: one answer will do for both. The other object's request is a mistake.
            if waiting.object == request.object {
                waiting.told = None;
                self.undecided = true;
            } else {
                let response = Err(Denial::RequestTaken(request.request));
                self.outputs.push_back(Output::Response { request: key, response });
            }
            return;
        }
        match self.admit(now, &request) {
            Ok((pending, _)) if key.is_stream() => {
                let response = self.lend_at_once(now, &request, key.clone(), pending);
                if let Err(denial) = response {
                    self.outputs.push_back(Output::Response { request: key, response: Err(denial) });
                }
            }
            Ok((pending, missed)) => {
                let all = matches!(request.receivers, Receivers::All);
                let waiting = Waiting {
                    key: key.clone(),
                    object: request.object,
                    all,
                    lease: request.lease,
                    missed,
                    told: None,
                };
                self.next_request += 1;
                self.pending_by_key.insert(key, pending.id);
                self.touch(RecordKey::Pending(pending.id));
                self.pending.insert(pending.id, (pending, waiting));
                self.undecided = true;
            }
            Err(Denial::UnknownReceiver(_)) if self.may_yet_come(now) => self.early.keep(key, request),
            Err(denial) => self.outputs.push_back(Output::Response { request: key, response: Err(denial) }),
        }
    }

    /// Lends a stream of messages its path: it takes nothing that others wait for, so the scheduler is not
    /// asked.
    fn lend_at_once(
        &mut self,
        now: Time,
        request: &PathRequest,
        key: RequestKey,
        Pending { group, wish, .. }: Pending,
    ) -> Result<(), Denial> {
        if self.leases.len() >= self.config.leases_max {
            let reason = format!("{} paths are lent, which is its limit", self.config.leases_max);
            return Err(Denial::Rejected(reason));
        }
        if self.places.held_by(&key.agent) >= self.config.agent_leases_max {
            let most = self.config.agent_leases_max;
            return Err(Denial::Rejected(format!("the agent has {most} paths, which is the limit of one")));
        }
        // None of these fabrics has circuits, so nothing waits for what the circuit switch says.
        let plan = self.fabrics.plan_shared(&self.network, &group, wish.any_packets);
        let plan = plan.map_err(|refusal| self.refused(refusal))?;
        let plan_id = self.fresh_plan_id();
        if !self.network.hold(plan_id, group.clone(), plan.clone()) {
            return Err(Denial::Rejected("a fabric has planned with what is not free".into()));
        }
        let grant = Grant {
            plan_id,
            accepted_bytes: request.remaining_bytes,
            receivers: self.in_order(&group, &plan.channel),
            further_sources: self.names_of(&group.further_sources),
            absent: Vec::new(),
            missed: Vec::new(),
            passed_over: Vec::new(),
            estimate: None,
            plan,
            service: None,
            lease: request.lease,
        };
        self.lend(now, key, request.object, grant, Duration::ZERO);
        Ok(())
    }

    /// Enters a grant, and says so.
    fn lend(&mut self, now: Time, key: RequestKey, object: ObjectId, grant: Grant, waited: Duration) {
        let (plan_id, instead_of) = (grant.plan_id, self.displace(&grant.plan));
        // The answer first: its way may lead through the very switches that are told now.
        self.outputs.push_back(Output::Response { request: key.clone(), response: Ok(grant.clone()) });
        self.outputs.push_back(Output::Granted { plan_id, plan: grant.plan.clone(), instead_of, waited });
        self.keep(now, key, object, grant);
    }

    /// Returns one agent's limit of waiting requests: a quarter of all, to leave room for others, never few.
    fn agent_pending_max(&self) -> usize {
        (self.config.pending_max / 4).max(AGENT_PENDING_MIN)
    }

    /// Checks a request and resolves its names; gives those beside it that it does not reach.
    fn admit(&self, now: Time, request: &PathRequest) -> Result<(Pending, Vec<String>), Denial> {
        self.members.check(&request.agent)?;
        if request.remaining_bytes > request.object_bytes {
            return Err(Denial::Sizes { object: request.object_bytes, remaining: request.remaining_bytes });
        }
        let source = &request.agent.name;
        let (group, missed) = match &request.receivers {
            Receivers::All => self.members.all_but(now, source)?,
            Receivers::Named(names) => self.members.group(source, &request.further_sources, names)?,
        };
        let (group, missed) = self.spare_drained(request, (group, missed))?;
        // A stream says it itself: all its members send.
        let key = request.agent.request(request.request);
        let any_packets = key.is_group() || key.is_stream() && request.wish.any_packets;
        if !request.further_sources.is_empty() && !any_packets {
            return Err(several_sources());
        }
        let wish = Wish { any_packets, ..request.wish };
        self.fabrics.check_wish(wish).map_err(|refusal| self.refused(refusal))?;
        if self.pending.len() >= self.config.pending_max {
            return Err(Denial::QueueFull(self.config.pending_max));
        }
        let most = self.agent_pending_max();
        if held_by(&self.pending_by_key, &request.agent) >= most {
            return Err(Denial::AgentQueueFull(most));
        }
        let pending = Pending {
            id: RequestId(self.next_request),
            group,
            object_bytes: request.object_bytes,
            remaining_bytes: request.remaining_bytes,
            divisible: request.divisible,
            since: now,
            wish,
        };
        Ok((pending, missed))
    }

    fn withdraw(&mut self, request: &RequestKey) {
        if let Some(id) = self.by_request.get(request).copied() {
            self.end(id, ReleaseReason::Withdrawn);
            return;
        }
        if let Some(id) = self.pending_by_key.get(request).copied() {
            self.take_pending(id);
        }
        self.early.withdraw(request);
        self.undecided = true;
    }

    /// Ends what is overdue.
    fn expire(&mut self, now: Time) {
        while let Some((at, id)) = self.expiries.first().copied()
            && at <= now
        {
            let over =
                self.leases.get(&id).and_then(|lease| lease.ends_at).is_some_and(|ends_at| ends_at <= now);
            self.end(id, if over { ReleaseReason::TimeOver } else { ReleaseReason::Expired });
        }
        self.retry(now);
        self.look_at_external(now);
        self.end_rests(now);
        self.end_claims(now);
        if self.early.is_over(now) {
            self.reconsider(now);
        }
        if self.look_again.take_if(|at| *at <= now).is_some() {
            self.undecided = true;
        }
        if let Claims::Until(at) = self.claims
            && at <= now
        {
            self.network.end_reservations();
            self.claims = Claims::Known;
            self.undecided = true;
        }
        // What one that has died was the source of is lost: no agent is left to use another path.
        while let Some(name) = self.members.dead(now) {
            let agent = self.members.get(&name).map(|member| member.key(&name));
            self.remove(&name, Going::Died);
            agent.iter().for_each(|agent| self.forget(agent));
        }
        // Leases of a silent agent stay until they expire: its transfers may well be running.
        while let Some(name) = self.members.overdue(now) {
            self.remove(&name, Going::Silent);
        }
    }

    /// Lets the built-in scheduler decide about all requests that wait.
    fn decide_built_in(&mut self, now: Time) {
        if self.pending.is_empty() {
            return;
        }
        let with_place = self.with_place();
        let pending = self.pending.values().map(|(pending, _)| pending);
        let pending: Vec<&Pending> = pending.filter(|pending| with_place.contains(&pending.id)).collect();
        let draft = Draft::new(&mut self.network).at(now);
        let decisions = self.schedulers.built_in.decide(now, &pending, draft, &self.fabrics);
        self.carry_out(now, decisions);
    }

    fn carry_out(&mut self, now: Time, decisions: Vec<Decision>) {
        let mut awaited: BTreeMap<RequestId, Time> = BTreeMap::new();
        for decision in decisions {
            match decision {
                Decision::Accept { request, bytes, plan, passed_over } => {
                    self.accept(now, request, bytes, plan, passed_over);
                }
                Decision::Reject { request, refusal } => {
                    let denial = self.refused(refusal);
                    self.deny(request, denial);
                }
                Decision::Wait { request, until } => awaited.extend(until.map(|until| (request, until))),
            }
        }
        // A path that should be back by then and is not has no known end: others may be faster.
        self.look_again = awaited.values().copied().filter(|at| *at > now).min();
        self.tell_waiting(now, &awaited);
    }

    /// Tells those that wait their places, if these have changed.
    fn tell_waiting(&mut self, now: Time, awaited: &BTreeMap<RequestId, Time>) {
        if self.pending.is_empty() {
            return;
        }
        let ends: Vec<Duration> =
            self.overs.iter().take(self.pending.len()).map(|(at, _)| at.since(now)).collect();
        for (before, (id, (_, waiting))) in self.pending.iter_mut().enumerate() {
            if waiting.told.is_none_or(|told| told.before != before) {
                let known = || awaited.get(id).map(|at| at.since(now));
                let wait = Wait { before, estimate: ends.get(before).copied().or_else(known) };
                waiting.told = Some(wait);
                self.outputs.push_back(Output::Waiting { request: waiting.key.clone(), wait });
            }
        }
    }

    /// Grants a path, unless a plug-in has decided what cannot be: then the request goes on waiting.
    fn accept(&mut self, now: Time, id: RequestId, bytes: u64, plan: Plan, passed: Vec<Passed>) {
        let plan_id = self.fresh_plan_id();
        let Some((pending, waiting)) = self.pending.get(&id) else { return };
        let remaining = pending.remaining_bytes;
        let most = if pending.divisible { self.config.grant_bytes_max } else { u64::MAX };
        let bytes = bytes.min(most);
        let too_little = bytes < remaining && (bytes == 0 || !pending.divisible);
        let is_full = self.leases.len() >= self.config.leases_max
            || self.places.held_by(&waiting.key.agent) >= self.config.agent_leases_max;
        if too_little || is_full {
            return;
        }
        // Programs know a group by its address, which another fabric would not keep.
        let is_group = waiting.key.is_group();
        let only = is_group || pending.wish.or_fail && pending.wish.fabric.is_some();
        let accepted_bytes = bytes.min(remaining);
        let estimate =
            || self.fabrics.estimate(Some(now), &self.network, &plan, &pending.group, accepted_bytes);
        let estimate = if is_group { None } else { estimate() };
        if !self.network.hold(plan_id, pending.group.clone(), plan.clone()) {
            return;
        }
        let passed_over = passed.into_iter().map(|passed| self.passed_over(passed)).collect();
        let Some((pending, waiting)) = self.take_pending(id) else { return };
        let (assumed, estimate) = estimate.unzip();
        let grant = Grant {
            plan_id,
            accepted_bytes,
            receivers: self.in_order(&pending.group, &plan.channel),
            further_sources: self.names_of(&pending.group.further_sources),
            absent: Vec::new(),
            missed: waiting.missed,
            passed_over,
            estimate,
            service: if is_group { None } else { service_time(&plan, accepted_bytes) },
            plan,
            lease: waiting.lease,
        };
        self.lend(now, waiting.key, waiting.object, grant, now.since(pending.since));
        if let Some(lease) = self.leases.get_mut(&plan_id) {
            lease.only = only;
            lease.assumed = assumed.filter(|_| accepted_bytes == pending.object_bytes);
        }
    }

    fn passed_over(&self, Passed { fabric, why }: Passed) -> PassedOver {
        let why = match why {
            PassedWhy::Refused(refusal) => self.why(refusal),
            PassedWhy::Slower(why) => why,
        };
        PassedOver { fabric, why }
    }

    /// A group's receivers with their addresses: in the order of the chain if there is one, else by name.
    fn in_order(&self, group: &Group, channel: &Channel) -> Vec<(String, (IpAddr, u16))> {
        let find = |host: &HostId| self.members.address_of(*host);
        if let Channel::Chain { order } = channel {
            return order.iter().filter_map(find).collect();
        }
        let mut receivers: Vec<_> = group.receivers.iter().filter_map(find).collect();
        receivers.sort();
        receivers
    }

    /// The names of hosts, as far as they have one.
    fn names_of(&self, hosts: &BTreeSet<HostId>) -> Vec<String> {
        hosts.iter().filter_map(|host| self.members.name_of(*host)).map(String::from).collect()
    }

    fn fresh_plan_id(&mut self) -> PlanId {
        while self.network.get(PlanId(self.next_plan)).is_some() {
            self.next_plan = self.next_plan.wrapping_add(1);
        }
        let id = PlanId(self.next_plan);
        self.next_plan = self.next_plan.wrapping_add(1);
        id
    }

    /// Converts a fabric's refusal into a denial that names the host.
    fn refused(&self, refusal: Refusal) -> Denial {
        match refusal {
            Refusal::NoPlace { host, fabric } => match self.members.name_of(host) {
                Some(name) => Denial::NoPlace { name: name.into(), fabric },
                None => Denial::Rejected(Refusal::NoPlace { host, fabric }.to_string()),
            },
            other => Denial::Rejected(other.to_string()),
        }
    }

    /// The same as the reason alone.
    fn why(&self, refusal: Refusal) -> String {
        match self.refused(refusal) {
            Denial::Rejected(why) => why,
            Denial::NoPlace { name, fabric } => {
                format!("the settings of the fabric {fabric} do not say where '{name}' is")
            }
            other => other.to_string(),
        }
    }

    fn deny(&mut self, id: RequestId, denial: Denial) {
        if let Some((_, waiting)) = self.take_pending(id) {
            self.outputs.push_back(Output::Response { request: waiting.key, response: Err(denial) });
        }
    }

    fn keep(&mut self, now: Time, key: RequestKey, object: ObjectId, grant: Grant) {
        let expires_at = now + self.config.lease;
        let ends_at = grant.lease.map(|span| now + span);
        let id = grant.plan_id;
        self.enter(
            id,
            Lease {
                key,
                object,
                grant,
                granted_at: now,
                expires_at,
                ends_at,
                tries: 0,
                moved: false,
                only: false,
                gone: BTreeMap::new(),
                fared: None,
                assumed: None,
                over: None,
            },
        );
        self.touch(RecordKey::Lease(id));
    }

    fn enter(&mut self, id: PlanId, lease: Lease) {
        self.expiries.insert((lease.due_at(), id));
        self.by_request.insert(lease.key.clone(), id);
        self.places.hold(&lease.key.agent);
        self.leases.insert(id, lease);
        self.lead(id, true);
        self.note_end(id);
        self.note_over(id);
    }

    /// Notes when a path will be given back. What holds nothing is in no other's way.
    fn note_over(&mut self, id: PlanId) {
        let Some(lease) = self.leases.get_mut(&id) else { return };
        let over = lease.over_at().filter(|_| !lease.grant.plan.resources.is_empty());
        if let Some(before) = core::mem::replace(&mut lease.over, over) {
            self.overs.remove(&(before, id));
        }
        self.overs.extend(over.map(|at| (at, id)));
    }

    /// Notes when a path is back for others, as far as that can be told. A stream has no end, and carries
    /// next to nothing.
    fn note_end(&mut self, id: PlanId) {
        let Some(lease) = self.leases.get(&id) else { return };
        match lease.back_at() {
            _ if lease.key.is_stream() => self.network.set_quiet(id),
            Some(at) => self.network.expect_end(id, at),
            None => {}
        }
    }

    fn renew(&mut self, now: Time, id: PlanId) {
        if let Some(lease) = self.leases.get_mut(&id) {
            self.expiries.remove(&(lease.due_at(), id));
            lease.expires_at = now + self.config.lease;
            self.expiries.insert((lease.due_at(), id));
        }
    }

    fn end(&mut self, id: PlanId, reason: ReleaseReason) {
        self.lead(id, false);
        let Some(lease) = self.leases.remove(&id) else { return };
        self.remember(&lease, reason);
        self.touch(RecordKey::Lease(id));
        self.expiries.remove(&(lease.due_at(), id));
        if let Some(over) = lease.over {
            self.overs.remove(&(over, id));
        }
        self.by_request.remove(&lease.key);
        self.places.let_go(&lease.key.agent);
        let running = self.network.release(id);
        self.undecided = true;
        // What has failed is not worth keeping.
        let lost_some = lease.fared.as_ref().is_some_and(|fared| !fared.unreached.is_empty());
        // Programs go on to send to a group that is no more: none of it may stay.
        let may_stay = !lease.key.is_group();
        let sound = may_stay && reason != ReleaseReason::Failed && lease.tries == 0 && !lost_some;
        let kept = running.is_some_and(|running| sound && self.keep_ready(running));
        let (request, plan) = (lease.key, lease.grant.plan);
        self.outputs.push_back(Output::Released { plan_id: id, request, plan, reason, kept });
    }
}

/// Returns the duration of a transfer on a path that has a rate of its own.
fn service_time(plan: &Plan, bytes: u64) -> Option<Duration> {
    Some(plan.channel.own_rate()?.time_for(bytes))
}
