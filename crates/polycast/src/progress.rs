//! A bar on standard error while a transfer runs, if a person is watching.

use crate::output;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use polycast_agent::transfer::ReceiverProgress;
use polycast_api::report::{ReceiverReport, Report};
use polycast_types::{Printable, format_rate};
use std::cell::Cell;
use std::fmt::Write;
use std::time::{Duration, Instant};

/// The spinner moves so often, also while nothing happens.
const SPIN_EVERY: Duration = Duration::from_millis(120);
/// A user who sees no bar gets a line so often.
const LINE_EVERY: Duration = Duration::from_secs(5);
/// Up to so many receivers are shown one by one.
const NAMED_RECEIVERS_MAX: usize = 8;

/// The bar; it is invisible where standard error is no terminal.
pub(crate) struct Progress {
    bar: ProgressBar,
    /// When a line was written instead of a bar, or the transfer began, and the bytes then.
    line: Cell<Option<(Instant, u64)>>,
}

impl Progress {
    /// A bar that says `waiting` until bytes flow.
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
        Progress { bar, line: Cell::new(None) }
    }

    /// Shows how a request for a path stands; a user who sees no bar gets a line.
    pub(crate) fn waiting(&self, text: &str) {
        if self.bar.is_hidden() {
            output::say(text);
        }
        self.bar.set_message(text.to_string());
    }

    /// Shows what path was granted.
    pub(crate) fn granted(&self, text: &str) {
        self.bar.set_message(text.to_string());
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
        self.show((sum / running.len() as u128) as u64, report.bytes);
        self.bar.set_message(states(&report.receivers, report.bytes));
    }

    /// Shows which receivers have come while others are waited for.
    pub(crate) fn gathering(&self, text: &str) {
        if self.bar.message() != text {
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

    /// Shows a receiver's state.
    pub(crate) fn reception(&self, progress: &ReceiverProgress) {
        self.show(progress.bytes, progress.total);
    }

    /// Says something that stays, above the bar.
    pub(crate) fn note(&self, text: &str) {
        self.bar.suspend(|| output::say(text));
    }

    /// Takes the bar away.
    pub(crate) fn finish(self) {
        self.bar.finish_and_clear();
    }

    fn show(&self, bytes: u64, total: u64) {
        if self.bar.is_hidden() && !output::is_quiet() {
            let now = Instant::now();
            let (since, before) = self.line.get().unwrap_or((now, bytes));
            let span = now.duration_since(since);
            if span >= LINE_EVERY {
                let rate = bytes.saturating_sub(before) as f64 * 8.0 / span.as_secs_f64();
                output::progress(bytes, total, rate as u64);
                self.line.set(Some((now, bytes)));
            } else if self.line.get().is_none() {
                self.line.set(Some((now, bytes)));
            }
        }
        if self.bar.length() != Some(total) {
            let template = "[{bar:30}] {percent:>3}% {binary_bytes} of {binary_total_bytes}, \
                {binary_bytes_per_sec}, {eta} left\n{wide_msg}";
            self.bar.set_style(style(template));
            self.bar.set_message("");
            self.bar.set_length(total);
            self.bar.reset_elapsed();
            self.bar.reset_eta();
        }
        self.bar.set_position(bytes);
    }
}

/// A style from a template that is known to be right.
fn style(template: &str) -> ProgressStyle {
    ProgressStyle::with_template(template)
        .unwrap_or_else(|_| ProgressStyle::default_bar())
        .progress_chars("=> ")
}

/// The receivers in one line: each by name if they are few, else how many are how far.
fn states(receivers: &[ReceiverReport], total: u64) -> String {
    let percent = |receiver: &ReceiverReport| match total {
        0 => 100,
        total => (u128::from(receiver.bytes) * 100 / u128::from(total)) as u64,
    };
    let mut line = String::new();
    if receivers.len() <= NAMED_RECEIVERS_MAX {
        for receiver in receivers {
            let _ = match (receiver.verified, &receiver.error) {
                (true, _) => write!(line, "{} done  ", Printable(&receiver.name)),
                (_, Some(error)) => {
                    write!(line, "{} FAILED ({})  ", Printable(&receiver.name), Printable(error))
                }
                (false, None) if receiver.slow => {
                    let (name, rate) = (Printable(&receiver.name), format_rate(receiver.rate_bps));
                    write!(line, "{name} {}% (slow: {rate})  ", percent(receiver))
                }
                (false, None) => write!(line, "{} {}%  ", Printable(&receiver.name), percent(receiver)),
            };
        }
        return line;
    }
    let done = receivers.iter().filter(|receiver| receiver.verified).count();
    let failed = receivers.iter().filter(|receiver| receiver.error.is_some()).count();
    let _ = write!(line, "{done} done, {failed} failed, {} receiving", receivers.len() - done - failed);
    let running = receivers.iter().filter(|receiver| !receiver.verified && receiver.error.is_none());
    if let Some(slowest) = running.min_by_key(|receiver| receiver.bytes) {
        let _ = write!(line, " (slowest: {} {}%)", Printable(&slowest.name), percent(slowest));
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    fn receiver(name: &str, bytes: u64, verified: bool, error: Option<&str>) -> ReceiverReport {
        ReceiverReport {
            name: name.to_string(),
            verified,
            seconds: 0.0,
            bytes,
            patched_bytes: 0,
            fabric: "ip-multicast".into(),
            error: error.map(str::to_string),
            ..ReceiverReport::default()
        }
    }

    #[test]
    fn few_receivers_are_named() {
        let receivers = [
            receiver("a", 50, false, None),
            receiver("b", 100, true, None),
            receiver("c", 0, false, Some("gone")),
        ];
        assert_eq!(states(&receivers, 100), "a 50%  b done  c FAILED (gone)  ");
        assert_eq!(states(&receivers[..1], 0), "a 100%  ");
    }

    #[test]
    fn many_receivers_are_counted() {
        let mut receivers = vec![receiver("quick", 100, true, None); 7];
        receivers.push(receiver("slow", 10, false, None));
        receivers.push(receiver("middle", 60, false, None));
        assert_eq!(states(&receivers, 100), "7 done, 0 failed, 2 receiving (slowest: slow 10%)");
    }
}
