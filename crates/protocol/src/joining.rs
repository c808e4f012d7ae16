//! Times of an agent's tries to join its manager: at once when it has lost it, and then with growing pauses.
//!
//! All agents of a cluster lose their manager at the same moment, and all want to be back. A manager that is
//! not there refuses connections, which costs it nothing: agents go on to try every few seconds, so that
//! they are back soon after it is. One that is there and does not answer in time has more to do than it can,
//! and each try that it gets to too late is work for nothing: agents wait the longer for the answer, and
//! come again the later, so that the share that it answers in time grows. One that lets agents in and ends
//! their sessions at once is no better than one that is away. Each pause is drawn between its half and its
//! whole, so that agents which have begun together do not come together.

use polycast_types::Duration;

/// The first pause.
const FIRST: Duration = Duration::from_millis(100);
/// The longest pause while no manager can be reached.
const AWAY_MAX: Duration = Duration::from_millis(3_000);
/// The same where there are other managers to try.
const OTHERS_MAX: Duration = Duration::from_millis(400);
/// The first pause after a manager that is there has not answered in time.
const SLOW_FIRST: Duration = Duration::from_millis(2_000);
/// The longest pause while a manager is there and does not answer in time.
const SLOW_MAX: Duration = Duration::from_millis(8_000);
/// Time that a manager has for its answer at first.
const PATIENCE: Duration = Duration::from_millis(3_000);
/// A session that has lasted so long was one: as long as the longest pause, so that a manager which ends each
/// session at once is tried as often as one that is away.
const SETTLED: Duration = AWAY_MAX;
/// The most time that it has.
pub const PATIENCE_MAX: Duration = Duration::from_millis(12_000);

/// The end of a try to join.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ended {
    /// No manager is there, or it has said why not.
    Away,
    /// The manager did not answer in time.
    Slow,
}

/// The pauses of one agent.
#[derive(Clone, Debug)]
pub struct Joining {
    has_others: bool,
    pause: Duration,
    patience: Duration,
    random: u64,
}

impl Joining {
    /// An agent that has not tried yet; `has_others` where it knows several managers. Agents have different
    /// seeds.
    #[must_use]
    pub fn new(has_others: bool, seed: u64) -> Self {
        Joining { has_others, pause: FIRST, patience: PATIENCE, random: seed }
    }

    /// The agent was a member for so long. Gives whether that was long enough for the next try to be like the
    /// first.
    pub fn left(&mut self, lasted: Duration) -> bool {
        let is_settled = lasted >= SETTLED;
        self.patience = PATIENCE;
        if is_settled {
            self.pause = FIRST;
        }
        is_settled
    }

    /// Returns the time that the manager has for its answer.
    #[must_use]
    pub fn patience(&self) -> Duration {
        self.patience
    }

    /// Returns the pause before the next try.
    pub fn next(&mut self, ended: Ended) -> Duration {
        let (least, most) = match ended {
            Ended::Away if self.has_others => (FIRST, OTHERS_MAX),
            Ended::Away => (FIRST, AWAY_MAX),
            // Another manager may have more time.
            Ended::Slow if self.has_others => (FIRST, AWAY_MAX),
            Ended::Slow => (SLOW_FIRST, SLOW_MAX),
        };
        if ended == Ended::Slow && !self.has_others {
            self.patience = (self.patience * 2).min(PATIENCE_MAX);
        }
        let pause = self.pause.max(least).min(most);
        self.pause = (pause * 2).min(most);
        let half = pause.0 / 2;
        Duration(half + self.draw() % (half + 1))
    }

    /// Numbers that look as if they were drawn (splitmix64).
    fn draw(&mut self) -> u64 {
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.random;
        mixed = (mixed ^ mixed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::collections::{BTreeMap, BTreeSet, VecDeque};
    use alloc::vec::Vec;
    use polycast_types::Time;

    const AGENTS: u64 = 15_000;
    const SECOND: u64 = 1_000_000_000;

    /// A manager that is away for a while, and all agents at once have lost.
    struct World {
        /// The manager is there from then on.
        back_at: Time,
        /// Time that it takes for a join, whether or not its agent still waits for it.
        join_takes: Duration,
        agents: Vec<Joining>,
        events: BTreeSet<(Time, u64, bool)>,
        /// Joins that wait for the manager, with the times of the try and when its agent gives it up.
        queue: VecDeque<(u64, Time, Time)>,
        free_at: Time,
        members: BTreeMap<u64, Time>,
        tries_after: u64,
    }

    impl World {
        fn new(away: Duration, joins_per_s: u64) -> Self {
            let agents: Vec<Joining> = (0..AGENTS).map(|seed| Joining::new(false, seed)).collect();
            let back_at = Time(0) + away;
            let mut world = World {
                back_at,
                join_takes: Duration(SECOND / joins_per_s),
                agents,
                events: BTreeSet::new(),
                queue: VecDeque::new(),
                free_at: back_at,
                members: BTreeMap::new(),
                tries_after: 0,
            };
            for agent in 0..AGENTS {
                world.again(Time(0), agent, Ended::Away);
            }
            world
        }

        fn again(&mut self, now: Time, agent: u64, ended: Ended) {
            let pause = self.agents[agent as usize].next(ended);
            self.events.insert((now + pause, agent, false));
        }

        /// The manager takes in what has come by now; a join that its agent has given up costs it as much.
        fn work(&mut self, now: Time) {
            while let Some((agent, tried_at, until)) = self.queue.front().copied() {
                let begins_at = self.free_at.max(tried_at);
                let done_at = begins_at + self.join_takes;
                if done_at > now {
                    return;
                }
                self.queue.pop_front();
                self.free_at = done_at;
                if done_at <= until {
                    self.members.insert(agent, done_at);
                }
            }
        }

        /// Returns the time from the manager's return until all are members.
        fn run(&mut self) -> Duration {
            while let Some((now, agent, is_timeout)) = self.events.pop_first() {
                self.work(now);
                let is_member = self.members.contains_key(&agent);
                if is_timeout && !is_member {
                    self.again(now, agent, Ended::Slow);
                } else if !is_timeout && now < self.back_at {
                    self.again(now, agent, Ended::Away);
                } else if !is_timeout {
                    self.tries_after += 1;
                    let until = now + self.agents[agent as usize].patience();
                    self.queue.push_back((agent, now, until));
                    self.events.insert((until, agent, true));
                }
                assert!(now < self.back_at + Duration::from_secs(300), "agents stay away");
            }
            self.members.values().max().expect("all are back").since(self.back_at)
        }
    }

    /// A manager restarts: however soon it is there again, all 15,000 agents are back within half a minute,
    /// and hardly any comes twice.
    #[test]
    fn all_agents_are_back_soon_and_without_a_storm() {
        for (away_ms, joins_per_s) in
            [(0, 1_500), (500, 1_500), (5_000, 1_500), (60_000, 1_500), (5_000, 6_000)]
        {
            let mut world = World::new(Duration::from_millis(away_ms), joins_per_s);
            let took = world.run();
            let tries = world.tries_after;
            assert_eq!(world.members.len() as u64, AGENTS);
            assert!(
                took < Duration::from_secs(30),
                "{took:?}, away for {away_ms} ms, {joins_per_s} a second"
            );
            assert!(tries <= 3 * AGENTS, "{tries} tries, away for {away_ms} ms, {joins_per_s} a second");
        }
    }

    /// One that is slower than what comes falls behind for a while, and not for good.
    #[test]
    fn a_slow_manager_gets_all_in_the_end() {
        let mut world = World::new(Duration::from_millis(5_000), 1_000);
        world.run();
        assert_eq!(world.members.len() as u64, AGENTS);
    }

    #[test]
    fn pauses_grow_and_are_drawn_between_half_and_all() {
        let most = |ended: Ended, has_others: bool| {
            let mut joining = Joining::new(has_others, 7);
            let pauses: Vec<Duration> = (0..20).map(|_| joining.next(ended)).collect();
            assert!(joining.left(SETTLED));
            assert!(ended == Ended::Slow || joining.next(ended) <= FIRST, "it begins anew");
            *pauses.iter().max().unwrap()
        };
        let within = |pause: Duration, most: Duration| most / 2 <= pause && pause <= most;
        assert!(within(most(Ended::Away, false), AWAY_MAX));
        assert!(within(most(Ended::Away, true), OTHERS_MAX));
        assert!(within(most(Ended::Slow, false), SLOW_MAX));
        let drawn: BTreeSet<Duration> =
            (0..100).map(|seed| Joining::new(false, seed).next(Ended::Away)).collect();
        assert!(drawn.len() > 90, "agents that begin together do not come together");
    }
    /// A manager lets agents in and ends each session, as one does that is hostile or breaks at once: it is
    /// tried no more often than one that is away.
    #[test]
    fn sessions_that_end_at_once_are_begun_seldom() {
        for has_others in [false, true] {
            let mut joining = Joining::new(has_others, 3);
            let (mut now, mut tries) = (Time(0), 0);
            while now < Time(60 * SECOND) {
                tries += 1;
                let lasted = Duration::from_millis(20);
                assert!(!joining.left(lasted));
                now = now + lasted + joining.next(Ended::Away);
            }
            let most = if has_others { 60_000 / 200 } else { 60_000 / 1_500 };
            assert!(tries <= most + 8, "{tries} in a minute");
        }
    }
}
