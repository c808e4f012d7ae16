//! What a figure shows; how it looks is [`super::draw`]'s matter.

/// How an axis counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scale {
    /// Equal steps are equal differences.
    Linear,
    /// Equal steps are equal ratios; values of zero or less are left out, but a line without marks comes from there.
    Log,
}

/// An axis: what it counts, its unit, how.
#[derive(Clone, Debug, PartialEq)]
pub struct Axis {
    /// What it counts.
    pub label: String,
    /// In which unit; empty for pure numbers.
    pub unit: String,
    /// How.
    pub scale: Scale,
    /// From where to where, instead of what the values span.
    pub range: Option<(f64, f64)>,
}

impl Axis {
    /// An axis with equal steps.
    #[must_use]
    pub fn linear(label: &str, unit: &str) -> Self {
        Axis { label: label.into(), unit: unit.into(), scale: Scale::Linear, range: None }
    }

    /// An axis with equal ratios.
    #[must_use]
    pub fn log(label: &str, unit: &str) -> Self {
        Axis { scale: Scale::Log, ..Axis::linear(label, unit) }
    }

    /// The same axis from here to there.
    #[must_use]
    pub fn range(mut self, from: f64, to: f64) -> Self {
        self.range = Some((from, to));
        self
    }

    /// The label with the unit.
    #[must_use]
    pub fn text(&self) -> String {
        if self.unit.is_empty() { self.label.clone() } else { format!("{} ({})", self.label, self.unit) }
    }
}

/// Where the numbers are from; the paper's are drawn hollow and broken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Whose {
    /// What we get.
    Ours,
    /// What the paper says.
    Paper,
}

/// A line, or a set of points.
#[derive(Clone, Debug, PartialEq)]
pub struct Series {
    /// Its name in the legend.
    pub name: String,
    /// Where its numbers are from.
    pub whose: Whose,
    /// The points, in the order in which they are joined.
    pub points: Vec<(f64, f64)>,
    /// Whether the points are joined and marked, only joined, or only marked.
    pub mark: Mark,
}

/// How points are drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mark {
    /// A line with a mark at every point.
    Both,
    /// A line.
    Line,
    /// Marks.
    Points,
}

impl Series {
    /// Our points, joined and marked.
    #[must_use]
    pub fn ours(name: &str, points: Vec<(f64, f64)>) -> Self {
        Series { name: name.into(), whose: Whose::Ours, points, mark: Mark::Both }
    }

    /// The paper's points, marked.
    #[must_use]
    pub fn paper(name: &str, points: Vec<(f64, f64)>) -> Self {
        Series { name: name.into(), whose: Whose::Paper, points, mark: Mark::Points }
    }

    /// The same, drawn so.
    #[must_use]
    pub fn mark(mut self, mark: Mark) -> Self {
        self.mark = mark;
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
        Series { name: name.into(), whose: Whose::Ours, points, mark: Mark::Line }
    }
}

/// Bars of one colour, one in each group of bars.
#[derive(Clone, Debug, PartialEq)]
pub struct BarSeries {
    /// Its name in the legend.
    pub name: String,
    /// Where its numbers are from.
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

/// What is drawn.
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
    /// What it shows, for the heading.
    pub title: String,
    /// The horizontal axis.
    pub x: Axis,
    /// The vertical axis.
    pub y: Axis,
    /// What is drawn.
    pub plot: Plot,
}

impl Figure {
    /// Lines and points.
    #[must_use]
    pub fn lines(name: &str, title: &str, x: Axis, y: Axis, series: Vec<Series>) -> Self {
        Figure { name: name.into(), title: title.into(), x, y, plot: Plot::Lines(series) }
    }

    /// Cumulative distributions of our samples.
    #[must_use]
    pub fn cdf(name: &str, title: &str, x: Axis, samples: Vec<(String, Vec<f64>)>) -> Self {
        let series = samples.into_iter().map(|(name, samples)| Series::cdf(&name, samples)).collect();
        Figure::lines(name, title, x, Axis::linear("fraction", "").range(0.0, 1.0), series)
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
