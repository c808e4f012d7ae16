//! `polycast plan shufflecast`: relays of a p, k-Shufflecast, and its rules after relays have failed (Shufflecast, section 3).

use super::PlanError;
use clap::Args;
use polycast_planning::relays;
use polycast_topology::Shufflecast;
use serde_json::{Value, json};
use std::collections::BTreeSet;

/// The most ToRs whose relays are all listed: the list grows with the square of it.
const LISTED_TORS_MAX: u32 = 2048;

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

pub(super) fn plan(args: &ShufflecastArgs) -> Result<Value, PlanError> {
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
        return Ok((0..network.tors()).map(of).collect());
    };
    let rules = |set: &BTreeSet<(u32, u32)>| -> Vec<Value> {
        set.iter().map(|&(relay, source)| json!({ "relay": relay, "source": source })).collect()
    };
    let mut document = of(source);
    document["rules_per_tor_max"] = json!(recovery.rules_per_tor_max(&network));
    document["activated"] = json!(rules(&recovery.activated));
    document["deactivated"] = json!(rules(&recovery.deactivated));
    Ok(document)
}
