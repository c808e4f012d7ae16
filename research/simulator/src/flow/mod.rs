//! Flow level: rates by max-min fairness, for unicast flows and multicast trees (Blast section VI-A).
//!
//! A flow is a set of links with one rate on all of them, so that a multicast tree is a flow like any other:
//! its slowest link decides. [`max_min`] gives all rates; [`Run`] lets flows with a number of bits finish
//! one after the other. Packets, loss and transport protocols do not exist here.

mod fairness;
mod run;
pub mod torrent;

pub use fairness::max_min;
pub use run::{Completion, FlowId, Run};

use alloc::vec::Vec;

/// A link, as an index into the capacities.
pub type Link = u32;

/// Identical flows: they cross the same links and have the same rate each.
#[derive(Clone, Debug, PartialEq)]
pub struct Flow {
    /// The links that each flow crosses, and how often: a stripe of an overlay leaves a peer once for every
    /// child, and each time competes as a flow of its own.
    pub links: Vec<(Link, u32)>,
    /// Number of identical flows.
    pub count: u32,
    /// The share of one flow in proportion to others.
    pub weight: f64,
    /// The rate in bit/s that none of them exceeds; infinite if only links limit them.
    pub cap_bps: f64,
    /// Links serve higher priorities first; lower ones share what those leave.
    pub priority: u8,
}

impl Flow {
    /// One flow over these links, of weight 1 and priority 0.
    #[must_use]
    pub fn over(links: impl IntoIterator<Item = Link>) -> Self {
        let links = links.into_iter().map(|link| (link, 1)).collect();
        Flow { links, count: 1, weight: 1.0, cap_bps: f64::INFINITY, priority: 0 }
    }

    /// So many of them.
    #[must_use]
    pub fn times(self, count: u32) -> Self {
        Flow { count, ..self }
    }

    /// None of them faster than this, in bit/s.
    #[must_use]
    pub fn cap(self, cap_bps: f64) -> Self {
        Flow { cap_bps, ..self }
    }

    /// With this priority.
    #[must_use]
    pub fn priority(self, priority: u8) -> Self {
        Flow { priority, ..self }
    }

    /// With this weight.
    #[must_use]
    pub fn weight(self, weight: f64) -> Self {
        Flow { weight, ..self }
    }
}

/// Error in flows or capacities.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum FlowError {
    /// A flow names a link that is not there.
    #[error("a flow crosses link {link}, but links are numbered 0 to {last}", last = *.links as i64 - 1)]
    NoSuchLink {
        /// Link that the flow names.
        link: Link,
        /// Number of links.
        links: usize,
    },
    /// A capacity is negative or no number.
    #[error("link {link} has a capacity of {capacity_bps} bit/s: it must be zero or more")]
    Capacity {
        /// The link.
        link: usize,
        /// Its capacity.
        capacity_bps: f64,
    },
    /// A weight is not a positive number.
    #[error("a flow has weight {0}: it must be more than zero")]
    Weight(f64),
    /// A cap is negative or no number.
    #[error("a flow is capped at {0} bit/s: it must be zero or more")]
    Cap(f64),
    /// Nothing limits a flow.
    #[error("a flow crosses no link and has no cap: its rate would be infinite")]
    Unlimited,
}

/// Checks what the solver relies on.
fn check(capacities_bps: &[f64], flow: &Flow) -> Result<(), FlowError> {
    if !(flow.weight > 0.0 && flow.weight.is_finite()) {
        return Err(FlowError::Weight(flow.weight));
    }
    if flow.cap_bps.is_nan() || flow.cap_bps < 0.0 {
        return Err(FlowError::Cap(flow.cap_bps));
    }
    for &(link, _) in &flow.links {
        if link as usize >= capacities_bps.len() {
            return Err(FlowError::NoSuchLink { link, links: capacities_bps.len() });
        }
    }
    let bound = flow.links.iter().any(|&(_, times)| times > 0);
    if !bound && flow.cap_bps == f64::INFINITY { Err(FlowError::Unlimited) } else { Ok(()) }
}

fn check_capacities(capacities_bps: &[f64]) -> Result<(), FlowError> {
    let wrong = capacities_bps.iter().position(|&capacity| !(capacity >= 0.0 && capacity.is_finite()));
    wrong.map_or(Ok(()), |link| Err(FlowError::Capacity { link, capacity_bps: capacities_bps[link] }))
}
