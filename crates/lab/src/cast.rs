//! One delivery in a lab: its settings, and what came of it.

use crate::failure::Failure;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// What is to be delivered in a lab.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct CastOptions {
    /// The file or directory, by its whole path.
    pub path: PathBuf,
    /// The sending host; the first one without.
    pub source: Option<String>,
    /// The receiving hosts; all others without.
    pub receivers: Option<Vec<String>>,
    /// What breaks in the meantime.
    pub failures: Vec<Failure>,
}

/// What came of it.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct CastOutcome {
    /// What `polycast send --json` reported.
    pub delivery: serde_json::Value,
    /// What it said to people.
    pub said: String,
    /// Its exit status.
    pub exit: i32,
    /// What crossed every cable, a direction at a time.
    pub links: Vec<LinkBytes>,
    /// How the lab was set up and what devices were told, and how long that took.
    pub control: Vec<ControlStep>,
    /// What the nodes of a Datacast fabric have counted.
    #[serde(default)]
    pub nodes: serde_json::Value,
}

/// What crossed a cable in one direction.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct LinkBytes {
    /// The node that sent.
    pub from: String,
    /// The node that received.
    pub to: String,
    /// All bytes of all Ethernet frames.
    pub bytes: u64,
}

/// One step of the set-up of a lab or a path.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ControlStep {
    /// What was done.
    pub step: String,
    /// How long it took, in microseconds.
    pub micros: u64,
}
