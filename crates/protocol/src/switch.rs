//! A switch that forwards labelled packets, as a machine: leaf, spine or core (Orca, sections 3.4 and 3.5).
//!
//! The decisions are those of `polycast_planning::labels::switches`; around them the machine checks what
//! comes in from the network, takes the agents of its rack in turn, and counts what it drops. The kernel's
//! switch forwards the same packets to the same ports and counts the same faults, which a test in
//! `polycast-lab` holds.

mod probes;
mod rack_labels;

use alloc::collections::{BTreeMap, VecDeque};
use alloc::sync::Arc;
use alloc::vec::Vec;
use polycast_planning::labels::pod_labels::{self, PodLabelFormat};
use polycast_planning::labels::switches::{self, Ingress, LeafAction, LeafRefusal};
use polycast_planning::labels::{Label, LabelPlanner};
use polycast_topology::{Graph, Kind, Node};
use polycast_types::Time;
use polycast_wire::label::{Fault, Header, LabelKind, Probe};

pub use probes::{ProbeConfig, ProbeOutput, Probes};
pub use rack_labels::{RackLabelError, RackLabels};

/// Agents of a rack that may be active at the same time.
pub const AGENTS_MAX: usize = 16;

/// Events that a switch handles.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Input<'a> {
    /// A labelled packet came in by a port; `header` is the front of its UDP payload, as far as the label's
    /// end or further.
    Packet {
        /// The port: down first, then up.
        port: u32,
        /// The bytes.
        header: &'a [u8],
    },
    /// A UDP packet over IPv4 without a label came in by a port.
    Plain {
        /// The port.
        port: u32,
        /// The address that it goes to, as a number: that of the session.
        session: u32,
        /// True if it is a part of a datagram, or has options: its UDP header is not where it should be.
        is_odd: bool,
    },
    /// A leaf takes packets without labels for a session, or does not any more.
    Door {
        /// The session.
        session: u32,
        /// The door, if there is one.
        door: Option<Door>,
    },
    /// A spine leaves these ports down out for a session; without any it has no entry.
    Block {
        /// The session.
        session: u32,
        /// The ports, as bits.
        ports: u128,
    },
    /// A leaf's agents.
    Agents {
        /// The ports of those that are active, at most [`AGENTS_MAX`]: they are handed packets in turn.
        active: Vec<u32>,
        /// The ports of all agents of the rack, as bits: they may name hosts.
        rack: u128,
    },
}

/// Knowledge of a leaf about a session to whose address programs send packets without labels.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Door {
    /// The ports of the hosts whose packets it takes, as bits.
    pub hosts: u128,
    /// Kind of the label.
    pub kind: LabelKind,
    /// The label that it puts before them; empty where it takes none.
    pub label: Label,
}

/// Actions of a switch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Output {
    /// Sends a copy of the packet by this port.
    Copy {
        /// The port.
        port: u32,
    },
    /// Sends a copy of the packet by this port that asks an agent for the pod's spine label: its kind is
    /// [`LabelKind::Asks`].
    Ask {
        /// The port.
        port: u32,
    },
    /// Sends the packet by this port with a header of the session's [`Door`] before it.
    Wrapped {
        /// The port.
        port: u32,
    },
    /// Sends a copy of the packet by this port without the header: as the program has sent it.
    Unwrapped {
        /// The port.
        port: u32,
    },
    /// Leaves a packet without a label to the host's own stack.
    Pass,
    /// Sends the packet, a neighbour's question, back by the port that it came in by, as an answer.
    Answer {
        /// The port.
        port: u32,
    },
    /// The packet is an answer for this switch's own [`Probes`].
    Answered {
        /// The port.
        port: u32,
    },
    /// The first packet that was dropped for this reason: the log should name it once.
    Dropped(Fault),
    /// The table of entries is full: a session was not added.
    Full {
        /// The session.
        session: u32,
    },
}

/// A switch.
#[derive(Clone, Debug)]
pub struct Switch {
    planner: Arc<LabelPlanner>,
    pods: PodLabelFormat,
    node: Node,
    entries_max: usize,
    blocked: BTreeMap<u32, u128>,
    doors: BTreeMap<u32, Door>,
    active: Vec<u32>,
    rack: u128,
    /// Number of packets given to agents.
    turn: u32,
    /// Time when the agent at a port last sent a relabelled packet.
    relabelled: BTreeMap<u32, Time>,
    faults: [u64; Fault::ALL.len()],
    outputs: VecDeque<Output>,
}

impl Switch {
    /// The switch of a node, with room for so many entries.
    ///
    /// # Panics
    /// If the node is a host, or none of the network.
    #[must_use]
    pub fn new(planner: Arc<LabelPlanner>, node: Node, entries_max: usize) -> Self {
        let clos = planner.clos();
        assert!((clos.hosts()..clos.node_count()).contains(&node), "node {node} is a switch");
        let pods = PodLabelFormat::new(clos, planner.format().bytes());
        Switch {
            pods: pods.expect("there is a planner: the network has labels"),
            planner,
            node,
            entries_max,
            blocked: BTreeMap::new(),
            doors: BTreeMap::new(),
            active: Vec::new(),
            rack: 0,
            turn: 0,
            relabelled: BTreeMap::new(),
            faults: [0; Fault::ALL.len()],
            outputs: VecDeque::new(),
        }
    }

    /// Takes in what happened.
    ///
    /// # Panics
    /// If what it ordered for the input before has not been taken, more than [`AGENTS_MAX`] agents are named,
    /// or a door's label is none of the network.
    pub fn handle(&mut self, now: Time, input: Input<'_>) {
        assert!(self.outputs.is_empty(), "all outputs are taken before the next input");
        match input {
            Input::Packet { port, header } => {
                let forwarded = self.forward(now, port, header);
                self.count(forwarded);
            }
            Input::Plain { port, session, is_odd } => {
                let forwarded = self.wrap(port, session, is_odd);
                self.count(forwarded);
            }
            Input::Door { session, door: None } => drop(self.doors.remove(&session)),
            Input::Door { session, door: Some(door) } => {
                let (has, needs) = (door.label.0.len(), self.planner.format().bytes() as usize);
                assert!(
                    has == needs || has == 0 && door.hosts == 0,
                    "a label of {has} bytes, and not {needs}"
                );
                if self.doors.len() >= self.entries_max && !self.doors.contains_key(&session) {
                    self.outputs.push_back(Output::Full { session });
                } else {
                    self.doors.insert(session, door);
                }
            }
            Input::Block { session, ports: 0 } => drop(self.blocked.remove(&session)),
            Input::Block { session, ports } => {
                if self.blocked.len() >= self.entries_max && !self.blocked.contains_key(&session) {
                    self.outputs.push_back(Output::Full { session });
                } else {
                    self.blocked.insert(session, ports);
                }
            }
            Input::Agents { active, rack } => {
                assert!(active.len() <= AGENTS_MAX, "a rack has at most {AGENTS_MAX} active agents");
                (self.active, self.rack) = (active, rack);
            }
        }
    }

    fn count(&mut self, forwarded: Result<(), Fault>) {
        if let Err(fault) = forwarded {
            // Whatever was decided before the fault was seen is not done.
            self.outputs.clear();
            let count = &mut self.faults[fault as usize];
            *count += 1;
            if *count == 1 {
                self.outputs.push_back(Output::Dropped(fault));
            }
        }
    }

    /// Returns what a leaf knows of a session to which programs send.
    #[must_use]
    pub fn door(&self, session: u32) -> Option<&Door> {
        self.doors.get(&session)
    }

    /// Returns the next action.
    pub fn poll(&mut self, _now: Time) -> Option<Output> {
        self.outputs.pop_front()
    }

    /// A switch never waits for anything.
    #[must_use]
    pub fn deadline(&self) -> Option<Time> {
        None
    }

    /// Returns the number of packets that were dropped for a reason.
    #[must_use]
    pub fn dropped(&self, fault: Fault) -> u64 {
        self.faults[fault as usize]
    }

    /// Returns the time when the agent at a port of a leaf last sent a relabelled packet.
    #[must_use]
    pub fn relabelled_at(&self, port: u32) -> Option<Time> {
        self.relabelled.get(&port).copied()
    }

    fn forward(&mut self, now: Time, port: u32, bytes: &[u8]) -> Result<(), Fault> {
        let planner = Arc::clone(&self.planner);
        let (clos, format) = (planner.clos(), planner.format());
        let probe = Probe::parse(bytes);
        let header = match probe {
            Ok(_) => Header { kind: LabelKind::Filter, session: 0, label: &[] },
            Err(_) => Header::parse_for(bytes, format.bytes() as usize)?.0,
        };
        if port >= clos.port_count(self.node) {
            return Err(Fault::NoPort);
        }
        if let Ok(probe) = probe {
            let answered = Output::Answered { port };
            self.outputs.push_back(if probe.is_answer { answered } else { Output::Answer { port } });
            return Ok(());
        }
        let label = Label(header.label.to_vec());
        let (kind, index) = clos.kind(self.node);
        match kind {
            Kind::Leaf => self.leaf(now, &planner, header.session, (header.kind, &label), port),
            Kind::Spine => {
                let down_ports = clos.leafs_per_pod();
                if header.kind != LabelKind::Filter {
                    return self.spine_of_pods((header.kind, &label), index, port);
                }
                if format.spine_up(&label) >= clos.cores_per_spine().max(1) {
                    return Err(Fault::NoPort);
                }
                let position = (index / clos.spines_per_pod(), index % clos.spines_per_pod());
                let blocked = self.blocked.get(&header.session).copied().unwrap_or(0);
                let ingress = side(port, down_ports);
                let action =
                    switches::spine(clos, format, planner.filter(), &label, position, blocked, ingress);
                self.copy(action.up.map(|up| down_ports + up));
                self.copy(ones(action.down));
                Ok(())
            }
            Kind::Core => {
                let down = match header.kind {
                    LabelKind::Filter => switches::core(format, &label),
                    LabelKind::Pods => self.pods.cores_down(&label),
                    LabelKind::Asks | LabelKind::Spine => return Err(Fault::Kind),
                };
                self.copy(ones(down));
                Ok(())
            }
            Kind::Host => unreachable!("checked when the switch was made"),
        }
    }

    /// A spine whose packet has no filter: it looks up nothing.
    fn spine_of_pods(&mut self, label: (LabelKind, &Label), index: u32, port: u32) -> Result<(), Fault> {
        let clos = *self.planner.clos();
        let down_ports = clos.leafs_per_pod();
        let pod = index / clos.spines_per_pod();
        let ingress = side(port, down_ports);
        let action = pod_labels::spine(&self.pods, label, pod, ingress).ok_or(Fault::Kind)?;
        let names_core = label.0 == LabelKind::Pods;
        if names_core && self.pods.spine_up(label.1) >= clos.cores_per_spine().max(1)
            || action.asks.is_some_and(|leaf| leaf >= down_ports)
        {
            return Err(Fault::NoPort);
        }
        self.copy(action.up.map(|up| down_ports + up));
        self.copy(ones(action.down));
        self.outputs.extend(action.asks.map(|port| Output::Ask { port }));
        Ok(())
    }

    fn leaf(
        &mut self,
        now: Time,
        planner: &LabelPlanner,
        session: u32,
        label: (LabelKind, &Label),
        port: u32,
    ) -> Result<(), Fault> {
        let clos = planner.clos();
        let down_ports = clos.hosts_per_leaf();
        let is_from_agent = port < down_ports && self.rack >> port & 1 == 1;
        let side = side(port, down_ports);
        let action = switches::guarded_leaf(planner.format(), label, side, is_from_agent);
        let action = action.map_err(|refusal| match refusal {
            LeafRefusal::NotAnAgent => Fault::NotAnAgent,
            LeafRefusal::Kind => Fault::Kind,
        })?;
        match action {
            LeafAction::Up(up) if up >= clos.spines_per_pod() => Err(Fault::NoPort),
            LeafAction::Up(up) => {
                if label.0 == LabelKind::Spine {
                    self.relabelled.insert(port, now);
                }
                self.copy([down_ports + up]);
                Ok(())
            }
            LeafAction::ToAgent => {
                let active = u32::try_from(self.active.len()).unwrap_or(0);
                let at = self.turn.checked_rem(active).ok_or(Fault::NoAgent)?;
                self.turn = self.turn.wrapping_add(1);
                self.copy([self.active[at as usize]]);
                Ok(())
            }
            LeafAction::ToHosts(hosts) => {
                self.relabelled.insert(port, now);
                if self.doors.contains_key(&session) {
                    self.outputs.extend(ones(hosts).map(|port| Output::Unwrapped { port }));
                } else {
                    self.copy(ones(hosts));
                }
                Ok(())
            }
        }
    }

    /// A packet without a label: a leaf takes it if it goes to the address of a session that has a door here.
    fn wrap(&mut self, port: u32, session: u32, is_odd: bool) -> Result<(), Fault> {
        let clos = *self.planner.clos();
        let is_leaf = clos.kind(self.node).0 == Kind::Leaf;
        let Some(door) = self.doors.get(&session).filter(|_| is_leaf) else {
            self.outputs.push_back(Output::Pass);
            return Ok(());
        };
        if port >= clos.port_count(self.node) {
            return Err(Fault::NoPort);
        }
        // None comes from above: other leafs put labels before theirs.
        let down_ports = clos.hosts_per_leaf();
        if port >= down_ports || door.hosts >> port & 1 == 0 {
            return Err(Fault::NotASource);
        }
        if is_odd {
            return Err(Fault::Malformed);
        }
        let up = self.planner.format().leaf_up(&door.label);
        if up >= clos.spines_per_pod() {
            return Err(Fault::NoPort);
        }
        self.outputs.push_back(Output::Wrapped { port: down_ports + up });
        Ok(())
    }

    fn copy(&mut self, ports: impl IntoIterator<Item = u32>) {
        self.outputs.extend(ports.into_iter().map(|port| Output::Copy { port }));
    }
}

fn side(port: u32, down_ports: u32) -> Ingress {
    if port < down_ports { Ingress::Below } else { Ingress::Above }
}

/// The ports whose bits are set, in rising order.
fn ones(ports: u128) -> impl Iterator<Item = u32> {
    (0..u128::BITS).filter(move |port| ports >> port & 1 == 1)
}

#[cfg(test)]
mod tests;
