//! Places of the marks on an axis, and their text.

use std::ops::Range;

use plotters::coord::ranged1d::{KeyPointHint, NoDefaultFormatting, Ranged, ValueFormatter};

use super::{Axis, Scale};

/// Marks in each power of ten: the first of these lists that gives few enough marks.
const MARKS: [&[f64]; 3] = [&[1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0], &[1.0, 2.0, 5.0], &[1.0]];
const MARKS_MIN: usize = 4;
const MARKS_MAX: usize = 11;
/// Logarithms that differ by less are the same, and so are values that differ by less of a range.
const SAME: f64 = 1e-9;

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
    /// Set if a logarithmic axis begins with a place for zero.
    zero: bool,
}

impl Ticks {
    /// The marks of an axis with these values; `floor` is in sight too, where bars stand on it.
    pub(super) fn new(axis: &Axis, values: impl Iterator<Item = f64>, floor: Option<f64>) -> Self {
        let usable = |value: &f64| value.is_finite() && (axis.scale == Scale::Linear || *value > 0.0);
        let mut zero = false;
        let (mut low, mut high) = values
            .inspect(|&value| zero |= value == 0.0)
            .chain(floor)
            .filter(usable)
            .fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), v| (low.min(v), high.max(v)));
        // A range is what is in sight at least: a value outside of it makes the axis longer, unless only
        // rounding has put it there.
        if let Some((from, to)) = axis.range {
            let rounded = SAME * (to - from);
            low = if low < from - rounded { low } else { from };
            high = if high > to + rounded { high } else { to };
        } else if low > high {
            (low, high) = (1.0, 10.0);
        }
        match axis.scale {
            Scale::Linear => Self::linear(low, high, axis),
            Scale::Log if zero => Self::log(low, high).beginning_at_zero(),
            Scale::Log => Self::log(low, high),
        }
    }

    /// Returns the position of a value; `None` if the axis has no place for it.
    pub(super) fn place(&self, value: f64) -> Option<f64> {
        let place = match self.scale {
            Scale::Linear => value,
            Scale::Log if self.zero && value == 0.0 => self.from,
            Scale::Log => value.log10(),
        };
        place.is_finite().then_some(place)
    }

    /// Returns the text of the mark at a position.
    pub(super) fn text(&self, position: f64) -> String {
        match self.scale {
            Scale::Linear => number(position, self.step()),
            Scale::Log if self.zero && position == self.from => "0".into(),
            Scale::Log => power_of_ten(position),
        }
    }

    fn step(&self) -> f64 {
        self.at.windows(2).map(|pair| pair[1] - pair[0]).fold(f64::MAX, f64::min)
    }

    fn linear(low: f64, high: f64, axis: &Axis) -> Self {
        // An end that the figure asks for is where it says; others are at a mark.
        let asked = |end: f64| axis.range.is_some_and(|(from, to)| end == from || end == to);
        // A little more than half of the range is worth showing from zero.
        let low = if axis.range.is_none() && low > 0.0 && low < 0.6 * high { 0.0 } else { low };
        let span = if high > low { high - low } else { high.abs().max(1.0) };
        let rough = span / 6.0;
        let magnitude = 10f64.powf(rough.log10().floor());
        let step =
            [1.0, 2.0, 2.5, 5.0, 10.0].map(|f| f * magnitude).into_iter().find(|&s| s >= rough * 0.999);
        let step = step.unwrap_or(10.0 * magnitude);
        let step = if axis.whole { step.ceil().max(1.0) } else { step };
        let round = |value: f64, up: bool| {
            let steps = value / step;
            if up { (steps - 1e-9).ceil() } else { (steps + 1e-9).floor() }
        };
        let (first, last) = (round(low, false), round(if high > low { high } else { low + span }, true));
        let from = if asked(low) { low } else { first * step };
        let to = if asked(high) { high } else { last * step };
        let count = (last - first) as i64;
        let at = (0..=count).map(|i| (first + i as f64) * step);
        let at = at.filter(|&v| v >= from - step * 1e-6 && v <= to + step * 1e-6).collect();
        Ticks { from, to, at, scale: Scale::Linear, zero: false }
    }

    /// A logarithmic axis is no longer than its values need: its ends have marks only where values are.
    fn log(low: f64, high: f64) -> Self {
        let (mut from, mut to) = (low.log10(), high.log10());
        if to - from < 0.05 {
            (from, to) = (from - 0.5, to + 0.5);
        }
        let at = MARKS.iter().map(|marks| marked(marks, from, to)).find(|at| at.len() <= MARKS_MAX);
        // So many powers of ten that some go without a mark.
        let mut at = at.unwrap_or_else(|| {
            let powers = marked(&[1.0], from, to);
            let every = powers.len().div_ceil(MARKS_MAX);
            powers.into_iter().step_by(every).collect()
        });
        if at.len() < MARKS_MIN {
            // So short an axis is nearly an even one.
            let even = Self::linear(low, high, &Axis::linear("", ""))
                .at
                .into_iter()
                .filter(|&at| at > 0.0)
                .map(f64::log10);
            let even: Vec<f64> = even.filter(|&at| at >= from - SAME && at <= to + SAME).collect();
            if even.len() > at.len() {
                at = even;
            }
        }
        if at.len() < 2 {
            let all = marked(MARKS[0], from - 1.0, to + 1.0);
            from = all.iter().copied().filter(|&at| at <= from + SAME).fold(f64::NEG_INFINITY, f64::max);
            to = all.iter().copied().filter(|&at| at >= to - SAME).fold(f64::INFINITY, f64::min);
            at = marked(MARKS[0], from, to);
        }
        // Room for what is drawn at the very end.
        let room = 0.02 * (to - from);
        let has_mark = |end: f64| at.iter().any(|mark| (mark - end).abs() < SAME);
        let (from, to) =
            (if has_mark(from) { from } else { from - room }, if has_mark(to) { to } else { to + room });
        Ticks { from, to, at, scale: Scale::Log, zero: false }
    }

    /// The same axis with a place for zero before its beginning.
    fn beginning_at_zero(mut self) -> Self {
        let room = 0.1 * (self.to - self.from);
        self.from -= room;
        self.at.insert(0, self.from);
        Ticks { zero: true, ..self }
    }
}

/// The logarithms from one to the other of these multiples of powers of ten.
fn marked(marks: &[f64], from: f64, to: f64) -> Vec<f64> {
    (from.floor() as i64 - 1..=to.ceil() as i64 + 1)
        .flat_map(|power| marks.iter().map(move |mark| power as f64 + mark.log10()))
        .filter(|&at| at >= from - SAME && at <= to + SAME)
        .collect()
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

/// A mark of a logarithmic axis: from ten thousand on in thousands, millions and so on.
fn power_of_ten(position: f64) -> String {
    let value = 10f64.powf(position);
    let long = [(1e9, "G"), (1e6, "M"), (1e3, "k")].into_iter().find(|(unit, _)| value >= 0.999 * unit);
    match long {
        Some((_, "G")) if value >= 9.9e12 => format!("{value:.0e}"),
        Some((unit, letter)) if value >= 9_999.0 => format!("{}{letter}", plain(value / unit)),
        _ if value < 9.9e-5 => format!("{value:.0e}"),
        _ => plain(value),
    }
}

fn plain(value: f64) -> String {
    let digits = (-(value.log10() + SAME).floor()).max(0.0) as usize;
    let text = format!("{value:.digits$}");
    // 1.5 needs a digit more than 1, 2 and 5.
    if text.parse().is_ok_and(|read: f64| (read / value - 1.0).abs() > 0.01) {
        return format!("{value:.*}", digits + 1);
    }
    text
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

    /// An axis that is asked for covers what lies outside of it: no mark is moved to its edge.
    #[test]
    fn a_range_is_what_an_axis_has_at_least() {
        let ends = |values: &[f64]| {
            let ticks =
                Ticks::new(&Axis::linear("time", "ns").range(0.0, 120.0), values.iter().copied(), None);
            (ticks.from, ticks.to)
        };
        assert_eq!(ends(&[99.0]), (0.0, 120.0));
        assert_eq!(ends(&[]), (0.0, 120.0));
        assert_eq!(ends(&[99.0, 120.000_000_001]), (0.0, 120.0));
        assert_eq!(ends(&[133.0, 193.0]), (0.0, 200.0));
        assert_eq!(ends(&[-7.0, 99.0]), (-25.0, 120.0));
        assert_eq!(texts(&Axis::log("x", "").range(10.0, 100.0), &[1_000.0]).last().unwrap(), "1000");
        texts(&Axis::linear("part", "").range(0.7, 1.0), &[0.25, 0.875]);
    }

    #[test]
    fn what_is_whole_has_no_mark_at_a_half() {
        let axis = Axis::linear("cores", "").whole();
        assert_eq!(texts(&axis, &[1.0, 2.0]), ["0", "1", "2"]);
        assert_eq!(texts(&axis, &[0.0, 17.0]), ["0", "5", "10", "15", "20"]);
    }

    #[test]
    fn log_marks_are_powers_or_1_2_5() {
        let axis = Axis::log("x", "s");
        assert_eq!(texts(&axis, &[0.25, 30.0]), ["0.5", "1", "2", "5", "10", "20"]);
        assert_eq!(texts(&axis, &[1.0, 1e6]), ["1", "10", "100", "1000", "10k", "100k", "1M"]);
        assert_eq!(
            texts(&axis, &[15e6, 40e9]),
            ["20M", "50M", "100M", "200M", "500M", "1G", "2G", "5G", "10G", "20G"]
        );
        assert_eq!(
            texts(&axis, &[1e-5, 1e-3]),
            ["1e-5", "2e-5", "5e-5", "0.0001", "0.0002", "0.0005", "0.001"]
        );
        texts(&axis, &[5.0]);
        assert_eq!(texts(&axis, &[1.2, 3.5]), ["1.5", "2", "3"]);
        assert_eq!(texts(&axis, &[51.0, 58.0]), ["52", "54", "56", "58"]);
        assert_eq!(texts(&axis, &[59.4, 71.3]), ["60", "62", "64", "66", "68", "70"]);
        // Marks are as far from each other as their numbers, however many powers there are.
        assert_eq!(
            texts(&axis, &[0.13, 240.0]),
            ["0.2", "0.5", "1", "2", "5", "10", "20", "50", "100", "200"]
        );
        assert_eq!(texts(&axis, &[0.13, 2_400.0]), ["1", "10", "100", "1000"]);
        assert_eq!(texts(&axis, &[1.0, 1e20]).len(), 11);
    }

    #[test]
    fn zero_has_a_place_before_the_least_value_of_a_logarithmic_axis() {
        let axis = Axis::log("x", "s");
        let ticks = Ticks::new(&axis, [0.0, 1.0, 1_000.0].into_iter(), None);
        assert_eq!(ticks.place(0.0), Some(ticks.from));
        assert!(ticks.place(1.0).unwrap() > ticks.from + 0.1);
        assert_eq!(ticks.at.iter().map(|&at| ticks.text(at)).collect::<Vec<_>>()[..2], ["0", "1"]);
        assert!(ticks.place(-1.0).is_none());
        assert!(Ticks::new(&axis, [1.0, 3.0].into_iter(), None).place(0.0).is_none());
    }
}
