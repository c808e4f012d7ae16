//! The report of a transfer, as JSON and as text.

use crate::exit::{Exit, Failure};
use crate::output::{self, Format};
use polycast_agent::forwarder::TreeStatus;
use polycast_agent::transfer::{Received, Report};
use polycast_net::object::ObjectKind;
use polycast_types::{format_bytes, format_rate};
use serde::{Deserialize, Serialize};
use std::fmt::Write;
use std::path::PathBuf;

/// What a delivery came to.
#[derive(Serialize, Deserialize, Clone, PartialEq, Debug)]
pub struct Delivery {
    /// The object's id.
    pub object: String,
    /// Its name at the source.
    pub name: String,
    /// Its length.
    pub bytes: u64,
    /// From the start to the last receiver's end.
    pub seconds: f64,
    /// Bits of the object a second, at the last receiver.
    pub goodput_bps: f64,
    /// What carried it.
    pub fabric: String,
    /// One entry a receiver.
    pub receivers: Vec<Receiver>,
    /// Bytes that the source put on the wire.
    pub sent_bytes: u64,
    /// Bytes of those that were patches.
    pub patched_bytes: u64,
    /// Messages that the source heard of receivers from the start on.
    #[serde(default)]
    pub heard: u64,
    /// BLAKE3 root hash in hex.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub root: Option<String>,
    /// Why the path was lost, if the transfer had to go on without it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path_lost: Option<String>,
    /// What happened to the path.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub events: Vec<Event>,
    /// What devices did for the path.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub control: Vec<Step>,
    /// What the source counted in each tree, where receivers pulled over trees.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub trees: Vec<TreeStatus>,
}

/// Something that happened to the path.
#[derive(Serialize, Deserialize, Clone, PartialEq, Debug)]
pub struct Event {
    /// Since the source began.
    pub seconds: f64,
    /// One sentence.
    pub what: String,
}

/// Something that a device did for the path.
#[derive(Serialize, Deserialize, Clone, PartialEq, Debug)]
pub struct Step {
    /// What, in a few words.
    pub step: String,
    /// From when it was needed to its end, in microseconds.
    pub micros: u64,
}

/// What became of one receiver.
#[derive(Serialize, Deserialize, Clone, PartialEq, Debug)]
pub struct Receiver {
    /// Its name.
    pub name: String,
    /// Whether it has and has verified every byte.
    pub verified: bool,
    /// From the start to its end.
    pub seconds: f64,
    /// Bytes that it got as patches.
    pub patched_bytes: u64,
    /// What carried its bytes last.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub fabric: String,
    /// Where its copy is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub path: Option<PathBuf>,
    /// Why it failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// What `accept` got.
#[derive(Serialize, Clone, PartialEq, Debug)]
pub struct Acceptance {
    /// The object's id.
    pub object: String,
    /// Its name at the source.
    pub name: String,
    /// `file` or `directory`.
    pub kind: &'static str,
    /// Its length.
    pub bytes: u64,
    /// From the first contact with the source to the end.
    pub seconds: f64,
    /// Bits of the object a second.
    pub goodput_bps: f64,
    /// Always so: what is not verified is never accepted.
    pub verified: bool,
    /// Bytes that came as patches.
    pub patched_bytes: u64,
    /// BLAKE3 root hash in hex.
    pub root: String,
    /// Where the object is.
    pub path: PathBuf,
}

/// Bits a second; none at all in no time.
pub fn goodput_bps(bytes: u64, seconds: f64) -> f64 {
    if seconds > 0.0 { bytes as f64 * 8.0 / seconds } else { 0.0 }
}

/// `file` or `directory`.
pub fn kind_name(kind: ObjectKind) -> &'static str {
    match kind {
        ObjectKind::File => "file",
        ObjectKind::Directory => "directory",
    }
}

impl Delivery {
    /// The engine's report in the words of the command line.
    pub fn new(name: &str, report: Report) -> Self {
        let receiver = |receiver: polycast_agent::transfer::ReceiverReport| Receiver {
            name: receiver.name,
            verified: receiver.verified,
            seconds: receiver.seconds,
            patched_bytes: receiver.patched_bytes,
            fabric: receiver.fabric,
            path: None,
            error: receiver.error,
        };
        Delivery {
            object: report.object.to_string(),
            name: name.to_string(),
            bytes: report.bytes,
            seconds: report.seconds,
            goodput_bps: goodput_bps(report.bytes, report.seconds),
            fabric: report.fabric,
            receivers: report.receivers.into_iter().map(receiver).collect(),
            sent_bytes: report.sent_bytes,
            patched_bytes: report.patched_bytes,
            heard: report.heard,
            root: report.root,
            path_lost: report.path_lost,
            events: report.events.into_iter().map(|(seconds, what)| Event { seconds, what }).collect(),
            control: report
                .control
                .into_iter()
                .map(|step| Step { step: step.step, micros: step.micros })
                .collect(),
            trees: report.trees,
        }
    }

    /// Prints the report, says who failed and why, and gives the exit status.
    pub fn conclude(&self, format: Format) -> Result<Exit, Failure> {
        output::result(format, self, &self.text())?;
        if let Some(reason) = &self.path_lost {
            output::say(&format!("the transfer went on without its path: {reason}"));
        }
        for Event { seconds: at, what } in
            self.events.iter().filter(|e| Some(&e.what) != self.path_lost.as_ref())
        {
            output::say(&format!("after {}: {what}", seconds(*at)));
        }
        let mut exit = Exit::Done;
        for receiver in self.receivers.iter().filter(|receiver| !receiver.verified) {
            let why = receiver.error.as_deref().unwrap_or("it did not verify all bytes");
            output::say(&format!("error: {} failed: {why}", receiver.name));
            exit = Exit::Failed;
        }
        if self.receivers.is_empty() {
            output::say("error: there was no receiver");
            exit = Exit::Failed;
        }
        Ok(exit)
    }

    /// The account for people.
    pub fn text(&self) -> String {
        let verified = self.receivers.iter().filter(|receiver| receiver.verified).count();
        let mut text = format!(
            "{} ({}) to {verified} of {} receivers in {}, {} over {}\n",
            self.name,
            format_bytes(self.bytes),
            self.receivers.len(),
            seconds(self.seconds),
            format_rate(self.goodput_bps),
            self.fabric,
        );
        let width = self.receivers.iter().map(|receiver| receiver.name.chars().count()).max().unwrap_or(0);
        for receiver in &self.receivers {
            let state = if receiver.verified { "verified" } else { "FAILED  " };
            let _ = write!(text, "  {:width$}  {state}  {:>8}", receiver.name, seconds(receiver.seconds));
            if receiver.patched_bytes > 0 {
                let _ = write!(text, "  {} patched", format_bytes(receiver.patched_bytes));
            }
            if let Some(path) = &receiver.path {
                let _ = write!(text, "  {}", path.display());
            }
            text.push('\n');
        }
        let (sent, patches) = (format_bytes(self.sent_bytes), format_bytes(self.patched_bytes));
        let _ = writeln!(text, "sent {sent}, of these {patches} as patches");
        if let Some(root) = &self.root {
            let _ = writeln!(text, "BLAKE3 {root}");
        }
        text
    }
}

impl From<Received> for Acceptance {
    fn from(received: Received) -> Self {
        Acceptance {
            object: received.object.to_string(),
            name: received.name,
            kind: kind_name(received.kind),
            bytes: received.bytes,
            seconds: received.seconds,
            goodput_bps: goodput_bps(received.bytes, received.seconds),
            verified: true,
            patched_bytes: received.patched_bytes,
            root: received.root,
            path: received.path,
        }
    }
}

impl Acceptance {
    /// The account for people.
    pub fn text(&self) -> String {
        let mut text = format!(
            "{} ({}) verified in {}, {}: {}\n",
            self.name,
            format_bytes(self.bytes),
            seconds(self.seconds),
            format_rate(self.goodput_bps),
            self.path.display(),
        );
        if self.patched_bytes > 0 {
            let _ = writeln!(text, "{} came as patches", format_bytes(self.patched_bytes));
        }
        let _ = writeln!(text, "BLAKE3 {}", self.root);
        text
    }
}

/// A span for people: three digits say enough.
pub fn seconds(seconds: f64) -> String {
    if seconds < 0.0995 {
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
            (0.0123, "12.3 ms"),
            (1.234, "1.23 s"),
            (60.0, "60.0 s"),
            (659.9, "10 min 59 s"),
        ] {
            assert_eq!(seconds(span), text);
        }
    }

    #[test]
    fn goodput_is_finite() {
        assert_eq!(goodput_bps(0, 0.0), 0.0);
        assert_eq!(goodput_bps(125, 1.0), 1000.0);
    }
}
