//! `polycast plan cost`: ports, power and price of fabrics that reach every rack (Shufflecast, section 5).

use super::advise::grouped;
use super::{Answer, PlanError, parts};
use clap::Args;
use polycast::table::Table;
use polycast_planning::economics::{self, Bill, LineRate};
use serde_json::{Value, json};
use std::path::PathBuf;

pub(super) const EXAMPLES: &str = "\
Examples:
  polycast plan cost --tors 192 --rate 10g
  polycast plan cost --tors 192 --rate 400g --parts parts.toml

docs/planning.md has the keys of a parts file.";

/// Arguments of `plan cost`.
#[derive(Args, Clone, Debug)]
pub(crate) struct CostArgs {
    /// Racks to reach
    #[arg(long)]
    pub tors: u32,
    /// Line rate: 10g, 25g or 100g; with --parts any that they list
    #[arg(long)]
    pub rate: String,
    /// Prices and powers of parts, instead of the built-in ones
    #[arg(long, value_name = "FILE.toml")]
    pub parts: Option<PathBuf>,
    /// Ports of a switch of the packet core
    #[arg(long, value_name = "PORTS")]
    pub switch_ports: Option<u32>,
}

pub(super) fn plan(args: &CostArgs) -> Result<Answer, PlanError> {
    let mut catalogue = parts::catalogue(args.parts.as_deref())?;
    let gbps = match args.parts {
        Some(_) => {
            // With parts of one's own, any line rate that they list will do.
            let number = args.rate.trim_end_matches(|c: char| c.is_ascii_alphabetic());
            number.parse().map_or_else(|_| args.rate.parse().map(LineRate::gbps), Ok)?
        }
        None => args.rate.parse::<LineRate>()?.gbps(),
    };
    if let Some(ports) = args.switch_ports {
        catalogue.switch_ports = ports;
    }
    let mut bills = economics::compare(&catalogue, args.tors, gbps)?;
    let blast = economics::blast(&catalogue, args.tors, gbps);
    bills.extend(blast.clone());
    let fabrics: Vec<Value> = bills
        .iter()
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
    let mut text = format!("{} ToRs at {gbps} Gbit/s\n{}", args.tors, people(&bills));
    if let Err(why) = &blast {
        document["blast_refused"] = json!(why.to_string());
        text += &format!("blast: {why}\n");
    }
    if let Some(network) = economics::instance(args.tors) {
        let per_tor = economics::deployment_cost_per_tor_usd(&catalogue, &network, gbps)?;
        document["shufflecast_deployment_usd_per_tor"] = json!(per_tor);
        text += &format!("Adding Shufflecast costs {} USD a ToR.\n", grouped(per_tor));
    }
    Ok(Answer { document, text })
}

/// The bills side by side: a column a fabric.
fn people(bills: &[Bill]) -> String {
    let mut heads = vec![String::new()];
    heads.extend(bills.iter().map(|bill| format!(">{}", bill.name)));
    let heads: Vec<&str> = heads.iter().map(String::as_str).collect();
    let mut table = Table::new(&heads);
    let mut row = |what: &str, value: &dyn Fn(&Bill) -> String| {
        table.row(std::iter::once(what.to_string()).chain(bills.iter().map(value)));
    };
    row("active ports", &|bill| grouped(bill.ports.into()));
    row("transceivers", &|bill| grouped(bill.transceivers.into()));
    row("splitters", &|bill| grouped(bill.splitters.into()));
    row("fibres of 100 m", &|bill| grouped(bill.duplex_fibres));
    row("power, W", &|bill| grouped(bill.power_w));
    row("price, USD", &|bill| grouped(bill.cost_usd));
    row("latency, us", &|bill| format!("{:.2}", bill.latency_ns / 1e3));
    let instances = bills.iter().map(|bill| format!("{}: {}\n", bill.name, bill.instance));
    table.text() + &instances.collect::<String>()
}
