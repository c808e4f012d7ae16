//! The switch of a rack as a device: OpenFlow 1.3 (Blast section IV-B, Shufflecast sections III-A3 and III-B).
//!
//! Two tables are ours. The first decides what goes into a fibre: what a source's host sends to its group, and, where
//! the rack relays, what comes from another rack's hosts. The second copies to the group's receivers in the rack. All
//! our rules match packets to groups, at priorities from [`PRIORITY_LIGHT`] up; the rest of the tables is the
//! operator's, whose rules for packets to groups have to lie below.

use super::{Change, Device, DeviceError, Fibre, Job, News, PAUSES};
use polycast_net::devices::openflow::{
    Action, Change as Verb, Endpoint, Field, FlowMod, GroupMod, Instruction, Link, Match, Message,
    PortChange, PortEvent, Switch, SwitchOptions,
};
use polycast_planning::{DeviceCommand, HostId, RackPort};
use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{broadcast, mpsc, watch};
use tokio::time::Instant;

/// What a host sends to its group.
const PRIORITY_SOURCE: u16 = 10_120;
/// Our own light, which has come back.
const PRIORITY_OWN: u16 = 10_110;
/// Light that is relayed.
const PRIORITY_RELAY: u16 = 10_105;
/// Light to any group.
const PRIORITY_LIGHT: u16 = 10_100;
/// The table that copies to receivers.
const DELIVERY: u8 = 1;
const ALL_TABLES: u8 = 0xff;
/// Marks our rules; `PLYC` in letters.
const COOKIE: u64 = 0x504c_5943 << 32;
const COOKIE_MASK: u64 = u64::MAX << 32;
/// A switch that cannot be reached for this long counts as failed.
const UNREACHED_FOR: Duration = Duration::from_secs(1);

/// What is at the ports of a rack's switch, by OpenFlow's numbers.
#[derive(Clone, Debug, Default)]
pub(crate) struct TorPorts {
    /// The hosts.
    pub(crate) hosts: BTreeMap<HostId, u32>,
    /// Fibres to the circuit switch, or the one into the splitter.
    pub(crate) fibres: Vec<u32>,
    /// Fibres from splitters.
    pub(crate) from_splitters: Vec<u32>,
    /// Addresses and masks of all racks' hosts; only where racks relay.
    pub(crate) subnets: Arc<Vec<([u8; 4], [u8; 4])>>,
}

/// The switch, before its task runs.
#[derive(Debug)]
pub(crate) struct Tor {
    rack: u32,
    endpoint: Endpoint,
    options: SwitchOptions,
    ports: TorPorts,
    /// Rules that an earlier manager has left are swept away this long after the first connection.
    sweep_after: Duration,
}

impl Tor {
    pub(crate) fn new(
        rack: u32,
        endpoint: Endpoint,
        ports: TorPorts,
        answers_within: Duration,
        sweep_after: Duration,
    ) -> Self {
        let (connect_timeout, command_timeout) = (answers_within, answers_within);
        let options = SwitchOptions { connect_timeout, command_timeout, ..SwitchOptions::default() };
        Tor { rack, endpoint, options, ports, sweep_after }
    }
}

impl Device for Tor {
    fn run(
        self: Box<Self>,
        jobs: mpsc::Receiver<Job>,
        news: mpsc::Sender<News>,
    ) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        let Tor { rack, endpoint, options, ports, sweep_after } = *self;
        let known = (Connected::default(), BTreeSet::new(), BTreeMap::new());
        let (connected, wanted, light) = known;
        let task = Task {
            rack,
            endpoint,
            options,
            ports,
            sweep_after,
            news,
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
    endpoint: Endpoint,
    options: SwitchOptions,
    ports: TorPorts,
    sweep_after: Duration,
    news: mpsc::Sender<News>,
    connected: Connected,
    /// What plans need, and what is always needed.
    wanted: BTreeSet<DeviceCommand>,
    /// The fibres as we have told of them.
    light: BTreeMap<Fibre, bool>,
    sweep_at: Option<Instant>,
}

impl Task {
    async fn run(mut self, mut jobs: mpsc::Receiver<Job>) {
        let mut pause = PAUSES.0;
        let mut failing_since: Option<Instant> = None;
        let mut told: Option<bool> = None;
        if self.connect().await.is_err() {
            failing_since = Some(Instant::now());
        }
        loop {
            let connecting = self.connected.switch.is_none();
            let sweep_at = self.sweep_at;
            let sweep = async move {
                match sweep_at {
                    Some(at) if !connecting => tokio::time::sleep_until(at).await,
                    _ => std::future::pending().await,
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
                        self.connected = Connected::default();
                        failing_since = Some(Instant::now());
                    }
                },
                () = sweep => self.sweep().await,
                () = tokio::time::sleep(pause), if connecting => {
                    match self.connect().await {
                        Ok(()) => (pause, failing_since) = (PAUSES.0, None),
                        Err(_) => pause = (pause * 2).min(PAUSES.1),
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
        let switch = Switch::connect(&self.endpoint, self.options.clone()).await?;
        let (events, link) = (switch.events(), switch.link());
        let mut messages = self.standing();
        messages.extend(self.wanted.iter().flat_map(|command| self.set(command).unwrap_or_default()));
        switch.send(messages).await?;
        let ports = switch.ports().await?;
        for (number, fibre) in self.fibres() {
            let port = ports.iter().find(|port| port.number == number);
            self.tell(fibre, port.is_some_and(|port| !port.link_down && !port.disabled)).await;
        }
        tracing::debug!(rack = self.rack, endpoint = %self.endpoint, "connected to a rack's switch");
        self.sweep_at = self.sweep_at.or_else(|| Some(Instant::now() + self.sweep_after));
        self.connected = Connected { switch: Some(switch), events: Some(events), link: Some(link) };
        Ok(())
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
        messages.extend(self.standing());
        messages.extend(self.wanted.iter().flat_map(|command| self.set(command).unwrap_or_default()));
        if let Err(error) = switch.send(messages).await {
            tracing::warn!(rack = self.rack, %error, "old rules cannot be swept away");
        }
    }

    async fn perform(&mut self, change: &Change) -> Result<(), DeviceError> {
        let mut messages = Vec::new();
        for command in &change.clear {
            self.wanted.remove(command);
            messages.extend(self.clear(command)?);
        }
        for command in &change.set {
            messages.extend(self.set(command)?);
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

    /// What the switch does whatever plans there are: light to groups goes to the second table, and our own light,
    /// where it comes back, nowhere.
    fn standing(&self) -> Vec<Message> {
        let mut messages = Vec::new();
        for &port in self.light_ports() {
            let light = to_groups().and(Field::InPort(port));
            messages.push(flow(0, PRIORITY_LIGHT, light.clone(), vec![Instruction::GotoTable(DELIVERY)]));
            if let Some(&(address, mask)) = self.ports.subnets.get(self.rack as usize) {
                messages.push(flow(0, PRIORITY_OWN, light.and(Field::Ipv4Src(address, mask)), Vec::new()));
            }
        }
        messages
    }

    fn port(&self, port: RackPort) -> Result<u32, DeviceError> {
        match port {
            RackPort::Host(host) => self.ports.hosts.get(&host).copied(),
            RackPort::Circuit(uplink) => self.ports.fibres.get(uplink as usize).copied(),
            RackPort::Splitter => self.ports.fibres.first().copied(),
        }
        .ok_or(DeviceError::NoPort(port))
    }

    /// The messages that put a rule in, or in the place of one for the same packets.
    fn set(&self, command: &DeviceCommand) -> Result<Vec<Message>, DeviceError> {
        match command {
            DeviceCommand::RackRule { group, from, to, .. } => {
                let (mut fibres, mut hosts) = (Vec::new(), Vec::new());
                for &port in to {
                    let number = self.port(port)?;
                    if matches!(port, RackPort::Host(_)) { hosts.push(number) } else { fibres.push(number) }
                }
                let id = group_id(*group);
                let mut messages = vec![Message::GroupMod(GroupMod::delete(id))];
                if let RackPort::Host(_) = from {
                    let mut instructions = Vec::new();
                    if !fibres.is_empty() {
                        let out = fibres.into_iter().map(Action::Output).collect();
                        instructions.push(Instruction::ApplyActions(out));
                    }
                    instructions.push(Instruction::GotoTable(DELIVERY));
                    let entering = to_group(*group).and(Field::InPort(self.port(*from)?));
                    messages.push(flow(0, PRIORITY_SOURCE, entering, instructions));
                }
                if !hosts.is_empty() {
                    messages.push(Message::GroupMod(GroupMod::to_ports(id, hosts)));
                    let deliver = vec![Instruction::ApplyActions(vec![Action::Group(id)])];
                    messages.push(flow(DELIVERY, PRIORITY_LIGHT, to_group(*group), deliver));
                }
                Ok(messages)
            }
            // What the rack's own hosts send goes into the splitter by the rule of their group.
            DeviceCommand::RelayRule { source, .. } if *source == self.rack => Ok(Vec::new()),
            DeviceCommand::RelayRule { source, .. } => {
                let out = self.port(RackPort::Splitter)?;
                let relayed = self.relayed(*source).ok_or(DeviceError::NoSubnet(*source))?;
                let relay = vec![
                    Instruction::ApplyActions(vec![Action::Output(out)]),
                    Instruction::GotoTable(DELIVERY),
                ];
                Ok(relayed.into_iter().map(|light| flow(0, PRIORITY_RELAY, light, relay.clone())).collect())
            }
            other => Err(DeviceError::foreign(other)),
        }
    }

    /// The messages that take a rule out.
    fn clear(&self, command: &DeviceCommand) -> Result<Vec<Message>, DeviceError> {
        Ok(match command {
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
            DeviceCommand::RelayRule { source, .. } => {
                let relayed = self.relayed(*source).unwrap_or_default();
                relayed
                    .into_iter()
                    .map(|light| Message::FlowMod(FlowMod::delete(PRIORITY_RELAY, light)))
                    .collect()
            }
            other => return Err(DeviceError::foreign(other)),
        })
    }

    /// Light from a rack's hosts, at each of our ports.
    fn relayed(&self, source: u32) -> Option<Vec<Match>> {
        let &(address, mask) = self.ports.subnets.get(source as usize)?;
        let light = |port: &u32| to_groups().and(Field::Ipv4Src(address, mask)).and(Field::InPort(*port));
        Some(self.light_ports().iter().map(light).collect())
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

fn to_group(group: [u8; 4]) -> Match {
    Match::any().and(Field::EthType(0x0800)).and(Field::ipv4_dst(group))
}

/// OpenFlow's number for a group address: its 28 bits that differ, above the numbers that operators use.
fn group_id([a, b, c, d]: [u8; 4]) -> u32 {
    u32::from_be_bytes([0x10 | (a & 0x0f), b, c, d])
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Rack 1 of three, with two hosts, a fibre out and two fibres in.
    fn task() -> Task {
        let subnet = |rack: u8| ([10, 0, rack, 0], [255, 255, 255, 0]);
        let ports = TorPorts {
            hosts: [(HostId(2), 1), (HostId(3), 2)].into(),
            fibres: vec![10],
            from_splitters: vec![20, 21],
            subnets: Arc::new((0..3).map(subnet).collect()),
        };
        let (news, _) = mpsc::channel(8);
        Task {
            rack: 1,
            endpoint: Endpoint::Unix("/no/such/socket".into()),
            options: SwitchOptions::default(),
            ports,
            sweep_after: Duration::from_secs(1),
            news,
            connected: Connected::default(),
            wanted: BTreeSet::new(),
            light: BTreeMap::new(),
            sweep_at: None,
        }
    }

    fn rule(from: RackPort, to: &[RackPort]) -> DeviceCommand {
        DeviceCommand::RackRule { rack: 1, group: [239, 255, 64, 7], from, to: to.to_vec() }
    }

    fn flows(messages: &[Message]) -> Vec<&FlowMod> {
        let mut flows = Vec::new();
        for message in messages {
            if let Message::FlowMod(flow) = message {
                flows.push(flow);
            }
        }
        flows
    }

    #[test]
    fn a_source_feeds_the_fibre_and_its_own_rack() {
        let source = rule(RackPort::Host(HostId(2)), &[RackPort::Host(HostId(3)), RackPort::Splitter]);
        let messages = task().set(&source).unwrap();
        let group = Message::GroupMod(GroupMod::to_ports(0x1fff_4007, [2]));
        assert!(messages.contains(&group), "{messages:?}");
        let [send, deliver] = flows(&messages)[..] else { panic!("{messages:?}") };
        let out = Instruction::ApplyActions(vec![Action::Output(10)]);
        assert_eq!(send.instructions, [out, Instruction::GotoTable(DELIVERY)]);
        assert!(send.matching.fields.contains(&Field::InPort(1)), "{send:?}");
        assert_eq!((deliver.table, send.cookie & COOKIE_MASK), (DELIVERY, COOKIE));
        // Everything that was put in is taken out.
        let undo = task().clear(&source).unwrap();
        assert_eq!(undo[0], Message::GroupMod(GroupMod::delete(0x1fff_4007)));
        assert_eq!(flows(&undo)[0].matching, send.matching);
    }

    #[test]
    fn a_rack_relays_others_and_never_itself() {
        let relay = |source| task().set(&DeviceCommand::RelayRule { rack: 1, source });
        let messages = relay(0).unwrap();
        let ports: Vec<u32> = flows(&messages)
            .iter()
            .flat_map(|flow| &flow.matching.fields)
            .filter_map(|field| if let Field::InPort(port) = field { Some(*port) } else { None })
            .collect();
        assert_eq!(ports, [20, 21]);
        assert_eq!(relay(1), Ok(Vec::new()));
        assert_eq!(relay(9), Err(DeviceError::NoSubnet(9)));
        let nowhere = rule(RackPort::Splitter, &[RackPort::Host(HostId(9))]);
        assert_eq!(task().set(&nowhere), Err(DeviceError::NoPort(RackPort::Host(HostId(9)))));
        // Another device's command is an error, and never left out.
        let circuit = DeviceCommand::CrossConnect { from: 1, to: 2 };
        assert_eq!(task().set(&circuit), Err(DeviceError::foreign(&circuit)));
        assert_eq!(task().clear(&circuit), Err(DeviceError::foreign(&circuit)));
    }

    #[tokio::test]
    async fn a_switch_that_is_not_there_is_named() {
        let change = Change { set: vec![rule(RackPort::Splitter, &[])], ..Change::default() };
        let reason = task().perform(&change).await.unwrap_err().to_string();
        assert!(reason.contains("/no/such/socket"), "{reason}");
    }
}
