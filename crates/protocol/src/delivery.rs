//! The life of one delivery at its source's agent: which path it asks for, for whom and for how long, and
//! what follows when that is used up, lost, or leads to some of the receivers only (Blast section IV-A).
//!
//! A delivery has one carrier at a time, which sends the object over a path that the manager has granted. A
//! path that was granted for a part of the object is given back when that is sent, and the carrier goes on
//! over the next one. Receivers that a path could not reach get the object by a further carrier. Where a
//! receiver was taken out, the rest goes on under other keys: that is a further carrier, too. All paths
//! together are held no longer than was asked for.
//!
//! Where the source has a delta against an older version, the first carrier brings that, and those that lack
//! the object all the same get it by the next one.
//!
//! The machine sees neither paths nor bytes: its driver holds the path that was granted last, and gives it to
//! the carrier.

use alloc::collections::VecDeque;
use alloc::string::String;
use alloc::vec::Vec;
use polycast_types::{Duration, Time};

/// Maximum number of further carriers for receivers that earlier paths could not reach. Carriers under new
/// keys do not count: a receiver is removed only once.
pub const CARRIERS_AGAIN_MAX: usize = 3;
/// Changes of the receivers that wait for the next carrier; one more than a cluster has agents, twice.
pub const CHANGES_MAX: usize = 8_192;
/// Reason given to a carrier whose path may no longer be held.
const OVER_TIME: &str = "the time is over that its path was asked for";

/// Receivers that a path has to lead to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum To {
    /// All agents of the cluster.
    All,
    /// These, by name.
    Named(Vec<String>),
}

/// Settings of a delivery: its receivers and its limits.
#[derive(Clone, Debug)]
pub struct DeliveryConfig {
    /// The object's length in bytes.
    pub object_len: u64,
    /// The receivers.
    pub to: To,
    /// Time that all paths together are requested for; `None` until they are given back.
    pub lease: Option<Duration>,
    /// Time by which the delivery has to end.
    pub deadline: Option<Time>,
}

/// Form in which a carrier sends the object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// The object as it is.
    Object,
    /// A delta, of which receivers that have the version before make the object.
    Delta,
}

/// A path that is wanted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wanted {
    /// Receivers that it has to lead to.
    pub to: To,
    /// Form that is to be sent over it.
    pub form: Form,
    /// Bytes that are still to be sent.
    pub remaining: u64,
    /// Time that it is requested for; `None` until it is given back.
    pub lease: Option<Duration>,
    /// Set if the current carrier is to continue over it.
    pub goes_on: bool,
}

/// End of a carrier.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ended {
    /// Each of its receivers is done, has failed, or is among these, which its path did not reach.
    Finished {
        /// Their names; of a carrier of a delta those of all that lack the object and have not been taken
        /// out.
        left: Vec<String>,
        /// Set if it has ended so that the rest continues under other keys.
        rekeyed: bool,
    },
    /// No transfer was possible.
    Failed,
}

/// Events that a delivery handles.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Input {
    /// The source of the object is open: the delivery may begin.
    Start {
        /// The length of its delta in bytes, where the source has one.
        delta_len: Option<u64>,
    },
    /// The path that was asked for is there.
    Granted {
        /// Bytes that may be sent over it; `None` for all that remain.
        bytes: Option<u64>,
        /// Time by which it has to be given back.
        ends_at: Option<Time>,
    },
    /// There is no path, for this reason.
    Denied(String),
    /// The manager has changed when the path has to be given back.
    EndsAt(Option<Time>),
    /// The carrier has sent what its path was granted for, and needs more.
    UsedUp {
        /// Bytes that the receiver furthest behind has not verified.
        bytes: u64,
        /// The receivers that are not done.
        receivers: Vec<String>,
    },
    /// The carrier has ended.
    Ended(Ended),
    /// The receivers change; the number is the driver's.
    Change(u64),
    /// It is not wanted any more.
    Cancel,
    /// Time has gone by.
    Tick,
}

/// End of a delivery.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The reports of its carriers say how.
    Carried,
    /// There was no path, for this reason.
    Denied(String),
    /// No path was free before the deadline.
    TooLate,
    /// It was cancelled.
    Cancelled,
    /// The first carrier has failed.
    Failed,
}

/// Actions for the driver.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Output {
    /// Ask the manager for a path.
    Ask(Wanted),
    /// Withdraw the request for a path.
    Unask,
    /// Begin a carrier over the path that was granted.
    Begin {
        /// Form that it sends.
        form: Form,
        /// Bytes that may be sent over it; `None` for all.
        bytes: Option<u64>,
    },
    /// The carrier goes on over the path that was granted.
    Switch {
        /// Bytes that may be sent over it; `None` for all that remain.
        bytes: Option<u64>,
    },
    /// Give the path back.
    GiveBack,
    /// The carrier has to go on without a path, for this reason.
    LosePath(String),
    /// Tell the carrier of this change.
    Change(u64),
    /// End the carrier.
    Stop,
    /// It is over. Changes that no carrier has taken are in vain.
    Done(Outcome),
}

/// Current phase of a delivery.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// Nothing has begun.
    Waiting,
    /// A path for a further carrier was asked for; the first one where none has run.
    Asking,
    /// A carrier runs.
    Carrying,
    /// It was told to end.
    Stopping,
    Over,
}

/// The machine of one delivery: `handle` what happens, then `poll` until `None`, and again at `deadline`.
#[derive(Clone, Debug)]
pub struct Delivery {
    config: DeliveryConfig,
    /// The length of the delta, while that is what is sent.
    delta_len: Option<u64>,
    phase: Phase,
    /// Set while a path is held, with the time by which it has to be given back.
    held: Option<Option<Time>>,
    /// Time that the next path may be held, while none is.
    left: Option<Duration>,
    /// Set while the current carrier waits for a requested path.
    awaits_next: bool,
    /// Number of carriers that have run, and number of those of the object that have finished without new
    /// keys.
    carriers: usize,
    again: usize,
    /// Changes for the next carrier.
    changes: VecDeque<u64>,
    /// Changes that were sent to the carrier of a delta: if it fails they are for the next one.
    told: VecDeque<u64>,
    outputs: VecDeque<Output>,
}

impl Delivery {
    /// A delivery that has not begun.
    #[must_use]
    pub fn new(config: DeliveryConfig) -> Self {
        Delivery {
            left: config.lease,
            config,
            delta_len: None,
            phase: Phase::Waiting,
            held: None,
            awaits_next: false,
            carriers: 0,
            again: 0,
            changes: VecDeque::new(),
            told: VecDeque::new(),
            outputs: VecDeque::new(),
        }
    }

    /// Takes in what has happened.
    pub fn handle(&mut self, now: Time, input: Input) {
        match input {
            Input::Start { delta_len } if self.phase == Phase::Waiting => {
                // One that is as long as the object is worth nothing.
                self.delta_len = delta_len.filter(|len| *len < self.config.object_len);
                self.ask_for_carrier(self.config.to.clone());
            }
            Input::Granted { bytes, ends_at } => self.granted(now, bytes, ends_at),
            Input::Denied(why) => self.denied(why),
            Input::EndsAt(ends_at) => self.held = self.held.map(|_| ends_at),
            Input::UsedUp { bytes, receivers } => self.used_up(now, bytes, receivers),
            Input::Ended(ended) => self.ended(now, ended),
            Input::Change(number) => self.change(number),
            Input::Cancel => self.cancel(),
            Input::Start { .. } | Input::Tick => {}
        }
        let is_late = self.config.deadline.is_some_and(|deadline| now >= deadline);
        if is_late && matches!(self.phase, Phase::Waiting | Phase::Asking) {
            self.give_up();
        }
        if cfg!(debug_assertions) {
            self.check();
        }
    }

    /// Returns the next action.
    pub fn poll(&mut self) -> Option<Output> {
        self.outputs.pop_front()
    }

    /// Returns the time when [`Input::Tick`] is due if nothing else happens before.
    #[must_use]
    pub fn deadline(&self) -> Option<Time> {
        // A carrier looks at the clock itself.
        self.config.deadline.filter(|_| matches!(self.phase, Phase::Waiting | Phase::Asking))
    }

    /// Returns true once the delivery is over.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.phase == Phase::Over
    }

    /// Returns the form that the current carrier sends, or the next one.
    fn form(&self) -> Form {
        if self.delta_len.is_some() { Form::Delta } else { Form::Object }
    }

    /// Bytes of that.
    fn len(&self) -> u64 {
        self.delta_len.unwrap_or(self.config.object_len)
    }

    fn ask_for_carrier(&mut self, to: To) {
        self.phase = Phase::Asking;
        let (form, remaining) = (self.form(), self.len());
        let wanted = Wanted { to, form, remaining, lease: self.left, goes_on: false };
        self.outputs.push_back(Output::Ask(wanted));
    }

    fn granted(&mut self, now: Time, bytes: Option<u64>, ends_at: Option<Time>) {
        let bytes = bytes.filter(|bytes| *bytes < self.len());
        match self.phase {
            Phase::Asking => {
                self.hold(ends_at);
                self.phase = Phase::Carrying;
                self.carriers += 1;
                self.outputs.push_back(Output::Begin { form: self.form(), bytes });
                let changes = core::mem::take(&mut self.changes);
                changes.into_iter().for_each(|number| self.tell(number));
            }
            Phase::Carrying if self.awaits_next => {
                self.hold(ends_at);
                self.awaits_next = false;
                self.outputs.push_back(Output::Switch { bytes });
            }
            // It came when it was not wanted any more.
            Phase::Waiting | Phase::Carrying | Phase::Stopping | Phase::Over => {
                if self.held.is_none() {
                    self.held = Some(ends_at);
                    self.give_back(now);
                }
            }
        }
    }

    /// Tells the carrier that runs of a change.
    fn tell(&mut self, number: u64) {
        self.outputs.push_back(Output::Change(number));
        if self.form() == Form::Delta {
            self.told.push_back(number);
        }
    }

    fn hold(&mut self, ends_at: Option<Time>) {
        assert!(self.held.is_none(), "a path is asked for when the one before was given back");
        self.held = Some(ends_at);
    }

    /// Gives the path back; what is left of its time is for the next one.
    fn give_back(&mut self, now: Time) {
        let Some(ends_at) = self.held.take() else { return };
        self.left = ends_at.map(|at| at.since(now));
        self.outputs.push_back(Output::GiveBack);
    }

    fn denied(&mut self, why: String) {
        match self.phase {
            Phase::Asking if self.carriers == 0 => self.finish(Outcome::Denied(why)),
            // What the carriers before have brought, they have brought.
            Phase::Asking => self.finish(Outcome::Carried),
            Phase::Carrying if self.awaits_next => {
                self.awaits_next = false;
                self.outputs.push_back(Output::LosePath(why));
            }
            Phase::Waiting | Phase::Carrying | Phase::Stopping | Phase::Over => {}
        }
    }

    fn used_up(&mut self, now: Time, bytes: u64, receivers: Vec<String>) {
        if self.phase != Phase::Carrying || self.awaits_next {
            return;
        }
        // Others may be waiting for the path.
        self.give_back(now);
        if self.left == Some(Duration::ZERO) {
            return self.outputs.push_back(Output::LosePath(OVER_TIME.into()));
        }
        self.awaits_next = true;
        let (to, form, remaining) = (To::Named(receivers), self.form(), bytes.min(self.len()));
        let wanted = Wanted { to, form, remaining, lease: self.left, goes_on: true };
        self.outputs.push_back(Output::Ask(wanted));
    }

    fn ended(&mut self, now: Time, ended: Ended) {
        if !matches!(self.phase, Phase::Carrying | Phase::Stopping) {
            return;
        }
        self.unask();
        self.give_back(now);
        if self.phase == Phase::Stopping {
            // It may have been done just then.
            let is_done = matches!(&ended, Ended::Finished { left, .. } if left.is_empty());
            return self.finish(if is_done { Outcome::Carried } else { Outcome::Cancelled });
        }
        let is_over_time = self.left == Some(Duration::ZERO);
        match ended {
            // The object may come even so.
            ended if self.delta_len.take().is_some() => {
                let told = core::mem::take(&mut self.told);
                let to = match ended {
                    Ended::Failed => {
                        self.carriers -= 1;
                        self.changes = told;
                        self.config.to.clone()
                    }
                    Ended::Finished { left, .. } => To::Named(left),
                };
                if is_over_time || to == To::Named(Vec::new()) {
                    let has_carried = self.carriers > 0;
                    return self.finish(if has_carried { Outcome::Carried } else { Outcome::Failed });
                }
                self.ask_for_carrier(to);
            }
            Ended::Failed if self.carriers == 1 => self.finish(Outcome::Failed),
            Ended::Failed => self.finish(Outcome::Carried),
            Ended::Finished { left, rekeyed } => {
                self.again += usize::from(!rekeyed);
                if left.is_empty() || is_over_time || self.again > CARRIERS_AGAIN_MAX {
                    return self.finish(Outcome::Carried);
                }
                self.ask_for_carrier(To::Named(left));
            }
        }
    }

    /// Withdraws the request that was made in mid-transfer.
    fn unask(&mut self) {
        if core::mem::take(&mut self.awaits_next) {
            self.outputs.push_back(Output::Unask);
        }
    }

    /// A change is for the carrier that runs, or for the next one. One that was told to stop takes none.
    fn change(&mut self, number: u64) {
        match self.phase {
            Phase::Carrying if self.told.len() < CHANGES_MAX => self.tell(number),
            Phase::Waiting | Phase::Asking if self.changes.len() < CHANGES_MAX => {
                self.changes.push_back(number)
            }
            Phase::Waiting | Phase::Asking | Phase::Carrying | Phase::Stopping | Phase::Over => {}
        }
    }

    fn cancel(&mut self) {
        match self.phase {
            Phase::Waiting => self.finish(Outcome::Cancelled),
            Phase::Asking => {
                self.outputs.push_back(Output::Unask);
                self.finish(Outcome::Cancelled);
            }
            Phase::Carrying => {
                self.unask();
                self.phase = Phase::Stopping;
                self.outputs.push_back(Output::Stop);
            }
            Phase::Stopping | Phase::Over => {}
        }
    }

    /// The deadline is over while no carrier runs.
    fn give_up(&mut self) {
        if self.phase == Phase::Asking {
            self.outputs.push_back(Output::Unask);
        }
        self.finish(if self.carriers == 0 { Outcome::TooLate } else { Outcome::Carried });
    }

    fn finish(&mut self, outcome: Outcome) {
        self.phase = Phase::Over;
        self.changes.clear();
        self.told.clear();
        self.outputs.push_back(Output::Done(outcome));
    }

    /// Checks what always holds.
    ///
    /// # Panics
    /// It does not hold.
    pub fn check(&self) {
        let carries = matches!(self.phase, Phase::Carrying | Phase::Stopping);
        assert!(self.held.is_none() || carries, "a path is held, and nothing goes over it");
        assert!(
            !self.awaits_next || self.phase == Phase::Carrying,
            "none awaits the path that was asked for"
        );
        assert!(!(self.awaits_next && self.held.is_some()), "a path is asked for beside one that is held");
        assert!(
            self.changes.len() <= CHANGES_MAX && (self.changes.is_empty() || !carries),
            "a change is kept back"
        );
        assert!(
            self.told.is_empty() || (carries && self.form() == Form::Delta),
            "changes of another carrier"
        );
        assert!(self.again <= CARRIERS_AGAIN_MAX + 1 && self.again <= self.carriers);
        assert!(!carries || self.carriers > 0, "a carrier runs that has not begun");
    }
}

#[cfg(test)]
mod tests;
