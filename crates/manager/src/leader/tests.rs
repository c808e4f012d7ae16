//! Managers that compete, with agents, in virtual time over a pretended etcd: they crash, also between two
//! transactions of one change, are paused, cut off from etcd or hear it badly, begin again with other
//! settings, and find records that cannot be read or that an earlier version has written. Etcd is filled by
//! another client for a while, and forgets its history often.
//!
//! Checked from outside, by what agents were told: nothing is used by two at a time, nothing is taken from a
//! holder who lives, nothing is told that was not written, and after healing a manager leads, every agent is
//! answered and everything comes back.

use super::{LOOK, LOOK_FOR_ROOM, Role, SAY_AGAIN, Trouble, compete};
use crate::config::ManagerConfig;
use crate::convert;
use crate::core::{Around, Core, Drainable, Seat};
use crate::devices::{Device, DeviceId, Job, News};
use crate::fabrics::{self, Hosts};
use crate::store::pretended::{Link, Server};
use crate::store::{Span, Store, StoreError};
use polycast_api::PROTOCOL_VERSION;
use polycast_api::error::Kind;
use polycast_api::manager::agent_message::Message as Said;
use polycast_api::manager::manager_message::Message as Told;
use polycast_api::manager::{self as api, ManagerMessage, channel};
use polycast_api::settings::SettingsError;
use polycast_net::tls::Security;
use polycast_planning::{PartName, Plan};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use std::time::Duration;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;
use tokio::time::Instant;

const AGENTS: usize = 6;
const MANAGERS: usize = 3;
const STEP: Duration = Duration::from_millis(50);
/// As managers and agents have it unless told otherwise.
const RECONNECT: Duration = Duration::from_secs(2);
const ANSWER: Duration = Duration::from_secs(3);
/// Quota of etcd's database; the managers' data is a small part of it.
const QUOTA_BYTES: u64 = 1 << 20;
/// History is kept for so long here, and no more of it than this.
const SPAN: Span = Span { age: Duration::from_secs(5), bytes: 16 << 10 };

/// Numbers from a seed.
struct Random(u64);

impl Random {
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % end
    }

    fn one_in(&mut self, count: u64) -> bool {
        self.below(count) == 0
    }

    fn millis(&mut self, from: u64, to: u64) -> Duration {
        Duration::from_millis(from + self.below(to - from))
    }
}

/// A process that can be stopped for a while.
#[derive(Debug, Default)]
struct Gate(Mutex<(bool, Option<Waker>)>);

impl Gate {
    fn is_closed(&self) -> bool {
        self.0.lock().unwrap().0
    }

    fn set_closed(&self, closed: bool) {
        let mut gate = self.0.lock().unwrap();
        gate.0 = closed;
        if let Some(waker) = gate.1.take_if(|_| !closed) {
            waker.wake();
        }
    }
}

/// Future that runs in a stoppable process.
struct Stoppable<F> {
    run: Pin<Box<F>>,
    gate: Arc<Gate>,
}

impl<F: Future> Future for Stoppable<F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<F::Output> {
        {
            let mut gate = self.gate.0.lock().unwrap();
            if gate.0 {
                gate.1 = Some(context.waker().clone());
                return Poll::Pending;
            }
        }
        self.run.as_mut().poll(context)
    }
}

/// A device that does what it is told.
struct Faithful;

impl Device for Faithful {
    fn run(
        self: Box<Self>,
        mut jobs: mpsc::Receiver<Job>,
        _news: mpsc::Sender<News>,
    ) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        Box::pin(async move {
            while let Some(job) = jobs.recv().await {
                let _ = job.reply.send(Ok(()));
            }
        })
    }
}

fn faithful(
    config: &ManagerConfig,
    hosts: &Hosts,
    security: Option<&Security>,
) -> Result<BTreeMap<DeviceId, Box<dyn Device>>, SettingsError> {
    let ids = fabrics::devices(config, hosts, security)?.into_keys();
    Ok(ids.map(|id| (id, Box::new(Faithful) as Box<dyn Device>)).collect())
}

/// Two racks of hosts with a fibre each, and two addresses besides. The hosts of a rack come in any order,
/// sometimes with one more in front of them, and sometimes without the last.
fn settings(random: &mut Random) -> ManagerConfig {
    let mut text = String::from(
        "fabrics = ['ocs', 'ip-multicast']\n[etcd]\nendpoints = ['127.0.0.1:1']\nadvertise = '127.0.0.1:2'\n\
         [ip-multicast]\npool = '239.1.0.0/31'\n\
         [ocs]\ntl1 = '127.0.0.1:1'\nsplitters = 1\nsplitter-fanout = 4\nrate = '10gbit'\n",
    );
    for rack in 0..2 {
        let mut names: Vec<String> = (0..3).map(|place| format!("h{}", 3 * rack + place)).collect();
        let turns = random.below(3) as usize;
        names.rotate_left(turns);
        if rack == 0 && random.one_in(3) {
            names.insert(0, format!("another-{}", random.below(4)));
        }
        if rack == 1 && random.one_in(4) {
            names.retain(|name| name != "h5");
        }
        let hosts: Vec<String> = names
            .iter()
            .zip(1..)
            .map(|(name, port)| format!("{{ name = '{name}', port = {port} }}"))
            .collect();
        let hosts = hosts.join(", ");
        text +=
            &format!("[[tor]]\nopenflow = '127.0.0.1:{}'\nfibre-ports = [99]\nhosts = [{hosts}]\n", 3 + rack);
    }
    ManagerConfig::from_toml(&text).unwrap()
}

struct Node {
    task: Option<JoinHandle<()>>,
    /// The hosts that its settings name.
    names: BTreeSet<String>,
    gate: Arc<Gate>,
    link: Link,
    role: watch::Receiver<Role>,
    down_until: Option<Instant>,
    paused_until: Option<Instant>,
    cut_until: Option<Instant>,
    dies_until: Option<Instant>,
}

struct Held {
    lease: api::Lease,
    resources: BTreeSet<String>,
    until: Instant,
}

#[derive(Default)]
struct Asked {
    request: u64,
    receivers: Vec<String>,
    said: bool,
}

struct Session {
    node: usize,
    gate: Arc<Gate>,
    seat: Seat,
    messages: mpsc::Receiver<Result<ManagerMessage, tonic::Status>>,
    /// On the way to the manager.
    out: VecDeque<Said>,
    beats: VecDeque<(u64, Instant)>,
    next_beat: Instant,
}

struct Agent {
    name: String,
    incarnation: u64,
    session: Option<Session>,
    tries: usize,
    next_try: Instant,
    beat: u64,
    contact: Instant,
    asked: Option<Asked>,
    held: BTreeMap<u64, Held>,
    /// Paths that were released, and the time when that was last reported.
    owed: BTreeMap<u64, (u64, Option<Instant>)>,
    next_request: u64,
}

struct World {
    seed: u64,
    random: Random,
    server: Server,
    nodes: Vec<Node>,
    agents: Vec<Agent>,
    around: Around,
    granted: usize,
    leaders: usize,
    restarts: usize,
    /// The paths whose records have been made unreadable.
    spoilt: BTreeSet<u64>,
    /// Another client fills etcd until then.
    full_until: Option<Instant>,
    fillings: usize,
}

impl World {
    fn new(seed: u64) -> Self {
        let now = Instant::now();
        let wall = move || 1_700_000_000_000_000_000 + now.elapsed().as_nanos() as u64;
        let around = Around::pretended(Arc::new(wall), faithful);
        let agent = |number: usize| Agent {
            name: format!("h{number}"),
            incarnation: 1,
            session: None,
            tries: number,
            next_try: now,
            beat: 0,
            contact: now,
            asked: None,
            held: BTreeMap::new(),
            owed: BTreeMap::new(),
            next_request: 0,
        };
        let server = Server::with_seed(seed);
        if seed.is_multiple_of(2) {
            OLD.iter()
                .for_each(|(key, value)| server.put(&format!("/polycast/state/{key}"), value.as_bytes()));
        }
        let mut world = World {
            seed,
            random: Random(seed),
            server,
            nodes: Vec::new(),
            agents: (0..AGENTS).map(agent).collect(),
            around,
            granted: 0,
            leaders: 0,
            restarts: 0,
            spoilt: BTreeSet::new(),
            full_until: None,
            fillings: 0,
        };
        world.server.set_quota(QUOTA_BYTES, seed.is_multiple_of(3));
        for at in 0..MANAGERS {
            let node = world.start(at);
            world.nodes.push(node);
        }
        world
    }

    fn start(&mut self, at: usize) -> Node {
        let config = settings(&mut self.random);
        let names = fabrics::host_names(&config).map(str::to_string).collect();
        let (link, gate) = (self.server.link(), Arc::<Gate>::default());
        let store = Store::new(link.clone(), "/polycast").keeping(SPAN);
        let (role, roles) = watch::channel(Role::Follower(None));
        let (around, address) = (self.around.clone(), format!("manager-{at}:1"));
        let run = Box::pin(async move { compete(&config, &store, &address, &role, &around).await });
        let task = tokio::spawn(Stoppable { run, gate: Arc::clone(&gate) });
        Node {
            task: Some(task),
            names,
            gate,
            link,
            role: roles,
            down_until: None,
            paused_until: None,
            cut_until: None,
            dies_until: None,
        }
    }

    fn leader(&self) -> Option<usize> {
        let leads = |node: &Node| node.task.is_some() && matches!(&*node.role.borrow(), Role::Leader(_));
        self.nodes.iter().position(leads)
    }

    fn fail_something(&mut self, now: Instant) {
        let at = self.leader().filter(|_| !self.random.one_in(3));
        let at = at.unwrap_or_else(|| self.random.below(MANAGERS as u64) as usize);
        let until = Some(now + self.random.millis(200, 6_000));
        match self.random.below(8) {
            0 | 1 => {
                // A record that cannot be read, where no manager is left that knows what it was.
                if self.leader() == Some(at) && self.random.one_in(2) {
                    self.spoil();
                }
                self.crash(at, until);
            }
            2 => {
                self.nodes[at].gate.set_closed(true);
                self.nodes[at].paused_until = until;
            }
            3 => {
                self.nodes[at].link.set_cut(true);
                self.nodes[at].cut_until = until;
            }
            4 => self.nodes[at].link.lose_one_in(4 + self.random.below(40)),
            5 => {
                self.nodes[at].link.crash_after(1 + self.random.below(4));
                self.nodes[at].dies_until = until;
            }
            6 => {
                self.server.set_foreign(QUOTA_BYTES);
                (self.full_until, self.fillings) = (until, self.fillings + 1);
            }
            _ => {
                let agent = &mut self.agents[self.random.below(AGENTS as u64) as usize];
                let (name, incarnation) = (agent.name.clone(), agent.incarnation + 1);
                let (tries, next_request) = (agent.tries, agent.next_request + 1_000);
                *agent = Agent {
                    name,
                    incarnation,
                    session: None,
                    tries,
                    next_try: now + self.random.millis(100, 3_000),
                    beat: 0,
                    contact: now,
                    asked: None,
                    held: BTreeMap::new(),
                    owed: BTreeMap::new(),
                    next_request,
                };
            }
        }
    }

    fn spoil(&mut self) {
        let leases = self.server.keys("/polycast/state/lease/");
        if !leases.is_empty() {
            let key = &leases[self.random.below(leases.len() as u64) as usize];
            self.server.put(key, b"{\"Lease\":{\"of\":\"a later version\"}}");
            self.spoilt.extend(key.rsplit('/').next().and_then(|id| id.parse::<u64>().ok()));
        }
        self.server.put("/polycast/state/not/ours", b"\xff");
    }

    fn crash(&mut self, at: usize, until: Option<Instant>) {
        if let Some(task) = self.nodes[at].task.take() {
            task.abort();
        }
        self.nodes[at].down_until = until;
        for agent in &mut self.agents {
            agent.session.take_if(|session| session.node == at);
        }
    }

    fn heal(&mut self, now: Instant, all: bool) {
        let is_over = |until: &mut Instant| all || *until <= now;
        if self.full_until.take_if(is_over).is_some() {
            self.server.set_foreign(0);
        }
        for at in 0..MANAGERS {
            if self.nodes[at].dies_until.take_if(is_over).is_some() {
                self.crash(at, Some(now));
            }
            let node = &mut self.nodes[at];
            if node.paused_until.take_if(is_over).is_some() {
                node.gate.set_closed(false);
            }
            if node.cut_until.take_if(is_over).is_some() {
                node.link.set_cut(false);
            }
            if all {
                node.link.lose_one_in(0);
            }
            if node.down_until.take_if(is_over).is_some() {
                self.restarts += 1;
                self.nodes[at] = self.start(at);
            }
        }
    }

    async fn live(&mut self) {
        let begun = Instant::now();
        let mut next_fault = begun + Duration::from_secs(6);
        let mut led_by = None;
        for phase in [Duration::from_secs(200), Duration::from_secs(120)] {
            let (ends, fails) = (Instant::now() + phase, phase > Duration::from_secs(150));
            while Instant::now() < ends {
                let now = Instant::now();
                if fails && now >= next_fault {
                    self.fail_something(now);
                    next_fault = now + self.random.millis(500, 8_000);
                }
                self.heal(now, !fails);
                if self.leader().is_some() && self.leader() != led_by {
                    (led_by, self.leaders) = (self.leader(), self.leaders + 1);
                }
                for at in 0..AGENTS {
                    self.act(at, now, fails);
                }
                self.check_claims(now);
                tokio::time::sleep(STEP).await;
            }
        }
        let seed = self.seed;
        assert!(self.leader().is_some(), "seed {seed}: no manager leads though nothing fails any more");
        for agent in &self.agents {
            let name = &agent.name;
            assert!(agent.asked.is_none(), "seed {seed}: {name} was not answered after healing");
            assert!(agent.held.is_empty() && agent.session.is_some(), "seed {seed}: {name} is not done");
        }
        for kind in ["lease", "pending"] {
            let left = self.server.keys(&format!("/polycast/state/{kind}/"));
            assert!(left.is_empty(), "seed {seed}: {left:?} are left");
        }
        // Two spans of history, and what there is.
        let in_use_bytes = self.server.in_use_bytes();
        assert!(in_use_bytes < 4 * SPAN.bytes, "seed {seed}: {in_use_bytes} bytes are in use in the end");
        assert!(!self.server.is_full(), "seed {seed}: there is room, and the alarm stands");
    }

    /// Nothing is used by two, as far as both can know.
    fn check_claims(&self, now: Instant) {
        let mut users: BTreeMap<&String, &String> = BTreeMap::new();
        for agent in self.agents.iter().filter(|agent| now - agent.contact < RECONNECT) {
            for resource in agent.held.values().flat_map(|held| &held.resources) {
                if let Some(other) = users.insert(resource, &agent.name) {
                    panic!("seed {}: {resource} is lent twice, to {other} and to {}", self.seed, agent.name);
                }
            }
        }
    }

    fn act(&mut self, at: usize, now: Instant, wishes: bool) {
        if self.agents[at].session.is_none() && now >= self.agents[at].next_try {
            self.join(at, now);
        }
        self.listen(at, now);
        let agent = &mut self.agents[at];
        let over: Vec<u64> =
            agent.held.iter().filter(|(_, held)| held.until <= now).map(|(id, _)| *id).collect();
        for response in over {
            if let Some(held) = agent.held.remove(&response) {
                agent.owed.insert(response, (held.lease.request_id, None));
            }
        }
        if wishes && agent.asked.is_none() && agent.held.len() < 2 && self.random.one_in(60) {
            agent.next_request += 1;
            let first = (at + 1 + self.random.below(AGENTS as u64 - 1) as usize) % AGENTS;
            let receivers = vec![format!("h{first}")];
            agent.asked = Some(Asked { request: agent.next_request, receivers, said: false });
        }
        self.speak(at, now);
    }

    fn join(&mut self, at: usize, now: Instant) {
        let agent = &mut self.agents[at];
        let node_at = agent.tries % MANAGERS;
        let node = &self.nodes[node_at];
        agent.next_try = now + Duration::from_millis(300);
        agent.tries += 1;
        if node.task.is_none() || node.gate.is_closed() {
            return;
        }
        let core = match &*node.role.borrow() {
            Role::Leader(core) => Arc::clone(core),
            Role::Follower(_) | Role::Leaderless(_) => return,
        };
        let join = api::Join {
            protocol_version: PROTOCOL_VERSION,
            agent: Some(api::AgentId { name: agent.name.clone(), incarnation: agent.incarnation }),
            address: format!("10.0.0.{at}"),
            control_port: 7401,
            leases: agent.held.values().map(|held| held.lease.clone()).collect(),
            node: None,
        };
        let (outbox, messages) = mpsc::channel(4_096);
        let joined = Told::Joined(api::Joined::default());
        let join = convert::join(join, std::net::Ipv4Addr::from([10, 0, 0, at as u8]).into()).unwrap();
        let Ok(seat) = core.join(join, outbox, joined) else { return };
        agent.tries = node_at;
        agent.owed.values_mut().for_each(|(_, said)| *said = None);
        agent.asked.iter_mut().for_each(|asked| asked.said = false);
        let (gate, out, beats) = (Arc::clone(&node.gate), VecDeque::new(), VecDeque::new());
        agent.session = Some(Session { node: node_at, gate, seat, messages, out, beats, next_beat: now });
    }

    fn speak(&mut self, at: usize, now: Instant) {
        let agent = &mut self.agents[at];
        let Some(session) = &mut agent.session else { return };
        if let Some(asked) = agent.asked.as_mut().filter(|asked| !asked.said) {
            asked.said = true;
            session.out.push_back(Said::Request(api::PathRequest {
                request_id: asked.request,
                app_id: vec![0; 16],
                data_id: asked.request,
                data_size: 1_000,
                remaining_size: 1_000,
                receivers: asked.receivers.clone(),
                ..api::PathRequest::default()
            }));
        }
        for (response_id, (request_id, said)) in agent.owed.iter_mut().filter(|(_, (_, said))| said.is_none())
        {
            *said = Some(now);
            let (request_id, response_id) = (*request_id, *response_id);
            session.out.push_back(Said::Release(api::Release {
                request_id,
                response_id,
                ..Default::default()
            }));
        }
        if now >= session.next_beat {
            session.next_beat = now + Duration::from_secs(1);
            agent.beat += 1;
            session.beats.push_back((agent.beat, now));
            let leases = agent.held.keys().copied().collect();
            session.out.push_back(Said::Heartbeat(api::Heartbeat { number: agent.beat, leases, node: None }));
        }
        let mut ended = session.beats.front().is_some_and(|(_, sent)| now - *sent >= ANSWER);
        while !ended && !session.gate.is_closed() {
            let Some(message) = session.out.pop_front() else { break };
            ended = session.seat.handle(message).is_err();
        }
        if ended {
            agent.session = None;
            agent.tries += 1;
        }
    }

    fn listen(&mut self, at: usize, now: Instant) {
        loop {
            let Some(session) = &mut self.agents[at].session else { return };
            match session.messages.try_recv() {
                Ok(Ok(ManagerMessage { message: Some(message) })) => self.hear(at, now, message),
                Ok(Ok(ManagerMessage { message: None })) => {}
                Err(mpsc::error::TryRecvError::Empty) => return,
                Ok(Err(_)) | Err(mpsc::error::TryRecvError::Disconnected) => {
                    self.agents[at].session = None;
                    self.agents[at].tries += 1;
                }
            }
        }
    }

    fn hear(&mut self, at: usize, now: Instant, message: Told) {
        match message {
            Told::Granted(granted) => self.granted(at, now, granted),
            Told::Denied(denied) => {
                let agent = &mut self.agents[at];
                if let Some(asked) = agent.asked.take_if(|asked| asked.request == denied.request_id)
                    && denied.kind == "not-joined"
                {
                    agent.asked = Some(Asked { said: false, ..asked });
                }
            }
            Told::Heartbeat(answer) => {
                let agent = &mut self.agents[at];
                let Some(session) = &mut agent.session else { return };
                let sent =
                    session.beats.iter().find(|(number, _)| *number == answer.number).map(|(_, sent)| *sent);
                session.beats.retain(|(number, _)| *number > answer.number);
                let sent = sent.unwrap_or(now);
                // When it was heard may be later.
                let silent = now - agent.contact;
                agent.contact = sent;
                agent.owed.retain(|_, (_, said)| said.is_none_or(|said| said >= sent));
                for lost in answer.lost_leases {
                    self.lose(at, lost, silent, "is said to be another one's");
                }
            }
            Told::Ended(ended) => {
                let silent = now - self.agents[at].contact;
                self.lose(at, ended.response_id, silent, &ended.reason);
            }
            Told::Replanned(replanned) => {
                if let Some(held) = self.agents[at].held.get_mut(&replanned.response_id) {
                    (held.lease.fabric, held.lease.channel) = (replanned.fabric, replanned.channel);
                    held.lease.plan = replanned.plan;
                    held.resources = resources(&held.lease);
                }
            }
            _ => {}
        }
    }

    fn granted(&mut self, at: usize, now: Instant, granted: api::Granted) {
        let key = format!("/polycast/state/lease/{:020}", granted.response_id);
        assert!(self.server.was_written(&key), "seed {}: {key} is told and not written", self.seed);
        let agent = &mut self.agents[at];
        if agent.asked.take_if(|asked| asked.request == granted.request_id).is_none() {
            if !agent.held.contains_key(&granted.response_id) {
                agent.owed.entry(granted.response_id).or_insert((granted.request_id, None));
            }
            return;
        }
        let lease = api::Lease {
            request_id: granted.request_id,
            response_id: granted.response_id,
            app_id: vec![0; 16],
            data_id: granted.request_id,
            receivers: granted.receivers.into_iter().map(|r| r.name).chain(granted.absent).collect(),
            accepted_size: granted.accepted_size,
            fabric: granted.fabric,
            channel: granted.channel,
            left_ms: None,
            plan: granted.plan,
            or_fail: false,
            further_sources: Vec::new(),
        };
        let (resources, until) = (resources(&lease), now + self.random.millis(500, 12_000));
        agent.held.insert(granted.response_id, Held { lease, resources, until });
        self.granted += 1;
    }

    /// Only an agent that was away for so long that it may have been dead can lose a path; or one whose path
    /// leads to a host that the settings do not name any more, if its record cannot be read either: then
    /// there is nothing that says the way.
    fn lose(&mut self, at: usize, response: u64, silent: Duration, why: &str) {
        let (seed, agent) = (self.seed, &mut self.agents[at]);
        let Some(held) = agent.held.remove(&response) else { return };
        let names = agent.session.as_ref().map(|session| &self.nodes[session.node].names);
        let is_named = |host: &String| names.is_none_or(|names| names.contains(host));
        let nothing_says = self.spoilt.contains(&response)
            && !held.lease.receivers.iter().chain([&agent.name]).all(is_named);
        let name = &agent.name;
        assert!(
            silent >= RECONNECT || nothing_says,
            "seed {seed}: {response} of {name}, which lives, {why} after {silent:?}"
        );
    }
}

/// Returns the resources of a path.
fn resources(lease: &api::Lease) -> BTreeSet<String> {
    if let Ok(plan) = serde_json::from_slice::<Plan>(&lease.plan) {
        return plan.resources.iter().map(ToString::to_string).collect();
    }
    match lease.channel.clone().and_then(|channel| channel.channel) {
        Some(channel::Channel::Multicast(to)) => [format!("{}:{}", to.address, to.port)].into(),
        other => panic!("{other:?}"),
    }
}

/// Records that a manager of an earlier version has left: it numbered hosts by their order in its settings
/// and recorded that nowhere.
const OLD: [(&str, &str); 4] = [
    (
        "member/h0",
        r#"{"Member":{"agent":{"name":"h0","incarnation":77},"host":4,"address":[[10,0,0,9],7401]}}"#,
    ),
    (
        "member/h3",
        r#"{"Member":{"agent":{"name":"h3","incarnation":78},"host":0,"address":[[10,0,0,3],7401]}}"#,
    ),
    (
        "lease/00000000000000000005",
        r#"{"Lease":{"key":{"agent":{"name":"h0","incarnation":77},"request":1},"object":{"app":[0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0],"data":1},"group":{"source":4,"receivers":[0]},"grant":{"plan_id":5,"accepted_bytes":9,"receivers":[["h3",[[10,0,0,3],7401]]],"plan":{"fabric":"ip-multicast","resources":[{"MulticastAddress":{"address":[239,1,0,0],"port":7410}}],"uses":[],"commands":[],"channel":{"Multicast":{"group":[[239,1,0,0],7410],"rate":null,"attempt_interval":1000000}}},"service":null,"lease":null},"granted_at":1,"ends_at":null}}"#,
    ),
    ("pending/00000000000000000003", r#"{"Pending":"of an even older one"}"#),
];

#[tokio::test(start_paused = true)]
async fn a_new_leader_always_leads_and_nothing_is_lent_twice() {
    let (mut granted, mut leaders, mut restarts, mut spoilt) = (0, 0, 0, 0);
    let (mut fillings, mut defragmentations) = (0, 0);
    let first = std::env::var("POLYCAST_SEED").map_or(0, |text| text.parse::<u64>().unwrap());
    for seed in first..first + SEEDS {
        let mut world = World::new(seed);
        world.live().await;
        granted += world.granted;
        leaders += world.leaders;
        restarts += world.restarts;
        spoilt += world.spoilt.len();
        fillings += world.fillings;
        defragmentations += world.server.upkeep().1;
        world.nodes.iter_mut().filter_map(|node| node.task.take()).for_each(|task| task.abort());
    }
    println!("{granted} paths lent by {leaders} leaders, {restarts} restarts, {spoilt} records spoilt");
    println!("etcd filled {fillings} times, and defragmented {defragmentations} times");
    assert!(granted as u64 > 20 * SEEDS && leaders as u64 > 4 * SEEDS, "too little happens");
    assert!(restarts as u64 > 4 * SEEDS && spoilt > 0, "too little fails");
    assert!(fillings as u64 > SEEDS && defragmentations > SEEDS / 2, "etcd is seldom full");
}

/// Number of seeds that a test runs.
const SEEDS: u64 = 8;

/// Before there is any leader, every record is of another kind, or of hosts that settings do not name: a
/// manager leads, and what it has found is out of its way.
#[tokio::test(start_paused = true)]
async fn a_manager_leads_whatever_etcd_holds() {
    let server = Server::new();
    // A hundred times as long as is assumed.
    let lie =
        r#"{"Learned":{"fabrics":[{"fabric":"ip-multicast","set_up":6553600,"carrying":65536,"at":1}]}}"#;
    let more = [("member/gone", OLD[0].1), ("kept", "[]"), ("pods/web", "k8s"), ("learned", lie)];
    for (key, value) in OLD.iter().chain(&more) {
        server.put(&format!("/polycast/state/{key}"), value.as_bytes());
    }
    server.put("/polycast/journaled", b"7");
    let mut world = World::new(1);
    world.server = server;
    world.nodes.drain(..).filter_map(|node| node.task).for_each(|task| task.abort());
    let node = world.start(0);
    let mut role = node.role.clone();
    let leads = role.wait_for(|role| matches!(role, Role::Leader(_)));
    tokio::time::timeout(Duration::from_secs(2), leads).await.expect("it leads soon").unwrap();
    // As long as a holder may come, the next leader has to know of it too.
    tokio::time::sleep(Duration::from_secs(3)).await;
    assert_eq!(world.server.keys("/polycast/aside/"), Vec::<String>::new());
    tokio::time::sleep(Duration::from_secs(3)).await;
    let aside = world.server.keys("/polycast/aside/");
    let names = ["kept", "learned", "member/gone", "pending/00000000000000000003"];
    assert_eq!(aside, names.map(|key| format!("/polycast/aside/{key}")));
    assert!(world.server.keys("/polycast/state/").contains(&"/polycast/state/pods/web".to_string()));
    node.task.unwrap().abort();
}

/// A key of the leader that another program has put there keeps managers from leading. They say so.
#[tokio::test(start_paused = true)]
async fn a_leader_that_is_no_manager_is_said() {
    let mut world = alone(0);
    world.server.put("/polycast/leader", b"10.0.0.1:7400");
    let node = world.start(0);
    let mut role = node.role.clone();
    let is_said = |role: &Role| matches!(role, Role::Leaderless(why) if why.contains("names no manager"));
    let said = role.wait_for(is_said);
    tokio::time::timeout(Duration::from_secs(2), said).await.expect("it is said soon").unwrap();
    node.task.unwrap().abort();
}

/// One that cannot reach etcd does not go on as if it led.
#[tokio::test(start_paused = true)]
async fn a_leader_that_is_cut_off_steps_down() {
    let mut world = World::new(3);
    world.nodes.drain(..).filter_map(|node| node.task).for_each(|task| task.abort());
    let node = world.start(0);
    let mut role = node.role.clone();
    let leads = role.wait_for(|role| matches!(role, Role::Leader(_)));
    tokio::time::timeout(Duration::from_secs(5), leads).await.expect("it leads soon").unwrap();
    node.link.set_cut(true);
    let follows = role.wait_for(|role| !matches!(role, Role::Leader(_)));
    tokio::time::timeout(Duration::from_secs(4), follows).await.expect("it steps down").unwrap();
    node.task.unwrap().abort();
}

/// Waits until a manager leads; gives its core.
async fn leading(role: &mut watch::Receiver<Role>) -> Arc<Core> {
    let leads = role.wait_for(|role| matches!(role, Role::Leader(_)));
    let role = tokio::time::timeout(Duration::from_secs(30), leads).await.expect("it leads soon").unwrap();
    let Role::Leader(core) = &*role else { unreachable!("it leads") };
    Arc::clone(core)
}

/// A part counts as taken out, or back, when the next leader knows it too, and not before.
#[tokio::test(start_paused = true)]
async fn a_drain_that_is_not_written_fails() {
    let mut world = alone(1);
    let node = world.nodes.remove(0);
    let mut role = node.role.clone();
    let part: PartName = "splitter:0".parse().unwrap();
    for is_out in [true, false] {
        let core = leading(&mut role).await;
        node.link.set_cut(true);
        let splitter = Drainable::Part(part);
        let refused = tokio::time::timeout(Duration::from_secs(30), core.drain(&splitter, is_out)).await;
        let refused = refused.expect("it is answered when the manager leads no more").unwrap_err();
        assert_eq!(refused.kind, Kind::ManagerUnreachable, "{refused}");
        node.link.set_cut(false);
        let core = leading(&mut role).await;
        let is_there = || core.snapshot().network.drained.contains(&part);
        assert_eq!(is_there(), !is_out, "nothing of it was written");
        assert!(core.drain(&splitter, is_out).await.unwrap().is_new);
        assert!(!core.drain(&splitter, is_out).await.unwrap().is_new, "that is answered as well");
        let parts = world.server.keys("/polycast/state/parts");
        assert_eq!((is_there(), parts.len()), (is_out, usize::from(is_out)), "it is written");
        let unknown = Drainable::Part("splitter:9".parse().unwrap());
        let unknown = core.drain(&unknown, is_out).await.unwrap_err();
        assert_eq!(unknown.kind, Kind::Invalid, "{unknown}");
    }
    node.task.unwrap().abort();
}

/// A world without agents, of these managers.
fn alone(count: usize) -> World {
    let mut world = World::new(3);
    world.nodes.drain(..).filter_map(|node| node.task).for_each(|task| task.abort());
    world.server = Server::new();
    world.server.set_quota(QUOTA_BYTES, false);
    for at in 0..count {
        let node = world.start(at);
        world.nodes.push(node);
    }
    world
}

/// An etcd that another client fills is named to all who ask; it is not defragmented again and again. When
/// there is room a manager leads by itself, and only one of them has made room.
#[tokio::test(start_paused = true)]
async fn a_manager_leads_again_when_a_full_etcd_has_room() {
    let mut world = alone(3);
    let mut looked = 0;
    while world.leader().is_none() {
        tokio::time::sleep(LOOK).await;
        looked += 1;
        assert!(looked < 100, "none leads");
    }
    let first = world.leader().unwrap();
    world.server.set_foreign(QUOTA_BYTES);
    // It leads as long as it has nothing to write: that takes nothing.
    tokio::time::sleep(Duration::from_secs(10)).await;
    assert_eq!(world.leader(), Some(first));
    world.join(first, Instant::now());
    let mut role = world.nodes[first].role.clone();
    let is_told = |role: &Role, what: &str| matches!(role, Role::Leaderless(why) if why.contains(what));
    let full = role.wait_for(|role| is_told(role, "etcd's database is full"));
    tokio::time::timeout(Duration::from_secs(5), full).await.expect("it steps down").unwrap();
    tokio::time::sleep(Duration::from_secs(60)).await;
    for node in &world.nodes {
        assert!(is_told(&node.role.borrow(), "start etcd with a larger"), "{:?}", node.role.borrow());
    }
    assert_eq!(world.server.upkeep().1, 3, "each of them has tried once");
    let asked = world.server.revision();
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert_eq!(world.server.revision(), asked, "nothing is written meanwhile");
    world.server.set_foreign(0);
    tokio::time::sleep(LOOK_FOR_ROOM + Duration::from_secs(2)).await;
    assert!(world.leader().is_some(), "{:?}", world.nodes[0].role.borrow());
    assert_eq!((world.server.upkeep().1, world.server.is_full()), (4, false), "one of them has made room");
    world.nodes.iter_mut().filter_map(|node| node.task.take()).for_each(|task| task.abort());
}

/// A fault is logged when it begins, when it becomes something else, and once a minute.
#[tokio::test(start_paused = true)]
async fn what_is_wrong_with_etcd_is_not_said_five_times_a_second() {
    let mut trouble = Trouble::default();
    let silent = || StoreError::Etcd("it does not answer in time".into());
    let mut said = 0;
    for _ in 0..5 * 150 {
        said += usize::from(trouble.say(&StoreError::Full));
        tokio::time::sleep(LOOK).await;
    }
    assert_eq!(said, 3, "in 150 s");
    assert!(trouble.say(&silent()), "it is something else");
    assert!(!trouble.say(&silent()));
    trouble.is_over();
    assert!(trouble.say(&silent()), "it begins");
    tokio::time::sleep(SAY_AGAIN).await;
    assert!(trouble.say(&silent()));
}
