//! Figure 8 (a) and (b): what applications wait for, with the paper's sizes (section VI-D).

use polycast_types::Time;

use super::bed::{Bed, LINE, Over};
use crate::Row;
use crate::random::Random;
use crate::report::{Axis, BarSeries, Figure, ItemError, Options, Outcome};
use crate::traces::{LDA_BYTES, OVERHEAD, Site, Way, tpc_h_bytes};

/// Eight racks of two servers, of which one each is used, and a core of full bisection.
const SITE: Site = Site { racks: 8, servers: 2, server_bps: 10e9, core_bps: 20e9 };
/// The server of the master, then those of 14 executors, two on each.
const HOSTS: [u32; 15] = [0, 2, 2, 4, 4, 6, 6, 8, 8, 10, 10, 12, 12, 14, 14];
const MODEL: &str = "a model without software; the paper's has serializing and deserialization in both";

fn scale(options: &Options) -> u64 {
    if options.quick { 20 } else { 1 }
}

/// One object over the splitters, packet by packet, in seconds.
fn ours_s(bytes: u64, options: &Options) -> Result<f64, ItemError> {
    let mut bed = Bed::new(options.seed);
    bed.add(0, Over::Splitters, bytes, Some(LINE), Time::ZERO);
    bed.finish()
}

/// The seconds until every executor has read all objects, one after the other.
fn total_s(way: Way, site: &Site, sizes: &[u64], seed: u64) -> Result<f64, ItemError> {
    let mut random = Random::new(seed);
    let mut sum = 0.0;
    for &bytes in sizes {
        sum += way.seconds(site, &HOSTS, bytes, &mut random)?.into_iter().fold(0.0, f64::max);
    }
    Ok(sum)
}

/// Every way against ours, on both cores; `printed` are the paper's for Torrent and HTTP.
fn compared(
    what: &str,
    sizes: &[u64],
    ours_s: f64,
    printed: (f64, f64),
    options: &Options,
) -> Result<(Vec<Row>, Vec<BarSeries>), ItemError> {
    let mut rows = vec![Row::new(format!("{what}, ours"), None, ours_s * scale(options) as f64, "s")];
    let mut bars = vec![BarSeries::ours("Polycast", vec![Some(1.0), Some(1.0)])];
    for way in Way::ALL {
        let mut values = Vec::new();
        for (core, times) in [("", 1.0), (", core 10:1", 10.0)] {
            let seconds = total_s(way, &SITE.oversubscribed(times), sizes, options.seed)?;
            let paper = match way {
                Way::Torrent => Some(printed.0),
                Way::Http => Some(printed.1),
                _ => None,
            };
            let paper = paper.filter(|_| core.is_empty());
            let name = format!("{what}, {} against ours{core}", way.name());
            rows.push(Row::new(name, paper, seconds / ours_s, "x").note(MODEL));
            values.push(Some(seconds / ours_s));
        }
        bars.push(BarSeries::ours(way.name(), values));
    }
    bars.push(BarSeries::paper("Torrent", vec![Some(printed.0), None]));
    bars.push(BarSeries::paper("HTTP", vec![Some(printed.1), None]));
    Ok((rows, bars))
}

fn figure(name: &str, title: &str, bars: Vec<BarSeries>) -> Figure {
    let groups = ["core 1:1", "core 10:1"].map(String::from).to_vec();
    Figure::bars(name, title, "", Axis::linear("reading time, Polycast's being 1", "x"), groups, bars)
}

const NOTE: &str = "One master and seven servers with two executors each. Ours is one transfer to each server, packet by packet over splitters, \
                    which two executors share; the others are models at flow level, and send to every executor. How long queries and jobs \
                    run as a whole (the rest of (a), and (c)) is their own computing on the test bed.";

/// Figure 8 (a): LDA.
///
/// # Errors
/// If a transfer does not end.
pub(super) fn fig_8a(options: &Options) -> Result<Outcome, ItemError> {
    let bytes = LDA_BYTES / scale(options);
    let (rows, bars) = compared("LDA", &[bytes], ours_s(bytes, options)?, (3.25, 6.24), options)?;
    Ok(Outcome::from(rows).figure(figure("fig-8a", "LDA: reading 735 MB", bars)).note(NOTE))
}

/// Figure 8 (b): TPC-H.
///
/// # Errors
/// If a transfer does not end.
pub(super) fn fig_8b(options: &Options) -> Result<Outcome, ItemError> {
    let sizes: Vec<u64> = tpc_h_bytes().into_iter().map(|bytes| (bytes / scale(options)).max(1)).collect();
    // One of them packet by packet tells what each takes beyond its bytes.
    let probe = LDA_BYTES / scale(options);
    let line_s = |bytes: u64| 8.0 * OVERHEAD * bytes as f64 / LINE.0 as f64;
    let beyond_s = ours_s(probe, options)? - line_s(probe);
    let ours_s = sizes.iter().map(|&bytes| line_s(bytes) + beyond_s).sum();
    let (rows, bars) = compared("TPC-H, all objects", &sizes, ours_s, (2.7, 3.5), options)?;
    Ok(Outcome::from(rows).figure(figure("fig-8b", "TPC-H: reading all 58 objects", bars)).note(NOTE))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::Plot;

    #[test]
    fn executors_of_a_host_share_what_came_once() {
        let outcome = fig_8a(&Options { quick: true, seed: 1, threads: 1 }).unwrap();
        let Plot::Bars { series, .. } = &outcome.figures[0].plot else { panic!("bars are drawn") };
        assert_eq!((series[0].name.as_str(), series[0].values[0]), ("Polycast", Some(1.0)));
        let rows = outcome.rows;
        let of = |name: &str| rows.iter().find(|row| row.name == name).unwrap();
        // 14 copies leave the source's link where ours leaves one.
        let http = of("LDA, HTTP against ours");
        assert!((12.0..14.0).contains(&http.ours) && http.paper == Some(6.24), "{http:?}");
        let torrent = of("LDA, Torrent against ours");
        assert!(torrent.ours > 1.0 && torrent.ours < http.ours, "{torrent:?}");
    }
}
