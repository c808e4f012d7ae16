//! Prices and powers of parts, as a file lists them for `polycast plan cost` and `polycast plan advise`.

use super::{PlanError, read};
use polycast_planning::economics::{Catalogue, RateParts, SplitterPart};
use serde::Deserialize;
use std::path::Path;

/// The built-in parts, or those of a file in their place.
pub(super) fn catalogue(path: Option<&Path>) -> Result<Catalogue, PlanError> {
    let mut catalogue = Catalogue::default();
    if let Some(path) = path {
        let wrong = |error: toml::de::Error| PlanError::Contents {
            path: path.into(),
            error: error.message().to_string(),
        };
        toml::from_str::<PartsFile>(&read(path)?).map_err(wrong)?.apply(&mut catalogue);
    }
    Ok(catalogue)
}

/// The contents of a parts file: every table that it has takes the place of the built-in one.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct PartsFile {
    rate: Option<Vec<RateEntry>>,
    splitter: Option<Vec<SplitterEntry>>,
    duplex_fibre_cost_usd: Option<f64>,
    switch_ports: Option<u32>,
    forwarding_ns: Option<f64>,
    propagation_ns: Option<f64>,
    packet_bytes: Option<u32>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RateEntry {
    gbps: u32,
    port_power_w: f64,
    port_cost_usd: f64,
    transceiver_power_w: f64,
    transceiver_cost_usd: f64,
    transceiver_budget_db: f64,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct SplitterEntry {
    fanout: u32,
    loss_db: f64,
    cost_usd: f64,
}

impl PartsFile {
    fn apply(self, catalogue: &mut Catalogue) {
        if let Some(rates) = self.rate {
            let part = |entry: RateEntry| RateParts {
                gbps: entry.gbps,
                port_power_w: entry.port_power_w,
                port_cost_usd: entry.port_cost_usd,
                transceiver_power_w: entry.transceiver_power_w,
                transceiver_cost_usd: entry.transceiver_cost_usd,
                transceiver_budget_db: entry.transceiver_budget_db,
            };
            catalogue.rates = rates.into_iter().map(part).collect();
        }
        if let Some(splitters) = self.splitter {
            let part = |entry: SplitterEntry| SplitterPart {
                fanout: entry.fanout,
                loss_db: entry.loss_db,
                cost_usd: entry.cost_usd,
            };
            catalogue.splitters = splitters.into_iter().map(part).collect();
        }
        let set = |slot: &mut f64, value: Option<f64>| *slot = value.unwrap_or(*slot);
        set(&mut catalogue.duplex_fibre_cost_usd, self.duplex_fibre_cost_usd);
        set(&mut catalogue.forwarding_ns, self.forwarding_ns);
        set(&mut catalogue.propagation_ns, self.propagation_ns);
        catalogue.switch_ports = self.switch_ports.unwrap_or(catalogue.switch_ports);
        catalogue.packet_bytes = self.packet_bytes.unwrap_or(catalogue.packet_bytes);
    }
}
