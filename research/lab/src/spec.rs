//! Specifications of labs: `bridge:8`, `blast:racks=8,hosts=2`, `shufflecast:2,2,hosts=2`, `orca:4`, each
//! with `,rate=1gbit` and `,mtu=9000`. Optical labs have larger packets and slower links than a bridge by
//! default.

use crate::error::LabError;
use polycast_net::devices::circuits::DIALECTS;
use polycast_topology::{Clos, FatTree, Graph, Hybrid, Network as Topology, Shufflecast, Wiring};
use polycast_types::Rate;
use std::fmt;
use std::str::FromStr;

/// Hosts of one lab: each has its own namespace and daemon.
pub const HOSTS_MAX: u32 = 200;
/// Ports of the emulated circuit switch: as many as Blast's.
const OCS_PORTS_MAX: u32 = 320;
/// Sizes of packets that make sense on Ethernet, in bytes.
const MTU_RANGE: std::ops::RangeInclusive<u32> = 1_280..=9_000;
/// Default size of packets in an optical lab or one with labels, in bytes; Republic's hosts use the same.
const JUMBO_MTU: u32 = 9_000;
/// Default rate that all ToRs of an optical lab forward together, in bits a second, and the most of each:
/// they run in user space on one core, and every packet of a transfer to all passes each of them.
const OPTICAL_BPS: u64 = 1_200_000_000;
const OPTICAL_RATE_MAX: Rate = Rate(200_000_000);
/// Rates that one machine can shape.
const RATE_RANGE: std::ops::RangeInclusive<u64> = 1_000_000..=40_000_000_000;

/// A data center that can be built.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Spec {
    /// Its network.
    pub network: Network,
    /// The rate of every link; as fast as the machine without one, which only a bridge can be.
    pub rate: Option<Rate>,
    /// The largest packet, in bytes.
    pub mtu: u32,
    /// True if agents have a key, and seal all that they send to each other.
    pub sealed: bool,
    /// True if ports of an optical lab have a carrier although no light comes to them.
    pub always_lit: bool,
    /// True if the manager chooses fabrics by time; otherwise the lab's own one goes first.
    pub by_time: bool,
    /// Time that switches of an optical lab may take to answer, and ports to get light, in milliseconds,
    /// where it is given.
    pub patience_ms: Option<u32>,
    /// True if hosts have IPv6 alone, which only those of a bridge can.
    pub over_ipv6: bool,
}

/// Room for packets of 8 KiB, as in Datacast section 7.
const DATACAST_MTU: u32 = 9_000;
/// Every packet crosses all links of its tree, and all nodes share the processors of one machine.
const DATACAST_RATE: Rate = Rate(100_000_000);

/// The kinds of networks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Network {
    /// Hosts on one Ethernet switch, which floods multicast.
    Bridge {
        /// The hosts.
        hosts: u32,
    },
    /// Racks on a packet core and on an optical circuit switch with splitters (Blast section V).
    Blast {
        /// Racks, fibres and splitters.
        hybrid: Hybrid,
        /// Time that the circuit switch takes for one circuit, in milliseconds.
        circuit_ms: u32,
        /// True if the packet core carries multicast too, so that there is a fabric between circuits and TCP.
        core_multicast: bool,
        /// True if a path whose devices fail waits for them.
        wait: bool,
        /// Dialect of the circuit switch.
        dialect: &'static str,
        /// The rate of the racks' links to the packet core, where that is less than the others'.
        core_rate: Option<Rate>,
        /// Two ports of the circuit switch whose cables are swapped, counted from 1.
        swapped: Option<(u32, u32)>,
    },
    /// Racks on a packet core and on splitters whose wiring is fixed (Shufflecast section V).
    Shufflecast {
        /// The splitters, and the ToRs that they are at.
        wiring: Wiring,
        /// Hosts of a rack.
        hosts: u32,
    },
    /// Servers and switches that cache packets, on the links of a BCube, torus or fat-tree (Datacast section
    /// 7).
    Datacast {
        /// The links.
        network: Topology,
        /// No more trees than this.
        trees: Option<u32>,
        /// Number of packets that a node keeps.
        store: u32,
        /// True if the kernel passes on packets that nodes do not keep.
        kernel: bool,
    },
    /// A fat-tree of switches that forward by labels (Orca section 3).
    Orca {
        /// Ports of every switch.
        ports: u32,
        /// The fat-tree.
        clos: Clos,
        /// Active agents of a rack.
        agents: u32,
        /// Number of further hosts of a rack that stand by as agents.
        standby: u32,
        /// An agent that has been silent for this long has failed (T), in microseconds.
        timeout_us: u32,
        /// Trees of a transfer through different cores.
        trees: u32,
        /// Way in which labels name leafs.
        encoding: Encoding,
        /// Bits of the label's filter.
        filter_bits: u32,
        /// True if one receiver of a rack answers for the others.
        feedback: bool,
        /// Time between probes of a switch's neighbours, in milliseconds; 0 for none.
        probe_ms: u32,
    },
}

/// Way in which labels name leafs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Encoding {
    /// By the paper's filter.
    Filter,
    /// By the leafs of pods.
    Pods,
    /// For each session as it fits.
    Auto,
}

impl Encoding {
    fn from_text(text: &str) -> Option<Self> {
        [Encoding::Filter, Encoding::Pods, Encoding::Auto]
            .into_iter()
            .find(|encoding| encoding.text() == text)
    }

    /// As in the manager's settings.
    #[must_use]
    pub fn text(self) -> &'static str {
        match self {
            Encoding::Filter => "filter",
            Encoding::Pods => "pods",
            Encoding::Auto => "auto",
        }
    }
}

impl Network {
    /// Returns the number of hosts.
    #[must_use]
    pub fn hosts(&self) -> u32 {
        match self {
            Network::Bridge { hosts } => *hosts,
            Network::Blast { hybrid, .. } => hybrid.racks * hybrid.servers_per_rack,
            Network::Shufflecast { wiring, hosts } => wiring.tors() * hosts,
            Network::Datacast { network, .. } => network.server_count(),
            Network::Orca { clos, .. } => clos.hosts(),
        }
    }

    /// The kind, as it is typed.
    #[must_use]
    pub fn kind(&self) -> &'static str {
        match self {
            Network::Bridge { .. } => "bridge",
            Network::Blast { .. } => "blast",
            Network::Shufflecast { .. } => "shufflecast",
            Network::Datacast { .. } => "datacast",
            Network::Orca { .. } => "orca",
        }
    }
}

/// The parts after the colon.
struct Parts<'a> {
    text: &'a str,
    numbers: Vec<&'a str>,
    settings: Vec<(&'a str, &'a str)>,
}

impl<'a> Parts<'a> {
    fn read(text: &'a str, rest: &'a str) -> Result<Self, LabError> {
        let mut parts = Parts { text, numbers: Vec::new(), settings: Vec::new() };
        for part in rest.split(',').map(str::trim).filter(|part| !part.is_empty()) {
            match part.split_once('=') {
                Some((name, _)) if parts.settings.iter().any(|(known, _)| *known == name) => {
                    return Err(parts.wrong(format!("'{name}' is said twice")));
                }
                Some(setting) => parts.settings.push(setting),
                None if parts.settings.is_empty() => parts.numbers.push(part),
                None => return Err(parts.wrong(format!("'{part}' comes after settings with names"))),
            }
        }
        Ok(parts)
    }

    fn wrong(&self, reason: impl Into<String>) -> LabError {
        LabError::Spec { text: self.text.to_string(), reason: reason.into() }
    }

    fn take(&mut self, name: &str) -> Option<&'a str> {
        let at = self.settings.iter().position(|(known, _)| *known == name)?;
        Some(self.settings.remove(at).1)
    }

    /// A whole number that is not 0.
    fn number(&self, name: &str, text: &str) -> Result<u32, LabError> {
        match text.parse() {
            Ok(0) | Err(_) => Err(self.wrong(format!("{name} must be a whole number above 0, not '{text}'"))),
            Ok(number) => Ok(number),
        }
    }

    /// Reads a switch, which is on unless the text has 0.
    fn switch(&mut self, name: &'static str) -> Result<bool, LabError> {
        match self.take(name) {
            None | Some("1") => Ok(true),
            Some("0") => Ok(false),
            Some(text) => Err(self.wrong(format!("{name} must be 0 or 1, not '{text}'"))),
        }
    }

    fn setting(&mut self, name: &str, default: Option<u32>) -> Result<u32, LabError> {
        match (self.take(name), default) {
            (Some(text), _) => self.number(name, text),
            (None, Some(default)) => Ok(default),
            (None, None) => Err(self.wrong(format!("'{name}=' is missing"))),
        }
    }

    /// The numbers without names; `names` says what they are.
    fn positional<const N: usize>(&self, names: [&str; N]) -> Result<[u32; N], LabError> {
        let given: &[&str; N] = self.numbers.as_slice().try_into().map_err(|_| {
            self.wrong(if N == 0 {
                format!("'{}' has no name", self.numbers.join(","))
            } else {
                format!("write {} numbers first: {}", N, names.join(","))
            })
        })?;
        let mut numbers = [0; N];
        for ((number, text), name) in numbers.iter_mut().zip(given).zip(names) {
            *number = self.number(name, text)?;
        }
        Ok(numbers)
    }

    /// Two ports of a circuit switch whose cables are swapped, such as `2:3`.
    fn swapped(&mut self, ports: u64) -> Result<Option<(u32, u32)>, LabError> {
        let Some(text) = self.take("swapped") else { return Ok(None) };
        let pair = text.split_once(':').and_then(|(a, b)| Some((a.parse().ok()?, b.parse().ok()?)));
        let is_port = |port: u32| port > 0 && u64::from(port) <= ports;
        let pair = pair.filter(|(a, b)| a != b && is_port(*a) && is_port(*b));
        let wrong =
            || self.wrong(format!("swapped must be two ports of 1 to {ports}, such as 2:3, not '{text}'"));
        pair.map(Some).ok_or_else(wrong)
    }

    /// So many ToRs as this Shufflecast, or as one with as many more columns as they need.
    fn wiring(&self, fabric: Shufflecast, tors: &str) -> Result<Wiring, LabError> {
        let tors = self.number("tors", tors)?;
        if tors < fabric.fanout() {
            let p = fabric.fanout();
            return Err(
                self.wrong(format!("tors must be at least p, which is {p}: a splitter feeds as many"))
            );
        }
        let wired = if tors > fabric.tors() {
            Wiring::smallest(tors, fabric.fanout())
        } else {
            Wiring::new(fabric, tors)
        };
        wired.map_err(|error| self.wrong(error.to_string()))
    }

    fn network(&mut self, kind: &str) -> Result<Network, LabError> {
        match kind {
            "bridge" => {
                let [hosts] = self.positional(["hosts"])?;
                Ok(Network::Bridge { hosts })
            }
            "blast" => {
                let [] = self.positional([])?;
                let racks = self.setting("racks", None)?;
                let hosts = self.setting("hosts", Some(2))?;
                let fanout = self.setting("fanout", Some(4))?;
                // Enough for one group of all racks, cascaded.
                let all = polycast_topology::optics::splitters_needed(racks, fanout.max(2)).max(1);
                let splitters = self.setting("splitters", Some(all))?;
                let ports_per_rack = self.setting("ports", Some(1))?;
                let circuit_ms = match self.take("circuit-ms") {
                    Some("0") => 0,
                    Some(text) => self.number("circuit-ms", text)?,
                    None => 25,
                };
                let hybrid = Hybrid {
                    racks,
                    servers_per_rack: hosts,
                    ports_per_rack,
                    splitters,
                    splitter_fanout: fanout,
                };
                let hybrid = hybrid.checked(OCS_PORTS_MAX).map_err(|error| self.wrong(error.to_string()))?;
                if racks < 2 || circuit_ms > 10_000 {
                    let reason = "there must be at least 2 racks, and circuit-ms at most 10000";
                    return Err(self.wrong(reason));
                }
                let core_multicast = match self.take("next") {
                    None => false,
                    Some("ip-multicast") => true,
                    Some(other) => return Err(self.wrong(format!("next can be ip-multicast, not '{other}'"))),
                };
                let wait = match self.take("on-failure") {
                    None | Some("fallback") => false,
                    Some("wait") => true,
                    Some(other) => {
                        return Err(self.wrong(format!("on-failure can be fallback or wait, not '{other}'")));
                    }
                };
                let dialect = match self.take("dialect") {
                    None => DIALECTS[0],
                    Some(name) => {
                        let known = DIALECTS.into_iter().find(|known| *known == name);
                        known.ok_or_else(|| {
                            self.wrong(format!("dialect can be {}, not '{name}'", DIALECTS.join(", ")))
                        })?
                    }
                };
                let core_rate = match self.take("core") {
                    None => None,
                    Some(text) => Some(text.parse().map_err(|error| self.wrong(format!("{error}")))?),
                };
                if core_rate.is_some_and(|rate: Rate| !RATE_RANGE.contains(&rate.0)) {
                    return Err(self.wrong("the core must have 1mbit to 40gbit"));
                }
                let swapped = self.swapped(hybrid.ports_needed())?;
                Ok(Network::Blast { hybrid, circuit_ms, core_multicast, wait, dialect, core_rate, swapped })
            }
            "shufflecast" => {
                let [p, k] = self.positional(["p", "k"])?;
                let hosts = self.setting("hosts", Some(2))?;
                let fabric = Shufflecast::new(p, k).map_err(|error| self.wrong(error.to_string()))?;
                let wiring = match self.take("tors") {
                    None => fabric.into(),
                    Some(text) => self.wiring(fabric, text)?,
                };
                Ok(Network::Shufflecast { wiring, hosts })
            }
            "datacast" => {
                let text = self.numbers.join(",");
                let network: Topology = text.parse().map_err(|error| self.wrong(format!("{error}")))?;
                if network.node_count() > HOSTS_MAX {
                    let nodes = network.node_count();
                    return Err(
                        self.wrong(format!("it has {nodes} nodes, and a lab has at most {HOSTS_MAX}"))
                    );
                }
                let trees = match self.take("trees") {
                    Some(text) => Some(self.number("trees", text)?),
                    None => None,
                };
                let store = self.setting("store", Some(2_048))?;
                let kernel = self.switch("kernel")?;
                Ok(Network::Datacast { network, trees, store, kernel })
            }
            "orca" => {
                let [ports] = self.positional(["ports"])?;
                let tree = FatTree::new(ports, 3).map_err(|error| self.wrong(error.to_string()))?;
                let clos = tree.as_clos().ok_or_else(|| self.wrong("the fat-tree is too large"))?;
                let agents = self.setting("agents", Some(1))?;
                if agents > clos.hosts_per_leaf() {
                    let servers = clos.hosts_per_leaf();
                    return Err(
                        self.wrong(format!("a rack has {servers} servers: agents must be at most as many"))
                    );
                }
                let left = clos.hosts_per_leaf() - agents;
                let standby = match self.take("standby") {
                    Some("0") => 0,
                    Some(text) => self.number("standby", text)?.min(left),
                    None => left.min(1),
                };
                let timeout_us = self.setting("timeout-us", Some(100_000))?;
                if !(1_000..=10_000_000).contains(&timeout_us) {
                    return Err(self.wrong("timeout-us must be 1000 to 10000000"));
                }
                let trees = self.setting("trees", Some(1))?;
                let probe_ms = match self.take("probe-ms") {
                    Some("0") => 0,
                    Some(text) => self.number("probe-ms", text)?,
                    None => probe_ms(&clos),
                };
                let feedback = self.switch("feedback")?;
                let encoding = Encoding::from_text(self.take("encoding").unwrap_or("filter"));
                let encoding = encoding.ok_or_else(|| self.wrong("encoding must be filter, pods or auto"))?;
                if encoding == Encoding::Pods && trees > 1 {
                    return Err(self.wrong("labels with encoding=pods have one tree: leave trees out"));
                }
                // The paper's (section 6.1).
                let filter_bits = self.setting("filter-bits", Some(69))?;
                if !(1..=1_024).contains(&filter_bits) {
                    return Err(self.wrong("filter-bits must be 1 to 1024"));
                }
                Ok(Network::Orca {
                    ports,
                    clos,
                    agents,
                    standby,
                    timeout_us,
                    trees,
                    encoding,
                    filter_bits,
                    feedback,
                    probe_ms,
                })
            }
            other => {
                let known =
                    "bridge:8, blast:racks=8,hosts=2, shufflecast:2,2,hosts=2, orca:4 and datacast:bcube:4,2";
                Err(self.wrong(format!("there is no network '{other}', only such as {known}")))
            }
        }
    }
}

/// Time between probes: as short as keeps all switches, which share this machine, at 2,500 probes a second.
fn probe_ms(clos: &Clos) -> u32 {
    let switches = clos.hosts()..clos.node_count();
    let ends: u32 = switches.map(|switch| clos.port_count(switch)).sum::<u32>() - clos.hosts();
    (ends * 1_000 / 2_500).max(25)
}

impl FromStr for Spec {
    type Err = LabError;

    fn from_str(text: &str) -> Result<Self, LabError> {
        let (kind, rest) = text.split_once(':').unwrap_or((text, ""));
        let mut parts = Parts::read(text, rest)?;
        let rate: Option<Rate> = match parts.take("rate") {
            Some(rate) => Some(rate.parse().map_err(|error| parts.wrong(format!("{error}")))?),
            None => None,
        };
        if rate.is_some_and(|rate| !RATE_RANGE.contains(&rate.0)) {
            return Err(parts.wrong("the rate must be 1mbit to 40gbit"));
        }
        let optical = matches!(kind, "blast" | "shufflecast");
        let usual_mtu = match kind {
            _ if optical || kind == "orca" => JUMBO_MTU,
            "datacast" => DATACAST_MTU,
            _ => 1_500,
        };
        let mtu = parts.setting("mtu", Some(usual_mtu))?;
        if !MTU_RANGE.contains(&mtu) {
            return Err(parts.wrong(format!(
                "the mtu must be {} to {} bytes",
                MTU_RANGE.start(),
                MTU_RANGE.end()
            )));
        }
        let sealed = parts.switch("sealed")?;
        let always_lit = match if optical { parts.take("optics") } else { None } {
            None | Some("real") => false,
            Some("lit") => true,
            Some(other) => return Err(parts.wrong(format!("optics can be real or lit, not '{other}'"))),
        };
        let patience_ms = match if optical { parts.take("patience-ms") } else { None } {
            Some(text) => Some(parts.number("patience-ms", text)?),
            None => None,
        };
        let over_ipv6 = match if kind == "bridge" { parts.take("ip") } else { None } {
            None | Some("4") => false,
            Some("6") => true,
            Some(other) => return Err(parts.wrong(format!("ip can be 4 or 6, not '{other}'"))),
        };
        let by_time = match parts.take("choose") {
            None | Some("order") => false,
            Some("time") => true,
            Some(other) => return Err(parts.wrong(format!("choose can be order or time, not '{other}'"))),
        };
        let network = parts.network(kind)?;
        if let Some((name, _)) = parts.settings.first() {
            return Err(parts.wrong(format!("'{kind}' has no setting '{name}'")));
        }
        let (racks, per_rack) = match network {
            Network::Bridge { hosts } => (1, hosts),
            Network::Blast { hybrid, .. } => (hybrid.racks, hybrid.servers_per_rack),
            Network::Shufflecast { wiring, hosts } => (wiring.tors(), hosts),
            Network::Datacast { network, .. } => (1, network.server_count()),
            Network::Orca { clos, .. } => (clos.leafs(), clos.hosts_per_leaf()),
        };
        let hosts = u64::from(racks) * u64::from(per_rack);
        if !(2..=HOSTS_MAX.into()).contains(&hosts) {
            return Err(parts.wrong(format!("it has {hosts} hosts, and a lab has 2 to {HOSTS_MAX}")));
        }
        // A ToR that stands for several is passed as often.
        let passes = match network {
            Network::Shufflecast { wiring, .. } => wiring.logical().tors(),
            _ => racks,
        };
        let share = Rate(OPTICAL_BPS / u64::from(passes)).min(OPTICAL_RATE_MAX);
        let usual = if kind == "datacast" { Some(DATACAST_RATE) } else { optical.then_some(share) };
        let rate = rate.or(usual);
        Ok(Spec { network, rate, mtu, sealed, always_lit, by_time, patience_ms, over_ipv6 })
    }
}

impl fmt::Display for Spec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.network {
            Network::Bridge { hosts } => write!(f, "bridge:{hosts}")?,
            Network::Blast { hybrid, circuit_ms, core_multicast, wait, dialect, core_rate, swapped } => {
                write!(
                    f,
                    "blast:racks={},hosts={},fanout={},splitters={},ports={},circuit-ms={circuit_ms}{}{}{}{}{}",
                    hybrid.racks,
                    hybrid.servers_per_rack,
                    hybrid.splitter_fanout,
                    hybrid.splitters,
                    hybrid.ports_per_rack,
                    if core_multicast { ",next=ip-multicast" } else { "" },
                    if wait { ",on-failure=wait" } else { "" },
                    if dialect == DIALECTS[0] { String::new() } else { format!(",dialect={dialect}") },
                    core_rate.map(|rate| format!(",core={}", rate.0)).unwrap_or_default(),
                    swapped.map_or_else(String::new, |(a, b)| format!(",swapped={a}:{b}"))
                )?
            }
            Network::Shufflecast { wiring, hosts } => {
                let fabric = wiring.logical();
                write!(f, "shufflecast:{},{},hosts={hosts}", fabric.fanout(), fabric.columns())?;
                if !wiring.is_whole() {
                    write!(f, ",tors={}", wiring.tors())?;
                }
            }
            Network::Datacast { network, trees, store, kernel } => {
                write!(f, "datacast:{network},store={store}")?;
                if !kernel {
                    f.write_str(",kernel=0")?;
                }
                if let Some(trees) = trees {
                    write!(f, ",trees={trees}")?;
                }
            }
            Network::Orca {
                ports,
                agents,
                standby,
                timeout_us,
                trees,
                encoding,
                filter_bits,
                feedback,
                probe_ms,
                ..
            } => {
                write!(f, "orca:{ports},agents={agents},timeout-us={timeout_us},trees={trees}")?;
                write!(f, ",encoding={},filter-bits={filter_bits}", encoding.text())?;
                write!(f, ",standby={standby},feedback={},probe-ms={probe_ms}", u8::from(feedback))?;
            }
        }
        if let Some(rate) = self.rate {
            write!(f, ",rate={}", rate.0)?;
        }
        write!(f, ",mtu={}", self.mtu)?;
        if let Some(patience_ms) = self.patience_ms {
            write!(f, ",patience-ms={patience_ms}")?;
        }
        f.write_str(if self.always_lit { ",optics=lit" } else { "" })?;
        f.write_str(if self.by_time { ",choose=time" } else { "" })?;
        f.write_str(if self.over_ipv6 { ",ip=6" } else { "" })?;
        f.write_str(if self.sealed { "" } else { ",sealed=0" })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refuse(text: &str) -> String {
        text.parse::<Spec>().unwrap_err().to_string()
    }

    #[test]
    fn specifications_are_read_and_written() {
        for (text, hosts) in [
            ("bridge:8", 8),
            ("bridge:4,rate=1gbit,mtu=9000", 4),
            ("bridge:4,ip=6,sealed=0", 4),
            ("blast:racks=8,hosts=2", 16),
            ("blast:racks=3,circuit-ms=0,fanout=2", 6),
            ("blast:racks=3,next=ip-multicast,on-failure=wait", 6),
            ("blast:racks=3,dialect=polatis-scpi", 6),
            ("blast:racks=3,swapped=2:3", 6),
            ("blast:racks=3,patience-ms=60000", 6),
            ("shufflecast:2,2,hosts=2", 16),
            ("shufflecast:2,3,mtu=9000", 48),
            ("shufflecast:2,3,tors=15,hosts=2", 30),
            ("shufflecast:2,2,tors=15,hosts=2", 30),
            ("datacast:bcube:4,2", 16),
            ("datacast:torus:4,2,rate=200mbit", 16),
            ("datacast:fat-tree:4,3,mtu=1500", 16),
            ("datacast:torus:4,2,trees=1", 16),
            ("datacast:bcube:4,2,kernel=0", 16),
            ("orca:4", 16),
            ("orca:4,standby=0,sealed=0", 16),
            ("blast:racks=2,hosts=2,optics=lit", 4),
            ("blast:racks=3,next=ip-multicast,choose=time,core=20mbit", 6),
            ("shufflecast:2,2,hosts=2,optics=real", 16),
            ("orca:4,feedback=0,probe-ms=0", 16),
            ("orca:4,encoding=pods,filter-bits=1", 16),
            ("orca:4,encoding=auto,trees=2", 16),
            ("orca:6,agents=3,trees=2,rate=1gbit", 54),
        ] {
            let spec: Spec = text.parse().unwrap();
            assert_eq!(spec.network.hosts(), hosts, "{text}");
            assert_eq!(spec.to_string().parse(), Ok(spec), "{text}");
        }
        let Network::Blast { hybrid, circuit_ms, .. } =
            "blast:racks=8,hosts=2".parse::<Spec>().unwrap().network
        else {
            panic!("not a Blast network")
        };
        let rate = |text: &str| text.parse::<Spec>().unwrap().rate;
        assert_eq!(rate("bridge:8"), None);
        assert_eq!(rate("shufflecast:2,3"), Some(Rate(50_000_000)));
        assert_eq!(rate("shufflecast:2,3,rate=1gbit"), Some(Rate(1_000_000_000)));
        // Eight racks need two splitters of four outputs in a cascade.
        assert_eq!((hybrid.splitters, hybrid.splitter_fanout, circuit_ms), (2, 4, 25));
    }

    #[test]
    fn mistakes_are_named() {
        for (text, part) in [
            ("wormhole:3", "no network 'wormhole'"),
            ("bridge", "write 1 numbers first: hosts"),
            ("bridge:0", "whole number above 0"),
            ("bridge:1", "has 1 hosts"),
            ("bridge:1000", "2 to 200"),
            ("bridge:8,speed=3", "no setting 'speed'"),
            ("bridge:8,patience-ms=9", "no setting 'patience-ms'"),
            ("bridge:8,rate=fast", "rate"),
            ("bridge:8,rate=1bit", "1mbit"),
            ("bridge:8,mtu=100", "mtu"),
            ("bridge:8,mtu=1500,mtu=1500", "said twice"),
            ("bridge:mtu=1500,8", "after settings"),
            ("blast:hosts=2", "'racks=' is missing"),
            ("blast:8", "has no name"),
            ("blast:racks=400", "circuit switch"),
            ("blast:racks=4,fanout=1", "fanout"),
            ("blast:racks=4,next=ocs", "'ocs'"),
            ("blast:racks=4,core=1", "the core must have 1mbit"),
            ("bridge:4,core=1mbit", "'bridge' has no setting 'core'"),
            ("blast:racks=4,choose=best", "choose can be order or time, not 'best'"),
            ("blast:racks=4,optics=dim", "optics can be real or lit, not 'dim'"),
            ("bridge:8,optics=real", "'bridge' has no setting 'optics'"),
            ("bridge:8,ip=5", "ip can be 4 or 6, not '5'"),
            ("orca:4,ip=6", "'orca' has no setting 'ip'"),
            ("blast:racks=4,on-failure=cry", "'cry'"),
            ("blast:racks=4,dialect=latin", "dialect can be glimmerglass, calient,"),
            ("blast:racks=3,swapped=2", "two ports of 1 to 8, such as 2:3, not '2'"),
            ("blast:racks=3,swapped=2:2", "not '2:2'"),
            ("blast:racks=3,swapped=2:9", "not '2:9'"),
            ("shufflecast:2", "p,k"),
            ("shufflecast:1,1", "Shufflecast"),
            ("shufflecast:4,2,tors=3", "tors must be at least p, which is 4"),
            ("shufflecast:2,2,tors=0", "tors must be a whole number above 0"),
            ("datacast:bcube:4", "bcube"),
            ("datacast:ring:4,2", "ring"),
            ("datacast:bcube:8,4", "at most 200"),
            ("datacast:bcube:4,2,kernel=2", "0 or 1"),
            ("orca:5", "an even n"),
            ("orca:4,agents=3", "a rack has 2 servers"),
            ("orca:4,feedback=2", "feedback must be 0 or 1"),
            ("orca:4,encoding=bits", "encoding must be filter, pods or auto"),
            ("orca:4,encoding=pods,trees=2", "one tree"),
            ("orca:4,filter-bits=2000", "filter-bits must be 1 to 1024"),
            ("orca:10", "250 hosts"),
        ] {
            let message = refuse(text);
            assert!(message.contains(part), "{text}: {message}");
        }
    }
}
