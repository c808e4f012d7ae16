//! Questions to the external scheduler, and its answers.

use alloc::string::String;
use alloc::vec::Vec;
use polycast_planning::{FabricName, Needs, PlanId, RequestId, Ruling, Wish};
use polycast_types::Duration;

/// A question to the external scheduler.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Question {
    /// Its number, which rises.
    pub number: u64,
    /// Time within which it has to be answered.
    pub deadline: Duration,
    /// Requests that can be decided about, oldest first.
    pub requests: Vec<AskedRequest>,
    /// Number of further ones, for which a question has no room.
    pub requests_left_out: usize,
    /// Paths that are lent, in the order of their numbers.
    pub leases: Vec<AskedLease>,
    /// Number of further ones, for which a question has no room.
    pub leases_left_out: usize,
    /// Number of free things of each kind that paths hold, sorted by name.
    pub free: Vec<(String, u64)>,
    /// Names of the fabrics, best first.
    pub fabrics: Vec<FabricName>,
}

/// A request in a question.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct AskedRequest {
    /// Its number.
    pub id: RequestId,
    /// Name of the source.
    pub source: String,
    /// Names of the receivers.
    pub receivers: Vec<String>,
    /// Length of the object in bytes.
    pub object_bytes: u64,
    /// Bytes of it that are still to be sent.
    pub remaining_bytes: u64,
    /// True if part of them may be accepted.
    pub divisible: bool,
    /// Time that it has waited.
    pub waited: Duration,
    /// Fabric that is to carry it.
    pub wish: Wish,
    /// Things that it would take if nothing were held; `None` where that cannot be told yet.
    pub needs: Option<Needs>,
}

/// A path that is lent, in a question.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct AskedLease {
    /// Its number.
    pub plan: PlanId,
    /// Name of the source.
    pub source: String,
    /// Names of the receivers.
    pub receivers: Vec<String>,
    /// Bytes that may be sent over it.
    pub bytes: u64,
    /// The fabric.
    pub fabric: FabricName,
    /// Number of things of each kind that it holds, sorted by name.
    pub holds: Vec<(String, u64)>,
    /// Time since it was granted.
    pub held: Duration,
    /// Time until it should be given back, as far as known; zero where that is over.
    pub left: Option<Duration>,
}

/// Answer of the external scheduler.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Advice {
    /// Its rulings, in the order in which they are carried out.
    pub rulings: Vec<(RequestId, Ruling)>,
    /// Time after which it is to be asked again, even if nothing has changed.
    pub ask_again: Option<Duration>,
}

/// Reason why a question has no answer, in a sentence about the external scheduler.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum NoAdvice {
    /// It could not be asked, or has said that it cannot answer.
    Unreached(String),
    /// It has answered something that is no answer.
    Wrong(String),
}
