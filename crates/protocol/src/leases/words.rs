//! Messages between agents and the manager (Republic Table II), as values.

use super::advice::{Advice, NoAdvice, Question};
use alloc::collections::BTreeSet;
use alloc::string::String;
use alloc::vec::Vec;
use core::net::IpAddr;
use polycast_planning::{Channel, DeviceCommand, Failure, HostId, PartName, PassedOver, Plan, PlanId, Wish};
use polycast_types::{Duration, ObjectId, Time};
use serde::{Deserialize, Serialize};

/// An agent, and which run of it: a restarted agent has another incarnation.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub struct AgentKey {
    /// Its name in the cluster.
    pub name: String,
    /// Number of the run.
    pub incarnation: u64,
}

impl AgentKey {
    /// The name of one of its requests.
    #[must_use]
    pub fn request(&self, request: u64) -> RequestKey {
        RequestKey { agent: self.clone(), request }
    }
}

/// A request's name: the agent that made it and the number that it gave it (`requestID`).
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub struct RequestKey {
    /// The agent that asked.
    pub agent: AgentKey,
    /// Its number there.
    pub request: u64,
}

/// Requests of an agent from this number on are for streams of messages: they get a path at once or not at
/// all, over a fabric that many can use at the same time, and keep it until no receiver listens any more.
pub const STREAMS_FROM: u64 = 1 << 63;

/// Requests of an agent from this number on, and below [`STREAMS_FROM`], are for groups to which applications
/// send packets themselves: they have no end, go over a fabric that carries any packets, and the next run of
/// the agent goes on with them under the same number.
pub const GROUPS_FROM: u64 = 1 << 62;

impl RequestKey {
    /// Returns true if the request is for a stream of messages.
    #[must_use]
    pub fn is_stream(&self) -> bool {
        self.request >= STREAMS_FROM
    }

    /// Returns true if the request is for a group of an application's own packets.
    #[must_use]
    pub fn is_group(&self) -> bool {
        (GROUPS_FROM..STREAMS_FROM).contains(&self.request)
    }

    /// Returns true if the request is for an object.
    #[must_use]
    pub fn is_transfer(&self) -> bool {
        self.request < GROUPS_FROM
    }

    /// Returns true if what this request has is what the other one asks for: it is the same, or that of the
    /// same group by another run of the agent.
    #[must_use]
    pub fn is_continued_by(&self, other: &Self) -> bool {
        let is_same = self.agent.name == other.agent.name && self.request == other.request;
        is_same && (self.is_group() || self.agent == other.agent)
    }

    /// Returns true if `agent` made the request.
    #[must_use]
    pub fn is_of(&self, agent: &AgentKey) -> bool {
        self.agent == *agent
    }
}

/// Events that the manager handles.
#[derive(Clone, Debug)]
pub enum Input {
    /// An agent joins, or joins again. Answered by [`Output::Join`].
    Join(Join),
    /// An agent lives and uses these leases. Answered by [`Output::Heartbeat`].
    Heartbeat {
        /// The agent.
        agent: AgentKey,
        /// The leases to renew.
        leases: Vec<PlanId>,
    },
    /// An agent ends in good order.
    Leave {
        /// The agent.
        agent: AgentKey,
        /// Set if the objects that it has received are still there when it returns.
        keeps: bool,
    },
    /// An agent's session has ended without a farewell. It may come back for a while; then it is dead, and
    /// what it held or waited for is not needed any more.
    Parted {
        /// The agent.
        agent: AgentKey,
        /// The number of the session.
        session: u64,
    },
    /// The devices of a path have all answered.
    SetUp {
        /// The path.
        plan: PlanId,
        /// `Ok` if the path is set up, or a sentence with the failed device and the reason.
        result: Result<(), String>,
    },
    /// These have failed: the paths in use that they touch are planned anew.
    Failed {
        /// The failures.
        failures: Vec<Failure>,
    },
    /// These had failed and can be used again. Paths that were planned without them stay as they are.
    Repaired {
        /// The failures.
        failures: Vec<Failure>,
    },
    /// Commands that devices held when the manager started, whatever sent them; none where that is unknown.
    Found {
        /// The commands.
        commands: Vec<DeviceCommand>,
    },
    /// A source's agent asks for a path. Answered by one [`Output::Response`], now or later.
    Request(PathRequest),
    /// The agent that asked gives the path up, or could not be told of it.
    Withdraw {
        /// The request.
        request: RequestKey,
    },
    /// A request's time or membership changes, before or after it was granted (Blast section IV-A). Answered
    /// by [`Output::Extended`].
    Extend {
        /// The request.
        request: RequestKey,
        /// The path stays for this long from now on.
        time: Option<Duration>,
        /// Names of further receivers.
        add: Vec<String>,
        /// Names of receivers that need nothing any more; of a group also of sources that send no more.
        remove: Vec<String>,
        /// Names of further sources, of a group alone.
        sources: Vec<String>,
    },
    /// A path is given back.
    Release {
        /// The request that it was lent for.
        request: RequestKey,
        /// The path.
        plan: PlanId,
    },
    /// A source says how a path that it is about to give back has fared.
    Fared {
        /// The request that it was lent for.
        request: RequestKey,
        /// The path.
        plan: PlanId,
        /// Names of the receivers that got nothing over it, or nothing more.
        unreached: Vec<String>,
        /// Set if all receivers got everything that they needed over it.
        reached_all: bool,
        /// Duration of the transfer from the grant to its end, if it says something about the fabric: all
        /// receivers got the whole object over this path, and none of them was slower than the path.
        took: Option<Duration>,
    },
    /// An agent says which agents it could not reach at the addresses that these have given, and which it has
    /// reached since.
    Reached {
        /// The one that says so.
        agent: AgentKey,
        /// Names of those that it could not reach.
        unreachable: Vec<String>,
        /// Names of those of whom it has said so before.
        reachable: Vec<String>,
    },
    /// The racks of these receivers should have light of a path in use, and have none.
    Unlit {
        /// The path.
        plan: PlanId,
        /// The receivers.
        receivers: BTreeSet<HostId>,
    },
    /// An operator takes a part out of use, or back. Answered by [`Output::Drained`].
    Drain {
        /// The part.
        part: PartName,
        /// Set to take it out of use.
        is_out: bool,
    },
    /// An operator drains a host, or takes it back. Answered by [`Output::DrainedHost`].
    DrainHost {
        /// Name of its agent.
        name: String,
        /// Set to drain it.
        is_out: bool,
    },
    /// The external scheduler has answered an [`Output::Ask`], or could not be asked.
    Advised {
        /// Number of the question.
        number: u64,
        /// The answer, or why there is none.
        advice: Result<Advice, NoAdvice>,
    },
}

/// An agent that joins.
#[derive(Clone, Debug)]
pub struct Join {
    /// The agent.
    pub agent: AgentKey,
    /// Address at which other agents reach it: IP address and TCP port.
    pub address: (IpAddr, u16),
    /// The address that its connection comes from, whatever it says of itself.
    pub from: IpAddr,
    /// Leases that it uses already.
    pub leases: Vec<HeldLease>,
}

/// A lease as its holder knows it.
#[derive(Clone, Debug)]
pub struct HeldLease {
    /// The request that it was lent for.
    pub request: u64,
    /// The lease.
    pub plan: PlanId,
    /// The object.
    pub object: ObjectId,
    /// The receivers' names.
    pub receivers: Vec<String>,
    /// The names of the hosts that send to them beside its holder.
    pub further_sources: Vec<String>,
    /// Bytes that were accepted.
    pub bytes: u64,
    /// The fabric's name.
    pub fabric: String,
    /// The channel.
    pub channel: Channel,
    /// Time that it may be held from now on; `None` as long as heartbeats name it.
    pub left: Option<Duration>,
    /// The whole plan, where the manager that granted it has told it for its successor.
    pub kept: Option<Plan>,
    /// Set if no other fabric may carry it.
    pub only: bool,
}

/// Receivers that a path is for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Receivers {
    /// All agents but the source.
    All,
    /// These.
    Named(Vec<String>),
}

/// A request for a path (`manager.request`).
#[derive(Clone, Debug)]
pub struct PathRequest {
    /// The source.
    pub agent: AgentKey,
    /// The request's number there (`requestID`).
    pub request: u64,
    /// The object.
    pub object: ObjectId,
    /// Its length (`datasize`).
    pub object_bytes: u64,
    /// Bytes still to be sent (`remainingDatasize`).
    pub remaining_bytes: u64,
    /// Names of further hosts that send to the receivers, of a group alone: its path is held by the agent
    /// that asks, and leads from all of them.
    pub further_sources: Vec<String>,
    /// The receivers.
    pub receivers: Receivers,
    /// Set if part of the bytes may be accepted.
    pub divisible: bool,
    /// Time that the path is requested for; `None` until it is given back.
    pub lease: Option<Duration>,
    /// Fabric that is to carry it.
    pub wish: Wish,
}

/// A path that is lent (`agent.response`, accepted).
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Grant {
    /// Its number (`responseID`).
    pub plan_id: PlanId,
    /// Bytes that may be sent over it (`accepted_size`).
    pub accepted_bytes: u64,
    /// The receivers by name, and where to reach their agents; with a chain in its order.
    #[serde(with = "polycast_planning::kept_address::named")]
    pub receivers: Vec<(String, (IpAddr, u16))>,
    /// Names of the hosts that send over it beside its holder.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub further_sources: Vec<String>,
    /// The receivers that the path has beside these and whose agents are not here: a manager before has let
    /// them in, and they have not come back, or they have gone since.
    #[serde(default)]
    pub absent: Vec<String>,
    /// Requested receivers that it does not lead to, as they are lost or have been silent.
    #[serde(default)]
    pub missed: Vec<String>,
    /// The fabrics that come before it in the settings or would have been faster, and why none of them
    /// carries it.
    #[serde(default)]
    pub passed_over: Vec<PassedOver>,
    /// Expected duration of the transfer from the grant to its end, as far as known; `None` where it is not
    /// estimated.
    #[serde(default)]
    pub estimate: Option<Duration>,
    /// The path.
    pub plan: Plan,
    /// Duration of the transfer, where the path has a rate of its own (Blast's estimated service time).
    pub service: Option<Duration>,
    /// Time that the path may be held from the grant, or the last extension, on; `None` until it is given
    /// back.
    pub lease: Option<Duration>,
}

impl Grant {
    /// The names of all receivers that the path has, whether or not their agents are here.
    pub fn receiver_names(&self) -> impl Iterator<Item = &String> {
        self.receivers.iter().map(|(name, _)| name).chain(&self.absent)
    }
}

/// State of a waiting request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Wait {
    /// Number of older requests that wait. A scheduler may let a younger one go first.
    pub before: usize,
    /// Time until its turn if the paths in use end as estimated, each for one request; `None` where that is
    /// unknown.
    pub estimate: Option<Duration>,
}

/// Reasons why an agent cannot join.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum JoinRefusal {
    /// Another agent has the name, which lives, or may come back to its own address.
    #[error(
        "the name '{name}' is taken by the agent at {address}: stop that one first, or take another name"
    )]
    NameTaken {
        /// The name.
        name: String,
        /// Address of the agent that has it.
        address: IpAddr,
    },
    /// No address has all the places.
    #[error(
        "{count} agents have joined from {from}, as many as may: the manager's setting 'address-agents-max' says so"
    )]
    AddressFull {
        /// The address.
        from: IpAddr,
        /// Number of agents that have joined from there.
        count: usize,
    },
    /// The name cannot be one.
    #[error("'{0}' cannot be an agent's name: take 1 to 255 letters without spaces or commas, and not 'all'")]
    BadName(String),
    /// A limit is reached.
    #[error("the manager has {0} agents already, which is its limit")]
    Full(usize),
}

/// An agent that the manager does not know.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum NotMember {
    /// It has to join (again).
    #[error("the manager does not know the agent '{0}'")]
    Unknown(String),
    /// Another run of it has joined since.
    #[error("another agent has joined as '{0}'")]
    Superseded(String),
}

/// Reasons for denying a path (`agent.response`, denied).
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Denial {
    /// The source is not there itself.
    #[error(transparent)]
    NotMember(#[from] NotMember),
    /// No such agent.
    #[error("there is no agent '{0}'")]
    UnknownReceiver(String),
    /// The only receivers, of which this is one, have not come back.
    #[error("the agent '{0}' is lost: it has ended or is cut off, and has not come back")]
    Lost(String),
    /// A receiver gets nothing new.
    #[error("{0} is being drained: polycast drain {0} --undo brings it back")]
    Draining(String),
    /// A receiver is named twice.
    #[error("the receiver '{0}' is named twice")]
    NamedTwice(String),
    /// The source is named as a receiver.
    #[error("'{0}' is the source and cannot be a receiver")]
    SourceItself(String),
    /// No receiver is named.
    #[error("no receiver is named")]
    NoReceivers,
    /// It is for all, and there is no other agent.
    #[error("there is no other agent to send to")]
    NobodyElse,
    /// More remains than there is.
    #[error("{remaining} bytes cannot remain of an object of {object} bytes")]
    Sizes {
        /// Length of the object.
        object: u64,
        /// Bytes that were reported to remain.
        remaining: u64,
    },
    /// The number belongs to a request for another object.
    #[error("request number {0} is in use for another object")]
    RequestTaken(u64),
    /// The request that is to change is not known: it was never made, or its path has gone back.
    #[error("there is no request {0} that waits or has a path")]
    NotHeld(u64),
    /// One that is to be taken out is not a receiver.
    #[error("'{0}' is not a receiver of this transfer")]
    NotReceiver(String),
    /// One that is to come is a receiver already.
    #[error("'{0}' is a receiver of this transfer already")]
    AlreadyReceiver(String),
    /// One that is to send too does so already.
    #[error("'{0}' is a source of this group already")]
    AlreadySource(String),
    /// The path cannot change so.
    #[error("the path cannot change: {0}")]
    Unchangeable(String),
    /// Too many wait already.
    #[error("{0} requests are waiting for a path already, which is the manager's limit")]
    QueueFull(usize),
    /// Too many of this agent wait already.
    #[error("{0} requests of this agent are waiting for a path already, which is the manager's limit of one")]
    AgentQueueFull(usize),
    /// The scheduler has decided so.
    #[error("the manager lends no path: {0}")]
    Rejected(String),
    /// One of the group is nowhere in the network.
    #[error(
        "the manager lends no path: the settings of the fabric {fabric} do not say where '{name}' is: add it there or leave it \
         out"
    )]
    NoPlace {
        /// The agent.
        name: String,
        /// The fabric.
        fabric: String,
    },
}

/// Reasons for the end of a lease.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ReleaseReason {
    /// Its holder gave it back.
    Released,
    /// No heartbeat named it for too long.
    Expired,
    /// The time is over for which it was lent.
    TimeOver,
    /// Its holder left or restarted.
    HolderGone,
    /// The agent that asked gave it up.
    Withdrawn,
    /// A part that it needs has failed, and there is no other path.
    Failed,
}

/// State of a path at its devices.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum PathState {
    /// All of them hold it.
    Ready,
    /// A device has failed, and is told again until it does not.
    Waits {
        /// The device, and the reason.
        reason: String,
    },
}

/// End of a run of an agent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Going {
    /// In good order.
    Left,
    /// Its session ended, and it has not come back.
    Died,
    /// Nothing was heard of it for too long.
    Silent,
    /// Another run of it has come.
    Restarted,
}

/// Actions for the driver.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Output {
    /// Tell an agent whether it has joined.
    Join {
        /// The agent.
        agent: AgentKey,
        /// The number of its session, or why it has none.
        result: Result<u64, JoinRefusal>,
    },
    /// Tell an agent which of the leases in its heartbeat are lost.
    Heartbeat {
        /// The agent.
        agent: AgentKey,
        /// The lost ones, or that it has to join first.
        result: Result<Vec<PlanId>, NotMember>,
    },
    /// Answer a request.
    Response {
        /// The request.
        request: RequestKey,
        /// The decision.
        response: Result<Grant, Denial>,
    },
    /// Tell the agent that asked how a request stands that waits: at first, and when its place has changed.
    Waiting {
        /// The request.
        request: RequestKey,
        /// Its state.
        wait: Wait,
    },
    /// Answer a wish to change a request.
    Extended {
        /// The request.
        request: RequestKey,
        /// The path as it is now, `None` if the request still waits; or why it stays as it was.
        result: Result<Option<Grant>, Denial>,
    },
    /// A path is in use from now on: set it up. Comes once, before the response.
    Granted {
        /// Its number.
        plan_id: PlanId,
        /// The path.
        plan: Plan,
        /// Commands that devices hold for no request and can drop now, or have to.
        instead_of: Vec<DeviceCommand>,
        /// Time that the request has waited here.
        waited: Duration,
    },
    /// A path's devices have failed: tell them again.
    Again {
        /// Its number.
        plan_id: PlanId,
        /// The path.
        plan: Plan,
    },
    /// Tell the agent that asked how the path stands.
    Path {
        /// Its number.
        plan_id: PlanId,
        /// The request that it was lent for.
        request: RequestKey,
        /// Its state.
        state: PathState,
    },
    /// A path that was kept ready is not any more: take it down.
    Forgotten {
        /// The path.
        plan: Plan,
    },
    /// A path in use has been planned anew, after a failure or for another group: set up what is new, take
    /// down what is not needed.
    Replanned {
        /// Its number, which stays.
        plan_id: PlanId,
        /// The request that it was lent for.
        request: RequestKey,
        /// The path as it was.
        before: Plan,
        /// The path from now on.
        plan: Plan,
        /// Commands that devices hold for no request and have to drop.
        displaced: Vec<DeviceCommand>,
        /// The failed device and the reason, if it was a device.
        reason: Option<String>,
    },
    /// A path is not in use any more: take it down, unless it is kept ready.
    Released {
        /// Its number.
        plan_id: PlanId,
        /// The request that it was lent for.
        request: RequestKey,
        /// The path.
        plan: Plan,
        /// Reason for the release.
        reason: ReleaseReason,
        /// Set if devices continue to hold it, for the same hosts to have it again.
        kept: bool,
    },
    /// A part is suspected to be dead, and rests.
    Suspected {
        /// The part, and the reason.
        suspect: Suspect,
    },
    /// A part that was suspected has shown that it works.
    Acquitted {
        /// The part.
        what: Failure,
    },
    /// Answer a wish to take a part out of use, or back.
    Drained {
        /// The part.
        part: PartName,
        /// Result, or the reason for a refusal, in a sentence.
        result: Result<Drained, String>,
    },
    /// Answer a wish to drain a host, or to take it back.
    DrainedHost {
        /// Name of its agent.
        name: String,
        /// Result, or the reason for a refusal, in a sentence.
        result: Result<Drained, String>,
    },
    /// Ask the external scheduler. Answered by [`Input::Advised`]; what comes after the question's deadline
    /// is not needed any more.
    Ask {
        /// The question.
        question: Question,
    },
    /// The external scheduler is not followed any more, or is followed again.
    External {
        /// Reason why the built-in scheduler decides, in a sentence about the other one; `None` if it does
        /// not.
        trouble: Option<String>,
    },
    /// A run of an agent has ended: all that depends on it ends. Comes once for each that has joined.
    Gone {
        /// The agent.
        agent: AgentKey,
        /// Way in which it ended.
        how: Going,
    },
}

/// A lease to look at.
#[derive(Clone, Copy, Debug)]
pub struct LeaseView<'a> {
    /// The request that it was lent for.
    pub key: &'a RequestKey,
    /// The object.
    pub object: ObjectId,
    /// The grant.
    pub grant: &'a Grant,
    /// Time when it ends without a heartbeat.
    pub expires_at: Time,
    /// Time when it ends in any case.
    pub ends_at: Option<Time>,
}

/// A request that waits, to look at.
#[derive(Clone, Copy, Debug)]
pub struct PendingView<'a> {
    /// The request.
    pub key: &'a RequestKey,
    /// The object.
    pub object: ObjectId,
    /// Bytes that are to be sent.
    pub bytes: u64,
    /// Number of receivers.
    pub receivers: usize,
    /// Time when it arrived.
    pub since: Time,
    /// Its state.
    pub wait: Wait,
}

/// A part that may be dead.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Suspect {
    /// The part.
    pub what: Failure,
    /// Number of transfers that reached none of the receivers whose paths lead through it, since one last
    /// did.
    pub times: u32,
    /// Number of rests since then.
    pub rests: u32,
    /// Until when it rests, or did; when it was suspected, if it never has.
    pub until: Time,
    /// Set while it rests.
    pub is_resting: bool,
    /// Reason, in a sentence.
    pub why: String,
}

/// Result of a request to take a part out of use, or back.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Drained {
    /// Set if the request has changed anything.
    pub is_new: bool,
    /// Number of paths in use that have moved to other parts.
    pub moved: usize,
    /// Number of paths that have ended because there is no other.
    pub ended: usize,
}
