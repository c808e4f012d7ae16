//! The settings of `polycast label-switch` and of the agent of a rack, as TOML.

use polycast_api::settings::{self, SettingsError};
use polycast_net::bpf::orca::{AGENTS_MAX, DOWN_MAX, PORTS_MAX};
use polycast_planning::labels::{LabelOptions, LabelPlanner};
use polycast_topology::{Clos, Graph as _, Network, Node};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4};
use std::path::{Path, PathBuf};

/// Settings of a process with one or more label switches.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct LabelSwitchConfig {
    /// Address and TCP port where the manager gives entries, and hears which links break: one of its
    /// `orca.switches`.
    pub listen: SocketAddr,
    /// UDP address at which the manager receives messages of leaf controllers: its `orca.controller`. Only
    /// leafs need it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub controller: Option<SocketAddrV4>,
    /// The whole network: `leaf-spine:LEAFS,SPINES,SERVERS`, `clos:PODS,LEAFS,SPINES,SERVERS,CORES` or
    /// `fat-tree:PORTS,3`.
    pub topology: String,
    /// Bits of the label's filter, as in the manager's settings.
    #[serde(default = "filter_bits")]
    pub filter_bits: u32,
    /// UDP port of labelled packets, as in the manager's settings.
    #[serde(default = "port")]
    pub port: u16,
    /// Sessions that a spine has entries for.
    #[serde(default = "sessions")]
    pub entries_max: u32,
    /// Neighbouring switches are asked every so many milliseconds whether they forward; 0 for never. Four in
    /// a row without an answer are a broken link. A lost carrier is noticed at once.
    #[serde(default = "probe_ms")]
    pub probe_ms: u32,
    /// Unix socket where the process can be asked what it counts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub socket: Option<PathBuf>,
    /// The switches.
    #[serde(rename = "switch")]
    pub switches: Vec<SwitchConfig>,
}

/// A switch's place in the network.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Layer {
    /// Above servers.
    Leaf,
    /// Above leafs.
    Spine,
    /// Above spines.
    Core,
}

impl Layer {
    fn word(self) -> &'static str {
        match self {
            Layer::Leaf => "leaf",
            Layer::Spine => "spine",
            Layer::Core => "core",
        }
    }
}

/// One switch.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct SwitchConfig {
    /// Its layer.
    pub layer: Layer,
    /// Its number in the layer, counted over all pods from 0.
    pub number: u32,
    /// File of the network namespace that its ports are in, such as `/run/netns/leaf0`; without one that of
    /// the process.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace: Option<PathBuf>,
    /// Its interfaces: those that lead down first, in the order of what is below, then those that lead up.
    pub ports: Vec<String>,
    /// The controller of a leaf.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub leaf_controller: Option<LeafSettings>,
}

/// The controller of a leaf.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct LeafSettings {
    /// Address and UDP port where the manager and the rack's agents reach it.
    pub listen: SocketAddrV4,
    /// The addresses of the servers at the leaf's ports, port by port: the sender is known by it.
    pub servers: Vec<Ipv4Addr>,
    /// Number of agents of the rack that get packets at a time.
    #[serde(default = "one")]
    pub active: u32,
    /// Number of further agents that stand by.
    #[serde(default = "one")]
    pub standby: u32,
    /// An active agent that is silent for so many microseconds is replaced.
    #[serde(default = "timeout_us")]
    pub timeout_us: u32,
}

/// Settings of the agent of a rack.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct RackAgentConfig {
    /// The interface that leads to the leaf.
    pub interface: String,
    /// The whole network, as in the settings of the switches.
    pub topology: String,
    /// The server's number: its place in the manager's `orca.hosts`, from 0.
    pub server: u32,
    /// Address and UDP port from which it speaks to the leaf controller.
    pub listen: SocketAddrV4,
    /// The leaf controller.
    pub leaf_controller: SocketAddrV4,
    /// Time between heartbeats in microseconds: a third of the leaf controller's `timeout-us` or less.
    #[serde(default = "heartbeat_us")]
    pub heartbeat_us: u32,
    /// Bits of the label's filter, as in the manager's settings.
    #[serde(default = "filter_bits")]
    pub filter_bits: u32,
    /// UDP port of labelled packets, as in the manager's settings.
    #[serde(default = "port")]
    pub port: u16,
    /// Sessions that it keeps labels for.
    #[serde(default = "sessions")]
    pub sessions_max: u32,
    /// Sessions among them that the kernel knows at the same time.
    #[serde(default = "active_sessions")]
    pub sessions_active_max: u32,
}

/// The paper's (section 6.1).
fn filter_bits() -> u32 {
    69
}

fn port() -> u16 {
    7_474
}

fn sessions() -> u32 {
    65_536
}

fn active_sessions() -> u32 {
    4_096
}

fn probe_ms() -> u32 {
    100
}

fn one() -> u32 {
    1
}

fn timeout_us() -> u32 {
    20_000
}

fn heartbeat_us() -> u32 {
    5_000
}

fn wrong(setting: &'static str, reason: impl ToString) -> SettingsError {
    SettingsError::Value { setting, reason: reason.to_string() }
}

/// The network of a text, and a planner for it.
fn planner(topology: &str, filter_bits: u32) -> Result<LabelPlanner, SettingsError> {
    let network: Network = topology.parse().map_err(|error| wrong("topology", error))?;
    let clos = network.as_clos().ok_or_else(|| {
        wrong("topology", format!("labels are for leaf-spine, clos and fat-tree networks, not for {network}"))
    })?;
    LabelPlanner::with_options(clos, LabelOptions::new(filter_bits))
        .map_err(|error| wrong("filter-bits", error))
}

fn in_range(setting: &'static str, value: u32, least: u32, most: u32) -> Result<(), SettingsError> {
    if (least..=most).contains(&value) {
        return Ok(());
    }
    Err(wrong(setting, format!("it must be {least} to {most}, not {value}")))
}

impl LabelSwitchConfig {
    /// Reads and checks a settings file.
    ///
    /// # Errors
    /// It is not there, no TOML, or says something that cannot be.
    pub fn read(path: &Path) -> Result<Self, SettingsError> {
        Self::parse(&settings::read(path)?)
    }

    /// Reads and checks settings.
    ///
    /// # Errors
    /// No TOML, or something that cannot be.
    pub fn parse(text: &str) -> Result<Self, SettingsError> {
        let config: LabelSwitchConfig = settings::parse(text)?;
        config.check()?;
        Ok(config)
    }

    /// Builds the label planner that the settings describe.
    ///
    /// # Errors
    /// There is no such network, or no such filter.
    pub fn planner(&self) -> Result<LabelPlanner, SettingsError> {
        planner(&self.topology, self.filter_bits)
    }

    fn check(&self) -> Result<(), SettingsError> {
        let planner = self.planner()?;
        let clos = planner.clos();
        if self.switches.is_empty() {
            return Err(wrong("switch", "there is no [[switch]]"));
        }
        in_range("entries-max", self.entries_max, 1, 1 << 24)?;
        in_range("probe-ms", self.probe_ms, 0, 60_000)?;
        let (mut nodes, mut ports) = (BTreeSet::new(), BTreeSet::new());
        for switch in &self.switches {
            let node = switch.check(clos, &self.topology)?;
            if !nodes.insert(node) {
                return Err(wrong("switch", format!("{} is there twice", switch.name())));
            }
            for port in &switch.ports {
                if !ports.insert((&switch.namespace, port)) {
                    return Err(wrong("ports", format!("the interface '{port}' is a port twice")));
                }
            }
            if switch.layer == Layer::Leaf && self.controller.is_none() {
                let reason =
                    "leafs need the address where the manager hears them: its setting orca.controller";
                return Err(wrong("controller", reason));
            }
        }
        Ok(())
    }
}

impl SwitchConfig {
    /// Returns the name that logs use: `leaf0`.
    #[must_use]
    pub fn name(&self) -> String {
        format!("{}{}", self.layer.word(), self.number)
    }

    /// Its number among all nodes of the network, if that has it.
    #[must_use]
    pub fn node(&self, clos: &Clos) -> Option<Node> {
        let (count, first) = match self.layer {
            Layer::Leaf => (clos.leafs(), clos.leaf(0)),
            Layer::Spine => (clos.spines(), clos.spine(0, 0)),
            Layer::Core => (clos.cores(), clos.hosts() + clos.leafs() + clos.spines()),
        };
        (self.number < count).then_some(first + self.number)
    }

    fn check(&self, clos: &Clos, topology: &str) -> Result<Node, SettingsError> {
        let name = self.name();
        let node = self.node(clos).ok_or_else(|| wrong("number", format!("{topology} has no {name}")))?;
        let (all, down) = (clos.port_count(node), super::switches::down_ports(clos, node));
        if self.ports.len() as u64 != u64::from(all) {
            let named = self.ports.len();
            let reason = format!(
                "{name} of {topology} has {all} ports, {down} down and then {} up, and {named} interfaces are named",
                all - down
            );
            return Err(wrong("ports", reason));
        }
        if all > PORTS_MAX || down > DOWN_MAX {
            let reason = format!(
                "{name} has {all} ports, {down} of them down: {PORTS_MAX} and {DOWN_MAX} are the most"
            );
            return Err(wrong("ports", reason));
        }
        match (&self.leaf_controller, self.layer) {
            (Some(leaf), Layer::Leaf) => leaf.check(&name, down)?,
            (None, Layer::Leaf) => {
                return Err(wrong("leaf-controller", format!("{name} needs [switch.leaf-controller]")));
            }
            (Some(_), _) => {
                return Err(wrong("leaf-controller", format!("{name} is no leaf: it has no servers")));
            }
            (None, _) => {}
        }
        Ok(node)
    }
}

impl LeafSettings {
    fn check(&self, name: &str, servers: u32) -> Result<(), SettingsError> {
        let distinct: BTreeSet<_> = self.servers.iter().collect();
        if self.servers.len() as u64 != u64::from(servers) || distinct.len() != self.servers.len() {
            let named = distinct.len();
            let reason = format!(
                "{name} has {servers} servers, and {named} different addresses are named: one a port"
            );
            return Err(wrong("servers", reason));
        }
        in_range("active", self.active, 1, servers.min(AGENTS_MAX as u32))?;
        in_range("standby", self.standby, 0, servers - self.active)?;
        in_range("timeout-us", self.timeout_us, 100, 60_000_000)
    }
}

impl RackAgentConfig {
    /// Builds the label planner that the settings describe.
    ///
    /// # Errors
    /// There is no such network, or no such filter.
    pub fn planner(&self) -> Result<LabelPlanner, SettingsError> {
        planner(&self.topology, self.filter_bits)
    }

    /// Checks that the settings are possible.
    ///
    /// # Errors
    /// A sentence that names what is impossible, and what would be possible.
    pub fn check(&self) -> Result<(), SettingsError> {
        let planner = self.planner()?;
        let servers = planner.clos().hosts();
        if self.server >= servers {
            let (server, last) = (self.server, servers - 1);
            let reason = format!("{} has the servers 0 to {last}, and no {server}", self.topology);
            return Err(wrong("rack-agent.server", reason));
        }
        in_range("rack-agent.heartbeat-us", self.heartbeat_us, 30, 20_000_000)?;
        in_range("rack-agent.sessions-max", self.sessions_max, 1, 1 << 24)?;
        in_range("rack-agent.sessions-active-max", self.sessions_active_max, 1, 1 << 20)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEAF: &str = "
        listen = '10.0.0.11:7475'
        controller = '10.0.0.1:7476'
        topology = 'leaf-spine:2,1,3'
        [[switch]]
        layer = 'leaf'
        number = 1
        ports = ['swp1', 'swp2', 'swp3', 'swp4']
        [switch.leaf-controller]
        listen = '10.0.1.250:7476'
        servers = ['10.0.1.1', '10.0.1.2', '10.0.1.3']
    ";

    #[test]
    fn the_sample_is_read() {
        let config =
            LabelSwitchConfig::parse(include_str!("../../../../docs/label-switch.sample.toml")).unwrap();
        assert_eq!(config.switches.len(), 1);
        let again = toml::to_string(&config).unwrap();
        assert_eq!(LabelSwitchConfig::parse(&again).unwrap(), config);
    }

    #[test]
    fn mistakes_of_a_switch_are_named() {
        LabelSwitchConfig::parse(LEAF).unwrap();
        for (from, to, part) in [
            (
                "'swp4'",
                "'swp4', 'swp5'",
                "leaf1 of leaf-spine:2,1,3 has 4 ports, 3 down and then 1 up, and 5 interfaces",
            ),
            ("'swp4'", "'swp1'", "'swp1' is a port twice"),
            ("number = 1", "number = 2", "leaf-spine:2,1,3 has no leaf2"),
            ("'leaf'", "'spine'", "leaf-spine:2,1,3 has no spine1"),
            ("'leaf'", "'core'", "no core1"),
            ("leaf-spine:2,1,3", "bcube:4,2", "not for bcube:4,2"),
            ("leaf-spine:2,1,3", "ring:3", "ring:3"),
            ("'10.0.1.2'", "'10.0.1.1'", "leaf1 has 3 servers, and 2 different addresses"),
            (
                "[switch.leaf",
                "[[switch]]\nlayer='leaf'\nnumber=0\nports=['a','b','c','d']\n[switch.leaf",
                "leaf1 needs",
            ),
            ("controller = '10.0.0.1:7476'", "", "orca.controller"),
            ("number = 1", "number = 1\nstandby = 3", "standby"),
            ("servers =", "standby = 3\nservers =", "it must be 0 to 2, not 3"),
            ("[[switch]]", "filter-bits = 0\n[[switch]]", "filter"),
        ] {
            let text = LEAF.replacen(from, to, 1);
            let message = LabelSwitchConfig::parse(&text).unwrap_err().to_string();
            assert!(message.contains(part) && !message.contains('\n'), "{text}: {message}");
        }
    }
}
