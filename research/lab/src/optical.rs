//! The devices of optical labs: ToR switches, splitters and, in a Blast network, the circuit switch (Blast
//! section IV-B, Shufflecast section III-B). The manager tells them what paths need; the lab starts them,
//! says in the manager's settings where they are, and gives the ToRs the rules that their operator would:
//! what hosts send to each other goes as on any Ethernet, and what they send to a group goes nowhere, least
//! of all to the packet core.

use crate::daemons::{Daemons, Places, Rank};
use crate::error::LabError;
use crate::layout::{self, GROUPS, Host, Layout, OCS_ADDRESS, OCS_TL1_PORT, OPTICS};
use crate::ocs::Fault;
use crate::openvswitch::{self, Bridge};
use crate::optics;
use crate::spec::{Network, Spec};
use crate::system::{Space, run};
use crate::world::MULTICAST_PERCENT;
use polycast_net::devices::at_once;
use polycast_net::devices::circuits::dialect;
use polycast_net::devices::openflow::{
    Action, Endpoint, Field, FlowMod, GroupMod, Match, Switch, SwitchError, SwitchOptions,
};
use polycast_topology::{Hybrid, Wiring};
use std::fmt::Write as _;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// OpenFlow numbers of a ToR's ports: its hosts from 1, and these.
const CORE_PORT: u32 = 1_000;
const FIBRE_OUT: u32 = 2_000;
const FIBRE_IN: u32 = 3_000;
/// The third byte of the groups that the packet core carries, where it carries any.
const CORE_POOL: u8 = 65;
/// The group of all hosts of a rack and the core.
const EVERYONE: u32 = 1;
/// Time within which a device must come up, and the interval between checks of whether it has.
const READY_WITHIN: Duration = Duration::from_secs(20);
const LOOK_AGAIN: Duration = Duration::from_millis(5);

/// Time that a port may have no light after its circuits were made.
const LIGHT_GRACE_MS: u64 = 400;

/// Loss that the emulated light may have, and the gain of amplifiers, in dB: packets do not fade, but the
/// planner still refuses what real light could not do.
const BUDGET_DB: f64 = 30.0;
const SWITCH_LOSS_DB: f64 = 1.5;
const AMPLIFIER_GAIN_DB: f64 = 20.0;

/// The user of the lab's circuit switch, and the password. Only the lab's manager reaches that switch.
const OCS_USER: &str = "polycast";
const OCS_PASSWORD: &str = "lab-only";

/// Starts switches, splitters and the circuit switch, and gives the ToRs their operator's rules.
pub(crate) fn start(
    spec: &Spec,
    layout: &Layout,
    places: &Places,
    daemons: &mut Daemons,
) -> Result<(), LabError> {
    // Switches in user space do not finish the check sums that a host leaves to its network card.
    for host in layout.hosts.iter().chain([&layout.manager]) {
        run(Space::named(&host.name).command("ethtool").args(["-K", "eth0", "tx", "off"]), None)?;
    }
    Space::named(OPTICS).batch("ip", &[format!("addr add {OCS_ADDRESS}/16 dev mgmt")])?;
    let racks = racks(layout);
    let bridges: Vec<Bridge> = (0..racks).map(|rack| bridge(spec.network, layout, rack)).collect();
    openvswitch::start(&bridges, places, daemons)?;
    optics::apply(&Space::named(OPTICS), &splitters(spec.network))?;
    if let Network::Blast { hybrid, circuit_ms, dialect, .. } = spec.network {
        let address = SocketAddr::from((OCS_ADDRESS, OCS_TL1_PORT));
        let mut command = Space::named(OPTICS).command(&places.program.to_string_lossy());
        command.args(["lab", "device", "ocs", "--listen", &address.to_string()]);
        command.args([
            "--ports",
            &hybrid.ports_needed().to_string(),
            "--circuit-ms",
            &circuit_ms.to_string(),
        ]);
        if !spec.always_lit {
            command.args(["--light", &spec.to_string()]);
        }
        command.args(["--dialect", dialect, "--login", &format!("{OCS_USER}:{OCS_PASSWORD}")]);
        write_password(places)?;
        daemons.start_silent("ocs", command, places)?;
        reach_ocs()?;
        daemons.put_first("ocs", Rank::Control);
    }
    let failed = |error: std::io::Error| LabError::system("control the switches", error);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(failed)?;
    let one = |rack: u32| {
        let name = layout::tor(rack);
        let (endpoint, rules) = (openvswitch::endpoint(places, &name), operators(spec.network, layout, rack));
        (name, async move {
            let switch = reach_switch(&endpoint).await?;
            switch.apply(rules.0, rules.1).await
        })
    };
    for outcome in runtime.block_on(at_once((0..racks).map(one))) {
        let name = outcome.device;
        outcome.result.map_err(|error| LabError::system(format!("set the rules of {name}"), error))?;
    }
    if let (Network::Shufflecast { .. }, false) = (spec.network, spec.always_lit) {
        let text = spec.to_string();
        let light =
            daemons.start("light", &Space::named(OPTICS), places, &["lab", "device", "light", &text])?;
        daemons.await_ready(&light)?;
    }
    Ok(())
}

/// Lets switches that hosts have spoken through hold more packets than their sockets do by themselves, and
/// forward whatever the hosts are busy with.
pub(crate) fn make_ready(spec: &Spec, layout: &Layout, daemons: &Daemons) -> Result<(), LabError> {
    (0..racks(layout)).try_for_each(|rack| {
        let bridge = bridge(spec.network, layout, rack);
        daemons.put_first(&openvswitch::daemon_name(&bridge.name), Rank::Switch);
        openvswitch::widen(&bridge, daemons)
    })
}

fn racks(layout: &Layout) -> u32 {
    layout.hosts.last().map_or(0, |host| host.rack + 1)
}

/// The manager's settings in this lab.
pub(crate) fn manager_settings(spec: &Spec, layout: &Layout, places: &Places) -> String {
    let [a, b] = GROUPS;
    let pool = format!("pool = \"{a}.{b}.64.0/24\"\n");
    // On circuits and fixed splitters there is no other sender: the whole rate of the path is ours.
    let rate = spec.rate.map_or(0, |rate| rate.0 / 100 * MULTICAST_PERCENT);
    let mut text = String::new();
    // Writing to a string cannot fail.
    let _ = match spec.network {
        Network::Bridge { .. } | Network::Datacast { .. } | Network::Orca { .. } => Ok(()),
        Network::Blast { hybrid, circuit_ms, core_multicast, wait, dialect, .. } => write!(
            text,
            "fabrics = [\"ocs\", {}\"tcp-chain\"]\nscheduler = \"greedy-matching\"\nwhen-busy = \"wait\"\n\
             on-device-failure = \"{}\"\n[ip-multicast]\npool = \"{a}.{b}.{CORE_POOL}.0/24\"\n\
             [ocs]\naddress = \"{OCS_ADDRESS}:{OCS_TL1_PORT}\"\ndialect = \"{dialect}\"\n{}ports = {}\n{}\n\
             budget-db = {BUDGET_DB:?}\nswitch-loss-db = {SWITCH_LOSS_DB:?}\namplifier-gain-db = {AMPLIFIER_GAIN_DB:?}\n\
             rate = \"{rate}\"\nset-up-ms = {circuit_ms}\n{pool}",
            if core_multicast { "\"ip-multicast\", " } else { "" },
            if wait { "wait" } else { "fallback" },
            login_settings(dialect, places),
            hybrid.ports_needed(),
            port_settings(&hybrid, dialect),
        ),
        Network::Shufflecast { wiring, .. } => write!(
            text,
            "fabrics = [\"shufflecast\", \"tcp-chain\"]\nscheduler = \"partition-fcfs\"\nwhen-busy = \"wait\"\n\
             [shufflecast]\np = {}\nk = {}\n{}rate = \"{rate}\"\n{pool}",
            wiring.logical().fanout(),
            wiring.logical().columns(),
            if wiring.is_whole() { String::new() } else { format!("tors = {}\n", wiring.tors()) },
        ),
    };
    if matches!(spec.network, Network::Blast { .. } | Network::Shufflecast { .. }) {
        // Before the first section. These switches tell of light as soon as it is there.
        let grace_ms = spec.patience_ms.map_or(LIGHT_GRACE_MS, u64::from);
        let answers = spec.patience_ms.map(|ms| format!("device-timeout-ms = {ms}\n")).unwrap_or_default();
        text.insert_str(0, &format!("light-grace-ms = {grace_ms}\n{answers}"));
    }
    for rack in 0..racks(layout) {
        let Endpoint::Unix(socket) = openvswitch::endpoint(places, &layout::tor(rack)) else { continue };
        let ports = Ports::of(spec.network, rack);
        let hosts: Vec<String> = layout
            .hosts
            .iter()
            .filter(|host| host.rack == rack)
            .map(|host| format!("{{ name = \"{}\", port = {} }}", host.name, host_number(host)))
            .collect();
        let _ = write!(
            text,
            "[[tor]]\nopenflow = \"unix:{}\"\nsubnet = \"10.77.{rack}.0/24\"\nfibre-ports = {:?}\n\
             splitter-ports = {:?}\nhosts = [{}]\n",
            socket.display(),
            ports.fibres,
            ports.from_splitters,
            hosts.join(", ")
        );
    }
    text
}

/// The file with the password of the circuit switch.
fn password_file(places: &Places) -> PathBuf {
    places.inside.join("ocs.password")
}

/// Writes it, where its owner alone can read it.
fn write_password(places: &Places) -> Result<(), LabError> {
    let path = password_file(places);
    let failed = |error: std::io::Error| LabError::path("write", &path, &error);
    let mut options = std::fs::OpenOptions::new();
    let mut file = options.write(true).create(true).truncate(true).mode(0o600).open(&path).map_err(failed)?;
    writeln!(file, "{OCS_PASSWORD}").map_err(failed)
}

/// The user for the circuit switch, where its dialect has a login.
fn login_settings(name: &str, places: &Places) -> String {
    match dialect(name, 0) {
        Ok(dialect) if dialect.has_login() => {
            format!("user = \"{OCS_USER}\"\npassword-file = {:?}\n", password_file(places))
        }
        _ => String::new(),
    }
}

/// Formats the settings of the circuit switch's ports, in its own names.
fn port_settings(hybrid: &Hybrid, name: &str) -> String {
    let Ok(dialect) = dialect(name, hybrid.ports_needed() as u32) else { return String::new() };
    let port = |place: u32| format!("\"{}\"", dialect.port_name(dialect.nth_port(place)));
    let list = |ports: Vec<String>| format!("[{}]", ports.join(", "));
    let rack =
        |rack| list((0..hybrid.ports_per_rack).map(|uplink| port(hybrid.rack_port(rack, uplink))).collect());
    let splitter = |splitter| {
        let outputs =
            (0..hybrid.splitter_fanout).map(|output| port(hybrid.splitter_output(splitter, output)));
        let (input, outputs) = (port(hybrid.splitter_input(splitter)), list(outputs.collect()));
        format!("{{ input = {input}, outputs = {outputs}, fan-out = {} }}", hybrid.splitter_fanout)
    };
    let racks = list((0..hybrid.racks).map(rack).collect());
    let splitters = list((0..hybrid.splitters).map(splitter).collect());
    format!("rack-ports = {racks}\nsplitters = {splitters}")
}

/// Waits for the circuit switch, which is just coming up.
fn reach_ocs() -> Result<(), LabError> {
    let begun = Instant::now();
    loop {
        match TcpStream::connect((OCS_ADDRESS, OCS_TL1_PORT)) {
            Ok(_) => return Ok(()),
            Err(error) if begun.elapsed() > READY_WITHIN => {
                return Err(LabError::system("start the circuit switch", error));
            }
            Err(_) => std::thread::sleep(LOOK_AGAIN),
        }
    }
}

/// Makes the circuit switch misbehave from now on.
pub(crate) fn misbehave(fault: Fault) -> Result<(), LabError> {
    let failed = |error: std::io::Error| LabError::system("make the circuit switch misbehave", error);
    let mut stream = TcpStream::connect((OCS_ADDRESS, OCS_TL1_PORT)).map_err(failed)?;
    stream.set_read_timeout(Some(READY_WITHIN)).map_err(failed)?;
    stream.write_all(format!("ED-FAULT::{}:1;\n", fault.word()).as_bytes()).map_err(failed)?;
    // Its answer says that it has understood.
    stream.read(&mut [0; 256]).map_err(failed).map(drop)
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
        Network::Bridge { .. } | Network::Datacast { .. } | Network::Orca { .. } => {}
        Network::Blast { hybrid, .. } => {
            let uplinks = 0..hybrid.ports_per_rack;
            ports.extend(uplinks.map(|uplink| (layout::fibre_port(rack, uplink), FIBRE_OUT + uplink)));
        }
        Network::Shufflecast { wiring, .. } => {
            let splitters = 0..wiring.logical_of(rack).len() as u32;
            ports.extend(splitters.map(|nth| (layout::fibre_port(rack, nth), FIBRE_OUT + nth)));
            let parents = parents(&wiring, rack).into_iter();
            ports.extend(parents.map(|parent| (layout::from_parent(rack, parent), FIBRE_IN + parent)));
        }
    }
    Bridge { name: layout::tor(rack), ports }
}

/// The splitters that feed a rack: by partitions, for one of its logical ToRs after the other.
fn parents(wiring: &Wiring, rack: u32) -> Vec<u32> {
    let network = wiring.logical();
    let of = |logical| (0..network.fanout()).map(move |partition| network.parent(logical, partition));
    wiring.logical_of(rack).into_iter().flat_map(of).collect()
}

fn host_number(host: &Host) -> u32 {
    1 + host.place
}

/// OpenFlow's numbers of a ToR's ports with fibres.
struct Ports {
    /// To the circuit switch, or into its splitter.
    fibres: Vec<u32>,
    /// From splitters, by the partitions of the racks that they belong to.
    from_splitters: Vec<u32>,
}

impl Ports {
    fn of(network: Network, rack: u32) -> Self {
        let none = Vec::new;
        match network {
            Network::Bridge { .. } | Network::Datacast { .. } | Network::Orca { .. } => {
                Ports { fibres: none(), from_splitters: none() }
            }
            Network::Blast { hybrid, .. } => Ports {
                fibres: (0..hybrid.ports_per_rack).map(|uplink| FIBRE_OUT + uplink).collect(),
                from_splitters: none(),
            },
            Network::Shufflecast { wiring, .. } => Ports {
                fibres: (FIBRE_OUT..).take(wiring.logical_of(rack).len()).collect(),
                from_splitters: parents(&wiring, rack).into_iter().map(|parent| FIBRE_IN + parent).collect(),
            },
        }
    }

    /// Returns the ports at which light comes in.
    fn light(&self) -> &[u32] {
        if self.from_splitters.is_empty() { &self.fibres } else { &self.from_splitters }
    }
}

fn splitters(network: Network) -> Vec<String> {
    let (count, fanout) = match network {
        Network::Bridge { .. } | Network::Datacast { .. } | Network::Orca { .. } => (0, 0),
        Network::Blast { hybrid, .. } => (hybrid.splitters, hybrid.splitter_fanout),
        Network::Shufflecast { wiring, .. } => (wiring.logical().tors(), wiring.logical().fanout()),
    };
    let one = |splitter: u32| {
        let outputs: Vec<String> =
            (0..fanout).map(|output| layout::splitter_output(splitter, output)).collect();
        optics::splitter(&layout::splitter_input(splitter), &outputs)
    };
    (0..count).flat_map(one).collect()
}

/// Returns the operator's groups and flows of a ToR. They lie below the manager's rules.
fn operators(network: Network, layout: &Layout, rack: u32) -> (Vec<GroupMod>, Vec<FlowMod>) {
    let hosts: Vec<&Host> = layout.hosts.iter().filter(|host| host.rack == rack).collect();
    let everyone = hosts.iter().map(|host| host_number(host)).chain([CORE_PORT]);
    let groups = vec![GroupMod::to_ports(EVERYONE, everyone)];
    let mut flows = Vec::new();
    for &port in Ports::of(network, rack).light() {
        flows.push(FlowMod::add(50, Match::any().and(Field::InPort(port)), vec![]));
    }
    let [a, b] = GROUPS;
    let to_groups =
        Match::any().and(Field::EthType(0x0800)).and(Field::Ipv4Dst([a, b, 0, 0], [0xff, 0xff, 0, 0]));
    flows.push(FlowMod::add(40, to_groups, vec![]));
    if let Network::Blast { core_multicast: true, .. } = network {
        let over_the_core = Match::any()
            .and(Field::EthType(0x0800))
            .and(Field::Ipv4Dst([a, b, CORE_POOL, 0], [0xff, 0xff, 0xff, 0]));
        flows.push(FlowMod::add(45, over_the_core, vec![Action::Group(EVERYONE)]));
    }
    for host in hosts {
        let there = vec![Action::Output(host_number(host))];
        flows.push(FlowMod::add(30, Match::any().and(Field::eth_dst(host.mac)), there));
    }
    let broadcast = Match::any().and(Field::EthDst([1, 0, 0, 0, 0, 0], [1, 0, 0, 0, 0, 0]));
    flows.push(FlowMod::add(20, broadcast, vec![Action::Group(EVERYONE)]));
    flows.push(FlowMod::add(10, Match::any(), vec![Action::Output(CORE_PORT)]));
    (groups, flows)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_managers_settings_name_every_rack_and_host() {
        for (text, racks, hosts) in [("blast:racks=3,hosts=2", 3, 6), ("shufflecast:2,2,hosts=1", 8, 8)] {
            let spec: Spec = text.parse().unwrap();
            let layout = Layout::new(&spec);
            let places = Places { program: "p".into(), inside: "/inside".into(), logs: "/logs".into() };
            let settings = manager_settings(&spec, &layout, &places);
            assert_eq!(settings.matches("[[tor]]").count(), racks, "{settings}");
            assert_eq!(settings.matches("name = ").count(), hosts, "{settings}");
            assert!(settings.contains("openflow = \"unix:/inside/ovs/tor2/tor2.mgmt\""), "{settings}");
        }
    }

    #[test]
    fn every_rack_has_its_ports() {
        let spec: Spec = "shufflecast:2,3,hosts=1".parse().unwrap();
        let ports = bridge(spec.network, &Layout::new(&spec), 5).ports;
        assert_eq!(ports.len(), 1 + 1 + 1 + 2);
        assert_eq!(Ports::of(spec.network, 5).from_splitters.len(), 2);
        // Of 15 racks the first nine have two splitters each.
        let spec: Spec = "shufflecast:2,3,tors=15,hosts=1".parse().unwrap();
        for (rack, splitters) in [(5, 2), (9, 1)] {
            assert_eq!(bridge(spec.network, &Layout::new(&spec), rack).ports.len(), 1 + 1 + 3 * splitters);
            let ports = Ports::of(spec.network, rack);
            assert_eq!((ports.fibres.len(), ports.from_splitters.len()), (splitters, 2 * splitters));
        }
    }
}
