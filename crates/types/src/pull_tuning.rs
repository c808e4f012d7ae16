//! Settings of a pull transfer.

use crate::Rate;
use alloc::format;
use alloc::string::String;
use serde::{Deserialize, Serialize};

/// Settings of a pull transfer (Datacast, section 5); a value that is `None` follows from the link, or from
/// round trips.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct PullTuning {
    /// Number of packets that a receiver may request at a time in each tree (w).
    pub credits: Option<u32>,
    /// The rate of a tree at first.
    pub initial_rate: Option<Rate>,
    /// Amount that is added to the rate after each interval without a duplicate interest (δ).
    pub increase: Option<Rate>,
    /// Length of that interval, in microseconds (T).
    pub interval_us: Option<u32>,
    /// Number of bytes that may be sent at once after a pause (σ).
    pub burst_bytes: Option<u32>,
    /// Minimum number of bytes in a block (B).
    pub block_bytes: Option<u64>,
    /// Time after which a receiver requests again, in milliseconds (RTO).
    pub rto_ms: Option<u32>,
    /// Number of packets requested later that arrive before one counts as lost; 0: none is counted, only time
    /// decides.
    pub overtaken: Option<u32>,
    /// Set if the source takes single losses for chance while it sees no queue.
    pub chance: Option<bool>,
}

impl PullTuning {
    /// The keys that [`PullTuning::parse`] knows, as settings spell them.
    pub const KEYS: &str =
        "credits, initial-rate, increase, interval-us, burst-bytes, block-bytes, rto-ms, overtaken, chance";

    /// Reads settings such as `rto-ms=20,increase=5mbit`.
    ///
    /// # Errors
    /// In a sentence: a key that there is not, a value that cannot be, or that is out of its bounds.
    pub fn parse(text: &str) -> Result<Self, String> {
        let mut tuning = PullTuning::default();
        for part in text.split(',').map(str::trim).filter(|part| !part.is_empty()) {
            let (key, value) =
                part.split_once('=').ok_or_else(|| format!("'{part}' is no KEY=VALUE, such as rto-ms=20"))?;
            tuning.set(key.trim(), value.trim())?;
        }
        tuning.check().map_err(|(key, why)| format!("{key}: {why}"))?;
        Ok(tuning)
    }

    fn set(&mut self, key: &str, value: &str) -> Result<(), String> {
        fn read<T: core::str::FromStr>(key: &str, value: &str, such_as: &str) -> Result<Option<T>, String> {
            value
                .parse()
                .map(Some)
                .map_err(|_| format!("{key}: '{value}' is none, write one such as {such_as}"))
        }
        match key {
            "credits" => self.credits = read(key, value, "16")?,
            "initial-rate" => self.initial_rate = read(key, value, "500mbit")?,
            "increase" => self.increase = read(key, value, "5mbit")?,
            "interval-us" => self.interval_us = read(key, value, "1000")?,
            "burst-bytes" => self.burst_bytes = read(key, value, "6000")?,
            "block-bytes" => self.block_bytes = read(key, value, "100000000")?,
            "rto-ms" => self.rto_ms = read(key, value, "20")?,
            "overtaken" => self.overtaken = read(key, value, "3")?,
            "chance" => self.chance = read(key, value, "false")?,
            _ => return Err(format!("there is no key '{key}', only {}", Self::KEYS)),
        }
        Ok(())
    }

    /// Checks that each value is possible.
    ///
    /// # Errors
    /// The key of the impossible value, and why.
    pub fn check(&self) -> Result<(), (&'static str, String)> {
        let outside = |value: Option<u64>, least: u64, most: u64| {
            value
                .filter(|value| !(least..=most).contains(value))
                .map(|value| format!("it is from {least} to {most}, not {value}"))
        };
        let rate = |rate: Option<Rate>| outside(rate.map(|rate| rate.0), 1_000, 10_000_000_000_000);
        let wrong = [
            ("credits", outside(self.credits.map(u64::from), 1, 65_536)),
            ("initial-rate", rate(self.initial_rate)),
            ("increase", rate(self.increase)),
            ("interval-us", outside(self.interval_us.map(u64::from), 10, 60_000_000)),
            ("burst-bytes", outside(self.burst_bytes.map(u64::from), 1, 1 << 30)),
            ("block-bytes", outside(self.block_bytes, 1, 1 << 40)),
            ("rto-ms", outside(self.rto_ms.map(u64::from), 1, 60_000)),
        ];
        wrong.into_iter().find_map(|(key, why)| Some((key, why?))).map_or(Ok(()), Err)
    }

    /// The same with what `over` sets.
    #[must_use]
    pub fn with(self, over: PullTuning) -> Self {
        PullTuning {
            credits: over.credits.or(self.credits),
            initial_rate: over.initial_rate.or(self.initial_rate),
            increase: over.increase.or(self.increase),
            interval_us: over.interval_us.or(self.interval_us),
            burst_bytes: over.burst_bytes.or(self.burst_bytes),
            block_bytes: over.block_bytes.or(self.block_bytes),
            rto_ms: over.rto_ms.or(self.rto_ms),
            overtaken: over.overtaken.or(self.overtaken),
            chance: over.chance.or(self.chance),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_of_pull_are_read_by_key_and_kept_within_bounds() {
        let tuning = PullTuning::parse(" rto-ms=20, increase=5mbit,chance=false").unwrap();
        assert_eq!(
            (tuning.rto_ms, tuning.increase, tuning.chance),
            (Some(20), Some(Rate(5_000_000)), Some(false))
        );
        let over = PullTuning { rto_ms: Some(30), credits: Some(4), ..PullTuning::default() };
        let both = tuning.with(over);
        assert_eq!((both.rto_ms, both.credits, both.increase), (Some(30), Some(4), tuning.increase));
        assert_eq!(PullTuning::parse(""), Ok(PullTuning::default()));
        for (text, said) in [
            ("rto-ms", "no KEY=VALUE"),
            ("rto=20", "there is no key 'rto', only credits, initial-rate"),
            ("increase=many", "increase: 'many' is none, write one such as 5mbit"),
            ("rto-ms=0", "rto-ms: it is from 1 to 60000, not 0"),
            ("credits=65537", "credits: it is from 1 to 65536"),
        ] {
            let error = PullTuning::parse(text).unwrap_err();
            assert!(error.contains(said), "{text}: {error}");
        }
    }
}
