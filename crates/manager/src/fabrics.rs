//! The fabrics that a manager can offer, a module each. A fabric has a name, perhaps a settings section, a
//! planner, and perhaps devices that hold what its plans need (Republic section III-B: fabrics are plug-ins).
//!
//! This file says what a fabric has to bring (`Offer`) and lends what several need; `registry` lists the
//! offers and chooses among them. docs/howto/fabric.md says how to add one.

pub mod datacast;
mod health;
pub mod ip_multicast;
mod lit;
pub mod ocs;
pub mod orca;
mod registry;
pub mod shufflecast;
pub mod switch_ports;
mod tcp_chain;
pub mod tors;

pub use health::Light;
pub(crate) use health::{Health, Verdict};
pub(crate) use lit::lit_racks;
pub(crate) use registry::{check, devices, fabrics, health, host_names, scheduler};

use crate::config::ManagerConfig;
use crate::devices::{Device, DeviceId};
use polycast_api::settings::SettingsError;
use polycast_net::tls::Security;
use polycast_planning::ip_multicast::AddressPool;
use polycast_planning::{Fabric, FabricName, HostId};
use polycast_protocol::leases::{Record, host_numbers};
use polycast_types::{Duration, Rate};
use serde::Deserialize;
use std::collections::{BTreeMap, BTreeSet};

/// A device with its name.
pub(crate) type Named = (DeviceId, Box<dyn Device>);

/// Parts that the settings make of a fabric.
pub(crate) trait Offer: Sync {
    /// Its name in the setting `fabrics`.
    fn name(&self) -> FabricName;

    /// The planner.
    fn fabric(&self, config: &ManagerConfig, hosts: &Hosts) -> Result<Box<dyn Fabric>, SettingsError>;

    /// The devices that hold what its plans need, with which the manager speaks as `security` says where they
    /// can. A device that several fabrics use may come from each of them.
    fn devices(
        &self,
        _config: &ManagerConfig,
        _hosts: &Hosts,
        _security: Option<&Security>,
    ) -> Result<Vec<Named>, SettingsError> {
        Ok(Vec::new())
    }

    /// The hosts that its settings name, which have to have their numbers before the first agent joins. One
    /// may come twice, and may be in the settings of other fabrics too.
    fn hosts<'a>(&self, _config: &'a ManagerConfig) -> Vec<&'a str> {
        Vec::new()
    }

    /// Returns the part that draws conclusions about its network from reports of devices, if there is one.
    fn health(&self, _config: &ManagerConfig) -> Result<Option<Box<dyn Health>>, SettingsError> {
        Ok(None)
    }
}

/// The hosts that the settings name, with the numbers that they have in plans and their racks and places.
#[derive(Debug, Default)]
pub(crate) struct Hosts {
    numbers: BTreeMap<String, HostId>,
    placed: Vec<Placed>,
}

/// A host in its rack.
#[derive(Clone, Copy, Debug)]
struct Placed {
    host: HostId,
    rack: u32,
    place: u32,
}

impl Hosts {
    /// With the numbers that they have in these records, and others where they are in none.
    pub(crate) fn new(config: &ManagerConfig, records: &[Record]) -> Self {
        let numbers = host_numbers(host_names(config), records);
        let racks = (0..).zip(&config.tor);
        let placed = racks.flat_map(|(rack, tor)| {
            let numbers = &numbers;
            (0..).zip(&tor.hosts).filter_map(move |(place, host)| {
                Some(Placed { host: *numbers.get(host.name.as_str())?, rack, place })
            })
        });
        let placed = placed.collect();
        Hosts { numbers, placed }
    }

    /// All of them, with their numbers.
    pub(crate) fn numbers(&self) -> impl Iterator<Item = (&str, HostId)> {
        self.numbers.iter().map(|(name, number)| (name.as_str(), *number))
    }

    /// The number of a host that the settings name.
    fn number(&self, name: &str) -> Option<HostId> {
        self.numbers.get(name).copied()
    }

    /// The server of every host where each rack has as many.
    fn servers(&self, per_rack: u32) -> impl Iterator<Item = (HostId, u32)> + '_ {
        self.placed.iter().map(move |host| (host.host, host.rack * per_rack + host.place))
    }

    fn racks(&self) -> impl Iterator<Item = (HostId, u32)> + '_ {
        self.placed.iter().map(|host| (host.host, host.rack))
    }
}

/// A setting that is wrong; `reason` is the end of a sentence about it.
fn wrong(setting: &'static str, reason: impl std::fmt::Display) -> SettingsError {
    SettingsError::Value { setting, reason: reason.to_string() }
}

/// A fabric's section, which it cannot do without.
fn section<'a, T>(fabric: &'static str, section: &'a Option<T>) -> Result<&'a T, SettingsError> {
    section.as_ref().ok_or_else(|| wrong(fabric, format!("the fabric {fabric} needs a section [{fabric}]")))
}

/// Checks that hosts, named server by server, fit into a network and are named once each.
fn check_hosts(
    setting: &'static str,
    hosts: &[String],
    servers: u32,
    network: &str,
) -> Result<(), SettingsError> {
    if hosts.len() > servers as usize {
        let named = hosts.len();
        return Err(wrong(setting, format!("{named} hosts are named, and {network} {servers} servers")));
    }
    let mut names = BTreeSet::new();
    match hosts.iter().find(|name| !names.insert(*name)) {
        Some(name) => Err(wrong(setting, format!("the host '{name}' is named twice"))),
        None => Ok(()),
    }
}

/// Addresses of a fabric's groups.
fn pool(setting: &'static str, pool: &str, port: u16) -> Result<AddressPool, SettingsError> {
    AddressPool::parse(pool, port).map_err(|error| wrong(setting, error))
}

/// The same of a fabric whose switches tell groups by 32 bits, in their rules or labels.
fn pool_v4(setting: &'static str, text: &str, port: u16) -> Result<AddressPool, SettingsError> {
    match pool(setting, text, port)? {
        pool if pool.is_ipv6() => Err(wrong(
            setting,
            format!(
                "'{text}' is of IPv6, and the switches of this fabric look at groups of IPv4: write one such as 239.255.64.0/24"
            ),
        )),
        pool => Ok(pool),
    }
}

/// The longest interval of attempt sending; none where it follows from the time waited alone.
fn interval(setting: &'static str, micros: Option<u64>) -> Result<Duration, SettingsError> {
    match micros {
        Some(0) => {
            Err(wrong(setting, "it must not be 0: leave it out, and the interval grows with the time waited"))
        }
        Some(micros) => Ok(Duration::from_nanos(micros.saturating_mul(1_000))),
        None => Ok(Duration::ZERO),
    }
}

/// Reads a rate such as `5gbit`.
pub(crate) fn rate<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Rate, D::Error> {
    String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
}

/// The same where there need not be one.
pub(crate) fn some_rate<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Option<Rate>, D::Error> {
    rate(deserializer).map(Some)
}
