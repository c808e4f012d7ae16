//! The fabric `ocs` in the settings (Blast section III; Republic section II).

use super::health::Health;
use super::lit::OfCircuits;
use super::switch_ports::{self, Layout, RackPorts, Splitters};
use super::{Hosts, Named, Offer, interval, pool_v4, rate, section, tors, wrong};
use crate::config::ManagerConfig;
use crate::devices::{CircuitSwitch, DeviceId};
use polycast_api::settings::SettingsError;
use polycast_net::tls::Security;
use polycast_planning::ocs::{Ocs, OcsConfig};
use polycast_planning::{Fabric, FabricName};
use polycast_topology::optics::{PowerBudget, splitter_loss_db};
use polycast_types::Rate;
use serde::Deserialize;
use std::net::SocketAddr;
use std::path::PathBuf;

/// Settings of the fabric `ocs`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct OcsSettings {
    /// Address where the circuit switch listens for its managers.
    #[serde(alias = "tl1")]
    pub address: SocketAddr,
    /// Its dialect, by its name in [`polycast_net::devices::circuits::DIALECTS`].
    #[serde(default = "dialect")]
    pub dialect: String,
    /// The user that the manager is to it.
    pub user: Option<String>,
    /// File whose first line is that user's password.
    pub password_file: Option<PathBuf>,
    /// Seals its connection with the certificates of `[device-tls]`.
    #[serde(default)]
    pub tls: bool,
    /// Its ports, all of them; of a Polatis the fibres where light enters.
    #[serde(default = "ports")]
    pub ports: u32,
    /// The ports of the racks' fibres, rack by rack; the first ones, without it.
    pub rack_ports: Option<Vec<RackPorts>>,
    /// The splitters that are connected to it: how many, behind the racks' ports, or a list with the ports of
    /// each.
    pub splitters: Splitters,
    /// Outputs of each splitter where only their number is said.
    pub splitter_fanout: Option<u32>,
    /// The most splitters of one group; as many as there are without it.
    pub cascade_max: Option<u32>,
    /// Allowed loss of light between transmitter and receiver, in dB.
    #[serde(default = "budget_db")]
    pub budget_db: f64,
    /// Loss of light in each pass of the circuit switch, in dB.
    #[serde(default = "switch_loss_db")]
    pub switch_loss_db: f64,
    /// Loss of light in a splitter, in dB; without it, the least loss of a splitter of this size, and 1 dB.
    pub splitter_loss_db: Option<f64>,
    /// Gain of the amplifiers, in dB; 0 where there are none.
    #[serde(default)]
    pub amplifier_gain_db: f64,
    /// Rate of a fibre.
    #[serde(deserialize_with = "rate")]
    pub rate: Rate,
    /// Time that it takes to make circuits, in milliseconds, for estimates; Blast's 25 without it.
    pub set_up_ms: Option<u64>,
    /// Group addresses to lend.
    #[serde(default = "super::shufflecast::addresses")]
    pub pool: String,
    /// UDP port of the data channels.
    #[serde(default = "super::shufflecast::port")]
    pub port: u16,
    /// The longest interval of attempt sending, in microseconds; a fiftieth of the time waited, without it.
    pub attempt_interval_us: Option<u64>,
}

/// Blast's switch and Republic's (sections IV-B and IV).
fn dialect() -> String {
    "glimmerglass".into()
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

/// Returns the power budget of the light; an error if no path meets it.
fn budget(settings: &OcsSettings, layout: &Layout) -> Result<PowerBudget, SettingsError> {
    let losses = [
        ("ocs.budget-db", settings.budget_db),
        ("ocs.switch-loss-db", settings.switch_loss_db),
        ("ocs.splitter-loss-db", settings.splitter_loss_db.unwrap_or(0.0)),
        ("ocs.amplifier-gain-db", settings.amplifier_gain_db),
    ];
    if let Some((setting, _)) = losses.iter().find(|(_, db)| !db.is_finite() || *db < 0.0) {
        return Err(wrong(setting, "it must be 0 or more"));
    }
    let usual = settings.splitter_loss_db.unwrap_or_else(|| splitter_loss_db(layout.hybrid.splitter_fanout));
    let budget = PowerBudget {
        budget_db: settings.budget_db,
        switch_loss_db: settings.switch_loss_db,
        splitter_loss_db: usual,
        amplifier_gain_db: settings.amplifier_gain_db,
    };
    let needed = |splitter: &polycast_topology::SplitterPorts| {
        let (loss, gain) =
            (splitter.loss_db.unwrap_or(usual), splitter.gain_db.unwrap_or(settings.amplifier_gain_db));
        // An amplifier makes up for what was lost before it, and no more.
        loss + 2.0 * budget.switch_loss_db - gain.min(budget.switch_loss_db)
    };
    let direct = budget.switch_loss_db;
    let best = layout.ports.splitters().iter().map(needed).min_by(f64::total_cmp).unwrap_or(direct);
    if budget.budget_db < best {
        let reason = format!(
            "no path meets it: light loses at least {best:.1} dB through the circuit switch and one splitter, \
             and the budget is {:.1}",
            budget.budget_db
        );
        return Err(wrong("ocs.budget-db", reason));
    }
    Ok(budget)
}

pub(super) struct OcsOffer;

impl Offer for OcsOffer {
    fn name(&self) -> FabricName {
        Ocs::NAME
    }

    fn fabric(&self, config: &ManagerConfig, hosts: &Hosts) -> Result<Box<dyn Fabric>, SettingsError> {
        let settings = section("ocs", &config.ocs)?;
        let layout = switch_ports::layout(config)?;
        let (hybrid, budget) = (layout.hybrid, budget(settings, &layout)?);
        if settings.rate.0 == 0 {
            return Err(wrong("ocs.rate", "it must not be 0"));
        }
        let fabric = OcsConfig {
            hybrid,
            cascade_max: settings.cascade_max.unwrap_or(hybrid.splitters),
            budget,
            rate: settings.rate,
            attempt_interval: interval("ocs.attempt-interval-us", settings.attempt_interval_us)?,
        };
        let pool = pool_v4("ocs.pool", &settings.pool, settings.port)?;
        let servers = hosts.servers(hybrid.servers_per_rack);
        let fabric = Ocs::new(fabric, servers, pool).map_err(|error| wrong("tor.hosts", error))?;
        Ok(Box::new(fabric.with_ports(layout.ports)))
    }

    fn devices(
        &self,
        config: &ManagerConfig,
        hosts: &Hosts,
        _security: Option<&Security>,
    ) -> Result<Vec<Named>, SettingsError> {
        let mut devices = tors::devices(config, hosts, false)?;
        let ports = switch_ports::layout(config)?.ports;
        let address = section("ocs", &config.ocs)?.address;
        let switch = CircuitSwitch::new(address, switch_ports::options(config)?, ports);
        devices.push((DeviceId::CircuitSwitch, Box::new(switch)));
        Ok(devices)
    }

    fn health(&self, config: &ManagerConfig) -> Result<Option<Box<dyn Health>>, SettingsError> {
        let grace = std::time::Duration::from_millis(config.light_grace_ms);
        Ok(Some(Box::new(OfCircuits::new(switch_ports::layout(config)?.ports, tors::light(config), grace))))
    }
}
