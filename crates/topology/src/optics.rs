//! Light through splitters: insertion loss, cascades, amplifiers and the power budget
//! (Blast, sections II and III-C; Shufflecast, table I).

use alloc::collections::BTreeSet;
use alloc::format;
use alloc::string::String;
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

/// Returns the number of splitters of `fanout` outputs that a group of `racks` racks (the source's among
/// them) takes: m = ceil((r - 2) / (N - 1)).
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
    /// Number of splitters that the light has passed when it leaves this one.
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
        Cascade::of(receivers, &vec![fanout; count as usize])
    }

    /// The flattest cascade of splitters with these outputs, the first of which the source feeds. Together
    /// they must have enough of them.
    #[must_use]
    pub fn of(receivers: u32, fanouts: &[u32]) -> Self {
        // In breadth-first order: the first ones feed splitters.
        let mut outputs = (0..)
            .zip(fanouts)
            .flat_map(|(splitter, &fanout)| (0..fanout).map(move |output| (splitter, output)));
        let mut stages: Vec<Stage> = Vec::with_capacity(fanouts.len());
        for splitter in 0..fanouts.len() {
            let fed_by = if splitter == 0 { None } else { outputs.next() };
            let depth = fed_by.map_or(1, |(parent, _): (u32, u32)| stages[parent as usize].depth + 1);
            stages.push(Stage { fed_by, depth });
        }
        let receivers = if stages.is_empty() { 0 } else { receivers as usize };
        Cascade { stages, receivers: outputs.take(receivers).collect() }
    }

    /// The most splitters between the source and a receiver.
    #[must_use]
    pub fn depth(&self) -> u32 {
        self.receivers.iter().map(|&(splitter, _)| self.stages[splitter as usize].depth).max().unwrap_or(0)
    }
}

/// Loss that the light may suffer, and the gain of an amplifier.
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
     {budget_db:.1} dB: use fewer receivers{} or a power budget of {enough_db:.1} dB", with_gain(*gain_db)
)]
pub struct PowerError {
    /// The loss where the light goes out: at the weakest receiver, or before an amplifier. Gains of
    /// amplifiers are counted.
    pub loss_db: f64,
    /// Loss that was allowed.
    pub budget_db: f64,
    /// The size of the group.
    pub receivers: u32,
    /// A budget that would do, in whole tenths of a decibel.
    pub enough_db: f64,
    /// A gain that would do if the amplifier before every splitter had at least as much, likewise; nothing if
    /// none does.
    pub gain_db: Option<f64>,
}

fn with_gain(gain_db: Option<f64>) -> String {
    gain_db.map_or_else(String::new, |gain| format!(", amplifiers of {gain:.1} dB before all splitters"))
}

/// The highest gain of an amplifier that an error names, in tenths of a decibel. Those for fibres have 20 to
/// 35 dB.
const GAIN_MAX_TENTHS: u32 = 400;

/// A cascade that stays within its power budget.
#[derive(Clone, Debug, PartialEq)]
pub struct PowerPlan {
    /// The splitters that need an amplifier before their input.
    pub amplified: Vec<u32>,
    /// Rest of the budget at the weakest receiver.
    pub margin_db: f64,
}

impl PowerBudget {
    /// Places as few amplifiers as suffice on the way to the receivers that are farthest from the source,
    /// each as late as possible. Splitters of the same depth are amplified together.
    ///
    /// # Errors
    /// If some receiver would stay too dark even with an amplifier before every splitter.
    pub fn plan(&self, cascade: &Cascade) -> Result<PowerPlan, PowerError> {
        let usual = (self.splitter_loss_db, self.amplifier_gain_db);
        self.plan_each(cascade, &vec![usual; cascade.stages.len()])
    }

    /// The same where every splitter has a loss, and an amplifier before it a gain, of its own; a gain of 0
    /// is no amplifier.
    ///
    /// # Errors
    /// If some receiver would stay too dark even with all amplifiers.
    pub fn plan_each(&self, cascade: &Cascade, splitters: &[(f64, f64)]) -> Result<PowerPlan, PowerError> {
        let ends: BTreeSet<u32> = cascade.receivers.iter().map(|&(splitter, _)| splitter).collect();
        let levels = cascade.stages.iter().map(|stage| stage.depth).max().unwrap_or(0);
        let mut amplified = vec![splitters.iter().any(|(_, gain)| *gain > 0.0); levels as usize];
        let margin = |amplified: &[bool]| self.margin(cascade, splitters, amplified, &ends);
        // Light that is amplified is never weaker for it: if this is not enough, nothing is.
        let mut margin_db = margin(&amplified).map_err(|dark| self.error(dark, cascade, splitters))?;
        // An amplifier does more good the later it comes, so the first ones are taken away where those behind
        // them suffice.
        for level in 0..amplified.len() {
            let was = core::mem::replace(&mut amplified[level], false);
            match margin(&amplified) {
                Ok(margin) => margin_db = margin,
                Err(_) => amplified[level] = was,
            }
        }
        let stages = (0..).zip(cascade.stages.iter().zip(splitters));
        let is_amplified =
            |(stage, (_, gain)): &(&Stage, &(f64, f64))| amplified[stage.depth as usize - 1] && *gain > 0.0;
        let amplified = stages.filter(|(_, stage)| is_amplified(stage)).map(|(splitter, _)| splitter);
        Ok(PowerPlan { amplified: amplified.collect(), margin_db })
    }

    /// Returns the rest of the budget at the weakest receiver, where the splitters of the depths `amplified`,
    /// from 1 on, are amplified and receivers hang from the splitters `ends`. An error states the power that
    /// is missing where the light goes out.
    fn margin(
        &self,
        cascade: &Cascade,
        splitters: &[(f64, f64)],
        amplified: &[bool],
        ends: &BTreeSet<u32>,
    ) -> Result<f64, f64> {
        let mut weakest = if ends.is_empty() { self.budget_db - self.switch_loss_db } else { f64::MAX };
        let mut lights: Vec<f64> = Vec::with_capacity(splitters.len());
        for (splitter, (stage, &(loss_db, gain_db))) in (0..).zip(cascade.stages.iter().zip(splitters)) {
            let fed = stage.fed_by.map_or(self.budget_db, |(parent, _)| lights[parent as usize]);
            let mut light = fed - self.switch_loss_db;
            if amplified[stage.depth as usize - 1] && gain_db > 0.0 {
                if light < 0.0 {
                    return Err(light);
                }
                // An amplifier cannot lift the light above the power that a transmitter may launch.
                light = (light + gain_db).min(self.budget_db);
            }
            light -= loss_db;
            if ends.contains(&splitter) {
                // The last pass through the switch.
                weakest = weakest.min(light - self.switch_loss_db);
            }
            lights.push(light);
        }
        if weakest < 0.0 { Err(weakest) } else { Ok(weakest) }
    }

    fn error(&self, margin_db: f64, cascade: &Cascade, splitters: &[(f64, f64)]) -> PowerError {
        let ends: BTreeSet<u32> = cascade.receivers.iter().map(|&(splitter, _)| splitter).collect();
        let amplified = vec![true; cascade.stages.len()];
        // In whole tenths. What is missing at one place is made up for first at the next one.
        let tenths = |db: f64| libm::ceil(10.0 * db - 1e-6);
        let mut enough = tenths(self.budget_db - margin_db);
        let missing = |enough: f64| {
            let budget = PowerBudget { budget_db: enough / 10.0, ..*self };
            budget.margin(cascade, splitters, &amplified, &ends).err()
        };
        while let Some(margin_db) = missing(enough) {
            enough += tenths(-margin_db).max(1.0);
        }
        let with = |tenths: u32| {
            let gain = f64::from(tenths) / 10.0;
            let splitters: Vec<(f64, f64)> =
                splitters.iter().map(|&(loss, own)| (loss, own.max(gain))).collect();
            self.margin(cascade, &splitters, &amplified, &ends).is_ok()
        };
        let gains: Vec<u32> = (1..=GAIN_MAX_TENTHS).collect();
        let least = gains.get(gains.partition_point(|tenths| !with(*tenths)));
        PowerError {
            loss_db: self.budget_db - margin_db,
            budget_db: self.budget_db,
            receivers: cascade.receivers.len() as u32,
            enough_db: enough / 10.0,
            gain_db: least.map(|tenths| f64::from(*tenths) / 10.0),
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
        // What the error names does help, and a tenth of a decibel less does not.
        for tenth in [0.0, 0.1] {
            let raised = PowerBudget { budget_db: error.enough_db - tenth, ..budget };
            let amplified = PowerBudget { amplifier_gain_db: error.gain_db.unwrap() - tenth, ..budget };
            for budget in [raised, amplified] {
                assert_eq!(budget.plan(&Cascade::new(16, 4)).is_ok(), tenth == 0.0, "{error}");
            }
        }
        let amplified = PowerBudget { amplifier_gain_db: 25.0, ..budget };
        let plan = amplified.plan(&Cascade::new(16, 4)).unwrap();
        assert_eq!(plan.amplified, [1, 2, 3, 4]);
        assert!(plan.margin_db >= 0.0);
        assert!(amplified.plan(&Cascade::new(1000, 4)).is_ok());
    }
}
