//! The session of a transfer: which receivers are called, come and are waited for, when it starts, which are
//! given up and with which sentence (Republic section III-A, the hand-shake around Table III).
//!
//! [`Roster`] is the source's end and [`Guest`] a receiver's end, for the push and the pull transport alike;
//! [`Telling`] decides when a receiver may know of all hashes, and so have the object, and [`Tickets`] whom
//! either end serves. All but the last are machines: `handle(now, Input)`, then `poll(now)` until `None`, and
//! again at `deadline()`. They hear control frames and the fate of connections, and say which frames to send
//! and which connections to end; sockets, bytes and hashes are the driver's.
//!
//! ```text
//! Guest -> Roster   HELLO
//! Roster -> Guest   WELCOME             or REFUSE, with a sentence of [`Why`]
//! Guest -> Roster   HAVE                it is ready; when all are, or have been waited for: Start
//!                   ..                  the transport's own frames
//! Guest -> Roster   DATA_RCVD           settled; or its connection ends, or it is given up
//! Roster -> Guest   FINISHED or REFUSE  the end
//! ```
//!
//! Two rules hold for both transports:
//!
//! - **Which receivers may come.** Where the receivers are named, only they, each once at a time. Where they
//!   are counted, anyone until all places are taken; several of one name are told apart by a number (`x#2`).
//!   One that has failed may come again while the transfer runs, unless it was taken out, or the path cannot
//!   reach it; a named one is called again once its connection has ended, and waited for a little.
//! - **When it starts.** Where the receivers are named, when all are ready, or when none has become ready for
//!   [`QUIET_AFTER`]: the others join while it runs. Where they are counted a person starts them one by one,
//!   and it starts when all are ready, or with those there are when the time to join is over.

mod called;
mod guest;
mod roster;
mod telling;
mod tickets;
mod why;

pub use called::{Called, NotCalledFor, Permitted};
pub use guest::{End, Guest, GuestConfig, Input as GuestInput, Offer, Output as GuestOutput};
pub use roster::{
    Entry, Expected, Goodbye, GuestId, Input as RosterInput, Output as RosterOutput, Roster, RosterConfig,
    Stage, Verdicts,
};
pub use telling::{Input as TellingInput, Output as TellingOutput, Telling};
pub use tickets::{Admission, Ticket, Tickets};
pub use why::{Gone, Why};

use polycast_types::Duration;

/// A source looks so often whether its bytes are still what they were.
pub const LOOK_INTERVAL: Duration = Duration::from_secs(1);
/// A connection hears something of the source at least this often.
pub const ALIVE_INTERVAL: Duration = Duration::from_millis(500);
/// Named receivers that are ready wait for the others until none has become ready for so long.
pub const QUIET_AFTER: Duration = Duration::from_millis(500);
/// A receiver that has said HELLO says something at least this often until it says HAVE; otherwise another
/// one may have its place.
pub const HAVE_WITHIN: Duration = Duration::from_secs(2);
/// A source answers HELLO within this time.
pub const ANSWER_WITHIN: Duration = Duration::from_secs(2);
/// A receiver that is served, and verifies nothing more for so long, has failed, whatever it says.
pub const PROGRESS_WITHIN: Duration = Duration::from_secs(30);
/// Lowest rate at which the parts that an earlier try left are checked, in bytes a second: a slow disk's.
pub const CHECKED_PER_SECOND: u64 = 16 << 20;
/// Time that a receiver that is done waits for the source's FINISHED.
pub const GOODBYE_WITHIN: Duration = Duration::from_secs(3);
