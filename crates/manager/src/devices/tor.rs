//! The switch of a rack as a device: OpenFlow 1.3 (Blast section IV-B, Shufflecast sections III-A3 and
//! III-B).
//!
//! Two tables are ours. The first decides what goes into a fibre: what a source's host sends to its group,
//! and, where the rack relays, what comes from another rack's hosts. The second copies to the group's
//! receivers in the rack. Where one port has the fibre into the splitter and one from another splitter, a
//! table between them sends light back by the port that it came from. A switch with one table has a rule for
//! each pair of a group and a rack that it relays for.
//!
//! A switch with several splitters stands for several logical ToRs and gets several copies. Its rule for a
//! source takes those of one port and sends them into all splitters that relay; what comes in elsewhere is
//! dropped.
//!
//! A rack's relaying takes as many rules as it relays for racks, whatever ports their light comes in by. All
//! our rules match packets to groups, at priorities from [`PRIORITY_LIGHT`] up; the rest of the tables is the
//! operator's, whose rules for packets to groups have to lie below.

use super::switch_door::SwitchDoor;
use super::{Change, Device, DeviceError, Fibre, Job, News, PAUSES, until};
use polycast_net::devices::Pauses;
use polycast_net::devices::openflow::{
    Action, Change as Verb, Endpoint, Field, FlowMod, GroupMod, Instruction, Link, Match, Message, Port,
    PortChange, PortEvent, Switch, SwitchOptions, port,
};
use polycast_planning::{DeviceCommand, HostId, RackPort};
use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{broadcast, mpsc, watch};
use tokio::time::Instant;

/// Packets that a host sends to its group.
const PRIORITY_SOURCE: u16 = 10_120;
/// Our own light, which has come back.
const PRIORITY_OWN: u16 = 10_110;
/// Light of one rack to one group, where a single table both relays and copies it.
const PRIORITY_BOTH: u16 = 10_108;
/// Light to one group, where a single table copies it.
const PRIORITY_GROUP: u16 = 10_107;
/// Light that is relayed.
const PRIORITY_RELAY: u16 = 10_105;
/// Light to any group.
const PRIORITY_LIGHT: u16 = 10_100;
/// The table after the first: it copies to receivers, or, where a port has both fibres, relays.
const SECOND: u8 = 1;
const THIRD: u8 = 2;
const ALL_TABLES: u8 = 0xff;
/// Marks our rules; `PLYC` in letters.
const COOKIE: u64 = 0x504c_5943 << 32;
const COOKIE_MASK: u64 = u64::MAX << 32;
/// Ports of one rule: so many fit into a message of OpenFlow, with their actions.
const RULE_PORTS_MAX: usize = 1_000;
/// A switch that cannot be reached for this long counts as failed.
const UNREACHED_FOR: Duration = Duration::from_secs(1);

/// Ports of a rack's switch and their uses, by OpenFlow's numbers.
#[derive(Clone, Debug, Default)]
pub(crate) struct TorPorts {
    /// The hosts.
    pub(crate) hosts: BTreeMap<HostId, u32>,
    /// Fibres to the circuit switch, or those into splitters.
    pub(crate) fibres: Vec<u32>,
    /// Fibres from splitters.
    pub(crate) from_splitters: Vec<u32>,
    /// Addresses and masks of all racks' hosts; only where racks relay.
    pub(crate) subnets: Arc<Vec<([u8; 4], [u8; 4])>>,
    /// The groups that are relayed: address and mask.
    pub(crate) relayed: ([u8; 4], [u8; 4]),
    /// The queue of every port that our packets take.
    pub(crate) queue: Option<u32>,
    /// The class of service (DSCP) that our packets are marked with where they come from a host.
    pub(crate) dscp: Option<u8>,
    /// True if the switch has one table only.
    pub(crate) one_table: bool,
}

/// Way to reach a switch.
#[derive(Clone, Debug)]
pub(crate) enum Reach {
    /// It listens here, and has this number if the settings say one.
    At(Endpoint, Option<u64>),
    /// It comes to this door.
    Comes(Arc<SwitchDoor>, u64),
}

/// The switch, before its task runs.
#[derive(Debug)]
pub(crate) struct Tor {
    rack: u32,
    reach: Reach,
    options: SwitchOptions,
    ports: TorPorts,
    /// Rules that an earlier manager has left are swept away this long after the first connection.
    sweep_after: Duration,
}

impl Tor {
    pub(crate) fn new(
        rack: u32,
        reach: Reach,
        options: SwitchOptions,
        ports: TorPorts,
        sweep_after: Duration,
    ) -> Self {
        Tor { rack, reach, options, ports, sweep_after }
    }
}

impl Device for Tor {
    fn run(
        self: Box<Self>,
        jobs: mpsc::Receiver<Job>,
        news: mpsc::Sender<News>,
    ) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        let Tor { rack, reach, options, ports, sweep_after } = *self;
        let known = (Connected::default(), BTreeSet::new(), BTreeMap::new());
        let (connected, wanted, light) = known;
        let task = Task {
            rack,
            reach,
            options,
            ports,
            sweep_after,
            news,
            said: None,
            connected,
            wanted,
            light,
            sweep_at: None,
        };
        Box::pin(task.run(jobs))
    }
}

/// The connection, if there is one.
#[derive(Default)]
struct Connected {
    switch: Option<Switch>,
    events: Option<broadcast::Receiver<PortEvent>>,
    link: Option<watch::Receiver<Link>>,
    since: Option<Instant>,
}

impl Connected {
    /// Waits for a word about a port; `None` if the connection has ended.
    async fn event(&mut self) -> Option<PortEvent> {
        let (Some(events), Some(link)) = (&mut self.events, &mut self.link) else {
            return std::future::pending().await;
        };
        tokio::select! {
            // What was missed may be how a port is now: a new connection tells.
            event = events.recv() => event.ok(),
            gone = link.wait_for(|link| *link == Link::Gone) => {
                drop(gone);
                None
            }
        }
    }
}

struct Task {
    rack: u32,
    reach: Reach,
    options: SwitchOptions,
    ports: TorPorts,
    sweep_after: Duration,
    news: mpsc::Sender<News>,
    /// Last reported reason why the switch is of no use.
    said: Option<String>,
    connected: Connected,
    /// Commands that plans need, and those that are always needed.
    wanted: BTreeSet<DeviceCommand>,
    /// The fibres as we have told of them.
    light: BTreeMap<Fibre, bool>,
    sweep_at: Option<Instant>,
}

impl Task {
    async fn run(mut self, mut jobs: mpsc::Receiver<Job>) {
        let mut pauses = Pauses::new(PAUSES.0, PAUSES.1);
        let mut pause = pauses.take();
        let mut failing_since: Option<Instant> = None;
        let mut told: Option<bool> = None;
        if let Reach::Comes(door, _) = &self.reach {
            door.open();
        }
        if self.connect().await.is_err() {
            failing_since = Some(Instant::now());
        }
        loop {
            let connecting = self.connected.switch.is_none();
            let sweep_at = self.sweep_at.filter(|_| !connecting);
            let reach = self.reach.clone();
            let pausing = async {
                let sleeping = tokio::time::sleep(pause);
                match &reach {
                    Reach::At(..) => sleeping.await,
                    Reach::Comes(door, _) => tokio::select! {
                        () = sleeping => {}
                        () = door.arrival() => {}
                    },
                }
            };
            tokio::select! {
                job = jobs.recv() => {
                    let Some(job) = job else { return };
                    let result = self.perform(&job.change).await;
                    // The core may be ending.
                    let _ = job.reply.send(result);
                }
                event = self.connected.event() => match event {
                    Some(event) => self.hear(&event).await,
                    None => {
                        let ended = std::mem::take(&mut self.connected);
                        pauses.ended(ended.since.map_or(Duration::ZERO, |since| since.elapsed()));
                        pause = pauses.take();
                        failing_since = Some(Instant::now());
                    }
                },
                () = until(sweep_at) => self.sweep().await,
                () = pausing, if connecting => {
                    match self.connect().await {
                        Ok(()) => failing_since = None,
                        Err(_) => pause = pauses.take(),
                    }
                }
            }
            let down = failing_since.is_some_and(|since| since.elapsed() >= UNREACHED_FOR)
                && self.connected.switch.is_none();
            // Once it has been reached, and whenever that changes.
            let is_known = down || self.connected.switch.is_some();
            if is_known && told != Some(down) {
                told = Some(down);
                // The core may be ending.
                let _ = self.news.send(News::Switch { rack: self.rack, up: !down }).await;
            }
        }
    }

    /// Connects, and tells the switch all that it has to keep.
    async fn connect(&mut self) -> Result<(), DeviceError> {
        let switch = match self.reach().await {
            Ok(switch) => switch,
            Err(error) => {
                let is_wrong = !matches!(error, DeviceError::Switch(_) | DeviceError::NotCome { .. });
                if is_wrong && self.said.replace(error.to_string()) != Some(error.to_string()) {
                    tracing::error!(rack = self.rack, "the switch of the rack: {error}");
                }
                return Err(error);
            }
        };
        let (events, link) = (switch.events(), switch.link());
        let messages = self.everything();
        switch.send(messages).await?;
        let ports = switch.ports().await?;
        self.tell_all(&ports).await;
        let dpid = format!("{:#x}", switch.datapath_id());
        tracing::debug!(rack = self.rack, dpid, "connected to a rack's switch");
        self.sweep_at = self.sweep_at.or_else(|| Some(Instant::now() + self.sweep_after));
        let (events, link, since) = (Some(events), Some(link), Some(Instant::now()));
        self.connected = Connected { switch: Some(switch), events, link, since };
        self.said = None;
        Ok(())
    }

    /// A connection with the switch that the settings mean, which has what it needs.
    async fn reach(&self) -> Result<Switch, DeviceError> {
        let switch = match &self.reach {
            Reach::At(endpoint, named) => {
                let switch = Switch::connect(endpoint, self.options.clone()).await?;
                match (*named, switch.datapath_id()) {
                    (Some(named), found) if named != found => {
                        return Err(DeviceError::OtherSwitch { named, found });
                    }
                    _ => switch,
                }
            }
            Reach::Comes(door, dpid) => door.take(*dpid).ok_or(DeviceError::NotCome { dpid: *dpid })?,
        };
        if !switch.has_groups().await? {
            return Err(DeviceError::NoGroups);
        }
        let named = self.tables();
        if switch.tables() < named {
            return Err(DeviceError::OneTable { named });
        }
        Ok(switch)
    }

    /// Tables that it needs.
    fn tables(&self) -> u8 {
        if self.ports.one_table { 1 } else { self.delivery() + 1 }
    }

    /// All that the switch has to keep now.
    fn everything(&self) -> Vec<Message> {
        let mut messages = self.standing();
        if self.ports.one_table {
            messages.extend(self.groups_of(&self.wanted));
            messages.extend(self.single(&self.wanted).into_values().map(Message::FlowMod));
        } else {
            messages.extend(self.wanted.iter().flat_map(|command| self.set(command).unwrap_or_default()));
        }
        messages
    }

    /// Takes away the rules of managers before us, and puts ours back in the same breath.
    async fn sweep(&mut self) {
        // A day from now there will be nothing either.
        self.sweep_at = Some(Instant::now() + Duration::from_secs(86_400));
        let Some(switch) = self.connected.switch.clone() else { return };
        let ours = FlowMod {
            change: Verb::Delete,
            cookie: COOKIE,
            cookie_mask: COOKIE_MASK,
            table: ALL_TABLES,
            ..FlowMod::add(0, Match::any(), Vec::new())
        };
        let mut messages = vec![Message::FlowMod(ours)];
        messages.extend(self.everything());
        if let Err(error) = switch.send(messages).await {
            tracing::warn!(rack = self.rack, %error, "old rules cannot be swept away");
        }
    }

    /// Asks the switch how its ports are. Twice: one that has stood still may answer the first time before it
    /// has looked itself.
    async fn look(&mut self) -> Result<(), DeviceError> {
        for _ in 0..2 {
            let Some(switch) = self.connected.switch.clone() else {
                return Err(DeviceError::Broken("connect again".into()));
            };
            let ports = switch.ports().await?;
            self.tell_all(&ports).await;
        }
        Ok(())
    }

    async fn perform(&mut self, change: &Change) -> Result<(), DeviceError> {
        if *change == Change::default() {
            return self.look().await;
        }
        let mut messages = Vec::new();
        if self.ports.one_table {
            messages = self.exchange(change)?;
            self.wanted.retain(|command| !change.clear.contains(command));
        } else {
            for command in &change.clear {
                self.wanted.remove(command);
                messages.extend(self.clear(command)?);
            }
            for command in &change.set {
                messages.extend(self.set(command)?);
            }
        }
        if self.connected.switch.is_none() {
            self.connect().await?;
        }
        let Some(switch) = &self.connected.switch else {
            return Err(DeviceError::Broken("connect again".into()));
        };
        switch.send(messages).await?;
        self.wanted.extend(change.set.iter().cloned());
        Ok(())
    }

    async fn hear(&mut self, event: &PortEvent) {
        let port = &event.port;
        if let Some((_, fibre)) = self.fibres().find(|(number, _)| *number == port.number) {
            let up = event.change != PortChange::Deleted && !port.link_down && !port.disabled;
            self.tell(fibre, up).await;
        }
    }

    /// Tells of all fibres that have changed.
    async fn tell_all(&mut self, ports: &[Port]) {
        for (number, fibre) in self.fibres() {
            let port = ports.iter().find(|port| port.number == number);
            self.tell(fibre, port.is_some_and(|port| !port.link_down && !port.disabled)).await;
        }
    }

    /// Tells of a fibre that has changed. All are taken to have light at first.
    async fn tell(&mut self, fibre: Fibre, up: bool) {
        if self.light.insert(fibre, up).unwrap_or(true) != up {
            // The core may be ending.
            let _ = self.news.send(News::Fibre { rack: self.rack, fibre, up }).await;
        }
    }

    fn fibres(&self) -> impl Iterator<Item = (u32, Fibre)> + use<> {
        let out = (0..).zip(self.ports.fibres.clone()).map(|(index, port)| (port, Fibre::Out(index)));
        out.chain((0..).zip(self.ports.from_splitters.clone()).map(|(index, port)| (port, Fibre::In(index))))
    }

    /// The ports where light comes in.
    fn light_ports(&self) -> &[u32] {
        if self.ports.from_splitters.is_empty() { &self.ports.fibres } else { &self.ports.from_splitters }
    }

    /// The table that copies to receivers.
    fn delivery(&self) -> u8 {
        if self.shares_a_port() && !self.has_copies() { THIRD } else { SECOND }
    }

    /// Returns true if the rack has several splitters, and so gets several copies of relayed packets.
    fn has_copies(&self) -> bool {
        self.relays() && self.ports.fibres.len() > 1
    }

    /// Returns true if a port has both the fibre into the splitter and one from another splitter.
    fn shares_a_port(&self) -> bool {
        self.ports.fibres.iter().any(|port| self.ports.from_splitters.contains(port))
    }

    /// Returns true if racks relay for each other.
    fn relays(&self) -> bool {
        !self.ports.subnets.is_empty()
    }

    /// Packets to the groups that are relayed.
    fn to_relayed(&self) -> Match {
        let (address, mask) = self.ports.relayed;
        Match::any().and(Field::EthType(0x0800)).and(Field::Ipv4Dst(address, mask))
    }

    /// Returns the rules that the switch has with any plans: light to groups goes to the last table, and our
    /// own light, where it comes back, nowhere.
    fn standing(&self) -> Vec<Message> {
        let on = || vec![Instruction::GotoTable(self.delivery())];
        let mut messages = Vec::new();
        if !self.relays() {
            if self.ports.one_table {
                return messages;
            }
            let light = |port: &u32| to_groups().and(Field::InPort(*port));
            messages.extend(self.light_ports().iter().map(|port| flow(0, PRIORITY_LIGHT, light(port), on())));
            return messages;
        }
        if !self.ports.one_table {
            let to = if self.has_copies() { Vec::new() } else { on() };
            messages.push(flow(0, PRIORITY_LIGHT, self.to_relayed(), to));
        }
        if let Some(&(address, mask)) = self.ports.subnets.get(self.rack as usize) {
            let own = self.to_relayed().and(Field::Ipv4Src(address, mask));
            messages.push(flow(0, PRIORITY_OWN, own, Vec::new()));
        }
        if self.shares_a_port() && !self.has_copies() {
            for &fibre in &self.ports.fibres {
                let relay = |out| {
                    let mut actions = self.first();
                    actions.push(Action::Output(out));
                    vec![Instruction::ApplyActions(actions), Instruction::GotoTable(self.delivery())]
                };
                // A switch sends nothing back by the port where it came in, unless it is told so.
                let back = to_groups().and(Field::InPort(fibre));
                messages.push(flow(SECOND, PRIORITY_RELAY, back, relay(port::IN_PORT)));
                messages.push(flow(SECOND, PRIORITY_LIGHT, to_groups(), relay(fibre)));
            }
        }
        messages
    }

    /// Returns the actions on packets of ours before they leave.
    fn first(&self) -> Vec<Action> {
        self.ports.queue.map(Action::SetQueue).into_iter().collect()
    }

    /// Returns the actions on packets that come from a source.
    fn first_of_source(&self) -> Vec<Action> {
        let marked = self.ports.dscp.map(|class| Action::Set(Field::IpDscp(class)));
        marked.into_iter().chain(self.first()).collect()
    }

    fn port(&self, port: RackPort) -> Result<u32, DeviceError> {
        match port {
            RackPort::Host(host) => self.ports.hosts.get(&host).copied(),
            RackPort::Circuit(uplink) => self.ports.fibres.get(uplink as usize).copied(),
            RackPort::Splitter(nth) => self.ports.fibres.get(nth as usize).copied(),
            RackPort::FromSplitters => self.ports.from_splitters.first().copied(),
        }
        .ok_or(DeviceError::NoPort(port))
    }

    /// The numbers of a rule's ports: fibres, and hosts.
    fn numbers(&self, to: &[RackPort]) -> Result<(Vec<u32>, Vec<u32>), DeviceError> {
        fits(to.len())?;
        let (mut fibres, mut hosts) = (Vec::new(), Vec::new());
        for &port in to {
            let number = self.port(port)?;
            if matches!(port, RackPort::Host(_)) { hosts.push(number) } else { fibres.push(number) }
        }
        Ok((fibres, hosts))
    }

    /// The messages that put a rule in, or in the place of one for the same packets.
    fn set(&self, command: &DeviceCommand) -> Result<Vec<Message>, DeviceError> {
        match command {
            DeviceCommand::RackRule { group, from, to, .. } => {
                check_group(*group)?;
                let (fibres, hosts) = self.numbers(to)?;
                let id = group_id(*group);
                let mut messages = vec![Message::GroupMod(GroupMod::delete(id))];
                if let RackPort::Host(_) = from {
                    let mut out = self.first_of_source();
                    out.extend(fibres.into_iter().map(Action::Output));
                    let mut instructions = Vec::new();
                    if !out.is_empty() {
                        instructions.push(Instruction::ApplyActions(out));
                    }
                    instructions.push(Instruction::GotoTable(self.delivery()));
                    let entering = to_group(*group).and(Field::InPort(self.port(*from)?));
                    messages.push(flow(0, PRIORITY_SOURCE, entering, instructions));
                }
                if !hosts.is_empty() {
                    messages.push(Message::GroupMod(GroupMod::to_ports(id, hosts)));
                    let mut actions = self.first();
                    actions.push(Action::Group(id));
                    let deliver = vec![Instruction::ApplyActions(actions)];
                    messages.push(flow(self.delivery(), PRIORITY_LIGHT, to_group(*group), deliver));
                }
                Ok(messages)
            }
            // What the rack's own hosts send goes into the splitter by the rule of their group.
            DeviceCommand::RelayRule { source, .. } if *source == self.rack => Ok(Vec::new()),
            DeviceCommand::RelayRule { source, from, to, .. } => {
                let light = self.relayed(*source, *from)?;
                let relay = if self.shares_a_port() && !self.has_copies() {
                    vec![Instruction::GotoTable(SECOND)]
                } else {
                    let actions = self.relaying(*from, to)?;
                    let apply = (!actions.is_empty()).then_some(Instruction::ApplyActions(actions));
                    apply.into_iter().chain([Instruction::GotoTable(self.delivery())]).collect()
                };
                Ok(vec![flow(0, PRIORITY_RELAY, light, relay)])
            }
            other => Err(DeviceError::foreign(other)),
        }
    }

    /// The messages that take a rule out.
    fn clear(&self, command: &DeviceCommand) -> Result<Vec<Message>, DeviceError> {
        Ok(match command {
            // It was never put in.
            DeviceCommand::RackRule { group, .. } if check_group(*group).is_err() => Vec::new(),
            DeviceCommand::RackRule { group, from, .. } => {
                // The rule that uses the group goes with it.
                let mut messages = vec![Message::GroupMod(GroupMod::delete(group_id(*group)))];
                if let (RackPort::Host(_), Ok(port)) = (from, self.port(*from)) {
                    let entering = to_group(*group).and(Field::InPort(port));
                    messages.push(Message::FlowMod(FlowMod::delete(PRIORITY_SOURCE, entering)));
                }
                messages
            }
            DeviceCommand::RelayRule { source, .. } if *source == self.rack => Vec::new(),
            DeviceCommand::RelayRule { source, from, .. } => {
                let relayed = self.relayed(*source, *from).into_iter();
                relayed.map(|light| Message::FlowMod(FlowMod::delete(PRIORITY_RELAY, light))).collect()
            }
            other => return Err(DeviceError::foreign(other)),
        })
    }

    /// Light from a rack's hosts, by whatever port it comes in or by one.
    fn relayed(&self, source: u32, from: Option<u32>) -> Result<Match, DeviceError> {
        let subnet = self.ports.subnets.get(source as usize);
        let &(address, mask) = subnet.ok_or(DeviceError::NoSubnet(source))?;
        let light = self.to_relayed().and(Field::Ipv4Src(address, mask));
        Ok(match from {
            Some(fibre) => light.and(Field::InPort(self.inward(fibre)?)),
            None => light,
        })
    }

    /// The port with a fibre from a splitter.
    fn inward(&self, fibre: u32) -> Result<u32, DeviceError> {
        let port = self.ports.from_splitters.get(fibre as usize).copied();
        port.ok_or(DeviceError::NoPort(RackPort::FromSplitters))
    }

    /// Returns the actions that send light into these splitters.
    fn relaying(&self, from: Option<u32>, to: &[u32]) -> Result<Vec<Action>, DeviceError> {
        fits(to.len())?;
        let from = from.map(|fibre| self.inward(fibre)).transpose()?;
        let mut actions = self.first();
        for &nth in to {
            let out = self.port(RackPort::Splitter(nth))?;
            // A switch sends nothing back by the port where it came in, unless it is told so.
            actions.push(Action::Output(if Some(out) == from { port::IN_PORT } else { out }));
        }
        Ok(if to.is_empty() { Vec::new() } else { actions })
    }
}

/// A switch with one table.
impl Task {
    /// The groups that these rules use.
    fn groups_of(&self, commands: &BTreeSet<DeviceCommand>) -> Vec<Message> {
        let group = |command: &DeviceCommand| match command {
            DeviceCommand::RackRule { group, to, .. } => {
                let (_, hosts) = self.numbers(to).ok()?;
                let id = group_id(*group);
                let made = (!hosts.is_empty()).then(|| Message::GroupMod(GroupMod::to_ports(id, hosts)));
                Some([Some(Message::GroupMod(GroupMod::delete(id))), made])
            }
            _ => None,
        };
        commands.iter().filter_map(group).flatten().flatten().collect()
    }

    /// The rules that these commands come to, by what tells them apart.
    fn single(&self, commands: &BTreeSet<DeviceCommand>) -> BTreeMap<(u16, Vec<u8>), FlowMod> {
        let mut rules = BTreeMap::new();
        let mut add = |priority, matching: Match, actions: Vec<Action>| {
            let Message::FlowMod(rule) =
                flow(0, priority, matching, vec![Instruction::ApplyActions(actions)])
            else {
                return;
            };
            let key = Message::FlowMod(FlowMod::delete(priority, rule.matching.clone())).emit(0);
            rules.insert((priority, key), rule);
        };
        let relays = || {
            commands.iter().filter_map(|command| match command {
                DeviceCommand::RelayRule { source, .. } if *source != self.rack => {
                    self.ports.subnets.get(*source as usize).copied()
                }
                _ => None,
            })
        };
        let splitter = self.port(RackPort::Splitter(0)).map(Action::Output).ok();
        let relay = || self.first().into_iter().chain(splitter.clone());
        for (address, mask) in relays() {
            add(PRIORITY_RELAY, self.to_relayed().and(Field::Ipv4Src(address, mask)), relay().collect());
        }
        for command in commands {
            let DeviceCommand::RackRule { group, from, to, .. } = command else { continue };
            let Ok((fibres, hosts)) = self.numbers(to) else { continue };
            let copies = (!hosts.is_empty()).then(|| Action::Group(group_id(*group)));
            match from {
                RackPort::Host(_) => {
                    let Ok(port) = self.port(*from) else { continue };
                    let out = fibres.into_iter().map(Action::Output);
                    let actions = self.first_of_source().into_iter().chain(out).chain(copies).collect();
                    add(PRIORITY_SOURCE, to_group(*group).and(Field::InPort(port)), actions);
                }
                RackPort::Circuit(_) | RackPort::Splitter(_) | RackPort::FromSplitters => {
                    let Some(copies) = copies else { continue };
                    for (address, mask) in relays() {
                        let light = to_group(*group).and(Field::Ipv4Src(address, mask));
                        add(PRIORITY_BOTH, light, relay().chain([copies.clone()]).collect());
                    }
                    let actions = self.first().into_iter().chain([copies]).collect();
                    add(PRIORITY_GROUP, to_group(*group), actions);
                }
            }
        }
        rules
    }

    /// The messages that bring it from what is wanted to what a change makes of that.
    fn exchange(&self, change: &Change) -> Result<Vec<Message>, DeviceError> {
        for command in change.clear.iter().chain(&change.set) {
            match command {
                DeviceCommand::RackRule { group, from, to, .. } => {
                    check_group(*group)?;
                    self.port(*from)?;
                    self.numbers(to)?;
                }
                DeviceCommand::RelayRule { source, from, .. } => {
                    self.relayed(*source, *from)?;
                }
                other => return Err(DeviceError::foreign(other)),
            }
        }
        let mut after = self.wanted.clone();
        after.retain(|command| !change.clear.contains(command));
        after.extend(change.set.iter().cloned());
        let (old, new) = (self.single(&self.wanted), self.single(&after));
        let gone = old.iter().filter(|(key, _)| !new.contains_key(*key));
        let mut messages: Vec<Message> = gone
            .map(|((priority, _), rule)| Message::FlowMod(FlowMod::delete(*priority, rule.matching.clone())))
            .collect();
        let of = |command: &&DeviceCommand| matches!(command, DeviceCommand::RackRule { .. });
        let changed: BTreeSet<DeviceCommand> = change.set.iter().filter(of).cloned().collect();
        let deleted = change.clear.iter().filter_map(|command| match command {
            DeviceCommand::RackRule { group, .. } => {
                Some(Message::GroupMod(GroupMod::delete(group_id(*group))))
            }
            _ => None,
        });
        messages.extend(deleted);
        messages.extend(self.groups_of(&changed));
        // Rules that use a group which was made anew went with the old one.
        let again = |rule: &&FlowMod| {
            let uses = |action: &Action| {
                matches!(action, Action::Group(id) if changed.iter().any(|command| {
                    matches!(command, DeviceCommand::RackRule { group, .. } if group_id(*group) == *id)
                }))
            };
            rule.instructions.iter().any(|instruction| {
                matches!(instruction, Instruction::ApplyActions(actions) if actions.iter().any(uses))
            })
        };
        let come = new.iter().filter(|(key, rule)| old.get(*key) != Some(*rule) || again(rule));
        messages.extend(come.map(|(_, rule)| Message::FlowMod(rule.clone())));
        Ok(messages)
    }
}

fn flow(table: u8, priority: u16, matching: Match, instructions: Vec<Instruction>) -> Message {
    let rule = FlowMod::add(priority, matching, Vec::new()).with_cookie(COOKIE);
    Message::FlowMod(FlowMod { table, instructions, ..rule })
}

/// Packets to any group.
fn to_groups() -> Match {
    Match::any().and(Field::EthType(0x0800)).and(Field::Ipv4Dst([224, 0, 0, 0], [240, 0, 0, 0]))
}

fn to_group(group: IpAddr) -> Match {
    Match::any().and(Field::EthType(0x0800)).and(Field::ipv4_dst(octets(group)))
}

/// The bytes of a group's address. One of IPv6, which [`check_group`] lets no rule be for, has those of an
/// address that no packet goes to: whatever stands in etcd, it touches no other group's rules.
fn octets(group: IpAddr) -> [u8; 4] {
    match group {
        IpAddr::V4(group) => group.octets(),
        IpAddr::V6(_) => [0; 4],
    }
}

/// Checks that rules can be for this group. No rule of ours is for packets to single hosts, whatever stands
/// in etcd.
fn check_group(group: IpAddr) -> Result<(), DeviceError> {
    if group.is_ipv4() && group.is_multicast() { Ok(()) } else { Err(DeviceError::NoGroup(group)) }
}

/// Checks that a rule can have this number of ports.
fn fits(ports: usize) -> Result<(), DeviceError> {
    if ports <= RULE_PORTS_MAX { Ok(()) } else { Err(DeviceError::TooManyPorts { ports }) }
}

/// OpenFlow's number for a group address: its 28 bits that differ, above the numbers that operators use.
fn group_id(group: IpAddr) -> u32 {
    let [a, b, c, d] = octets(group);
    u32::from_be_bytes([0x10 | (a & 0x0f), b, c, d])
}

#[cfg(test)]
mod tests;
