//! `polycast plan shufflecast`: relays of a p, k-Shufflecast, and its rules after relays have failed (Shufflecast, section 3).

use super::{Answer, PlanError, names};
use crate::table::{Table, paragraph};
use clap::Args;
use polycast_planning::relays::{self, Recovery};
use polycast_topology::Shufflecast;
use serde_json::{Value, json};
use std::collections::BTreeSet;

/// The most ToRs whose relays are all listed: the list grows with the square of it.
const LISTED_TORS_MAX: u32 = 2048;

pub(super) const EXAMPLES: &str = "\
Examples:
  polycast plan shufflecast --p 2 --k 3 --source 0 --failed 8
  polycast plan shufflecast --p 2 --k 2            (all sources)";

/// Arguments of `plan shufflecast`.
#[derive(Args, Clone, Debug)]
pub struct ShufflecastArgs {
    /// Outputs of a splitter
    #[arg(long)]
    pub p: u32,
    /// Columns
    #[arg(long)]
    pub k: u32,
    /// The ToR that sends; without it all are listed
    #[arg(long, value_name = "TOR")]
    pub source: Option<u64>,
    /// ToRs that cannot relay
    #[arg(long, value_name = "TOR,TOR", value_delimiter = ',')]
    pub failed: Vec<u64>,
}

pub(super) fn plan(args: &ShufflecastArgs) -> Result<Answer, PlanError> {
    let network = Shufflecast::new(args.p, args.k)?;
    let tor = |tor: &u64| relays::checked_tor(&network, *tor);
    let failed: BTreeSet<u32> = args.failed.iter().map(tor).collect::<Result<_, _>>()?;
    let source = args.source.as_ref().map(tor).transpose()?;
    let recovery = relays::recover(&network, &failed);
    let of = |source: u32| {
        let reach = recovery.reach(&network, source);
        let before = relays::reach_before_recovery(&network, source, &failed);
        json!({
            "source": source,
            "tors": network.tors(),
            "max_hops": reach.max_hops(),
            "relays": recovery.relay_set(&network, source),
            "unreachable": reach.unreachable(),
            "unreachable_before_recovery": before.unreachable(),
        })
    };
    let Some(source) = source else {
        if network.tors() > LISTED_TORS_MAX {
            return Err(PlanError::TooManySources(network.tors()));
        }
        let text = all(&network, &recovery);
        return Ok(Answer { document: (0..network.tors()).map(of).collect(), text });
    };
    let rules = |set: &BTreeSet<(u32, u32)>| -> Vec<Value> {
        set.iter().map(|&(relay, source)| json!({ "relay": relay, "source": source })).collect()
    };
    let mut document = of(source);
    document["rules_per_tor_max"] = json!(recovery.rules_per_tor_max(&network));
    document["activated"] = json!(rules(&recovery.activated));
    document["deactivated"] = json!(rules(&recovery.deactivated));
    Ok(Answer { document, text: one(&network, &recovery, source) })
}

fn tors(list: impl IntoIterator<Item = u32>) -> String {
    names::list(list.into_iter().map(|tor| format!("tor{tor}")))
}

fn head(network: &Shufflecast, failed: &BTreeSet<u32>) -> String {
    let size = format!("{},{}-Shufflecast of {} ToRs", network.fanout(), network.columns(), network.tors());
    let failed = failed.iter().copied();
    let text = if failed.len() == 0 { size } else { format!("{size}; these cannot relay: {}", tors(failed)) };
    paragraph(&text, 0)
}

/// A source for people.
fn one(network: &Shufflecast, recovery: &Recovery, source: u32) -> String {
    let reach = recovery.reach(network, source);
    let before = relays::reach_before_recovery(network, source, &recovery.failed);
    let mut table = Table::new(&["", ""]);
    let mut row = |what: &str, value: String| table.row([what.to_string(), value]);
    row("source", format!("tor{source}"));
    row("relays", tors(recovery.relay_set(network, source)));
    row("most hops", reach.max_hops().to_string());
    row("not reached", tors(reach.unreachable()));
    row("not reached before recovery", tors(before.unreachable()));
    row("most rules in a ToR", recovery.rules_per_tor_max(network).to_string());
    let mut text = head(network, &recovery.failed) + table.text().trim_start();
    let mut changes = Table::new(&["relay", "rule", "for sources"]);
    for (word, rules) in [("on", &recovery.activated), ("off", &recovery.deactivated)] {
        let relays: BTreeSet<u32> = rules.iter().map(|(relay, _)| *relay).collect();
        for relay in relays {
            let sources = rules.iter().filter(|(other, _)| *other == relay).map(|(_, source)| *source);
            changes.row([format!("tor{relay}"), word.into(), tors(sources)]);
        }
    }
    if !changes.is_empty() {
        text += &format!("\nRules that change\n{}", changes.text());
    }
    text
}

/// All sources for people.
fn all(network: &Shufflecast, recovery: &Recovery) -> String {
    let broken = !recovery.failed.is_empty();
    let mut heads = vec!["source", ">most hops"];
    if broken {
        heads.extend([">not reached", ">before recovery"]);
    }
    heads.push("relays");
    let mut table = Table::new(&heads);
    for source in 0..network.tors() {
        let reach = recovery.reach(network, source);
        let before = relays::reach_before_recovery(network, source, &recovery.failed);
        let mut cells = vec![format!("tor{source}"), reach.max_hops().to_string()];
        if broken {
            cells.extend([reach.unreachable().len().to_string(), before.unreachable().len().to_string()]);
        }
        cells.push(tors(recovery.relay_set(network, source)));
        table.row(cells);
    }
    head(network, &recovery.failed) + &table.text()
}
