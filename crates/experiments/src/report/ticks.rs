//! Where an axis has its marks, and what they say.

use std::ops::Range;

use plotters::coord::ranged1d::{KeyPointHint, NoDefaultFormatting, Ranged, ValueFormatter};

use super::{Axis, Scale};

/// An axis ready to draw: positions are values, or their decimal logarithms.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Ticks {
    /// The first position.
    pub from: f64,
    /// The last position.
    pub to: f64,
    /// The marked positions.
    pub at: Vec<f64>,
    scale: Scale,
}

impl Ticks {
    /// The marks of an axis with these values; `floor` is in sight too, where bars stand on it.
    pub(super) fn new(axis: &Axis, values: impl Iterator<Item = f64>, floor: Option<f64>) -> Self {
        let usable = |value: &f64| value.is_finite() && (axis.scale == Scale::Linear || *value > 0.0);
        let (mut low, mut high) = values
            .chain(floor)
            .filter(usable)
            .fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), v| (low.min(v), high.max(v)));
        if low > high {
            (low, high) = (1.0, 10.0);
        }
        if let Some(range) = axis.range {
            (low, high) = range;
        }
        match axis.scale {
            Scale::Linear => Self::linear(low, high, axis.range.is_some()),
            Scale::Log => Self::log(low, high),
        }
    }

    /// Where a value lies; `None` if the axis has no place for it.
    pub(super) fn place(&self, value: f64) -> Option<f64> {
        let place = match self.scale {
            Scale::Linear => value,
            Scale::Log => value.log10(),
        };
        place.is_finite().then_some(place)
    }

    /// The same, moved to the nearer end where the axis does not reach so far.
    pub(super) fn inside(&self, value: f64) -> Option<f64> {
        self.place(value).map(|place| place.clamp(self.from, self.to))
    }

    /// What the mark at a position says.
    pub(super) fn text(&self, position: f64) -> String {
        match self.scale {
            Scale::Linear => number(position, self.step()),
            Scale::Log => power_of_ten(position),
        }
    }

    fn step(&self) -> f64 {
        self.at.windows(2).map(|pair| pair[1] - pair[0]).fold(f64::MAX, f64::min)
    }

    fn linear(low: f64, high: f64, fixed: bool) -> Self {
        // A little more than half of the range is worth showing from zero.
        let low = if !fixed && low > 0.0 && low < 0.6 * high { 0.0 } else { low };
        let span = if high > low { high - low } else { high.abs().max(1.0) };
        let rough = span / 6.0;
        let magnitude = 10f64.powf(rough.log10().floor());
        let step =
            [1.0, 2.0, 2.5, 5.0, 10.0].map(|f| f * magnitude).into_iter().find(|&s| s >= rough * 0.999);
        let step = step.unwrap_or(10.0 * magnitude);
        let round = |value: f64, up: bool| {
            let steps = value / step;
            if up { (steps - 1e-9).ceil() } else { (steps + 1e-9).floor() }
        };
        let (first, last) = (round(low, false), round(if high > low { high } else { low + span }, true));
        let (from, to) = if fixed { (low, high) } else { (first * step, last * step) };
        let count = (last - first) as i64;
        let at = (0..=count).map(|i| (first + i as f64) * step);
        let at = at.filter(|&v| v >= from - step * 1e-6 && v <= to + step * 1e-6).collect();
        Ticks { from, to, at, scale: Scale::Linear }
    }

    fn log(low: f64, high: f64) -> Self {
        let (low, high) = (low.log10(), high.log10());
        let whole = |value: f64| if (value - value.round()).abs() < 1e-9 { value.round() } else { value };
        let (mut from, mut to) = (whole(low), whole(high));
        if to - from < 0.05 {
            (from, to) = (from - 0.5, to + 0.5);
        }
        // Long axes have whole powers, shorter ones 1, 2 and 5 too, and so on.
        let marks: &[f64] = match to - from {
            decades if decades > 3.5 => &[1.0],
            decades if decades > 0.8 => &[1.0, 2.0, 5.0],
            _ => &[1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0],
        };
        let all: Vec<f64> = (from.floor() as i64 - 1..=to.ceil() as i64 + 1)
            .flat_map(|power| marks.iter().map(move |mark| power as f64 + mark.log10()))
            .collect();
        from = all.iter().copied().filter(|&at| at <= from + 1e-9).fold(f64::NEG_INFINITY, f64::max);
        to = all.iter().copied().filter(|&at| at >= to - 1e-9).fold(f64::INFINITY, f64::min);
        let mut at: Vec<f64> = all.into_iter().filter(|&at| at >= from - 1e-9 && at <= to + 1e-9).collect();
        let every = at.len().div_ceil(11);
        at = at.into_iter().step_by(every).collect();
        Ticks { from, to, at, scale: Scale::Log }
    }
}

impl Ranged for Ticks {
    type FormatOption = NoDefaultFormatting;
    type ValueType = f64;

    fn map(&self, position: &f64, (first, last): (i32, i32)) -> i32 {
        let fraction = (position - self.from) / (self.to - self.from);
        first + (f64::from(last - first) * fraction).round() as i32
    }

    fn key_points<Hint: KeyPointHint>(&self, hint: Hint) -> Vec<f64> {
        if hint.max_num_points() == 0 { Vec::new() } else { self.at.clone() }
    }

    fn range(&self) -> Range<f64> {
        self.from..self.to
    }
}

impl ValueFormatter<f64> for Ticks {
    fn format_ext(&self, position: &f64) -> String {
        self.text(*position)
    }
}

/// A number with as many digits behind the point as the step between marks needs.
fn number(value: f64, step: f64) -> String {
    let value = if value.abs() < step * 1e-6 { 0.0 } else { value };
    if value.abs() >= 1e6 && step >= 1e5 {
        let millions = value / 1e6;
        return if step >= 1e6 { format!("{millions:.0}M") } else { format!("{millions:.1}M") };
    }
    let digits = (0..=6).find(|&digits| {
        let scaled = step * 10f64.powi(digits);
        (scaled - scaled.round()).abs() < 1e-6 * scaled.max(1.0)
    });
    format!("{value:.*}", digits.unwrap_or(6) as usize)
}

fn power_of_ten(position: f64) -> String {
    let value = 10f64.powf(position);
    if (1e-4..1e7).contains(&value) {
        let digits = (-(position + 1e-9).floor()).max(0.0) as usize;
        let text = format!("{value:.digits$}");
        // 1.5 needs a digit more than 1, 2 and 5.
        if text.parse().is_ok_and(|read: f64| (read / value - 1.0).abs() > 0.01) {
            return format!("{value:.*}", digits + 1);
        }
        text
    } else {
        format!("{value:.0e}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(axis: &Axis, values: &[f64]) -> Vec<String> {
        let ticks = Ticks::new(axis, values.iter().copied(), None);
        assert!(ticks.from <= ticks.to && ticks.at.len() >= 2 && ticks.at.len() <= 12, "{ticks:?}");
        for &value in values {
            let place = ticks.place(value).unwrap();
            assert!(place >= ticks.from - 1e-9 && place <= ticks.to + 1e-9, "{value} in {ticks:?}");
        }
        ticks.at.iter().map(|&at| ticks.text(at)).collect()
    }

    #[test]
    fn linear_marks_are_round() {
        let axis = Axis::linear("x", "s");
        assert_eq!(texts(&axis, &[0.0, 1.0]), ["0.0", "0.2", "0.4", "0.6", "0.8", "1.0"]);
        assert_eq!(texts(&axis, &[3.0, 41.0]), ["0", "10", "20", "30", "40", "50"]);
        assert_eq!(texts(&axis, &[41.5, 42.0]).first().unwrap(), "41.5");
        assert_eq!(texts(&axis, &[7.0]).first().unwrap(), "6");
        texts(&axis, &[0.0]);
        texts(&axis, &[-3.0, 2e9]);
    }

    #[test]
    fn log_marks_are_powers_or_1_2_5() {
        let axis = Axis::log("x", "s");
        assert_eq!(texts(&axis, &[0.25, 30.0]), ["0.2", "0.5", "1", "2", "5", "10", "20", "50"]);
        assert_eq!(texts(&axis, &[1.0, 1e6]), ["1", "10", "100", "1000", "10000", "100000", "1000000"]);
        texts(&axis, &[5.0]);
        assert_eq!(texts(&axis, &[1.2, 3.5]), ["1", "1.5", "2", "3", "4"]);
        assert!(Ticks::new(&axis, [0.0, -1.0, 3.0].into_iter(), None).place(0.0).is_none());
    }
}
