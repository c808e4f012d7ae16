//! Conditions of a receiver that must hold between two inputs, whatever came to it.

use super::Receiver;
use polycast_types::RangeSet;

impl Receiver {
    /// Panics if the machine contradicts itself: that is a bug of ours, never a peer's fault. Called after
    /// every input in debug builds.
    ///
    /// # Panics
    /// If something that always holds does not.
    pub fn check(&self) {
        let geometry = &self.config.geometry;
        assert!(self.verified.agrees() && self.checking.agrees(), "groups are counted wrong");
        assert_eq!(
            self.verified.count == geometry.groups(),
            self.verified_bytes == geometry.object_len && self.verified.count > 0,
            "{} groups and {} bytes are verified",
            self.verified.count,
            self.verified_bytes
        );
        assert!(end_of(&self.have) <= self.fragments, "it has fragments that there are not");
        assert!(end_of(&self.requested) <= self.fragments, "it asks for fragments that there are not");
        let asked = self.requests.iter().flat_map(|request| request.sns.iter()).chain(&self.gathered);
        assert!(
            asked.clone().all(|sns| sns.start < sns.end && sns.end <= self.fragments),
            "it asks for nothing"
        );
        assert!(
            !self.complete || self.begun && self.verified.count == geometry.groups(),
            "complete too early"
        );
        assert!(!self.committed || self.complete, "committed before it was complete");
        assert!(self.reported_received <= self.received, "it has reported more than came");
        self.check_positions();
        self.check_sent();
        if self.chained {
            let waits = !self.suspects.is_empty() || asked.count() > 0 || !self.requested.is_empty();
            assert!(!waits, "it is chained, and waits for the data channel");
        } else {
            assert!(self.gathered.is_empty() || self.gathered_at.is_some(), "losses are never asked for");
        }
    }

    fn check_sent(&self) {
        assert!(self.spoiled.agrees() && self.distrusted.agrees(), "spoiled groups are counted wrong");
        assert!(self.distrusted.count <= self.spoiled.count, "a group is distrusted that was right");
        let unfinished = |sn| {
            let mut groups = self.config.geometry.groups_of_fragments(sn..sn + 1);
            self.have.contains(sn) && groups.any(|group| !self.verified.get(group))
        };
        let mut borders = self.sent.iter().flat_map(|run| [run.start, run.end - 1]);
        assert!(borders.all(unfinished), "it remembers who sent what is verified, or not there");
        assert!(self.claims.len() <= super::place::CLAIMS_MAX, "too many places are looked at");
    }

    fn check_positions(&self) {
        let Some(initial) = self.initial else {
            let idle = self.next == 0 && self.suspects.is_empty() && self.lap_over_at.is_none();
            assert!(idle && self.received == 0, "the lap has not begun, and yet something has come");
            return;
        };
        assert!(initial <= self.next, "it is before its own lap");
        let mut before = initial;
        for suspect in &self.suspects {
            let positions = &suspect.positions;
            let in_order = before <= positions.start && positions.start < positions.end;
            assert!(in_order && positions.end <= self.next, "{positions:?} was not skipped");
            before = positions.end;
        }
    }
}

/// The number after the largest of a set.
fn end_of(set: &RangeSet) -> u64 {
    set.iter().next_back().map_or(0, |range| range.end)
}
