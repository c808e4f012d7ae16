//! Figure 6: how long executors wait for what is broadcast to them, with the paper's sizes (section VI-B).

use polycast_protocol::push::{AttemptInterval, FullRate};
use polycast_types::Duration;

use super::{LINE, SETTLING_PARTS, Trial};
use crate::random::Random;
use crate::report::{Axis, Figure, ItemError, Options, Outcome};
use crate::traces::{LDA_BYTES, NOT_MEASURED, OVERHEAD, Site, WORD2VEC_BYTES, Way, quantile, tpc_h_bytes};
use crate::{Kind, Row};

/// The paper's test bed: 20 logical racks of two servers, and 20 Gbit/s from a rack to the core for those
/// that go over it.
const SITE: Site = Site { racks: 20, servers: 2, server_bps: 10e9, core_bps: 20e9 };
/// Iterations of Word2Vec and LDA.
const ITERATIONS: u32 = 10;

/// Objects that are broadcast: name, sizes in their order, figures with 10 and with 22 executors.
struct Workload {
    name: &'static str,
    sizes: Vec<u64>,
    figures: [&'static str; 2],
}

/// Name of the workload of tables.
const TPC_H: &str = "TPC-H";

/// Numbers that the paper prints: workload, executors, the way compared with, the share of the readings, the
/// improvement, and a note.
const PRINTED: [(&str, u32, Way, f64, f64, &str); 7] = [
    (TPC_H, 10, Way::Http, 0.6, 3.72, ""),
    (TPC_H, 10, Way::Http, 0.9, 2.85, ""),
    ("Word2Vec and LDA", 10, Way::Torrent, 0.4, 2.9, ""),
    ("Word2Vec and LDA", 10, Way::Torrent, 0.8, 2.9, ""),
    (TPC_H, 22, Way::Torrent, 1.0, 10.7, "the paper does not say against which way"),
    ("Word2Vec and LDA", 22, Way::Torrent, 0.4, 4.0, ""),
    ("Word2Vec and LDA", 22, Way::Torrent, 0.8, 3.6, ""),
];

/// Returns the divisor of sizes, for a quick run.
fn scale(options: &Options) -> u64 {
    if options.quick { 20 } else { 1 }
}

fn workloads(options: &Options) -> [Workload; 2] {
    let scaled = |bytes: u64| (bytes / scale(options)).max(1);
    let rounds = if options.quick { 1 } else { ITERATIONS };
    let models = (0..rounds).flat_map(|_| [WORD2VEC_BYTES, LDA_BYTES]).map(scaled).collect();
    [
        Workload {
            name: TPC_H,
            sizes: tpc_h_bytes().into_iter().map(scaled).collect(),
            figures: ["fig-6a", "fig-6c"],
        },
        Workload { name: "Word2Vec and LDA", sizes: models, figures: ["fig-6b", "fig-6d"] },
    ]
}

/// Returns the time of a transfer beyond its bytes at line rate, in seconds: circuits, attempts, patches and
/// the last messages.
fn beyond_bytes_s(receivers: u32, options: &Options) -> Result<f64, ItemError> {
    let (setup, bytes) = (Duration::from_millis(60), WORD2VEC_BYTES / scale(options));
    let trial = Trial {
        setup,
        settling: setup / SETTLING_PARTS,
        interval: AttemptInterval::Adaptive,
        full_rate: FullRate::Settled,
        receivers,
        bytes,
        seed: options.seed,
    };
    Ok(trial.run()?.total_s - line_s(bytes))
}

/// Returns the time that an object takes at line rate.
fn line_s(bytes: u64) -> f64 {
    8.0 * OVERHEAD * bytes as f64 / LINE.0 as f64
}

/// All readings of a workload by a way, in seconds; executors are placed anew for each object.
fn readings(
    way: Way,
    site: &Site,
    workload: &Workload,
    readers: u32,
    seed: u64,
) -> Result<Vec<f64>, ItemError> {
    let mut random = Random::new(seed);
    let mut servers: Vec<u32> = (0..site.racks * site.servers).collect();
    let mut all = Vec::new();
    for &bytes in &workload.sizes {
        random.choose_first(&mut servers, readers as usize + 1);
        let mut hosts = servers[..=readers as usize].to_vec();
        // A pipeline goes from rack to rack; the source stays the first.
        hosts[1..].sort_unstable();
        all.extend(way.seconds(site, &hosts, bytes, &mut random)?);
    }
    Ok(all)
}

/// Figure 6 (a) to (d).
///
/// # Errors
/// If a transfer does not end.
pub(super) fn fig_6(options: &Options) -> Result<Outcome, ItemError> {
    let mut outcome = Outcome::default();
    let seconds =
        |values: &[f64]| values.iter().map(|value| value * scale(options) as f64).collect::<Vec<f64>>();
    for (at, readers) in [10, 22].into_iter().enumerate() {
        let beyond_s = beyond_bytes_s(readers, options)?;
        let name = format!("{readers} executors: circuits, attempts and patches of ours beyond the bytes");
        outcome.rows.push(Row::new(name, None, 1e3 * beyond_s, "ms"));
        for workload in workloads(options) {
            let each = workload.sizes.iter().map(|&bytes| line_s(bytes) + beyond_s / scale(options) as f64);
            let ours: Vec<f64> = each.flat_map(|one| vec![one; readers as usize]).collect();
            let name = format!("{}, {readers} executors, ours: mean of all readings", workload.name);
            let mean_s = seconds(&ours).iter().sum::<f64>() / ours.len() as f64;
            let note = "one transfer packet by packet says what each takes beyond its bytes at line rate";
            outcome.rows.push(Row::new(name, None, mean_s, "s").kind(Kind::Computed).note(note));
            let mut samples = vec![("ours".to_string(), seconds(&ours))];
            for (core, times) in [("", 1.0), (", core 10:1", 10.0)] {
                let site = SITE.oversubscribed(times);
                for way in Way::ALL {
                    let theirs = readings(way, &site, &workload, readers, options.seed)?;
                    let title = format!("{}, {readers} executors{core}", workload.name);
                    let whose = (workload.name, readers, core);
                    outcome.rows.extend(rows(&title, way, &seconds(&theirs), &seconds(&ours), whose));
                    if core.is_empty() {
                        samples.push((way.name().to_string(), seconds(&theirs)));
                    }
                }
            }
            let title = format!("{}: reading times on {readers} executors, core 1:1", workload.name);
            let axis = Axis::log("reading time", "s");
            outcome.figures.push(Figure::cdf(
                workload.figures[at],
                &title,
                axis,
                "part of the readings",
                samples,
            ));
        }
    }
    let quick = if options.quick {
        " In a quick run sizes are a twentieth and times are given times twenty."
    } else {
        ""
    };
    Ok(outcome.note(format!(
        "Ours runs packet by packet over circuits that take 60 ms, once for 504 MB and each number of executors; the others are models at \
         flow level without any software. Reading times in the paper include deserialization, which is most of its Republic's and none of \
         ours, and its Torrent has the look-up of every block. So ours against Torrent is the network's part of the paper's improvement. \
         NORM is a tree over the packet core that sends 0.28 % again. TPC-H's sizes lie on a curve through what the paper prints: 58 \
         objects of 4 MB to 6.2 GB, 48.3 GB together.{quick}"
    )))
}

/// Returns the factors by which a way takes longer than ours at the shares that the paper prints, where ours
/// is more than arithmetic; and the mean of the way's readings in seconds.
fn rows(
    title: &str,
    way: Way,
    theirs: &[f64],
    ours: &[f64],
    (workload, readers, core): (&str, u32, &str),
) -> Vec<Row> {
    let model = "a model without software; the paper's has deserialization in both";
    let printed =
        PRINTED.iter().filter(|printed| core.is_empty() && printed.0 == workload && printed.1 == readers);
    let mut rows: Vec<Row> = printed
        .filter(|printed| printed.2 == way)
        .map(|&(.., share, paper, note)| {
            let name = format!("{title}, {} against ours, {:.0} %", way.name(), 100.0 * share);
            if way == Way::Http || workload == TPC_H {
                let why =
                    if note.is_empty() { NOT_MEASURED.into() } else { format!("{NOT_MEASURED}; {note}") };
                return Row::missing(name, Some(paper), "x", &why);
            }
            let row = Row::new(name, Some(paper), quantile(theirs, share) / quantile(ours, share), "x");
            row.note(if note.is_empty() { model } else { note })
        })
        .collect();
    let mean_s = theirs.iter().sum::<f64>() / theirs.len().max(1) as f64;
    let name = format!("{title}, {}: mean of all readings", way.name());
    rows.push(Row::new(name, None, mean_s, "s").note("a model without software"));
    rows
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_executors_widen_the_distance_as_in_the_paper() {
        let options = Options { quick: true, seed: 1, threads: 1 };
        let [_, models] = workloads(&options);
        let ratio = |readers| {
            let http = readings(Way::Http, &SITE, &models, readers, 1).unwrap();
            let ours: f64 = models.sizes.iter().map(|&bytes| line_s(bytes)).sum::<f64>() * f64::from(readers);
            http.iter().sum::<f64>() / ours
        };
        let (ten, more) = (ratio(10), ratio(22));
        assert!((9.5..10.5).contains(&ten) && (21.0..23.0).contains(&more), "{ten} {more}");
        let row = rows("t", Way::Torrent, &[2.0], &[1.0], ("Word2Vec and LDA", 22, ""));
        assert_eq!(row.iter().filter_map(|row| row.paper).collect::<Vec<_>>(), [4.0, 3.6]);
        assert!(
            rows("t", Way::Torrent, &[2.0], &[1.0], (TPC_H, 22, ", core 10:1"))
                .iter()
                .all(|row| row.paper.is_none())
        );
        // What is arithmetic has the paper's number, a reason and nothing of ours.
        for (way, workload, readers) in [(Way::Http, TPC_H, 10), (Way::Torrent, TPC_H, 22)] {
            let rows = rows("t", way, &[2.0], &[1.0], (workload, readers, ""));
            let papers: Vec<&Row> = rows.iter().filter(|row| row.paper.is_some()).collect();
            assert!(!papers.is_empty() && papers.iter().all(|row| row.is_missing && row.agrees().is_none()));
            assert_eq!(rows.last().map(|row| (row.ours, row.unit.as_str())), Some((2.0, "s")));
        }
    }
}
