//! Contents of a figure; how it looks is [`super::draw`]'s matter.

/// Scale of an axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scale {
    /// Equal steps are equal differences.
    Linear,
    /// Equal steps are equal ratios. Zero has a place of its own at the beginning, where there is one; less
    /// is left out.
    Log,
}

/// An axis: what it counts, its unit, how.
#[derive(Clone, Debug, PartialEq)]
pub struct Axis {
    /// Quantity that it shows.
    pub label: String,
    /// In which unit; empty for pure numbers.
    pub unit: String,
    /// Scale of its steps.
    pub scale: Scale,
    /// From where to where at least; values outside of it make the axis longer.
    pub range: Option<(f64, f64)>,
    /// Set if it counts things that are whole, so that a part of one has no mark.
    pub whole: bool,
}

impl Axis {
    /// An axis with equal steps.
    #[must_use]
    pub fn linear(label: &str, unit: &str) -> Self {
        Axis { label: label.into(), unit: unit.into(), scale: Scale::Linear, range: None, whole: false }
    }

    /// An axis with equal ratios.
    #[must_use]
    pub fn log(label: &str, unit: &str) -> Self {
        Axis { scale: Scale::Log, ..Axis::linear(label, unit) }
    }

    /// The same axis from here to there, and farther where values are.
    #[must_use]
    pub fn range(mut self, from: f64, to: f64) -> Self {
        self.range = Some((from, to));
        self
    }

    /// The same axis, of things that are whole.
    #[must_use]
    pub fn whole(mut self) -> Self {
        self.whole = true;
        self
    }

    /// The label with the unit, as people write it.
    #[must_use]
    pub fn text(&self) -> String {
        match self.unit.as_str() {
            "" => self.label.clone(),
            "us" => format!("{} (µs)", self.label),
            "x" => format!("{} (×)", self.label),
            unit => format!("{} ({unit})", self.label),
        }
    }
}

/// Origin of numbers; the paper's are drawn hollow and broken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Whose {
    /// Our own results.
    Ours,
    /// Numbers of the paper.
    Paper,
}

/// A line, or a set of points.
#[derive(Clone, Debug, PartialEq)]
pub struct Series {
    /// Its name in the legend.
    pub name: String,
    /// Origin of its numbers.
    pub whose: Whose,
    /// The points, in the order in which they are joined.
    pub points: Vec<(f64, f64)>,
    /// Style of the points: joined and marked, only joined, or only marked.
    pub mark: Mark,
    /// Name of the series whose colour it has, where that is not its own name.
    pub like: Option<String>,
}

/// Style in which points are drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mark {
    /// A line with a mark at every point.
    Both,
    /// A line.
    Line,
    /// Marks.
    Points,
    /// Marks of another shape, for single values beside a line.
    Triangles,
}

impl Mark {
    /// Returns true if points are joined.
    pub(super) fn is_line(self) -> bool {
        matches!(self, Mark::Both | Mark::Line)
    }
}

impl Series {
    /// Our points, joined and marked.
    #[must_use]
    pub fn ours(name: &str, points: Vec<(f64, f64)>) -> Self {
        Series { name: name.into(), whose: Whose::Ours, points, mark: Mark::Both, like: None }
    }

    /// The paper's points, marked.
    #[must_use]
    pub fn paper(name: &str, points: Vec<(f64, f64)>) -> Self {
        Series { name: name.into(), whose: Whose::Paper, points, mark: Mark::Points, like: None }
    }

    /// The same, drawn so.
    #[must_use]
    pub fn mark(mut self, mark: Mark) -> Self {
        self.mark = mark;
        self
    }

    /// The same in the colour of the series of this name.
    #[must_use]
    pub fn like(mut self, name: &str) -> Self {
        self.like = Some(name.into());
        self
    }

    /// The cumulative distribution of samples, as steps from 0 to 1.
    #[must_use]
    pub fn cdf(name: &str, mut samples: Vec<f64>) -> Self {
        samples.retain(|sample| sample.is_finite());
        samples.sort_unstable_by(f64::total_cmp);
        let count = samples.len() as f64;
        let mut points: Vec<(f64, f64)> = Vec::new();
        let mut below = 0.0;
        let mut from = 0;
        while from < samples.len() {
            let to = from + samples[from..].partition_point(|&sample| sample == samples[from]);
            points.push((samples[from], below));
            below = to as f64 / count;
            points.push((samples[from], below));
            from = to;
        }
        Series { name: name.into(), whose: Whose::Ours, points, mark: Mark::Line, like: None }
    }
}

/// Bars of one colour, one in each group of bars.
#[derive(Clone, Debug, PartialEq)]
pub struct BarSeries {
    /// Its name in the legend.
    pub name: String,
    /// Origin of its numbers.
    pub whose: Whose,
    /// One value a group; `None` where there is none.
    pub values: Vec<Option<f64>>,
}

impl BarSeries {
    /// Our values.
    #[must_use]
    pub fn ours(name: &str, values: Vec<Option<f64>>) -> Self {
        BarSeries { name: name.into(), whose: Whose::Ours, values }
    }

    /// The paper's values.
    #[must_use]
    pub fn paper(name: &str, values: Vec<Option<f64>>) -> Self {
        BarSeries { name: name.into(), whose: Whose::Paper, values }
    }
}

/// Content of a figure.
#[derive(Clone, Debug, PartialEq)]
pub enum Plot {
    /// Lines and points.
    Lines(Vec<Series>),
    /// Groups of bars; the x axis only names them.
    Bars {
        /// The groups' names.
        groups: Vec<String>,
        /// The bars of each group.
        series: Vec<BarSeries>,
    },
}

/// A figure.
#[derive(Clone, Debug, PartialEq)]
pub struct Figure {
    /// The name of its file without the ending, one only within a paper: `fig-4`.
    pub name: String,
    /// Subject, for the heading.
    pub title: String,
    /// The horizontal axis.
    pub x: Axis,
    /// The vertical axis.
    pub y: Axis,
    /// Lines or bars that are drawn.
    pub plot: Plot,
}

impl Figure {
    /// Lines and points.
    #[must_use]
    pub fn lines(name: &str, title: &str, x: Axis, y: Axis, series: Vec<Series>) -> Self {
        Figure { name: name.into(), title: title.into(), x, y, plot: Plot::Lines(series) }
    }

    /// Cumulative distributions of our samples; `y` says of what each curve is a part.
    #[must_use]
    pub fn cdf(name: &str, title: &str, x: Axis, y: &str, samples: Vec<(String, Vec<f64>)>) -> Self {
        let series = samples.into_iter().map(|(name, samples)| Series::cdf(&name, samples)).collect();
        Figure::lines(name, title, x, Axis::linear(y, "").range(0.0, 1.0), series)
    }

    /// Groups of bars.
    #[must_use]
    pub fn bars(
        name: &str,
        title: &str,
        x: &str,
        y: Axis,
        groups: Vec<String>,
        series: Vec<BarSeries>,
    ) -> Self {
        let plot = Plot::Bars { groups, series };
        Figure { name: name.into(), title: title.into(), x: Axis::linear(x, ""), y, plot }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_distribution_rises_in_steps() {
        let series = Series::cdf("x", vec![2.0, 1.0, 2.0, f64::NAN, 4.0]);
        let points = [(1.0, 0.0), (1.0, 0.25), (2.0, 0.25), (2.0, 0.75), (4.0, 0.75), (4.0, 1.0)];
        assert_eq!(series.points, points);
        assert!(Series::cdf("x", vec![]).points.is_empty());
    }
}
