//! Builds namespaces and cables, shapes them, cuts them and counts what crosses them.

use crate::error::LabError;
use crate::label_switches;
use crate::layout::{
    self, CONTROL_ADDRESS, Cable, End, GROUPS, Host, Layout, LinkBytes, MANAGER_INTERFACE, OPTICS,
    OPTICS_INTERFACE,
};
use crate::spec::{Network, Spec};
use crate::system::{Space, run};
use polycast_net::priority::CONTROL_TOS;
use std::collections::BTreeMap;
use std::fs;
use std::net::IpAddr;
use std::process::Command;

/// The Linux bridge that stands for the packet network.
const BRIDGE: &str = "core";
/// The least burst of a shaped link between kernels, in bytes: a packet of 64 KiB, as hosts hand them over,
/// must fit in whole.
const BURST_BYTES: u64 = 128 << 10;
/// The burst of a shaped link to a switch in user space, in packets: its sockets hold few, and there the
/// kernel cuts packets to size before they are sent.
const BURST_PACKETS: u64 = 2;
const ETHERNET_HEADER_BYTES: u32 = 14;
/// Share of an optical lab's link that multicast may use before anything else, in percent.
pub(crate) const MULTICAST_PERCENT: u64 = 95;
/// Share of a link in a lab with labels that controllers' messages may use before anything else, in percent:
/// more than they need.
const CONTROL_PERCENT: u64 = 5;
/// Queue of a shaped link of a Datacast fabric, in bytes: as much as a receiver may request at a time, in
/// every tree of a torus.
const DATACAST_QUEUE_BYTES: u64 = 512 << 10;
/// Queue of a shaped link, in bytes, as a switch port has it.
const QUEUE_BYTES: u64 = 1 << 20;
/// Capacity of each queue of an optical lab's link, in bytes. A switch in user space that had to wait for the
/// processor passes on at once all that came meanwhile; that is never more than receivers let the source have
/// in flight, which is less than this.
const OPTICAL_QUEUE_BYTES: u64 = 4 << 20;

/// Builds all that has no daemon.
pub(crate) fn build(spec: &Spec, layout: &Layout) -> Result<(), LabError> {
    let spaces = layout.spaces();
    let add = |name: &String| format!("netns add {name}");
    Space::Network.batch("ip", &spaces.iter().map(add).collect::<Vec<_>>())?;
    for (space, lines) in by_maker(layout, |cable| connect(cable, spec, layout)) {
        space.batch("ip", &lines)?;
    }
    let mut own = vec!["link set lo up".to_string()];
    own.push(format!("link add {BRIDGE} type bridge mcast_snooping 0 stp_state 0"));
    for port in &layout.bridge_ports {
        own.push(format!("link set {port} master {BRIDGE}"));
    }
    // Those take no part in transfers.
    for port in [MANAGER_INTERFACE, OPTICS_INTERFACE] {
        if layout.bridge_ports.iter().any(|known| known == port) {
            own.push(format!("link set {port} type bridge_slave mcast_flood off"));
        }
    }
    own.push(format!("link set {BRIDGE} addrgenmode none up"));
    own.push(format!("addr add {CONTROL_ADDRESS}/16 dev {BRIDGE}"));
    Space::Network.batch("ip", &own)?;
    for host in layout.hosts.iter().chain([&layout.manager]) {
        Space::named(&host.name).batch("ip", &address(host, &layout.manager))?;
    }
    // The ends of devices that have namespaces of their own.
    let is_host = |space: &Space| {
        layout.hosts.iter().chain([&layout.manager]).any(|host| *space == Space::named(&host.name))
    };
    let up = |end: &End| format!("link set {} addrgenmode none up", end.interface);
    for (space, lines) in by_end(layout, up).iter().filter(|(s, _)| **s != Space::Network && !is_host(s)) {
        space.batch("ip", lines)?;
    }
    let datacast = crate::datacast::network_of(spec);
    if let Some(network) = &datacast {
        crate::datacast::address(network)?;
    }
    if let Network::Orca { clos, .. } = &spec.network {
        label_switches::bridges(clos)?;
    }
    if let Some(rate) = spec.rate {
        // The packet network beside a Datacast fabric is for control alone.
        let is_shaped = |end: &End| datacast.is_none() || crate::datacast_nodes::is_fabric(&end.interface);
        let uplinks = layout.cables.iter().filter(|cable| cable.is_uplink());
        let uplinks: Vec<&End> = uplinks.flat_map(|cable| [&cable.a, &cable.b]).collect();
        let rate_of = |end: &End| match spec.network {
            Network::Blast { core_rate: Some(core), .. } if uplinks.contains(&end) => core.0.min(rate.0),
            _ => rate.0,
        };
        let lines = |end: &End| match is_shaped(end) {
            true => shape(spec, rate_of(end), &end.interface).join("\n"),
            false => String::new(),
        };
        for (space, lines) in by_end(layout, lines) {
            space.batch("tc", &lines)?;
        }
    }
    Ok(())
}

/// The lines of `tc` that shape what leaves an interface. In an optical lab multicast goes first, as at the
/// ToRs of Blast and Republic: repairs over TCP must not crowd out what they repair. In a lab with labels
/// words of controllers do.
fn shape(spec: &Spec, rate_bps: u64, interface: &str) -> Vec<String> {
    if let Network::Datacast { .. } = spec.network {
        let burst = datacast_burst(spec, rate_bps);
        let limit = DATACAST_QUEUE_BYTES + burst;
        return vec![format!(
            "qdisc add dev {interface} root tbf rate {rate_bps}bit burst {burst} limit {limit}"
        )];
    }
    // What passes in a tick of the kernel's clock of 4 ms.
    let kernel_burst = BURST_BYTES.max(rate_bps / 8 / 250);
    let packet = u64::from(spec.mtu + ETHERNET_HEADER_BYTES);
    let [a, _] = GROUPS;
    match spec.network {
        Network::Bridge { .. } => vec![format!(
            "qdisc add dev {interface} root tbf rate {rate_bps}bit burst {kernel_burst} limit {}",
            QUEUE_BYTES + kernel_burst
        )],
        // Heartbeats say by their time which agents live: they do not wait behind a megabyte of data.
        Network::Orca { .. } => {
            let control = format!("u32 match ip tos {CONTROL_TOS:#x} 0xfc");
            let share = CONTROL_PERCENT;
            two_queues(interface, rate_bps, (kernel_burst, packet, QUEUE_BYTES), share, &control)
        }
        _ => {
            let multicast = format!("u32 match ip dst {a}.0.0.0/8");
            let sizes = (BURST_PACKETS * packet, packet, OPTICAL_QUEUE_BYTES);
            two_queues(interface, rate_bps, sizes, MULTICAST_PERCENT, &multicast)
        }
    }
}

/// The lines of `tc` for a link with two queues: what `first` matches has its share of the rate before
/// anything else, and either may have all that the other leaves. `sizes` are a link's burst, what a queue
/// gives at a time, and what it holds, in bytes.
fn two_queues(
    interface: &str,
    rate_bps: u64,
    (burst, quantum, limit): (u64, u64, u64),
    first_percent: u64,
    first: &str,
) -> Vec<String> {
    let class = |parent: &str, number: u32, share: u64, priority: u32| {
        format!(
            "class add dev {interface} parent {parent} classid 1:{number} htb rate {}bit ceil {rate_bps}bit \
             burst {burst} cburst {burst} quantum {quantum} prio {priority}",
            rate_bps / 100 * share
        )
    };
    let queue = |number: u32| format!("qdisc add dev {interface} parent 1:{number} bfifo limit {limit}");
    vec![
        format!("qdisc add dev {interface} root handle 1: htb default 20"),
        class("1:", 1, 100, 0),
        class("1:1", 10, first_percent, 0),
        class("1:1", 20, 100 - first_percent, 1),
        queue(10),
        queue(20),
        format!("filter add dev {interface} parent 1: protocol ip prio 1 {first} flowid 1:10"),
    ]
}

/// Returns the number of bytes that may leave a link of a Datacast fabric at once: a few packets, as the
/// kernel's timers are no finer.
fn datacast_burst(spec: &Spec, rate_bps: u64) -> u64 {
    (rate_bps / 8 / 1_000).max(2 * u64::from(spec.mtu + ETHERNET_HEADER_BYTES))
}

/// Lines of all ends, by namespace.
fn by_end(layout: &Layout, line: impl Fn(&End) -> String) -> BTreeMap<Space, Vec<String>> {
    let mut lines: BTreeMap<Space, Vec<String>> = BTreeMap::new();
    for end in layout.cables.iter().flat_map(|cable| [&cable.a, &cable.b]) {
        let line = line(end);
        if !line.is_empty() {
            lines.entry(end.space.clone()).or_default().push(line);
        }
    }
    lines
}

/// Lines of all cables, by the namespace from which they are made.
fn by_maker(layout: &Layout, lines_of: impl Fn(&Cable) -> Vec<String>) -> BTreeMap<Space, Vec<String>> {
    let mut lines: BTreeMap<Space, Vec<String>> = BTreeMap::new();
    for cable in &layout.cables {
        lines.entry(cable.b.space.clone()).or_default().extend(lines_of(cable));
    }
    lines
}

/// The lines of `ip` that make a cable. No end gets IPv6 addresses, which would put packets of their own on
/// it.
fn connect(cable: &Cable, spec: &Spec, layout: &Layout) -> Vec<String> {
    let Cable { a: far, b: near } = cable;
    let mtu = spec.mtu;
    let host = layout.hosts.iter().chain([&layout.manager]).find(|host| host.name == far.node);
    let mac = host.map(|host| format!("address {}", host.mac_text())).unwrap_or_default();
    let netns = match &far.space {
        Space::Named(name) if far.space != near.space => format!("netns {name}"),
        _ => String::new(),
    };
    let (near, far_name) = (&near.interface, &far.interface);
    let mut lines = vec![
        format!("link add {near} mtu {mtu} type veth peer name {far_name} {mac} mtu {mtu} {netns}"),
        format!("link set {near} addrgenmode none up"),
    ];
    if netns.is_empty() {
        lines.push(format!("link set {far_name} addrgenmode none up"));
    }
    lines
}

/// The lines of `ip` that give a host its address.
fn address(host: &Host, manager: &Host) -> Vec<String> {
    let mut lines = vec!["link set lo up".to_string(), "link set eth0 addrgenmode none up".to_string()];
    lines.extend(match host.address {
        IpAddr::V4(address) => {
            vec![format!("addr add {address}/16 brd + dev eth0"), "route add 224.0.0.0/4 dev eth0".into()]
        }
        // No other host can have it, so nothing waits until that was seen.
        IpAddr::V6(address) => {
            let mut lines = vec![format!("addr add {address}/64 dev eth0 nodad")];
            // Multicast does not get to the manager's host, and with IPv6 neighbours find each other by that.
            if host != manager {
                let (to, mac) = (manager.address, manager.mac_text());
                lines.push(format!("neigh replace {to} lladdr {mac} dev eth0 nud permanent"));
            }
            lines
        }
    });
    lines
}

/// The cable between two nodes.
pub(crate) fn between<'a>(layout: &'a Layout, one: &str, other: &str) -> Option<&'a Cable> {
    let joins = |cable: &&Cable| {
        let ends = (cable.a.node.as_str(), cable.b.node.as_str());
        ends == (one, other) || ends == (other, one)
    };
    layout.cables.iter().find(joins)
}

/// Gives links another rate, both ways: the one between two nodes, or all that carry a host's data.
pub(crate) fn set_rate(layout: &Layout, spec: &Spec, which: &str, rate_bps: u64) -> Result<(), LabError> {
    let between = which.split_once('-').map(|(one, other)| between(layout, one, other));
    let is_fabric = |end: &End| {
        !matches!(spec.network, Network::Datacast { .. }) || crate::datacast_nodes::is_fabric(&end.interface)
    };
    let own = |cable: &&Cable| {
        let ends = [&cable.a, &cable.b];
        ends.iter().any(|end| end.node == which) && ends.into_iter().all(is_fabric)
    };
    let cables: Vec<&Cable> = match between {
        Some(cable) => cable.into_iter().collect(),
        None => layout.cables.iter().filter(own).collect(),
    };
    for end in cables.into_iter().flat_map(|cable| [&cable.a, &cable.b]) {
        end.space.batch("tc", &reshape(spec, rate_bps, &end.interface))?;
    }
    Ok(())
}

/// The lines of `tc` that give an interface another shape, whatever it had before: classes cannot be added
/// twice, and what was never shaped has nothing to delete.
fn reshape(spec: &Spec, rate_bps: u64, interface: &str) -> Vec<String> {
    let mut lines = vec![
        format!("qdisc replace dev {interface} root handle ffff: pfifo"),
        format!("qdisc del dev {interface} root"),
    ];
    lines.extend(shape(spec, rate_bps, interface));
    lines
}

/// Cuts the cable of a host or another node, at the end that is not the node's own; or, of two nodes with `-`
/// between them, the one that joins them.
pub(crate) fn cut(layout: &Layout, spec: &Spec, node: &str) -> Result<(), LabError> {
    if let Some((one, other)) = node.split_once('-') {
        let Some(cable) = between(layout, one, other) else { return Ok(()) };
        return cable.b.space.batch("ip", &[format!("link set {} down", cable.b.interface)]);
    }
    // A switch or a splitter that fails takes all its ports along, at one moment.
    let place = match &spec.network {
        Network::Orca { clos, .. } => layout::find_label_switch(clos, node).map(|_| Space::named(node)),
        _ => node.starts_with("splitter").then(|| Space::named(OPTICS)),
    };
    if let Some(place) = place {
        let own = layout.cables.iter().flat_map(|cable| [&cable.a, &cable.b]).filter(|end| end.node == node);
        let lines: Vec<String> = own.map(|end| format!("link set {} down", end.interface)).collect();
        return place.batch("ip", &lines);
    }
    for cable in &layout.cables {
        let other = match node {
            _ if cable.a.node == node => &cable.b,
            _ if cable.b.node == node => &cable.a,
            _ => continue,
        };
        other.space.batch("ip", &[format!("link set {} down", other.interface)])?;
    }
    Ok(())
}

/// Bytes and packets that one end has sent so far, by namespace and interface.
pub(crate) type Counters = BTreeMap<(Space, String), u64>;

/// Reads how many bytes every end has sent and received.
pub(crate) fn counters(layout: &Layout) -> Result<Counters, LabError> {
    let mut counters = Counters::new();
    let mut spaces: Vec<Space> = Vec::new();
    for cable in &layout.cables {
        if !spaces.contains(&cable.b.space) {
            spaces.push(cable.b.space.clone());
        }
    }
    for space in spaces {
        let text = match &space {
            Space::Network => fs::read_to_string("/proc/self/net/dev")
                .map_err(|error| LabError::path("read", "/proc/self/net/dev", &error))?,
            Space::Named(name) => {
                run(Command::new("ip").args(["netns", "exec", name, "cat", "/proc/self/net/dev"]), None)?
            }
        };
        for (interface, received, sent) in parse_counters(&text) {
            counters.insert((space.clone(), format!("{interface} in")), received);
            counters.insert((space.clone(), format!("{interface} out")), sent);
        }
    }
    Ok(counters)
}

/// Reads the number of bytes that a host has sent.
pub(crate) fn sent_bytes(host: &Host) -> Result<u64, LabError> {
    let text =
        run(Command::new("ip").args(["netns", "exec", &host.name, "cat", "/proc/self/net/dev"]), None)?;
    let own = parse_counters(&text).into_iter().find(|(interface, ..)| interface == "eth0");
    own.map(|(.., sent)| sent)
        .ok_or_else(|| LabError::system("read counters", format!("{} has no eth0", host.name)))
}

/// Interface, bytes received, bytes sent.
pub(crate) fn parse_counters(text: &str) -> Vec<(String, u64, u64)> {
    let parse = |line: &str| {
        let (interface, numbers) = line.split_once(':')?;
        let numbers: Vec<u64> = numbers.split_whitespace().map_while(|number| number.parse().ok()).collect();
        Some((interface.trim().to_string(), *numbers.first()?, *numbers.get(8)?))
    };
    text.lines().filter_map(parse).collect()
}

/// Computes the bytes that crossed every cable between two readings, a direction at a time.
pub(crate) fn crossed(layout: &Layout, before: &Counters, after: &Counters) -> Vec<LinkBytes> {
    let mut links = Vec::with_capacity(2 * layout.cables.len());
    for cable in &layout.cables {
        let Cable { a: far, b: near } = cable;
        let count = |direction: &str| {
            let key = (near.space.clone(), format!("{} {direction}", near.interface));
            after.get(&key).copied().unwrap_or(0).saturating_sub(before.get(&key).copied().unwrap_or(0))
        };
        links.push(LinkBytes { from: far.node.clone(), to: near.node.clone(), bytes: count("in") });
        links.push(LinkBytes { from: near.node.clone(), to: far.node.clone(), bytes: count("out") });
    }
    links
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_are_read() {
        let text = "Inter-|   Receive  |  Transmit\n face |bytes packets errs\n  sw0: 10 1 0 0 0 0 0 0 20 2 0 0 0 0 0 0\n";
        assert_eq!(parse_counters(text), [("sw0".to_string(), 10, 20)]);
    }

    #[test]
    fn multicast_goes_first_where_light_is() {
        let shape = |text: &str| shape(&text.parse().unwrap(), 100_000_000, "eth0");
        assert_eq!(shape("bridge:2").len(), 1);
        let lines = shape("blast:racks=2");
        let first = lines.iter().find(|line| line.contains("classid 1:10")).unwrap();
        assert!(first.contains("rate 95000000bit ceil 100000000bit") && first.ends_with("prio 0"), "{first}");
        assert!(lines.last().unwrap().ends_with("match ip dst 239.0.0.0/8 flowid 1:10"));
    }

    #[test]
    fn controllers_go_first_where_labels_are() {
        let lines = shape(&"orca:4".parse().unwrap(), 200_000_000, "eth0");
        let first = lines.iter().find(|line| line.contains("classid 1:10")).unwrap();
        assert!(first.contains("rate 10000000bit ceil 200000000bit") && first.ends_with("prio 0"), "{first}");
        assert!(lines.last().unwrap().ends_with("match ip tos 0xc0 0xfc flowid 1:10"), "{lines:?}");
    }

    #[test]
    fn what_crossed_is_named_by_its_nodes() {
        let layout = Layout::new(&"bridge:2".parse().unwrap());
        let key = |text: &str| (Space::Network, text.to_string());
        let before = Counters::from([(key("sw0 in"), 5), (key("sw0 out"), 7)]);
        let after = Counters::from([(key("sw0 in"), 105), (key("sw0 out"), 7), (key("sw1 out"), 3)]);
        let links = crossed(&layout, &before, &after);
        let of = |from: &str, to: &str| links.iter().find(|l| l.from == from && l.to == to).unwrap().bytes;
        assert_eq!((of("h0", "switch"), of("switch", "h0"), of("switch", "h1")), (100, 0, 3));
        assert_eq!(links.len(), 6);
    }
}
