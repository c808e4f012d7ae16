//! The control of optical labs: ToR switches and, in a Blast network, the circuit switch are told what a
//! delivery needs (Blast section IV-B, Shufflecast section III-B). All devices of a delivery are told at
//! the same time.
//!
//! A ToR has two tables. The first decides what goes into the fibre; the second copies to the receivers in
//! the rack. What hosts send to a group never goes to the packet core.

use crate::cast::ControlStep;
use crate::daemons::{Daemons, Places};
use crate::error::LabError;
use crate::layout::{self, GROUPS, Host, Layout, OCS_ADDRESS, OCS_TL1_PORT, OPTICS};
use crate::openvswitch::{self, Bridge};
use crate::optics;
use crate::spec::{Network, Spec};
use crate::system::{Space, run};
use polycast_net::devices::at_once;
use polycast_net::devices::openflow::{
    Action, Endpoint, Field, FlowMod, GroupMod, Instruction, Match, Switch, SwitchError, SwitchOptions,
};
use polycast_net::devices::tl1::{Circuit, Tl1Client, Tl1Options};
use polycast_planning::circuits::{CircuitSetup, PortPool, setup};
use polycast_planning::relays::StaticRules;
use polycast_topology::optics::{PowerBudget, splitter_loss_db};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::{Duration, Instant};
use tokio::runtime::Runtime;

/// OpenFlow numbers of a ToR's ports: its hosts from 1, and these.
const CORE_PORT: u32 = 1_000;
const FIBRE_OUT: u32 = 2_000;
const FIBRE_IN: u32 = 3_000;
/// The group of all hosts of a rack and the core.
const EVERYONE: u32 = 1;
/// The group of the receivers of the first host's deliveries; those of the others follow.
const RECEIVERS: u32 = 1_000;
/// How long a device may take to come up, and how often it is looked whether it has.
const READY_WITHIN: Duration = Duration::from_secs(20);
const LOOK_AGAIN: Duration = Duration::from_millis(5);

/// What the emulated light may lose, in dB: 30 dB between transmitter and receiver, and amplifiers where
/// that is not enough. Packets do not fade; the planner still refuses what real light could not do.
fn budget(fanout: u32) -> PowerBudget {
    PowerBudget {
        budget_db: 30.0,
        switch_loss_db: 1.5,
        splitter_loss_db: splitter_loss_db(fanout),
        amplifier_gain_db: 20.0,
    }
}

/// Changes of one ToR.
#[derive(Clone, Default, PartialEq, Debug)]
struct Rules {
    groups: Vec<GroupMod>,
    flows: Vec<FlowMod>,
}

/// The controller of an optical lab.
pub(crate) struct Control {
    network: Network,
    layout: Layout,
    runtime: Runtime,
    switches: Vec<Switch>,
    ocs: Option<Tl1Client>,
    pool: Option<PortPool>,
    held: Option<Held>,
}

/// What the delivery that runs holds.
struct Held {
    circuits: Option<CircuitSetup>,
    undo: BTreeMap<u32, Rules>,
}

impl Control {
    /// Starts switches, splitters and the circuit switch, and tells the ToRs what they always do.
    pub(crate) fn start(
        spec: &Spec,
        layout: &Layout,
        places: &Places,
        daemons: &mut Daemons,
    ) -> Result<Self, LabError> {
        // Switches in user space do not finish the check sums that a host leaves to its network card.
        for host in layout.hosts.iter().chain([&layout.manager]) {
            run(Space::named(&host.name).command("ethtool").args(["-K", "eth0", "tx", "off"]), None)?;
        }
        Space::named(OPTICS).batch("ip", &[format!("addr add {OCS_ADDRESS}/16 dev mgmt")])?;
        let racks = layout.hosts.last().map_or(0, |host| host.rack + 1);
        let bridges: Vec<Bridge> = (0..racks).map(|rack| bridge(spec.network, layout, rack)).collect();
        openvswitch::start(&bridges, places, daemons)?;
        optics::apply(&Space::named(OPTICS), &splitters(spec.network))?;
        let failed = |error: std::io::Error| LabError::system("control the switches", error);
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .map_err(failed)?;
        let mut pool = None;
        let mut ocs = None;
        if let Network::Blast { hybrid, circuit_ms } = spec.network {
            let address = SocketAddr::from((OCS_ADDRESS, OCS_TL1_PORT));
            let mut command = Space::named(OPTICS).command(&places.program.to_string_lossy());
            command.args(["lab", "device", "ocs", "--listen", &address.to_string()]);
            command.args([
                "--ports",
                &hybrid.ports_needed().to_string(),
                "--circuit-ms",
                &circuit_ms.to_string(),
            ]);
            daemons.start_silent("ocs", command, places)?;
            ocs = Some(runtime.block_on(reach(address))?);
            pool = Some(PortPool::new(hybrid));
        }
        let switches = runtime.block_on(connect(racks, places))?;
        let (layout, network) = (layout.clone(), spec.network);
        let control = Control { network, layout, runtime, switches, ocs, pool, held: None };
        let rules = (0..racks).map(|rack| (rack, always(network, &control.layout, rack))).collect();
        control.apply(rules)?;
        Ok(control)
    }

    /// Sets up what a delivery needs; gives how long each step took.
    pub(crate) fn prepare(
        &mut self,
        source: &Host,
        receivers: &[Host],
    ) -> Result<Vec<ControlStep>, LabError> {
        let begun = Instant::now();
        let mut racks: Vec<u32> = receivers.iter().map(|host| host.rack).collect();
        racks.retain(|rack| *rack != source.rack);
        racks.sort_unstable();
        racks.dedup();
        let mut circuits = None;
        let mut fibre = (!racks.is_empty()).then_some(FIBRE_OUT);
        if let (Some(pool), Network::Blast { hybrid, .. }, false) =
            (&mut self.pool, self.network, racks.is_empty())
        {
            let plan = setup(pool, source.rack, &racks, &budget(hybrid.splitter_fanout))
                .map_err(|error| LabError::system("set up circuits", error))?;
            fibre = plan.uplinks.first().map(|(_, uplink)| FIBRE_OUT + uplink);
            circuits = Some(plan);
        }
        let (rules, undo) = for_delivery(&self.layout, source, receivers, fibre);
        let mut steps = vec![step("plan", begun)];
        let connections = circuits.as_ref().map(|plan| plan.connections.clone()).unwrap_or_default();
        self.held = Some(Held { circuits, undo });
        let circuits: Vec<Circuit> =
            connections.iter().map(|way| Circuit { from: way.from, to: way.to }).collect();
        steps.extend(self.change(rules, circuits, true)?);
        steps.push(step("in all", begun));
        Ok(steps)
    }

    /// Takes down what the last delivery had.
    pub(crate) fn release(&mut self) -> Result<Vec<ControlStep>, LabError> {
        let Some(Held { circuits, undo }) = self.held.take() else { return Ok(Vec::new()) };
        let begun = Instant::now();
        let connections = circuits.as_ref().map(|plan| plan.connections.clone()).unwrap_or_default();
        let connections = connections.iter().map(|way| Circuit { from: way.from, to: way.to }).collect();
        self.change(undo, connections, false)?;
        if let (Some(pool), Some(plan)) = (&mut self.pool, &circuits) {
            pool.release(plan);
        }
        Ok(vec![step("release", begun)])
    }

    fn apply(&self, rules: BTreeMap<u32, Rules>) -> Result<(), LabError> {
        self.change(rules, Vec::new(), true).map(drop)
    }

    /// Tells all ToRs and the circuit switch at the same time; gives how long each took.
    fn change(
        &self,
        rules: BTreeMap<u32, Rules>,
        circuits: Vec<Circuit>,
        enter: bool,
    ) -> Result<Vec<ControlStep>, LabError> {
        type Work = std::pin::Pin<Box<dyn Future<Output = Result<(), LabError>> + Send>>;
        let mut work: Vec<(String, Work)> = Vec::new();
        if let (Some(ocs), false) = (self.ocs.clone(), circuits.is_empty()) {
            let name = format!("{} circuits", circuits.len());
            work.push((name, Box::pin(async move { change_circuits(&ocs, circuits, enter).await })));
        }
        for (rack, Rules { groups, flows }) in rules {
            let (name, switch) = (layout::tor(rack), self.switches[rack as usize].clone());
            let told = format!("rules of {name}");
            let apply = async move {
                let applied = switch.apply(groups, flows).await;
                applied.map_err(|error| LabError::system(format!("set the rules of {name}"), error))
            };
            work.push((told, Box::pin(apply)));
        }
        let outcomes = self.runtime.block_on(at_once(work));
        let mut steps = Vec::with_capacity(outcomes.len());
        for outcome in outcomes {
            outcome.result?;
            steps.push(ControlStep { step: outcome.device, micros: outcome.took.as_micros() as u64 });
        }
        Ok(steps)
    }
}

fn step(name: &str, begun: Instant) -> ControlStep {
    ControlStep { step: name.into(), micros: begun.elapsed().as_micros() as u64 }
}

/// Makes or takes down circuits, all at the same time.
async fn change_circuits(ocs: &Tl1Client, circuits: Vec<Circuit>, enter: bool) -> Result<(), LabError> {
    let one = |circuit: Circuit| {
        let ocs = ocs.clone();
        let change = async move { if enter { ocs.enter(circuit).await } else { ocs.delete(circuit).await } };
        (circuit.aid(), change)
    };
    for outcome in at_once(circuits.into_iter().map(one)).await {
        outcome.result.map_err(|error| LabError::system("change circuits", error))?;
    }
    Ok(())
}

/// Connects to the circuit switch, which is just coming up.
async fn reach(address: SocketAddr) -> Result<Tl1Client, LabError> {
    let begun = Instant::now();
    loop {
        match Tl1Client::connect(address, Tl1Options::default()).await {
            Ok(client) => return Ok(client),
            Err(error) if begun.elapsed() > READY_WITHIN => {
                return Err(LabError::system("start the circuit switch", error));
            }
            Err(_) => tokio::time::sleep(LOOK_AGAIN).await,
        }
    }
}

/// Connects to the ToR switches, which are just coming up, all at the same time.
async fn connect(racks: u32, places: &Places) -> Result<Vec<Switch>, LabError> {
    let one = |rack: u32| {
        let name = layout::tor(rack);
        let endpoint = openvswitch::endpoint(places, &name);
        (name, async move { reach_switch(&endpoint).await })
    };
    let outcomes = at_once((0..racks).map(one)).await;
    let connected = outcomes.into_iter().map(|outcome| {
        outcome.result.map_err(|error| LabError::system(format!("control {}", outcome.device), error))
    });
    connected.collect()
}

/// A switch is up when it has its ports.
async fn reach_switch(endpoint: &Endpoint) -> Result<Switch, SwitchError> {
    let begun = Instant::now();
    loop {
        match Switch::connect(endpoint, SwitchOptions::default()).await {
            Ok(switch) => {
                while switch.ports().await?.iter().all(|port| port.number != CORE_PORT) {
                    if begun.elapsed() > READY_WITHIN {
                        return Err(SwitchError::Gone);
                    }
                    tokio::time::sleep(LOOK_AGAIN).await;
                }
                return Ok(switch);
            }
            Err(error) if begun.elapsed() > READY_WITHIN => return Err(error),
            Err(_) => tokio::time::sleep(LOOK_AGAIN).await,
        }
    }
}

/// The ports of a ToR with their OpenFlow numbers.
fn bridge(network: Network, layout: &Layout, rack: u32) -> Bridge {
    let hosts = layout.hosts.iter().filter(|host| host.rack == rack);
    let mut ports: Vec<(String, u32)> =
        hosts.map(|host| (layout::host_port(rack, host.place), host_number(host))).collect();
    ports.push((layout::core_port(rack), CORE_PORT));
    match network {
        Network::Bridge { .. } => {}
        Network::Blast { hybrid, .. } => {
            let uplinks = 0..hybrid.ports_per_rack;
            ports.extend(uplinks.map(|uplink| (layout::fibre_port(rack, uplink), FIBRE_OUT + uplink)));
        }
        Network::Shufflecast { fabric, .. } => {
            ports.push((layout::fibre_port(rack, 0), FIBRE_OUT));
            let parents = (0..fabric.fanout()).map(|partition| fabric.parent(rack, partition));
            ports.extend(parents.map(|parent| (layout::from_parent(rack, parent), FIBRE_IN + parent)));
        }
    }
    Bridge { name: layout::tor(rack), ports }
}

fn host_number(host: &Host) -> u32 {
    1 + host.place
}

/// The numbers of the ports where light comes in.
fn fibres_in(network: Network, rack: u32) -> Vec<u32> {
    match network {
        Network::Bridge { .. } => Vec::new(),
        Network::Blast { hybrid, .. } => {
            (0..hybrid.ports_per_rack).map(|uplink| FIBRE_OUT + uplink).collect()
        }
        Network::Shufflecast { fabric, .. } => {
            (0..fabric.fanout()).map(|partition| FIBRE_IN + fabric.parent(rack, partition)).collect()
        }
    }
}

fn splitters(network: Network) -> Vec<String> {
    let (count, fanout) = match network {
        Network::Bridge { .. } => (0, 0),
        Network::Blast { hybrid, .. } => (hybrid.splitters, hybrid.splitter_fanout),
        Network::Shufflecast { fabric, .. } => (fabric.tors(), fabric.fanout()),
    };
    let one = |splitter: u32| {
        let outputs: Vec<String> =
            (0..fanout).map(|output| layout::splitter_output(splitter, output)).collect();
        optics::splitter(&layout::splitter_input(splitter), &outputs)
    };
    (0..count).flat_map(one).collect()
}

/// Packets to a group of ours.
fn to_groups() -> Match {
    let [a, b] = GROUPS;
    Match::any().and(Field::EthType(0x0800)).and(Field::Ipv4Dst([a, b, 0, 0], [0xff, 0xff, 0, 0]))
}

/// Packets to a group of ours from any host of a rack.
fn from_rack(rack: u32) -> Match {
    to_groups().and(Field::Ipv4Src([10, 77, rack as u8, 0], [0xff, 0xff, 0xff, 0]))
}

fn rule(table: u8, priority: u16, matching: Match, instructions: Vec<Instruction>) -> FlowMod {
    FlowMod { table, instructions, ..FlowMod::add(priority, matching, Vec::new()) }
}

/// What a ToR always does: packets between hosts go as on any Ethernet; light goes to the second table, and
/// in a Shufflecast on into the splitter where this ToR relays for the source's rack (Shufflecast section
/// III-A3).
fn always(network: Network, layout: &Layout, rack: u32) -> Rules {
    let hosts: Vec<&Host> = layout.hosts.iter().filter(|host| host.rack == rack).collect();
    let everyone = hosts.iter().map(|host| host_number(host)).chain([CORE_PORT]);
    let mut rules = Rules { groups: vec![GroupMod::to_ports(EVERYONE, everyone)], flows: Vec::new() };
    let deliver = || vec![Instruction::GotoTable(1)];
    for port in fibres_in(network, rack) {
        let entering = |matching: Match| matching.and(Field::InPort(port));
        if let Network::Shufflecast { fabric, .. } = network {
            // Its own light comes back once, and must not go round again.
            rules.flows.push(rule(0, 80, entering(from_rack(rack)), vec![]));
            for source in StaticRules::new(&fabric).sources(rack).iter().filter(|source| **source != rack) {
                let relay = Instruction::ApplyActions(vec![Action::Output(FIBRE_OUT)]);
                let instructions = vec![relay, Instruction::GotoTable(1)];
                rules.flows.push(rule(0, 70, entering(from_rack(*source)), instructions));
            }
        }
        rules.flows.push(rule(0, 60, entering(to_groups()), deliver()));
        rules.flows.push(rule(0, 50, Match::any().and(Field::InPort(port)), vec![]));
    }
    rules.flows.push(rule(0, 40, to_groups(), vec![]));
    for host in hosts {
        let there = vec![Action::Output(host_number(host))];
        rules.flows.push(FlowMod::add(30, Match::any().and(Field::eth_dst(host.mac)), there));
    }
    let broadcast = Match::any().and(Field::EthDst([1, 0, 0, 0, 0, 0], [1, 0, 0, 0, 0, 0]));
    rules.flows.push(FlowMod::add(20, broadcast, vec![Action::Group(EVERYONE)]));
    rules.flows.push(FlowMod::add(10, Match::any(), vec![Action::Output(CORE_PORT)]));
    rules
}

/// What the ToRs do for one delivery, and how to undo it, by rack. `fibre` is the port into the light.
fn for_delivery(
    layout: &Layout,
    source: &Host,
    receivers: &[Host],
    fibre: Option<u32>,
) -> (BTreeMap<u32, Rules>, BTreeMap<u32, Rules>) {
    let number = layout.hosts.iter().position(|host| host == source).unwrap_or(0) as u32;
    let group = RECEIVERS + number;
    let (mut rules, mut undo): (BTreeMap<u32, Rules>, BTreeMap<u32, Rules>) = Default::default();
    let from_source = || to_groups().and(Field::ipv4_src(source.address.octets()));
    let entering = || to_groups().and(Field::InPort(host_number(source)));
    let mut send = Vec::new();
    if let Some(fibre) = fibre {
        send.push(Instruction::ApplyActions(vec![Action::Output(fibre)]));
    }
    send.push(Instruction::GotoTable(1));
    rules.entry(source.rack).or_default().flows.push(rule(0, 100, entering(), send));
    undo.entry(source.rack).or_default().flows.push(FlowMod::delete(100, entering()));
    let mut by_rack: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
    for host in receivers {
        by_rack.entry(host.rack).or_default().push(host_number(host));
    }
    for (rack, ports) in by_rack {
        let rules = rules.entry(rack).or_default();
        rules.groups.push(GroupMod::to_ports(group, ports));
        let deliver = Instruction::ApplyActions(vec![Action::Group(group)]);
        rules.flows.push(rule(1, 10, from_source(), vec![deliver]));
        // The rule that uses the group goes with it.
        undo.entry(rack).or_default().groups.push(GroupMod::delete(group));
    }
    (rules, undo)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layout(text: &str) -> (Network, Layout) {
        let spec: Spec = text.parse().unwrap();
        (spec.network, Layout::new(&spec))
    }

    #[test]
    fn a_delivery_touches_the_racks_of_its_members_alone() {
        let (_, layout) = layout("blast:racks=4,hosts=2");
        let receivers: Vec<Host> = ["h1", "h2", "h6"].map(|name| layout.host(name).unwrap().clone()).into();
        let (rules, undo) = for_delivery(&layout, &layout.hosts[0], &receivers, Some(FIBRE_OUT));
        assert_eq!(rules.keys().copied().collect::<Vec<_>>(), [0, 1, 3]);
        assert_eq!(undo.keys().copied().collect::<Vec<_>>(), [0, 1, 3]);
        assert_eq!(rules[&0].flows.len(), 2);
        assert_eq!(rules[&3].groups, [GroupMod::to_ports(RECEIVERS, [1])]);
    }

    #[test]
    fn every_relay_has_its_static_rules() {
        let (network, layout) = layout("shufflecast:2,3,hosts=1");
        for rack in 0..24 {
            let rules = always(network, &layout, rack);
            // 12 sources, of which it may be one, on each of 2 fibres.
            let relays = rules.flows.iter().filter(|flow| flow.priority == 70).count();
            assert_eq!(relays, 2 * 11, "ToR {rack} relays for itself and 11 others");
        }
        let ports = bridge(network, &layout, 5).ports;
        assert_eq!(ports.len(), 1 + 1 + 1 + 2);
    }
}
