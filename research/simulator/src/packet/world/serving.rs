//! Serving over TCP: whom the ends of a transfer let in, and what they write to those.

use super::frames::{Body, Frame, node_at, receiver_port, source_port};
use super::keys::Secret;
use super::receiver::{Part, Serving};
use super::streams::StreamId;
use super::{Cluster, Datagram, Owner};
use crate::packet::hooks::{Act, Event, Step};
use crate::packet::{Network, NodeId};
use alloc::collections::BTreeSet;
use alloc::format;
use alloc::vec::Vec;
use core::net::IpAddr;
use polycast_protocol::session::{Admission, GuestInput, Ticket, Tickets};
use polycast_types::Handle;
use polycast_wire::control::{Control, Overlay};

impl Cluster {
    /// Returns the owner of an address in a transfer: a receiver, or the source if `None`.
    pub(super) fn place(
        &self,
        transfer: u32,
        (address, port): (IpAddr, u16),
    ) -> Option<(NodeId, Option<u32>)> {
        let (push, node) = (self.push(transfer), node_at(address));
        if node == push.source.node && port == source_port(transfer) {
            return Some((node, None));
        }
        let receiver = push.at_node.get(&node).filter(|_| port == receiver_port(transfer))?;
        Some((node, Some(*receiver)))
    }

    /// Returns true if a process listens at an end of a transfer.
    pub(super) fn listens(&self, transfer: u32, at: Option<u32>) -> bool {
        let push = self.push(transfer);
        match at {
            None => push.source.run.is_some(),
            Some(receiver) => push.receivers[receiver as usize].guest.is_some(),
        }
    }

    /// A frame on a connection of the mesh, at one of its ends, but for what a receiver hears of a candidate
    /// that it has not closed.
    pub(super) fn mesh_frame(
        &mut self,
        net: &mut Network<Datagram>,
        (transfer, receiver, upstream): (u32, u32, Option<u32>),
        stream: StreamId,
        body: &Body,
    ) {
        match &body.control() {
            Some(frame @ Control::Overlay(Overlay::Enter { entry, have, .. })) => {
                if self.lets_in((transfer, upstream), stream, frame) {
                    self.enter(net, (transfer, upstream), stream, (*entry, have.clone()));
                } else {
                    self.finish(net, stream, 1);
                }
            }
            Some(Control::Overlay(Overlay::Want(groups))) => {
                self.wanted(net, (transfer, upstream, receiver), stream, groups);
            }
            // A candidate that was closed meanwhile has said more.
            Some(Control::Overlay(Overlay::Holds(_)) | Control::Group { .. } | Control::Refuse(_)) => {}
            other => self.breaches.push(format!("{other:?} in the mesh")),
        }
    }

    /// The last secret that an end of a transfer was told, where it is sealed: the source's end if `None`.
    pub(super) fn newest_secret(&self, transfer: u32, at: Option<u32>) -> Option<Secret> {
        let push = self.push(transfer);
        match at {
            None => push.source.run.as_ref()?.keys.newest(),
            Some(receiver) => push.receivers[receiver as usize].keys.newest(),
        }
    }

    /// Returns true if an end of a transfer serves a peer that sends this frame.
    fn lets_in(
        &mut self,
        (transfer, server): (u32, Option<u32>),
        stream: StreamId,
        frame: &Control<'_>,
    ) -> bool {
        let push = self.push(transfer);
        let own = match server {
            None => push.source.run.as_ref().map(|run| run.handle),
            Some(at) => Some(push.receivers[at as usize].handle),
        };
        let Some(own) = own.filter(|_| self.listens(transfer, server)) else { return false };
        let right = self.newest_secret(transfer, server).map(|secret| secret.ticket(stream.0));
        let is_asked = push.config.sealed && !self.hooks.leaves_out(Step::CheckTicket);
        let needed = if is_asked { Ticket::Needed(right) } else { Ticket::NotNeeded };
        let admission = Tickets::new(Handle(own.into())).judge(frame, needed);
        if matches!(admission, Admission::Foreign { .. }) {
            self.hooks.see(Event::Attack(Act::TurnedAway));
        }
        admission == Admission::In
    }

    /// An end of a transfer was told another secret: one that came with a ticket of an earlier one may have
    /// been taken out since then.
    pub(super) fn drop_fetchers(&mut self, net: &mut Network<Datagram>, transfer: u32, server: Option<u32>) {
        if self.hooks.leaves_out(Step::EndFetch) {
            return;
        }
        let (newest, push) = (self.newest_secret(transfer, server), self.push(transfer));
        let serving = match server {
            None => push.source.run.as_ref().map_or(&[][..], |run| &run.serving),
            Some(receiver) => &push.receivers[receiver as usize].serving,
        };
        let old = serving.iter().filter(|peer| peer.secret != newest).map(|peer| peer.stream);
        let old: Vec<StreamId> = old.collect();
        if let Some(receiver) = server {
            // What follows may serve those that stay.
            let serving = &mut self.push_mut(transfer).receivers[receiver as usize].serving;
            serving.retain(|peer| peer.secret == newest);
        }
        for stream in old {
            self.finish(net, stream, 1);
            self.unserve(net, transfer, server, stream);
        }
    }

    /// One that fetched from here does not any more.
    pub(super) fn unserve(
        &mut self,
        net: &mut Network<Datagram>,
        transfer: u32,
        server: Option<u32>,
        stream: StreamId,
    ) {
        let Some(server) = server else {
            let Some(run) = self.run_mut(transfer) else { return };
            for gone in run.serving.extract_if(.., |peer| peer.stream == stream) {
                if let Part::Given(peer) = gone.part {
                    run.seeding.leave(peer);
                }
            }
            return;
        };
        let host = &mut self.push_mut(transfer).receivers[server as usize];
        host.serving.retain(|peer| peer.stream != stream);
        let serves = !host.serving.is_empty();
        self.tell_guest(net.now(), transfer, server, GuestInput::Serves(serves));
        self.drive_receiver(net, transfer, server);
    }

    /// One of those who fetch has room for more.
    pub(super) fn serve_more(
        &mut self,
        net: &mut Network<Datagram>,
        (transfer, server): (u32, Option<u32>),
        stream: StreamId,
    ) {
        let is_it = |peer: &Serving| peer.stream == stream;
        if self.serving_of(transfer, server).is_some_and(|serving| serving.iter().any(is_it)) {
            self.serve(net, transfer, server);
        }
    }

    fn serving_of(&mut self, transfer: u32, server: Option<u32>) -> Option<&mut Vec<Serving>> {
        let push = self.push_mut(transfer);
        match server {
            None => push.source.run.as_deref_mut().map(|run| &mut run.serving),
            Some(receiver) => Some(&mut push.receivers[receiver as usize].serving),
        }
    }

    /// Sends those who fetch from a host what it has and they lack.
    pub(super) fn serve(&mut self, net: &mut Network<Datagram>, transfer: u32, server: Option<u32>) {
        while self.serve_once(net, transfer, server) {}
        if let Some(receiver) = server {
            self.wake_for_news(net, transfer, receiver);
        }
    }

    /// Writes to each of those who fetch what comes next; gives whether there was anything.
    fn serve_once(&mut self, net: &mut Network<Datagram>, transfer: u32, server: Option<u32>) -> bool {
        let Some(serving) = self.serving_of(transfer, server).filter(|serving| !serving.is_empty()) else {
            return false;
        };
        let (mut serving, now) = (core::mem::take(serving), net.now());
        let mut writes = Vec::new();
        for peer in &mut serving {
            self.next_for_member(now, (transfer, server), peer, &mut writes);
        }
        *self.serving_of(transfer, server).expect("looked at above") = serving;
        self.spoil(now, (transfer, server), &mut writes);
        self.check_served((transfer, server), &writes);
        let push = self.push(transfer);
        let geometry = push.config.geometry(push.object_len);
        let mut streams = BTreeSet::new();
        for (stream, body) in writes {
            let len = body.len(&geometry);
            self.streams.write(stream, 1, Frame { body, channel: 0 }, len);
            streams.insert(stream);
        }
        let wrote = !streams.is_empty();
        streams.into_iter().for_each(|stream| self.streams.pump(net, stream, 1));
        wrote
    }

    /// Groups go to those alone whom the source has told the secret that counts where these are.
    fn check_served(&mut self, (transfer, server): (u32, Option<u32>), writes: &[(StreamId, Body)]) {
        let Some(secret) = self.newest_secret(transfer, server) else { return };
        let fetchers: BTreeSet<u32> = writes
            .iter()
            .filter_map(|(stream, _)| match self.owners[stream.0 as usize] {
                Owner::Mesh { receiver, .. } => Some(receiver),
                _ => None,
            })
            .collect();
        let outside = fetchers.into_iter().filter(|receiver| !self.was_told(secret, *receiver));
        for receiver in outside.collect::<Vec<_>>() {
            self.breaches
                .push(format!("receiver {receiver} is served, and takes no part any more, or not yet"));
        }
    }
}
