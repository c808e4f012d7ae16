//! A receiver's place in its rack (Orca appendix A.4): where several share one, the source hears one of them.

use super::frames::{Body, Frame};
use super::streams::StreamId;
use super::{Cluster, Datagram, Owner};
use crate::packet::Network;
use alloc::boxed::Box;
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::format;
use alloc::vec::Vec;
use core::net::IpAddr;
use polycast_protocol::push::feedback::{Feedback, FeedbackConfig, FeedbackInput, FeedbackOutput};
use polycast_types::{Handle, Time};
use polycast_wire::control::Control;

/// The place.
pub(super) enum Rack {
    /// It speaks for itself.
    Alone,
    /// Another one speaks for it.
    Member {
        /// The connection to that one.
        speaker: StreamId,
    },
    /// It speaks for others.
    Speaker(Box<Speaker>),
}

/// State of a speaker.
pub(super) struct Speaker {
    own: u32,
    /// The receivers that may come.
    expected: BTreeSet<u32>,
    feedback: Feedback,
    /// The numbers of those who have come, by connection.
    members: BTreeMap<StreamId, u32>,
}

impl Rack {
    pub(super) fn deadline(&self) -> Option<Time> {
        match self {
            Rack::Speaker(speaker) => speaker.feedback.deadline(),
            Rack::Alone | Rack::Member { .. } => None,
        }
    }
}

impl Cluster {
    fn rack_mut(&mut self, transfer: u32, receiver: u32) -> &mut Rack {
        &mut self.push_mut(transfer).receivers[receiver as usize].rack
    }

    /// The source says that this receiver may speak for others.
    pub(super) fn speak(
        &mut self,
        net: &mut Network<Datagram>,
        transfer: u32,
        receiver: u32,
        (own, members): (u32, Vec<u32>),
    ) {
        self.leave_rack(net, transfer, receiver);
        let feedback = Feedback::new(FeedbackConfig::new(own));
        let expected = members.into_iter().collect();
        let speaker = Speaker { own, expected, feedback, members: BTreeMap::new() };
        *self.rack_mut(transfer, receiver) = Rack::Speaker(Box::new(speaker));
    }

    /// The source says which receiver speaks for this one.
    pub(super) fn follow(
        &mut self,
        net: &mut Network<Datagram>,
        transfer: u32,
        receiver: u32,
        (member, address, port): (u32, IpAddr, u16),
    ) {
        self.leave_rack(net, transfer, receiver);
        let Some((to, Some(speaker))) = self.place(transfer, (address, port)) else {
            self.breaches.push(format!("receiver {receiver} is to follow {address:?}, where no receiver is"));
            return;
        };
        // One that is not there leaves this end to speak for itself.
        if !self.listens(transfer, Some(speaker)) {
            return;
        }
        let host = &self.push(transfer).receivers[receiver as usize];
        let (node, handle) = (host.node, Handle(host.handle.into()));
        let stream = self.open(net, node, to, Owner::Rack { transfer, member: receiver, speaker });
        *self.rack_mut(transfer, receiver) = Rack::Member { speaker: stream };
        self.write_in_rack(net, transfer, stream, &Control::Member { handle, member, ticket: [0; 32] });
    }

    /// Leaves the rack: others that are connected here notice that their connection ends.
    pub(super) fn leave_rack(&mut self, net: &mut Network<Datagram>, transfer: u32, receiver: u32) {
        match core::mem::replace(self.rack_mut(transfer, receiver), Rack::Alone) {
            Rack::Alone => {}
            Rack::Member { speaker } => self.finish(net, speaker, 0),
            Rack::Speaker(speaker) => {
                speaker.members.into_keys().for_each(|stream| self.finish(net, stream, 1));
            }
        }
    }

    /// Says PROGRESS or PTCH_REQ by way of the rack's speaker, if there is one, and everything else to the
    /// source.
    pub(super) fn say_in_rack(
        &mut self,
        net: &mut Network<Datagram>,
        transfer: u32,
        receiver: u32,
        control: &Control<'static>,
    ) {
        let is_for_rack = matches!(control, Control::Progress { .. } | Control::PtchReq(_));
        let now = net.now();
        match self.rack_mut(transfer, receiver) {
            Rack::Member { speaker } if is_for_rack => {
                let speaker = *speaker;
                self.write_in_rack(net, transfer, speaker, control);
            }
            Rack::Speaker(speaker) if is_for_rack => {
                let member = speaker.own;
                speaker.feedback.handle(now, FeedbackInput::Said { member, control });
                self.drive_rack(net, transfer, receiver);
            }
            _ => self.say(net, transfer, receiver, control),
        }
    }

    fn write_in_rack(
        &mut self,
        net: &mut Network<Datagram>,
        transfer: u32,
        stream: StreamId,
        control: &Control<'_>,
    ) {
        let body = Body::of(control);
        let push = self.push(transfer);
        let len = body.len(&push.config.geometry(push.object_len));
        self.streams.write(stream, 0, Frame { body, channel: 0 }, len);
        self.streams.pump(net, stream, 0);
    }

    /// A frame came to a receiver which another one of its rack takes for its speaker.
    pub(super) fn rack_frame(
        &mut self,
        net: &mut Network<Datagram>,
        (transfer, receiver): (u32, u32),
        stream: StreamId,
        body: &Body,
    ) {
        let (now, own) = (net.now(), Handle(self.push(transfer).receivers[receiver as usize].handle.into()));
        let Rack::Speaker(speaker) = self.rack_mut(transfer, receiver) else {
            // It speaks for no rack: one that comes to it is sent away.
            return self.finish(net, stream, 1);
        };
        match (body.control(), speaker.members.get(&stream)) {
            (Some(Control::Member { handle, member, .. }), None)
                if handle == own && speaker.expected.contains(&member) =>
            {
                speaker.members.insert(stream, member);
            }
            (Some(control), Some(&member)) => {
                speaker.feedback.handle(now, FeedbackInput::Said { member, control: &control });
            }
            // It was put out, and does not know yet.
            (_, None) => self.finish(net, stream, 1),
            (None, Some(_)) => self.breaches.push(format!("{body:?} in a rack")),
        }
    }

    /// A connection to a speaker has ended there.
    pub(super) fn rack_left(
        &mut self,
        net: &mut Network<Datagram>,
        transfer: u32,
        receiver: u32,
        stream: StreamId,
    ) {
        let now = net.now();
        if let Rack::Speaker(speaker) = self.rack_mut(transfer, receiver)
            && let Some(member) = speaker.members.remove(&stream)
        {
            speaker.feedback.handle(now, FeedbackInput::Left { member });
            self.drive_receiver(net, transfer, receiver);
        }
    }

    /// A connection to the speaker has ended at a member: it speaks for itself.
    pub(super) fn rack_lost(&mut self, transfer: u32, receiver: u32, stream: StreamId) {
        let rack = self.rack_mut(transfer, receiver);
        if matches!(rack, Rack::Member { speaker } if *speaker == stream) {
            *rack = Rack::Alone;
        }
    }

    /// Does what a rack's feedback asks for.
    pub(super) fn drive_rack(&mut self, net: &mut Network<Datagram>, transfer: u32, receiver: u32) {
        let now = net.now();
        loop {
            let Rack::Speaker(speaker) = self.rack_mut(transfer, receiver) else { return };
            let Some(output) = speaker.feedback.poll(now) else { return };
            match output {
                FeedbackOutput::ToSource(control) => self.say(net, transfer, receiver, &control),
                FeedbackOutput::PutOut { member } => {
                    let found = speaker.members.iter().find(|(_, number)| **number == member);
                    if let Some(stream) = found.map(|(stream, _)| *stream) {
                        speaker.members.remove(&stream);
                        self.finish(net, stream, 1);
                    }
                }
            }
        }
    }
}
