//! The ends of connections: what comes out of them, and how they end.

use super::frames::{Body, Frame};
use super::streams::{End, StreamId};
use super::{BROKEN_AFTER, Cluster, Datagram, Happening, Owner, Transfer};
use crate::packet::Network;
use alloc::string::ToString;
use polycast_protocol::session::{Gone, GuestId, GuestInput, RosterInput};

impl Cluster {
    /// Takes in what has come whole to one end of a connection.
    pub(super) fn take_frames(&mut self, net: &mut Network<Datagram>, id: StreamId, end: End) {
        let owner = self.owners[id.0 as usize];
        match owner {
            Owner::Bulk { transfer, receiver } => return self.bulk_arrived(net, id, transfer, receiver),
            Owner::Flow { flow } => {
                let delivered = self.streams.delivered(id, 0);
                let flow = &mut self.flows[flow as usize];
                if flow.finished_at.is_none() && delivered >= flow.bytes {
                    flow.finished_at = Some(net.now());
                }
                return;
            }
            Owner::Control { .. } | Owner::Mesh { .. } | Owner::Rack { .. } => {}
        }
        if let Some((transfer, receiver)) = reader(owner, end) {
            self.release(net, transfer, receiver);
            let host = &mut self.push_mut(transfer).receivers[receiver as usize];
            if host.is_held {
                host.unread.push((id, end));
                return;
            }
        }
        // What a candidate says of groups is nothing that it gives.
        let mut said = 0;
        while let Some(frame) = self.streams.next_frame(id, 1 - end) {
            if matches!(frame.body, Body::Fin) {
                // What its source has sent comes to a member that takes no more, and then the end.
                match (owner, end) {
                    (Owner::Mesh { upstream: None, .. }, 1) => self.finish(net, id, 1),
                    _ => self.streams.close(id),
                }
                self.ended_at(net, id, end, Gone::Closed);
                return;
            }
            match owner {
                Owner::Control { transfer, receiver } if end == 0 => {
                    self.frame_to_receiver(net, (transfer, receiver), id, &frame);
                }
                Owner::Control { transfer, .. } => self.frame_to_source(net, transfer, id, &frame.body),
                Owner::Mesh { transfer, receiver, upstream } => {
                    let of_candidate = match end {
                        0 => self.candidate_frame(net, (transfer, receiver), id, &frame.body),
                        _ => None,
                    };
                    match of_candidate {
                        Some(bytes) => said += bytes,
                        None => self.mesh_frame(net, (transfer, receiver, upstream), id, &frame.body),
                    }
                }
                Owner::Rack { transfer, speaker, .. } => {
                    self.rack_frame(net, (transfer, speaker), id, &frame.body);
                }
                Owner::Bulk { .. } | Owner::Flow { .. } => {}
            }
        }
        if end == 0 {
            self.hear_candidate(net.now(), owner, id, said);
        }
        match (owner, end) {
            (Owner::Control { transfer, .. }, 1) => self.drive_source(net, transfer),
            (Owner::Rack { transfer, speaker, .. }, 1) => self.drive_receiver(net, transfer, speaker),
            _ => {}
        }
    }

    fn bulk_arrived(&mut self, net: &mut Network<Datagram>, id: StreamId, transfer: u32, receiver: u32) {
        let delivered = self.streams.delivered(id, 0);
        let Transfer::Tcp(tcp) = &mut self.transfers[transfer as usize] else { return };
        let (_, finished_at) = &mut tcp.receivers[receiver as usize];
        if finished_at.is_none() && delivered >= tcp.bytes {
            *finished_at = Some(net.now());
            self.check_done(net);
        }
    }

    /// There may be room to write at an end.
    pub(super) fn has_room(&mut self, net: &mut Network<Datagram>, id: StreamId, end: End) {
        match (self.owners[id.0 as usize], end) {
            (Owner::Control { transfer, .. }, 1) => self.patch(net, transfer, id),
            (Owner::Mesh { transfer, upstream, .. }, 1) => self.serve_more(net, (transfer, upstream), id),
            _ => {}
        }
    }

    /// An end says nothing more; the other one learns of it behind what was said before.
    pub(super) fn finish(&mut self, net: &mut Network<Datagram>, stream: StreamId, end: End) {
        self.streams.write(stream, end, Frame { body: Body::Fin, channel: 0 }, 1);
        self.streams.pump(net, stream, end);
    }

    /// Ends a connection at once; the given end learns of it.
    pub(super) fn break_stream(&mut self, net: &mut Network<Datagram>, stream: StreamId, told: End) {
        if self.streams.is_open(stream) {
            self.streams.close(stream);
            let at = net.now() + BROKEN_AFTER;
            self.plan(net, at, Happening::Broken { stream, end: told });
        }
    }

    /// The network ends a connection: both ends learn of it.
    pub(super) fn break_both(&mut self, net: &mut Network<Datagram>, stream: StreamId) {
        if self.streams.is_open(stream) {
            self.break_stream(net, stream, 0);
            self.plan(net, net.now() + BROKEN_AFTER, Happening::Broken { stream, end: 1 });
        }
    }

    /// Ends all connections of a receiver's or the source's host; the other ends learn of it.
    pub(super) fn break_all(&mut self, net: &mut Network<Datagram>, transfer: u32, receiver: Option<u32>) {
        for index in 0..self.owners.len() {
            let id = StreamId(index as u32);
            let told = match self.owners[index] {
                Owner::Control { transfer: t, receiver: r } if t == transfer => match receiver {
                    None => Some(0),
                    Some(receiver) => (receiver == r).then_some(1),
                },
                Owner::Mesh { transfer: t, receiver: r, upstream } if t == transfer => {
                    if receiver == Some(r) { Some(1) } else { (upstream == receiver).then_some(0) }
                }
                Owner::Rack { transfer: t, member, speaker } if t == transfer => {
                    if receiver == Some(member) {
                        Some(1)
                    } else {
                        (receiver == Some(speaker)).then_some(0)
                    }
                }
                _ => None,
            };
            if let Some(told) = told {
                self.break_stream(net, id, told);
            }
        }
    }

    /// A connection that broke is noticed at an end.
    pub(super) fn broken(&mut self, net: &mut Network<Datagram>, stream: StreamId, end: End) {
        // Nothing that is still on its way is heard after that.
        self.streams.close(stream);
        self.ended_at(net, stream, end, Gone::Broken("connection reset".to_string()));
    }

    /// An end learns that its connection has ended.
    fn ended_at(&mut self, net: &mut Network<Datagram>, stream: StreamId, end: End, how: Gone) {
        let now = net.now();
        match (self.owners[stream.0 as usize], end) {
            (Owner::Control { transfer, .. }, 1) => {
                self.tell_roster(now, transfer, RosterInput::Gone { guest: GuestId(stream.0), how });
                self.leave_members(net, transfer, stream);
                self.drive_source(net, transfer);
            }
            (Owner::Control { transfer, receiver }, _) => {
                let host = &mut self.push_mut(transfer).receivers[receiver as usize];
                if host.control == Some(stream) {
                    host.control = None;
                    self.tell_guest(now, transfer, receiver, GuestInput::Gone(how));
                    self.drive_receiver(net, transfer, receiver);
                }
            }
            (Owner::Mesh { transfer, receiver, .. }, 0) => {
                if self.candidate_gone(now, (transfer, receiver), stream) {
                    self.drive_receiver(net, transfer, receiver);
                }
            }
            (Owner::Mesh { transfer, upstream, .. }, _) => self.unserve(net, transfer, upstream, stream),
            (Owner::Rack { transfer, member, .. }, 0) => self.rack_lost(transfer, member, stream),
            (Owner::Rack { transfer, speaker, .. }, _) => self.rack_left(net, transfer, speaker, stream),
            (Owner::Bulk { .. } | Owner::Flow { .. }, _) => {}
        }
    }
}

/// The receiver at an end of a connection, if one is there.
fn reader(owner: Owner, end: End) -> Option<(u32, u32)> {
    match (owner, end) {
        (Owner::Control { transfer, receiver } | Owner::Mesh { transfer, receiver, .. }, 0) => {
            Some((transfer, receiver))
        }
        (Owner::Mesh { transfer, upstream, .. }, _) => upstream.map(|upstream| (transfer, upstream)),
        (Owner::Rack { transfer, member, .. }, 0) => Some((transfer, member)),
        (Owner::Rack { transfer, speaker, .. }, _) => Some((transfer, speaker)),
        (Owner::Control { .. } | Owner::Bulk { .. } | Owner::Flow { .. }, _) => None,
    }
}
