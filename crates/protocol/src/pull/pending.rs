//! The pending interest table: which packets are asked for, and by whom (Datacast, section 6.1).

use alloc::vec::Vec;

use polycast_types::{Duration, Time};

use super::Route;
use super::packet::{Face, Name};
use super::table::NameTable;

const NONE: u32 = u32::MAX;

/// A face that waits for a packet.
#[derive(Clone, Copy, Debug)]
pub(super) struct Waiter {
    pub(super) face: Face,
    /// The way to him from here; it means nothing at the local face.
    pub(super) back: Route,
    /// Since when he waits, or since when his interest was sent on last.
    since: Time,
    next: u32,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    forwarded_at: Time,
    waiters: u32,
    /// It was sent on for the source alone to answer.
    fresh: bool,
}

/// Decision on an interest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// Send it on.
    Forward,
    /// It waits together with an earlier one.
    Joined,
    /// There is no room for it.
    Full,
}

/// A bounded table of pending interests.
#[derive(Clone, Debug)]
pub(super) struct PendingTable {
    entries: NameTable<Entry>,
    waiters: Vec<Waiter>,
    free: u32,
    waiters_in_use: u32,
    waiters_max: u32,
    lifetime: Duration,
}

impl PendingTable {
    /// A table of at most `entries` names, for which four times as many can wait.
    pub(super) fn new(entries: u32, lifetime: Duration, secret: u64) -> Self {
        PendingTable {
            entries: NameTable::new(entries, secret),
            waiters: Vec::new(),
            free: NONE,
            waiters_in_use: 0,
            waiters_max: entries.saturating_mul(4),
            lifetime,
        }
    }

    pub(super) fn len(&self) -> u32 {
        self.entries.len()
    }

    /// See [`super::Forwarder::check`].
    pub(super) fn check(&self) {
        self.entries.check();
        let (waiters, names) = (self.waiters_in_use, self.entries.len());
        assert!(waiters <= self.waiters_max, "{waiters} wait, where {} may", self.waiters_max);
        assert!(names <= waiters, "{waiters} wait for {names} names: at least one must wait for each");
        assert!(waiters as usize <= self.waiters.len(), "one that waits has a place");
    }

    /// Enters an interest.
    ///
    /// It is sent on if the name is new, or if what was sent on has been lost, it seems: the same face asks
    /// again and half a lifetime has passed, or a whole lifetime has. Two receivers ask at different times,
    /// so another face that asks tells nothing.
    ///
    /// A face that has asked in vain for two lifetimes is sent on in any case: by its own way. The pending
    /// one may have been sent by another tree to a node that itself waits for an answer from here, and then
    /// neither would ever get one.
    #[inline]
    pub(super) fn ask(&mut self, now: Time, name: Name, face: Face, back: Route) -> Verdict {
        if let Some(slot) = self.entries.find(name) {
            return self.ask_again(now, slot, face, back);
        }
        while let Some(oldest) = self.entries.oldest()
            && now.since(self.entries.value(oldest).forwarded_at) >= self.lifetime
            && self.entries.is_full()
        {
            self.forget(oldest);
        }
        if self.entries.is_full() {
            return Verdict::Full;
        }
        let Some(waiters) = self.new_waiter(now, face, back, NONE) else {
            return Verdict::Full;
        };
        self.entries.insert(name, Entry { forwarded_at: now, waiters, fresh: false });
        Verdict::Forward
    }

    /// An interest that only the source may answer has just joined the ones for a name. Returns true if it is
    /// to be sent on nevertheless, once: the others' interest may have left by a way that has failed.
    pub(super) fn ask_source(&mut self, now: Time, name: Name) -> bool {
        let Some(slot) = self.entries.find(name) else { return false };
        let entry = self.entries.value_mut(slot);
        if core::mem::replace(&mut entry.fresh, true) {
            return false;
        }
        entry.forwarded_at = now;
        self.entries.renew(slot);
        true
    }

    fn ask_again(&mut self, now: Time, slot: u32, face: Face, back: Route) -> Verdict {
        let Entry { forwarded_at, waiters, .. } = *self.entries.value(slot);
        let mut at = waiters;
        while at != NONE && self.waiters[at as usize].face != face {
            at = self.waiters[at as usize].next;
        }
        let known = at != NONE;
        if known {
            self.waiters[at as usize].back = back;
        } else {
            let Some(waiter) = self.new_waiter(now, face, back, waiters) else {
                return Verdict::Full;
            };
            self.entries.value_mut(slot).waiters = waiter;
        }
        let age = now.since(forwarded_at);
        let patience = if known { Duration(self.lifetime.0 / 2) } else { self.lifetime };
        let in_vain = known && now.since(self.waiters[at as usize].since) >= self.lifetime * 2;
        if age < patience && !in_vain {
            return Verdict::Joined;
        }
        if known {
            self.waiters[at as usize].since = now;
        }
        self.entries.value_mut(slot).forwarded_at = now;
        self.entries.renew(slot);
        Verdict::Forward
    }

    /// The packet has come: takes its entry out and gives the first face that waits for it.
    #[inline]
    pub(super) fn satisfy(&mut self, name: Name) -> Option<Waiters> {
        let slot = self.entries.find(name)?;
        let entry = self.entries.remove(slot);
        Some(Waiters(entry.waiters))
    }

    /// The next face that waits; its place is free then.
    #[inline]
    pub(super) fn next_waiter(&mut self, waiters: &mut Waiters) -> Option<Waiter> {
        if waiters.0 == NONE {
            return None;
        }
        let waiter = self.waiters[waiters.0 as usize];
        self.waiters[waiters.0 as usize].next = self.free;
        self.free = waiters.0;
        self.waiters_in_use -= 1;
        waiters.0 = waiter.next;
        Some(waiter)
    }

    /// Forgets what was not answered or asked for anew since.
    pub(super) fn forget_before(&mut self, then: Time) {
        while let Some(oldest) = self.entries.oldest()
            && self.entries.value(oldest).forwarded_at < then
        {
            self.forget(oldest);
        }
    }

    fn forget(&mut self, slot: u32) {
        let mut waiters = Waiters(self.entries.remove(slot).waiters);
        while self.next_waiter(&mut waiters).is_some() {}
    }

    fn new_waiter(&mut self, now: Time, face: Face, back: Route, next: u32) -> Option<u32> {
        if self.waiters_in_use >= self.waiters_max {
            return None;
        }
        self.waiters_in_use += 1;
        let waiter = Waiter { face, back, since: now, next };
        if self.free == NONE {
            self.waiters.push(waiter);
            return Some(self.waiters.len() as u32 - 1);
        }
        let place = self.free;
        self.free = self.waiters[place as usize].next;
        self.waiters[place as usize] = waiter;
        Some(place)
    }
}

/// Faces that waited for a packet that has arrived.
#[derive(Debug)]
pub(super) struct Waiters(u32);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pull::Hop;
    use alloc::vec::Vec;
    use polycast_types::Handle;

    fn name(sn: u64) -> Name {
        Name::new(Handle(3), sn)
    }

    fn way(port: u8) -> Route {
        Route::new(&[Hop { port, non_branching: false }]).unwrap()
    }

    fn table(entries: u32) -> PendingTable {
        PendingTable::new(entries, Duration(20), 1)
    }

    fn all(table: &mut PendingTable, sn: u64) -> Option<Vec<Face>> {
        let mut waiters = table.satisfy(name(sn))?;
        let mut faces: Vec<_> =
            core::iter::from_fn(|| table.next_waiter(&mut waiters)).map(|waiter| waiter.face).collect();
        faces.sort_unstable();
        Some(faces)
    }

    #[test]
    fn faces_join_and_all_are_served_once() {
        let mut table = table(4);
        assert_eq!(table.ask(Time(0), name(1), Face::Port(2), way(2)), Verdict::Forward);
        assert_eq!(table.ask(Time(1), name(1), Face::Port(3), way(3)), Verdict::Joined);
        assert_eq!(table.ask(Time(2), name(1), Face::Local, way(0)), Verdict::Joined);
        assert_eq!(table.ask(Time(9), name(1), Face::Port(3), way(3)), Verdict::Joined, "too early");
        assert_eq!(all(&mut table, 1), Some(Vec::from([Face::Local, Face::Port(2), Face::Port(3)])));
        assert_eq!(all(&mut table, 1), None);
        assert_eq!((table.len(), table.waiters_in_use), (0, 0));
    }

    #[test]
    fn a_face_that_asks_again_is_heard_and_another_only_after_a_lifetime() {
        let mut table = table(4);
        table.ask(Time(0), name(1), Face::Port(2), way(2));
        assert_eq!(table.ask(Time(10), name(1), Face::Port(3), way(3)), Verdict::Joined);
        assert_eq!(table.ask(Time(10), name(1), Face::Port(2), way(2)), Verdict::Forward);
        assert_eq!(table.ask(Time(19), name(1), Face::Port(3), way(3)), Verdict::Joined);
        assert_eq!(table.ask(Time(30), name(1), Face::Port(4), way(4)), Verdict::Forward);
    }

    /// While others' interests are sent on, one face's are not, for two lifetimes.
    #[test]
    fn who_asks_in_vain_gets_through_after_two_lifetimes() {
        for (at, verdict) in [(25, Verdict::Joined), (39, Verdict::Joined), (40, Verdict::Forward)] {
            let mut table = table(4);
            table.ask(Time(0), name(1), Face::Port(2), way(2));
            table.ask(Time(10), name(1), Face::Port(3), way(3));
            assert_eq!(table.ask(Time(20), name(1), Face::Port(3), way(3)), Verdict::Forward);
            if at > 30 {
                assert_eq!(table.ask(Time(35), name(1), Face::Port(3), way(3)), Verdict::Forward);
            }
            assert_eq!(table.ask(Time(at), name(1), Face::Port(2), way(2)), verdict, "at {at}");
        }
    }

    /// Each of two nodes has sent its own interest to the other, by different trees, and asks again just
    /// before the other's comes: an interest that waits for too long must get through.
    #[test]
    fn nodes_that_wait_for_each_other_get_out_of_it() {
        let mut table = table(4);
        let mut sent_on = 0;
        for round in 0..10 {
            let now = Time(100 * round);
            assert_eq!(table.ask(now, name(1), Face::Local, way(3)), Verdict::Forward);
            let other = table.ask(now + Duration(1), name(1), Face::Port(3), way(2));
            sent_on += u32::from(other == Verdict::Forward);
        }
        assert!((4..=9).contains(&sent_on), "the other was sent on {sent_on} times");
    }

    #[test]
    fn the_table_is_bounded_and_entries_without_an_answer_give_way() {
        let mut table = table(2);
        table.ask(Time(0), name(1), Face::Port(2), way(2));
        table.ask(Time(5), name(2), Face::Port(2), way(2));
        assert_eq!(table.ask(Time(19), name(3), Face::Port(2), way(2)), Verdict::Full);
        assert_eq!(table.ask(Time(20), name(3), Face::Port(2), way(2)), Verdict::Forward);
        assert_eq!((all(&mut table, 1), table.len()), (None, 2));
        for port in 3..20 {
            table.ask(Time(21), name(3), Face::Port(port), way(port));
        }
        assert_eq!(table.waiters_in_use, 8);
        assert_eq!(table.ask(Time(21), name(2), Face::Port(9), way(9)), Verdict::Full);
    }
}
