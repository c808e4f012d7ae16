//! The list of the offers, and what a manager takes of them.

use super::{Health, Hosts, Offer, tors, wrong};
use crate::config::{Choose, ManagerConfig, WhenBusy};
use crate::devices::{Device, DeviceId};
use polycast_api::settings::SettingsError;
use polycast_net::tls::Security;
use polycast_planning::estimate::{Assumed, Estimator};
use polycast_planning::{Fabrics, Fcfs, GreedyMatching, PartitionFcfs, Scheduler};
use polycast_types::Duration;
use std::collections::BTreeMap;

/// All fabrics that there are, in the order in which an error names them. The only list of them.
static OFFERS: &[&dyn Offer] = &[
    &super::ip_multicast::IpMulticastOffer,
    &super::tcp_chain::TcpChainOffer,
    &super::ocs::OcsOffer,
    &super::shufflecast::ShufflecastOffer,
    &super::orca::OrcaOffer,
    &super::datacast::DatacastOffer,
];

/// Function that makes a scheduler for the hosts of the settings.
type MakeScheduler = fn(&Hosts) -> Box<dyn Scheduler>;

/// All schedulers that there are, in the order in which an error names them. The only list of them.
static SCHEDULERS: &[(&str, MakeScheduler)] = &[
    (Fcfs::NAME, |_| Box::new(Fcfs)),
    (GreedyMatching::NAME, |hosts| Box::new(GreedyMatching::new(hosts.racks()))),
    (PartitionFcfs::NAME, |_| Box::new(PartitionFcfs)),
];

/// The hosts that the settings name, rack by rack and fabric by fabric; one may come twice.
pub(crate) fn host_names(config: &ManagerConfig) -> impl Iterator<Item = &str> {
    let in_racks = config.tor.iter().flat_map(|tor| &tor.hosts).map(|host| host.name.as_str());
    in_racks.chain(OFFERS.iter().flat_map(|offer| offer.hosts(config)))
}

/// Checks all that the settings say of fabrics, racks and the scheduler.
pub(crate) fn check(config: &ManagerConfig) -> Result<(), SettingsError> {
    tors::check(&config.tor)?;
    let hosts = Hosts::new(config, &[]);
    scheduler(config, &hosts)?;
    fabrics(config, &hosts)?;
    devices(config, &hosts, None).map(drop)
}

/// The fabrics that the settings name, best first.
pub(crate) fn fabrics(config: &ManagerConfig, hosts: &Hosts) -> Result<Fabrics, SettingsError> {
    let offers = offers(config)?;
    let fabrics = offers.iter().map(|offer| offer.fabric(config, hosts)).collect::<Result<_, _>>()?;
    let fabrics = Fabrics::new(fabrics).estimating(Estimator::new(assumed(config)));
    Ok(match (config.choose, config.when_busy) {
        (Choose::Time, waits) => fabrics.choosing_by_time(waits != Some(WhenBusy::Next)),
        (Choose::Order, None | Some(WhenBusy::Next)) => fabrics,
        (Choose::Order, Some(WhenBusy::Wait)) => fabrics.waiting_for_the_best(),
    })
}

/// Returns the values that estimates begin with.
fn assumed(config: &ManagerConfig) -> Assumed {
    let usual = Assumed::default();
    let of_datacast = config.datacast.as_ref().map(|datacast| datacast.link_rate);
    let circuits = config
        .ocs
        .as_ref()
        .and_then(|ocs| ocs.set_up_ms)
        .map(|millis| Duration::from_nanos(millis.saturating_mul(1_000_000)));
    Assumed {
        // Chains take the packet network too: what multicast may take there is all that is known of it.
        link_rate: config.link_rate.or(config.ip_multicast.rate).or(of_datacast).unwrap_or(usual.link_rate),
        circuits: circuits.unwrap_or(usual.circuits),
        rules: usual.rules,
    }
}

/// The devices of these fabrics.
pub(crate) fn devices(
    config: &ManagerConfig,
    hosts: &Hosts,
    security: Option<&Security>,
) -> Result<BTreeMap<DeviceId, Box<dyn Device>>, SettingsError> {
    let mut devices = BTreeMap::new();
    for offer in offers(config)? {
        for (id, device) in offer.devices(config, hosts, security)? {
            devices.entry(id).or_insert(device);
        }
    }
    Ok(devices)
}

/// Returns the parts that draw conclusions about the networks of these fabrics.
pub(crate) fn health(config: &ManagerConfig) -> Result<Vec<Box<dyn Health>>, SettingsError> {
    let offers = offers(config)?;
    offers.iter().filter_map(|offer| offer.health(config).transpose()).collect()
}

fn offers(config: &ManagerConfig) -> Result<Vec<&'static dyn Offer>, SettingsError> {
    let wrong = |reason: String| wrong("fabrics", reason);
    let mut chosen: Vec<&'static dyn Offer> = Vec::new();
    for name in &config.fabrics {
        if chosen.iter().any(|offer| offer.name() == name.as_str()) {
            return Err(wrong(format!("'{name}' is named twice")));
        }
        let known = || OFFERS.iter().map(|offer| String::from(offer.name())).collect::<Vec<_>>().join(", ");
        let offer = OFFERS.iter().find(|offer| offer.name() == name.as_str()).copied();
        chosen.push(offer.ok_or_else(|| wrong(format!("there is no fabric '{name}', only {}", known())))?);
    }
    if chosen.is_empty() {
        return Err(wrong("name at least one".into()));
    }
    Ok(chosen)
}

/// The scheduler that the settings name.
pub(crate) fn scheduler(config: &ManagerConfig, hosts: &Hosts) -> Result<Box<dyn Scheduler>, SettingsError> {
    let name = config.scheduler.name.as_str();
    let known = || SCHEDULERS.iter().map(|(name, _)| *name).collect::<Vec<_>>().join(", ");
    match SCHEDULERS.iter().find(|(known, _)| *known == name) {
        Some((_, make)) => Ok(make(hosts)),
        None => Err(wrong("scheduler", format!("there is no scheduler '{name}', only {}", known()))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use polycast_types::Rate;
    use std::path::Path;

    /// A chain is not the way around a rate that multicast is held to on the same network.
    #[test]
    fn a_links_rate_is_that_of_multicast_where_nothing_else_is_said() {
        let of = |text: &str| assumed(&ManagerConfig::from_toml(text).unwrap()).link_rate;
        assert_eq!(of(""), Rate(1_000_000_000));
        assert_eq!(of("[ip-multicast]\nrate = '160mbit'"), Rate(160_000_000));
        assert_eq!(of("link-rate = '25gbit'\n[ip-multicast]\nrate = '160mbit'"), Rate(25_000_000_000));
    }

    #[test]
    fn the_sample_describes_every_fabric() {
        let sample = include_str!("../../../../docs/manager.sample.toml");
        for offer in OFFERS {
            let start = format!("#   {} ", offer.name());
            assert!(sample.lines().any(|line| line.starts_with(&start)), "{} is missing", offer.name());
        }
    }

    #[test]
    fn the_sample_describes_every_scheduler_and_each_says_its_name() {
        let sample = include_str!("../../../../docs/manager.sample.toml");
        let hosts = Hosts::default();
        for (name, make) in SCHEDULERS {
            let start = format!("#   {name} ");
            assert!(sample.lines().any(|line| line.starts_with(&start)), "{name} is missing");
            assert_eq!(make(&hosts).name(), *name);
        }
    }

    #[test]
    fn the_files_of_the_guides_are_there() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let guides =
            [include_str!("../../../../docs/howto/fabric.md"), include_str!("../../../../CONTRIBUTING.md")];
        let spans = guides.iter().flat_map(|guide| guide.split('`'));
        let named = spans.filter(|text| {
            let is_path = text.starts_with("crates/") && !text.contains([' ', '{']);
            is_path && !text.contains("my_") && !text.contains("my-")
        });
        let missing: Vec<&str> = named.filter(|path| !root.join(path).exists()).collect();
        assert!(missing.is_empty(), "the guides name files that are not there: {missing:?}");
    }
}
