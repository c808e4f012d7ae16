//! Lines of inputs and outputs for Orca's switches outside of Rust, from the forwarding code of
//! `labels::switches`: for random labels and states on five networks. `rtl/README.md` describes them.

use polycast_planning::labels::pod_labels::{self, PodLabelFormat};
use polycast_planning::labels::switches::{self, Ingress, LeafAction};
use polycast_planning::labels::{Label, LabelOptions, LabelPlanner};
use polycast_topology::{Clos, Failures, Network, Node};
use polycast_types::LabelKind;
use std::collections::BTreeMap;
use std::fmt::Write as _;

/// Networks, filters, and whether the filter is the paper's plain one. Some have no cores, one core a spine,
/// or numbers of ports that leave numbers over which no port has.
const CASES: [(&str, u32, bool); 5] = [
    ("fat-tree:48,3", 69, false),
    ("fat-tree:4,3", 16, true),
    ("clos:12,8,4,9,1", 69, false),
    ("leaf-spine:5,3,7", 20, true),
    ("clos:7,6,5,3,3", 33, false),
];
pub(crate) const LINES: u32 = 1_500;
pub(crate) const SET_BITS: u32 = 4;
const WAYS: usize = 4;

/// The same numbers every time (SplitMix64).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }

    fn below(&mut self, n: u32) -> u32 {
        (self.next() % u64::from(n)) as u32
    }

    fn one_in(&mut self, n: u32) -> bool {
        self.below(n) == 0
    }

    /// A bitmap of `width` ports, sometimes thin.
    fn ports(&mut self, width: u32) -> u128 {
        let all = u128::from(self.next()) << 64 | u128::from(self.next());
        let thin = u128::from(self.next()) << 64 | u128::from(self.next());
        let ports = if self.one_in(2) { all & thin } else { all };
        if width == 128 { ports } else { ports & ((1 << width) - 1) }
    }
}

/// A network with its planner, and switches' parameters.
pub(crate) struct Case {
    pub(crate) planner: LabelPlanner,
    random: Random,
}

impl Case {
    pub(crate) fn all() -> Vec<Case> {
        let case = |(at, &(network, filter_bits, plain)): (usize, &(&str, u32, bool))| {
            let clos: Clos = network.parse::<Network>().unwrap().as_clos().unwrap();
            let options =
                if plain { LabelOptions::plain(filter_bits) } else { LabelOptions::new(filter_bits) };
            Case { planner: LabelPlanner::with_options(clos, options).unwrap(), random: Random(at as u64) }
        };
        CASES.iter().enumerate().map(case).collect()
    }

    pub(crate) fn clos(&self) -> Clos {
        *self.planner.clos()
    }

    pub(crate) fn parameters(&self) -> Vec<(&'static str, u32)> {
        let (clos, format) = (self.clos(), self.planner.format());
        vec![
            ("LEAF_DOWN", clos.hosts_per_leaf()),
            ("LEAF_UP", clos.spines_per_pod()),
            ("SPINE_DOWN", clos.leafs_per_pod()),
            ("SPINE_UP", clos.cores_per_spine()),
            ("CORE_DOWN", format.core_down),
            ("FILTER_BITS", format.filter_bits),
            ("LABEL_BITS", 8 * format.bytes()),
        ]
    }

    fn pods(&self) -> PodLabelFormat {
        PodLabelFormat::new(self.planner.clos(), self.planner.format().bytes()).unwrap()
    }

    fn kind(&mut self) -> LabelKind {
        LabelKind::ALL[[0, 0, 0, 0, 1, 1, 2, 3][self.random.below(8) as usize]]
    }

    fn label(&mut self) -> Label {
        let bytes = self.planner.format().bytes();
        Label((0..bytes).map(|_| self.random.next() as u8).collect())
    }
}

/// A bitmap in hexadecimal digits, port 0 leftmost.
fn ports(ports: u128, width: u32) -> String {
    let bits = (0..width).map(|port| ports >> port & 1 == 1).collect::<Vec<_>>();
    digits(&bits)
}

fn digits(bits: &[bool]) -> String {
    let missing = (4 - bits.len() % 4) % 4;
    let padded: Vec<bool> = std::iter::repeat_n(false, missing).chain(bits.iter().copied()).collect();
    let digit =
        |four: &[bool]| char::from_digit(four.iter().fold(0, |v, &bit| v << 1 | u32::from(bit)), 16).unwrap();
    padded.chunks(4).map(digit).collect()
}

/// The next active agent behind the one served last, from the left and round again.
fn next_agent(active: u128, served: u128) -> u128 {
    let behind = if served == 0 { 0 } else { active & !(served | (served - 1)) };
    let waiting = if behind == 0 { active } else { behind };
    waiting & waiting.wrapping_neg()
}

/// Inputs and outputs of a leaf.
pub(crate) struct LeafLines {
    pub(crate) lines: String,
    /// Numbers of leaf labels from ports that may not name hosts, and from ports that may.
    pub(crate) refused: u32,
    pub(crate) taken: u32,
}

pub(crate) fn leaf_lines(case: &mut Case) -> LeafLines {
    let (clos, format) = (case.clos(), *case.planner.format());
    let (down, up) = (clos.hosts_per_leaf(), clos.spines_per_pod());
    let (mut active, mut rack, mut served) = (0u128, 0u128, 0);
    let mut said = LeafLines { lines: String::new(), refused: 0, taken: 0 };
    for _ in 0..LINES {
        let (kind, label) = (case.kind(), case.label());
        let (valid, above) = (!case.random.one_in(5), case.random.one_in(2));
        let ingress = if above { Ingress::Above } else { Ingress::Below };
        let (mut to_down, mut to_up) = (0, 0);
        let from = if above { 0 } else { 1u128 << case.random.below(down) };
        if valid {
            match switches::guarded_leaf(&format, (kind, &label), ingress, rack & from != 0) {
                Err(_) => said.refused += 1,
                Ok(LeafAction::Up(port)) if port < up => to_up = 1 << port,
                Ok(LeafAction::Up(_)) => {}
                Ok(LeafAction::ToHosts(hosts)) => {
                    to_down = hosts;
                    said.taken += 1;
                }
                Ok(LeafAction::ToAgent) => {
                    to_down = next_agent(active, served);
                    served = if to_down == 0 { served } else { to_down };
                }
            }
        }
        let write = case.random.one_in(20).then(|| (case.random.ports(down), case.random.ports(down)));
        let (agents, others) = write.unwrap_or((0, 0));
        let agents = format!("{} {}", ports(agents, down), ports(others, down));
        let from = ports(from, down);
        let inputs = format!("{} {agents} {} {} {from}", write.is_some() as u8, valid as u8, above as u8);
        let outputs = format!("{} {} {}", valid as u8, ports(to_down, down), ports(to_up, up));
        writeln!(said.lines, "{inputs} {} {} {outputs}", kind as u8, label.to_hex()).unwrap();
        (active, rack) = write.unwrap_or((active, rack));
    }
    said
}

pub(crate) fn core_lines(case: &mut Case) -> String {
    let format = *case.planner.format();
    let mut lines = String::new();
    for _ in 0..LINES {
        let (kind, label, valid) = (case.kind(), case.label(), !case.random.one_in(5));
        let down = match kind {
            LabelKind::Filter if valid => switches::core(&format, &label),
            LabelKind::Pods if valid => case.pods().cores_down(&label),
            _ => 0,
        };
        let (valid, down) = (valid as u8, ports(down, format.core_down));
        writeln!(lines, "{valid} {} {} {valid} {down}", kind as u8, label.to_hex()).unwrap();
    }
    lines
}

/// Table as a spine's controller knows it.
#[derive(Default)]
struct Table {
    places: BTreeMap<(u32, usize), u32>,
    blocked: BTreeMap<u32, u128>,
}

impl Table {
    /// Writes a session's links; the place, or `None` if its set is full.
    fn write(&mut self, session: u32, blocked: u128) -> Option<usize> {
        let set =
            (0..32 / SET_BITS).fold(0, |set, fold| set ^ session >> (fold * SET_BITS)) % (1 << SET_BITS);
        let known = (0..WAYS).find(|&way| self.places.get(&(set, way)) == Some(&session));
        let way = known.or_else(|| (0..WAYS).find(|&way| !self.places.contains_key(&(set, way))))?;
        if blocked == 0 {
            self.places.remove(&(set, way));
            self.blocked.remove(&session);
        } else {
            self.places.insert((set, way), session);
            self.blocked.insert(session, blocked);
        }
        Some(way)
    }
}

/// Inputs and outputs of a spine.
pub(crate) struct SpineLines {
    pub(crate) lines: String,
    /// Number of packets that an entry kept from a link.
    pub(crate) blocked: u32,
    /// Number of packets that named a port that does not exist.
    pub(crate) outside: u32,
    /// Number of packets that asked an agent.
    pub(crate) asked: u32,
    /// The switch's pod.
    pub(crate) pod: u32,
}

pub(crate) fn spine_lines(case: &mut Case) -> SpineLines {
    let (clos, format, filter) = (case.clos(), *case.planner.format(), case.planner.filter().clone());
    let (width, cores) = (clos.leafs_per_pod(), clos.cores_per_spine().max(1));
    let position = (case.random.below(clos.pods()), case.random.below(clos.spines_per_pod()));
    let mut said = SpineLines { lines: String::new(), blocked: 0, outside: 0, asked: 0, pod: position.0 };
    let idle = |said: &mut SpineLines, row: &str| {
        let (bits, label) = (ports(0, width), "0".repeat(2 * format.bytes() as usize));
        writeln!(said.lines, "{row} 0 0 0 {bits} 0 0 0 0 {label} 0 {bits} {bits} 0").unwrap();
    };
    for core in 0..cores {
        let path = polycast_planning::labels::TreePath { plane: position.1, core };
        let bucket = |leaf| filter.bucket(position.0, path, leaf);
        let bucket_bits = bucket_bits(format.filter_bits);
        let bits: Vec<bool> = (0..width)
            .rev()
            .flat_map(|leaf| (0..bucket_bits).rev().map(move |bit| (leaf, bit)))
            .map(|(leaf, bit)| bucket(leaf) >> bit & 1 == 1)
            .collect();
        idle(&mut said, &format!("1 {core:x} {}", digits(&bits)));
    }
    let mut table = Table::default();
    let numbers: Vec<u32> = (0..40).map(|_| case.random.next() as u32).collect();
    for _ in 0..LINES {
        spine_line(case, &mut said, &mut table, &numbers, position);
    }
    // The last packets have to come out.
    (0..3).for_each(|_| idle(&mut said, "0 0 0"));
    said
}

fn spine_line(
    case: &mut Case,
    said: &mut SpineLines,
    table: &mut Table,
    numbers: &[u32],
    position: (u32, u32),
) {
    let (clos, format) = (case.clos(), *case.planner.format());
    let (width, cores) = (clos.leafs_per_pod(), clos.cores_per_spine());
    let session = numbers[case.random.below(numbers.len() as u32) as usize];
    let kind = case.kind();
    let label = if case.random.one_in(2) { case.label() } else { planned(case, kind, session) };
    let (valid, above) = (!case.random.one_in(5), case.random.one_in(2));
    let blocked = table.blocked.get(&session).copied().unwrap_or(0);
    let ingress = if above { Ingress::Above } else { Ingress::Below };
    let act =
        |blocked| switches::spine(&clos, &format, case.planner.filter(), &label, position, blocked, ingress);
    let pods = case.pods();
    let (down, up, asks) = match kind {
        LabelKind::Filter => {
            let action = act(blocked);
            said.blocked += u32::from(valid && action != act(0));
            (action.down, action.up, None)
        }
        _ => match pod_labels::spine(&pods, (kind, &label), position.0, ingress) {
            Some(action) => (action.down, action.up, action.asks),
            None => (0, None, None),
        },
    };
    let names_core = matches!(kind, LabelKind::Filter | LabelKind::Pods);
    let outside =
        names_core && cores > 0 && format.spine_up(&label) >= cores || asks.is_some_and(|leaf| leaf >= width);
    let bit = |port: Option<u32>| port.map_or(0, |port| 1u128 << port);
    let (down, up, asks) = if valid && !outside { (down, bit(up), bit(asks)) } else { (0, 0, 0) };
    said.outside += u32::from(valid && outside);
    said.asked += u32::from(asks != 0);
    // The entry that is written in the same clock acts behind the packet.
    let written = numbers[case.random.below(numbers.len() as u32) as usize];
    let links = if case.random.one_in(4) { 0 } else { case.random.ports(width) };
    let way = if case.random.one_in(3) { table.write(written, links) } else { None };
    let entry = match way {
        Some(way) => format!("1 {way:x} {written:x} {}", ports(links, width)),
        None => format!("0 0 0 {}", ports(0, width)),
    };
    let packet = format!("{} {} {session:x} {} {}", valid as u8, above as u8, kind as u8, label.to_hex());
    let (down, asks) = (ports(down, width), ports(asks, width));
    let outputs = format!("{} {down} {asks} {}", valid as u8, ports(up, cores.max(1)));
    writeln!(said.lines, "0 0 0 {entry} {packet} {outputs}").unwrap();
}

/// The label of a planned session.
fn planned(case: &mut Case, kind: LabelKind, session: u32) -> Label {
    let hosts = case.clos().hosts();
    let source = case.random.below(hosts);
    let count = 1 + case.random.below(40);
    let receivers: Vec<Node> =
        (0..count).map(|_| case.random.below(hosts)).filter(|&host| host != source).collect();
    match case.planner.plan(session.into(), source, &receivers, &Failures::none()) {
        Ok(plan) if kind == LabelKind::Pods => {
            let pods = case.pods();
            let asks = pods.asked_leaf(session.into(), |_| true).unwrap();
            pod_labels::encode(&pods, &plan, asks).label
        }
        Ok(plan) => plan.label,
        Err(_) => case.label(),
    }
}

pub(crate) fn bucket_bits(filter_bits: u32) -> u32 {
    (32 - (filter_bits - 1).leading_zeros()).max(1)
}
