//! Figures 6 and 13: Datacast beside TCP, and after a link has failed.

use polycast_planning::trees::TreePlanner;
use polycast_protocol::pull::{ReceiverInput, plan_routes};
use polycast_simulator::packet::NodeId;
use polycast_simulator::packet::pull::FlowConfig;
use polycast_simulator::packet::tcp::{Growth, TcpConfig};
use polycast_topology::{Failures, Graph, Network, Node};
use polycast_types::{Duration, Time};

use super::bed::{Bed, RECEIVERS, Setting};
use super::transport::scale;
use crate::Row;
use crate::report::{Axis, Figure, ItemError, Mark, Options, Outcome, Series};

/// Rates over time, in Mb/s, from counters of bytes.
struct Meter {
    interval_s: f64,
    before: Vec<u64>,
    points: Vec<Vec<(f64, f64)>>,
}

impl Meter {
    fn new(interval_s: f64, counters: usize) -> Self {
        Meter { interval_s, before: vec![0; counters], points: vec![Vec::new(); counters] }
    }

    /// The rates of a counter over the paper's time, of which a second takes a `scale`th here.
    fn drawn(&self, name: &str, counter: usize, scale: f64) -> Series {
        let points = self.points[counter].iter().map(|(at, rate)| (at * scale, *rate)).collect();
        Series::ours(name, points).mark(Mark::Line)
    }

    fn read(&mut self, now_s: f64, counters: &[u64]) {
        for (at, &counter) in counters.iter().enumerate() {
            let rate = (counter - self.before[at]) as f64 * 8.0 / self.interval_s / 1e6;
            self.points[at].push((now_s, rate));
            self.before[at] = counter;
        }
    }

    /// The mean of a counter's rates between two times.
    fn mean(&self, counter: usize, from_s: f64, to_s: f64) -> f64 {
        let within: Vec<f64> = self.points[counter]
            .iter()
            .filter(|(at, _)| *at > from_s && *at <= to_s)
            .map(|(_, rate)| *rate)
            .collect();
        within.iter().sum::<f64>() / within.len().max(1) as f64
    }
}

/// A Reno connection that is open until it is told to end.
fn reno(
    nodes: &[Node],
    segment_bytes: u32,
    header_bytes: u32,
    receive_window: u64,
    bytes: u64,
) -> FlowConfig {
    FlowConfig {
        nodes: nodes.iter().map(|&node| NodeId(node)).collect(),
        tcp: TcpConfig { segment_bytes, receive_window, growth: Growth::Reno, ..TcpConfig::default() },
        header_bytes,
        bytes,
    }
}

fn open(bed: &mut Bed, config: &FlowConfig) -> Result<usize, ItemError> {
    let opened = bed.world.open_flow(&mut bed.net, config);
    opened.ok_or_else(|| ItemError::Refused("the path of the TCP connection has a gap".into()))
}

fn times_note(options: &Options) -> Option<&'static str> {
    options
        .quick
        .then_some("All takes a tenth of the paper's time; times are given times ten, in the drawing too.")
}

/// Figure 13: a connection of 200 MB from server 00 to 01 begins after two seconds of Tree A.
///
/// # Errors
/// If the bed cannot be made.
pub fn figure_13(options: &Options) -> Result<Outcome, ItemError> {
    let scale = scale(options) as u64;
    // ns-2's connections have a window of 20 packets of 1000 bytes and headers of 40.
    let ns2 = sharing_run(options, 16, reno(&[0, 16, 1], 1000, 40, 20_000, 200_000_000 / scale), scale)?;
    let mut outcome = Outcome::default();
    let credits_note = "w = 16, a TCP window of 20 packets of 1000 bytes as ns-2's is";
    outcome.rows.push(Row::new("TCP", Some(425.0), ns2.tcp_mbps, "Mb/s").note(credits_note));
    outcome.rows.push(Row::new("Datacast Tree A beside it", Some(557.0), ns2.tree_mbps, "Mb/s"));
    outcome.rows.push(Row::new("Tree A alone", None, ns2.alone_mbps, "Mb/s"));
    outcome.figures.push(ns2.figure);
    for (credits, window) in [(16, 65_536), (32, 20_000), (32, 65_536), (32, 1 << 20)] {
        let flow = reno(&[0, 16, 1], 1448, 52, window, 200_000_000 / scale);
        let run = sharing_run(options, credits, flow, scale)?;
        let name = format!("w = {credits}, TCP window of {window} bytes: TCP's part");
        let part = 100.0 * run.tcp_mbps / (run.tcp_mbps + run.tree_mbps);
        let note = format!("{:.0} and {:.0} Mb/s", run.tcp_mbps, run.tree_mbps);
        outcome.rows.push(Row::new(name, None, part, "%").note(note));
    }
    let note = "Both hold a window, TCP's and w, and share the link as their windows are to each other. The paper says \
                neither; with ns-2's own defaults its figures come out nearly.";
    outcome.notes.extend(times_note(options).map(String::from));
    Ok(outcome.note(note))
}

/// Throughput of Datacast and TCP in the paper while both run.
const PAPER_MBPS: [f64; 2] = [557.0, 425.0];

struct Shared {
    alone_mbps: f64,
    tree_mbps: f64,
    tcp_mbps: f64,
    figure: Figure,
}

fn sharing_run(options: &Options, credits: u32, flow: FlowConfig, scale: u64) -> Result<Shared, ItemError> {
    let base = Setting::appendix_b(options.quick, options.seed).gigabit();
    let begin_s = 2.0 / scale as f64;
    let mut bed = Setting { credits, ..base }.bed()?;
    bed.start();
    let step_s = 0.1 / scale as f64;
    let mut meter = Meter::new(step_s, 2);
    let (mut tcp, mut end_s) = (None, f64::INFINITY);
    for step in 1..=(120.0 * 10.0) as u64 {
        let now_s = step as f64 * step_s;
        let outcome = bed.until(Time((now_s * 1e9) as u64));
        let received = tcp.map_or(0, |number: usize| bed.world.flow(number).received());
        meter.read(now_s, &[bed.source(0).first_bytes, received]);
        if tcp.is_none() && now_s >= begin_s - step_s / 2.0 {
            tcp = Some(open(&mut bed, &flow)?);
        }
        if let Some(at) = tcp.and_then(|number| bed.world.flow(number).finished_at()) {
            end_s = end_s.min(at.0 as f64 / 1e9);
        }
        if outcome != polycast_simulator::packet::Outcome::Until || now_s > end_s + 10.0 * step_s {
            break;
        }
    }
    let until = end_s - step_s;
    let scale = scale as f64;
    let paper = |name, mbps| {
        Series::paper(name, vec![(begin_s * scale, mbps), (end_s * scale, mbps)]).mark(Mark::Line)
    };
    let series = vec![
        meter.drawn("Datacast Tree A", 0, scale),
        meter.drawn("TCP", 1, scale),
        paper("Datacast Tree A", PAPER_MBPS[0]),
        paper("TCP", PAPER_MBPS[1]),
    ];
    let (x, y) = (Axis::linear("time", "s"), Axis::linear("rate", "Mb/s").range(0.0, 1000.0));
    Ok(Shared {
        alone_mbps: meter.mean(0, step_s, begin_s),
        tree_mbps: meter.mean(0, begin_s + step_s, until),
        tcp_mbps: meter.mean(1, begin_s + step_s, until),
        figure: Figure::lines("fig-13", "Datacast and TCP on one link", x, y, series),
    })
}

/// Servers and switches of the path {20, <1,0>, 10, <0,1>, 13} that both connections take.
const TCP_PATH: [Node; 5] = [8, 20, 4, 17, 7];
/// Switch <0,3> and server 32.
const FAILED_LINK: (Node, Node) = (19, 14);

/// Figure 6: both trees while TCP connections of different windows come and go and a link fails.
///
/// # Errors
/// If the bed cannot be made, or the planner finds no second tree after the failure.
pub fn figure_6(options: &Options) -> Result<Outcome, ItemError> {
    let scale = scale(options);
    let seconds = |paper: f64| paper / scale;
    let base = Setting::testbed(false, options.seed);
    // More than can be sent in that time, in the paper's blocks.
    let bytes = (seconds(100.0) * 2e9 / 8.0) as u64;
    let mut bed = Setting { bytes, ..base }.bed()?;
    bed.start();
    let step_s = seconds(0.5);
    let mut meter = Meter::new(step_s, 5);
    let windows = [64 << 10, 128 << 10];
    let mut flows: Vec<usize> = Vec::new();
    let (mut failed, mut repaired) = (false, false);
    for step in 1..=190 {
        let now_s = f64::from(step) * step_s;
        bed.until(Time((now_s * 1e9) as u64));
        let received = |at: usize| flows.get(at).map_or(0, |&flow| bed.world.flow(flow).received());
        let behind = held_by(&bed, 2);
        meter.read(
            now_s,
            &[bed.source(0).first_bytes, bed.source(1).first_bytes, received(0), received(1), behind],
        );
        let is_now = |paper: f64| (now_s - seconds(paper)).abs() < step_s / 2.0;
        for (at, (from, to)) in [(23.0, 43.0), (53.0, 73.0)].into_iter().enumerate() {
            if is_now(from) {
                let flow = reno(&TCP_PATH, 1448, 52, windows[at], u64::MAX);
                flows.push(open(&mut bed, &flow)?);
            } else if is_now(to) {
                bed.world.end_flow(flows[at]);
            }
        }
        if is_now(80.0) && !failed {
            failed = true;
            fail_link(&mut bed);
        }
        if is_now(83.0) && !repaired {
            repaired = true;
            // 35 ms after it has learned of the failure the master has told all hosts the new tree.
            bed.until(Time((now_s * 1e9) as u64 + Duration::from_millis(35).0));
            reroute(&mut bed)?;
        }
    }
    Ok(figure_6_outcome(&meter, seconds, options))
}

fn figure_6_outcome(meter: &Meter, seconds: impl Fn(f64) -> f64, options: &Options) -> Outcome {
    let mut outcome = Outcome::default();
    let mean = |counter, from: f64, to: f64| meter.mean(counter, seconds(from), seconds(to));
    let mut row = |name: &str, paper, ours| outcome.rows.push(Row::new(name, paper, ours, "Mb/s"));
    row("Tree A alone", None, mean(0, 5.0, 23.0));
    row("Tree B alone", None, mean(1, 5.0, 23.0));
    row("TCP with a window of 64 KB", Some(288.0), mean(2, 26.0, 43.0));
    row("Tree B beside it", Some(709.0), mean(1, 26.0, 43.0));
    row("Tree A at that time", None, mean(0, 26.0, 43.0));
    row("TCP with a window of 128 KB", Some(535.0), mean(3, 56.0, 73.0));
    row("Tree B beside it", Some(458.0), mean(1, 56.0, 73.0));
    row("Tree A at that time", None, mean(0, 56.0, 73.0));
    row("Tree A after the failure", None, mean(0, 80.0, 95.0));
    let step = meter.interval_s;
    let repaired = seconds(83.0) + step / 2.0;
    let normal = 0.9 * mean(1, 76.0, 80.0);
    let back = meter.points[1].iter().find(|(at, rate)| *at > repaired + step && *rate >= normal);
    let whole = scale(options);
    // A tree that does not recover gets an infinite time, and its row stays.
    let took = back.map_or(f64::INFINITY, |(at, _)| whole * (at - seconds(83.0)));
    let name = "after the repair, until Tree B has nine tenths of its rate";
    let note = "the failure is noticed after 3 s and repaired 35 ms later because the paper's is: both are put in; what follows is ours";
    let took = Row::new(name, Some(4.0), took, "s").note(note).at_most(4.0);
    // Rates rise by the same steps in a tenth of the time, so that this is no tenth of the paper's.
    outcome.rows.push(if options.quick { took.in_steps_of(whole * step) } else { took });
    let series = ["Tree A", "Tree B", "TCP, 64 KB", "TCP, 128 KB", "received by 02"];
    let series = series.into_iter().enumerate().map(|(at, name)| meter.drawn(name, at, whole)).collect();
    let (x, y) = (Axis::linear("time", "s"), Axis::linear("rate", "Mb/s"));
    let title = "Trees beside TCP, and after a failure";
    outcome.figures.push(Figure::lines("fig-6", title, x, y, series));
    let note = "The source's rates count packets that it sends for the first time. The link from <0,3> to 32 fails at 80 s; \
                the master learns of it 3 s later and has told all of the new tree after 35 ms more, as in the paper.";
    outcome.notes.extend(times_note(options).map(String::from));
    outcome.note(note)
}

/// Bytes of payload that a receiver has.
fn held_by(bed: &Bed, receiver: Node) -> u64 {
    let (machine, _) = bed.world.node(receiver).receiver(bed.group.transfer).expect("it is a receiver");
    machine.packets() * u64::from(bed.setting.payload)
}

fn fail_link(bed: &mut Bed) {
    let (a, b) = FAILED_LINK;
    for (from, to) in [(a, b), (b, a)] {
        let link = bed.net.link_between(NodeId(from), NodeId(to)).expect("BCube(4, 2) has that link");
        bed.net.set_up(link, false);
    }
}

/// Plans the trees around the failed link and tells the receivers whose way has changed.
fn reroute(bed: &mut Bed) -> Result<(), ItemError> {
    let refused = |error: &dyn std::fmt::Display| ItemError::Refused(error.to_string());
    let topology: Network = *bed.planner.network();
    let (a, b) = FAILED_LINK;
    let mut failures = Failures::none();
    let port = topology.port_to(a, b).expect("BCube(4, 2) has that link");
    failures.fail_link(topology.link(a, port));
    let mut planner = TreePlanner::new(topology);
    let plan = planner.plan(0, &RECEIVERS, &Failures::none()).map_err(|error| refused(&error))?;
    let plan = planner.replan(plan, &failures).map_err(|error| refused(&error))?;
    if plan.trees.len() != 2 {
        return Err(ItemError::Refused(format!("{} trees are left after the failure", plan.trees.len())));
    }
    let routes = plan_routes(&plan, planner.graph()).map_err(|error| refused(&error))?;
    for (at, routes) in routes.into_iter().enumerate() {
        for (tree, route) in routes.into_iter().enumerate() {
            if bed.group.routes[at][tree] != Some(route) {
                bed.group.routes[at][tree] = Some(route);
                let input = ReceiverInput::Rerouted { tree: tree as u8, route: Some(route) };
                bed.world.tell(&mut bed.net, RECEIVERS[at], bed.group.transfer, input);
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::{Plot, Whose};

    /// Drawings have the times that rows and notes speak of: TCP begins at 2 s and is the only one then.
    #[test]
    fn a_quick_drawing_has_the_papers_times() {
        let outcome = figure_13(&Options { quick: true, seed: 1, threads: 1 }).unwrap();
        let Plot::Lines(series) = &outcome.figures[0].plot else { panic!("lines are drawn") };
        let tcp = series.iter().find(|one| one.name == "TCP" && one.whose == Whose::Ours).unwrap();
        let begins = tcp.points.iter().find(|(_, rate)| *rate > 0.0).unwrap().0;
        assert!((2.0..2.3).contains(&begins), "{begins}");
        let paper = series.iter().find(|one| one.name == "TCP" && one.whose == Whose::Paper).unwrap();
        assert!((paper.points[0].0 - 2.0).abs() < 1e-9, "{paper:?}");
    }
}
