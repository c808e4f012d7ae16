//! `polycast plan cost`: ports, power and price of fabrics that reach every rack (Shufflecast, section 5).

use super::parts::PartsFile;
use super::{PlanError, read};
use clap::Args;
use polycast_planning::economics::{self, Catalogue, LineRate};
use serde_json::{Value, json};
use std::path::PathBuf;

/// Arguments of `plan cost`.
#[derive(Args, Clone, Debug)]
pub struct CostArgs {
    /// Racks to reach
    #[arg(long)]
    pub tors: u32,
    /// Line rate: 10g, 25g or 100g
    #[arg(long)]
    pub rate: String,
    /// Prices and powers of parts, instead of the built-in ones
    #[arg(long, value_name = "FILE.toml")]
    pub parts: Option<PathBuf>,
    /// Ports of a switch of the packet core
    #[arg(long, value_name = "PORTS")]
    pub switch_ports: Option<u32>,
}

pub(super) fn plan(args: &CostArgs) -> Result<Value, PlanError> {
    let mut catalogue = Catalogue::default();
    let gbps = match &args.parts {
        Some(path) => {
            let wrong = |error: String| PlanError::Contents { path: path.clone(), error };
            let parts: PartsFile =
                toml::from_str(&read(path)?).map_err(|error| wrong(error.message().to_string()))?;
            parts.apply(&mut catalogue);
            // With parts of one's own, any line rate that they list will do.
            let number = args.rate.trim_end_matches(|c: char| c.is_ascii_alphabetic());
            number.parse().map_or_else(|_| args.rate.parse().map(LineRate::gbps), Ok)?
        }
        None => args.rate.parse::<LineRate>()?.gbps(),
    };
    if let Some(ports) = args.switch_ports {
        catalogue.switch_ports = ports;
    }
    let fabrics: Vec<Value> = economics::compare(&catalogue, args.tors, gbps)?
        .into_iter()
        .map(|bill| {
            json!({
                "name": bill.name,
                "instance": bill.instance,
                "ports": bill.ports,
                "transceivers": bill.transceivers,
                "splitters": bill.splitters,
                "duplex_fibres": bill.duplex_fibres,
                "power_w": bill.power_w,
                "cost_usd": bill.cost_usd,
                "latency_ns": bill.latency_ns,
            })
        })
        .collect();
    let mut document = json!({ "fabrics": fabrics });
    if let Some(network) = economics::instance(args.tors) {
        let per_tor = economics::deployment_cost_per_tor_usd(&catalogue, &network, gbps)?;
        document["shufflecast_deployment_usd_per_tor"] = json!(per_tor);
    }
    Ok(document)
}
