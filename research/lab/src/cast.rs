//! One delivery in a lab: its settings, and what came of it.

use crate::compare::Way;
use crate::error::LabError;
use crate::failure::{At, Failure};
use crate::layout::LinkBytes;
use crate::processor_time::ProcessorTime;
use crate::traffic::{Flow, Readings};
use polycast_api::report::{ControlStep, Delivery};
use serde::{Deserialize, Serialize};
use std::path::PathBuf;
use std::str::FromStr;

/// The exit status of a program that met something unexpected.
pub(crate) const UNEXPECTED: i32 = 2;

/// Delivery to be made in a lab.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct CastOptions {
    /// The file or directory, by its whole path.
    pub path: PathBuf,
    /// The sending host; the first one without.
    pub source: Option<String>,
    /// The receiving hosts; all others without.
    pub receivers: Option<Vec<String>>,
    /// Failures in the meantime.
    pub failures: Vec<Failure>,
    /// Way of delivery.
    #[serde(default)]
    pub way: Way,
    /// Receivers that come late.
    #[serde(default)]
    pub joins: Vec<Join>,
    /// Other traffic meanwhile.
    #[serde(default)]
    pub flows: Vec<Flow>,
    /// Interval between readings of rates, in milliseconds; none are read without it.
    #[serde(default)]
    pub sample_ms: Option<u32>,
}

/// A host that becomes a receiver while the transfer runs.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Join {
    /// Its name or number.
    pub host: String,
    /// Time of the join.
    pub at: At,
}

impl FromStr for Join {
    type Err = LabError;

    fn from_str(text: &str) -> Result<Self, LabError> {
        let wrong = || LabError::Join { text: text.into() };
        let (host, at) = text.split_once('@').filter(|(host, _)| !host.is_empty()).ok_or_else(wrong)?;
        let at = at.parse().map_err(|()| wrong())?;
        Ok(Join { host: host.into(), at })
    }
}

/// Outcome of a delivery.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct CastOutcome {
    /// Report of `polycast send --json`.
    pub delivery: Result<Delivery, NoReport>,
    /// Text that it printed for people.
    pub said: String,
    /// Its exit status.
    pub exit: i32,
    /// Bytes that crossed every cable, a direction at a time.
    pub links: Vec<LinkBytes>,
    /// Steps of setting up the lab and its devices, with the time of each.
    pub control: Vec<ControlStep>,
    /// Counters of the nodes of a Datacast fabric.
    #[serde(default)]
    pub nodes: serde_json::Value,
    /// From the request to the report, set-up and end included, in seconds.
    #[serde(default)]
    pub wall_s: f64,
    /// Processor time of the source's process meanwhile.
    #[serde(default)]
    pub source_cpu: ProcessorTime,
    /// Rates while it ran.
    #[serde(default)]
    pub readings: Readings,
}

/// Reason why there is no report, which `polycast send --json` prints in its place.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct NoReport {
    /// Error that occurred.
    pub error: String,
    /// Advice to the user.
    #[serde(default)]
    pub hint: Option<String>,
}

impl CastOutcome {
    /// A delivery of which nothing else is known yet.
    pub(crate) fn new(delivery: Result<Delivery, NoReport>, exit: i32, source_cpu: ProcessorTime) -> Self {
        CastOutcome {
            delivery,
            said: String::new(),
            exit,
            links: Vec::new(),
            control: Vec::new(),
            nodes: serde_json::Value::Null,
            wall_s: 0.0,
            source_cpu,
            readings: Readings::default(),
        }
    }

    /// Makes an outcome of the output of `polycast send --json`, its text for people, and its exit status.
    pub(crate) fn of_send(printed: &[u8], said: String, exit: i32, source_cpu: ProcessorTime) -> Self {
        let (delivery, exit) = match (serde_json::from_slice(printed), serde_json::from_slice(printed)) {
            (Ok(delivery), _) => (Ok(delivery), exit),
            (Err(_), Ok(why)) => (Err(why), exit),
            (Err(error), Err(_)) => {
                let error = format!("the report cannot be read: {error}; it said: {said}");
                (Err(NoReport { error, hint: None }), UNEXPECTED)
            }
        };
        let mut outcome = CastOutcome::new(delivery, exit, source_cpu);
        outcome.said = said;
        // What the manager's devices did for the path is in the report.
        outcome.control = outcome.delivery.as_ref().map_or_else(|_| Vec::new(), |d| d.report.control.clone());
        outcome
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_send_has_printed_is_a_report_or_says_why_there_is_none() {
        let of = |printed: &str, exit| {
            CastOutcome::of_send(printed.as_bytes(), "error: no".into(), exit, ProcessorTime::default())
        };
        let printed = r#"{"object": "7", "name": "f", "bytes": 10, "seconds": 2.0, "goodput_bps": 40.0,
            "fabric": "ocs", "receivers": [{"name": "h1", "verified": true, "seconds": 2.0, "patched_bytes": 0}],
            "sent_bytes": 10, "patched_bytes": 0, "control": [{"step": "scheduling", "micros": 5}]}"#;
        let outcome = of(printed, 0);
        let delivery = outcome.delivery.as_ref().unwrap();
        assert_eq!((delivery.name.as_str(), delivery.report.receivers[0].verified), ("f", true));
        assert_eq!(outcome.control, [ControlStep { step: "scheduling".into(), micros: 5 }]);
        // The words between a supervisor and the command that started it are JSON.
        let word = serde_json::to_string(&outcome).unwrap();
        assert_eq!(serde_json::from_str::<CastOutcome>(&word).unwrap(), outcome);
        let refused = of(r#"{"error": "there is no path", "hint": "wait"}"#, 1);
        let why = NoReport { error: "there is no path".into(), hint: Some("wait".into()) };
        assert_eq!((refused.delivery.unwrap_err(), refused.exit), (why, 1));
        let broken = of("{\"bytes\": ", 0);
        let why = broken.delivery.unwrap_err().error;
        assert!(why.contains("cannot be read") && why.ends_with("it said: error: no"), "{why}");
        assert_eq!(broken.exit, UNEXPECTED);
    }

    #[test]
    fn joins_are_read() {
        assert_eq!("h9@1.5".parse(), Ok(Join { host: "h9".into(), at: At::Seconds(1.5) }));
        assert_eq!("h9@20%".parse(), Ok(Join { host: "h9".into(), at: At::Percent(20) }));
        for text in ["", "h9", "@1", "h9@soon", "h9@-1", "h9@4000", "h9@120%"] {
            let message = text.parse::<Join>().unwrap_err().to_string();
            assert!(message.contains("h9@1.5"), "{message}");
        }
    }
}
