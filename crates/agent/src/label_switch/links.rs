//! State of the links of a process's label switches: a port without a carrier is a broken link, and so is one
//! whose neighbour does not answer probes (Orca section 3.4).

use super::LabelSwitchError;
use super::space::in_space;
use crate::transfer::clock::wait;
use polycast_net::interface;
use polycast_net::link_watch::LinkWatch;
use polycast_net::probe::ProbeSocket;
use polycast_protocol::switch::{ProbeConfig, ProbeOutput, Probes};
use polycast_topology::{Clos, Graph as _, Node};
use polycast_types::{Duration, Time};
use rustix::event::{PollFd, PollFlags};
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::os::fd::AsFd as _;
use std::path::PathBuf;
use std::time::Instant;

/// Interval between polls when nothing happens.
const LOOK_AGAIN: Duration = Duration::from_millis(1_000);
/// Answers that are taken in before carriers and new probes have their turn: more than all neighbours give to
/// a probe.
const ANSWERS_MAX: usize = 1_024;
/// So many probes in a row decide whether a neighbour works.
const PROBES_IN_A_ROW: u32 = 4;

/// Source from which a switch learns about a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Sense {
    /// The port's carrier.
    Light,
    /// The neighbour's answers to probes.
    Answers,
}

/// The links between the switches of a network.
pub(super) struct Links {
    watches: Vec<Watch>,
    /// Switches, to which others they see no light or hear no answer.
    dark: BTreeSet<(Node, Node, Sense)>,
    begun: Instant,
}

/// Sockets and ports with which one switch watches its links.
struct Watch {
    node: Node,
    carriers: LinkWatch,
    /// The port of an interface.
    ports: BTreeMap<u32, u32>,
    /// The neighbour at a port, and the port's interface.
    neighbours: BTreeMap<u32, (Node, u32)>,
    probes: Option<(ProbeSocket, Probes)>,
}

impl Links {
    /// Begins to watch the ports of these switches, which are given with their namespaces and interfaces; all
    /// links are taken for whole. Without a time between probes none are sent.
    pub(super) fn open(
        clos: &Clos,
        switches: &[(Node, Option<PathBuf>, Vec<String>)],
        udp_port: u16,
        probe_period: Option<Duration>,
    ) -> Result<Self, LabelSwitchError> {
        let mut links = Links { watches: Vec::new(), dark: BTreeSet::new(), begun: Instant::now() };
        for (node, namespace, ports) in switches {
            let open = || Watch::open(clos, *node, ports, udp_port, probe_period);
            let opened = in_space(namespace.as_deref(), open);
            links.watches.push(opened.map_err(|error| LabelSwitchError::new("watch links", error))?);
        }
        Ok(links)
    }

    /// Tells `hear` of every link that breaks or works again, and does not end.
    pub(super) fn run(mut self, mut hear: impl FnMut((Node, Node), bool)) -> io::Result<()> {
        loop {
            let now = self.now();
            let mut found = Vec::new();
            for watch in &mut self.watches {
                let node = watch.node;
                let news = watch.probe(now)?.into_iter().map(|(other, works)| (node, other, works));
                found.extend(news);
            }
            for (node, other, works) in found {
                tracing::info!(node, other, works, "probes tell");
                self.note((node, other, Sense::Answers), works, &mut hear);
            }
            for (node, other, runs) in self.wait()? {
                self.note((node, other, Sense::Light), runs, &mut hear);
            }
        }
    }

    /// Waits until something comes in or the next probes are due; gives what carriers say of neighbours.
    fn wait(&mut self) -> io::Result<Vec<(Node, Node, bool)>> {
        let deadline = self.watches.iter().filter_map(|watch| watch.probes.as_ref()?.1.deadline()).min();
        let mut fds = Vec::new();
        for watch in &self.watches {
            fds.push(PollFd::from_borrowed_fd(watch.carriers.as_fd(), PollFlags::IN));
            let probes = watch.probes.as_ref();
            fds.extend(probes.map(|(socket, _)| PollFd::from_borrowed_fd(socket.as_fd(), PollFlags::IN)));
        }
        wait(&mut fds, self.now(), deadline, LOOK_AGAIN)?;
        drop(fds);
        let mut said = Vec::new();
        for watch in &mut self.watches {
            watch.take_answers()?;
            let node = watch.node;
            for (index, runs) in watch.carriers.changes()? {
                let neighbour = watch.ports.get(&index).and_then(|port| watch.neighbours.get(port));
                said.extend(neighbour.map(|(other, _)| (node, *other, runs)));
            }
        }
        Ok(said)
    }

    fn note(&mut self, sensed: (Node, Node, Sense), runs: bool, hear: &mut impl FnMut((Node, Node), bool)) {
        let (node, other, _) = sensed;
        if let Some(works) = note(&mut self.dark, sensed, runs) {
            hear((node.min(other), node.max(other)), works);
        }
    }

    fn now(&self) -> Time {
        Time(u64::try_from(self.begun.elapsed().as_nanos()).unwrap_or(u64::MAX))
    }
}

impl Watch {
    /// To be called in the switch's namespace.
    fn open(
        clos: &Clos,
        node: Node,
        interfaces: &[String],
        udp_port: u16,
        probe_period: Option<Duration>,
    ) -> io::Result<Self> {
        let (mut ports, mut neighbours) = (BTreeMap::new(), BTreeMap::new());
        for (port, name) in (0..).zip(interfaces) {
            let other = clos.neighbor(node, port);
            if other >= clos.hosts() {
                let index = interface::index(name)?;
                ports.insert(index, port);
                neighbours.insert(port, (other, index));
            }
        }
        let probes = match probe_period {
            None => None,
            Some(period) => {
                let config = ProbeConfig { period, in_a_row: PROBES_IN_A_ROW };
                let probes = Probes::new(config, neighbours.keys().copied(), Time::ZERO);
                let interfaces: Vec<u32> = ports.keys().copied().collect();
                Some((ProbeSocket::open(udp_port, &interfaces)?, probes))
            }
        };
        Ok(Watch { node, carriers: LinkWatch::open()?, ports, neighbours, probes })
    }

    fn take_answers(&mut self) -> io::Result<()> {
        if let Some((socket, probes)) = &mut self.probes {
            for _ in 0..ANSWERS_MAX {
                let Some((index, probe)) = socket.receive()? else { break };
                if let Some(port) = self.ports.get(&index) {
                    probes.answered(*port, probe);
                }
            }
        }
        Ok(())
    }

    /// Sends the probes that are due; gives which neighbours have fallen silent or answer again.
    fn probe(&mut self, now: Time) -> io::Result<Vec<(Node, bool)>> {
        self.take_answers()?;
        let mut found = Vec::new();
        let Some((socket, probes)) = &mut self.probes else { return Ok(found) };
        while let Some(output) = probes.poll(now) {
            match output {
                // A port that is down sends nothing, and gets no answer.
                ProbeOutput::Send { port, probe } => drop(socket.send(self.neighbours[&port].1, probe)),
                ProbeOutput::Neighbour { port, works } => found.push((self.neighbours[&port].0, works)),
            }
        }
        Ok(found)
    }
}

/// Notes what one end senses; gives whether the link works if that has changed.
fn note(dark: &mut BTreeSet<(Node, Node, Sense)>, sensed: (Node, Node, Sense), runs: bool) -> Option<bool> {
    let (node, other, _) = sensed;
    let works = |dark: &BTreeSet<_>| {
        [(node, other), (other, node)].iter().all(|(at, to)| {
            [Sense::Light, Sense::Answers].iter().all(|sense| !dark.contains(&(*at, *to, *sense)))
        })
    };
    let before = works(dark);
    if runs {
        dark.remove(&sensed);
    } else {
        dark.insert(sensed);
    }
    let after = works(dark);
    (before != after).then_some(after)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_works_when_both_ends_see_light_and_hear_answers() {
        use Sense::{Answers, Light};
        let mut dark = BTreeSet::new();
        let said = [
            ((1, 2, Light), true),
            ((1, 2, Light), false),
            ((2, 1, Light), false),
            ((2, 1, Answers), false),
            ((1, 2, Light), true),
            ((2, 1, Light), true),
            ((2, 1, Answers), true),
            ((1, 2, Answers), false),
        ];
        let said = said.map(|(sensed, runs)| note(&mut dark, sensed, runs));
        assert_eq!(said, [None, Some(false), None, None, None, None, Some(true), Some(false)]);
    }
}
