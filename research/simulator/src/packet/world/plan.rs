//! Events in a [`Cluster`] at planned times.

use super::forward::Forwarding;
use super::receiver::{Mood, Phase};
use super::streams::{End, StreamId};
use super::{Cluster, Datagram, Flow, Owner, Transfer};
use crate::packet::hooks::{Event, Step};
use crate::packet::{Faults, LinkId, Network, NodeId};
use alloc::string::ToString;
use alloc::sync::Arc;
use alloc::vec::Vec;
use polycast_protocol::push::SenderInput;
use polycast_protocol::session::{Goodbye, RosterInput, Why};
use polycast_types::{Duration, Time};

/// Something planned for a time.
#[derive(Clone, Debug)]
pub enum Happening {
    /// A link of one direction goes down or up.
    Link {
        /// Link that changes.
        link: LinkId,
        /// Set if it is up from now on.
        up: bool,
    },
    /// All links of a node go down or up, in both directions.
    Node {
        /// Node whose links change.
        node: NodeId,
        /// Set if they are up from now on.
        up: bool,
    },
    /// A link has other faults from now on.
    Faults {
        /// Link that has the faults.
        link: LinkId,
        /// Faults of the link.
        faults: Faults,
    },
    /// An optical switch turns: until it is ready, this share of the data channel's packets is lost in it.
    Turn {
        /// Node of the switch.
        node: NodeId,
        /// Time at which its circuits are ready.
        ready_at: Time,
        /// Loss until then, in parts of a million.
        loss_ppm: u32,
    },
    /// Paths and trees are computed anew over what is up.
    Reroute,
    /// A receiver's host crashes: its machine and what is not verified are gone.
    CrashReceiver {
        /// The transfer.
        transfer: u32,
        /// The receiver's number in it.
        receiver: u32,
    },
    /// A receiver's host is there, or there again with what it has stored. Where receivers are counted it
    /// joins; a named one takes part when it is called.
    JoinReceiver {
        /// The transfer.
        transfer: u32,
        /// The receiver's number in it.
        receiver: u32,
    },
    /// The transfer is for this receiver too from now on.
    AddReceiver {
        /// The transfer.
        transfer: u32,
        /// The receiver's number in it.
        receiver: u32,
    },
    /// The transfer is not for this receiver any more.
    RemoveReceiver {
        /// The transfer.
        transfer: u32,
        /// The receiver's number in it.
        receiver: u32,
    },
    /// No link leads to this receiver, says the manager of the network.
    CutOff {
        /// The transfer.
        transfer: u32,
        /// The receiver's number in it.
        receiver: u32,
    },
    /// Something is out of order with a receiver's host from now on, or nothing any more.
    Mood {
        /// The transfer.
        transfer: u32,
        /// The receiver's number in it.
        receiver: u32,
        /// Mood of the host.
        mood: Option<Mood>,
    },
    /// The network breaks a receiver's connection to its source.
    BreakControl {
        /// The transfer.
        transfer: u32,
        /// The receiver's number in it.
        receiver: u32,
    },
    /// The network breaks a receiver's connections to those that it fetches from.
    BreakMesh {
        /// The transfer.
        transfer: u32,
        /// The receiver's number in it.
        receiver: u32,
    },
    /// The source's user ends the transfer.
    CancelSource {
        /// The transfer.
        transfer: u32,
    },
    /// The source's host crashes.
    CrashSource {
        /// The transfer.
        transfer: u32,
    },
    /// The source starts the transfer, for all receivers that are not done; they join.
    StartTransfer {
        /// The transfer.
        transfer: u32,
    },
    /// A receiver takes another time for each packet from now on.
    Service {
        /// The transfer.
        transfer: u32,
        /// The receiver's number in it.
        receiver: u32,
        /// Time for one packet.
        service: Duration,
    },
    /// A receiver is held up for so long, as by its disk: it hears and says nothing, and packets wait in its
    /// socket.
    Hold {
        /// The transfer.
        transfer: u32,
        /// The receiver's number in it.
        receiver: u32,
        /// For how long.
        span: Duration,
    },
    /// A background flow starts.
    StartFlow {
        /// Its number.
        flow: u32,
    },
    /// The session of a transfer by labels is planned anew.
    Relabel {
        /// The transfer.
        transfer: u32,
        /// Forwarding of packets from now on.
        forwarding: Arc<Forwarding>,
        /// The hosts that are in the session from now on.
        members: Vec<NodeId>,
    },
    /// The source must not use its data channel any more.
    LosePath {
        /// The transfer.
        transfer: u32,
    },
    /// Another data channel takes the place of the one that there is.
    SwitchPath {
        /// The transfer.
        transfer: u32,
        /// The run of the transfer that it is for; any if `None`.
        handle: Option<u32>,
        /// Bytes that it was granted for; what is left of the one before if `None`.
        allowance: Option<u64>,
    },
    /// The data channel carries nothing while it is being set up; the source knows.
    PathWaits {
        /// The transfer.
        transfer: u32,
        /// Set if it is being set up from now on.
        waits: bool,
    },
    /// A receiver was called and does not come; planned by the transfer itself.
    NotComing {
        /// The transfer.
        transfer: u32,
        /// The receiver's number in it.
        receiver: u32,
        /// The run of the transfer that called it.
        handle: u32,
    },
    /// One end of a broken connection is told.
    Broken {
        /// The connection.
        stream: StreamId,
        /// The end that is told.
        end: End,
    },
}

impl Cluster {
    /// Does what was planned.
    pub(super) fn happen(&mut self, net: &mut Network<Datagram>, happening: Happening) {
        self.hooks.see(Event::Happening(&happening));
        match happening {
            Happening::Link { link, up } => self.set_up(net, link, up),
            Happening::Node { node, up } => {
                for link in net.links_from(node).to_vec() {
                    self.set_up(net, link, up);
                    if let Some(back) = net.reverse(link) {
                        self.set_up(net, back, up);
                    }
                }
            }
            Happening::Faults { link, faults } => net.set_faults(link, faults),
            Happening::Turn { node, ready_at, loss_ppm } => self.set_turning(node, ready_at, loss_ppm),
            Happening::Reroute => self.reroute(net),
            Happening::StartFlow { flow } => {
                let Flow { from, to, bytes, .. } = self.flows[flow as usize];
                let stream = self.open(net, from, to, Owner::Flow { flow });
                self.flows[flow as usize].stream = Some(stream);
                self.streams.write_bytes(stream, 0, bytes);
                self.streams.pump(net, stream, 0);
            }
            Happening::Relabel { transfer, forwarding, members } => {
                let install = match *forwarding {
                    Forwarding::Relays(_) => Step::InstallRelays,
                    _ => Step::InstallLabel,
                };
                if !self.hooks.leaves_out(install) {
                    self.push_mut(transfer).forwarding = forwarding;
                }
                self.set_members(transfer, &members);
            }
            Happening::Broken { stream, end } => self.broken(net, stream, end),
            Happening::StartTransfer { transfer } => self.start_transfer(net, transfer),
            Happening::CrashSource { transfer } => {
                self.break_all(net, transfer, None);
                self.push_mut(transfer).source.run = None;
            }
            Happening::CancelSource { transfer } => {
                if self.run_mut(transfer).is_some_and(|run| !run.over) {
                    self.end(net, transfer, Goodbye::Refuse(Why::SourceCancelled));
                    self.drive_source(net, transfer);
                }
            }
            Happening::LosePath { transfer } => {
                if let Some(run) = self.run_mut(transfer) {
                    run.without_path = true;
                    self.tell_sender(net.now(), transfer, SenderInput::PathLost);
                    self.drive_source(net, transfer);
                }
            }
            Happening::SwitchPath { transfer, handle, allowance } => {
                self.switch_path(net, transfer, handle, allowance);
            }
            Happening::PathWaits { transfer, waits } => {
                self.push_mut(transfer).dark = waits;
                self.tell_sender(net.now(), transfer, SenderInput::PathWaits(waits));
                self.drive_source(net, transfer);
            }
            happening => self.happen_to_receiver(net, happening),
        }
    }

    fn set_up(&mut self, net: &mut Network<Datagram>, link: LinkId, up: bool) {
        net.set_up(link, up);
        self.see_light(net, link, up);
    }

    fn happen_to_receiver(&mut self, net: &mut Network<Datagram>, happening: Happening) {
        match happening {
            Happening::CrashReceiver { transfer, receiver } => {
                self.break_all(net, transfer, Some(receiver));
                let host = &mut self.push_mut(transfer).receivers[receiver as usize];
                host.down = true;
                host.forget(Phase::Absent);
            }
            Happening::JoinReceiver { transfer, receiver } => {
                let push = self.push_mut(transfer);
                push.receivers[receiver as usize].down = false;
                // An agent takes part when it is called.
                if push.config.counted {
                    self.join(net, transfer, receiver);
                }
            }
            Happening::AddReceiver { transfer, receiver } => {
                self.change_group(net, (transfer, receiver), true);
            }
            Happening::RemoveReceiver { transfer, receiver } => {
                self.change_group(net, (transfer, receiver), false);
            }
            Happening::CutOff { transfer, receiver } => {
                let name = self.push(transfer).receivers[receiver as usize].name.clone();
                self.tell_roster(net.now(), transfer, RosterInput::Fail { name: &name, why: Why::CutOff });
                self.drive_source(net, transfer);
            }
            Happening::NotComing { transfer, receiver, handle } => {
                let name = self.push(transfer).receivers[receiver as usize].name.clone();
                if self.run_mut(transfer).is_some_and(|run| run.handle == handle) {
                    let why = "its agent does not let it join".to_string();
                    let input = match self.push(transfer).config.counted {
                        true => RosterInput::Fewer(&name),
                        false => RosterInput::NotComing { name: &name, why },
                    };
                    self.tell_roster(net.now(), transfer, input);
                    self.drive_source(net, transfer);
                }
            }
            Happening::Mood { transfer, receiver, mood } => {
                self.push_mut(transfer).receivers[receiver as usize].mood = mood;
            }
            Happening::BreakControl { transfer, receiver } => {
                if let Some(stream) = self.push(transfer).receivers[receiver as usize].control {
                    self.break_both(net, stream);
                }
            }
            Happening::BreakMesh { transfer, receiver } => {
                let host = &self.push(transfer).receivers[receiver as usize];
                let streams: Vec<StreamId> = host.to_candidates().collect();
                streams.into_iter().for_each(|stream| self.break_both(net, stream));
            }
            Happening::Service { transfer, receiver, service } => {
                self.push_mut(transfer).receivers[receiver as usize].service = service;
            }
            Happening::Hold { transfer, receiver, span } => {
                let until = net.now() + span;
                let host = &mut self.push_mut(transfer).receivers[receiver as usize];
                host.held_until = host.held_until.max(until);
                self.drive_receiver(net, transfer, receiver);
            }
            other => unreachable!("{other:?} does not happen to a receiver"),
        }
    }

    fn start_transfer(&mut self, net: &mut Network<Datagram>, transfer: u32) {
        let Transfer::Tcp(tcp) = &self.transfers[transfer as usize] else {
            return self.begin_push(net, transfer);
        };
        let (source, bytes) = (tcp.source, tcp.bytes);
        let nodes: Vec<NodeId> = tcp.receivers.iter().map(|(node, _)| *node).collect();
        for (node, receiver) in nodes.into_iter().zip(0..) {
            let stream = self.open(net, source, node, Owner::Bulk { transfer, receiver });
            self.streams.write_bytes(stream, 0, bytes);
            self.streams.pump(net, stream, 0);
        }
    }
}
