//! Looking at what is here already, before anything is taken.

use super::super::error::TransferError;
use super::{Input, Run};
use polycast_protocol::session::GuestInput;
use polycast_wire::control::Control;

impl Run {
    /// Looks at some groups of what an earlier try left, and of older versions; gives whether there may be
    /// more at once.
    pub(super) fn look(&mut self) -> Result<bool, TransferError> {
        let (Some(looking), Some(assembler)) = (&mut self.looking, &mut self.assembler) else {
            return Ok(false);
        };
        let turn = looking.turn(assembler)?;
        let (more, done) = (turn.more, looking.is_done());
        self.holes_len += turn.holes_len;
        self.in_place += turn.in_place;
        if turn.ask_sums {
            self.link.say(&Control::AskSums);
        }
        for group in turn.held {
            self.mark(group);
            self.machine.handle(self.clock.now(), Input::Held { group });
        }
        // It may take a while: the source is to see that this end lives.
        self.link.sign();
        if done {
            self.looking = None;
            self.link.handle(GuestInput::Verifiable);
        }
        Ok(more && !done)
    }

    /// Sums of groups that may lie elsewhere in an older version.
    pub(super) fn add_sums(&mut self, first: u64, sums: &[u64]) -> Result<(), TransferError> {
        let hashes = self.assembler.as_ref().map_or(0, |assembler| assembler.hashes().len() as u64);
        // Those that come when the search is over are not needed any more.
        let Some(looking) = &mut self.looking else { return Ok(()) };
        match looking.add_sums(first, sums, hashes) {
            true => Ok(()),
            false => Err(TransferError::Contradiction("it tells sums that nothing asks for".into())),
        }
    }

    /// A group is verified, and in the part file.
    pub(super) fn mark(&mut self, group: u64) {
        self.served.mark(group);
        self.note_verified(group);
        if let Some(arrivals) = &self.spec.options.arrivals {
            arrivals.came(self.offer.geometry.group_bytes(group));
        }
    }

    /// Records that the data here has been checked.
    pub(super) fn looked(&mut self) {
        let bytes = self.machine.verified_bytes();
        // Holes are nothing that was here.
        self.spared_bytes = bytes - self.holes_len;
        tracing::info!(bytes, holes = self.holes_len, "these need not be sent");
        // Groups from elsewhere, and holes of the object alone, do not make what is there the object.
        self.unchanged = self.in_place == self.offer.geometry.groups();
        self.link.handle(GuestInput::Checked);
    }
}
