//! The fabric `ip-multicast` in the settings (Republic section III-B).

use super::{Hosts, Offer, interval, pool};
use crate::config::ManagerConfig;
use polycast_api::settings::SettingsError;
use polycast_planning::ip_multicast::IpMulticast;
use polycast_planning::{Fabric, FabricName};
use polycast_types::Rate;
use serde::Deserialize;
use std::net::{IpAddr, Ipv6Addr};

/// Groups where the settings name none. Those of IPv6 have numbers that RFC 3307 leaves to hosts.
const POOL: &str = "239.255.64.0/24";
const POOL_V6: &str = "ff15::8000:0/120";

/// Settings of the fabric `ip-multicast`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, default, rename_all = "kebab-case")]
pub struct IpMulticastSettings {
    /// Group addresses to lend, such as `239.255.64.0/24`. Without them those of the family that the manager
    /// listens at; where it listens at all addresses of both, to each source those of its own.
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
        let (one, other) = match (&settings.pool, config.listen.ip()) {
            (Some(named), _) => (named.as_str(), None),
            (None, IpAddr::V4(_)) => (POOL, None),
            (None, IpAddr::V6(Ipv6Addr::UNSPECIFIED)) => (POOL_V6, Some(POOL)),
            (None, IpAddr::V6(_)) => (POOL_V6, None),
        };
        let pool = |text| pool("ip-multicast.pool", text, settings.port);
        let (one, other) = (pool(one)?, other.map(pool).transpose()?);
        let interval = interval("ip-multicast.attempt-interval-us", settings.attempt_interval_us)?;
        let fabric = IpMulticast::new(one).with_other_family(other).with_rate(settings.rate);
        Ok(Box::new(fabric.with_attempt_interval(interval)))
    }
}
