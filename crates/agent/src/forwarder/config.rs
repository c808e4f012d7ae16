//! The settings of `polycast forwarder`, as TOML.

use polycast_api::settings::{self, SettingsError};
use polycast_net::priority::{Dscp, NoClass};
use polycast_protocol::pull::{HOPS_MAX, HOPS_USUAL, PORTS_MAX};
use polycast_types::Rate;
use serde::{Deserialize, Serialize};
use std::net::{SocketAddr, SocketAddrV4};
use std::path::{Path, PathBuf};

/// Settings of a process with one or more nodes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct ForwarderConfig {
    /// Unix socket where the process can be asked.
    #[serde(default)]
    pub socket: Option<PathBuf>,
    /// Address and TCP port where it can be asked as well: here the manager hears of links.
    #[serde(default)]
    pub control: Option<SocketAddr>,
    /// The nodes.
    #[serde(rename = "node")]
    pub nodes: Vec<NodeConfig>,
}

/// One node.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct NodeConfig {
    /// Its name in reports.
    pub name: String,
    /// Its number in the network; without one the manager does not hear of its links.
    #[serde(default)]
    pub number: Option<u32>,
    /// File of the network namespace that its ports are in, such as `/run/netns/h0`; without one that of the
    /// process.
    #[serde(default)]
    pub namespace: Option<PathBuf>,
    /// The most packets in the content store; a tenth of it is for retransmissions. The paper's is 2048.
    #[serde(default = "store_packets")]
    pub store_packets: u32,
    /// Choice of the packet that a full content store forgets.
    #[serde(default)]
    pub replacement: Replacement,
    /// The most pending interests.
    #[serde(default = "pending_interests")]
    pub pending_interests: u32,
    /// After how many milliseconds a pending interest may give way or is sent on anew.
    #[serde(default = "interest_ms")]
    pub interest_ms: u32,
    /// Greetings go to the neighbours every so many milliseconds; one that is not heard for four of them is
    /// gone.
    #[serde(default = "greeting_ms")]
    pub greeting_ms: u32,
    /// A link must have changed for so many milliseconds before it is reported, so that one that comes and
    /// goes does not make trees come and go (the paper's 3 seconds).
    #[serde(default)]
    pub damping_ms: u32,
    /// The longest source route that the node takes, in hops; packets with longer ones are dropped and
    /// counted. The paper's is 8. Networks with deeper trees need more at all nodes and at the manager.
    #[serde(default = "hops_usual")]
    pub hops_max: u32,
    /// Set if the kernel passes on what the node does not keep, where it can: it needs root, and an interface
    /// for every port.
    #[serde(default = "kernel")]
    pub kernel: bool,
    /// The class of service (DSCP), 0 to 63, that its packets are marked with; without one that of its agent,
    /// if that has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dscp: Option<i64>,
    /// Its ports, in the order in which source routes count them.
    #[serde(rename = "port")]
    pub ports: Vec<PortConfig>,
}

/// Choice of the packet that a full content store forgets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Replacement {
    /// The one that came the longest ago.
    #[default]
    Oldest,
    /// The one that was used the longest ago, as in the paper.
    LeastRecentlyUsed,
}

impl From<Replacement> for polycast_protocol::pull::Replacement {
    fn from(replacement: Replacement) -> Self {
        match replacement {
            Replacement::Oldest => polycast_protocol::pull::Replacement::Oldest,
            Replacement::LeastRecentlyUsed => polycast_protocol::pull::Replacement::LeastRecentlyUsed,
        }
    }
}

/// One port: a link to a neighbour.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct PortConfig {
    /// The address and UDP port of this end.
    pub local: SocketAddrV4,
    /// The address and UDP port of the other end.
    pub peer: SocketAddrV4,
    /// The rate of the link, such as `1gbit`: sources behind the node never send faster by it.
    #[serde(default)]
    pub rate: Option<String>,
}

fn store_packets() -> u32 {
    2_048
}

fn pending_interests() -> u32 {
    1 << 16
}

fn interest_ms() -> u32 {
    20
}

fn hops_usual() -> u32 {
    HOPS_USUAL as u32
}

fn kernel() -> bool {
    true
}

fn greeting_ms() -> u32 {
    100
}

/// Settings that are wrong, in one sentence.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ForwarderConfigError {
    /// The file cannot be read, or it is not TOML or not such settings.
    #[error(transparent)]
    Settings(#[from] SettingsError),
    /// There is nothing to forward for.
    #[error("the settings are wrong: there is no [[node]]")]
    Empty,
    /// A node has a setting that cannot be.
    #[error("the setting '{setting}' of node '{node}' is wrong: {reason}")]
    Node {
        /// The node.
        node: String,
        /// The setting.
        setting: &'static str,
        /// The reason.
        reason: String,
    },
}

impl ForwarderConfig {
    /// Reads and checks a settings file.
    ///
    /// # Errors
    /// It is not there, no TOML, or says something that cannot be.
    pub fn read(path: &Path) -> Result<Self, ForwarderConfigError> {
        Self::parse(&settings::read(path)?)
    }

    /// Reads and checks settings.
    ///
    /// # Errors
    /// No TOML, or something that cannot be.
    pub fn parse(text: &str) -> Result<Self, ForwarderConfigError> {
        let config: ForwarderConfig = settings::parse(text)?;
        config.check()?;
        Ok(config)
    }

    /// Checks that the settings are possible.
    ///
    /// # Errors
    /// A sentence that names what is impossible, and what would be possible.
    pub fn check(&self) -> Result<(), ForwarderConfigError> {
        if self.nodes.is_empty() {
            return Err(ForwarderConfigError::Empty);
        }
        for (at, node) in self.nodes.iter().enumerate() {
            node.check()?;
            if self.nodes[..at].iter().any(|other| other.name == node.name) {
                return Err(node.wrong("name", "another node has the same".into()));
            }
            if node.number.is_some() && self.nodes[..at].iter().any(|other| other.number == node.number) {
                return Err(node.wrong("number", "another node has the same".into()));
            }
        }
        Ok(())
    }
}

impl NodeConfig {
    fn wrong(&self, setting: &'static str, reason: String) -> ForwarderConfigError {
        ForwarderConfigError::Node { node: self.name.clone(), setting, reason }
    }

    /// Checks that the settings are possible.
    ///
    /// # Errors
    /// A sentence that names what is impossible, and what would be possible.
    pub fn check(&self) -> Result<(), ForwarderConfigError> {
        let ranges: [(&'static str, u32, u32, u32); 6] = [
            ("store-packets", self.store_packets, 0, 1 << 22),
            ("pending-interests", self.pending_interests, 1, 1 << 22),
            ("interest-ms", self.interest_ms, 1, 60_000),
            ("greeting-ms", self.greeting_ms, 1, 10_000),
            ("damping-ms", self.damping_ms, 0, 60_000),
            ("hops-max", self.hops_max, 1, HOPS_MAX as u32),
        ];
        for (setting, value, least, most) in ranges {
            if !(least..=most).contains(&value) {
                return Err(self.wrong(setting, format!("it must be {least} to {most}, not {value}")));
            }
        }
        if let Err(error) = self.class() {
            return Err(self.wrong("dscp", error.to_string()));
        }
        if self.ports.is_empty() || self.ports.len() > PORTS_MAX as usize {
            let reason = format!("there must be 1 to {PORTS_MAX} ports, not {}", self.ports.len());
            return Err(self.wrong("port", reason));
        }
        self.ports.iter().try_for_each(|port| match port.rate_bps() {
            Ok(Some(0)) => Err(self.wrong("rate", "a link carries more than nothing".into())),
            Ok(_) => Ok(()),
            Err(reason) => Err(self.wrong("rate", reason)),
        })
    }
}

impl NodeConfig {
    /// `dscp` as a class.
    ///
    /// # Errors
    /// There is no such class.
    pub(super) fn class(&self) -> Result<Option<Dscp>, NoClass> {
        self.dscp.map(Dscp::try_from).transpose()
    }
}

impl PortConfig {
    /// The rate in bits a second, if it is known.
    ///
    /// # Errors
    /// A sentence that says what is wrong with it.
    pub fn rate_bps(&self) -> Result<Option<u64>, String> {
        let Some(text) = &self.rate else { return Ok(None) };
        text.parse::<Rate>().map(|rate| Some(rate.0)).map_err(|error| error.to_string())
    }
}
