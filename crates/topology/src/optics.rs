//! Light through splitters: insertion loss, cascades, amplifiers and the power budget
//! (Blast, sections II and III-C; Shufflecast, table I).

use alloc::collections::BTreeSet;
use alloc::vec;
use alloc::vec::Vec;

/// The loss of a splitter beyond the even split itself.
///
/// With it, 1:2, 1:4 and 1:8 lose 4.0, 7.0 and 10.0 dB; Shufflecast's table I lists 4, 7.3 and 10.6.
pub const SPLITTER_EXCESS_DB: f64 = 1.0;

/// The loss of a 1:`fanout` splitter: the even split and the excess.
#[must_use]
pub fn splitter_loss_db(fanout: u32) -> f64 {
    10.0 * libm::log10(f64::from(fanout.max(1))) + SPLITTER_EXCESS_DB
}

/// How many splitters of `fanout` outputs a group of `racks` racks (the source's among them) takes:
/// m = ceil((r - 2) / (N - 1)).
#[must_use]
pub fn splitters_needed(racks: u32, fanout: u32) -> u32 {
    racks.saturating_sub(2).div_ceil(fanout.max(2) - 1)
}

/// The largest group that `cascade_max` splitters of `fanout` outputs reach, the source's rack among them:
/// r <= k (N + 1) - 2 (k - 1).
#[must_use]
pub fn racks_reachable(cascade_max: u32, fanout: u32) -> u32 {
    let (k, n) = (u64::from(cascade_max), u64::from(fanout));
    // Without splitters one circuit still joins two racks.
    (k * n.saturating_sub(1) + 2).min(u32::MAX.into()) as u32
}

/// One splitter of a cascade.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stage {
    /// The splitter that feeds it and the output it hangs from; `None` for the first one.
    pub fed_by: Option<(u32, u32)>,
    /// How many splitters the light has passed when it leaves this one.
    pub depth: u32,
}

/// The splitters of one group as a complete N-ary tree, and where each receiver hangs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cascade {
    /// The splitters, nearest to the source first.
    pub stages: Vec<Stage>,
    /// For each receiver in order, the splitter and the output that feed it; empty for a direct circuit.
    pub receivers: Vec<(u32, u32)>,
}

impl Cascade {
    /// The flattest cascade of 1:`fanout` splitters with `receivers` outputs.
    #[must_use]
    pub fn new(receivers: u32, fanout: u32) -> Self {
        let fanout = fanout.max(2);
        let count = splitters_needed(receivers.saturating_add(1), fanout);
        let mut stages: Vec<Stage> = Vec::with_capacity(count as usize);
        for splitter in 0..count {
            let fed_by = (splitter > 0).then(|| ((splitter - 1) / fanout, (splitter - 1) % fanout));
            let depth = fed_by.map_or(1, |(parent, _)| stages[parent as usize].depth + 1);
            stages.push(Stage { fed_by, depth });
        }
        let mut leaves = Vec::new();
        if count > 0 {
            // Outputs in breadth-first order: the first count - 1 of them feed splitters.
            leaves.extend((count - 1..count - 1 + receivers).map(|at| (at / fanout, at % fanout)));
        }
        Cascade { stages, receivers: leaves }
    }

    /// The most splitters between the source and a receiver.
    #[must_use]
    pub fn depth(&self) -> u32 {
        self.receivers.iter().map(|&(splitter, _)| self.stages[splitter as usize].depth).max().unwrap_or(0)
    }
}

/// What the light may lose, and what an amplifier gives back.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PowerBudget {
    /// From the transmitter's power to the receiver's sensitivity.
    pub budget_db: f64,
    /// The loss of one pass through the optical circuit switch and its connectors.
    pub switch_loss_db: f64,
    /// The loss of one splitter.
    pub splitter_loss_db: f64,
    /// The gain of one amplifier; 0 where there are none.
    pub amplifier_gain_db: f64,
}

/// A power budget that does not suffice.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
#[error(
    "the light loses {loss_db:.1} dB on its way to {receivers} receivers and the power budget is \
     {budget_db:.1} dB: use fewer receivers, smaller splitters or amplifiers of a higher gain"
)]
pub struct PowerError {
    /// The loss where the light goes out: at the weakest receiver, or before an amplifier. Gains of amplifiers are counted.
    pub loss_db: f64,
    /// What was allowed.
    pub budget_db: f64,
    /// The size of the group.
    pub receivers: u32,
}

/// A cascade that stays within its power budget.
#[derive(Clone, Debug, PartialEq)]
pub struct PowerPlan {
    /// The splitters that need an amplifier before their input.
    pub amplified: Vec<u32>,
    /// What is left of the budget at the weakest receiver.
    pub margin_db: f64,
}

impl PowerBudget {
    /// Places as few amplifiers as suffice on the way to the receivers that are farthest from the source, each as late as
    /// possible. Splitters of the same depth get the same light, so they are amplified together.
    ///
    /// # Errors
    /// If some receiver would stay too dark even with an amplifier before every splitter.
    pub fn plan(&self, cascade: &Cascade) -> Result<PowerPlan, PowerError> {
        let ends: BTreeSet<u32> =
            cascade.receivers.iter().map(|&(splitter, _)| cascade.stages[splitter as usize].depth).collect();
        let levels = cascade.stages.iter().map(|stage| stage.depth).max().unwrap_or(0);
        let mut amplified = vec![self.amplifier_gain_db > 0.0; levels as usize];
        // Light that is amplified is never weaker for it: if this is not enough, nothing is.
        let mut margin_db = self.margin(&amplified, &ends).map_err(|dark| self.error(dark, cascade))?;
        // An amplifier does more good the later it comes, so the first ones are taken away where those behind them suffice.
        for level in 0..amplified.len() {
            let was = core::mem::replace(&mut amplified[level], false);
            match self.margin(&amplified, &ends) {
                Ok(margin) => margin_db = margin,
                Err(_) => amplified[level] = was,
            }
        }
        let is_amplified = |stage: &Stage| amplified[stage.depth as usize - 1];
        let stages = (0..).zip(&cascade.stages).filter(|(_, stage)| is_amplified(stage));
        Ok(PowerPlan { amplified: stages.map(|(splitter, _)| splitter).collect(), margin_db })
    }

    /// What is left of the budget at the weakest receiver, where the splitters of these depths, from 1 on, are amplified and
    /// receivers hang from splitters of the depths `ends`. An error says how much is missing where the light goes out.
    fn margin(&self, amplified: &[bool], ends: &BTreeSet<u32>) -> Result<f64, f64> {
        let mut light = self.budget_db;
        let mut weakest = if amplified.is_empty() { light - self.switch_loss_db } else { f64::MAX };
        for (depth, &amplified) in (1..).zip(amplified) {
            light -= self.switch_loss_db;
            if amplified && light < 0.0 {
                return Err(light);
            }
            if amplified {
                // An amplifier cannot lift the light above the power that a transmitter may launch.
                light = (light + self.amplifier_gain_db).min(self.budget_db);
            }
            light -= self.splitter_loss_db;
            if ends.contains(&depth) {
                // The last pass through the switch.
                weakest = weakest.min(light - self.switch_loss_db);
            }
        }
        if weakest < 0.0 { Err(weakest) } else { Ok(weakest) }
    }

    fn error(&self, margin_db: f64, cascade: &Cascade) -> PowerError {
        PowerError {
            loss_db: self.budget_db - margin_db,
            budget_db: self.budget_db,
            receivers: cascade.receivers.len() as u32,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reach_and_need_are_inverse() {
        for fanout in 2..20 {
            for k in 0..30 {
                let racks = racks_reachable(k, fanout);
                assert_eq!(splitters_needed(racks, fanout), k);
                assert_eq!(splitters_needed(racks + 1, fanout), k + 1);
            }
        }
    }

    #[test]
    fn a_cascade_feeds_every_receiver_from_its_own_output() {
        for fanout in 2..9 {
            for receivers in 1..80 {
                let cascade = Cascade::new(receivers, fanout);
                let mut outputs = BTreeSet::new();
                for stage in cascade.stages.iter().filter_map(|stage| stage.fed_by) {
                    assert!(outputs.insert(stage));
                }
                for &receiver in &cascade.receivers {
                    assert!(receiver.0 < cascade.stages.len() as u32 && receiver.1 < fanout);
                    assert!(outputs.insert(receiver));
                }
                assert_eq!(cascade.receivers.len() as u32, if receivers == 1 { 0 } else { receivers });
            }
        }
    }

    #[test]
    fn amplifiers_make_up_for_loss() {
        let budget = PowerBudget {
            budget_db: 14.9,
            switch_loss_db: 1.5,
            splitter_loss_db: splitter_loss_db(4),
            amplifier_gain_db: 0.0,
        };
        assert!(budget.plan(&Cascade::new(4, 4)).is_ok());
        let error = budget.plan(&Cascade::new(16, 4)).unwrap_err();
        assert!(error.loss_db > error.budget_db);
        let amplified = PowerBudget { amplifier_gain_db: 25.0, ..budget };
        let plan = amplified.plan(&Cascade::new(16, 4)).unwrap();
        assert_eq!(plan.amplified, [1, 2, 3, 4]);
        assert!(plan.margin_db >= 0.0);
        assert!(amplified.plan(&Cascade::new(1000, 4)).is_ok());
    }
}
