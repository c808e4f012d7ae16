//! The fabric `shufflecast` in the settings (Shufflecast section III).

use super::health::{Health, OfRelays};
use super::tors::TorSettings;
use super::{Hosts, Named, Offer, interval, pool_v4, rate, section, tors, wrong};
use crate::config::ManagerConfig;
use polycast_api::settings::SettingsError;
use polycast_net::tls::Security;
use polycast_planning::shufflecast::{SHARES_MAX, Shufflecast, ShufflecastConfig};
use polycast_planning::{Fabric, FabricName};
use polycast_topology::Wiring;
use polycast_topology::optics::{SPLITTER_EXCESS_DB, splitter_loss_db};
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
    /// Number of racks if there are fewer: some of them stand for several, with as many splitters.
    pub tors: Option<u32>,
    /// Rate of a splitter.
    #[serde(deserialize_with = "rate")]
    pub rate: Rate,
    /// Allowed loss of light between a transmitter and a receiver, in dB; not checked without it.
    pub budget_db: Option<f64>,
    /// Loss of light in a splitter, in dB; 1 dB more than in the best one without it.
    pub splitter_loss_db: Option<f64>,
    /// Number of transfers that may share the relays of a partition; each has its part of the rate.
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

fn network(settings: &ShufflecastSettings) -> Result<Wiring, SettingsError> {
    let network = polycast_topology::Shufflecast::new(settings.p, settings.k);
    let network = network.map_err(|error| wrong("shufflecast", error))?;
    match settings.tors {
        None => Ok(network.into()),
        Some(tors) => Wiring::new(network, tors).map_err(|error| wrong("shufflecast.tors", error)),
    }
}

/// Checks that transceivers have light enough for a splitter.
fn check_light(settings: &ShufflecastSettings) -> Result<(), SettingsError> {
    let p = settings.p;
    let usual = splitter_loss_db(p);
    let loss = settings.splitter_loss_db.unwrap_or(usual);
    let even = usual - SPLITTER_EXCESS_DB;
    if !loss.is_finite() || loss < even {
        let reason = format!("it is {loss} dB, and one of {p} outputs loses at least {even:.1} dB");
        return Err(wrong("shufflecast.splitter-loss-db", reason));
    }
    match settings.budget_db {
        Some(budget) if !budget.is_finite() || budget < loss => {
            // Rounded up, so that what is named is enough.
            let enough = (loss * 10.0).ceil() / 10.0;
            let reason = format!(
                "it is {budget} dB, and a splitter of {p} outputs loses {loss:.2} dB: no path has light enough; use transceivers of \
                 {enough:.1} dB or more, or splitters of fewer outputs"
            );
            Err(wrong("shufflecast.budget-db", reason))
        }
        _ => Ok(()),
    }
}

/// Checks that a rack has the fibres that its splitters take.
fn check_rack(wiring: &Wiring, rack: usize, tor: &TorSettings) -> Result<(), SettingsError> {
    let splitters = wiring.logical_of(rack as u32).len();
    let (out, inward) = (tor.fibre_ports.len(), tor.splitter_ports.len());
    let p = wiring.logical().fanout() as usize;
    if out != splitters {
        let needed = match splitters {
            1 => "it needs one".to_string(),
            several => format!("it stands for {several} logical ToRs and needs as many"),
        };
        let reason = format!("rack {rack} has {out} fibres into its splitter; {needed}");
        return Err(wrong("tor.fibre-ports", reason));
    }
    if inward != p * splitters {
        let reason = match splitters {
            1 => format!(
                "rack {rack} has {inward} fibres from splitters, and each rack of this Shufflecast has {p}"
            ),
            several => format!(
                "rack {rack} has {inward} fibres from splitters; it stands for {several} logical ToRs and needs {}, \
                 {p} for each",
                p * several
            ),
        };
        return Err(wrong("tor.splitter-ports", reason));
    }
    if splitters > 1 && tor.tables == 1 {
        let reason = format!(
            "rack {rack} stands for {splitters} logical ToRs and gets as many copies, which one table cannot tell apart: use a \
             switch of two tables"
        );
        return Err(wrong("tor.tables", reason));
    }
    Ok(())
}

pub(super) struct ShufflecastOffer;

impl Offer for ShufflecastOffer {
    fn name(&self) -> FabricName {
        Shufflecast::NAME
    }

    fn fabric(&self, config: &ManagerConfig, hosts: &Hosts) -> Result<Box<dyn Fabric>, SettingsError> {
        let settings = section("shufflecast", &config.shufflecast)?;
        let network = network(settings)?;
        check_light(settings)?;
        let (racks, named) = (network.tors() as usize, config.tor.len());
        if racks != named {
            let (p, k) = (settings.p, settings.k);
            let reason = match settings.tors {
                Some(_) => format!("shufflecast.tors says {racks} racks, and {named} are named"),
                None if named < racks && named > 0 => {
                    format!(
                        "a {p},{k}-Shufflecast has {racks} racks, not {named}: with fewer write tors = {named} there"
                    )
                }
                None => format!("a {p},{k}-Shufflecast has {racks} racks, not {named}"),
            };
            return Err(wrong("tor", reason));
        }
        for (rack, tor) in config.tor.iter().enumerate() {
            check_rack(&network, rack, tor)?;
        }
        if settings.rate.0 == 0 {
            return Err(wrong("shufflecast.rate", "it must not be 0"));
        }
        if !(1..=SHARES_MAX).contains(&settings.shares) {
            return Err(wrong("shufflecast.shares", format!("it must be 1 to {SHARES_MAX}")));
        }
        let servers_per_rack = tors::servers_per_rack(config);
        let fabric = ShufflecastConfig {
            network,
            servers_per_rack,
            rate: settings.rate,
            shares: settings.shares,
            attempt_interval: interval("shufflecast.attempt-interval-us", settings.attempt_interval_us)?,
        };
        let pool = pool_v4("shufflecast.pool", &settings.pool, settings.port)?;
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
