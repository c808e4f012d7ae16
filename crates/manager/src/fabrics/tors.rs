//! The racks of a data center as the settings say: the ToR switch of each, how it is reached, and what is at its
//! ports.

use super::{Hosts, Light, Named, wrong};
use crate::config::ManagerConfig;
use crate::devices::{Device, DeviceId, Tor, TorPorts};
use polycast_api::settings::SettingsError;
use polycast_net::devices::openflow::Endpoint;
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
    /// Where it listens for OpenFlow: `10.0.0.1:6653` or `unix:/run/openvswitch/br0.mgmt`.
    pub openflow: String,
    /// The addresses of the rack's hosts, such as `10.0.1.0/24`; with a Shufflecast, ToRs tell by it whose packets
    /// they relay.
    pub subnet: Option<String>,
    /// OpenFlow numbers of the ports with fibres to the circuit switch, or of the one into the rack's splitter.
    pub fibre_ports: Vec<u32>,
    /// OpenFlow numbers of the ports with fibres from other racks' splitters.
    #[serde(default)]
    pub splitter_ports: Vec<u32>,
    /// What it means that a port with a fibre has no light.
    #[serde(default)]
    pub light: Light,
    /// The rack's hosts.
    pub hosts: Vec<TorHost>,
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

/// What can be checked without knowing the fabric.
pub(crate) fn check(tors: &[TorSettings]) -> Result<(), SettingsError> {
    let mut names = BTreeSet::new();
    for (rack, tor) in tors.iter().enumerate() {
        endpoint(rack, &tor.openflow)?;
        if let Some(text) = &tor.subnet {
            subnet(rack, text)?;
        }
        let mut ports = BTreeSet::new();
        let hosts = tor.hosts.iter().map(|host| host.port);
        for port in hosts.chain(tor.fibre_ports.iter().copied()).chain(tor.splitter_ports.iter().copied()) {
            // Higher numbers mean other things than ports.
            if port == 0 || port >= 0xffff_ff00 {
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

fn endpoint(rack: usize, text: &str) -> Result<Endpoint, SettingsError> {
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

/// What the light means at each rack.
pub(super) fn light(config: &ManagerConfig) -> Vec<Light> {
    config.tor.iter().map(|tor| tor.light).collect()
}

/// The servers of the largest rack.
pub(crate) fn servers_per_rack(config: &ManagerConfig) -> u32 {
    config.tor.iter().map(|tor| tor.hosts.len() as u32).max().unwrap_or(0)
}

/// The ToR switches as devices. `relaying` is whether they relay for other racks by the addresses of their hosts.
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
        };
        let (answers_within, sweep_after) =
            (Duration::from_millis(config.device_timeout_ms), Duration::from_millis(config.lease_ms));
        let endpoint = endpoint(rack, &tor.openflow)?;
        let device = Tor::new(rack as u32, endpoint, ports, answers_within, sweep_after);
        Ok((DeviceId::Tor(rack as u32), Box::new(device) as Box<dyn Device>))
    };
    config.tor.iter().enumerate().map(one).collect()
}
