//! Section VI-D over sockets: how soon the manager answers agents that have a connection each.

use crate::Row;
use crate::lab::Seen;
use crate::report::Outcome;

/// Figures that the paper prints: the mean response, and one over it.
const RESPONSE_MS: f64 = 1.36;
const REQUESTS_PER_S: f64 = 735.0;
/// Agents, and the receivers of a request: the paper's.
pub const AGENTS: u32 = 40;
/// Receivers of a request.
pub const RECEIVERS: u32 = 16;

/// A manager's answers as agents have seen them.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ManagerSeen {
    /// Requests a second at even times, all agents together, of the first measurement.
    pub rate_per_s: f64,
    /// Mean time from a request to its answer in it.
    pub response_ms: f64,
    /// Requests a second where each agent asks again at once.
    pub requests_per_s: f64,
}

/// The rows of section VI-D.
#[must_use]
pub fn manager_response(seen: &Seen<ManagerSeen>) -> Outcome {
    let response = "from a request to its answer, over a socket, mean";
    let rate = format!("requests a second over sockets, {AGENTS} agents, {RECEIVERS} receivers");
    let rows = match seen {
        Ok(ManagerSeen { rate_per_s, response_ms, requests_per_s }) => vec![
            Row::new(response, Some(RESPONSE_MS), *response_ms, "ms")
                .at_most(RESPONSE_MS)
                .note(format!("{rate_per_s} requests a second, agents and manager on one machine")),
            Row::new(rate, Some(REQUESTS_PER_S), *requests_per_s, "1/s")
                .at_least(REQUESTS_PER_S)
                .note("each agent asks again at once; the paper's is one over its response"),
        ],
        Err(why) => vec![
            Row::missing(response, Some(RESPONSE_MS), "ms", why),
            Row::missing(rate, Some(REQUESTS_PER_S), "1/s", why),
        ],
    };
    rows.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slow_manager_fails_both() {
        let of = |response_ms, requests_per_s| {
            let seen = ManagerSeen { rate_per_s: 100.0, response_ms, requests_per_s };
            manager_response(&Ok(seen)).rows.iter().map(Row::is_within).collect::<Vec<_>>()
        };
        assert_eq!(of(0.9, 7_000.0), [Some(true); 2]);
        assert_eq!(of(1.5, 700.0), [Some(false); 2]);
        let none = manager_response(&Err("no manager".into())).rows;
        assert!(none.iter().all(|row| row.is_missing && row.note == "no manager"));
    }
}
