//! Receivers that have gone in mid-transfer: what starts an agent again that has ended does so within
//! seconds, and it goes on with what it has. It does not come by itself: the source calls it again. And
//! receivers that are counted and will not come.

use super::{AWAITED_MAX, Entry, Expected, Output, Roster, Stage};
use crate::session::{Gone, Why};
use alloc::string::{String, ToString};
use polycast_types::{Duration, Printable, Time};

/// One that has gone is called again so long after that, and after each call in vain.
const CALL_AGAIN_AFTER: Duration = Duration::from_millis(500);
/// Calls grow rarer with its absence: the next one follows after this part of it, and at last after so long.
/// A machine that has been away for a quarter of an hour may be away for good.
const CALL_AGAIN_PARTS: u64 = 4;
const CALL_AGAIN_MOST: Duration = Duration::from_secs(60);
/// A transfer that has nothing else to do waits for it until so long after it has gone. The units in
/// `packaging/` start an agent again after 2 s, and it is at its manager within one more; that is two calls.
pub(super) const BACK_WITHIN: Duration = Duration::from_secs(4);

/// Absence of a receiver that was here.
#[derive(Clone, Copy, Debug)]
pub(super) struct Away {
    since: Time,
    /// Time of the next call; none while one is on its way.
    call_at: Option<Time>,
}

impl Entry {
    /// Its agent has to be called for it to come again: where receivers are counted they come by themselves.
    pub(super) fn leave(&mut self, now: Time) {
        self.away = Some(Away { since: now, call_at: Some(now + CALL_AGAIN_AFTER) });
    }

    /// Absence of one that was given up for it, and may come again.
    fn absence(&self) -> Option<Away> {
        self.away.filter(|_| self.failure().is_some_and(|why| !why.is_final()))
    }
}

impl Roster {
    /// A connection has ended like this: returns true if its receiver may be called again.
    pub(super) fn calls_again(&self, how: &Gone) -> bool {
        matches!(self.config.expected, Expected::Named(_)) && !matches!(how, Gone::Foreign(_))
    }

    /// One of those that are counted will not come, or not again. One that was here has had its place: that
    /// is no other's. Each says so once.
    pub(super) fn expect_fewer(&mut self, now: Time, name: &str) {
        let name = Printable(name).to_string();
        let was_here = self.position(&name).is_some();
        let has_place = was_here || self.missing() > 0;
        if let Expected::Count(count) = &mut self.config.expected
            && has_place
            && !self.not_coming.contains_key(&name)
        {
            *count -= u32::from(!was_here);
            self.not_coming.insert(name, !was_here);
            self.next_check = Some(now);
        }
    }

    /// One comes that was not to come: it takes none of the places that are left for the others.
    pub(super) fn expect_again(&mut self, name: &str) {
        let gave_place_up = self.not_coming.remove(name).unwrap_or(false);
        if let Expected::Count(count) = &mut self.config.expected {
            *count += u32::from(gave_place_up);
        }
    }

    /// One that was called does not come.
    pub(super) fn not_coming(&mut self, now: Time, name: &str, why: String) {
        let Some(at) = self.position(name) else { return };
        let entry = &self.entries[at];
        match entry.stage {
            // It was here: that it has gone is what there is to say.
            Stage::Called if entry.away.is_some() => self.fail(now, at, Why::WentAway),
            Stage::Called => self.fail(now, at, Why::NotComing(why)),
            _ => {}
        }
        self.call_later(now, at);
        self.next_check = Some(now);
    }

    /// One that has failed does not come again either.
    pub(super) fn take_out(&mut self, now: Time, name: &str) {
        self.give_up(now, name, Why::TakenOut);
        let at = self.position(name).filter(|at| self.entries[*at].failure().is_some());
        if let Some(at) = at {
            self.entries[at].stage = Stage::Failed(Why::TakenOut);
        }
    }

    /// It was called again, and did not come.
    fn call_later(&mut self, now: Time, at: usize) {
        let Some(away) = &mut self.entries[at].away else { return };
        let gap = Duration(now.since(away.since).0 / CALL_AGAIN_PARTS);
        away.call_at = Some(now + gap.clamp(CALL_AGAIN_AFTER, CALL_AGAIN_MOST));
    }

    /// Calls those whose time has come.
    pub(super) fn call_again(&mut self, now: Time) {
        for entry in &mut self.entries {
            let is_due = entry.absence().and_then(|away| away.call_at).is_some_and(|at| now >= at);
            if let Some(away) = entry.away.as_mut().filter(|_| is_due) {
                away.call_at = None;
                self.outputs.push_back(Output::Call(entry.name.clone()));
            }
        }
    }

    /// Returns true while one has just gone, and the transfer does not end without it.
    pub(super) fn awaits_return(&self, now: Time) -> bool {
        self.ends_of_waiting().any(|until| now < until)
    }

    /// Times until when those that have gone are waited for. For one that goes again and again the others do
    /// not wait.
    fn ends_of_waiting(&self) -> impl Iterator<Item = Time> {
        let away = self.entries.iter().filter(|entry| entry.joins <= AWAITED_MAX).filter_map(Entry::absence);
        away.map(|away| away.since + BACK_WITHIN)
    }

    /// Times when something of that is due.
    pub(super) fn return_due(&self, now: Time) -> impl Iterator<Item = Time> {
        let calls = self.entries.iter().filter_map(|entry| entry.absence()?.call_at);
        calls.chain(self.ends_of_waiting().filter(move |until| *until > now))
    }

    /// Holds what is noted of absences against the rest.
    pub(super) fn check_away(&self) {
        for entry in self.entries.iter().filter(|entry| entry.away.is_some()) {
            assert!(matches!(self.config.expected, Expected::Named(_)), "'{}' is counted", entry.name);
            let is_here = matches!(entry.stage, Stage::Ready | Stage::Done);
            assert!(!is_here, "'{}' is here and away", entry.name);
        }
    }
}

#[cfg(test)]
mod tests;
