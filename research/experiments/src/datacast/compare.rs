//! Section 7: Datacast beside BitTorrent and content-centric networking over one tree of shortest paths.

use polycast_protocol::pull::{Hop, RateConfig, Route};
use polycast_simulator::flow::torrent::{TorrentConfig, download};
use polycast_simulator::packet::{LinkId, NodeId};
use polycast_topology::{CompactGraph, Graph, Network, Node};

use super::bed::{RECEIVERS, Setting};
use crate::Row;
use crate::random::Random;
use crate::report::{Axis, BarSeries, Figure, ItemError, Options, Outcome};

/// The ways of section 7's tree, from the receivers 02, 10, 21, 23, 31, 33 to server 00.
///
/// `00 -> <0,0> -> 01 -> <1,1> -> 21, 31; <0,0> -> 02; <0,0> -> 03 -> <1,3> -> 23, 33; 00 -> <1,0> -> 10`.
const CCN_WAYS: [&[Node]; 6] = [
    &[2, 16, 0],
    &[4, 20, 0],
    &[9, 21, 1, 16, 0],
    &[11, 23, 3, 16, 0],
    &[13, 21, 1, 16, 0],
    &[15, 23, 3, 16, 0],
];

/// Bytes of a piece; torrents of some gigabytes have a thousand pieces or two.
const PIECE_BYTES: u64 = 4_000_000;

/// Parameters of BitTorrent that the paper leaves open.
#[derive(Clone, Copy, Debug)]
struct Reading {
    piece_bytes: u64,
    slots: u32,
    rarest_first: bool,
    /// Rate at which a server forwards others' packets, where it does so by software.
    forwards_bps: Option<f64>,
}

/// BitTorrent's usual settings over links that are the only limit.
const USUAL: Reading = Reading { piece_bytes: PIECE_BYTES, slots: 4, rarest_first: true, forwards_bps: None };

/// Other readings. The paper's servers forward 870 Mb/s by software.
const READINGS: [(&str, Reading); 5] = [
    ("pieces of 256 KiB", Reading { piece_bytes: 256 << 10, ..USUAL }),
    ("pieces in any order", Reading { rarest_first: false, ..USUAL }),
    ("two slots", Reading { slots: 2, ..USUAL }),
    ("six slots", Reading { slots: 6, ..USUAL }),
    ("servers forward 870 Mb/s", Reading { forwards_bps: Some(870e6), ..USUAL }),
];

/// Results of a scheme.
struct Scheme {
    finish_s: f64,
    first_s: f64,
    /// Data that the source has sent on its links, and the sum over all links, in GB.
    source_gb: f64,
    all_gb: f64,
    /// Interests that came to the source, where there are any.
    interests: Option<u64>,
}

/// Finish time, stress of the source's links and of the network, for all three.
///
/// # Errors
/// If a transfer does not end.
pub fn comparison(options: &Options) -> Result<Outcome, ItemError> {
    let setting = Setting::testbed(options.quick, options.seed);
    let scale = if options.quick { 10.0 } else { 1.0 };
    let schemes = [datacast(&setting)?, ccn(&setting)?, bit_torrent(&setting, USUAL, options.seed)?];
    let papers = [
        [Some(23.0), None, Some(53.9), None],
        [Some(39.1), None, None, None],
        [Some(52.0), Some(9.25), Some(72.5), Some(1.35)],
    ];
    let mut outcome = Outcome::default();
    for ((name, scheme), paper) in ["Datacast", "CCN", "BitTorrent"].into_iter().zip(&schemes).zip(papers) {
        let mut row = |what: &str, paper, ours, unit: &str| {
            outcome.rows.push(Row::new(format!("{name}: {what}"), paper, ours, unit));
        };
        row("finish", paper[0], scheme.finish_s * scale, "s");
        row("sent by the source", paper[1], scheme.source_gb * scale, "GB");
        row("bytes on all links", paper[2], scheme.all_gb * scale, "GB");
        row("bytes on all links, Datacast's being 1", paper[3], scheme.all_gb / schemes[0].all_gb, "x");
    }
    if let Some(interests) = schemes[0].interests {
        let name = "Datacast: interests that came to the source";
        let note = "the paper's size of packets is not printed; 8000 bytes here were chosen by this number";
        let row = Row::new(name, Some(512_129.0), interests as f64 * scale, "interests");
        outcome.rows.push(row.note(note));
    }
    let first = schemes[2].first_s * scale;
    outcome.rows.push(Row::new("BitTorrent: first receiver's finish", Some(41.0), first, "s"));
    let ratio = |at: usize| schemes[at].finish_s / schemes[0].finish_s;
    outcome.rows.push(Row::new("CCN's finish, Datacast's being 1", Some(1.7), ratio(1), "x"));
    outcome.rows.push(Row::new("BitTorrent's finish, Datacast's being 1", Some(2.3), ratio(2), "x"));
    for (name, reading) in READINGS {
        let scheme = bit_torrent(&setting, reading, options.seed)?;
        let row = |what: &str, paper, ours, unit: &str| {
            Row::new(format!("BitTorrent, {name}: {what}"), Some(paper), ours, unit)
        };
        outcome.rows.push(row("finish, Datacast's being 1", 2.3, scheme.finish_s / schemes[0].finish_s, "x"));
        outcome.rows.push(row("sent by the source", 9.25, scheme.source_gb * scale, "GB"));
        outcome.rows.push(row("bytes on all links", 72.5, scheme.all_gb * scale, "GB"));
    }
    let names = ["Datacast", "CCN", "BitTorrent"].map(String::from).to_vec();
    let ours =
        BarSeries::ours("simulated", schemes.iter().map(|scheme| Some(scheme.finish_s * scale)).collect());
    let paper = BarSeries::paper("simulated", papers.iter().map(|paper| paper[0]).collect());
    let y = Axis::linear("finish of 4 GB", "s");
    outcome.figures.push(Figure::bars(
        "comparison",
        "4 GB to six receivers",
        "",
        y,
        names,
        vec![ours, paper],
    ));
    let note = "The test bed's servers forward by software at 870 Mb/s a tree; here links of 1 Gb/s are the only limit, so \
                that everything ends sooner. BitTorrent is a model of pieces, choking and fair shares \
                (simulator::flow::torrent) without its protocol's start-up, requests and disks. Its peers reach each \
                other over shortest paths; where there are two, a pair draws one.";
    Ok(outcome.note(note))
}

fn datacast(setting: &Setting) -> Result<Scheme, ItemError> {
    packets(setting, |_, _| Ok(()))
}

/// Interests over one tree of shortest paths, every node of which keeps packets; the source sends as fast as
/// it is asked.
fn ccn(setting: &Setting) -> Result<Scheme, ItemError> {
    let rate = RateConfig { initial_bps: setting.link_bps, least_bps: setting.link_bps, ..setting.rate };
    let one = Setting { trees: 1, rate, ..*setting };
    packets(&one, |topology, routes| {
        for (routes, way) in routes.iter_mut().zip(CCN_WAYS) {
            let port = |pair: &[Node]| topology.port_to(pair[0], pair[1]).map(|port| port as u8);
            let hop = |pair| Some(Hop { port: port(pair)?, non_branching: false });
            let hops: Option<Vec<Hop>> = way.windows(2).map(hop).collect();
            let hops = hops.ok_or_else(|| ItemError::Refused("a way has a gap".into()))?;
            let route = Route::new(&hops).map_err(|error| ItemError::Refused(error.to_string()))?;
            *routes = vec![Some(route)];
        }
        Ok(())
    })
}

/// Runs the machines on the test bed after a change to the routes.
fn packets(
    setting: &Setting,
    change: impl FnOnce(&Network, &mut Vec<Vec<Option<Route>>>) -> Result<(), ItemError>,
) -> Result<Scheme, ItemError> {
    let mut bed = setting.bed()?;
    change(bed.planner.network(), &mut bed.group.routes)?;
    bed.start();
    let run = bed.finish()?;
    let finishes = RECEIVERS.map(|receiver| {
        let (_, log) = bed.world.node(receiver).receiver(bed.group.transfer).expect("it is a receiver");
        log.finished_at.map_or(f64::INFINITY, |at| at.0 as f64 / 1e9)
    });
    let sent = |link: &LinkId| bed.net.counters(*link).bytes;
    let source: u64 = bed.net.links_from(NodeId(0)).iter().map(sent).sum();
    Ok(Scheme {
        finish_s: finishes.into_iter().fold(0.0, f64::max),
        first_s: finishes.into_iter().fold(f64::INFINITY, f64::min),
        source_gb: source as f64 / 1e9,
        all_gb: run.gb,
        interests: Some(run.trees.iter().map(|tree| tree.interests).sum()),
    })
}

fn bit_torrent(setting: &Setting, reading: Reading, seed: u64) -> Result<Scheme, ItemError> {
    let refused = |error: &dyn std::fmt::Display| ItemError::Refused(error.to_string());
    let topology: Network = "bcube:4,2".parse().map_err(|error| refused(&error))?;
    let (graph, servers) = (CompactGraph::new(&topology), topology.server_count());
    let mut members = vec![0];
    members.extend(RECEIVERS);
    let pieces = setting.bytes.div_ceil(reading.piece_bytes);
    // TCP segments as large as Datacast's packets, with 52 bytes of headers.
    let wire = reading.piece_bytes * (u64::from(setting.payload) + 52) / u64::from(setting.payload);
    let config = TorrentConfig {
        slots: reading.slots,
        rarest_first: reading.rarest_first,
        ..TorrentConfig::new(members.len() as u32, pieces as u32, wire, seed)
    };
    let mut random = Random::new(seed);
    let arcs = graph.arc_count();
    let path = |from: u32, to: u32| {
        let (from, to) = (members[from as usize], members[to as usize]);
        let mut links = shortest_path(&topology, &graph, from, to, &mut random);
        if reading.forwards_bps.is_some() {
            // Behind the arcs each server has one more: what it forwards.
            let through: Vec<Node> = links.iter().map(|&arc| graph.target(arc)).collect();
            links.extend(through.into_iter().filter(|&at| at < servers && at != to).map(|at| arcs + at));
        }
        links
    };
    let mut capacities = vec![setting.link_bps as f64; arcs as usize];
    if let Some(bps) = reading.forwards_bps {
        capacities.extend(vec![bps; servers as usize]);
    }
    let torrent = download(capacities, &config, path).map_err(|error| refused(&error))?;
    let finishes = torrent.finished_at[1..].iter().map(|at| at.0 as f64 / 1e9);
    Ok(Scheme {
        finish_s: finishes.clone().fold(0.0, f64::max),
        first_s: finishes.fold(f64::INFINITY, f64::min),
        source_gb: torrent.sent_bytes[0] as f64 / 1e9,
        all_gb: torrent.link_bytes[..arcs as usize].iter().sum::<u64>() as f64 / 1e9,
        interests: None,
    })
}

/// The arcs of a shortest path between two servers of BCube: their digits are made equal one after the other,
/// in an order that is drawn.
fn shortest_path(
    network: &Network,
    graph: &CompactGraph,
    from: Node,
    to: Node,
    random: &mut Random,
) -> Vec<u32> {
    let mut levels: Vec<u32> = (0..network.port_count(from)).collect();
    let count = levels.len();
    random.choose_first(&mut levels, count);
    let (mut arcs, mut at) = (Vec::new(), from);
    for level in levels {
        let switch = network.neighbor(at, level);
        // Of the servers at the switch the one that agrees with `to` in this digit.
        let next = (0..network.port_count(switch))
            .map(|port| network.neighbor(switch, port))
            .find(|&next| network.neighbor(next, level) == switch && digit(next, level) == digit(to, level))
            .expect("a switch of BCube has a server for every digit");
        if next != at {
            for (a, b) in [(at, switch), (switch, next)] {
                let port = network.port_to(a, b).expect("they are neighbours");
                arcs.push(graph.arcs(a).start + port);
            }
            at = next;
        }
    }
    arcs
}

/// Digit `level` of a server of BCube(4, k).
fn digit(server: Node, level: u32) -> u32 {
    server / 4u32.pow(level) % 4
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shortest_paths_correct_each_digit_once() {
        let network: Network = "bcube:4,2".parse().unwrap();
        let graph = CompactGraph::new(&network);
        let mut random = Random::new(1);
        for from in 0..16 {
            for to in 0..16 {
                let arcs = shortest_path(&network, &graph, from, to, &mut random);
                let differ = (0..2).filter(|&level| digit(from, level) != digit(to, level)).count();
                assert_eq!(arcs.len(), 2 * differ);
                assert_eq!(arcs.last().map_or(from, |&arc| graph.target(arc)), to);
            }
        }
    }

    #[test]
    fn datacast_is_faster_than_one_tree_and_than_a_swarm_and_loads_links_less() {
        let setting = Setting { bytes: 100_000_000, block_bytes: 5_000_000, ..Setting::testbed(true, 1) };
        let (datacast, ccn) = (datacast(&setting).unwrap(), ccn(&setting).unwrap());
        let swarm = bit_torrent(&setting, USUAL, 1).unwrap();
        // An interest a packet, and a few again where both trees had asked for one.
        let packets = setting.bytes.div_ceil(setting.payload.into());
        assert!((packets..packets + packets / 20).contains(&datacast.interests.unwrap()), "{packets}");
        assert!(ccn.finish_s > 1.7 * datacast.finish_s && swarm.finish_s > 1.2 * datacast.finish_s);
        assert!(swarm.all_gb > 1.1 * datacast.all_gb);
    }
}
