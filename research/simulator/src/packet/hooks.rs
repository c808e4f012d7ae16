//! An eye on a world and a hand in it, for those who check it from outside.
//!
//! A world tells its [`Observer`] of every input of its machines, and of every act of an attacker. A
//! [`Tamper`] has it leave a [`Step`] out, to show that a check notices. Without [`Hooks`] no one is told
//! anything, and every step is done.

use super::world::{Happening, Taking};
use alloc::rc::Rc;
use polycast_protocol::pull;
use polycast_protocol::push::overlay::UpstreamsInput;
use polycast_protocol::push::{ReceiverInput, SenderInput};
use polycast_protocol::session::{GuestInput, RosterInput};

/// An event of a world.
#[derive(Clone, Copy)]
pub enum Event<'a> {
    /// A machine that sends by push gets an input.
    Sender(&'a SenderInput<'a>),
    /// A machine that receives by push gets an input.
    Receiver(&'a ReceiverInput<'a>),
    /// A receiver's choice of upstreams gets an input.
    Upstreams(&'a UpstreamsInput<'a>),
    /// The source's end of the sessions gets an input.
    Roster(&'a RosterInput<'a>),
    /// A receiver's end of its session gets an input.
    Guest(&'a GuestInput<'a>),
    /// A forwarder gets an input.
    Forwarder(&'a pull::ForwarderInput),
    /// A machine that sends by pull gets an input.
    PullSource(&'a pull::SourceInput),
    /// A machine that receives by pull gets an input.
    PullReceiver(&'a pull::ReceiverInput),
    /// Something planned comes about.
    Happening(&'a Happening),
    /// An object that comes asks for the pages of an older version.
    Pages(Taking),
    /// An attacker does something, or is turned away.
    Attack(Act),
}

/// An act of an attacker, outside a transfer or with a receiver in it (a member).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Act {
    /// It drops a packet.
    Drops,
    /// It holds a packet back.
    Delays,
    /// It sends a packet a second time.
    Repeats,
    /// It changes a packet on its way.
    Changes,
    /// It drops a segment of a connection.
    DropsSegment,
    /// It holds a segment back.
    DelaysSegment,
    /// It sends a segment a second time.
    RepeatsSegment,
    /// It changes a segment, and the connection ends.
    ChangesSegment,
    /// It writes into a connection of others.
    CutsIn,
    /// It sends a packet that it has kept.
    Replays,
    /// It sends a packet of another transfer.
    ReplaysEarlier,
    /// It sends a packet that it has changed.
    SendsChanged,
    /// It sends a packet of its own making.
    Injects,
    /// It sends as many packets as the source.
    Floods,
    /// It sends one packet, and nothing else.
    ForgesOne,
    /// It calls a receiver without a permit.
    Calls,
    /// It says HELLO in another's name.
    SpeaksAs,
    /// A member forges a fragment.
    MemberForges,
    /// A member forges a position.
    MemberJumps,
    /// A member forges a coded patch.
    MemberPatches,
    /// A member says that it has the object, without the proof.
    Unproven,
    /// A member lies of its progress.
    LiesProgress,
    /// A member lies of where it has begun.
    LiesPosition,
    /// A member asks for what it has.
    Asks,
    /// A member says that packets were forged.
    Complains,
    /// A member serves wrong bytes in the mesh.
    ServesWrong,
    /// A source offers or sends what it has not called for.
    SourceLies,
    /// A member says that it lacks what it does not.
    Lacks,
    /// A member says of another one that it is of no use.
    Blames,
    /// A member says that it has everything.
    Boasts,
    /// A member does not give what it is asked for.
    Keeps,
    /// A member asks an end of the mesh for all that it has.
    Fetches,
    /// One without a right ticket is turned away.
    TurnedAway,
}

/// A step of a world around its machines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Send a patch of a fragment whose number is 5 modulo 8.
    SendPatch,
    /// Name a receiver to the transport that becomes ready while a transfer runs.
    NameReady,
    /// End the service of a receiver that is taken out of a transfer.
    EndRemoved,
    /// Send the receivers the data channel that takes the place of theirs.
    SendChannel,
    /// Request another path when the allowance of one is used up.
    RequestPath,
    /// Keep the reports of a speaker to the receivers of its rack.
    KeepToRack,
    /// Give each fragment a nonce of its own.
    ChangeNonce,
    /// Seal with another key once a receiver has left.
    ChangeKey,
    /// Install the label of a session that is planned anew.
    InstallLabel,
    /// Install the relays of a session that is planned anew.
    InstallRelays,
    /// Check the bytes of a group that came.
    CheckGroup,
    /// Check the bytes of a group of an older version.
    CheckOlder,
    /// Check whether a process has an older version open, before its pages are taken.
    CheckReaders,
    /// Await the processes that are about to open an older version.
    AwaitReaders,
    /// Check that a source offers what it has called for.
    CheckOffer,
    /// Check the permit of a source that calls.
    CheckPermit,
    /// Check the tag of a packet's header.
    CheckHeader,
    /// Check the proof of a receiver that says that it has the object.
    CheckProof,
    /// Check the name that a receiver gives itself against its certificate.
    CheckName,
    /// Check the ticket of one that fetches.
    CheckTicket,
    /// End the service of one that fetches, once it was taken out.
    EndFetch,
    /// Drop a forged packet in no more time than another one takes.
    DropForgery,
    /// Report the groups that none of a receiver's candidates has.
    ReportLacks,
}

/// One that is told of the events of a world.
pub trait Observer {
    /// An event is about to be handled.
    fn see(&self, event: Event<'_>);
}

/// One that has a world leave steps out.
pub trait Tamper {
    /// Returns true if the world is to go on without this step.
    fn leaves_out(&self, step: Step) -> bool;
}

/// Lets a world leave one step out.
impl Tamper for Step {
    fn leaves_out(&self, step: Step) -> bool {
        *self == step
    }
}

/// The observer of a world, and what tampers with it.
#[derive(Clone, Default)]
pub struct Hooks {
    observer: Option<Rc<dyn Observer>>,
    tamper: Option<Rc<dyn Tamper>>,
}

impl Hooks {
    /// Tells this observer of all events.
    #[must_use]
    pub fn observed(observer: Rc<dyn Observer>) -> Self {
        Hooks { observer: Some(observer), tamper: None }
    }

    /// The same, and steps are left out.
    #[must_use]
    pub fn tampered(self, tamper: Rc<dyn Tamper>) -> Self {
        Hooks { tamper: Some(tamper), ..self }
    }

    pub(super) fn see(&self, event: Event<'_>) {
        if let Some(observer) = &self.observer {
            observer.see(event);
        }
    }

    pub(super) fn leaves_out(&self, step: Step) -> bool {
        self.tamper.as_ref().is_some_and(|tamper| tamper.leaves_out(step))
    }
}
