//! Figure 8 (a) and (b): what applications wait for, with the paper's sizes (section VI-D).

use polycast_types::Time;

use super::bed::{Bed, LINE, Over};
use crate::random::Random;
use crate::report::{Axis, BarSeries, Figure, ItemError, Options, Outcome};
use crate::traces::{LDA_BYTES, NOT_MEASURED, OVERHEAD, Site, Way, tpc_h_bytes};
use crate::{Kind, Row};

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

/// The seconds of every way on both cores, and the factors that the paper prints for Torrent and HTTP:
/// against ours where `ours` is simulated, and without a number of ours where that would be arithmetic.
fn compared(
    what: &str,
    sizes: &[u64],
    ours: (f64, Kind),
    printed: (f64, f64),
    options: &Options,
) -> Result<(Vec<Row>, Vec<BarSeries>), ItemError> {
    let whole = |seconds: f64| seconds * scale(options) as f64;
    let (ours_s, kind) = ours;
    let mut rows = vec![Row::new(format!("{what}, ours"), None, whole(ours_s), "s").kind(kind)];
    let mut bars = vec![BarSeries::ours("Polycast", vec![Some(whole(ours_s)); 2])];
    for way in Way::ALL {
        let mut values = Vec::new();
        for (core, times) in [("", 1.0), (", core 10:1", 10.0)] {
            let seconds = total_s(way, &SITE.oversubscribed(times), sizes, options.seed)?;
            let name = format!("{what}, {}{core}", way.name());
            rows.push(Row::new(name, None, whole(seconds), "s").note("a model without software"));
            values.push(Some(whole(seconds)));
        }
        let name = format!("{what}, {} against ours", way.name());
        let on_even_core = values[0].unwrap_or(f64::NAN);
        match way {
            Way::Torrent if kind == Kind::Simulated => {
                let row = Row::new(name, Some(printed.0), on_even_core / whole(ours_s), "x");
                rows.push(row.note(MODEL));
            }
            Way::Torrent => rows.push(Row::missing(name, Some(printed.0), "x", NOT_MEASURED)),
            Way::Http => rows.push(Row::missing(name, Some(printed.1), "x", NOT_MEASURED)),
            _ => {}
        }
        bars.push(BarSeries::ours(way.name(), values));
    }
    Ok((rows, bars))
}

fn figure(name: &str, title: &str, bars: Vec<BarSeries>) -> Figure {
    let groups = ["core 1:1", "core 10:1"].map(String::from).to_vec();
    Figure::bars(name, title, "", Axis::linear("reading time", "s"), groups, bars)
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
    let ours = (ours_s(bytes, options)?, Kind::Simulated);
    let (rows, bars) = compared("LDA", &[bytes], ours, (3.25, 6.24), options)?;
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
    let ours = (sizes.iter().map(|&bytes| line_s(bytes) + beyond_s).sum(), Kind::Computed);
    let (rows, bars) = compared("TPC-H, all objects", &sizes, ours, (2.7, 3.5), options)?;
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
        let rows = outcome.rows;
        let of = |name: &str| rows.iter().find(|row| row.name == name).unwrap();
        let ours = of("LDA, ours").ours;
        assert_eq!((series[0].name.as_str(), series[0].values[0]), ("Polycast", Some(ours)));
        // 14 copies leave the source's link where ours leaves one.
        let http = of("LDA, HTTP").ours / ours;
        assert!((12.0..14.0).contains(&http), "{http}");
        let torrent = of("LDA, Torrent against ours");
        assert!(torrent.ours > 1.0 && torrent.ours < http && torrent.paper == Some(3.25), "{torrent:?}");
        // That is arithmetic, and no factor to hold against the paper's.
        let http = of("LDA, HTTP against ours");
        assert!(http.is_missing && http.paper == Some(6.24) && http.agrees().is_none(), "{http:?}");
    }
}
