//! `polycast manager --check`: what of the settings, of etcd and of the devices behind them keeps the manager
//! from lending paths. It logs in everywhere, lists what is there, and changes nothing. With `--probe` it
//! makes circuits, to see where fibres lead, and takes them down again.

mod etcd;
mod probe;

pub use etcd::{EtcdFindings, EtcdServerFindings};
pub use probe::{ProbeFindings, ProbedOutput, ProbedPort};

use self::probe::{Cabling, LOOK_AGAIN, Optics, Place, Probe};
use crate::config::ManagerConfig;
use crate::devices::SwitchDoor;
use crate::fabrics::tors::{self, TorSettings};
use crate::fabrics::{self, Hosts, switch_ports};
use futures_util::future::join_all;
use polycast_api::settings::SettingsError;
use polycast_net::devices::circuits::{Circuit, CircuitClient, CircuitError, Dialect, Held};
use polycast_net::devices::openflow::{Port, Switch};
use polycast_planning::{DeviceCommand, Group, HostId, NetworkState, RackPort};
use polycast_topology::{PortOwner, PortTable};
use polycast_types::Printable;
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Duration;

/// Minimum time that a probe waits for light.
const SETTLE_MIN: Duration = Duration::from_secs(1);

/// Results of a check.
#[derive(Clone, Debug, Serialize)]
pub struct Findings {
    /// True if nothing is wrong.
    pub ok: bool,
    /// Faults that were found, a sentence each.
    pub faults: Vec<String>,
    /// Etcd, where the settings have one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub etcd: Option<EtcdFindings>,
    /// The external scheduler, where the settings have one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub scheduler: Option<SchedulerFindings>,
    /// The circuit switch, where the settings have one.
    pub circuit_switch: Option<CircuitSwitchFindings>,
    /// The racks' switches.
    pub tors: Vec<TorFindings>,
    /// Plans that the manager would make.
    pub plans: Vec<PlanFindings>,
    /// Ports that the fibres lead to, if the probe was asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub probe: Option<ProbeFindings>,
}

/// Report of an external scheduler.
#[derive(Clone, Debug, Serialize)]
pub struct SchedulerFindings {
    /// Address of the scheduler.
    pub address: String,
    /// True if it has answered a question about nothing in time.
    pub reached: bool,
}

/// Report of a circuit switch.
#[derive(Clone, Debug, Serialize)]
pub struct CircuitSwitchFindings {
    /// Address of the switch.
    pub address: String,
    /// Its dialect.
    pub dialect: &'static str,
    /// True if the switch has let the manager in and has reported its circuits.
    pub reached: bool,
    /// Identity of the switch, if it can be asked.
    pub identity: Option<String>,
    /// Its circuits.
    pub circuits: Vec<CircuitFindings>,
    /// The alarms that stand.
    pub alarms: Vec<String>,
}

/// A circuit.
#[derive(Clone, Debug, Serialize)]
pub struct CircuitFindings {
    /// As the switch calls it.
    pub name: String,
    /// True if both of its ports are in the settings.
    pub ours: bool,
    /// Reason why no light gets through, if the switch reports one.
    pub fault: Option<String>,
}

/// Report of a rack's switch.
#[derive(Clone, Debug, Serialize)]
pub struct TorFindings {
    /// The rack.
    pub rack: usize,
    /// Address of the rack's switch, or its datapath id in the settings.
    pub switch: String,
    /// True if the switch answers.
    pub reached: bool,
    /// Its datapath id.
    pub dpid: Option<String>,
    /// Its tables of flows.
    pub tables: Option<u8>,
    /// True if the switch has groups of type all.
    pub groups: Option<bool>,
    /// The ports that the settings name.
    pub ports: Vec<PortFindings>,
}

/// A port of a rack's switch.
#[derive(Clone, Debug, Serialize)]
pub struct PortFindings {
    /// OpenFlow's number.
    pub number: u32,
    /// The switch's name for it.
    pub name: Option<String>,
    /// Device or fibre at the port, according to the settings.
    pub what: String,
    /// True if the port has a link.
    pub up: bool,
}

/// Plan that the manager would make for a transfer.
#[derive(Clone, Debug, Serialize)]
pub struct PlanFindings {
    /// The host that sends to all others.
    pub from: String,
    /// The fabric that would carry it; none where nothing can.
    pub fabric: Option<String>,
    /// Commands that devices would get, or the reason why there is no path.
    pub steps: Vec<String>,
}

/// Devices that have answered.
struct Reached {
    circuits: Option<CircuitClient>,
    /// By racks.
    switches: Vec<Option<Switch>>,
}

/// Looks at everything that these settings name.
///
/// # Errors
/// The settings are wrong in themselves.
pub async fn check(config: &ManagerConfig) -> Result<Findings, SettingsError> {
    look(config).await.map(|(findings, _)| findings)
}

/// The same, and then finds out where the fibres at the circuit switch lead: it makes circuits between ports
/// that have none, and takes them down, also when `stop` becomes ready.
///
/// # Errors
/// The settings are wrong in themselves.
pub async fn check_and_probe(
    config: &ManagerConfig,
    stop: impl Future<Output = ()>,
) -> Result<Findings, SettingsError> {
    let (mut findings, reached) = look(config).await?;
    let probed = match &config.ocs {
        Some(_) if config.fabrics.iter().any(|name| name == "ocs") => probed(config, reached, stop).await?,
        _ => Err("a probe looks for light at a circuit switch, and fabrics has no ocs".into()),
    };
    match probed {
        Ok((probe, faults)) => {
            findings.probe = Some(probe);
            findings.faults.extend(faults);
        }
        Err(why) => findings.faults.push(why),
    }
    findings.ok = findings.faults.is_empty();
    Ok(findings)
}

/// Probes, or says why not.
async fn probed(
    config: &ManagerConfig,
    reached: Reached,
    stop: impl Future<Output = ()>,
) -> Result<Result<(ProbeFindings, Vec<String>), String>, SettingsError> {
    if let Err(error) = std::net::TcpListener::bind(config.listen)
        && error.kind() == std::io::ErrorKind::AddrInUse
    {
        return Ok(Err(format!(
            "nothing was probed: a manager listens at {}, and may lend the ports that a probe uses; stop it for so long",
            config.listen
        )));
    }
    let Some(circuits) = reached.circuits else {
        return Ok(Err("nothing was probed, since the circuit switch does not answer".into()));
    };
    let layout = switch_ports::layout(config)?;
    let mut places = BTreeMap::new();
    for (rack, tor) in (0..).zip(&config.tor) {
        let ports = layout.ports.of_rack(rack).iter().zip(&tor.fibre_ports);
        places.extend(ports.map(|(port, fibre)| (*port, (rack, *fibre))));
    }
    let settle = (2 * Duration::from_millis(config.light_grace_ms)).max(SETTLE_MIN);
    let cabling = Cabling { table: &layout.ports, dialect: &*layout.dialect, places, settle };
    let hosts = config.tor.iter().map(|tor| tor.hosts.iter().map(|host| host.port).collect());
    let switches = (0..).zip(reached.switches).zip(hosts);
    let switches = switches.filter_map(|((rack, switch), hosts)| Some((rack, switch?, hosts))).collect();
    Ok(Ok(Probe::new(Devices { circuits, switches }, cabling).run(stop).await))
}

/// The devices of a probe.
struct Devices {
    circuits: CircuitClient,
    /// The racks' switches, each with the ports of its hosts.
    switches: Vec<(u32, Switch, BTreeSet<u32>)>,
}

impl Optics for Devices {
    async fn held(&self) -> Result<Vec<Held>, CircuitError> {
        self.circuits.retrieve().await
    }

    async fn enter(&self, circuit: Circuit) -> Result<(), CircuitError> {
        self.circuits.enter(circuit).await
    }

    async fn delete(&self, circuit: Circuit) -> Result<(), CircuitError> {
        self.circuits.delete(circuit).await
    }

    async fn light(&self) -> BTreeMap<Place, bool> {
        let ask = |(rack, switch, hosts): &(u32, Switch, BTreeSet<u32>)| {
            let (rack, switch, hosts) = (*rack, switch.clone(), hosts.clone());
            async move {
                let ports = switch.ports().await.unwrap_or_default().into_iter();
                let is_fibre =
                    move |port: &Port| port.number < tors::PORTS_END && !hosts.contains(&port.number);
                ports
                    .filter(is_fibre)
                    .map(move |port| ((rack, port.number), !port.link_down && !port.disabled))
            }
        };
        join_all(self.switches.iter().map(ask)).await.into_iter().flatten().collect()
    }
}

async fn look(config: &ManagerConfig) -> Result<(Findings, Reached), SettingsError> {
    config.check()?;
    let mut faults = Vec::new();
    let etcd = etcd::look(config, &mut faults).await?;
    let scheduler = look_at_scheduler(config, &mut faults).await?;
    let named = |fabric: &str| config.fabrics.iter().any(|name| name == fabric);
    let (circuit_switch, circuits) = match named("ocs") {
        true => {
            let (found, client) = look_at_circuits(config, &mut faults).await?;
            (Some(found), client)
        }
        false => (None, None),
    };
    let (tors, switches) = match named("ocs") || named("shufflecast") {
        true => look_at_tors(config, &mut faults).await?,
        false => (Vec::new(), Vec::new()),
    };
    let plans = plans(config)?;
    let ok = faults.is_empty();
    let findings = Findings { ok, faults, etcd, scheduler, circuit_switch, tors, plans, probe: None };
    Ok((findings, Reached { circuits, switches }))
}

async fn look_at_scheduler(
    config: &ManagerConfig,
    faults: &mut Vec<String>,
) -> Result<Option<SchedulerFindings>, SettingsError> {
    let Some(external) = config.scheduler.external()? else { return Ok(None) };
    let fabrics = fabrics::fabrics(config, &Hosts::new(config, &[]))?;
    let answered = external.probe(fabrics.names().collect()).await;
    if let Err(why) = &answered {
        faults.push(format!(
            "{} would decide in place of the scheduler at {}: {why} (settings scheduler.address, scheduler.deadline-ms)",
            config.scheduler.name, external.address
        ));
    }
    Ok(Some(SchedulerFindings { address: external.address, reached: answered.is_ok() }))
}

async fn look_at_circuits(
    config: &ManagerConfig,
    faults: &mut Vec<String>,
) -> Result<(CircuitSwitchFindings, Option<CircuitClient>), SettingsError> {
    let (layout, options) = (switch_ports::layout(config)?, switch_ports::options(config)?);
    let Some(settings) = &config.ocs else { unreachable!("the settings were checked") };
    let mut found = CircuitSwitchFindings {
        address: settings.address.to_string(),
        dialect: layout.dialect.name(),
        reached: false,
        identity: None,
        circuits: Vec::new(),
        alarms: Vec::new(),
    };
    let asked = async {
        let client = CircuitClient::connect(settings.address, options).await?;
        // Some are not asked in all versions of a dialect: what they are does not matter then.
        found.identity = client.identity().await.unwrap_or_default();
        found.alarms = client.alarms().await.unwrap_or_default();
        let size = client.size().await.unwrap_or_default();
        let held = client.retrieve().await?;
        Ok::<_, CircuitError>((client, size, held))
    };
    let asked = asked.await;
    let mut reached = None;
    match asked {
        Err(error) => {
            faults.push(format!("{error} (settings ocs.address, ocs.dialect, ocs.user, ocs.password-file)"))
        }
        Ok((client, size, held)) => {
            found.reached = true;
            reached = Some(client);
            if let Some((inputs, outputs)) = size.filter(|(inputs, _)| *inputs != settings.ports) {
                faults.push(format!(
                    "the circuit switch has {inputs} fibres where light enters and {outputs} where it leaves, and \
                     ocs.ports says {}: write ports = {inputs}",
                    settings.ports
                ));
            }
            let circuits =
                held.into_iter().map(|held| circuit(&layout.ports, &*layout.dialect, held, faults));
            found.circuits = circuits.collect();
        }
    }
    faults.extend(found.alarms.iter().map(|alarm| format!("the circuit switch has an alarm: {alarm}")));
    Ok((found, reached))
}

fn circuit(
    ports: &PortTable,
    dialect: &dyn Dialect,
    Held { circuit, fault }: Held,
    faults: &mut Vec<String>,
) -> CircuitFindings {
    let name = dialect.circuit_name(circuit);
    let owners = [ports.owner(circuit.from), ports.owner(circuit.to)];
    let whose = |owner: PortOwner| match owner {
        PortOwner::Rack(rack) => format!("rack {rack}"),
        PortOwner::Splitter(splitter) => format!("splitter {splitter}"),
    };
    if let [Some(owner), None] | [None, Some(owner)] = owners {
        faults.push(format!(
            "circuit {name} joins a port of {} to one that the settings do not name: take it down, or mend ocs.rack-ports \
             and ocs.splitters",
            whose(owner)
        ));
    }
    if let (Some(fault), [Some(_), _] | [_, Some(_)]) = (&fault, owners) {
        faults.push(format!("circuit {name} carries no light: the switch lists {fault}"));
    }
    CircuitFindings { name, ours: owners.iter().all(Option::is_some), fault }
}

async fn look_at_tors(
    config: &ManagerConfig,
    faults: &mut Vec<String>,
) -> Result<(Vec<TorFindings>, Vec<Option<Switch>>), SettingsError> {
    let door = tors::door(config)?;
    if let Some(door) = &door {
        door.open();
    }
    let mut reaching = Vec::new();
    for (rack, tor) in config.tor.iter().enumerate() {
        let endpoint = tor.openflow.as_deref().map(|text| tors::endpoint(rack, text)).transpose()?;
        let (options, door) = (tors::options(config, tor)?, door.clone());
        reaching.push(async move {
            let switch = match (endpoint, door, tor.dpid) {
                (Some(endpoint), ..) => {
                    Switch::connect(&endpoint, options).await.map_err(|error| error.to_string())
                }
                (None, Some(door), Some(dpid)) => await_switch(&door, dpid.0, options.connect_timeout).await,
                _ => Err("it has no address".into()),
            };
            let reached = switch.as_ref().ok().cloned();
            (one(rack, tor, switch).await, reached)
        });
    }
    let (mut found, mut switches) = (Vec::new(), Vec::new());
    for ((tor, mut wrong), switch) in join_all(reaching).await {
        found.push(tor);
        faults.append(&mut wrong);
        switches.push(switch);
    }
    Ok((found, switches))
}

async fn await_switch(door: &Arc<SwitchDoor>, dpid: u64, within: Duration) -> Result<Switch, String> {
    let come = async {
        loop {
            if let Some(switch) = door.take(dpid) {
                return switch;
            }
            tokio::time::sleep(LOOK_AGAIN).await;
        }
    };
    tokio::time::timeout(within, come).await.map_err(|_| {
        let millis = within.as_millis();
        format!("no switch with the dpid {dpid:#x} has connected to openflow-listen within {millis} ms: make this manager its controller")
    })
}

/// Checks one switch, and returns its findings and its faults.
async fn one(rack: usize, tor: &TorSettings, switch: Result<Switch, String>) -> (TorFindings, Vec<String>) {
    let name = match (&tor.openflow, tor.dpid) {
        (Some(openflow), _) => openflow.clone(),
        (None, Some(dpid)) => format!("{:#x}", dpid.0),
        (None, None) => String::new(),
    };
    let (dpid, tables, groups, ports) = Default::default();
    let mut found = TorFindings { rack, switch: name, reached: false, dpid, tables, groups, ports };
    let mut faults = Vec::new();
    let mut wrong = |reason: String| faults.push(format!("rack {rack}: {reason}"));
    let switch = match switch {
        Ok(switch) => switch,
        Err(error) => {
            wrong(format!("{error} (setting tor.openflow or tor.dpid)"));
            return (found, faults);
        }
    };
    found.reached = true;
    found.dpid = Some(format!("{:#x}", switch.datapath_id()));
    found.tables = Some(switch.tables());
    if let Some(named) = tor.dpid.filter(|named| named.0 != switch.datapath_id()) {
        let found = switch.datapath_id();
        wrong(format!(
            "it is the switch with the dpid {found:#x}, and tor.dpid says {:#x}: is the cable at another rack?",
            named.0
        ));
    }
    let shares = tor.fibre_ports.iter().any(|port| tor.splitter_ports.contains(port));
    let needed = match shares && tor.fibre_ports.len() == 1 {
        true => 3,
        false => tor.tables,
    };
    if switch.tables() < needed {
        wrong(format!(
            "it has {} tables of flows, and {needed} are needed: write tables = 1, or use two ports for the two fibres",
            switch.tables()
        ));
    }
    match switch.has_groups().await {
        Ok(has) => {
            found.groups = Some(has);
            if !has {
                wrong("it has no groups of type all, without which a switch cannot copy packets: turn them on, or take another switch".into());
            }
        }
        Err(error) => wrong(error.to_string()),
    }
    match switch.ports().await {
        Ok(ports) => {
            for (number, what, is_host) in named_ports(tor) {
                found.ports.push(port(&ports, number, what, is_host, &mut wrong));
            }
        }
        Err(error) => wrong(error.to_string()),
    }
    (found, faults)
}

/// The ports that the settings name, what is there, and whether it is a host.
fn named_ports(tor: &TorSettings) -> Vec<(u32, String, bool)> {
    let hosts = tor.hosts.iter().map(|host| (host.port, format!("host {}", host.name), true));
    let fibres =
        (0..).zip(&tor.fibre_ports).map(|(at, port): (u32, _)| (*port, format!("fibre {at}"), false));
    let inward = (0..).zip(&tor.splitter_ports);
    let splitters = tor.fibre_ports.len() as u32;
    let p = (tor.splitter_ports.len() as u32).checked_div(splitters).unwrap_or(0).max(1);
    let inward = inward.map(|(at, port): (u32, _)| {
        let as_which = if splitters > 1 { format!(", as its logical ToR {}", at / p) } else { String::new() };
        (*port, format!("from a splitter of partition {}{as_which}", at % p), false)
    });
    hosts.chain(fibres).chain(inward).collect()
}

fn port(
    ports: &[Port],
    number: u32,
    what: String,
    is_host: bool,
    wrong: &mut impl FnMut(String),
) -> PortFindings {
    let port = ports.iter().find(|port| port.number == number);
    let up = port.is_some_and(|port| !port.link_down && !port.disabled);
    match port {
        None => {
            // Higher numbers mean other things than ports.
            let mut have: Vec<&Port> = ports.iter().filter(|port| port.number < tors::PORTS_END).collect();
            have.sort_by_key(|port| port.number);
            let have: Vec<String> =
                have.iter().map(|port| format!("{} ({})", port.number, Printable(&port.name))).collect();
            wrong(format!("it has no port {number} for {what}: it has {}", have.join(", ")));
        }
        Some(port) if port.disabled => {
            wrong(format!("port {number} ({}) for {what} is switched off", Printable(&port.name)));
        }
        // A fibre has light only while something shines into it.
        Some(port) if port.link_down && is_host => {
            wrong(format!(
                "port {number} ({}) has no link, and {what} should be there",
                Printable(&port.name)
            ));
        }
        Some(_) => {}
    }
    PortFindings { number, name: port.map(|port| port.name.clone()), what, up }
}

/// Plans a transfer from the first host to all others, in an idle network.
fn plans(config: &ManagerConfig) -> Result<Vec<PlanFindings>, SettingsError> {
    let hosts = Hosts::new(config, &[]);
    let names: BTreeMap<HostId, String> =
        hosts.numbers().map(|(name, number)| (number, name.to_string())).collect();
    let Some(first) = fabrics::host_names(config).next() else { return Ok(Vec::new()) };
    let Some((&source, _)) = names.iter().find(|(_, name)| *name == first) else { return Ok(Vec::new()) };
    let receivers = names.keys().copied().filter(|host| *host != source).collect();
    let fabrics = fabrics::fabrics(config, &hosts)?;
    let dialect = match &config.ocs {
        Some(_) => switch_ports::layout(config).ok().map(|layout| layout.dialect),
        None => None,
    };
    let plan = fabrics.plan(&NetworkState::default(), &Group::of_one(source, receivers));
    let (fabric, steps) = match plan {
        Ok(plan) => {
            let words = |command: &DeviceCommand| words(command, dialect.as_deref(), &names);
            (Some(String::from(plan.fabric)), plan.commands.iter().map(words).collect())
        }
        Err(refusal) => (None, vec![refusal.to_string()]),
    };
    Ok(vec![PlanFindings { from: first.to_string(), fabric, steps }])
}

/// Describes a command to a device.
fn words(command: &DeviceCommand, dialect: Option<&dyn Dialect>, names: &BTreeMap<HostId, String>) -> String {
    let port = |port: &RackPort| match port {
        RackPort::Host(host) => names.get(host).cloned().unwrap_or_else(|| "a host".into()),
        RackPort::Circuit(uplink) => format!("fibre {uplink}"),
        RackPort::Splitter(0) => "the splitter".into(),
        RackPort::Splitter(nth) => format!("splitter {nth} of the rack"),
        RackPort::FromSplitters => "the splitters that feed it".into(),
    };
    match command {
        DeviceCommand::CrossConnect { from, to } => {
            let circuit = polycast_net::devices::circuits::Circuit { from: *from, to: *to };
            let name =
                dialect.map_or_else(|| format!("{from},{to}"), |dialect| dialect.circuit_name(circuit));
            format!("circuit {name}")
        }
        DeviceCommand::RackRule { rack, from, to, .. } => {
            let to: Vec<String> = to.iter().map(port).collect();
            format!("rack {rack}: from {} to {}", port(from), to.join(", "))
        }
        other => format!("{other:?}"),
    }
}

impl Findings {
    /// The same for people.
    #[must_use]
    pub fn text(&self) -> String {
        let mut text = String::new();
        if let Some(etcd) = &self.etcd {
            etcd.write(&mut text);
        }
        // Writing to a string cannot fail.
        if let Some(scheduler) = &self.scheduler {
            let state = if scheduler.reached { "answers" } else { "does not answer" };
            let _ = writeln!(text, "scheduler {} {state}", scheduler.address);
        }
        if let Some(switch) = &self.circuit_switch {
            let state = if switch.reached { "answers" } else { "does not answer" };
            let _ = writeln!(text, "circuit switch {} ({}) {state}", switch.address, switch.dialect);
            if let Some(identity) = &switch.identity {
                let _ = writeln!(text, "  it is {}", Printable(identity));
            }
            for circuit in &switch.circuits {
                let whose = if circuit.ours { "" } else { "  (of others)" };
                let fault = circuit.fault.as_deref().map(|fault| format!("  no light: {}", Printable(fault)));
                let _ = writeln!(text, "  circuit {}{whose}{}", circuit.name, fault.unwrap_or_default());
            }
        }
        for tor in &self.tors {
            let state = if tor.reached { "answers" } else { "does not answer" };
            let dpid = tor.dpid.as_deref().unwrap_or("unknown");
            let _ = writeln!(text, "rack {}: switch {} (dpid {dpid}) {state}", tor.rack, tor.switch);
            for port in &tor.ports {
                let (name, up) =
                    (port.name.as_deref().unwrap_or("missing"), if port.up { "up" } else { "down" });
                let _ =
                    writeln!(text, "  port {:4}  {:16} {up:5} {}", port.number, Printable(name), port.what);
            }
        }
        for plan in &self.plans {
            match &plan.fabric {
                Some(fabric) => {
                    let _ = writeln!(text, "a transfer from {} to all others goes over {fabric}:", plan.from);
                }
                None => {
                    let _ = writeln!(text, "a transfer from {} to all others has no path:", plan.from);
                }
            }
            for step in &plan.steps {
                let _ = writeln!(text, "  {step}");
            }
        }
        if let Some(probe) = &self.probe {
            probe.write(&mut text);
        }
        for fault in &self.faults {
            let _ = writeln!(text, "fault: {}", Printable(fault));
        }
        let _ = match self.faults.len() {
            0 => writeln!(text, "nothing is wrong"),
            1 => writeln!(text, "1 fault"),
            count => writeln!(text, "{count} faults"),
        };
        text
    }
}
