//! The fabric `ocs` in the settings (Blast section III; Republic section II).

use super::health::Health;
use super::lit::OfCircuits;
use super::{Hosts, Named, Offer, interval, pool, rate, section, tors, wrong};
use crate::config::ManagerConfig;
use crate::devices::{CircuitSwitch, DeviceId};
use polycast_api::settings::SettingsError;
use polycast_planning::ocs::{Ocs, OcsConfig};
use polycast_planning::{Fabric, FabricName};
use polycast_topology::Hybrid;
use polycast_topology::optics::{PowerBudget, splitter_loss_db};
use polycast_types::Rate;
use serde::Deserialize;
use std::net::SocketAddr;
use std::time::Duration;

/// Settings of the fabric `ocs`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct OcsSettings {
    /// Where the circuit switch listens for TL1.
    pub tl1: SocketAddr,
    /// Its ports, all of them.
    #[serde(default = "ports")]
    pub ports: u32,
    /// The splitters that are connected to it.
    pub splitters: u32,
    /// Outputs of each splitter.
    pub splitter_fanout: u32,
    /// The most splitters of one group; as many as there are without it.
    pub cascade_max: Option<u32>,
    /// What the light may lose between transmitter and receiver, in dB.
    #[serde(default = "budget_db")]
    pub budget_db: f64,
    /// What it loses in each pass of the circuit switch, in dB.
    #[serde(default = "switch_loss_db")]
    pub switch_loss_db: f64,
    /// What it loses in a splitter, in dB; what a splitter of this size loses at best, and 1 dB, without it.
    pub splitter_loss_db: Option<f64>,
    /// Gain of the amplifiers, in dB; 0 where there are none.
    #[serde(default)]
    pub amplifier_gain_db: f64,
    /// Rate of a fibre.
    #[serde(deserialize_with = "rate")]
    pub rate: Rate,
    /// Group addresses to lend.
    #[serde(default = "super::shufflecast::addresses")]
    pub pool: String,
    /// UDP port of the data channels.
    #[serde(default = "super::shufflecast::port")]
    pub port: u16,
    /// The longest interval of attempt sending, in microseconds; a fiftieth of the time waited, without it.
    pub attempt_interval_us: Option<u64>,
}

/// Blast's switch (section IV-B).
fn ports() -> u32 {
    320
}

fn budget_db() -> f64 {
    30.0
}

fn switch_loss_db() -> f64 {
    1.5
}

/// The racks, fibres and splitters.
fn hybrid(config: &ManagerConfig) -> Result<Hybrid, SettingsError> {
    let settings = section("ocs", &config.ocs)?;
    let ports_per_rack = config.tor.first().map_or(0, |tor| tor.fibre_ports.len());
    if ports_per_rack == 0 {
        return Err(wrong("tor", "circuits need racks with fibre-ports: name one [[tor]] a rack"));
    }
    if let Some(rack) = config.tor.iter().position(|tor| tor.fibre_ports.len() != ports_per_rack) {
        let reason = format!(
            "rack {rack} has {} of them and rack 0 has {ports_per_rack}: give all racks as many",
            config.tor[rack].fibre_ports.len()
        );
        return Err(wrong("tor.fibre-ports", reason));
    }
    let hybrid = Hybrid {
        racks: config.tor.len() as u32,
        servers_per_rack: tors::servers_per_rack(config),
        ports_per_rack: ports_per_rack as u32,
        splitters: settings.splitters,
        splitter_fanout: settings.splitter_fanout,
    };
    hybrid.checked(settings.ports).map_err(|error| wrong("ocs", error))
}

pub(super) struct OcsOffer;

impl Offer for OcsOffer {
    fn name(&self) -> FabricName {
        Ocs::NAME
    }

    fn fabric(&self, config: &ManagerConfig, hosts: &Hosts) -> Result<Box<dyn Fabric>, SettingsError> {
        let settings = section("ocs", &config.ocs)?;
        let hybrid = hybrid(config)?;
        let losses = [
            ("ocs.budget-db", settings.budget_db),
            ("ocs.switch-loss-db", settings.switch_loss_db),
            ("ocs.splitter-loss-db", settings.splitter_loss_db.unwrap_or(0.0)),
            ("ocs.amplifier-gain-db", settings.amplifier_gain_db),
        ];
        if let Some((setting, _)) = losses.iter().find(|(_, db)| !db.is_finite() || *db < 0.0) {
            return Err(wrong(setting, "it must be 0 or more"));
        }
        if settings.rate.0 == 0 {
            return Err(wrong("ocs.rate", "it must not be 0"));
        }
        let fabric = OcsConfig {
            hybrid,
            cascade_max: settings.cascade_max.unwrap_or(settings.splitters),
            budget: PowerBudget {
                budget_db: settings.budget_db,
                switch_loss_db: settings.switch_loss_db,
                splitter_loss_db: settings
                    .splitter_loss_db
                    .unwrap_or_else(|| splitter_loss_db(settings.splitter_fanout)),
                amplifier_gain_db: settings.amplifier_gain_db,
            },
            rate: settings.rate,
            attempt_interval: interval("ocs.attempt-interval-us", settings.attempt_interval_us)?,
        };
        let pool = pool("ocs.pool", &settings.pool, settings.port)?;
        let servers = hosts.servers(hybrid.servers_per_rack);
        Ok(Box::new(Ocs::new(fabric, servers, pool).map_err(|error| wrong("tor.hosts", error))?))
    }

    fn devices(&self, config: &ManagerConfig, hosts: &Hosts) -> Result<Vec<Named>, SettingsError> {
        let mut devices = tors::devices(config, hosts, false)?;
        let switch = CircuitSwitch::new(
            section("ocs", &config.ocs)?.tl1,
            Duration::from_millis(config.device_timeout_ms),
        );
        devices.push((DeviceId::CircuitSwitch, Box::new(switch)));
        Ok(devices)
    }

    fn health(&self, config: &ManagerConfig) -> Result<Option<Box<dyn Health>>, SettingsError> {
        let grace = Duration::from_millis(config.light_grace_ms);
        Ok(Some(Box::new(OfCircuits::new(hybrid(config)?, tors::light(config), grace))))
    }
}
