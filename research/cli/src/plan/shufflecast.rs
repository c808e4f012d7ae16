//! `polycast plan shufflecast`: relays of a p, k-Shufflecast, and its rules after relays have failed
//! (Shufflecast, section 3).

use super::dot::{DotArgs, Picture, Role};
use super::{Answer, PlanError, names};
use clap::Args;
use polycast::table::{Table, paragraph};
use polycast_planning::relays::{self, Recovery};
use polycast_topology::{Shufflecast, Wiring};
use serde_json::{Value, json};
use std::collections::BTreeSet;

/// The most ToRs whose relays are all listed: the list grows with the square of it.
const LISTED_TORS_MAX: u32 = 2048;

pub(super) const EXAMPLES: &str = "\
Examples:
  polycast plan shufflecast --topology shufflecast:2,3 --source 0 --failed 8
  polycast plan shufflecast --p 2 --k 2            (all sources)
  polycast plan shufflecast --p 2 --tors 15        (how to cable any number of ToRs, row by row)";

/// Arguments of `plan shufflecast`.
#[derive(Args, Clone, Debug)]
pub(crate) struct ShufflecastArgs {
    /// The network in the words of `simulate` and `lab`: shufflecast:p,k, hosts may follow
    #[arg(long, value_name = "shufflecast:P,K", conflicts_with_all = ["p", "k", "tors"])]
    pub topology: Option<String>,
    /// Outputs of a splitter
    #[arg(long, required_unless_present = "topology")]
    pub p: Option<u32>,
    /// Columns; with --tors as few as suffice, without it
    #[arg(long, required_unless_present_any = ["tors", "topology"])]
    pub k: Option<u32>,
    /// In place of relays: how this many ToRs are cabled. Where the network has more, some ToRs stand for
    /// several
    #[arg(long, value_name = "N", conflicts_with_all = ["source", "failed", "dot"])]
    pub tors: Option<u32>,
    /// The ToR that sends; without it all are listed
    #[arg(long, value_name = "TOR")]
    pub source: Option<u64>,
    /// ToRs that cannot relay
    #[arg(long, value_name = "TOR,TOR", value_delimiter = ',')]
    pub failed: Vec<u64>,
    #[command(flatten)]
    picture: DotArgs,
}

pub(super) fn plan(args: &ShufflecastArgs) -> Result<Answer, PlanError> {
    let p = args.p.unwrap_or_default();
    if let Some(tors) = args.tors {
        let wiring = match args.k {
            Some(k) => Wiring::new(Shufflecast::new(p, k)?, tors)?,
            None => Wiring::smallest(tors, p)?,
        };
        return cable(&wiring);
    }
    let network = match &args.topology {
        Some(text) => named(text)?,
        None => Shufflecast::new(p, args.k.unwrap_or(1))?,
    };
    let tor = |tor: &u64| relays::checked_tor(&network, *tor);
    let failed: BTreeSet<u32> = args.failed.iter().map(tor).collect::<Result<_, _>>()?;
    let source = args.source.as_ref().map(tor).transpose()?;
    let recovery = relays::recover(&network, &failed);
    if let Some(path) = &args.picture.dot {
        picture(&network, &recovery, source).write(path)?;
    }
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

/// Reads a network as scenarios and labs write it. Hosts, of which this plan knows nothing, may follow.
fn named(text: &str) -> Result<Shufflecast, PlanError> {
    let wrong = || PlanError::NotShufflecast(text.to_string());
    let sizes: Vec<&str> = text.strip_prefix("shufflecast:").ok_or_else(wrong)?.split(',').collect();
    let number = |size: &str| size.trim().parse::<u32>().map_err(|_| wrong());
    match sizes[..] {
        [p, k] | [p, k, _] => Ok(Shufflecast::new(number(p)?, number(k)?)?),
        _ => Err(wrong()),
    }
}

/// Draws the ToRs that the splitters of a source's relays feed; without a source, those of all ToRs.
fn picture(network: &Shufflecast, recovery: &Recovery, source: Option<u32>) -> Picture {
    let name = |tor: u32| format!("tor{tor}");
    let (p, k) = (network.fanout(), network.columns());
    let title = source.map_or(String::new(), |source| format!(", relays of tor{source}"));
    let mut picture = Picture::new(&format!("{p},{k}-Shufflecast{title}"));
    let relays: BTreeSet<u32> = match source {
        Some(source) => recovery.relay_set(network, source).into_iter().collect(),
        None => (0..network.tors()).filter(|tor| !recovery.failed.contains(tor)).collect(),
    };
    for tor in 0..network.tors() {
        let role = match tor {
            tor if Some(tor) == source => Role::Source,
            tor if recovery.failed.contains(&tor) => Role::Broken,
            tor if relays.contains(&tor) => Role::Relay,
            _ => Role::Receiver,
        };
        picture.node(&name(tor), role);
    }
    for &relay in &relays {
        let word = format!("splitter{relay}");
        network.children(relay).for_each(|tor| picture.arc(&name(relay), &name(tor), 0, &word));
    }
    picture
}

/// Lists the cables of physical ToRs (Shufflecast, sections III-A1 and IV-B). The racks of a column stand in
/// a row; the splitter of a ToR is at the ToR, and fibres from one row to the next are bundled by the
/// partition that they come from. A ToR that stands for several has as many splitters. The fibre into a
/// splitter shares a port with the first from another one.
fn cable(wiring: &Wiring) -> Result<Answer, PlanError> {
    let network = wiring.logical();
    if network.tors() > LISTED_TORS_MAX {
        return Err(PlanError::TooManySources(network.tors()));
    }
    let p = network.fanout();
    // Which of its ToR's a logical ToR is.
    let nth = |logical: u32| logical / wiring.tors();
    let port = |logical: u32, partition: u32| nth(logical) * p + partition;
    let mut table = Table::new(&["row", "bundle", "splitter", "from", "to"]);
    let mut splitters = Vec::new();
    for logical in 0..network.tors() {
        let (row, partition) = (network.column(logical), network.partition(logical));
        let next = (row + 1) % network.columns();
        let (tor, out) = (wiring.physical(logical), port(logical, 0));
        let ends: Vec<(u32, u32)> =
            network.children(logical).map(|child| (wiring.physical(child), port(child, partition))).collect();
        let bundle = format!("row {row} to row {next}, partition {partition}");
        let to = ends.iter().map(|(tor, port)| format!("tor{tor}:{port}"));
        table.row([
            row.to_string(),
            bundle.clone(),
            format!("splitter{logical}"),
            format!("tor{tor}:{out}"),
            names::list(to),
        ]);
        let end = |(tor, port): &(u32, u32)| json!({ "tor": tor, "port": port });
        splitters.push(json!({
            "splitter": logical,
            "row": row,
            "bundle": bundle,
            "from": end(&(tor, out)),
            "to": ends.iter().map(end).collect::<Vec<_>>(),
        }));
    }
    let document = json!({
        "tors": wiring.tors(),
        "logical_tors": network.tors(),
        "p": p,
        "k": network.columns(),
        "doubled": wiring.doubled(),
        "splitters": splitters,
    });
    let head = format!(
        "{} ToRs as a {p},{}-Shufflecast of {} logical ToRs; {} of them have more than one splitter. \
         tor3:1 is port 1 of tor3, and ports count from 0 at each ToR; the fibre into a splitter and the first from another one share a port.",
        wiring.tors(),
        network.columns(),
        network.tors(),
        wiring.doubled()
    );
    Ok(Answer { document, text: paragraph(&head, 0) + &table.text() })
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn networks_have_the_names_of_scenarios_and_labs() {
        for text in ["shufflecast:2,3", "shufflecast:2,3,4", "shufflecast:2,3,hosts=4"] {
            assert_eq!(named(text).ok(), Shufflecast::new(2, 3).ok(), "{text}");
        }
        for text in ["bcube:4,2", "shufflecast:2", "shufflecast:2,k", "shufflecast:2,3,4,5"] {
            let error = named(text).unwrap_err().to_string();
            assert!(error.contains("write shufflecast:p,k"), "{error}");
        }
        assert!(named("shufflecast:0,3").is_err());
    }
}
