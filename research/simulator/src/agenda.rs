//! Events of a small world by their times, and the times at which its machines are to be polled again.
//!
//! Worlds that move packets have a queue of their own, which is made for millions of events.

use alloc::collections::BTreeMap;
use polycast_types::Time;

/// Events in the order of their times; those of one time in the order in which they were planned.
#[derive(Clone, Debug)]
pub struct Agenda<E> {
    events: BTreeMap<(Time, u64), E>,
    planned: u64,
}

impl<E> Default for Agenda<E> {
    fn default() -> Self {
        Agenda { events: BTreeMap::new(), planned: 0 }
    }
}

impl<E> Agenda<E> {
    /// Plans an event.
    pub fn plan(&mut self, at: Time, event: E) {
        self.planned += 1;
        self.events.insert((at, self.planned), event);
    }

    /// Returns the time of the next event.
    #[must_use]
    pub fn next_at(&self) -> Option<Time> {
        self.events.first_key_value().map(|((at, _), _)| *at)
    }

    /// Takes the next event, if its time is no later than this.
    pub fn next_until(&mut self, end: Time) -> Option<(Time, E)> {
        self.next_at().filter(|at| *at <= end)?;
        self.events.pop_first().map(|((at, _), event)| (at, event))
    }

    /// Returns the number of events that were ever planned.
    #[must_use]
    pub fn planned(&self) -> u64 {
        self.planned
    }
}

impl<E> FromIterator<(Time, E)> for Agenda<E> {
    fn from_iter<I: IntoIterator<Item = (Time, E)>>(events: I) -> Self {
        let mut agenda = Agenda::default();
        events.into_iter().for_each(|(at, event)| agenda.plan(at, event));
        agenda
    }
}

/// Time at which each machine is to be polled again. The world plans an event for it; one that was planned
/// before, for a later time, is left in its [`Agenda`] and does nothing.
#[derive(Clone, Debug)]
pub struct Wakes<W>(BTreeMap<W, Time>);

impl<W> Default for Wakes<W> {
    fn default() -> Self {
        Wakes(BTreeMap::new())
    }
}

impl<W: Ord> Wakes<W> {
    /// Notes that a machine is to be polled then; gives whether an event has to be planned for it.
    #[must_use]
    pub fn note(&mut self, who: W, at: Time) -> bool {
        let is_first = self.0.get(&who).is_none_or(|before| at < *before);
        if is_first {
            self.0.insert(who, at);
        }
        is_first
    }

    /// Takes a machine's time out if it is over; gives whether the machine is to be polled.
    #[must_use]
    pub fn take(&mut self, who: &W, now: Time) -> bool {
        let is_due = self.0.get(who).is_some_and(|at| *at <= now);
        if is_due {
            self.0.remove(who);
        }
        is_due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_of_one_time_come_in_the_order_of_planning() {
        let mut agenda: Agenda<char> = [(Time(5), 'b'), (Time(3), 'a'), (Time(5), 'c')].into_iter().collect();
        assert_eq!(agenda.next_until(Time(2)), None);
        assert_eq!(agenda.next_until(Time(3)), Some((Time(3), 'a')));
        agenda.plan(Time(5), 'd');
        agenda.plan(Time(4), 'z');
        assert_eq!((agenda.next_at(), agenda.planned()), (Some(Time(4)), 5));
        let rest: alloc::string::String =
            core::iter::from_fn(|| agenda.next_until(Time(5))).map(|(_, event)| event).collect();
        assert_eq!(rest, "zbcd");
    }

    #[test]
    fn only_the_earliest_time_of_a_machine_counts() {
        let mut wakes = Wakes::default();
        assert_eq!([5, 7, 3].map(|at| wakes.note('a', Time(at))), [true, false, true]);
        assert_eq!([2, 3, 5].map(|now| wakes.take(&'a', Time(now))), [false, true, false]);
        assert!(!wakes.take(&'b', Time(9)));
    }
}
