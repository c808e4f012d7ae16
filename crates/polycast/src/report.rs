//! The report of a transfer, as JSON and as text.

use crate::exit::{Exit, Failure};
use crate::output::{self, Format};
use crate::progress::RATE_FROM;
use crate::screen::Tone;
use polycast_agent::transfer::Received;
use polycast_api::report::{Delivery, ReceiverReport, Report, goodput_bps};
use polycast_net::object::ObjectKind;
use polycast_types::{Printable, format_bytes, format_rate};
use serde::Serialize;
use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::PathBuf;

/// A wait for the source is told from this on.
const WAIT_FROM_S: f64 = 0.5;

/// Paths at which receivers of this process have put their copies, by their names.
pub type Copies = BTreeMap<String, PathBuf>;

/// Report of `accept`.
#[derive(Serialize, Clone, PartialEq, Debug)]
pub struct Acceptance {
    /// The object's id.
    pub object: String,
    /// Its name at the source.
    pub name: String,
    /// `file`, `directory` or `set`.
    pub kind: &'static str,
    /// Its length.
    pub bytes: u64,
    /// From the first contact with the source to the end.
    pub seconds: f64,
    /// Seconds of these before the first bytes came: the source waits for its receivers.
    pub waited_s: f64,
    /// Bits of the object a second from then on.
    pub goodput_bps: f64,
    /// Always so: what is not verified is never accepted.
    pub verified: bool,
    /// Bytes that came as patches.
    pub patched_bytes: u64,
    /// Bytes that were here already, of an older version or an earlier try, and were not sent.
    pub spared_bytes: u64,
    /// Bytes that came over the network: the others were here, or are holes.
    pub came_bytes: u64,
    /// Hash groups of 256 KiB that came with wrong bytes, and again: another host sends to the data channel,
    /// or a cable is bad.
    pub corrupt_groups: u64,
    /// Set if only the source and its receivers could read the bytes in transit.
    pub sealed: bool,
    /// Packets that came for the transfer and were not its source's.
    pub forged_packets: u64,
    /// BLAKE3 root hash in hex.
    pub root: String,
    /// Path of the object; `-` is standard output.
    pub path: PathBuf,
    /// It was there already, and was left as it is.
    pub unchanged: bool,
}

/// `file` or `directory`.
pub fn kind_name(kind: ObjectKind) -> &'static str {
    match kind {
        ObjectKind::File => "file",
        ObjectKind::Directory => "directory",
        ObjectKind::Set => "set",
    }
}

/// Prints the report of a delivery, says which receivers failed and why, and gives the exit status.
pub fn conclude(delivery: &Delivery, format: Format) -> Result<Exit, Failure> {
    output::result(format, delivery, &text(delivery, &Copies::new()))?;
    Ok(complain(&delivery.report))
}

/// The same of a delivery to all, which these have missed: names, and for how many milliseconds they have
/// been silent.
pub fn conclude_without(
    delivery: &Delivery,
    missed: &[(String, u64)],
    format: Format,
) -> Result<Exit, Failure> {
    #[derive(Serialize)]
    struct Sent<'a> {
        #[serde(flatten)]
        delivery: &'a Delivery,
        missed: Vec<&'a str>,
    }
    let names = missed.iter().map(|(name, _)| name.as_str()).collect();
    output::result(format, &Sent { delivery, missed: names }, &text(delivery, &Copies::new()))?;
    for (name, silent_ms) in missed {
        let silent = seconds(*silent_ms as f64 / 1e3);
        output::say(&format!("missed: {} was not there, and was heard of {silent} ago", Printable(name)));
    }
    Ok(complain(&delivery.report))
}

/// Says what happened to the path, which receivers failed and why, and gives the exit status.
pub fn complain(report: &Report) -> Exit {
    if let Some(reason) = &report.path_lost {
        output::say(&format!("the transfer went on without its path: {}", Printable(reason)));
    }
    // Where nothing was sent, no fabric would have done better.
    for passed in report.passed_over.iter().filter(|_| report.sent_bytes > 0 || verified(report) == 0) {
        output::say(&format!("not over {}: {}", Printable(&passed.fabric), Printable(&passed.why)));
    }
    for (at, what) in report.events.iter().filter(|(_, what)| Some(what) != report.path_lost.as_ref()) {
        output::say(&format!("after {}: {}", seconds(*at), Printable(what)));
    }
    let mut exit = Exit::Done;
    for receiver in report.receivers.iter().filter(|receiver| !receiver.verified) {
        let (name, why) = (Printable(&receiver.name), Printable(why(receiver)));
        output::say(&format!("error: {name} failed: {why}"));
        exit = Exit::Failed;
    }
    if report.receivers.is_empty() {
        output::say("error: there was no receiver");
        exit = Exit::Failed;
    }
    exit
}

/// Returns the reason for a receiver's failure.
pub fn why(receiver: &ReceiverReport) -> &str {
    receiver.error.as_deref().unwrap_or("it did not verify all bytes")
}

/// Returns the number of receivers that have verified the object.
fn verified(report: &Report) -> usize {
    report.receivers.iter().filter(|receiver| receiver.verified).count()
}

/// The report, and where each receiver's copy is.
pub fn document(delivery: &Delivery, copies: &Copies) -> Result<serde_json::Value, Failure> {
    let mut document = serde_json::to_value(delivery)
        .map_err(|error| Failure::unexpected(format!("cannot write JSON: {error}")))?;
    for (at, receiver) in delivery.report.receivers.iter().enumerate() {
        if let Some(path) = copies.get(&receiver.name) {
            document["receivers"][at]["path"] = path.to_string_lossy().into();
        }
    }
    Ok(document)
}

/// The account for people.
pub fn text(delivery: &Delivery, copies: &Copies) -> String {
    let report = &delivery.report;
    let verified = verified(report);
    let how = match verified {
        0 => format!(" over {}", report.fabric),
        _ if came(report) == 0 => ": nothing had to be sent".to_string(),
        _ => format!("{} over {}", rate(came(report), report.seconds), report.fabric),
    };
    let mut text = format!(
        "{} ({}) to {verified} of {} receivers in {}{how}\n",
        Printable(&delivery.name),
        format_bytes(report.bytes),
        report.receivers.len(),
        seconds(report.seconds),
    );
    let names = report.receivers.iter().map(|receiver| Printable(&receiver.name).to_string());
    let names: Vec<String> = names.collect();
    let width = names.iter().map(|name| name.chars().count()).max().unwrap_or(0);
    for (receiver, name) in report.receivers.iter().zip(&names) {
        let state = match receiver.verified {
            true => Tone::Good.of_result("verified"),
            false => Tone::Bad.of_result("FAILED  "),
        };
        let _ = write!(text, "  {name:width$}  {state}  {:>8}", seconds(receiver.seconds));
        if receiver.patched_bytes > 0 {
            let _ = write!(text, "  {} patched", format_bytes(receiver.patched_bytes));
        }
        if receiver.spared_bytes > 0 {
            let _ = write!(text, "  had {}", format_bytes(receiver.spared_bytes));
        }
        if receiver.slow {
            let _ = write!(text, "  slow: {}", format_rate(receiver.rate_bps));
        } else if let Some(reason) = receiver.reason.as_ref().filter(|_| receiver.error.is_none()) {
            let _ = write!(text, "  {}", Printable(reason));
        }
        if let Some(path) = copies.get(&receiver.name) {
            let _ = write!(text, "  {}", path.display());
        }
        text.push('\n');
    }
    let (sent, patches) = (format_bytes(report.sent_bytes), format_bytes(report.patched_bytes));
    let _ = writeln!(text, "sent {sent}, of these {patches} as patches");
    if let Some(saved) = saved(report) {
        let _ = writeln!(text, "{saved}");
    }
    if let Some(zones) = between_zones(report) {
        let _ = writeln!(text, "{zones}");
    }
    if let Some(root) = &report.root {
        let _ = writeln!(text, "BLAKE3 {root}");
    }
    text
}

impl From<Received> for Acceptance {
    fn from(received: Received) -> Self {
        let came_s = received.seconds - received.waited;
        Acceptance {
            object: received.object.to_string(),
            name: received.name,
            kind: kind_name(received.kind),
            bytes: received.bytes,
            seconds: received.seconds,
            waited_s: received.waited,
            goodput_bps: goodput_bps(received.bytes, came_s),
            verified: true,
            patched_bytes: received.patched_bytes,
            spared_bytes: received.spared_bytes,
            came_bytes: received.came_bytes,
            corrupt_groups: received.corrupt_groups,
            sealed: received.sealed,
            forged_packets: received.forged_packets,
            root: received.root,
            path: received.path,
            unchanged: received.unchanged,
        }
    }
}

impl Acceptance {
    /// The account for people.
    pub fn text(&self) -> String {
        if self.unchanged {
            let (name, len) = (Printable(&self.name), format_bytes(self.bytes));
            return format!("{name} ({len}) is up to date: {}\nBLAKE3 {}\n", self.path.display(), self.root);
        }
        let waited = match self.waited_s >= WAIT_FROM_S {
            true => format!(", after {} of waiting", seconds(self.waited_s)),
            false => String::new(),
        };
        let came_s = self.seconds - self.waited_s;
        let how = match self.came_bytes {
            0 => ", nothing had to be sent".to_string(),
            came => rate(came, came_s),
        };
        let mut text = format!(
            "{} ({}) verified in {}{waited}{how}: {}\n",
            Printable(&self.name),
            format_bytes(self.bytes),
            seconds(came_s),
            self.path.display(),
        );
        if self.patched_bytes > 0 {
            let _ = writeln!(text, "{} came as patches", format_bytes(self.patched_bytes));
        }
        if self.spared_bytes > 0 {
            let _ = writeln!(text, "{} were here already", format_bytes(self.spared_bytes));
        }
        if self.corrupt_groups > 0 {
            let _ = writeln!(text, "{} groups of 256 KiB came with wrong bytes first", self.corrupt_groups);
        }
        let _ = writeln!(text, "BLAKE3 {}", self.root);
        text
    }
}

/// `, 9.41 Gbit/s`, of bytes that came; nothing where the time was too short for a rate to mean anything.
fn rate(came: u64, seconds: f64) -> String {
    if seconds < RATE_FROM.as_secs_f64() {
        return String::new();
    }
    format!(", {}", format_rate(goodput_bps(came, seconds)))
}

/// The most that came to one of the receivers: what it had already did not travel.
fn came(report: &Report) -> u64 {
    let verified = report.receivers.iter().filter(|receiver| receiver.verified);
    verified.map(|receiver| receiver.came_bytes).max().unwrap_or(0)
}

/// Copies of the object that left its host, and those that did not have to: `1 copy left this host, 7 were
/// saved`. Nothing where none was saved.
fn saved(report: &Report) -> Option<String> {
    let verified = report.receivers.iter().filter(|receiver| receiver.verified);
    let come: u64 = verified.map(|receiver| receiver.came_bytes).sum();
    let copies = |bytes: u64| (bytes as f64 / report.bytes.max(1) as f64 * 100.0).round() / 100.0;
    let (left, saved) = (copies(report.sent_bytes), copies(come.saturating_sub(report.sent_bytes)));
    let verb = |number: f64| if (number - 1.0).abs() < f64::EPSILON { "was" } else { "were" };
    let noun = if (left - 1.0).abs() < f64::EPSILON { "copy" } else { "copies" };
    (saved >= 0.1).then(|| format!("{left} {noun} left this host, {saved} {} saved", verb(saved)))
}

/// Pairs of zones that are named.
const ZONES_NAMED_MAX: usize = 8;

/// Copies of the object that went from zone to zone over TCP: `between zones: a to b 1.00 copies`. Nothing
/// where none did.
fn between_zones(report: &Report) -> Option<String> {
    let mut zones: Vec<_> = report.zones.iter().collect();
    zones.sort_by_key(|zone| std::cmp::Reverse(zone.bytes));
    let copies = |bytes: u64| bytes as f64 / report.bytes.max(1) as f64;
    let named = zones.iter().take(ZONES_NAMED_MAX).map(|zone| {
        format!("{} to {} {:.2} copies", Printable(&zone.from), Printable(&zone.to), copies(zone.bytes))
    });
    let named = named.collect::<Vec<_>>().join(", ");
    match zones.len().saturating_sub(ZONES_NAMED_MAX) {
        0 if zones.is_empty() => None,
        0 => Some(format!("between zones: {named}")),
        more => Some(format!("between zones: {named} and {more} more")),
    }
}

/// A span for people: three digits say enough.
pub fn seconds(seconds: f64) -> String {
    if 0.0 < seconds && seconds < 0.000_095 {
        format!("{:.0} us", seconds * 1e6)
    } else if seconds < 0.0995 {
        format!("{:.1} ms", seconds * 1e3)
    } else if seconds < 9.95 {
        format!("{seconds:.2} s")
    } else if seconds < 600.0 {
        format!("{seconds:.1} s")
    } else {
        format!("{} min {:02.0} s", (seconds / 60.0) as u64, (seconds % 60.0).floor())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_read_well() {
        for (span, text) in [
            (0.0, "0.0 ms"),
            (0.000_074_6, "75 us"),
            (0.000_9, "0.9 ms"),
            (0.0123, "12.3 ms"),
            (1.234, "1.23 s"),
            (60.0, "60.0 s"),
            (659.9, "10 min 59 s"),
        ] {
            assert_eq!(seconds(span), text);
        }
    }

    #[test]
    fn copies_that_were_saved_are_counted() {
        let receiver = |verified, spared_bytes| {
            let came_bytes = if verified { 1_000 - spared_bytes } else { 0 };
            ReceiverReport { verified, spared_bytes, came_bytes, ..ReceiverReport::default() }
        };
        let of = |sent_bytes, receivers| {
            let report = serde_json::from_value(serde_json::json!({
                "object": "7", "bytes": 1_000, "seconds": 1.0, "fabric": "ip-multicast", "sent_bytes": sent_bytes,
                "patched_bytes": 0, "receivers": [],
            }));
            saved(&Report { receivers, ..report.unwrap() })
        };
        let all = |count| vec![receiver(true, 0); count];
        assert_eq!(of(1_000, all(8)).unwrap(), "1 copy left this host, 7 were saved");
        assert_eq!(of(1_060, all(2)).unwrap(), "1.06 copies left this host, 0.94 were saved");
        assert_eq!(of(1_000, all(2)).unwrap(), "1 copy left this host, 1 was saved");
        // What a receiver had already was saved by nothing, and one that failed got no copy.
        assert_eq!(of(1_000, vec![receiver(true, 0), receiver(true, 1_000), receiver(false, 0)]), None);
        assert_eq!(of(1_000, all(1)), None);
        assert_eq!(of(0, Vec::new()), None);
    }

    #[test]
    fn copies_between_zones_are_named() {
        let of = |zones: serde_json::Value| {
            let report: Report = serde_json::from_value(serde_json::json!({
                "object": "7", "bytes": 1_000, "seconds": 1.0, "fabric": "tcp-chain", "sent_bytes": 1_000,
                "patched_bytes": 0, "receivers": [], "zones": zones,
            }))
            .unwrap();
            between_zones(&report)
        };
        let zone = |from: usize, bytes: u64| serde_json::json!({ "from": format!("z{from}"), "to": "b", "bytes": bytes });
        assert_eq!(of(serde_json::json!([])), None);
        let two = of(vec![zone(0, 20), zone(1, 1_004)].into()).unwrap();
        assert_eq!(two, "between zones: z1 to b 1.00 copies, z0 to b 0.02 copies");
        let many = of((0..10).map(|from| zone(from, 1_000)).collect::<Vec<_>>().into()).unwrap();
        assert!(many.ends_with("z7 to b 1.00 copies and 2 more"), "{many}");
    }

    /// A rate is said only where bytes have come to a receiver.
    #[test]
    fn the_first_line_says_a_rate_where_there_was_one() {
        let first_line = |receivers: serde_json::Value| {
            let delivery: Delivery = serde_json::from_value(serde_json::json!({
                "name": "model.bin", "goodput_bps": 8_192.0, "object": "7", "bytes": 1_024, "seconds": 1.0,
                "fabric": "ip-multicast", "sent_bytes": 1_024, "patched_bytes": 0, "receivers": receivers,
            }))
            .unwrap();
            text(&delivery, &Copies::new()).lines().next().unwrap().to_string()
        };
        let receiver = |verified: bool, spared: u64| {
            let error = (!verified).then_some("it went away");
            serde_json::json!({
                "name": "b", "verified": verified, "seconds": 1.0, "bytes": 0, "patched_bytes": 0, "spared_bytes": spared,
                "came_bytes": if verified { 1_024 - spared } else { 0 }, "fabric": "ip-multicast", "slow": false,
                "rate_bps": 0.0, "error": error,
            })
        };
        for (receivers, said) in [
            (vec![receiver(true, 0)], "1 of 1 receivers in 1.00 s, 8.19 kbit/s over ip-multicast"),
            (vec![receiver(true, 1_024)], "1 of 1 receivers in 1.00 s: nothing had to be sent"),
            (
                vec![receiver(true, 1_024), receiver(true, 24)],
                "2 of 2 receivers in 1.00 s, 8.00 kbit/s over ip-multicast",
            ),
            (vec![receiver(false, 0)], "0 of 1 receivers in 1.00 s over ip-multicast"),
        ] {
            assert_eq!(first_line(receivers.into()), format!("model.bin (1.00 KiB) to {said}"));
        }
    }
}
