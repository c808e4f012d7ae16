//! The fabric `ip-multicast` in the settings (Republic section III-B).

use super::{Hosts, Offer, interval, pool};
use crate::config::ManagerConfig;
use polycast_api::settings::SettingsError;
use polycast_planning::ip_multicast::IpMulticast;
use polycast_planning::{Fabric, FabricName};
use polycast_types::Rate;
use serde::Deserialize;

/// Settings of the fabric `ip-multicast`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, default, rename_all = "kebab-case")]
pub struct IpMulticastSettings {
    /// Group addresses to lend, such as `239.255.64.0/24`.
    pub pool: String,
    /// UDP port of the data channels.
    pub port: u16,
    /// Rate of each transfer on a network that is ours alone, such as `5gbit`; without it transfers share
    /// the network and adapt.
    #[serde(deserialize_with = "super::some_rate")]
    pub rate: Option<Rate>,
    /// Interval of attempt sending, in microseconds.
    pub attempt_interval_us: Option<u64>,
}

impl Default for IpMulticastSettings {
    fn default() -> Self {
        IpMulticastSettings {
            pool: "239.255.64.0/24".into(),
            port: 7410,
            rate: None,
            attempt_interval_us: None,
        }
    }
}

pub(super) struct IpMulticastOffer;

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
