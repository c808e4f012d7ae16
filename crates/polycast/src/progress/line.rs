//! The two lines of a running transfer, as text of a given width: how far it is, and for whom it runs.

use crate::output::{self, Format};
use polycast_api::report::ReceiverReport;
use polycast_types::{Printable, format_bytes, format_rate};
use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// A rate is that of so long a time: long enough to be read, short enough to be true.
const RATE_OVER: Duration = Duration::from_secs(2);
/// Least time that has a rate: over a shorter one it would be chance.
pub(crate) const RATE_FROM: Duration = Duration::from_millis(100);
/// Positions are kept so far apart, so that there are few of them.
const KEPT_EVERY: Duration = Duration::from_millis(50);
/// Cells of the bar.
const BAR_MIN: usize = 8;
const BAR_MAX: usize = 30;
/// A time that is left is said up to this.
const LEFT_MAX_S: f64 = 100.0 * 3600.0;
/// Receivers that are waited for are named up to so many.
const AWAITED_MAX: usize = 3;
/// Up to so many receivers are shown one by one.
const NAMED_MAX: usize = 8;

/// Recent rate at which bytes arrive.
#[derive(Default)]
pub(crate) struct Pace {
    /// Byte counts with their times, the oldest first.
    seen: VecDeque<(Instant, u64)>,
}

impl Pace {
    /// Notes how many bytes there are; fewer than before are those of another object.
    pub(crate) fn note(&mut self, now: Instant, bytes: u64) {
        if self.seen.back().is_some_and(|(_, before)| bytes < *before) {
            self.seen.clear();
        }
        while self.seen.get(1).is_some_and(|(at, _)| now.duration_since(*at) >= RATE_OVER) {
            self.seen.pop_front();
        }
        // The last one moves until it is far enough from the one before it.
        if let [.., (before, _), (last, last_bytes)] = self.seen.make_contiguous()
            && last.duration_since(*before) < KEPT_EVERY
        {
            (*last, *last_bytes) = (now, bytes);
            return;
        }
        self.seen.push_back((now, bytes));
    }

    /// Bits a second, once there is a time to count by.
    pub(crate) fn rate_bps(&self) -> Option<f64> {
        let ((first, before), (last, bytes)) = (self.seen.front()?, self.seen.back()?);
        let span = last.duration_since(*first);
        (span >= RATE_FROM).then(|| (bytes - before) as f64 * 8.0 / span.as_secs_f64())
    }
}

/// Progress of a transfer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Position {
    /// Bytes that are there.
    pub bytes: u64,
    /// Bytes of these that came over the network.
    pub came: u64,
    /// Bytes that there will be.
    pub total: u64,
    /// Rate at which they come over the network.
    pub rate_bps: Option<f64>,
    /// State in which no rate says anything.
    pub state: Option<&'static str>,
}

/// A rate for people: one that gets nothing waits.
pub(crate) fn rate_or_wait(rate_bps: f64) -> String {
    if rate_bps == 0.0 { "waiting".to_string() } else { format_rate(rate_bps) }
}

impl Position {
    fn percent(&self) -> u64 {
        percent(self.bytes, self.total)
    }

    /// `1.21 Gbit/s`, or the state; nothing where neither is known.
    pub(crate) fn happening(&self) -> Option<String> {
        self.state.map(str::to_string).or_else(|| self.rate_bps.map(rate_or_wait))
    }

    /// Says it where no bar shows it: a line for people, or an event.
    pub(crate) fn tell(&self) {
        let Position { bytes, came, total, .. } = *self;
        let (rate_bps, spared_bytes) = (self.rate_bps.unwrap_or(0.0), bytes.saturating_sub(came));
        if output::tells_events() {
            let event = serde_json::json!({
                "event": "progress", "bytes": bytes, "spared_bytes": spared_bytes, "total": total,
                "rate_bps": rate_bps as u64,
            });
            return output::event(Format::Json, &event, || ());
        }
        let happening = self.happening().unwrap_or_else(|| rate_or_wait(rate_bps));
        output::say(&format!("{}% of {}, {happening}", self.percent(), format_bytes(total)));
    }

    /// `54.00 of 188.17 MiB`
    fn amount(&self) -> String {
        let units = [(1u64 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")];
        match units.iter().find(|(unit, _)| self.total >= *unit) {
            Some((unit, name)) => {
                let of = |bytes: u64| bytes as f64 / *unit as f64;
                format!("{:.2} of {:.2} {name}", of(self.bytes), of(self.total))
            }
            None => format!("{} of {} B", self.bytes, self.total),
        }
    }

    /// `1 min 5 s left`; nothing where it is not known.
    fn left(&self) -> Option<String> {
        let rate_bps = self.rate_bps.filter(|rate| *rate > 0.0 && self.state.is_none())?;
        let left_s = self.total.saturating_sub(self.bytes) as f64 * 8.0 / rate_bps;
        let whole = left_s.ceil() as u64;
        match whole {
            _ if left_s > LEFT_MAX_S => None,
            0..60 => Some(format!("{whole} s left")),
            60..3600 => Some(format!("{} min {} s left", whole / 60, whole % 60)),
            _ => Some(format!("{} h {} min left", whole / 3600, whole / 60 % 60)),
        }
    }

    /// The bar and what is beside it: what has no room is left out, the amount first.
    pub(crate) fn line(&self, width: usize) -> String {
        let percent = format!("{:>3}%", self.percent());
        let rate = self.happening();
        let (amount, left) = (Some(self.amount()), self.left());
        let choices = [
            [amount, rate.clone(), left.clone()],
            [None, rate, left.clone()],
            [None, None, left],
            [None, None, None],
        ];
        for beside in choices {
            let text = beside.into_iter().flatten().fold(percent.clone(), |text, next| text + "  " + &next);
            let Some(room) = width.checked_sub(text.chars().count() + 3) else { continue };
            if room >= BAR_MIN {
                return format!("{} {text}", self.bar(room.min(BAR_MAX)));
            }
        }
        percent
    }

    fn bar(&self, cells: usize) -> String {
        let full = match self.total {
            0 => cells,
            total => (u128::from(self.bytes.min(total)) * cells as u128 / u128::from(total)) as usize,
        };
        let head = if full < cells { ">" } else { "" };
        format!("[{}{head}{}]", "=".repeat(full), " ".repeat((cells - full).saturating_sub(1)))
    }
}

fn percent(bytes: u64, total: u64) -> u64 {
    (u128::from(bytes) * 100).checked_div(u128::from(total)).unwrap_or(100) as u64
}

/// For whom it runs: each receiver by name where they are few and there is room, else whom it waits for, and
/// how far those are.
pub(crate) fn receivers(all: &[ReceiverReport], total: u64, width: usize) -> String {
    let done = all.iter().filter(|receiver| receiver.verified).count();
    if all.len() <= NAMED_MAX && done == 0 {
        let each: Vec<String> = all.iter().map(|receiver| state(receiver, total)).collect();
        let line = each.join("  ");
        if console::measure_text_width(&line) <= width {
            return line;
        }
    }
    let mut line = format!("{done} of {} done", all.len());
    let failed: Vec<&ReceiverReport> = all.iter().filter(|receiver| receiver.error.is_some()).collect();
    match &failed[..] {
        [] => {}
        [one] => line += &format!(", {} FAILED", Printable(&one.name)),
        more => line += &format!(", {} FAILED", more.len()),
    }
    let mut running: Vec<&ReceiverReport> =
        all.iter().filter(|receiver| !receiver.verified && receiver.error.is_none()).collect();
    running.sort_by_key(|receiver| receiver.bytes);
    match &running[..] {
        [] => {}
        few if few.len() <= AWAITED_MAX => {
            let names: Vec<String> = few.iter().map(|receiver| state(receiver, total)).collect();
            let all = format!("{line}, waiting for {}", names.join(", "));
            // Where there is no room for all, the slowest is the one that counts.
            line = match console::measure_text_width(&all) <= width {
                true => all,
                false => with_one(&format!("{line}, slowest "), few[0], total, width),
            };
        }
        [slowest, ..] => {
            let median = percent(running[running.len() / 2].bytes, total);
            line = with_one(&format!("{line}, median {median}%, slowest "), slowest, total, width);
        }
    }
    console::truncate_str(&line, width, "..").into_owned()
}

/// A line that ends with a receiver: its name is cut where there is no room, and its percents stay.
fn with_one(before: &str, receiver: &ReceiverReport, total: u64, width: usize) -> String {
    let percent = format!(" {}%", percent(receiver.bytes, total));
    let name = Printable(&receiver.name).to_string();
    let room = width.saturating_sub(console::measure_text_width(before) + percent.len());
    format!("{before}{}{percent}", console::truncate_str(&name, room, ".."))
}

/// A receiver in a few words.
fn state(receiver: &ReceiverReport, total: u64) -> String {
    let (name, percent) = (Printable(&receiver.name), percent(receiver.bytes, total));
    match (receiver.verified, &receiver.error) {
        (true, _) => format!("{name} done"),
        (_, Some(error)) => format!("{name} FAILED ({})", Printable(error)),
        (false, None) if receiver.slow => {
            format!("{name} {percent}% (slow: {})", format_rate(receiver.rate_bps))
        }
        (false, None) => format!("{name} {percent}%"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn receiver(name: &str, bytes: u64, verified: bool, error: Option<&str>) -> ReceiverReport {
        ReceiverReport {
            name: name.to_string(),
            verified,
            bytes,
            fabric: "ip-multicast".into(),
            error: error.map(str::to_string),
            ..ReceiverReport::default()
        }
    }

    #[test]
    fn a_line_fits_and_leaves_out_the_amount_first() {
        let at = Position {
            bytes: 54 * MIB,
            came: 54 * MIB,
            total: 188 * MIB,
            rate_bps: Some(1.21e9),
            state: None,
        };
        assert_eq!(
            at.line(80),
            "[========>                    ]  28%  54.00 of 188.00 MiB  1.21 Gbit/s  1 s left"
        );
        assert_eq!(at.line(60), "[==>      ]  28%  54.00 of 188.00 MiB  1.21 Gbit/s  1 s left");
        assert_eq!(at.line(40), "[==>       ]  28%  1.21 Gbit/s  1 s left");
        assert_eq!(at.line(20), "[===>         ]  28%");
        let held_up = Position { rate_bps: Some(0.0), ..at };
        assert_eq!(held_up.line(60), "[======>                ]  28%  54.00 of 188.00 MiB  waiting");
        let here = Position { bytes: 188 * MIB, state: Some("here; waiting for the others"), ..at };
        assert_eq!(here.line(60), "[=======================] 100%  here; waiting for the others");
        for (bytes, total, rate_bps) in [
            (0, 0, None),
            (0, 3, None),
            (7, 7, Some(0.0)),
            (1, u64::MAX, Some(1.0)),
            (u64::MAX, u64::MAX, Some(8e12)),
            (5 * MIB, 900_000 * MIB, Some(123.456e6)),
        ] {
            for width in 4..130 {
                let line = Position { bytes, came: bytes, total, rate_bps, state: None }.line(width);
                assert!(line.chars().count() <= width, "{width}: {line}");
                assert!(line.contains('%'), "{width}: {line}");
            }
        }
    }

    #[test]
    fn the_time_that_is_left_is_said_where_it_is_known() {
        for (rate_bps, left) in [
            (None, None),
            (Some(0.0), None),
            (Some(1.0), None),
            (Some(8.0 * MIB as f64), Some("1 h 40 min left")),
            (Some(80.0 * MIB as f64), Some("10 min 0 s left")),
            (Some(8e3 * MIB as f64), Some("6 s left")),
        ] {
            let at = Position { bytes: 0, came: 0, total: 6_000 * MIB, rate_bps, state: None };
            assert_eq!(at.left().as_deref(), left, "{rate_bps:?}");
        }
    }

    #[test]
    fn a_rate_is_that_of_the_last_two_seconds() {
        let (begun, mut pace) = (Instant::now(), Pace::default());
        let at = |ms| begun + Duration::from_millis(ms);
        // Ten seconds of waiting do not count, nor does a time that is too short to count.
        for ms in (0..=10_000).step_by(10) {
            pace.note(at(ms), 0);
        }
        assert_eq!(pace.rate_bps(), Some(0.0));
        for ms in (10_010..=12_100).step_by(10) {
            pace.note(at(ms), (ms - 10_000) * 1_000);
        }
        assert!((pace.rate_bps().unwrap() - 8e6).abs() < 1.0, "{:?}", pace.rate_bps());
        assert!(pace.seen.len() <= 64, "{}", pace.seen.len());
        // Another object.
        pace.note(at(12_110), 5);
        assert_eq!(pace.rate_bps(), None);
        pace.note(at(12_150), 500);
        assert_eq!(pace.rate_bps(), None);
        pace.note(at(12_310), 25_005);
        assert!((pace.rate_bps().unwrap() - 1e6).abs() < 1.0, "{:?}", pace.rate_bps());
    }

    #[test]
    fn few_receivers_are_named() {
        let mut receivers_of = [
            receiver("a", 50, false, None),
            receiver("b", 100, false, None),
            receiver("c", 0, false, Some("gone")),
        ];
        assert_eq!(receivers(&receivers_of, 100, 80), "a 50%  b 100%  c FAILED (gone)");
        receivers_of[1].verified = true;
        assert_eq!(receivers(&receivers_of, 100, 80), "1 of 3 done, c FAILED, waiting for a 50%");
        assert_eq!(receivers(&receivers_of[..1], 0, 80), "a 100%");
    }

    #[test]
    fn many_receivers_are_counted() {
        let mut many = vec![receiver("quick", 100, true, None); 7];
        many.push(receiver("slow", 10, false, None));
        assert_eq!(receivers(&many, 100, 80), "7 of 8 done, waiting for slow 10%");
        many.extend((20..25).map(|bytes| receiver("middle", bytes, false, None)));
        assert_eq!(receivers(&many, 100, 80), "7 of 13 done, median 22%, slowest slow 10%");
        assert_eq!(receivers(&many, 100, 40), "7 of 13 done, median 22%, slowest .. 10%");
        let each: Vec<_> = (0..8).map(|at| receiver(&format!("a-long-name-{at}"), at, false, None)).collect();
        assert_eq!(receivers(&each, 8, 60), "0 of 8 done, median 50%, slowest a-long-name-0 0%");
        // Names that take two columns a letter.
        let wide: Vec<_> = (0..8).map(|at| receiver(&"\u{6a5f}".repeat(at + 1), 1, false, None)).collect();
        for width in 40..90 {
            assert!(console::measure_text_width(&receivers(&wide, 8, width)) <= width, "{width}");
        }
        assert_eq!(receivers(&each[..3], 8, 40), "0 of 3 done, slowest a-long-name-0 0%");
    }
}
