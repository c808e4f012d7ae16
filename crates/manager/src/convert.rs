//! Between the messages of `polycast.manager.v1` and the machine's words.

use polycast_api::convert::object_id;
use polycast_api::error::{Kind, Refusal};
use polycast_api::manager as api;
use polycast_planning::labels::Encoding;
use polycast_planning::{
    Channel, FabricName, HostId, PassedOver, Plan, PlanId, PullTuning, Pulling, TreeRoutes, Wish,
};
use polycast_protocol::leases::{
    AgentKey, Denial, Grant, HeldLease, Input, Join, JoinRefusal, NotMember, PathRequest, Receivers,
    ReleaseReason, STREAMS_FROM, Wait,
};
use polycast_protocol::pull::route_of;
use polycast_protocol::stream::{StreamRefusal, StreamSender, StreamWord};
use polycast_types::{Duration, Handle, ObjectId, Printable, Rate};
use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};

/// Leases that one agent may name.
const LEASES_MAX: usize = 4_096;
/// Bytes of a plan that an agent keeps.
const PLAN_LEN_MAX: usize = 1 << 20;
/// Receivers that one request may name.
const RECEIVERS_MAX: usize = 65_536;
/// Bytes of a name, of an agent or of an object.
const NAME_LEN_MAX: usize = 255;

fn invalid(message: impl Into<String>) -> Refusal {
    Refusal::new(Kind::Invalid, message)
}

pub(crate) fn agent(agent: Option<api::AgentId>) -> Result<AgentKey, Refusal> {
    let agent = agent.ok_or_else(|| invalid("the request does not say which agent it is from"))?;
    Ok(AgentKey { name: agent.name, incarnation: agent.incarnation })
}

pub(crate) fn object_ref(object: ObjectId) -> api::ObjectRef {
    api::ObjectRef { app_id: object.app.0.to_vec(), data_id: object.data.0 }
}

/// Refuses a name that is too long, before it is written anywhere.
pub(crate) fn check_name(name: &str) -> Result<(), Refusal> {
    if name.len() <= NAME_LEN_MAX {
        return Ok(());
    }
    Err(invalid(format!("a name of {} bytes is longer than {NAME_LEN_MAX}", name.len())))
}

pub(crate) fn join(request: api::Join, from: IpAddr) -> Result<Join, Refusal> {
    let agent = agent(request.agent)?;
    check_name(&agent.name)?;
    let leases = bounded(request.leases, LEASES_MAX, "leases")?;
    Ok(Join {
        agent,
        address: (address_of(&request.address)?, port(request.control_port)?),
        from,
        leases: leases.into_iter().map(held_lease).collect::<Result<_, _>>()?,
    })
}

fn span(millis: Option<u64>) -> Option<Duration> {
    millis.map(|millis| Duration::from_nanos(millis.saturating_mul(1_000_000)))
}

fn held_lease(lease: api::Lease) -> Result<HeldLease, Refusal> {
    Ok(HeldLease {
        request: lease.request_id,
        plan: PlanId(lease.response_id),
        object: object_id(&lease.app_id, lease.data_id)?,
        further_sources: bounded(lease.further_sources, RECEIVERS_MAX, "sources")?,
        receivers: bounded(lease.receivers, RECEIVERS_MAX, "receivers")?,
        bytes: lease.accepted_size,
        fabric: lease.fabric,
        channel: channel(lease.channel)?,
        left: span(lease.left_ms),
        kept: told_plan(&lease.plan)?,
        only: lease.or_fail,
    })
}

/// Encodes a plan as an agent keeps it for another manager; empty if the plan's channel is enough.
pub(crate) fn kept_plan(plan: &Plan) -> Vec<u8> {
    if plan.commands.is_empty() {
        return Vec::new();
    }
    serde_json::to_vec(plan).expect("a plan has no keys but names")
}

fn told_plan(kept: &[u8]) -> Result<Option<Plan>, Refusal> {
    if kept.is_empty() {
        return Ok(None);
    }
    if kept.len() > PLAN_LEN_MAX {
        let message = format!("a plan of {} bytes is longer than {PLAN_LEN_MAX}", kept.len());
        return Err(Refusal::new(Kind::Full, message));
    }
    // A manager of another version may have written it: then the path is lost, and not the agent's
    // membership.
    let read = serde_json::from_slice(kept);
    if let Err(error) = &read {
        tracing::warn!(%error, "the plan of a path in use cannot be read");
    }
    Ok(read.ok())
}

pub(crate) fn plan_ids(ids: Vec<u64>) -> Result<Vec<PlanId>, Refusal> {
    Ok(bounded(ids, LEASES_MAX, "leases")?.into_iter().map(PlanId).collect())
}

pub(crate) fn path_request(agent: AgentKey, request: api::PathRequest) -> Result<PathRequest, Refusal> {
    if agent.request(request.request_id).is_stream() {
        return Err(invalid(format!("request numbers from {STREAMS_FROM} on are for streams of messages")));
    }
    let receivers = match (request.all, request.receivers) {
        (true, names) if !names.is_empty() => {
            return Err(invalid("a request is either for all or for the receivers that it names"));
        }
        (true, _) => Receivers::All,
        (false, names) => Receivers::Named(bounded(names, RECEIVERS_MAX, "receivers")?),
    };
    Ok(PathRequest {
        agent,
        request: request.request_id,
        object: object_id(&request.app_id, request.data_id)?,
        object_bytes: request.data_size,
        remaining_bytes: request.remaining_size,
        further_sources: bounded(request.further_sources, RECEIVERS_MAX, "sources")?,
        receivers,
        divisible: request.divisible,
        lease: span(request.lease_ms),
        wish: wish(&request.fabric, request.or_fail)?,
    })
}

/// Returns the fabric that a request asks for.
fn wish(fabric: &str, or_fail: bool) -> Result<Wish, Refusal> {
    if fabric.is_empty() {
        return Ok(Wish::default());
    }
    let name = fabric.parse().map_err(|error| invalid(format!("'{}': {error}", Printable(fabric))))?;
    Ok(Wish { fabric: Some(name), or_fail, ..Wish::default() })
}

/// The fabrics that were better.
pub(crate) fn passed_over(passed: Vec<PassedOver>) -> Vec<api::PassedOver> {
    let one = |passed: PassedOver| api::PassedOver { fabric: passed.fabric.to_string(), why: passed.why };
    passed.into_iter().map(one).collect()
}

/// A wish to change a request.
pub(crate) fn extend(agent: &AgentKey, extend: api::Extend) -> Result<Input, Refusal> {
    if !extend.further_sources.is_empty() && !agent.request(extend.request_id).is_group() {
        return Err(invalid("only a group of an application's own packets gets further sources so"));
    }
    Ok(Input::Extend {
        request: agent.request(extend.request_id),
        time: span(extend.time_ms),
        add: bounded(extend.add, RECEIVERS_MAX, "receivers")?,
        remove: bounded(extend.remove, RECEIVERS_MAX, "receivers")?,
        sources: bounded(extend.further_sources, RECEIVERS_MAX, "sources")?,
    })
}

/// A channel that a transfer uses already. The chain's order does not matter any more.
fn channel(channel: Option<api::Channel>) -> Result<Channel, Refusal> {
    match channel.and_then(|channel| channel.channel) {
        Some(api::channel::Channel::Multicast(multicast)) => Ok(Channel::Multicast {
            group: (address_of(&multicast.address)?, port(multicast.port)?),
            rate: multicast.rate_bps.map(Rate),
            attempt_interval: Duration(multicast.attempt_interval_ns),
        }),
        Some(api::channel::Channel::Labelled(labelled)) => Ok(Channel::Label {
            group: (address_of(&labelled.address)?, port(labelled.port)?),
            session: labelled.session,
            encoding: match labelled.kind {
                0 => Encoding::Filter,
                1 => Encoding::Pods,
                kind => return Err(invalid(format!("there are no labels of kind {kind}"))),
            },
            label: labelled.label,
            further: labelled.further,
            // They follow from the group.
            racks: Vec::new(),
            left_out: Vec::new(),
            rate: labelled.rate_bps.map(Rate),
        }),
        Some(api::channel::Channel::Chain(_)) => Ok(Channel::Chain { order: Vec::new() }),
        // Forwarders keep nothing of it: the trees are planned anew, and receivers whose way is another one
        // are told.
        Some(api::channel::Channel::SourceRoutes(routes)) => Ok(Channel::SourceRoutes {
            tree_count: routes.trees,
            pulling: Pulling {
                payload_bytes: u16::try_from(routes.payload_bytes).map_err(|_| {
                    invalid(format!("a packet of {} bytes is too long", routes.payload_bytes))
                })?,
                credits: routes.credits,
                link_rate: Rate(routes.link_rate_bps),
                tuning: routes.tuning.map(from_tuning).unwrap_or_default(),
            },
            trees: Vec::new(),
        }),
        None => Err(invalid("a lease does not say what channel it has")),
    }
}

fn from_tuning(tuning: api::PullTuning) -> PullTuning {
    PullTuning {
        credits: tuning.credits,
        initial_rate: tuning.initial_rate_bps.map(Rate),
        increase: tuning.increase_bps.map(Rate),
        interval_us: tuning.interval_us,
        burst_bytes: tuning.burst_bytes,
        block_bytes: tuning.block_bytes,
        rto_ms: tuning.rto_ms,
        overtaken: tuning.overtaken,
        chance: tuning.chance,
    }
}

fn to_tuning(tuning: PullTuning) -> api::PullTuning {
    api::PullTuning {
        credits: tuning.credits,
        initial_rate_bps: tuning.initial_rate.map(|rate| rate.0),
        increase_bps: tuning.increase.map(|rate| rate.0),
        interval_us: tuning.interval_us,
        burst_bytes: tuning.burst_bytes,
        block_bytes: tuning.block_bytes,
        rto_ms: tuning.rto_ms,
        overtaken: tuning.overtaken,
        chance: tuning.chance,
    }
}

/// Tells the name of a host by its number in plans.
pub(crate) type Names<'a> = &'a dyn Fn(HostId) -> Option<String>;

pub(crate) fn granted(request_id: u64, grant: Grant, names: Names<'_>) -> Result<api::Granted, Refusal> {
    let receiver = |(name, at): (String, (IpAddr, u16))| api::Receiver { name, control_address: address(at) };
    Ok(api::Granted {
        request_id,
        response_id: grant.plan_id.0,
        accepted_size: grant.accepted_bytes,
        receivers: grant.receivers.into_iter().map(receiver).collect(),
        fabric: grant.plan.fabric.to_string(),
        channel: Some(to_channel(&grant.plan, names)?),
        service_ms: grant.service.map(Duration::as_millis),
        lease_ms: grant.lease.map(Duration::as_millis),
        plan: kept_plan(&grant.plan),
        absent: grant.absent,
        further_sources: grant.further_sources,
        missed: grant.missed,
        passed_over: passed_over(grant.passed_over),
        estimate_us: grant.estimate.map(|estimate| estimate.0 / 1_000),
    })
}

/// The channel of a plan in the service's words.
pub(crate) fn to_channel(plan: &Plan, names: Names<'_>) -> Result<api::Channel, Refusal> {
    channel_of(&plan.channel, names)
}

fn channel_of(channel: &Channel, names: Names<'_>) -> Result<api::Channel, Refusal> {
    let channel = match *channel {
        Channel::Multicast { group: (group, port), rate, attempt_interval } => {
            api::channel::Channel::Multicast(api::Multicast {
                address: group.to_string(),
                port: u32::from(port),
                rate_bps: rate.map(|rate| rate.0),
                attempt_interval_ns: attempt_interval.0,
            })
        }
        Channel::Label {
            group: (group, port),
            session,
            encoding,
            ref label,
            ref further,
            ref racks,
            ref left_out,
            rate,
        } => api::channel::Channel::Labelled(api::Labelled {
            address: group.to_string(),
            port: u32::from(port),
            rate_bps: rate.map(|rate| rate.0),
            session,
            kind: encoding.kind() as u32,
            label: label.clone(),
            further: further.clone(),
            racks: receiver_racks(racks, names)?,
            left_out: left_out.iter().filter_map(|host| names(*host)).collect(),
        }),
        Channel::Chain { .. } => api::channel::Channel::Chain(api::Chain {}),
        Channel::SourceRoutes { tree_count, pulling, ref trees } => {
            api::channel::Channel::SourceRoutes(api::SourceRoutes {
                trees: tree_count,
                payload_bytes: pulling.payload_bytes.into(),
                credits: pulling.credits,
                link_rate_bps: pulling.link_rate.0,
                tuning: (pulling.tuning != PullTuning::default()).then(|| to_tuning(pulling.tuning)),
                receivers: receiver_routes(tree_count, trees, names)?,
            })
        }
    };
    Ok(api::Channel { channel: Some(channel) })
}

/// The ways of every receiver, as packets carry them, by name and tree.
type Ways = BTreeMap<(String, u32), Vec<u8>>;

fn ways(trees: &[TreeRoutes], names: Names<'_>) -> Result<Ways, Refusal> {
    let wrong = |what: String| Refusal::new(Kind::Internal, what);
    let mut ways = Ways::new();
    for tree in trees {
        for (host, way) in &tree.routes {
            let name = names(*host).ok_or_else(|| wrong(format!("host {} has no name", host.0)))?;
            let route = route_of(way).map_err(|error| wrong(error.to_string()))?;
            ways.insert((name, tree.tree.spanning_tree), route.bytes().to_vec());
        }
    }
    Ok(ways)
}

fn receiver_racks(racks: &[(HostId, u32)], names: Names<'_>) -> Result<Vec<api::ReceiverRack>, Refusal> {
    let named = |(host, rack): &(HostId, u32)| {
        let name = names(*host).ok_or_else(|| Refusal::new(Kind::Internal, "a receiver has no name"))?;
        Ok(api::ReceiverRack { name, rack: *rack })
    };
    racks.iter().map(named).collect()
}

fn receiver_routes(
    tree_count: u32,
    trees: &[TreeRoutes],
    names: Names<'_>,
) -> Result<Vec<api::ReceiverRoutes>, Refusal> {
    let mut receivers: BTreeMap<String, Vec<Vec<u8>>> = BTreeMap::new();
    for ((name, tree), hops) in ways(trees, names)? {
        let of_receiver = receivers.entry(name).or_insert_with(|| vec![Vec::new(); tree_count as usize]);
        if let Some(way) = of_receiver.get_mut(tree as usize) {
            *way = hops;
        }
    }
    Ok(receivers.into_iter().map(|(name, trees)| api::ReceiverRoutes { name, trees }).collect())
}

/// The ways that are others than before, where both are source routes; with `cut_off`, also those of
/// receivers that have none any more.
pub(crate) fn route_changes(
    before: &Channel,
    now: &Channel,
    cut_off: bool,
    names: Names<'_>,
) -> Option<Result<Vec<api::RouteChange>, Refusal>> {
    let (Channel::SourceRoutes { trees: before, .. }, Channel::SourceRoutes { trees: now, .. }) =
        (before, now)
    else {
        return None;
    };
    let both = ways(before, names).and_then(|before| Ok((before, ways(now, names)?)));
    Some(both.map(|(before, now)| {
        let is_left = |(name, _): &&(String, u32)| cut_off || now.keys().any(|(other, _)| other == name);
        let gone = before.keys().filter(|key| !now.contains_key(*key)).filter(is_left);
        let gone = gone.map(|key| (key, Vec::new()));
        let other = now.iter().filter(|(key, hops)| before.get(*key) != Some(*hops));
        let changed = gone.chain(other.map(|(key, hops)| (key, hops.clone())));
        changed
            .map(|((receiver, tree), hops)| api::RouteChange {
                receiver: receiver.clone(),
                tree: *tree,
                hops,
            })
            .collect()
    }))
}

pub(crate) fn denied(request_id: u64, refusal: &Refusal) -> api::Denied {
    api::Denied { request_id, kind: refusal.kind.name().to_string(), reason: refusal.message.clone() }
}

/// Converts news of a stream into the message for an agent.
pub(crate) fn stream_news(
    name: String,
    word: StreamWord,
    secret: Vec<u8>,
    address_at: &dyn Fn(&str) -> Option<IpAddr>,
) -> api::StreamNews {
    use api::stream_news::News;
    let address_of = |name: &str| {
        let address = address_at(name).filter(|address| !address.is_unspecified());
        address.map(|address| address.to_string()).unwrap_or_default()
    };
    let sender = |StreamSender { name, handle, from }| {
        let (address, handle) = (address_of(&name), handle.map(|handle: Handle| handle.0));
        api::StreamSender { name, handle, address, from }
    };
    let joined = move |channel: &Channel,
                       fabric: FabricName,
                       source: String,
                       handle: Handle,
                       others,
                       since: (u64, u64)| {
        // Messages go over channels that name no hosts: no receiver answers a stream's source, so none
        // speaks for a rack.
        let mut channel = channel.clone();
        if let Channel::Label { racks, .. } = &mut channel {
            racks.clear();
        }
        let channel = Some(channel_of(&channel, &|_| None)?);
        // An agent sends streams through the interface whose address it has told us.
        let (source_address, shared) = (address_of(&source), Option::is_some(&others));
        let others: Vec<StreamSender> = Option::unwrap_or_default(others);
        let (fabric, handle, (ask, from)) = (fabric.into(), handle.0, since);
        Ok(News::Joined(api::StreamJoined {
            channel,
            fabric,
            source,
            handle,
            source_address,
            secret,
            ask,
            from,
            shared,
            senders: others.into_iter().map(sender).collect(),
        }))
    };
    let news = match word {
        StreamWord::Created => Ok(News::Created(api::StreamCreated {})),
        StreamWord::Where { receiver, ask } => Ok(News::Where(api::StreamWhere { receiver, ask })),
        StreamWord::Joined { channel, fabric, source, handle, ask, from, others } => {
            joined(&channel, fabric, source, handle, others, (ask, from))
        }
        StreamWord::Refused(refusal) => Err(stream_refusal(&refusal)),
        StreamWord::Ended => Ok(News::Ended(api::StreamEnded {})),
    };
    let news = news.unwrap_or_else(|refusal| News::Refused(denied(0, &refusal)));
    api::StreamNews { name, news: Some(news) }
}

fn stream_refusal(refusal: &StreamRefusal) -> Refusal {
    let kind = match refusal {
        StreamRefusal::Denied(why) => return denial(why),
        StreamRefusal::BadName(_) | StreamRefusal::Number(_) => Kind::Invalid,
        StreamRefusal::Taken { .. } => Kind::StreamTaken,
        StreamRefusal::Unknown(_) => Kind::StreamUnknown,
        StreamRefusal::SourceItself(_) => Kind::ReceiverTwice,
        StreamRefusal::SameHandle(_) => Kind::Invalid,
        StreamRefusal::Full(_)
        | StreamRefusal::Share(_)
        | StreamRefusal::Crowded(_)
        | StreamRefusal::Members(_) => Kind::Full,
    };
    Refusal::new(kind, refusal.to_string())
}

pub(crate) fn waiting(request_id: u64, wait: Wait) -> api::Waiting {
    api::Waiting {
        request_id,
        before: u32::try_from(wait.before).unwrap_or(u32::MAX),
        estimate_ms: wait.estimate.map(Duration::as_millis),
    }
}

/// Returns the reason why a lease has ended, for agents that have not released it.
pub(crate) fn end_reason(reason: ReleaseReason) -> Option<&'static str> {
    match reason {
        ReleaseReason::TimeOver => Some("the time is over for which the path was lent"),
        ReleaseReason::Expired => Some("no heartbeat has named the path for too long"),
        ReleaseReason::Failed => Some("what the path needs has failed, and there is no other one"),
        ReleaseReason::Released | ReleaseReason::HolderGone | ReleaseReason::Withdrawn => None,
    }
}

pub(crate) fn address((address, port): (IpAddr, u16)) -> String {
    SocketAddr::new(address, port).to_string()
}

pub(crate) fn join_refusal(refusal: &JoinRefusal) -> Refusal {
    let kind = match refusal {
        JoinRefusal::NameTaken { .. } => Kind::NameTaken,
        JoinRefusal::BadName(_) => Kind::Invalid,
        JoinRefusal::Full(_) | JoinRefusal::AddressFull { .. } => Kind::Full,
    };
    Refusal::new(kind, refusal.to_string())
}

pub(crate) fn not_member(error: &NotMember) -> Refusal {
    let kind = match error {
        NotMember::Unknown(_) => Kind::NotJoined,
        NotMember::Superseded(_) => Kind::NameTaken,
    };
    Refusal::new(kind, error.to_string())
}

pub(crate) fn denial(denial: &Denial) -> Refusal {
    let kind = match denial {
        Denial::NotMember(error) => return not_member(error),
        Denial::UnknownReceiver(_) | Denial::Lost(_) => Kind::ReceiverUnknown,
        Denial::NamedTwice(_) | Denial::SourceItself(_) => Kind::ReceiverTwice,
        Denial::NoReceivers | Denial::NobodyElse => Kind::NoReceivers,
        Denial::Sizes { .. } | Denial::RequestTaken(_) => Kind::Invalid,
        Denial::QueueFull(_) | Denial::AgentQueueFull(_) => Kind::Full,
        Denial::Draining(_) => Kind::Denied,
        Denial::NotHeld(_) => Kind::RequestUnknown,
        Denial::NotReceiver(_) => Kind::ReceiverUnknown,
        Denial::AlreadyReceiver(_) | Denial::AlreadySource(_) => Kind::ReceiverTwice,
        Denial::Rejected(_) | Denial::NoPlace { .. } | Denial::Unchangeable(_) => Kind::Denied,
    };
    Refusal::new(kind, denial.to_string())
}

fn address_of(text: &str) -> Result<IpAddr, Refusal> {
    let address: IpAddr = text.parse().map_err(|_| invalid(format!("'{text}' is not an IP address")))?;
    Ok(address.to_canonical())
}

fn port(port: u32) -> Result<u16, Refusal> {
    match u16::try_from(port) {
        Ok(port) if port > 0 => Ok(port),
        _ => Err(invalid(format!("{port} is not a port"))),
    }
}

fn bounded<T>(items: Vec<T>, most: usize, what: &str) -> Result<Vec<T>, Refusal> {
    if items.len() <= most {
        return Ok(items);
    }
    Err(Refusal::new(
        Kind::Full,
        format!("{} {what} are more than {most}, the most there can be", items.len()),
    ))
}
