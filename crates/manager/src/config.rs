//! The manager's settings, as TOML. `docs/manager.sample.toml` explains each.

use polycast_planning::ip_multicast::{AddressPool, IpMulticast, PoolError};
use polycast_planning::tcp_chain::TcpChain;
use polycast_planning::{Fabric, Fabrics, Fcfs, Scheduler};
use polycast_types::{Duration, Rate};
use serde::Deserialize;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};

/// Settings of a manager; what is left out has the value of `Default`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, default, rename_all = "kebab-case")]
pub struct ManagerConfig {
    /// Where agents reach the manager; port 0 lets the system choose.
    pub listen: SocketAddr,
    /// Name of the scheduler: `fcfs`.
    pub scheduler: String,
    /// Names of the fabrics, best first: `ip-multicast`, `tcp-chain`.
    pub fabrics: Vec<String>,
    /// How often agents send a heartbeat, in milliseconds.
    pub heartbeat_ms: u64,
    /// An agent that has been silent for this long is gone, in milliseconds.
    pub silence_ms: u64,
    /// How long a lease lives without a heartbeat that names it, in milliseconds.
    pub lease_ms: u64,
    /// How many agents may join.
    pub agents_max: usize,
    /// How many requests may wait for a path.
    pub pending_max: usize,
    /// How many paths may be lent at the same time.
    pub leases_max: usize,
    /// The fabric `ip-multicast`.
    pub ip_multicast: IpMulticastConfig,
}

/// Settings of the fabric `ip-multicast`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, default, rename_all = "kebab-case")]
pub struct IpMulticastConfig {
    /// Group addresses to lend, such as `239.255.64.0/24`.
    pub pool: String,
    /// UDP port of the data channels.
    pub port: u16,
    /// Rate of each transfer on a network that is ours alone, such as `5gbit`; without it transfers share
    /// the network and adapt.
    #[serde(deserialize_with = "rate")]
    pub rate: Option<Rate>,
    /// Interval of attempt sending, in microseconds.
    pub attempt_interval_us: u64,
}

/// Settings that are wrong, in one sentence.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("cannot read the settings {}: {reason}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        reason: String,
    },
    /// Not TOML, or not our settings.
    #[error("line {line} of the settings: {message}")]
    Syntax {
        /// Where.
        line: usize,
        /// What is wrong.
        message: String,
    },
    /// A setting has a value that cannot be.
    #[error("the setting '{setting}' is wrong: {reason}")]
    Value {
        /// Which.
        setting: &'static str,
        /// Why.
        reason: String,
    },
}

impl Default for ManagerConfig {
    fn default() -> Self {
        ManagerConfig {
            listen: SocketAddr::from((Ipv4Addr::UNSPECIFIED, 7400)),
            scheduler: Fcfs::NAME.into(),
            fabrics: vec![IpMulticast::NAME.into(), TcpChain::NAME.into()],
            heartbeat_ms: 1_000,
            silence_ms: 4_000,
            lease_ms: 30_000,
            agents_max: 10_000,
            pending_max: 1_024,
            leases_max: 10_000,
            ip_multicast: IpMulticastConfig::default(),
        }
    }
}

impl Default for IpMulticastConfig {
    fn default() -> Self {
        IpMulticastConfig {
            pool: "239.255.64.0/24".into(),
            port: 7410,
            rate: None,
            attempt_interval_us: 1_000,
        }
    }
}

impl ManagerConfig {
    /// Reads and checks the settings in a file.
    ///
    /// # Errors
    /// It cannot be read, or the settings in it are wrong.
    pub fn load(path: &Path) -> Result<Self, ConfigError> {
        let text = std::fs::read_to_string(path)
            .map_err(|error| ConfigError::Read { path: path.to_path_buf(), reason: error.to_string() })?;
        Self::from_toml(&text)
    }

    /// Reads and checks settings.
    ///
    /// # Errors
    /// The settings are wrong.
    pub fn from_toml(text: &str) -> Result<Self, ConfigError> {
        let config: ManagerConfig = toml::from_str(text).map_err(|error| {
            let before = error.span().map_or("", |span| text.get(..span.start).unwrap_or(text));
            let message = error.message().replace('\n', " ");
            ConfigError::Syntax { line: before.matches('\n').count() + 1, message }
        })?;
        config.check()?;
        Ok(config)
    }

    /// Checks what types alone don't.
    ///
    /// # Errors
    /// The first setting that is wrong.
    pub fn check(&self) -> Result<(), ConfigError> {
        self.make_scheduler()?;
        self.make_fabrics()?;
        let positive = [
            ("heartbeat-ms", self.heartbeat_ms),
            ("agents-max", self.agents_max as u64),
            ("pending-max", self.pending_max as u64),
            ("leases-max", self.leases_max as u64),
        ];
        for (setting, value) in positive {
            if value == 0 {
                return Err(ConfigError::Value { setting, reason: "it must not be 0".into() });
            }
        }
        // With fewer, one lost heartbeat would end an agent's membership or a lease.
        let longer = self.heartbeat_ms.saturating_mul(2);
        for (setting, value) in [("silence-ms", self.silence_ms), ("lease-ms", self.lease_ms)] {
            if value < longer {
                let reason = format!("it must be at least twice heartbeat-ms, {longer}");
                return Err(ConfigError::Value { setting, reason });
            }
        }
        Ok(())
    }

    pub(crate) fn make_scheduler(&self) -> Result<Box<dyn Scheduler>, ConfigError> {
        match self.scheduler.as_str() {
            Fcfs::NAME => Ok(Box::new(Fcfs)),
            other => Err(ConfigError::Value {
                setting: "scheduler",
                reason: format!("there is no scheduler '{other}', only {}", Fcfs::NAME),
            }),
        }
    }

    pub(crate) fn make_fabrics(&self) -> Result<Fabrics, ConfigError> {
        let mut fabrics: Vec<Box<dyn Fabric>> = Vec::new();
        for name in &self.fabrics {
            if fabrics.iter().any(|fabric| fabric.name() == name) {
                let reason = format!("'{name}' is named twice");
                return Err(ConfigError::Value { setting: "fabrics", reason });
            }
            fabrics.push(match name.as_str() {
                IpMulticast::NAME => Box::new(self.ip_multicast.make()?),
                TcpChain::NAME => Box::new(TcpChain),
                other => {
                    let known = [IpMulticast::NAME, TcpChain::NAME].join(" and ");
                    let reason = format!("there is no fabric '{other}', only {known}");
                    return Err(ConfigError::Value { setting: "fabrics", reason });
                }
            });
        }
        if fabrics.is_empty() {
            return Err(ConfigError::Value { setting: "fabrics", reason: "name at least one".into() });
        }
        Ok(Fabrics::new(fabrics))
    }
}

impl IpMulticastConfig {
    fn make(&self) -> Result<IpMulticast, ConfigError> {
        let wrong =
            |error: PoolError| ConfigError::Value { setting: "ip-multicast.pool", reason: error.to_string() };
        let pool = AddressPool::parse(&self.pool, self.port).map_err(wrong)?;
        let interval = Duration::from_nanos(self.attempt_interval_us.saturating_mul(1_000));
        if interval == Duration::ZERO {
            let setting = "ip-multicast.attempt-interval-us";
            return Err(ConfigError::Value { setting, reason: "it must not be 0".into() });
        }
        Ok(IpMulticast::new(pool).with_rate(self.rate).with_attempt_interval(interval))
    }
}

fn rate<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Option<Rate>, D::Error> {
    let text = String::deserialize(deserializer)?;
    text.parse().map(Some).map_err(serde::de::Error::custom)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_said_is_the_default() {
        let config = ManagerConfig::from_toml("").unwrap();
        assert_eq!(config.listen.port(), 7400);
        assert_eq!(config.make_fabrics().unwrap().names().collect::<Vec<_>>(), ["ip-multicast", "tcp-chain"]);
    }

    #[test]
    fn the_sample_says_what_is_the_default() {
        let sample = include_str!("../../../docs/manager.sample.toml");
        let config = ManagerConfig::from_toml(sample).unwrap();
        assert_eq!(format!("{config:?}"), format!("{:?}", ManagerConfig::default()));
    }

    #[test]
    fn all_of_it_can_be_set() {
        let text = "
            listen = '10.0.0.1:9000'
            fabrics = ['tcp-chain']
            lease-ms = 5000
            [ip-multicast]
            pool = '239.1.0.0/16'
            rate = '5gbit'
        ";
        let config = ManagerConfig::from_toml(text).unwrap();
        assert_eq!(config.ip_multicast.rate, Some(Rate(5_000_000_000)));
        assert_eq!(config.make_fabrics().unwrap().names().collect::<Vec<_>>(), ["tcp-chain"]);
    }

    #[test]
    fn mistakes_are_named() {
        for (text, part) in [
            ("\nlisten = 5", "line 2"),
            ("listen = 'nowhere'", "line 1"),
            ("lissten = '0.0.0.0:1'", "lissten"),
            ("[ip-multicast]\nrate = 'fast'", "'fast'"),
            ("[ip-multicast]\npool = '10.0.0.0/8'", "ip-multicast.pool"),
            ("scheduler = 'lottery'", "no scheduler 'lottery', only fcfs"),
            ("fabrics = []", "name at least one"),
            ("fabrics = ['tcp-chain', 'tcp-chain']", "named twice"),
            ("fabrics = ['wormhole']", "no fabric 'wormhole'"),
            ("heartbeat-ms = 0", "'heartbeat-ms'"),
            ("lease-ms = 1", "'lease-ms'"),
            ("pending-max = 0", "'pending-max'"),
            ("agents-max = -1", "line 1"),
        ] {
            let message = ManagerConfig::from_toml(text).unwrap_err().to_string();
            assert!(message.contains(part), "{text}: {message}");
            assert!(!message.contains('\n'), "{message}");
        }
        let missing = ManagerConfig::load("/no/such.toml".as_ref()).unwrap_err().to_string();
        assert!(missing.contains("/no/such.toml"), "{missing}");
    }
}
