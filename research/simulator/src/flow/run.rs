//! Flows with something to deliver, in virtual time: rates change when a flow comes, ends or is taken away.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use polycast_types::{Duration, Time};

use super::{Flow, FlowError, check, check_capacities, fairness};

/// A flow in a [`Run`]. Ids are given in rising order and never again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FlowId(u64);

/// Completion of flows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Completion {
    /// Time of the completion.
    pub at: Time,
    /// The flows that had all of their bits delivered then, in the order in which they came.
    pub flows: Vec<FlowId>,
}

#[derive(Clone, Debug)]
struct Active {
    flow: Flow,
    /// Bits that each of the identical flows has still to deliver; infinite for background.
    left_bits: f64,
    rate_bps: f64,
}

/// Flows that share links, and the time.
#[derive(Clone, Debug)]
pub struct Run {
    capacities_bps: Vec<f64>,
    now: Time,
    active: BTreeMap<FlowId, Active>,
    next: u64,
    stale: bool,
}

impl Run {
    /// Links of these capacities in bit/s, without flows, at time zero.
    ///
    /// # Errors
    /// If a capacity is negative or no number.
    pub fn new(capacities_bps: Vec<f64>) -> Result<Self, FlowError> {
        check_capacities(&capacities_bps)?;
        Ok(Run { capacities_bps, now: Time::ZERO, active: BTreeMap::new(), next: 0, stale: false })
    }

    /// The time.
    #[must_use]
    pub fn now(&self) -> Time {
        self.now
    }

    /// Starts flows that deliver `bits` each.
    ///
    /// # Errors
    /// If the flow is not valid.
    pub fn start(&mut self, flow: Flow, bits: u64) -> Result<FlowId, FlowError> {
        self.add(flow, bits as f64)
    }

    /// Starts flows that never end by themselves.
    ///
    /// # Errors
    /// If the flow is not valid.
    pub fn background(&mut self, flow: Flow) -> Result<FlowId, FlowError> {
        self.add(flow, f64::INFINITY)
    }

    fn add(&mut self, flow: Flow, left_bits: f64) -> Result<FlowId, FlowError> {
        check(&self.capacities_bps, &flow)?;
        let id = FlowId(self.next);
        self.next += 1;
        self.active.insert(id, Active { flow, left_bits, rate_bps: 0.0 });
        self.stale = true;
        Ok(id)
    }

    /// Takes a flow away; nothing happens if it has ended.
    pub fn stop(&mut self, id: FlowId) {
        self.stale |= self.active.remove(&id).is_some();
    }

    /// The rate of a flow in bit/s; `None` if it has ended.
    pub fn rate_bps(&mut self, id: FlowId) -> Option<f64> {
        self.refresh();
        self.active.get(&id).map(|active| active.rate_bps)
    }

    /// Runs to the next end of flows, but not beyond `until`. `None` if nothing ends before or at that time;
    /// without `until`, if nothing ends at all, and then the time stands still.
    pub fn advance(&mut self, until: Option<Time>) -> Option<Completion> {
        self.refresh();
        let span = |active: &Active| -> Option<u64> {
            if active.left_bits == 0.0 {
                return Some(0);
            }
            let nanos = libm::ceil(active.left_bits / active.rate_bps * 1e9);
            (nanos < u64::MAX as f64).then_some(nanos as u64)
        };
        let nearest = self.active.values().filter_map(span).min();
        let end = nearest.map(|nanos| self.now + Duration(nanos));
        let (at, ends) = match (end, until) {
            (Some(end), Some(until)) if end > until => (until, false),
            (Some(end), _) => (end, true),
            (None, Some(until)) => (until.max(self.now), false),
            (None, None) => return None,
        };
        let seconds = at.since(self.now).as_secs_f64();
        let mut flows = Vec::new();
        for (&id, active) in &mut self.active {
            let ended = ends && span(active) == nearest;
            active.left_bits = (active.left_bits - active.rate_bps * seconds).max(0.0);
            if ended {
                flows.push(id);
            }
        }
        self.now = at;
        flows.iter().for_each(|&id| self.stop(id));
        (!flows.is_empty()).then_some(Completion { at, flows })
    }

    fn refresh(&mut self) {
        if !core::mem::take(&mut self.stale) {
            return;
        }
        let flows: Vec<&Flow> = self.active.values().map(|active| &active.flow).collect();
        let rates = fairness::solve(&self.capacities_bps, &flows);
        self.active.values_mut().zip(rates).for_each(|(active, rate)| active.rate_bps = rate);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;

    const SECOND: u64 = 1_000_000_000;

    #[test]
    fn flows_end_one_after_the_other_and_leave_their_share() {
        let mut run = Run::new(vec![10.0]).unwrap();
        let short = run.start(Flow::over([0]), 10).unwrap();
        let long = run.start(Flow::over([0]), 30).unwrap();
        assert_eq!(run.rate_bps(long), Some(5.0));
        assert_eq!(run.advance(None), Some(Completion { at: Time(2 * SECOND), flows: vec![short] }));
        assert_eq!(run.rate_bps(short), None);
        assert_eq!(run.advance(None), Some(Completion { at: Time(4 * SECOND), flows: vec![long] }));
        assert_eq!(run.advance(None), None);
    }

    #[test]
    fn background_comes_and_goes() {
        let mut run = Run::new(vec![10.0]).unwrap();
        let flow = run.start(Flow::over([0]), 20).unwrap();
        let other = run.background(Flow::over([0]).times(4)).unwrap();
        assert_eq!(run.advance(Some(Time(5 * SECOND))), None);
        assert_eq!((run.now(), run.rate_bps(flow)), (Time(5 * SECOND), Some(2.0)));
        run.stop(other);
        assert_eq!(run.advance(Some(Time(60 * SECOND))).unwrap().at, Time(6 * SECOND));
        assert_eq!(run.advance(Some(Time(60 * SECOND))), None);
        assert_eq!(run.now(), Time(60 * SECOND));
    }

    #[test]
    fn equal_flows_end_together_empty_ones_at_once_and_blocked_ones_never() {
        let mut run = Run::new(vec![9.0, 0.0]).unwrap();
        let ids: Vec<_> = (0..3).map(|_| run.start(Flow::over([0]), 3).unwrap()).collect();
        run.start(Flow::over([1]), 1).unwrap();
        let empty = run.start(Flow::over([1]), 0).unwrap();
        assert_eq!(run.advance(None), Some(Completion { at: Time::ZERO, flows: vec![empty] }));
        assert_eq!(run.advance(None), Some(Completion { at: Time(SECOND), flows: ids }));
        assert_eq!(run.advance(None), None);
    }
}
