//! The racks of a data center as the settings say: the ToR switch of each, how it is reached, and what is at
//! its ports.

use super::switch_ports::DeviceTls;
use super::{Hosts, Light, Named, wrong};
use crate::config::ManagerConfig;
use crate::devices::{Device, DeviceId, Reach, SwitchDoor, Tor, TorPorts};
use polycast_api::settings::SettingsError;
use polycast_net::devices::openflow::{Endpoint, SwitchOptions};
use serde::Deserialize;
use std::collections::BTreeSet;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// The ToR switch of a rack. The racks count from 0 in the order of the settings.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct TorSettings {
    /// Address where it listens for OpenFlow: `10.0.0.1:6653` or `unix:/run/openvswitch/br0.mgmt`. A switch
    /// that connects to its controller has a `dpid` in its place.
    pub openflow: Option<String>,
    /// Its datapath id: `0x1`, or 16 hexadecimal digits.
    pub dpid: Option<Dpid>,
    /// Seals the connection to it with the certificates of `[device-tls]`.
    #[serde(default)]
    pub tls: bool,
    /// The queue of its ports that our packets take; none without it.
    pub queue: Option<u32>,
    /// The class of service (DSCP) that our packets are marked with where they come from a host; as they come
    /// without it.
    pub dscp: Option<u8>,
    /// Tables of flows that may be used: 2, or 1 where the switch has no more.
    #[serde(default = "tables")]
    pub tables: u8,
    /// The addresses of the rack's hosts, such as `10.0.1.0/24`; with a Shufflecast, ToRs tell by it whose
    /// packets they relay.
    pub subnet: Option<String>,
    /// OpenFlow numbers of the ports with fibres to the circuit switch, or of those into the rack's
    /// splitters: one, or as many as it stands for logical ToRs.
    pub fibre_ports: Vec<u32>,
    /// OpenFlow numbers of the ports with fibres from other racks' splitters: by partitions, for one logical
    /// ToR after the other.
    #[serde(default)]
    pub splitter_ports: Vec<u32>,
    /// Meaning of a port with a fibre that has no light.
    #[serde(default)]
    pub light: Light,
    /// The rack's hosts.
    pub hosts: Vec<TorHost>,
}

fn tables() -> u8 {
    2
}

/// A datapath id.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Dpid(pub u64);

impl<'de> Deserialize<'de> for Dpid {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        let digits: String = text.trim_start_matches("0x").chars().filter(|digit| *digit != ':').collect();
        u64::from_str_radix(&digits, 16).map(Dpid).map_err(|_| {
            serde::de::Error::custom(format!(
                "'{text}' is no dpid: write it in hexadecimal digits, such as \"0x1\""
            ))
        })
    }
}

/// A host of a rack.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct TorHost {
    /// The name of its agent.
    pub name: String,
    /// OpenFlow number of the ToR's port to it.
    pub port: u32,
}

/// A setting of one rack that is wrong.
fn wrong_at(setting: &'static str, rack: usize, reason: impl std::fmt::Display) -> SettingsError {
    wrong(setting, format!("rack {rack}: {reason}"))
}

/// OpenFlow's numbers of ports lie below; higher ones mean other things.
pub(crate) const PORTS_END: u32 = 0xffff_ff00;

/// Checks everything that does not depend on the fabric.
pub(crate) fn check(tors: &[TorSettings]) -> Result<(), SettingsError> {
    let (mut names, mut dpids) = (BTreeSet::new(), BTreeSet::new());
    for (rack, tor) in tors.iter().enumerate() {
        if let Some(text) = &tor.openflow {
            endpoint(rack, text)?;
        }
        if let Some(text) = &tor.subnet {
            subnet(rack, text)?;
        }
        if tor.openflow.is_none() && tor.dpid.is_none() {
            return Err(wrong_at(
                "tor.openflow",
                rack,
                "say where the switch listens, or the dpid of one that connects",
            ));
        }
        if let Some(dpid) = tor.dpid.filter(|dpid| !dpids.insert(*dpid)) {
            return Err(wrong_at("tor.dpid", rack, format!("another rack has the dpid {:#x} too", dpid.0)));
        }
        if let Some(class) = tor.dscp.filter(|class| *class > 63) {
            return Err(wrong_at("tor.dscp", rack, format!("{class} is no class: write 0 to 63")));
        }
        if !(1..=2).contains(&tor.tables) {
            return Err(wrong_at("tor.tables", rack, "write 1 or 2"));
        }
        let shared = tor.fibre_ports.iter().find(|port| tor.splitter_ports.contains(port));
        if let Some(port) = shared.filter(|_| tor.tables == 1) {
            let reason = format!(
                "port {port} has both fibres, which one table cannot tell apart: use two ports, or a switch of three tables"
            );
            return Err(wrong_at("tor.tables", rack, reason));
        }
        let mut ports = BTreeSet::new();
        let hosts = tor.hosts.iter().map(|host| host.port);
        // The fibre into the splitter and one from another splitter may share a port, each in its direction.
        let inward = tor.splitter_ports.iter().filter(|port| !tor.fibre_ports.contains(port));
        for port in hosts.chain(tor.fibre_ports.iter().copied()).chain(inward.copied()) {
            if port == 0 || port >= PORTS_END {
                return Err(wrong_at(
                    "tor",
                    rack,
                    format!("{port} is no port: OpenFlow counts ports from 1"),
                ));
            }
            if !ports.insert(port) {
                return Err(wrong_at("tor", rack, format!("port {port} is named twice")));
            }
        }
        for host in &tor.hosts {
            if !names.insert(&host.name) {
                return Err(wrong_at("tor.hosts", rack, format!("the host '{}' is named twice", host.name)));
            }
        }
    }
    Ok(())
}

pub(crate) fn endpoint(rack: usize, text: &str) -> Result<Endpoint, SettingsError> {
    if let Some(path) = text.strip_prefix("unix:") {
        return Ok(Endpoint::Unix(PathBuf::from(path)));
    }
    let address: Result<SocketAddr, _> = text.parse();
    address.map(Endpoint::Tcp).map_err(|_| {
        let reason = format!("'{text}' is no address: write one such as 10.0.0.1:6653, or unix:PATH");
        wrong_at("tor.openflow", rack, reason)
    })
}

/// Address and mask.
fn subnet(rack: usize, text: &str) -> Result<([u8; 4], [u8; 4]), SettingsError> {
    let parse = || {
        let (address, prefix) = text.split_once('/')?;
        let address: Ipv4Addr = address.parse().ok()?;
        let prefix: u32 = prefix.parse().ok().filter(|prefix| (1..=32).contains(prefix))?;
        let mask = u32::MAX << (32 - prefix);
        (u32::from(address) & !mask == 0).then_some((address.octets(), mask.to_be_bytes()))
    };
    let reason = || format!("'{text}' is no network: write one such as 10.0.1.0/24");
    parse().ok_or_else(|| wrong_at("tor.subnet", rack, reason()))
}

/// Returns the meaning of the light at each rack.
pub(super) fn light(config: &ManagerConfig) -> Vec<Light> {
    config.tor.iter().map(|tor| tor.light).collect()
}

/// Returns the options of the connection to a rack's switch.
pub(crate) fn options(config: &ManagerConfig, tor: &TorSettings) -> Result<SwitchOptions, SettingsError> {
    let within = Duration::from_millis(config.device_timeout_ms);
    let security = tor.tls.then(|| DeviceTls::security(config, "tor.tls")).transpose()?;
    let (connect_timeout, command_timeout) = (within, within);
    Ok(SwitchOptions { security, connect_timeout, command_timeout, ..SwitchOptions::default() })
}

/// Returns the way to reach a rack's switch.
fn reach(rack: usize, tor: &TorSettings, door: Option<&Arc<SwitchDoor>>) -> Result<Reach, SettingsError> {
    match (&tor.openflow, tor.dpid, door) {
        (Some(text), dpid, _) => Ok(Reach::At(endpoint(rack, text)?, dpid.map(|dpid| dpid.0))),
        (None, Some(dpid), Some(door)) => Ok(Reach::Comes(Arc::clone(door), dpid.0)),
        (None, ..) => Err(wrong(
            "openflow-listen",
            format!("say where the switch of rack {rack} connects, such as 0.0.0.0:6653"),
        )),
    }
}

/// Returns the door for switches that connect of their own accord, if there are any.
pub(crate) fn door(config: &ManagerConfig) -> Result<Option<Arc<SwitchDoor>>, SettingsError> {
    let Some(listen) = config.openflow_listen else { return Ok(None) };
    let coming: Vec<&TorSettings> = config.tor.iter().filter(|tor| tor.openflow.is_none()).collect();
    let sealed = coming.iter().filter(|tor| tor.tls).count();
    if sealed != 0 && sealed != coming.len() {
        return Err(wrong(
            "tor.tls",
            "all switches that connect come to the same door: write tls for all of them or none",
        ));
    }
    let Some(first) = coming.first() else { return Ok(None) };
    let named = coming.iter().filter_map(|tor| tor.dpid).map(|dpid| dpid.0).collect();
    Ok(Some(SwitchDoor::new(listen, options(config, first)?, named)))
}

/// The groups that racks relay: address and mask; all groups where the pool is no network.
fn relayed(config: &ManagerConfig) -> ([u8; 4], [u8; 4]) {
    let pool = config.shufflecast.as_ref().map(|settings| settings.pool.as_str());
    let network = pool.and_then(|pool| subnet(0, pool).ok());
    network.unwrap_or(([224, 0, 0, 0], [240, 0, 0, 0]))
}

/// The servers of the largest rack.
pub(crate) fn servers_per_rack(config: &ManagerConfig) -> u32 {
    config.tor.iter().map(|tor| tor.hosts.len() as u32).max().unwrap_or(0)
}

/// The ToR switches as devices. `relaying` is whether they relay for other racks by the addresses of their
/// hosts.
pub(crate) fn devices(
    config: &ManagerConfig,
    hosts: &Hosts,
    relaying: bool,
) -> Result<Vec<Named>, SettingsError> {
    let mut subnets = Vec::new();
    if relaying {
        for (rack, tor) in config.tor.iter().enumerate() {
            let text = tor.subnet.as_deref();
            let text = text.ok_or_else(|| wrong_at("tor.subnet", rack, "a Shufflecast needs it"))?;
            subnets.push(subnet(rack, text)?);
        }
    }
    let subnets = Arc::new(subnets);
    let relayed = relayed(config);
    let door = door(config)?;
    let one = |(rack, tor): (usize, &TorSettings)| {
        let ports = TorPorts {
            hosts: hosts
                .placed
                .iter()
                .filter(|host| host.rack as usize == rack)
                .map(|host| (host.host, tor.hosts[host.place as usize].port))
                .collect(),
            fibres: tor.fibre_ports.clone(),
            from_splitters: tor.splitter_ports.clone(),
            subnets: Arc::clone(&subnets),
            relayed,
            queue: tor.queue,
            dscp: tor.dscp,
            one_table: tor.tables == 1,
        };
        let sweep_after = Duration::from_millis(config.lease_ms);
        let reach = reach(rack, tor, door.as_ref())?;
        let device = Tor::new(rack as u32, reach, options(config, tor)?, ports, sweep_after);
        Ok((DeviceId::Tor(rack as u32), Box::new(device) as Box<dyn Device>))
    };
    config.tor.iter().enumerate().map(one).collect()
}
