//! Detection of a neighbour: both ends of a link greet each other, and a change counts when it has lasted
//! (Datacast, section 5: the Fabric Manager is notified of links, and waits some seconds before it believes
//! that a link has changed).
//!
//! A link works when the interface can carry packets, the neighbour was heard lately, and reports that it
//! hears this end. The state is unknown until the link has worked once: its neighbour may be starting.

use polycast_types::{Duration, Time};

/// A neighbour that was not heard for so many greetings is gone.
const GREETINGS_MISSED: u64 = 4;
/// A link that has not worked once for so long is down: until then its neighbour may be starting.
const UNKNOWN_FOR: Duration = Duration::from_millis(20_000);

/// Times of one end of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NeighbourConfig {
    /// Time between two greetings, above zero.
    pub greeting: Duration,
    /// Time for which a change of a link must last before it is reported.
    pub damping: Duration,
}

/// Actions for the driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NeighbourOutput {
    /// Send a greeting that says whether the neighbour is heard.
    Greet {
        /// Set if it is heard.
        heard: bool,
    },
    /// Report the state of the link: it has changed for long enough, or is known at last.
    Link {
        /// Set if it works.
        up: bool,
    },
}

/// One end of a link.
#[derive(Clone, Debug)]
pub struct Neighbour {
    config: NeighbourConfig,
    /// Time when the neighbour was last heard, if ever.
    heard_at: Option<Time>,
    /// The neighbour says that it hears this end.
    heard_there: bool,
    /// The interface can carry packets.
    has_carrier: bool,
    greet_at: Time,
    /// Until when nothing is said of the link unless it works; `None` once its state is known.
    unknown_until: Option<Time>,
    /// The state that was reported, and since when it has been another.
    up: bool,
    other_since: Option<Time>,
}

impl Neighbour {
    /// An end that begins now. A neighbour that runs already greets before this one does: it is answered at
    /// once, and never hears that it is not heard.
    ///
    /// # Panics
    /// If there is no time between greetings.
    #[must_use]
    pub fn new(config: NeighbourConfig, now: Time) -> Self {
        assert!(config.greeting > Duration::ZERO, "greetings have time between them");
        Neighbour {
            config,
            heard_at: None,
            heard_there: false,
            has_carrier: true,
            greet_at: now + config.greeting + Duration(config.greeting.0 / 2),
            unknown_until: Some(now + UNKNOWN_FOR),
            up: false,
            other_since: None,
        }
    }

    /// A packet of the neighbour has come.
    pub fn heard(&mut self, now: Time) {
        if self.heard_at.replace(now).is_none() {
            self.greet_at = now;
        }
    }

    /// The neighbour has greeted, and says whether it hears this end.
    pub fn greeted(&mut self, heard: bool) {
        self.heard_there = heard;
    }

    /// The interface can carry packets, or no longer.
    pub fn set_carrier(&mut self, has_carrier: bool) {
        self.has_carrier = has_carrier;
    }

    /// The next thing to do, until there is none.
    pub fn poll(&mut self, now: Time) -> Option<NeighbourOutput> {
        let silent = |heard_at| now.since(heard_at).0 > GREETINGS_MISSED * self.config.greeting.0;
        let silent = self.heard_at.is_none_or(silent);
        if now >= self.greet_at {
            self.greet_at = now + self.config.greeting;
            return Some(NeighbourOutput::Greet { heard: !silent });
        }
        let works = self.has_carrier && !silent && self.heard_there;
        if let Some(until) = self.unknown_until {
            if !works && now < until {
                return None;
            }
            self.unknown_until = None;
            self.up = works;
            return Some(NeighbourOutput::Link { up: works });
        }
        if works == self.up {
            self.other_since = None;
            return None;
        }
        let since = *self.other_since.get_or_insert(now);
        if now.since(since) < self.config.damping {
            return None;
        }
        (self.up, self.other_since) = (works, None);
        Some(NeighbourOutput::Link { up: works })
    }

    /// Returns the time to poll again: to greet, or to report a change.
    #[must_use]
    pub fn deadline(&self) -> Time {
        let change = self.other_since.map(|since| since + self.config.damping).or(self.unknown_until);
        change.map_or(self.greet_at, |at| self.greet_at.min(at))
    }

    /// Returns true if the link works, as last reported.
    #[must_use]
    pub fn is_up(&self) -> bool {
        self.up
    }

    /// Returns true if the state of the link is known.
    #[must_use]
    pub fn is_known(&self) -> bool {
        self.unknown_until.is_none()
    }

    /// Holds the machine against itself.
    ///
    /// # Panics
    /// If it does not agree with itself.
    pub fn check(&self) {
        let known = self.is_known();
        assert!(known || (!self.up && self.other_since.is_none()), "what is unknown is no change");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec::Vec;
    use proptest::prelude::*;

    const CONFIG: NeighbourConfig =
        NeighbourConfig { greeting: Duration::from_millis(100), damping: Duration::from_millis(30) };

    fn at(ms: u64) -> Time {
        Time::ZERO + Duration::from_millis(ms)
    }

    /// Polls until there is nothing to do; gives what is said of the link.
    fn says(end: &mut Neighbour, now: Time) -> Option<bool> {
        let mut said = None;
        while let Some(output) = end.poll(now) {
            end.check();
            if let NeighbourOutput::Link { up } = output {
                assert_eq!(said.replace(up), None, "it is said once");
            }
        }
        said
    }

    /// An end whose neighbour was heard and hears it.
    fn linked() -> Neighbour {
        let mut end = Neighbour::new(CONFIG, Time::ZERO);
        end.heard(at(0));
        end.greeted(true);
        assert_eq!(says(&mut end, at(0)), Some(true));
        end
    }

    #[test]
    fn a_link_is_unknown_until_both_ends_have_heard_each_other() {
        let mut end = Neighbour::new(CONFIG, Time::ZERO);
        assert_eq!((says(&mut end, at(0)), end.deadline()), (None, at(150)), "who runs already greets first");
        assert_eq!(end.poll(at(150)), Some(NeighbourOutput::Greet { heard: false }));
        assert_eq!(end.poll(at(150)), None);
        assert!(!end.is_up() && !end.is_known());
        // The kernel may say late that there is a carrier.
        end.set_carrier(false);
        assert_eq!(says(&mut end, at(160)), None);
        end.set_carrier(true);
        // It is heard, and has not heard this end: it is answered at once.
        end.heard(at(170));
        end.greeted(false);
        assert_eq!(end.deadline(), at(170));
        assert_eq!(end.poll(at(170)), Some(NeighbourOutput::Greet { heard: true }));
        assert_eq!(says(&mut end, at(170)), None);
        end.greeted(true);
        assert_eq!(says(&mut end, at(171)), Some(true), "without damping: it is no change");
        assert!(end.is_up() && end.is_known());
    }

    #[test]
    fn a_link_that_has_never_worked_is_down_in_the_end() {
        let mut end = Neighbour::new(CONFIG, Time::ZERO);
        let over = at(UNKNOWN_FOR.0 / 1_000_000);
        assert_eq!(says(&mut end, Time(over.0 - 1)), None);
        assert_eq!(says(&mut end, over), Some(false));
        assert!(end.is_known());
    }

    #[test]
    fn a_lost_carrier_is_said_after_the_damping_though_the_neighbour_was_just_heard() {
        let mut end = linked();
        end.heard(at(9));
        end.set_carrier(false);
        assert_eq!(says(&mut end, at(10)), None);
        assert_eq!(end.deadline(), at(40), "not only with the next greeting");
        assert_eq!((says(&mut end, at(39)), says(&mut end, at(40))), (None, Some(false)));
        // One that comes and goes is as it was.
        end.set_carrier(true);
        assert_eq!(says(&mut end, at(50)), None);
        end.set_carrier(false);
        assert_eq!(says(&mut end, at(60)), None);
        end.set_carrier(true);
        let later = [70, 99, 100].map(|ms| says(&mut end, at(ms)));
        assert_eq!(later, [None, None, Some(true)]);
    }

    #[test]
    fn a_silent_neighbour_is_gone_after_four_greetings() {
        let mut end = linked();
        assert_eq!((says(&mut end, at(400)), says(&mut end, at(401))), (None, None));
        assert_eq!(says(&mut end, at(431)), Some(false));
        end.heard(at(440));
        assert_eq!((says(&mut end, at(440)), says(&mut end, at(470))), (None, Some(true)));
        // It is there, and does not hear this end.
        end.greeted(false);
        assert_eq!((says(&mut end, at(471)), says(&mut end, at(501))), (None, Some(false)));
    }

    proptest! {
        /// Whatever comes and goes: greetings keep their distance, states alternate, and each but the first
        /// has held all through the damping, by a look at what was said every millisecond.
        #[test]
        fn what_is_said_has_lasted(steps in proptest::collection::vec((any::<bool>(), any::<bool>(), 1u64..60), 1..60)) {
            let mut end = Neighbour::new(CONFIG, Time::ZERO);
            let (mut now, mut said, mut greeted) = (0, Vec::new(), Vec::new());
            // Whether the link works, as this test knows it, millisecond by millisecond.
            let mut works = Vec::new();
            let mut heard_at = None;
            for (hears, has_carrier, lasts) in steps {
                if hears {
                    end.heard(at(now));
                    end.greeted(true);
                    heard_at = Some(now);
                }
                end.set_carrier(has_carrier);
                for _ in 0..lasts {
                    while let Some(output) = end.poll(at(now)) {
                        end.check();
                        match output {
                            NeighbourOutput::Greet { .. } => greeted.push(now),
                            NeighbourOutput::Link { up } => said.push((now, up)),
                        }
                    }
                    works.push(has_carrier && heard_at.is_some_and(|heard: u64| now - heard <= 400));
                    now += 1;
                }
            }
            // The first word of a neighbour is answered at once.
            let close = greeted.windows(2).filter(|pair| pair[1] - pair[0] < 100).count();
            prop_assert!(close <= 1, "{:?}", greeted);
            prop_assert!(said.windows(2).all(|pair| pair[0].1 != pair[1].1), "{:?}", said);
            for (index, &(when, up)) in said.iter().enumerate() {
                let since = if index == 0 { when } else { when - 30 };
                prop_assert!((since..=when).all(|ms| works[ms as usize] == up), "{} {}", when, up);
            }
            // Nothing that lasts goes unsaid.
            if now > 30 && works[(now - 31) as usize..].iter().all(|works| *works) {
                prop_assert_eq!(said.last().map(|(_, up)| *up), Some(true));
            }
        }
    }
}
