//! Results of a transfer: one report, from the engine that counts to the programs that read it.
//!
//! A source fills in a [`Report`]; the agent's service carries it as a message of its own, to and from which
//! it is turned where there are services. [`Delivery`] is the form that `polycast send --json` prints.

#[cfg(feature = "cluster")]
mod message;

use crate::error::Kind;
use polycast_types::ObjectId;
use serde::{Deserialize, Serialize};

/// The report of a transfer, or its state while it runs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// The object.
    #[serde(with = "text")]
    pub object: ObjectId,
    /// Its length in bytes.
    pub bytes: u64,
    /// Seconds from the start to the last receiver's end.
    pub seconds: f64,
    /// Carriers of the object: the fabrics of its paths, one after the other, and `tcp-chain` where that
    /// helped, such as `ocs+ip-multicast+tcp-chain`.
    pub fabric: String,
    /// One entry a receiver.
    pub receivers: Vec<ReceiverReport>,
    /// Payload bytes that the source put on the wire, repetitions and patches included.
    pub sent_bytes: u64,
    /// Bytes of those that were patches.
    pub patched_bytes: u64,
    /// Bytes that receivers had already, of older versions or earlier tries: all receivers together.
    #[serde(default)]
    pub spared_bytes: u64,
    /// Bytes of the delta that was sent in the object's place to those who had the version before; 0 where
    /// the object itself was sent.
    #[serde(default)]
    pub coded_bytes: u64,
    /// Messages that the source heard of receivers from the start on.
    #[serde(default)]
    pub heard: u64,
    /// BLAKE3 root hash in hex, once known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub root: Option<String>,
    /// Reason for the loss of the path, if the transfer had to go on without it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path_lost: Option<String>,
    /// Events of the path, each with the number of seconds since the source began.
    #[serde(default, with = "events", skip_serializing_if = "Vec::is_empty")]
    pub events: Vec<(f64, String)>,
    /// Steps that devices took for the path.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub control: Vec<ControlStep>,
    /// Counts of the source in each tree, where receivers pulled over trees.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub trees: Vec<TreeStatus>,
    /// Set if only the source and its receivers could read the bytes on their way.
    #[serde(default)]
    pub sealed: bool,
    /// Packets that reached receivers for this transfer and were not its source's.
    #[serde(default)]
    pub forged_packets: u64,
    /// Bytes that went from one zone to another over TCP, to receivers that have ended.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub zones: Vec<ZoneBytes>,
    /// The fabrics that come before it in the manager's settings or would have been faster, and why they did
    /// not carry it.
    #[serde(default)]
    pub passed_over: Vec<PassedOver>,
    /// Seconds that the manager estimated for the transfer, from the grant of its first path to its end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub estimate_s: Option<f64>,
    /// Seconds that this took, where a manager has granted a path.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub took_s: Option<f64>,
    /// Receivers that failed because of the path: another one may reach them. Known at the source only.
    #[serde(skip)]
    pub left: Vec<String>,
}

/// Bytes that went from one zone to another.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ZoneBytes {
    /// Name of the zone that they came from.
    pub from: String,
    /// Name of the zone that they went to.
    pub to: String,
    /// Number of bytes.
    pub bytes: u64,
}

/// A fabric that was better than the one that carried a transfer.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PassedOver {
    /// Its name.
    pub fabric: String,
    /// Reason why it did not carry it, in a sentence.
    pub why: String,
}

/// A receiver's state while a transfer runs or when it has ended.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ReceiverReport {
    /// Its name.
    pub name: String,
    /// Set once every byte was verified and stored.
    pub verified: bool,
    /// Seconds from the transfer's start to this receiver's end.
    pub seconds: f64,
    /// Bytes it has so far; of use while the transfer runs.
    #[serde(skip)]
    pub bytes: u64,
    /// Bytes that reached it as patches.
    pub patched_bytes: u64,
    /// Bytes that it had already when it joined, of an older version or an earlier try.
    #[serde(default)]
    pub spared_bytes: u64,
    /// Bytes of the object that came to it over the network: it had the others, or they are holes.
    #[serde(default)]
    pub came_bytes: u64,
    /// `ip-multicast` or the fabric of the path, or `tcp-chain`: what carried its bytes last.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub fabric: String,
    /// Set if it is slower than the others, which were not to wait for it.
    #[serde(default)]
    pub slow: bool,
    /// Bits of the object a second that it has got, from the transfer's start to its end or until now.
    #[serde(default)]
    pub rate_bps: f64,
    /// Reason why it is slow or has failed, in a sentence.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Reason why it failed, in a sentence.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// Kind of that failure, by its name on the wire.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
}

impl ReceiverReport {
    /// The same of a receiver that has failed, for this reason; of one that has not where there is none.
    #[must_use]
    pub fn failing(mut self, failure: Option<(Kind, String)>) -> Self {
        if let Some((kind, why)) = failure {
            self.kind = Some(kind.name().to_string());
            self.reason.get_or_insert_with(|| why.clone());
            self.error = Some(why);
        }
        self
    }
}

/// Something that was done for a path or for a lab.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ControlStep {
    /// Name of the step, in a few words.
    pub step: String,
    /// Time from the need for the step to its completion, in microseconds.
    pub micros: u64,
}

/// Counts of the source of a transfer in one tree.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TreeStatus {
    /// Its number.
    pub tree: u8,
    /// Interests that reached the source.
    pub interests: u64,
    /// Interests for packets that had been sent already.
    pub duplicates: u64,
    /// Number of times that the rate was halved.
    pub halved: u64,
    /// Packets sent.
    pub packets: u64,
    /// Bytes of payload sent.
    pub sent_bytes: u64,
    /// Bytes of payload sent for the first time.
    pub first_bytes: u64,
    /// The rate at present, in bits a second.
    pub rate_bps: u64,
}

/// The report of a transfer that has ended, under its object's name: what `polycast send --json` prints.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Delivery {
    /// The object's name at the source.
    pub name: String,
    /// Bits of the object a second, at the last receiver.
    pub goodput_bps: f64,
    /// The rest.
    #[serde(flatten)]
    pub report: Report,
}

/// Bits a second; none at all in no time.
#[must_use]
pub fn goodput_bps(bytes: u64, seconds: f64) -> f64 {
    if seconds > 0.0 { bytes as f64 * 8.0 / seconds } else { 0.0 }
}

impl Delivery {
    /// The report of a transfer of an object of this name.
    #[must_use]
    pub fn new(name: &str, report: Report) -> Self {
        let goodput_bps = goodput_bps(report.bytes, report.seconds);
        Delivery { name: name.to_string(), goodput_bps, report }
    }
}

impl Report {
    /// Takes in what became of those that were left, over another path that was taken `after` seconds of this
    /// one.
    #[must_use]
    pub fn continued(mut self, mut rest: Report, after: f64) -> Self {
        for receiver in &mut rest.receivers {
            receiver.seconds += after;
            // What the first path has brought was sent.
            let before = self.receivers.iter().find(|other| other.name == receiver.name);
            if let Some(before) = before.filter(|before| before.bytes > 0) {
                receiver.spared_bytes = before.spared_bytes;
                receiver.came_bytes += before.came_bytes;
            }
            // What came has come from the beginning on, not since the second path.
            receiver.rate_bps = goodput_bps(receiver.came_bytes, receiver.seconds);
        }
        let again: Vec<ReceiverReport> = rest.receivers;
        self.receivers.retain(|receiver| again.iter().all(|other| other.name != receiver.name));
        self.receivers.extend(again);
        self.receivers.sort_by(|a, b| a.name.cmp(&b.name));
        self.spared_bytes = self.receivers.iter().map(|receiver| receiver.spared_bytes).sum();
        self.seconds = self.receivers.iter().map(|receiver| receiver.seconds).fold(0.0, f64::max);
        self.sent_bytes += rest.sent_bytes;
        self.patched_bytes += rest.patched_bytes;
        self.heard += rest.heard;
        self.sealed &= rest.sealed;
        self.forged_packets += rest.forged_packets;
        self.add_zones(&rest.zones);
        self.passed_over.extend(rest.passed_over);
        self.took_s = rest.took_s.map(|took| took + after);
        if !self.fabric.split('+').any(|fabric| fabric == rest.fabric) {
            self.fabric = format!("{}+{}", self.fabric, rest.fabric);
        }
        self.events.extend(rest.events.into_iter().map(|(seconds, what)| (seconds + after, what)));
        self.control.extend(rest.control);
        self.root = self.root.or(rest.root);
        self.left = rest.left;
        self
    }

    /// Adds what went between zones in another transfer.
    pub fn add_zones(&mut self, more: &[ZoneBytes]) {
        for zone in more {
            let known =
                self.zones.iter_mut().find(|known| (&known.from, &known.to) == (&zone.from, &zone.to));
            match known {
                Some(known) => known.bytes = known.bytes.saturating_add(zone.bytes),
                None => self.zones.push(zone.clone()),
            }
        }
    }
}

/// An object's name as text.
mod text {
    use polycast_types::ObjectId;
    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    pub(super) fn serialize<S: Serializer>(object: &ObjectId, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(object)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<ObjectId, D::Error> {
        String::deserialize(from)?.parse().map_err(D::Error::custom)
    }
}

/// Events as `{seconds, what}`.
mod events {
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    #[derive(Serialize, Deserialize)]
    struct Event<T> {
        seconds: f64,
        what: T,
    }

    pub(super) fn serialize<S: Serializer>(events: &[(f64, String)], to: S) -> Result<S::Ok, S::Error> {
        to.collect_seq(events.iter().map(|(seconds, what)| Event { seconds: *seconds, what }))
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<(f64, String)>, D::Error> {
        let events = Vec::<Event<String>>::deserialize(from)?;
        Ok(events.into_iter().map(|event| (event.seconds, event.what)).collect())
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use polycast_types::{AppId, DataId};
    use serde_json::json;

    fn receiver(name: &str, error: Option<&str>) -> ReceiverReport {
        ReceiverReport {
            name: name.into(),
            verified: error.is_none(),
            seconds: 1.25,
            bytes: 900,
            patched_bytes: 30,
            spared_bytes: 9,
            came_bytes: 891,
            fabric: "ocs".into(),
            slow: error.is_some(),
            rate_bps: 5_760.0,
            reason: error.map(str::to_string),
            error: error.map(str::to_string),
            kind: error.map(|_| "timed-out".to_string()),
        }
    }

    pub(crate) fn report() -> Report {
        Report {
            object: ObjectId { app: AppId(*b"0123456789abcdef"), data: DataId(7) },
            bytes: 1_000,
            root: Some("ab".into()),
            seconds: 2.0,
            sent_bytes: 1_100,
            patched_bytes: 100,
            spared_bytes: 18,
            coded_bytes: 4,
            heard: 12,
            fabric: "ocs+tcp-chain".into(),
            path_lost: Some("the light went out".into()),
            events: vec![(0.5, "the light went out".into())],
            control: vec![ControlStep { step: "scheduling".into(), micros: 40 }],
            receivers: vec![receiver("a", None), receiver("b", Some("it went away"))],
            trees: vec![TreeStatus {
                tree: 1,
                interests: 2,
                duplicates: 3,
                halved: 4,
                ..TreeStatus::default()
            }],
            left: Vec::new(),
            sealed: true,
            forged_packets: 3,
            zones: vec![ZoneBytes { from: "hall-1".into(), to: "hall-2".into(), bytes: 1_004 }],
            passed_over: vec![PassedOver { fabric: "ocs".into(), why: "it is dark".into() }],
            estimate_s: Some(1.5),
            took_s: Some(2.25),
        }
    }

    /// Programs read these names.
    #[test]
    fn a_delivery_is_printed_and_read_again() {
        let delivery = Delivery::new("model.bin", report());
        let document = serde_json::to_value(&delivery).unwrap();
        let expected = json!({
            "object": "30313233-3435-3637-3839-616263646566/7", "name": "model.bin", "bytes": 1_000,
            "seconds": 2.0, "goodput_bps": 4_000.0, "fabric": "ocs+tcp-chain",
            "receivers": [
                { "name": "a", "verified": true, "seconds": 1.25, "patched_bytes": 30, "spared_bytes": 9,
                  "came_bytes": 891, "fabric": "ocs", "slow": false, "rate_bps": 5_760.0 },
                { "name": "b", "verified": false, "seconds": 1.25, "patched_bytes": 30, "spared_bytes": 9,
                  "came_bytes": 891, "fabric": "ocs", "slow": true, "rate_bps": 5_760.0, "reason": "it went away", "error": "it went away",
                  "kind": "timed-out" },
            ],
            "sent_bytes": 1_100, "patched_bytes": 100, "spared_bytes": 18, "coded_bytes": 4, "heard": 12, "root": "ab",
            "path_lost": "the light went out", "sealed": true, "forged_packets": 3,
            "zones": [{ "from": "hall-1", "to": "hall-2", "bytes": 1_004 }],
            "passed_over": [{ "fabric": "ocs", "why": "it is dark" }], "estimate_s": 1.5, "took_s": 2.25,
            "events": [{ "seconds": 0.5, "what": "the light went out" }],
            "control": [{ "step": "scheduling", "micros": 40 }],
            "trees": [{ "tree": 1, "interests": 2, "duplicates": 3, "halved": 4, "packets": 0, "sent_bytes": 0,
                        "first_bytes": 0, "rate_bps": 0 }],
        });
        assert_eq!(document, expected);
        let mut read: Delivery = serde_json::from_value(document).unwrap();
        read.report.receivers.iter_mut().for_each(|receiver| receiver.bytes = 900);
        assert_eq!(read, delivery);
        let bare = Report {
            root: None,
            path_lost: None,
            events: Vec::new(),
            control: Vec::new(),
            trees: Vec::new(),
            zones: Vec::new(),
            estimate_s: None,
            took_s: None,
            ..report()
        };
        let document = serde_json::to_value(Delivery::new("f", bare)).unwrap();
        let names: Vec<&str> = document.as_object().unwrap().keys().map(String::as_str).collect();
        let always = [
            "bytes",
            "coded_bytes",
            "fabric",
            "forged_packets",
            "goodput_bps",
            "heard",
            "name",
            "object",
            "passed_over",
            "patched_bytes",
            "receivers",
            "sealed",
            "seconds",
            "sent_bytes",
            "spared_bytes",
        ];
        assert_eq!(names, always);
    }

    #[test]
    fn a_second_path_counts_on() {
        let rest = Report {
            receivers: vec![ReceiverReport { spared_bytes: 700, ..receiver("b", None) }],
            fabric: "ip-multicast".into(),
            path_lost: None,
            ..report()
        };
        let whole = report().continued(rest, 3.0);
        let ends: Vec<_> = whole.receivers.iter().map(|r| (r.name.as_str(), r.verified, r.seconds)).collect();
        assert_eq!(ends, [("a", true, 1.25), ("b", true, 4.25)]);
        let b = &whole.receivers[1];
        assert_eq!(b.came_bytes, 2 * 891);
        assert_eq!(b.rate_bps, goodput_bps(b.came_bytes, 4.25), "its rate is of the whole time");
        assert_eq!(
            (whole.seconds, whole.sent_bytes, whole.patched_bytes, whole.heard),
            (4.25, 2_200, 200, 24)
        );
        assert_eq!(whole.spared_bytes, 18, "what the first path has brought was sent");
        assert_eq!(whole.fabric, "ocs+tcp-chain+ip-multicast");
        assert_eq!(whole.events[1], (3.5, "the light went out".to_string()));
        assert_eq!(whole.zones, [ZoneBytes { bytes: 2_008, ..report().zones[0].clone() }]);
    }

    #[test]
    fn goodput_is_finite() {
        assert_eq!(goodput_bps(0, 0.0), 0.0);
        assert_eq!(goodput_bps(125, 1.0), 1000.0);
    }
}
