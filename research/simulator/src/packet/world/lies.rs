//! A source that lies: it has called receivers for one object, and offers or sends another one.

use super::streams::StreamId;
use super::{Cluster, Datagram};
use crate::packet::Network;
use crate::packet::hooks::{Act, Event};
use alloc::format;
use alloc::string::String;
use polycast_protocol::session::{Called, Offer, Permitted};
use polycast_types::{DataId, ObjectId, Time};
use polycast_wire::control::{Control, Hash, NOWHERE};

/// The name of objects at their sources.
const NAME: &str = "object";
/// Their root hash: what is sent has an ideal one.
const ROOT: Hash = [0; 32];

/// False statement of a source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Lie {
    Object,
    Length,
    Name,
    Root,
}

impl Lie {
    /// Object, name, length and root hash as a source says them that has called for this.
    pub(super) fn told(lie: Option<Self>, called: &Called) -> (ObjectId, &'static str, u64, Hash) {
        let Called { object, object_len, .. } = *called;
        match lie {
            None => (object, NAME, object_len, ROOT),
            Some(Lie::Object) => (ObjectId { data: DataId(9), ..object }, NAME, object_len, ROOT),
            Some(Lie::Length) => (object, NAME, object_len + 1, ROOT),
            Some(Lie::Name) => (object, "another name", object_len, ROOT),
            Some(Lie::Root) => (object, NAME, object_len, [1; 32]),
        }
    }
}

impl Cluster {
    /// Returns the content of the call to the receivers of a transfer.
    pub(super) fn called_for(&self, transfer: u32) -> Called {
        let push = self.push(transfer);
        let permitted = Permitted { source: String::new(), name: NAME.into(), channel: NOWHERE };
        Called {
            object: ObjectId::default(),
            object_len: push.object_len,
            root: Some(ROOT),
            permitted: Some(permitted),
        }
    }

    /// Plans a false statement of the source for the next time that this receiver is welcomed.
    pub(super) fn plan_lie(&mut self, net: &mut Network<Datagram>, to: u32) {
        let guard = self.guard.as_deref_mut().expect("there is an attacker");
        let lie = *guard.random.pick(&[Lie::Object, Lie::Length, Lie::Name, Lie::Root]);
        guard.lies.insert(to, lie);
        // It comes again by a connection of its own.
        if let Some(stream) = self.push(0).receivers[to as usize].control {
            self.break_both(net, stream);
            self.join(net, 0, to);
        }
    }

    /// Returns the false statement that the source makes on a connection, if any.
    pub(super) fn lie_for(&mut self, now: Time, transfer: u32, stream: StreamId) -> Option<Lie> {
        let receiver = self.push(transfer).source.run.as_ref()?.conns.get(&stream)?.receiver;
        let guard = self.guard.as_deref_mut().filter(|guard| transfer == 0 && now < guard.attack.until)?;
        let lie = guard.lies.remove(&receiver)?;
        self.hooks.see(Event::Attack(Act::SourceLies));
        Some(lie)
    }

    /// A receiver takes an offer.
    pub(super) fn check_offer(&mut self, transfer: u32, receiver: u32, offer: &Offer) {
        if let Err(why) = self.called_for(transfer).check(offer) {
            self.breaches.push(format!("receiver {receiver} takes what it was not called for: {why}"));
        }
    }

    /// A receiver has heard this on a connection, and goes on or not.
    pub(super) fn check_root(
        &mut self,
        (transfer, receiver): (u32, u32),
        stream: StreamId,
        control: &Control<'_>,
    ) {
        let Control::Root(root) = control else { return };
        let host = &self.push(transfer).receivers[receiver as usize];
        // One that is done has seen by the bytes what their hash is.
        let goes_on = host.control == Some(stream) && !host.is_done();
        if let Some(why) = self.called_for(transfer).check_root(root).err().filter(|_| goes_on) {
            self.breaches.push(format!("receiver {receiver} takes what it was not called for: {why}"));
        }
    }
}
