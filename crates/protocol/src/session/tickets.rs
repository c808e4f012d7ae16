//! Connections that an end of a transfer serves besides the session itself: ENTER and MEMBER have to show
//! that their sender takes part.
//!
//! A transfer's handle is in clear in every packet, and opens nothing. Where connections are sealed, one that
//! fetches, or speaks for a rack, shows a ticket: what the transfer's secret gives for this one connection.
//! Ends that the source lets take part have the secret; one that was taken out has that of an earlier
//! transfer.

use polycast_types::Handle;
use polycast_wire::control::{Control, Hash, Overlay};

/// Ticket that a connection has to show.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ticket {
    /// Nothing: connections are not sealed, and all who reach this end may take part.
    NotNeeded,
    /// This one; `None` where no ticket opens this connection, because its ends have not shown who they are.
    Needed(Option<Hash>),
}

/// Decision on a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Admission {
    /// It is let in.
    In,
    /// It is for another transfer, or for nothing that tickets open.
    Elsewhere,
    /// It is for this transfer, and its other end takes no part.
    Foreign {
        /// Number of those that came so far.
        so_far: u64,
        /// Set if that is worth a line in a log: one that tries often fills none.
        is_told: bool,
    },
}

/// The one that looks at tickets, at one end of one transfer.
#[derive(Debug)]
pub struct Tickets {
    handle: Handle,
    foreign: u64,
}

impl Tickets {
    /// Creates the check for the transfer with this handle.
    #[must_use]
    pub fn new(handle: Handle) -> Self {
        Tickets { handle, foreign: 0 }
    }

    /// Decides if a connection with this first frame is let in, where it has to show the ticket `needed`.
    pub fn judge(&mut self, frame: &Control<'_>, needed: Ticket) -> Admission {
        let (Control::Member { handle, ticket: shown, .. }
        | Control::Overlay(Overlay::Enter { handle, ticket: shown, .. })) = frame
        else {
            return Admission::Elsewhere;
        };
        if *handle != self.handle {
            return Admission::Elsewhere;
        }
        let is_right = match needed {
            Ticket::NotNeeded => true,
            Ticket::Needed(right) => right.is_some_and(|right| is_same(&right, shown)),
        };
        if is_right {
            return Admission::In;
        }
        self.foreign += 1;
        Admission::Foreign { so_far: self.foreign, is_told: self.foreign.is_power_of_two() }
    }
}

/// Compares two tickets, in a time that does not reveal where they differ.
fn is_same(one: &Hash, other: &Hash) -> bool {
    one.iter().zip(other).fold(0, |differ, (a, b)| differ | (a ^ b)) == 0
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec::Vec;

    #[test]
    fn a_ticket_opens_its_transfer_and_nothing_else() {
        let (own, other) = (Handle(1), Handle(2));
        let enter =
            |handle, ticket| Control::Overlay(Overlay::Enter { handle, ticket, entry: 0, have: Vec::new() });
        let member = |handle, ticket| Control::Member { handle, member: 3, ticket };
        let right = Ticket::Needed(Some([7; 32]));
        let mut almost = [7; 32];
        almost[31] = 6;
        for frame in [enter(own, [7; 32]), member(own, [7; 32])] {
            assert_eq!(Tickets::new(own).judge(&frame, right), Admission::In);
            assert_eq!(Tickets::new(own).judge(&frame, Ticket::NotNeeded), Admission::In);
            let none = Tickets::new(own).judge(&frame, Ticket::Needed(None));
            assert_eq!(none, Admission::Foreign { so_far: 1, is_told: true });
            assert_eq!(Tickets::new(other).judge(&frame, Ticket::NotNeeded), Admission::Elsewhere);
        }
        let mut door = Tickets::new(own);
        let told: Vec<Admission> = [0; 5].iter().map(|_| door.judge(&enter(own, almost), right)).collect();
        let is_told = [true, true, false, true, false];
        let expected = (1..).zip(is_told).map(|(so_far, is_told)| Admission::Foreign { so_far, is_told });
        assert_eq!(told, expected.collect::<Vec<_>>());
        assert_eq!(door.judge(&Control::Alive, Ticket::NotNeeded), Admission::Elsewhere);
    }
}
