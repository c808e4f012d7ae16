//! The fabric `ip-multicast` in the settings (Republic section III-B).

use super::{Hosts, Offer, interval, pool};
use crate::config::ManagerConfig;
use polycast_api::settings::SettingsError;
use polycast_planning::ip_multicast::IpMulticast;
use polycast_planning::{Fabric, FabricName};
use polycast_types::Rate;
use serde::Deserialize;

/// Groups where the settings name none. Those of IPv6 have numbers that RFC 3307 leaves to hosts.
const POOL: &str = "239.255.64.0/24";
const POOL_V6: &str = "ff15::8000:0/120";

/// Settings of the fabric `ip-multicast`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, default, rename_all = "kebab-case")]
pub struct IpMulticastSettings {
    /// Group addresses to lend, such as `239.255.64.0/24`. Without them those of the family that the manager
    /// listens at.
    pub pool: Option<String>,
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
        IpMulticastSettings { pool: None, port: 7410, rate: None, attempt_interval_us: None }
    }
}

pub(super) struct IpMulticastOffer;

impl Offer for IpMulticastOffer {
    fn name(&self) -> FabricName {
        IpMulticast::NAME
    }

    fn fabric(&self, config: &ManagerConfig, _hosts: &Hosts) -> Result<Box<dyn Fabric>, SettingsError> {
        let settings = &config.ip_multicast;
        let usual = || if config.listen.is_ipv4() { POOL } else { POOL_V6 };
        let text = settings.pool.as_deref().unwrap_or_else(usual);
        let pool = pool("ip-multicast.pool", text, settings.port)?;
        let interval = interval("ip-multicast.attempt-interval-us", settings.attempt_interval_us)?;
        Ok(Box::new(IpMulticast::new(pool).with_rate(settings.rate).with_attempt_interval(interval)))
    }
}
