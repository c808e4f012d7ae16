//! The nodes of a lab and the cables between them, as data.

use crate::datacast_nodes::{arcs, interface, node_name};
use crate::spec::{Network, Spec};
use crate::system::Space;
use polycast_topology::{self as topology, Clos, CompactGraph, Graph, Hybrid, Kind, Node, Wiring};
use serde::{Deserialize, Serialize};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Port that the manager listens on.
pub const MANAGER_PORT: u16 = 7400;
/// Range of group addresses: the first two bytes of all of them.
pub const GROUPS: [u8; 2] = [239, 255];
/// The namespace of splitters and the circuit switch.
pub const OPTICS: &str = "optics";

/// A machine with an agent, or the manager's.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Host {
    /// Its name, and that of its namespace.
    pub name: String,
    /// Its address; all are in one network of 16 bits, or of 64 where they have IPv6.
    pub address: IpAddr,
    /// Its hardware address.
    pub mac: [u8; 6],
    /// The rack that it is in.
    pub rack: u32,
    /// Its number within the rack.
    pub place: u32,
}

impl Host {
    /// A rack has a network of 24 bits: so one rule of a switch can mean all hosts of a rack.
    fn placed(number: u32, rack: u32, place: u32, over_ipv6: bool) -> Self {
        let (high, low) = (rack as u8, place as u8 + 1);
        Host {
            name: format!("h{number}"),
            address: address_of(Ipv4Addr::new(10, 77, high, low), over_ipv6),
            mac: [2, 0x77, 0, 0, high, low],
            rack,
            place,
        }
    }

    fn manager(over_ipv6: bool) -> Self {
        Host {
            name: "manager".into(),
            address: address_of(MANAGER_ADDRESS, over_ipv6),
            mac: [2, 0x77, 0, 0, 255, 1],
            rack: 255,
            place: 0,
        }
    }

    /// The hardware address in words.
    #[must_use]
    pub fn mac_text(&self) -> String {
        self.mac.map(|byte| format!("{byte:02x}")).join(":")
    }
}

/// This address, or the one of IPv6 with the same end.
fn address_of(address: Ipv4Addr, over_ipv6: bool) -> IpAddr {
    let [.., high, low] = address.octets();
    match over_ipv6 {
        true => Ipv6Addr::new(0xfd77, 0, 0, 0, 0, 0, high.into(), low.into()).into(),
        false => address.into(),
    }
}

/// One end of a cable.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct End {
    /// The node, as reports name it: `h3`, `tor1`, `ocs:4`.
    pub node: String,
    /// The namespace of the interface.
    pub space: Space,
    /// The interface.
    pub interface: String,
}

impl End {
    fn new(node: impl Into<String>, space: Space, interface: impl Into<String>) -> Self {
        End { node: node.into(), space, interface: interface.into() }
    }

    fn of_tor(rack: u32, interface: String) -> Self {
        End::new(tor(rack), Space::named(tor(rack)), interface)
    }
}

/// A cable, with its two directions.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Cable {
    /// One end, which may be in a host.
    pub a: End,
    /// The other end, where the cable is made and counted: never in a host.
    pub b: End,
}

impl Cable {
    /// Returns true if the cable joins a rack to the packet core.
    pub(crate) fn is_uplink(&self) -> bool {
        self.a.node.starts_with("tor") && self.b.node == "core"
    }
}

/// Traffic that crossed a cable in one direction.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct LinkBytes {
    /// The node that sent.
    pub from: String,
    /// The node that received.
    pub to: String,
    /// All bytes of all Ethernet frames.
    pub bytes: u64,
}

/// A whole lab.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Layout {
    /// The hosts with agents, by number.
    pub hosts: Vec<Host>,
    /// The manager's host.
    pub manager: Host,
    /// All cables.
    pub cables: Vec<Cable>,
    /// Interfaces of the lab's own namespace that are ports of the Linux bridge `core`.
    pub bridge_ports: Vec<String>,
}

/// The manager's host.
pub const MANAGER_ADDRESS: Ipv4Addr = Ipv4Addr::new(10, 77, 255, 1);
/// The bridge port of the manager's host.
pub const MANAGER_INTERFACE: &str = "mgr";
/// The bridge port of the optics' management interface, and that interface.
pub const OPTICS_INTERFACE: &str = "ocsm";
/// The lab's own address on the packet core, from which it reaches devices.
pub const CONTROL_ADDRESS: Ipv4Addr = Ipv4Addr::new(10, 77, 255, 254);
/// Address that the circuit switch listens on.
pub const OCS_ADDRESS: Ipv4Addr = Ipv4Addr::new(10, 77, 255, 2);
/// The circuit switch's TCP port for TL1.
pub const OCS_TL1_PORT: u16 = 3083;

impl Layout {
    /// The nodes and cables of a specification.
    #[must_use]
    pub fn new(spec: &Spec) -> Self {
        let network = spec.network;
        let per_rack = match network {
            Network::Bridge { hosts } => hosts,
            Network::Blast { hybrid, .. } => hybrid.servers_per_rack,
            Network::Shufflecast { hosts, .. } => hosts,
            Network::Datacast { .. } => network.hosts(),
            Network::Orca { clos, .. } => clos.hosts_per_leaf(),
        };
        let placed = |number| Host::placed(number, number / per_rack, number % per_rack, spec.over_ipv6);
        let hosts: Vec<Host> = (0..network.hosts()).map(placed).collect();
        let manager = Host::manager(spec.over_ipv6);
        let mut layout = Layout { hosts, manager, cables: Vec::new(), bridge_ports: Vec::new() };
        let core = if matches!(network, Network::Bridge { .. }) { "switch" } else { "core" };
        layout.host_cable(&layout.manager.clone(), core, Space::Network, MANAGER_INTERFACE.into());
        layout.bridge_ports.push(MANAGER_INTERFACE.into());
        for (number, host) in layout.hosts.clone().iter().enumerate() {
            if let Network::Orca { clos, .. } = network {
                let node = label_switch(&clos, clos.leaf(host.rack));
                layout.host_cable(host, &node, Space::named(&node), label_port(host.place));
            } else if matches!(network, Network::Bridge { .. } | Network::Datacast { .. }) {
                let port = format!("sw{number}");
                layout.host_cable(host, core, Space::Network, port.clone());
                layout.bridge_ports.push(port);
            } else {
                let (node, port) = (tor(host.rack), host_port(host.rack, host.place));
                layout.host_cable(host, &node, Space::named(&node), port);
            }
        }
        match network {
            Network::Bridge { .. } => {}
            Network::Blast { hybrid, swapped, .. } => layout.blast(&hybrid, swapped),
            Network::Shufflecast { wiring, .. } => layout.shufflecast(&wiring),
            Network::Datacast { network, .. } => layout.cables.extend(cables_of(&network)),
            Network::Orca { clos, .. } => layout.orca(&clos),
        }
        layout
    }

    fn host_cable(&mut self, host: &Host, node: &str, space: Space, interface: String) {
        let a = End::new(&host.name, Space::named(&host.name), "eth0");
        self.cables.push(Cable { a, b: End::new(node, space, interface) });
    }

    fn core_cables(&mut self, racks: u32) {
        let a = End::new("optics", Space::named(OPTICS), "mgmt");
        self.cables.push(Cable { a, b: End::new("core", Space::Network, OPTICS_INTERFACE) });
        self.bridge_ports.push(OPTICS_INTERFACE.into());
        for rack in 0..racks {
            let a = End::of_tor(rack, core_port(rack));
            let b = End::new("core", Space::Network, format!("c{rack}"));
            self.bridge_ports.push(b.interface.clone());
            self.cables.push(Cable { a, b });
        }
    }

    fn blast(&mut self, hybrid: &Hybrid, swapped: Option<(u32, u32)>) {
        self.core_cables(hybrid.racks);
        let optics = || Space::named(OPTICS);
        let ocs = |port: u32| {
            // Counted from 0 here.
            let port = match swapped {
                Some((a, b)) if port + 1 == a => b - 1,
                Some((a, b)) if port + 1 == b => a - 1,
                _ => port,
            };
            End::new(format!("ocs:{}", port + 1), optics(), ocs_port(port))
        };
        for rack in 0..hybrid.racks {
            for uplink in 0..hybrid.ports_per_rack {
                let a = End::of_tor(rack, fibre_port(rack, uplink));
                self.cables.push(Cable { a, b: ocs(hybrid.rack_port(rack, uplink)) });
            }
        }
        for splitter in 0..hybrid.splitters {
            let node = format!("splitter{splitter}");
            let a = End::new(&node, optics(), splitter_input(splitter));
            self.cables.push(Cable { a, b: ocs(hybrid.splitter_input(splitter)) });
            for output in 0..hybrid.splitter_fanout {
                let a = End::new(&node, optics(), splitter_output(splitter, output));
                self.cables.push(Cable { a, b: ocs(hybrid.splitter_output(splitter, output)) });
            }
        }
    }

    /// Every ToR has a splitter of its own, or several, whose outputs end at ToRs of the next column.
    fn shufflecast(&mut self, wiring: &Wiring) {
        self.core_cables(wiring.tors());
        for splitter in 0..wiring.logical().tors() {
            let node = format!("splitter{splitter}");
            let rack = wiring.physical(splitter);
            let a = End::of_tor(rack, fibre_port(rack, wiring.nth(splitter)));
            let b = End::new(&node, Space::named(OPTICS), splitter_input(splitter));
            self.cables.push(Cable { a, b });
            for (output, child) in wiring.logical().children(splitter).enumerate() {
                let a = End::new(&node, Space::named(OPTICS), splitter_output(splitter, output as u32));
                let rack = wiring.physical(child);
                let b = End::of_tor(rack, from_parent(rack, splitter));
                self.cables.push(Cable { a, b });
            }
        }
    }

    /// Leafs, spines and cores; beside the fat-tree the leafs are on a packet core, for all that has no
    /// label.
    fn orca(&mut self, clos: &Clos) {
        let end = |node: Node, port: u32| {
            let name = label_switch(clos, node);
            End::new(&name, Space::named(&name), label_port(port))
        };
        for rack in 0..clos.leafs() {
            let name = label_switch(clos, clos.leaf(rack));
            let a = End::new(&name, Space::named(&name), LEAF_TO_CORE);
            let b = End::new("core", Space::Network, format!("c{rack}"));
            self.bridge_ports.push(b.interface.clone());
            self.cables.push(Cable { a, b });
        }
        let switches = clos.hosts()..clos.node_count();
        for node in switches {
            let down = match clos.kind(node).0 {
                Kind::Leaf => clos.hosts_per_leaf(),
                Kind::Spine => clos.leafs_per_pod(),
                Kind::Host | Kind::Core => continue,
            };
            for port in down..clos.port_count(node) {
                let other = clos.neighbor(node, port);
                let back = clos.port_to(other, node).unwrap_or_default();
                self.cables.push(Cable { a: end(node, port), b: end(other, back) });
            }
        }
    }

    /// All namespaces with names.
    #[must_use]
    pub fn spaces(&self) -> Vec<String> {
        let mut names: Vec<String> = Vec::new();
        for end in self.cables.iter().flat_map(|cable| [&cable.a, &cable.b]) {
            if let Space::Named(name) = &end.space
                && !names.contains(name)
            {
                names.push(name.clone());
            }
        }
        names
    }

    /// The host of this name or number.
    #[must_use]
    pub fn host(&self, name: &str) -> Option<&Host> {
        match name.parse::<usize>() {
            Ok(number) => self.hosts.get(number),
            Err(_) => self.hosts.iter().find(|host| host.name == name),
        }
    }
}

/// A leaf's interface to the packet core, and its Linux bridge for what has no label.
pub const LEAF_TO_CORE: &str = "mgmt";
/// The bridge.
pub const LEAF_BRIDGE: &str = "plain";

/// The name of a leaf, spine or core of a network with labels: `leaf0`, `spine0`, `core0` and so on.
#[must_use]
pub fn label_switch(clos: &Clos, node: Node) -> String {
    let (kind, number) = clos.kind(node);
    let name = match kind {
        Kind::Host => "h",
        Kind::Leaf => "leaf",
        Kind::Spine => "spine",
        Kind::Core => "core",
    };
    format!("{name}{number}")
}

/// The switch of this name.
pub(crate) fn find_label_switch(clos: &Clos, name: &str) -> Option<Node> {
    (clos.hosts()..clos.node_count()).find(|switch| label_switch(clos, *switch) == name)
}

/// The interface of one of its ports.
#[must_use]
pub fn label_port(port: u32) -> String {
    format!("p{port}")
}

/// The name of a ToR switch, and of its bridge.
#[must_use]
pub fn tor(rack: u32) -> String {
    format!("tor{rack}")
}

/// The ToR's port to one of its hosts.
#[must_use]
pub fn host_port(rack: u32, place: u32) -> String {
    format!("t{rack}h{place}")
}

/// The ToR's port to the packet core.
#[must_use]
pub fn core_port(rack: u32) -> String {
    format!("t{rack}c")
}

/// The ToR's fibre to the circuit switch, or into its splitter.
#[must_use]
pub fn fibre_port(rack: u32, uplink: u32) -> String {
    format!("t{rack}o{uplink}")
}

/// The ToR's fibre from a splitter.
#[must_use]
pub fn from_parent(rack: u32, parent: u32) -> String {
    format!("t{rack}p{parent}")
}

/// A port of the circuit switch, which TL1 counts from 1.
#[must_use]
pub fn ocs_port(port: u32) -> String {
    format!("p{}", port + 1)
}

/// The fibre into a splitter.
#[must_use]
pub fn splitter_input(splitter: u32) -> String {
    format!("s{splitter}i")
}

/// A fibre out of a splitter.
#[must_use]
pub fn splitter_output(splitter: u32, output: u32) -> String {
    format!("s{splitter}x{output}")
}

/// The cables of a Datacast fabric, each once.
pub(crate) fn cables_of(network: &topology::Network) -> Vec<Cable> {
    let graph = CompactGraph::new(network);
    let end = |node: Node, port: u32| {
        let name = node_name(network, node);
        End { space: Space::named(&name), node: name, interface: interface(port) }
    };
    let mut cables = Vec::new();
    for (arc, node, port) in arcs(&graph) {
        let far = graph.reverse(arc);
        if arc < far {
            let other = graph.target(arc);
            let far_port = far - graph.arcs(other).start;
            cables.push(Cable { a: end(node, port), b: end(other, far_port) });
        }
    }
    cables
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn names_are_short_enough_and_differ() {
        for text in [
            "bridge:200",
            "bridge:200,ip=6",
            "blast:racks=60,hosts=3",
            "shufflecast:2,3,hosts=8",
            "shufflecast:4,2,hosts=1",
            "shufflecast:2,3,tors=15,hosts=2",
            "shufflecast:3,2,tors=4,hosts=2",
            "datacast:bcube:4,3",
            "datacast:torus:4,3",
            "datacast:fat-tree:6,3",
            "orca:6",
        ] {
            let layout = Layout::new(&text.parse().unwrap());
            let mut seen = BTreeSet::new();
            for end in layout.cables.iter().flat_map(|cable| [&cable.a, &cable.b]) {
                assert!(end.interface.len() < 16, "{end:?}");
                assert!(seen.insert((end.space.clone(), end.interface.clone())), "{end:?}");
            }
            let addresses: BTreeSet<_> = layout.hosts.iter().map(|host| host.address).collect();
            let macs: BTreeSet<_> = layout.hosts.iter().map(|host| host.mac).collect();
            assert_eq!((addresses.len(), macs.len()), (layout.hosts.len(), layout.hosts.len()));
            assert!(!addresses.contains(&layout.manager.address) && !macs.contains(&layout.manager.mac));
        }
    }

    #[test]
    fn every_rack_has_its_cables() {
        let layout = Layout::new(&"blast:racks=3,hosts=2,fanout=2".parse().unwrap());
        // 6 hosts, the manager, the optics, 3 to the core, 3 fibres, and a splitter of 1 + 2.
        assert_eq!(layout.cables.len(), 6 + 1 + 1 + 3 + 3 + 3);
        assert_eq!(layout.host("h5").unwrap().rack, 2);
        assert_eq!(layout.host("5"), layout.host("h5"));
        assert_eq!(layout.host("h6"), None);
        let end = |spec: &str, interface: &str| {
            let cables = Layout::new(&spec.parse().unwrap()).cables;
            cables.into_iter().find(|cable| cable.a.interface == interface).unwrap().b.interface
        };
        let swapped = "blast:racks=3,hosts=2,fanout=2,swapped=2:5";
        assert_eq!([end(swapped, "t1o0"), end(swapped, "s0x0"), end(swapped, "t2o0")], ["p5", "p2", "p3"]);
        let layout = Layout::new(&"shufflecast:2,2".parse().unwrap());
        // 16 hosts, the manager, the optics, 8 to the core, 8 into splitters and 16 out of them.
        assert_eq!(layout.cables.len(), 16 + 1 + 1 + 8 + 8 + 16);
        let layout = Layout::new(&"orca:4".parse().unwrap());
        // 16 hosts, the manager, 8 leafs to the packet core, 16 from leafs to spines and 16 from there to
        // cores.
        assert_eq!(layout.cables.len(), 16 + 1 + 8 + 16 + 16);
        assert_eq!(layout.spaces().len(), 16 + 1 + 20);
    }
}
