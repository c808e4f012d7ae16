//! Orca, section 5.1: what leaves the sender of a file for twelve receivers, in one session and by unicast.

use polycast_planning::labels::LabelPlanner;
use polycast_simulator::packet::tcp::TcpConfig;
use polycast_simulator::packet::world::forward::{Forwarding, LabelSwitches};
use polycast_simulator::packet::world::{Cluster, Datagram, Happening, PushConfig};
use polycast_simulator::packet::{Builder, LinkConfig, Network, NodeId, Outcome as Ended};
use polycast_topology::{Clos, Failures};
use polycast_types::{Duration, Rate, Time};
use polycast_wire::label::header_len;

use crate::Row;
use crate::report::{ItemError, Options, Outcome};

/// Bytes of the paper's largest workload.
const FILE_BYTES: u64 = 1_400_000_000;
/// Receivers of the paper's test bed.
const RECEIVERS: u32 = 12;
/// Bits of the filter in the paper's label, and bytes of that label.
const FILTER_BITS: u32 = 69;
const LABEL_LEN: u32 = 19;
const LINE: Rate = Rate(10_000_000_000);
/// Rate of the session: an agent sends on its host's link what it took from it.
const SESSION_RATE: Rate = Rate(5_000_000_000);
const HOP: Duration = Duration::from_micros(2);

/// Bytes and packets that have left a sender.
struct Sent {
    /// Bytes on its link.
    bytes: f64,
    /// Packets of the data channel.
    labelled: f64,
}

fn refused(what: &dyn std::fmt::Display) -> ItemError {
    ItemError::Refused(what.to_string())
}

/// Sends a file in a session, or over a connection a receiver.
fn send(bytes: u64, in_session: bool, seed: u64) -> Result<Sent, ItemError> {
    let clos = Clos::leaf_spine(4, 2, 4).map_err(|error| refused(&error))?;
    let mut net: Network<Datagram> =
        Builder::from_graph(&clos, |_, _| LinkConfig { queue_bytes: 1 << 20, ..LinkConfig::new(LINE, HOP) })
            .build(seed);
    let mut cluster = Cluster::new(seed, TcpConfig::default());
    let (source, receivers) = (NodeId(0), (1..=RECEIVERS).map(NodeId).collect::<Vec<_>>());
    if in_session {
        let mut planner = LabelPlanner::new(clos, FILTER_BITS).map_err(|error| refused(&error))?;
        let hosts: Vec<u32> = receivers.iter().map(|node| node.0).collect();
        let plan = planner.plan(1, source.0, &hosts, &Failures::none()).map_err(|error| refused(&error))?;
        let labels = Forwarding::Labels(Box::new(LabelSwitches::new(planner, &plan)));
        let settings = PushConfig { rate: Some(SESSION_RATE), ..PushConfig::default() };
        cluster.add_push(&net, source, &receivers, bytes, settings, Some(labels));
    } else {
        cluster.add_tcp(source, &receivers, bytes);
    }
    cluster.plan(&mut net, Time::ZERO, Happening::StartTransfer { transfer: 0 });
    if net.run(&mut cluster, Time(600_000_000_000)) != Ended::Stopped {
        return Err(ItemError::Refused("a transfer is not over after ten minutes".into()));
    }
    let labelled = if in_session { cluster.push(0).source().sent() } else { (0, 0, 0) };
    let link = net.links_from(source)[0];
    Ok(Sent { bytes: net.counters(link).bytes as f64, labelled: (labelled.0 + labelled.1) as f64 })
}

/// Section 5.1: the bytes that leave the sender, and the label's part of them.
///
/// # Errors
/// If a transfer does not end.
pub(super) fn traffic(options: &Options) -> Result<Outcome, ItemError> {
    let scale = if options.quick { 50.0 } else { 1.0 };
    let bytes = (FILE_BYTES as f64 / scale) as u64;
    let [session, unicast] = [send(bytes, true, options.seed)?, send(bytes, false, options.seed)?];
    // The simulator's packets have no label: its bytes come on top.
    let header = header_len(LABEL_LEN as usize) as f64 * session.labelled;
    let all = session.bytes + header;
    let gb = |bytes: f64| bytes * scale / 1e9;
    let label = f64::from(LABEL_LEN) * session.labelled;
    let size = PushConfig::default().packet_bytes();
    let rows = vec![
        Row::new("sent by the sender, one session", Some(1.51), gb(all), "GB"),
        Row::new("sent by the sender, unicast", Some(18.01), gb(unicast.bytes), "GB"),
        Row::new("unicast against one session", Some(12.0), unicast.bytes / all, "x"),
        Row::new("labels, of what the sender sends", Some(0.51), 100.0 * label / all, "%").note(format!(
            "{LABEL_LEN} bytes of packets of {size}; the paper's share is that of packets of 3.7 KB"
        )),
        Row::new("labels and their header, of what the sender sends", None, 100.0 * header / all, "%"),
    ];
    let outcome = Outcome::from(rows).note(format!(
        "1.4 GB to {RECEIVERS} receivers of a network of four leafs and two spines, packet by packet; one session by our transport, unicast as \
         a TCP connection a receiver."
    ));
    let quick = "A file of a 50th of the paper's size in a quick run; bytes are given times 50.";
    Ok(if options.quick { outcome.note(quick) } else { outcome })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// By unicast the file leaves the sender once a receiver; in a session once.
    #[test]
    fn a_session_leaves_the_sender_once() {
        let bytes = 3_000_000;
        let [session, unicast] = [true, false].map(|in_session| send(bytes, in_session, 1).unwrap());
        let times = |sent: &Sent| sent.bytes / bytes as f64;
        assert!((1.0..1.15).contains(&times(&session)), "{}", times(&session));
        assert!((12.0..13.0).contains(&times(&unicast)), "{}", times(&unicast));
        let fragments = bytes.div_ceil(PushConfig::default().fragment_bytes.into()) as f64;
        assert!(session.labelled >= fragments && session.labelled < 1.1 * fragments, "{}", session.labelled);
    }
}
