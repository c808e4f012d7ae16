//! Display on standard error while a command runs, if a person is watching: the progress of a transfer, its
//! rate, the time left, and its receivers. One component for all commands; anything else written there goes
//! above it.

mod line;

pub(crate) use line::{Pace, RATE_FROM};
#[cfg(feature = "cluster")]
pub(crate) use line::{rate_or_wait, receivers};

use crate::{output, screen};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use line::Position;
use polycast_agent::transfer::ReceiverProgress;
use polycast_api::report::{ReceiverReport, Report};
use polycast_types::format_bytes;
use std::cell::{Cell, RefCell};
use std::time::{Duration, Instant};

/// The spinner moves so often, also while nothing happens.
const SPIN_EVERY: Duration = Duration::from_millis(120);
/// A user who sees no bar gets a line so often, and a program an event.
const LINE_EVERY: Duration = Duration::from_secs(5);
const EVENT_EVERY: Duration = Duration::from_secs(1);
/// Time since it last grew up to which an object that is here in part grows: two of the intervals at which an
/// agent is asked.
const GROWS_WITHIN: Duration = Duration::from_millis(500);
/// States of a receiver in which a rate says nothing.
const FIRST_AWAITED: &str = "waiting for the first byte";
const FOUND_HERE: &str = "from what was here";

/// Progress of an object that comes here.
#[derive(Clone, Copy, Debug)]
pub struct Arrived {
    /// Bytes that are here.
    pub bytes: u64,
    /// Bytes of these that did not have to come.
    pub spared_bytes: u64,
    /// Its length; 0 where it is not known.
    pub total: u64,
}

impl Arrived {
    /// The state of a receiver of this process.
    pub fn of(state: &ReceiverProgress) -> Self {
        let ReceiverProgress { bytes, spared_bytes, total, .. } = *state;
        Arrived { bytes, spared_bytes, total }
    }

    /// Returns the state where no rate says anything: none while it comes over the network.
    fn state(&self, grows: bool, ending: &'static str) -> Option<&'static str> {
        match self.bytes.saturating_sub(self.spared_bytes) {
            _ if self.bytes >= self.total => Some(ending),
            0 if grows => Some(FOUND_HERE),
            0 => Some(FIRST_AWAITED),
            _ => None,
        }
    }
}

/// Display while a command runs; it is invisible where standard error is no terminal, and goes when it is
/// dropped.
pub struct Progress {
    bar: ProgressBar,
    /// Bytes that come over the network.
    pace: RefCell<Pace>,
    /// Bytes that are here of an object that comes, and since when.
    grown: Cell<(u64, Option<Instant>)>,
    /// Time when a line was last written instead of a bar, or the transfer began.
    told: Cell<Option<Instant>>,
    /// The length of what was all there when that was told last.
    last: Cell<u64>,
}

impl Progress {
    /// Says `waiting` until bytes flow.
    pub fn start(waiting: &str) -> Self {
        let target = if output::is_quiet() { ProgressDrawTarget::hidden() } else { screen::target() };
        let bar = ProgressBar::with_draw_target(None, target);
        bar.set_style(style("{spinner} {wide_msg}"));
        bar.set_message(waiting.to_string());
        bar.enable_steady_tick(SPIN_EVERY);
        screen::show(Some(bar.clone()));
        let (pace, grown) = (RefCell::default(), Cell::new((0, None)));
        Progress { bar, pace, grown, told: Cell::new(None), last: Cell::new(0) }
    }

    /// Shows how a request for a path stands; a user who sees no bar gets a line.
    pub fn waiting(&self, text: &str) {
        self.quietly(text);
        self.state(text);
    }

    /// Shows a source's state.
    pub fn delivery(&self, report: &Report) {
        let running: Vec<_> = report.receivers.iter().filter(|receiver| receiver.error.is_none()).collect();
        if running.is_empty() {
            self.bar.tick();
            return;
        }
        // What all of them have on average: it reaches the end when the last one does.
        let average = |of: fn(&ReceiverReport) -> u64| {
            let sum: u128 = running.iter().map(|receiver| u128::from(of(receiver))).sum();
            (sum / running.len() as u128) as u64
        };
        let came = average(|receiver| receiver.came_bytes);
        let at = self.position(came, (average(|receiver| receiver.bytes), report.bytes), None);
        self.show(at, |width| line::receivers(&report.receivers, report.bytes, width));
    }

    /// Shows how the wait for something stands.
    pub fn state(&self, text: &str) {
        if self.bar.message() != text {
            self.bar.set_style(style("{spinner} {wide_msg}"));
            self.bar.set_message(text.to_string());
        }
        self.bar.tick();
    }

    /// Says it as a line where there is no bar to show it.
    pub fn quietly(&self, text: &str) {
        if self.bar.is_hidden() {
            output::say(text);
        }
    }

    /// Shows how much is here of what comes here; `waiting` until something is, and `ending` once all is.
    pub fn reception(&self, arrived: Arrived, waiting: &str, ending: &'static str) {
        let Arrived { bytes, spared_bytes, total } = arrived;
        match (bytes, total) {
            (0, _) => return self.state(waiting),
            (_, 0) => return self.state(&format!("{} so far", format_bytes(bytes))),
            _ => {}
        }
        let now = Instant::now();
        if self.grown.get().0 != bytes {
            self.grown.set((bytes, Some(now)));
        }
        let grows = self.grown.get().1.is_some_and(|at| now.duration_since(at) < GROWS_WITHIN);
        let (came, state) = (bytes.saturating_sub(spared_bytes), arrived.state(grows, ending));
        self.show(self.position(came, (bytes, total), state), |_| String::new());
    }

    /// Takes it away.
    pub fn finish(self) {}

    /// Returns the position where so many bytes have come over the network.
    fn position(&self, came: u64, (bytes, total): (u64, u64), state: Option<&'static str>) -> Position {
        let mut pace = self.pace.borrow_mut();
        pace.note(Instant::now(), came);
        Position { bytes, came, total, rate_bps: pace.rate_bps(), state }
    }

    fn show(&self, at: Position, beneath: impl FnOnce(usize) -> String) {
        let (now, Position { bytes, total, .. }) = (Instant::now(), at);
        if self.bar.is_hidden() {
            let told = self.told.get().unwrap_or(now);
            let every = if output::tells_events() { EVENT_EVERY } else { LINE_EVERY };
            // A program hears of the end, too.
            let is_last = output::tells_events() && bytes == total && self.last.replace(bytes) != bytes;
            let is_due = is_last || now.duration_since(told) >= every;
            if is_due && !output::is_quiet() {
                at.tell();
            }
            self.told.set(Some(if is_due { now } else { told }));
            return;
        }
        let width = screen::shown_width();
        let first = at.line(width);
        let second = beneath(width);
        let text = if second.is_empty() { first } else { format!("{first}\n{second}") };
        if self.bar.message() != text {
            self.bar.set_style(style("{msg}"));
            self.bar.set_message(text);
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        screen::show(None);
        self.bar.finish_and_clear();
    }
}

/// A style from a template that is known to be right.
fn style(template: &str) -> ProgressStyle {
    ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_spinner())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One that has all but a group of the object waits for its source, and then for the others.
    #[test]
    fn a_receiver_says_what_it_waits_for() {
        let state = |bytes, spared_bytes, grows| {
            Arrived { bytes, spared_bytes, total: 100 }.state(grows, "here; waiting for the others")
        };
        assert_eq!(state(40, 40, true), Some("from what was here"));
        assert_eq!(state(99, 99, false), Some("waiting for the first byte"));
        assert_eq!(state(99, 98, false), None);
        assert_eq!(state(100, 99, true), Some("here; waiting for the others"));
        assert_eq!(state(100, 100, false), Some("here; waiting for the others"));
    }
}
