//! Small requests of a leader to acceptors, of which it waits for a majority: by unicast, and as messages of
//! a stream over the lab's fabric; and as Paxos by UDP, by unicast and over a group (Shufflecast section
//! VI-D, figure 8(d)).

use super::streams::{Spread, measure};
use crate::args::bench::BenchReplicationArgs;
use polycast::exit::{Exit, Failure};
use polycast::output::{self, Format};
use polycast::table::Table;
use polycast_lab::measure::{Measured, Measurement, Replicated};
use polycast_lab::spec::Spec;
use serde_json::{Value, json};

/// `polycast bench replication`
pub(super) fn run(args: &BenchReplicationArgs, format: Format) -> Result<Exit, Failure> {
    let most = args.acceptors.iter().copied().max().unwrap_or(0);
    for spec in &args.specs {
        let hosts = spec.network.hosts();
        if most >= hosts {
            return Err(Failure::input(format!(
                "{spec} has {hosts} hosts, one of which is the leader: it can have at most {} acceptors",
                hosts - 1
            )));
        }
    }
    let (mut documents, mut text) = (Vec::new(), String::new());
    for spec in &args.specs {
        output::say(&format!("sending requests in {spec}"));
        let ways = replicate(spec, &args.acceptors, args.requests, args.bytes)?;
        let (document, table) = report(spec, args.requests, &ways)?;
        documents.push(document);
        text += &table;
    }
    output::result(format, &documents, &text)?;
    Ok(Exit::Done)
}

/// Measures in a lab of its own.
pub(crate) fn replicate(
    spec: &Spec,
    acceptors: &[u32],
    requests: u32,
    bytes: usize,
) -> Result<Vec<Replicated>, Failure> {
    let what = Measurement::Replication { acceptors: acceptors.to_vec(), requests: requests.into(), bytes };
    let Measured::Replication(ways) = measure(spec, &what)? else {
        return Err(Failure::unexpected("the lab has measured something else"));
    };
    Ok(ways)
}

fn report(spec: &Spec, requests: u32, ways: &[Replicated]) -> Result<(Value, String), Failure> {
    let head = ["acceptors", "way", ">median us", ">p90", ">p99", ">max", ">requests/s", ">said again"];
    let mut table = Table::new(&head);
    let mut rows = Vec::new();
    for Replicated { way, acceptors, latency_ns, seconds, answered, again } in ways {
        let us = Spread::of(latency_ns.iter().map(|ns| *ns as f64 / 1e3));
        let us = us.ok_or_else(|| Failure::unexpected("no request was answered"))?;
        let rate = latency_ns.len() as f64 / seconds.max(1e-9);
        let mut cells = vec![acceptors.to_string(), way.clone()];
        cells.extend([us.median, us.p90, us.p99, us.max, rate].map(|value| format!("{value:.0}")));
        cells.push(again.to_string());
        table.row(cells);
        rows.push(json!({
            "way": way, "acceptors": acceptors, "latency_us": us, "requests_per_s": rate, "answered": answered, "said_again": again,
        }));
    }
    let document = json!({ "lab": spec.to_string(), "requests": requests, "ways": rows });
    Ok((document, format!("{spec}: {requests} requests, one after the other\n{}", table.text())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_way_has_a_line_with_its_tail_and_rate() {
        let way = |way: &str, scale| Replicated {
            way: way.into(),
            acceptors: 3,
            latency_ns: (1..=100u64).map(|at| at * scale).collect(),
            seconds: 0.5,
            answered: vec![100; 3],
            again: 1,
        };
        let spec = "bridge:4".parse().unwrap();
        let (document, text) =
            report(&spec, 100, &[way("unicast", 1_000), way("ip-multicast", 3_000)]).unwrap();
        assert_eq!(document["ways"][0]["latency_us"]["p99"], 99.0);
        assert_eq!(document["ways"][1]["latency_us"]["median"], 150.0);
        assert_eq!(document["ways"][1]["requests_per_s"], 200.0);
        assert!(text.contains("ip-multicast") && text.contains("297"), "{text}");
        assert!(report(&spec, 0, &[Replicated { latency_ns: Vec::new(), ..way("unicast", 1) }]).is_err());
    }
}
