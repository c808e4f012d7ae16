//! The fabrics that a manager can offer. Each has a name, a settings section, a planner, and perhaps devices that
//! hold what its plans need (Republic section III-B: fabrics are plug-ins).
//!
//! A new fabric is one more [`Offer`] in [`OFFERS`] and one more section in the settings.

mod datacast;
mod health;
mod ocs;
mod orca;
mod shufflecast;
mod tors;

use crate::config::{ManagerConfig, WhenBusy};
use crate::devices::{Device, DeviceId};
use polycast_api::settings::SettingsError;
use polycast_planning::ip_multicast::{AddressPool, IpMulticast};
use polycast_planning::tcp_chain::TcpChain;
use polycast_planning::{
    Fabric, FabricName, Fabrics, Fcfs, GreedyMatching, HostId, PartitionFcfs, Scheduler,
};
use polycast_protocol::leases::known_hosts;
use polycast_types::{Duration, Rate};
use serde::Deserialize;
use std::collections::BTreeMap;

pub use datacast::DatacastSettings;
pub(crate) use health::{Health, Verdict};
pub use ocs::OcsSettings;
pub use orca::OrcaSettings;
pub use shufflecast::ShufflecastSettings;
pub use tors::{TorHost, TorSettings};

/// A device with its name.
pub(crate) type Named = (DeviceId, Box<dyn Device>);

/// What the settings make of a fabric.
pub(crate) trait Offer: Sync {
    /// Its name in the setting `fabrics`.
    fn name(&self) -> FabricName;

    /// The planner.
    fn fabric(&self, config: &ManagerConfig, hosts: &Hosts) -> Result<Box<dyn Fabric>, SettingsError>;

    /// The devices that hold what its plans need. A device that several fabrics use may come from each of them.
    fn devices(&self, _config: &ManagerConfig) -> Result<Vec<Named>, SettingsError> {
        Ok(Vec::new())
    }

    /// What draws conclusions about its network from what devices say, if anything does.
    fn health(&self, _config: &ManagerConfig) -> Result<Option<Box<dyn Health>>, SettingsError> {
        Ok(None)
    }
}

/// All of them.
const OFFERS: [&dyn Offer; 6] = [
    &IpMulticastOffer,
    &TcpChainOffer,
    &ocs::OcsOffer,
    &shufflecast::ShufflecastOffer,
    &orca::OrcaOffer,
    &datacast::DatacastOffer,
];

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
    fn new(config: &ManagerConfig) -> Self {
        let numbers: BTreeMap<&str, HostId> = known_hosts(config.host_names()).collect();
        let racks = (0..).zip(&config.tor);
        let placed = racks.flat_map(|(rack, tor)| {
            let numbers = &numbers;
            (0..).zip(&tor.hosts).filter_map(move |(place, host)| {
                Some(Placed { host: *numbers.get(host.name.as_str())?, rack, place })
            })
        });
        let placed = placed.collect();
        Hosts {
            numbers: numbers.into_iter().map(|(name, number)| (name.to_string(), number)).collect(),
            placed,
        }
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

/// Checks all that the settings say of fabrics, racks and the scheduler.
pub(crate) fn check(config: &ManagerConfig) -> Result<(), SettingsError> {
    tors::check(&config.tor)?;
    scheduler(config)?;
    fabrics(config)?;
    devices(config).map(drop)
}

/// The fabrics that the settings name, best first.
pub(crate) fn fabrics(config: &ManagerConfig) -> Result<Fabrics, SettingsError> {
    let hosts = Hosts::new(config);
    let offers = offers(config)?;
    let fabrics = offers.iter().map(|offer| offer.fabric(config, &hosts)).collect::<Result<_, _>>()?;
    let fabrics = Fabrics::new(fabrics);
    Ok(match config.when_busy {
        WhenBusy::Next => fabrics,
        WhenBusy::Wait => fabrics.waiting_for_the_best(),
    })
}

/// The devices of these fabrics.
pub(crate) fn devices(config: &ManagerConfig) -> Result<BTreeMap<DeviceId, Box<dyn Device>>, SettingsError> {
    let mut devices = BTreeMap::new();
    for offer in offers(config)? {
        for (id, device) in offer.devices(config)? {
            devices.entry(id).or_insert(device);
        }
    }
    Ok(devices)
}

/// What draws conclusions about the networks of these fabrics.
pub(crate) fn health(config: &ManagerConfig) -> Result<Vec<Box<dyn Health>>, SettingsError> {
    let offers = offers(config)?;
    offers.iter().filter_map(|offer| offer.health(config).transpose()).collect()
}

fn offers(config: &ManagerConfig) -> Result<Vec<&'static dyn Offer>, SettingsError> {
    let wrong = |reason: String| SettingsError::Value { setting: "fabrics", reason };
    let mut chosen: Vec<&'static dyn Offer> = Vec::new();
    for name in &config.fabrics {
        if chosen.iter().any(|offer| offer.name() == name.as_str()) {
            return Err(wrong(format!("'{name}' is named twice")));
        }
        let known = || OFFERS.map(|offer| String::from(offer.name())).join(", ");
        let offer = OFFERS.into_iter().find(|offer| offer.name() == name.as_str());
        chosen.push(offer.ok_or_else(|| wrong(format!("there is no fabric '{name}', only {}", known())))?);
    }
    if chosen.is_empty() {
        return Err(wrong("name at least one".into()));
    }
    Ok(chosen)
}

/// The scheduler that the settings name.
pub(crate) fn scheduler(config: &ManagerConfig) -> Result<Box<dyn Scheduler>, SettingsError> {
    match config.scheduler.as_str() {
        Fcfs::NAME => Ok(Box::new(Fcfs)),
        GreedyMatching::NAME => Ok(Box::new(GreedyMatching::new(Hosts::new(config).racks()))),
        PartitionFcfs::NAME => Ok(Box::new(PartitionFcfs)),
        other => {
            let known = [Fcfs::NAME, GreedyMatching::NAME, PartitionFcfs::NAME].join(", ");
            let reason = format!("there is no scheduler '{other}', only {known}");
            Err(SettingsError::Value { setting: "scheduler", reason })
        }
    }
}

/// Addresses of a fabric's groups.
fn pool(setting: &'static str, pool: &str, port: u16) -> Result<AddressPool, SettingsError> {
    AddressPool::parse(pool, port)
        .map_err(|error| SettingsError::Value { setting, reason: error.to_string() })
}

/// An interval of attempt sending.
fn interval(setting: &'static str, micros: u64) -> Result<Duration, SettingsError> {
    if micros == 0 {
        return Err(SettingsError::Value { setting, reason: "it must not be 0".into() });
    }
    Ok(Duration::from_nanos(micros.saturating_mul(1_000)))
}

/// Reads a rate such as `5gbit`.
pub(crate) fn rate<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Rate, D::Error> {
    String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
}

struct IpMulticastOffer;

impl Offer for IpMulticastOffer {
    fn name(&self) -> FabricName {
        IpMulticast::NAME
    }

    fn fabric(&self, config: &ManagerConfig, _hosts: &Hosts) -> Result<Box<dyn Fabric>, SettingsError> {
        let settings = &config.ip_multicast;
        let pool = pool("ip-multicast.pool", &settings.pool, settings.port)?;
        let interval = interval("ip-multicast.attempt-interval-us", settings.attempt_interval_us)?;
        Ok(Box::new(IpMulticast::new(pool).with_rate(settings.rate).with_attempt_interval(interval)))
    }
}

struct TcpChainOffer;

impl Offer for TcpChainOffer {
    fn name(&self) -> FabricName {
        TcpChain::NAME
    }

    fn fabric(&self, _config: &ManagerConfig, _hosts: &Hosts) -> Result<Box<dyn Fabric>, SettingsError> {
        Ok(Box::new(TcpChain))
    }
}
