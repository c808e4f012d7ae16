//! A receiver's end of a session: from HELLO to the last word.

use super::{ALIVE_INTERVAL, ANSWER_WITHIN, Called, GOODBYE_WITHIN, Gone, NotCalledFor};
use crate::push::Geometry;
use alloc::collections::VecDeque;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use core::net::IpAddr;
use polycast_types::{Duration, Handle, Location, ModificationTime, ObjectId, Time};
use polycast_wire::WireError;
use polycast_wire::control::{CandidateEnd, Control, Form, Hello, Overlay, Salt, Share, Welcome};

/// A source may ask for no more patience than this: the number is a peer's.
const STALL_MAX: Duration = Duration::from_secs(3_600);
/// Holes count in an object of at most this length, 4 TiB. Room bounds the tables of its groups otherwise,
/// and what a source says of holes must not lift that: these are 64 Mi groups at most.
const SPARSE_LEN_MAX: u64 = 1 << 42;

/// Settings of a guest.
#[derive(Clone, Debug)]
pub struct GuestConfig {
    /// The transfer.
    pub handle: Handle,
    /// Its own name.
    pub name: String,
    /// Bytes of datagrams that its socket holds; 0 where there is no data channel.
    pub window_bytes: u64,
    /// TCP port where it serves others; 0 where it does not.
    pub serve_port: u16,
    /// Its zone and rack.
    pub location: Location,
    /// A source that does not answer HELLO for so long is given up.
    pub answer_timeout: Duration,
    /// Transfer that it was called for; `None` where it comes by itself.
    pub called: Option<Called>,
}

impl GuestConfig {
    /// Returns the shipped settings, for one that has no data channel and serves no others.
    #[must_use]
    pub fn new(handle: Handle, name: String) -> Self {
        let answer_timeout = ANSWER_WITHIN;
        let location = Location::default();
        GuestConfig { handle, name, window_bytes: 0, serve_port: 0, location, answer_timeout, called: None }
    }
}

/// Contents of WELCOME, without borrowed parts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Offer {
    /// The object's name.
    pub object: ObjectId,
    /// Its file or directory name at the source.
    pub name: String,
    /// Form of its bytes.
    pub form: Form,
    /// Permissions of the file at the source.
    pub mode: u16,
    /// Time when the file was last changed, if the source has reported it.
    pub modified: Option<ModificationTime>,
    /// The object's division.
    pub geometry: Geometry,
    /// Bytes of it that are no hole: all of it, where its source knows of no holes.
    pub data_len: u64,
    /// Address and port of the data channel; port 0 where there is none.
    pub channel: (IpAddr, u16),
    /// Bytes of the network's own header before every datagram.
    pub outer_len: u8,
    /// A source without any sign of life for so long is given up.
    pub stall: Duration,
    /// Salt that chooses the bytes that this receiver shows in the end.
    pub salt: Salt,
}

impl From<&Welcome<'_>> for Offer {
    fn from(welcome: &Welcome<'_>) -> Self {
        Offer {
            object: welcome.object,
            name: welcome.name.to_string(),
            form: welcome.form,
            mode: welcome.mode,
            modified: welcome.modified,
            geometry: Geometry {
                object_len: welcome.object_len,
                fragment_len: welcome.fragment_len,
                group_len: welcome.group_len,
            },
            data_len: match welcome.data_len {
                Some(data_len) if welcome.object_len <= SPARSE_LEN_MAX => data_len,
                _ => welcome.object_len,
            },
            channel: welcome.channel,
            outer_len: welcome.outer_len,
            stall: Duration(welcome.stall_ns).min(STALL_MAX),
            salt: welcome.salt,
        }
    }
}

/// Events that a guest handles.
#[derive(Clone, Debug)]
pub enum Input<'a> {
    /// A frame came from the source.
    Frame(&'a Control<'a>),
    /// The connection to the source has ended.
    Gone(Gone),
    /// There is room for the object.
    Stored {
        /// Set if an earlier try has left some of it, which has to be checked against hashes first.
        resumes: bool,
    },
    /// All hashes that the check of an earlier try's part needs are here.
    Verifiable,
    /// Parts that an earlier try left have been checked.
    Checked,
    /// This end cannot go on, for this reason.
    Failed(String),
    /// Others fetch from here just now (`true`), or do not.
    Serves(bool),
    /// The object is where it belongs.
    Committed,
}

/// Way in which a session has ended for a receiver.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum End {
    /// It has the object, and is not needed any more.
    Done,
    /// The source refuses, or gives it up, in these words.
    Refused(String),
    /// The source has not answered HELLO for so long.
    NoAnswer(Duration),
    /// The connection to the source has ended.
    Lost(Gone),
    /// The source has shown no sign of life for so long.
    Silent(Duration),
    /// This end cannot go on, for this reason; the source has been told.
    Failed(String),
    /// Contents that this end was not called for have come; the source has been notified.
    Contradicts(NotCalledFor),
}

/// Actions for the driver.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Output {
    /// Say HELLO, as [`Guest::hello`] has it.
    Hello,
    /// The source offers this: make room for it.
    Offer(Offer),
    /// Check what an earlier try has left.
    Resume,
    /// Say HAVE and take what comes.
    Begin,
    /// Say this to the source.
    Say(Control<'static>),
    /// Say REFUSE with this reason.
    Refuse(String),
    /// Take packets from this data channel from now on.
    Channel {
        /// Address and port.
        channel: (IpAddr, u16),
        /// Bytes of the network's own header before every datagram.
        outer_len: u8,
    },
    /// Choose among these whom to fetch from, and take part in what the source gives where it says an
    /// `entry`.
    Candidates {
        /// Entry number to show the source.
        entry: Option<u64>,
        /// Set if the bytes come into its rack or its zone by one member, in no order.
        is_behind_head: bool,
        /// Address, TCP port and name of each, and the groups that may be requested there.
        ends: Vec<(IpAddr, u16, Option<String>, Share)>,
    },
    /// Speak for these receivers of the rack.
    Speak {
        /// Its own number.
        own: u32,
        /// Theirs.
        members: Vec<u32>,
    },
    /// Let the receiver there speak for this one.
    Follow {
        /// Its own number.
        member: u32,
        /// Address of the other.
        address: IpAddr,
        /// Its TCP port.
        port: u16,
        /// Its name, if the source has said one.
        name: Option<String>,
    },
    /// Speak for itself, and for no other.
    Alone,
    /// The session is over; nothing will follow.
    Ended(End),
}

/// Progress of a guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// It has said HELLO.
    Knocking,
    /// It makes room.
    Storing,
    /// It needs hashes to check what an earlier try has left.
    Waiting,
    /// It checks.
    Checking,
    /// It receives.
    Running,
    /// It has the object since then.
    Committed(Time),
    /// It is over.
    Ended,
}

/// A receiver's end of a session; see the [module](super).
#[derive(Debug)]
pub struct Guest {
    config: GuestConfig,
    stage: Stage,
    /// Time that the source may be silent.
    stall: Duration,
    outputs: VecDeque<Output>,
    heard_at: Time,
    /// Time of its own last sign of life, while it waits for WELCOME or for hashes.
    said_at: Time,
    verifiable: bool,
    chained: bool,
    serves: bool,
    asked_for_ends: bool,
    /// The source has said FINISHED, or is gone after the object was here.
    dismissed: bool,
}

impl Guest {
    /// A guest that says HELLO on a connection that stands.
    #[must_use]
    pub fn new(now: Time, config: GuestConfig) -> Self {
        Guest {
            stage: Stage::Knocking,
            stall: config.answer_timeout,
            outputs: [Output::Hello].into(),
            heard_at: now,
            said_at: now,
            verifiable: false,
            chained: false,
            serves: false,
            asked_for_ends: false,
            dismissed: false,
            config,
        }
    }

    /// Its first frame.
    #[must_use]
    pub fn hello(&self) -> Control<'_> {
        let GuestConfig { handle, ref name, window_bytes, serve_port, ref location, .. } = self.config;
        Control::Hello(Hello { handle, name, window_bytes, serve_port, location: location.names() })
    }

    /// Returns true if the rest comes over TCP, from candidates.
    #[must_use]
    pub fn is_chained(&self) -> bool {
        self.chained
    }

    /// Takes in what happened. Frames that have come are to be handed over before the next `poll`: the
    /// source's silence is judged there.
    pub fn handle(&mut self, now: Time, input: Input<'_>) {
        if self.stage == Stage::Ended {
            return;
        }
        match input {
            Input::Frame(control) => {
                self.heard_at = now;
                self.frame(control);
            }
            Input::Gone(how) => self.gone(how),
            Input::Stored { resumes } => {
                assert_eq!(self.stage, Stage::Storing, "room is made once, for what was offered");
                self.stage = if resumes { Stage::Waiting } else { Stage::Running };
                self.outputs.extend((!resumes).then_some(Output::Begin));
                self.resume();
            }
            Input::Verifiable => {
                self.verifiable = true;
                self.resume();
            }
            Input::Checked => {
                assert_eq!(self.stage, Stage::Checking, "what an earlier try left is checked once");
                // The frames that have come meanwhile are still to be read.
                self.heard_at = now;
                self.stage = Stage::Running;
                self.outputs.push_back(Output::Begin);
            }
            Input::Failed(reason) => {
                self.outputs.push_back(Output::Refuse(reason.clone()));
                self.end(End::Failed(reason));
            }
            Input::Serves(serves) => self.serves = serves,
            Input::Committed => {
                assert_eq!(self.stage, Stage::Running, "an object is received once, after it has begun");
                self.stage = Stage::Committed(now);
                // The frames that have come while the object was put in its place are still to be read.
                self.heard_at = now;
                self.outputs.push_back(Output::Alone);
            }
        }
        if cfg!(debug_assertions) {
            self.check();
        }
    }

    /// Returns the next action, or `None` until `deadline` or the next input.
    pub fn poll(&mut self, now: Time) -> Option<Output> {
        if self.outputs.is_empty() {
            self.look(now);
        }
        self.outputs.pop_front()
    }

    /// Returns the time when `poll` is to be called again if nothing happens before.
    #[must_use]
    pub fn deadline(&self) -> Option<Time> {
        if !self.outputs.is_empty() {
            return Some(Time::ZERO);
        }
        match self.stage {
            Stage::Ended => None,
            Stage::Committed(_) if self.dismissed => Some(Time::ZERO),
            Stage::Committed(_) if self.chained || self.serves => Some(self.heard_at + self.stall),
            Stage::Committed(at) => Some(at + GOODBYE_WITHIN),
            // The driver is at work, and reads no frames meanwhile.
            Stage::Storing | Stage::Checking => None,
            Stage::Knocking | Stage::Waiting | Stage::Running => {
                let silent = self.heard_at + self.stall;
                let alive = (self.stage != Stage::Running).then_some(self.said_at + ALIVE_INTERVAL);
                alive.into_iter().chain([silent]).min()
            }
        }
    }

    /// Returns true if the source lacks the ends that the bytes come from: one of an earlier commit does not
    /// say so, and ends a connection that names them.
    #[must_use]
    pub fn is_asked_for_ends(&self) -> bool {
        self.asked_for_ends
    }

    fn is_committed(&self) -> bool {
        matches!(self.stage, Stage::Committed(_))
    }

    fn end(&mut self, end: End) {
        self.stage = Stage::Ended;
        self.outputs.push_back(Output::Ended(end));
    }

    fn frame(&mut self, control: &Control<'_>) {
        match (self.stage, control) {
            // It has what it came for, whatever the source says now.
            (Stage::Committed(_), Control::Refuse(_) | Control::Finished) => self.dismissed = true,
            (_, Control::Refuse(reason)) => self.end(End::Refused((*reason).to_string())),
            (_, Control::Finished) => self.end(End::Refused("it is over".to_string())),
            (Stage::Knocking, Control::Welcome(welcome)) => {
                let offer = Offer::from(welcome);
                if let Some(Err(why)) = self.config.called.as_ref().map(|called| called.check(&offer)) {
                    return self.contradict(why);
                }
                self.stall = offer.stall;
                self.stage = Stage::Storing;
                self.outputs.push_back(Output::Offer(offer));
            }
            // Nothing else can be the answer to HELLO.
            (Stage::Knocking, _) => self.end(End::Lost(Gone::Foreign(WireError::Malformed))),
            (_, control) => self.later_frame(control),
        }
    }

    fn later_frame(&mut self, control: &Control<'_>) {
        match *control {
            Control::Channel { channel, outer_len } => {
                self.outputs.push_back(Output::Channel { channel, outer_len });
            }
            Control::Overlay(Overlay::Candidates { entry, is_behind_head, ref ends }) => {
                self.chained = true;
                self.outputs.push_back(Output::Alone);
                if !self.is_committed() {
                    let ends = ends.iter().map(|CandidateEnd { end, share }| {
                        (end.address, end.port, end.name.map(ToString::to_string), *share)
                    });
                    let entry = Some(entry).filter(|entry| *entry != 0);
                    let ends = ends.collect();
                    self.outputs.push_back(Output::Candidates { entry, is_behind_head, ends });
                }
            }
            Control::Overlay(Overlay::Lacks(_)) => self.asked_for_ends = true,
            Control::Root(ref root) => {
                if let Some(Err(why)) = self.config.called.as_ref().map(|called| called.check_root(root)) {
                    self.contradict(why);
                }
            }
            Control::Gather { own, ref members } if self.may_share() => {
                self.outputs.push_back(Output::Speak { own, members: members.clone() });
            }
            Control::Speaker { port: 0, .. } => self.outputs.push_back(Output::Alone),
            Control::Speaker { member, address, port, name } if self.may_share() => {
                let name = name.map(ToString::to_string);
                self.outputs.push_back(Output::Follow { member, address, port, name });
            }
            _ => {}
        }
    }

    /// Ends the session where what comes is not what this end was called for: it takes nothing of it.
    fn contradict(&mut self, why: NotCalledFor) {
        if !self.is_committed() {
            self.outputs.push_back(Output::Refuse(why.to_string()));
            self.end(End::Contradicts(why));
        }
    }

    /// Returns true if the rack may share its reports: one that is done or chained has none to share.
    fn may_share(&self) -> bool {
        !self.is_committed() && !self.chained
    }

    fn gone(&mut self, how: Gone) {
        match self.stage {
            Stage::Committed(_) => self.dismissed = true,
            _ => self.end(End::Lost(how)),
        }
    }

    fn resume(&mut self) {
        if self.stage == Stage::Waiting && self.verifiable {
            self.stage = Stage::Checking;
            self.outputs.push_back(Output::Resume);
        }
    }

    /// Does what is due.
    fn look(&mut self, now: Time) {
        match self.stage {
            Stage::Committed(at) => {
                // One of a mesh serves the others until the source says that all are done, or says nothing
                // any more.
                let needed = self.chained || self.serves;
                let is_silent = now.since(self.heard_at) >= self.stall;
                let over = if needed { is_silent } else { now.since(at) >= GOODBYE_WITHIN };
                if self.dismissed || over {
                    self.end(End::Done);
                }
            }
            Stage::Knocking | Stage::Waiting | Stage::Running => {
                if now.since(self.heard_at) >= self.stall {
                    let knocking = self.stage == Stage::Knocking;
                    self.end(if knocking { End::NoAnswer(self.stall) } else { End::Silent(self.stall) });
                } else if self.stage != Stage::Running && now.since(self.said_at) >= ALIVE_INTERVAL {
                    // Others may have the place of one that is silent before it is ready, and its way may be
                    // longer than that.
                    self.said_at = now;
                    self.outputs.push_back(Output::Say(Control::Alive));
                }
            }
            Stage::Storing | Stage::Checking | Stage::Ended => {}
        }
    }

    /// Holds the guest against itself.
    ///
    /// # Panics
    /// Two of its own records contradict each other: a bug here.
    pub fn check(&self) {
        assert!(
            !self.dismissed || matches!(self.stage, Stage::Committed(_) | Stage::Ended),
            "dismissed early"
        );
        let ends = self.outputs.iter().filter(|output| matches!(output, Output::Ended(_))).count();
        assert!(ends <= 1, "it ends twice");
        assert!(ends == 0 || self.stage == Stage::Ended, "it goes on after its end");
    }
}

#[cfg(test)]
mod tests;
