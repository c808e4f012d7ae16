//! Probes of a switch's neighbours, which show whether they still forward (Orca section 3.4 leaves the
//! detection of failures to the network).
//!
//! A switch whose forwarding has died may leave its ports lit. So every switch sends its neighbours a probe a
//! period, which their data paths send back. After several probes in a row without an answer the neighbour
//! counts as broken; after as many answers it works again. The measure is probes and not time: a switch that
//! is held up itself sends fewer probes, and takes no neighbour for broken.

use alloc::vec::Vec;
use polycast_types::{Duration, Time};
use polycast_wire::label::Probe;

/// Times of probes.
#[derive(Clone, Copy, Debug)]
pub struct ProbeConfig {
    /// Time between probes.
    pub period: Duration,
    /// Number of outcomes in a row that decide.
    pub in_a_row: u32,
}

/// Actions for the driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProbeOutput {
    /// Send this by a port.
    Send {
        /// The port.
        port: u32,
        /// The datagram's content.
        probe: Probe,
    },
    /// The neighbour at a port has fallen silent, or forwards again.
    Neighbour {
        /// The port.
        port: u32,
        /// Set if it forwards.
        works: bool,
    },
}

/// A port to a neighbour.
#[derive(Debug)]
struct Port {
    port: u32,
    /// Set once the last probe has been answered.
    answered: bool,
    works: bool,
    /// Number of outcomes in a row that contradict `works`.
    against: u32,
    /// The outcome of the last probe has been counted, and the next one not been sent.
    counted: bool,
}

/// The probes of one switch.
#[derive(Debug)]
pub struct Probes {
    config: ProbeConfig,
    ports: Vec<Port>,
    /// Number of the last probe sent; 0 before the first.
    number: u32,
    next_at: Time,
    /// The port whose turn it is in this period; beyond the last one until the next.
    turn: usize,
}

impl Probes {
    /// Creates the probes of these ports; all neighbours are taken for working, and the first probes are due
    /// at once.
    ///
    /// # Panics If there is no time between probes, or none decides.
    #[must_use]
    pub fn new(config: ProbeConfig, ports: impl IntoIterator<Item = u32>, now: Time) -> Self {
        assert!(config.period > Duration::ZERO && config.in_a_row > 0, "probes need a time and a number");
        let port = |port| Port { port, answered: true, works: true, against: 0, counted: true };
        let ports: Vec<Port> = ports.into_iter().map(port).collect();
        Probes { turn: ports.len(), config, ports, number: 0, next_at: now }
    }

    /// An answer came in by a port. One to an earlier probe says nothing about now.
    pub fn answered(&mut self, port: u32, probe: Probe) {
        if let Some(state) = self.ports.iter_mut().find(|state| state.port == port)
            && probe.is_answer
            && probe.number == self.number
        {
            state.answered = true;
        }
    }

    /// The next thing to do, until there is none. All answers that have come should be handed over before.
    pub fn poll(&mut self, now: Time) -> Option<ProbeOutput> {
        if self.turn >= self.ports.len() {
            if now < self.next_at {
                return None;
            }
            self.next_at = now + self.config.period;
            self.turn = 0;
            self.ports.iter_mut().for_each(|port| port.counted = self.number == 0);
            self.number = self.number.wrapping_add(1).max(1);
        }
        let in_a_row = self.config.in_a_row;
        let state = self.ports.get_mut(self.turn)?;
        if !core::mem::replace(&mut state.counted, true) {
            state.against = if state.answered == state.works { 0 } else { state.against + 1 };
            if state.against >= in_a_row {
                (state.works, state.against) = (!state.works, 0);
                return Some(ProbeOutput::Neighbour { port: state.port, works: state.works });
            }
        }
        state.answered = false;
        self.turn += 1;
        let probe = Probe { is_answer: false, number: self.number };
        Some(ProbeOutput::Send { port: state.port, probe })
    }

    /// Returns the time to poll again.
    #[must_use]
    pub fn deadline(&self) -> Option<Time> {
        (!self.ports.is_empty()).then_some(self.next_at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::collections::BTreeMap;
    use proptest::prelude::*;

    const MS: Duration = Duration::from_millis(1);
    const CONFIG: ProbeConfig = ProbeConfig { period: Duration::from_millis(10), in_a_row: 3 };

    type Sent = Vec<(u32, Probe)>;
    type Found = Vec<(u32, bool)>;

    /// Returns the actions at a time: the probes sent, and the states found.
    fn outputs(probes: &mut Probes, now: Time) -> (Sent, Found) {
        let (mut sent, mut found) = (Vec::new(), Vec::new());
        while let Some(output) = probes.poll(now) {
            match output {
                ProbeOutput::Send { port, probe } => sent.push((port, probe)),
                ProbeOutput::Neighbour { port, works } => found.push((port, works)),
            }
        }
        (sent, found)
    }

    fn answer(probe: Probe) -> Probe {
        Probe { is_answer: true, ..probe }
    }

    #[test]
    fn a_neighbour_that_does_not_answer_is_found_and_found_again() {
        let mut probes = Probes::new(CONFIG, [4, 7], Time::ZERO);
        let mut found = Vec::new();
        for period in 0..20u64 {
            let now = Time::ZERO + MS * 10 * period;
            assert_eq!(probes.deadline(), Some(now));
            let (sent, new) = outputs(&mut probes, now);
            assert_eq!(sent.iter().map(|(port, _)| *port).collect::<Vec<_>>(), [4, 7]);
            found.extend(new.into_iter().map(|(port, works)| (period, port, works)));
            for (port, probe) in sent {
                // The neighbour at 7 is dead for the probes 5 to 9; a question is no answer.
                probes.answered(port, probe);
                if port == 4 || !(5..10).contains(&period) {
                    probes.answered(port, answer(probe));
                }
            }
        }
        assert_eq!(found, [(8, 7, false), (13, 7, true)]);
    }

    #[test]
    fn a_switch_that_was_held_up_takes_no_neighbour_for_broken() {
        let mut probes = Probes::new(CONFIG, [0], Time::ZERO);
        for at in [0u64, 900, 2_000, 9_000, 9_500] {
            let (sent, found) = outputs(&mut probes, Time::ZERO + MS * at);
            assert_eq!((sent.len(), found.len()), (1, 0));
            probes.answered(0, answer(sent[0].1));
        }
    }

    #[test]
    fn late_and_foreign_answers_do_not_count() {
        let mut probes = Probes::new(CONFIG, [0], Time::ZERO);
        let (mut before, mut lost) = (None, Vec::new());
        for period in 0..5u64 {
            let (sent, found) = outputs(&mut probes, Time::ZERO + MS * 10 * period);
            lost.extend(found);
            probes.answered(9, answer(sent[0].1));
            if let Some(before) = before.replace(sent[0].1) {
                probes.answered(0, answer(before));
            }
        }
        assert_eq!(lost, [(0, false)]);
    }

    proptest! {
        /// Whatever is lost: a change is said exactly when as many outcomes in a row have spoken for it.
        #[test]
        fn what_is_said_is_what_the_last_probes_say(answers in proptest::collection::vec(any::<[bool; 3]>(), 1..60)) {
            let mut probes = Probes::new(CONFIG, 0..3, Time::ZERO);
            let mut works: BTreeMap<u32, bool> = (0..3).map(|port| (port, true)).collect();
            for period in 0..=answers.len() {
                let (sent, found) = outputs(&mut probes, Time::ZERO + MS * 10 * period as u64);
                for port in 0..3u32 {
                    let last = &answers[period.saturating_sub(3)..period];
                    let against = |outcome: &[bool; 3]| outcome[port as usize] != works[&port];
                    let decided = last.len() == 3 && last.iter().all(against);
                    let said = found.iter().find(|(of, _)| *of == port).map(|(_, works)| *works);
                    prop_assert_eq!(said, decided.then_some(!works[&port]));
                    if let Some(said) = said {
                        works.insert(port, said);
                    }
                }
                for (port, probe) in sent {
                    if answers.get(period).is_some_and(|outcome| outcome[port as usize]) {
                        probes.answered(port, answer(probe));
                    }
                }
            }
        }
    }
}
