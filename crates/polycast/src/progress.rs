//! Display on standard error while a command runs, if a person is watching: the progress of a transfer, its
//! rate, the time left, and its receivers. One component for all commands; anything else written there goes
//! above it.

mod line;

#[cfg(feature = "cluster")]
pub(crate) use line::receivers;
pub(crate) use line::{Pace, RATE_FROM};

use crate::{output, screen};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use line::Position;
use polycast_api::report::Report;
use polycast_types::format_bytes;
use std::cell::{Cell, RefCell};
use std::time::{Duration, Instant};

/// The spinner moves so often, also while nothing happens.
const SPIN_EVERY: Duration = Duration::from_millis(120);
/// A user who sees no bar gets a line so often, and a program an event.
const LINE_EVERY: Duration = Duration::from_secs(5);
const EVENT_EVERY: Duration = Duration::from_secs(1);
/// Display while a command runs; it is invisible where standard error is no terminal, and goes when it is
/// dropped.
pub(crate) struct Progress {
    bar: ProgressBar,
    pace: RefCell<Pace>,
    /// Time when a line was last written instead of a bar, or the transfer began.
    told: Cell<Option<Instant>>,
    /// The length of what was all there when that was told last.
    last: Cell<u64>,
}

impl Progress {
    /// Says `waiting` until bytes flow.
    pub(crate) fn start(waiting: &str) -> Self {
        let target = if output::is_quiet() {
            ProgressDrawTarget::hidden()
        } else {
            ProgressDrawTarget::stderr_with_hz(10)
        };
        let bar = ProgressBar::with_draw_target(None, target);
        bar.set_style(style("{spinner} {wide_msg}"));
        bar.set_message(waiting.to_string());
        bar.enable_steady_tick(SPIN_EVERY);
        screen::show(Some(bar.clone()));
        Progress { bar, pace: RefCell::default(), told: Cell::new(None), last: Cell::new(0) }
    }

    /// Shows how a request for a path stands; a user who sees no bar gets a line.
    pub(crate) fn waiting(&self, text: &str) {
        self.quietly(text);
        self.state(text);
    }

    /// Shows a source's state.
    pub(crate) fn delivery(&self, report: &Report) {
        let running: Vec<_> = report.receivers.iter().filter(|receiver| receiver.error.is_none()).collect();
        if running.is_empty() {
            self.bar.tick();
            return;
        }
        // What all of them have on average: it reaches the end when the last one does.
        let sum: u128 = running.iter().map(|receiver| u128::from(receiver.bytes)).sum();
        let bytes = (sum / running.len() as u128) as u64;
        self.show(bytes, report.bytes, |width| line::receivers(&report.receivers, report.bytes, width));
    }

    /// Shows how the wait for something stands.
    pub(crate) fn state(&self, text: &str) {
        if self.bar.message() != text {
            self.bar.set_style(style("{spinner} {wide_msg}"));
            self.bar.set_message(text.to_string());
        }
        self.bar.tick();
    }

    /// Says it as a line where there is no bar to show it.
    pub(crate) fn quietly(&self, text: &str) {
        if self.bar.is_hidden() {
            output::say(text);
        }
    }

    /// Shows how much has come of what comes here, whose length is 0 where it is not known; `waiting` until
    /// something has.
    pub(crate) fn reception(&self, bytes: u64, total: u64, waiting: &str) {
        match (bytes, total) {
            (0, _) => self.state(waiting),
            (_, 0) => self.state(&format!("{} so far", format_bytes(bytes))),
            _ => self.show(bytes, total, |_| String::new()),
        }
    }

    /// Takes it away.
    pub(crate) fn finish(self) {}

    fn show(&self, bytes: u64, total: u64, beneath: impl FnOnce(usize) -> String) {
        let now = Instant::now();
        let mut pace = self.pace.borrow_mut();
        pace.note(now, bytes);
        let rate_bps = pace.rate_bps();
        if self.bar.is_hidden() {
            let told = self.told.get().unwrap_or(now);
            let every = if output::tells_events() { EVENT_EVERY } else { LINE_EVERY };
            // A program hears of the end, too.
            let is_last = output::tells_events() && bytes == total && self.last.replace(bytes) != bytes;
            let is_due = is_last || now.duration_since(told) >= every;
            if is_due && !output::is_quiet() {
                output::progress(bytes, total, rate_bps.unwrap_or(0.0) as u64);
            }
            self.told.set(Some(if is_due { now } else { told }));
            return;
        }
        let width = screen::width();
        let first = Position { bytes, total, rate_bps }.line(width);
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
