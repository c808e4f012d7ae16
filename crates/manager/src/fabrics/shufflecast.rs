//! The fabric `shufflecast` in the settings (Shufflecast section III).

use super::health::{Health, OfRelays};
use super::{Hosts, Named, Offer, interval, pool, rate, section, tors, wrong};
use crate::config::ManagerConfig;
use polycast_api::settings::SettingsError;
use polycast_net::tls::Security;
use polycast_planning::shufflecast::{Shufflecast, ShufflecastConfig};
use polycast_planning::{Fabric, FabricName};
use polycast_types::Rate;
use serde::Deserialize;

/// Settings of the fabric `shufflecast`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct ShufflecastSettings {
    /// Outputs of every splitter.
    pub p: u32,
    /// Columns of racks: there are k times p to the power of k racks.
    pub k: u32,
    /// Rate of a splitter.
    #[serde(deserialize_with = "rate")]
    pub rate: Rate,
    /// How many transfers may share the relays of a partition; each has its part of the rate.
    #[serde(default = "shares")]
    pub shares: u32,
    /// Group addresses to lend.
    #[serde(default = "addresses")]
    pub pool: String,
    /// UDP port of the data channels.
    #[serde(default = "port")]
    pub port: u16,
    /// The longest interval of attempt sending, in microseconds; a fiftieth of the time waited, without it.
    pub attempt_interval_us: Option<u64>,
}

fn shares() -> u32 {
    1
}

pub(super) fn addresses() -> String {
    "239.255.64.0/24".into()
}

pub(super) fn port() -> u16 {
    7410
}

fn network(settings: &ShufflecastSettings) -> Result<polycast_topology::Shufflecast, SettingsError> {
    let network = polycast_topology::Shufflecast::new(settings.p, settings.k);
    network.map_err(|error| wrong("shufflecast", error))
}

pub(super) struct ShufflecastOffer;

impl Offer for ShufflecastOffer {
    fn name(&self) -> FabricName {
        Shufflecast::NAME
    }

    fn fabric(&self, config: &ManagerConfig, hosts: &Hosts) -> Result<Box<dyn Fabric>, SettingsError> {
        let settings = section("shufflecast", &config.shufflecast)?;
        let network = network(settings)?;
        let (racks, named) = (network.tors() as usize, config.tor.len());
        if racks != named {
            let reason =
                format!("a {},{}-Shufflecast has {racks} racks, not {named}", settings.p, settings.k);
            return Err(wrong("tor", reason));
        }
        for (rack, tor) in config.tor.iter().enumerate() {
            let (out, inward) = (tor.fibre_ports.len(), tor.splitter_ports.len());
            if out != 1 {
                let reason = format!("rack {rack} has {out} fibres into its splitter; it needs one");
                return Err(wrong("tor.fibre-ports", reason));
            }
            if inward != settings.p as usize {
                let reason = format!(
                    "rack {rack} has {inward} fibres from splitters, and each rack of this Shufflecast has {}",
                    settings.p
                );
                return Err(wrong("tor.splitter-ports", reason));
            }
        }
        if settings.rate.0 == 0 {
            return Err(wrong("shufflecast.rate", "it must not be 0"));
        }
        if settings.shares == 0 {
            return Err(wrong("shufflecast.shares", "it must not be 0"));
        }
        let servers_per_rack = tors::servers_per_rack(config);
        let fabric = ShufflecastConfig {
            network,
            servers_per_rack,
            rate: settings.rate,
            shares: settings.shares,
            attempt_interval: interval("shufflecast.attempt-interval-us", settings.attempt_interval_us)?,
        };
        let pool = pool("shufflecast.pool", &settings.pool, settings.port)?;
        let servers = hosts.servers(servers_per_rack);
        Ok(Box::new(Shufflecast::new(fabric, servers, pool).map_err(|error| wrong("tor.hosts", error))?))
    }

    fn devices(
        &self,
        config: &ManagerConfig,
        hosts: &Hosts,
        _security: Option<&Security>,
    ) -> Result<Vec<Named>, SettingsError> {
        tors::devices(config, hosts, true)
    }

    fn health(&self, config: &ManagerConfig) -> Result<Option<Box<dyn Health>>, SettingsError> {
        let network = network(section("shufflecast", &config.shufflecast)?)?;
        Ok(Some(Box::new(OfRelays::new(network, tors::light(config)))))
    }
}
