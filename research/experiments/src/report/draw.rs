//! Figures as SVG. Text stays text: the reader's own fonts draw it.

use std::fmt::Debug;

use plotters::coord::Shift;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use super::page::number;
use super::strokes::{self, Pixel};
use super::ticks::Ticks;
use super::{BarSeries, Figure, Mark, Plot, Scale, Series, Whose};

/// Width of a figure.
const WIDTH_PX: u32 = 820;
/// Height without the legend.
const HEIGHT_PX: u32 = 470;
/// Height of a line of the legend.
const LEGEND_LINE_PX: i32 = 22;
/// A letter of text, on average, in parts of its size.
const LETTER: f64 = 0.56;
const TEXT_PX: i32 = 14;
/// From the middle of a triangle to its corners.
const TRIANGLE_PX: i32 = 7;

/// Colours that the colour-blind tell apart (Okabe and Ito), the palest left out.
const COLOURS: [RGBColor; 10] = [
    RGBColor(0, 114, 178),
    RGBColor(213, 94, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(86, 180, 233),
    RGBColor(230, 159, 0),
    RGBColor(90, 90, 90),
    RGBColor(140, 86, 75),
    RGBColor(0, 0, 0),
    RGBColor(128, 128, 0),
];
const INK: RGBColor = RGBColor(34, 34, 34);
const GRID: RGBColor = RGBColor(225, 225, 225);

/// A figure could not be drawn.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("figure {figure} cannot be drawn: {error}")]
pub struct DrawError {
    figure: String,
    error: String,
}

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;

/// The figure as a whole SVG document.
///
/// # Errors
/// If the drawing library refuses something.
pub fn svg(figure: &Figure) -> Result<String, DrawError> {
    let mut text = String::new();
    draw(figure, &mut text).map_err(|error| DrawError { figure: figure.name.clone(), error })?;
    Ok(text)
}

/// Figures below each other as one SVG document.
///
/// # Errors
/// If the drawing library refuses something.
pub fn stacked(figures: &[Figure]) -> Result<String, DrawError> {
    let mut text = String::new();
    let total = figures.iter().map(height_px).sum::<u32>().max(1);
    let mut rest = SVGBackend::with_string(&mut text, (WIDTH_PX, total)).into_drawing_area();
    let mut drawn = rest.fill(&WHITE).map_err(say);
    for figure in figures {
        let (area, below) = rest.split_vertically(height_px(figure));
        drawn = drawn.and_then(|()| draw_on(figure, &area));
        rest = below;
    }
    drawn = drawn.and_then(|()| rest.present().map_err(say));
    drop(rest);
    let name = || figures.first().map_or(String::new(), |figure| figure.name.clone());
    drawn.map_err(|error| DrawError { figure: name(), error })?;
    Ok(text)
}

fn height_px(figure: &Figure) -> u32 {
    HEIGHT_PX + (Legend::new(figure).lines * LEGEND_LINE_PX) as u32
}

fn draw(figure: &Figure, text: &mut String) -> Result<(), String> {
    let root = SVGBackend::with_string(text, (WIDTH_PX, height_px(figure))).into_drawing_area();
    root.fill(&WHITE).map_err(say)?;
    draw_on(figure, &root)?;
    root.present().map_err(say)
}

fn draw_on(figure: &Figure, root: &Area<'_>) -> Result<(), String> {
    let legend = Legend::new(figure);
    let title = ("sans-serif", 17).into_font().style(FontStyle::Bold).color(&INK);
    root.draw(&Text::new(figure.title.clone(), (16, 12), title)).map_err(say)?;
    let (plot, below) = root.split_vertically(HEIGHT_PX);
    let plot = plot.margin(40, 4, 8, 24);
    match &figure.plot {
        Plot::Lines(series) => lines(figure, series, &plot)?,
        Plot::Bars { groups, series } => bars(figure, groups, series, &plot)?,
    }
    legend.draw(&below)
}

fn say(error: impl Debug) -> String {
    format!("{error:?}")
}

fn colour(index: usize) -> RGBColor {
    COLOURS[index % COLOURS.len()]
}

/// The colour of each name: a paper's series has that of our series of the same name.
fn colour_of(names: &[&str], at: usize) -> RGBColor {
    let first = |at: usize| names.iter().position(|name| *name == names[at]).unwrap_or(at);
    let rank = names[..first(at)].iter().enumerate().filter(|&(i, _)| first(i) == i).count();
    colour(rank)
}

/// The name by which a series has its colour.
fn coloured(series: &Series) -> &str {
    series.like.as_deref().unwrap_or(&series.name)
}

fn text_style(size: i32) -> TextStyle<'static> {
    ("sans-serif", size).into_font().color(&INK)
}

fn lines(figure: &Figure, series: &[Series], area: &Area<'_>) -> Result<(), String> {
    let all = || series.iter().flat_map(|series| series.points.iter());
    let x = Ticks::new(&figure.x, all().map(|point| point.0), None);
    let y = Ticks::new(&figure.y, all().map(|point| point.1), None);
    let mut chart = ChartBuilder::on(area)
        .x_label_area_size(50)
        .y_label_area_size(74)
        .build_cartesian_2d(x.clone(), y.clone())
        .map_err(say)?;
    chart
        .configure_mesh()
        .light_line_style(TRANSPARENT)
        .bold_line_style(GRID)
        .axis_style(INK)
        .label_style(text_style(TEXT_PX))
        .axis_desc_style(text_style(TEXT_PX + 1))
        .x_labels(x.at.len())
        .y_labels(y.at.len())
        .x_desc(figure.x.text())
        .y_desc(figure.y.text())
        .draw()
        .map_err(say)?;
    let names: Vec<&str> = series.iter().map(coloured).collect();
    let place = |&(a, b): &(f64, f64)| Some((x.place(a)?, y.place(b)?));
    let points: Vec<Vec<(f64, f64)>> =
        series.iter().map(|series| series.points.iter().filter_map(place).collect()).collect();
    let size = chart.plotting_area().dim_in_pixel();
    let pixels = Pixels { x: &x, y: &y, size };
    let ours = |series: &Series| series.whose == Whose::Ours && series.mark.is_line();
    let lines: Vec<Vec<Pixel>> = (series.iter().zip(&points))
        .map(|(series, points)| if ours(series) { pixels.of(points) } else { Vec::new() })
        .collect();
    for (at, parts) in strokes::in_turn(&lines, size).into_iter().enumerate() {
        let style = colour_of(&names, at).stroke_width(2);
        if series[at].whose == Whose::Paper && series[at].mark.is_line() {
            chart.draw_series(DashedLineSeries::new(points[at].iter().copied(), 7, 5, style)).map_err(say)?;
        }
        for part in parts {
            let line = part.into_iter().map(|pixel| pixels.back(pixel));
            chart.draw_series(LineSeries::new(line, style)).map_err(say)?;
        }
    }
    // Marks lie on all lines; one that others cover is larger.
    for (at, one) in series.iter().enumerate().filter(|(_, series)| series.mark != Mark::Line) {
        let style = mark_style(one.whose, colour_of(&names, at));
        let covered = |point: &(f64, f64)| {
            let later = series[at + 1..].iter().zip(&points[at + 1..]);
            let marked = later.filter(|(series, _)| series.whose == Whose::Ours && series.mark != Mark::Line);
            marked.filter(|(_, points)| points.contains(point)).count().min(3) as i32
        };
        for point in &points[at] {
            let size = if one.whose == Whose::Paper { 6 } else { 4 + 2 * covered(point) };
            if one.mark == Mark::Triangles {
                // With a white edge, so that two that nearly coincide are still two.
                let around = TriangleMarker::new(*point, TRIANGLE_PX + 3, WHITE.filled());
                chart.draw_series([around, TriangleMarker::new(*point, TRIANGLE_PX, style)]).map_err(say)?;
                continue;
            }
            chart.draw_series([Circle::new(*point, size, style)]).map_err(say)?;
        }
    }
    Ok(())
}

/// Mapping from the axes to places on the plot.
struct Pixels<'a> {
    x: &'a Ticks,
    y: &'a Ticks,
    size: (u32, u32),
}

impl Pixels<'_> {
    fn of(&self, points: &[(f64, f64)]) -> Vec<Pixel> {
        let part =
            |axis: &Ticks, at: f64, size: u32| (at - axis.from) / (axis.to - axis.from) * f64::from(size);
        points.iter().map(|&(x, y)| (part(self.x, x, self.size.0), part(self.y, y, self.size.1))).collect()
    }

    fn back(&self, (right, up): Pixel) -> (f64, f64) {
        let place =
            |axis: &Ticks, at: f64, size: u32| axis.from + at / f64::from(size) * (axis.to - axis.from);
        (place(self.x, right, self.size.0), place(self.y, up, self.size.1))
    }
}

fn mark_style(whose: Whose, colour: RGBColor) -> ShapeStyle {
    match whose {
        Whose::Ours => colour.filled(),
        Whose::Paper => colour.stroke_width(2),
    }
}

fn bars(figure: &Figure, groups: &[String], series: &[BarSeries], area: &Area<'_>) -> Result<(), String> {
    let values = || series.iter().flat_map(|s| s.values.iter().flatten().copied());
    // Bars stand on zero, or where the shortest still has a visible height.
    let floor = match figure.y.scale {
        Scale::Linear => 0.0,
        Scale::Log => values().filter(|&value| value > 0.0).fold(f64::INFINITY, f64::min) / 2.0,
    };
    let tall = values().filter(|&value| figure.y.scale == Scale::Linear || value > 0.0);
    let y = Ticks::new(&figure.y, tall, Some(floor));
    let mut chart = ChartBuilder::on(area)
        .x_label_area_size(64)
        .y_label_area_size(74)
        .build_cartesian_2d(0.0..groups.len().max(1) as f64, y.clone())
        .map_err(say)?;
    chart
        .configure_mesh()
        .disable_x_mesh()
        .light_line_style(TRANSPARENT)
        .bold_line_style(GRID)
        .axis_style(INK)
        .label_style(text_style(TEXT_PX))
        .axis_desc_style(text_style(TEXT_PX + 1))
        .x_labels(0)
        .y_labels(y.at.len())
        .y_desc(figure.y.text())
        .draw()
        .map_err(say)?;
    let names: Vec<&str> = series.iter().map(|series| series.name.as_str()).collect();
    let places = places(series);
    let width = 0.84 / places.iter().max().map_or(1.0, |last| *last as f64 + 1.0);
    for (at, series) in series.iter().enumerate() {
        let colour = colour_of(&names, at);
        for (group, value) in series.values.iter().enumerate() {
            let Some(top) = value.and_then(|value| y.place(value)) else { continue };
            let left = group as f64 + 0.08 + width * places[at] as f64;
            if series.whose == Whose::Ours {
                let corners = [(left, y.from.max(y.from.min(0.0))), (left + width * 0.92, top)];
                chart.draw_series([Rectangle::new(corners, colour.filled())]).map_err(say)?;
                // There is room for numbers where each group has one bar.
                if let (Some(value), true) = (value, names.len() == 1) {
                    let style = text_style(TEXT_PX - 2).pos(Pos::new(HPos::Center, VPos::Bottom));
                    let middle = (left + width * 0.46, top);
                    chart.draw_series([Text::new(number(*value), middle, style)]).map_err(say)?;
                }
            } else {
                let middle = (left + width * 0.46, top);
                chart.draw_series([Circle::new(middle, 6, WHITE.filled())]).map_err(say)?;
                chart.draw_series([Circle::new(middle, 6, INK.stroke_width(2))]).map_err(say)?;
            }
        }
    }
    name_groups(figure, groups, chart.plotting_area().get_pixel_range(), area)
}

/// Returns the bar of each series in its group: the paper's numbers share the place of ours of the same name.
fn places(series: &[BarSeries]) -> Vec<usize> {
    let mut names: Vec<&str> = Vec::new();
    let mut places = Vec::new();
    for series in series {
        let known = names.iter().position(|name| *name == series.name);
        places.push(known.unwrap_or(names.len()));
        if known.is_none() {
            names.push(&series.name);
        }
    }
    places
}

/// Writes the groups' names below the bars, in as many lines as their width needs.
fn name_groups(
    figure: &Figure,
    groups: &[String],
    pixels: (std::ops::Range<i32>, std::ops::Range<i32>),
    area: &Area<'_>,
) -> Result<(), String> {
    let (left, top) = area.get_base_pixel();
    let (xs, ys) = (pixels.0.start - left..pixels.0.end - left, pixels.1.end - top);
    let each = f64::from(xs.end - xs.start) / groups.len().max(1) as f64;
    let centred = Pos::new(HPos::Center, VPos::Top);
    let style = text_style(TEXT_PX - 1).pos(centred);
    for (at, name) in groups.iter().enumerate() {
        let x = xs.start + (each * (at as f64 + 0.5)) as i32;
        for (line, text) in wrapped(name, each / (LETTER * f64::from(TEXT_PX - 1))).iter().take(3).enumerate()
        {
            let y = ys + 6 + 14 * line as i32;
            area.draw(&Text::new(text.clone(), (x, y), style.clone())).map_err(say)?;
        }
    }
    let x = (xs.start + xs.end) / 2;
    let style = text_style(TEXT_PX + 1).pos(centred);
    area.draw(&Text::new(figure.x.text(), (x, ys + 49), style)).map_err(say)
}

/// A text in lines of at most so many letters, where its words allow.
fn wrapped(text: &str, letters: f64) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in text.split_whitespace() {
        match lines.last_mut() {
            Some(line) if ((line.chars().count() + 1 + word.chars().count()) as f64) <= letters => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.into()),
        }
    }
    lines
}

/// The names below the plot, in rows that are filled from the left.
struct Legend {
    entries: Vec<Entry>,
    lines: i32,
}

struct Entry {
    text: String,
    colour: RGBColor,
    whose: Whose,
    mark: Option<Mark>,
    left: i32,
    line: i32,
}

impl Legend {
    const SWATCH_PX: i32 = 30;
    const LEFT_PX: i32 = 82;

    fn new(figure: &Figure) -> Self {
        // Name, whose, mark, and the name that gives the colour.
        let named: Vec<(&str, Whose, Option<Mark>, &str)> = match &figure.plot {
            Plot::Lines(series) => {
                series.iter().map(|s| (s.name.as_str(), s.whose, Some(s.mark), coloured(s))).collect()
            }
            Plot::Bars { series, .. } => {
                let ours = series.iter().filter(|s| s.whose == Whose::Ours);
                let mut named: Vec<_> =
                    ours.map(|s| (s.name.as_str(), s.whose, None, s.name.as_str())).collect();
                if named.len() < series.len() {
                    named.push(("the paper", Whose::Paper, None, "the paper"));
                }
                named
            }
        };
        let colours: Vec<RGBColor> = {
            let names: Vec<&str> = named.iter().map(|&(.., name)| name).collect();
            (0..names.len()).map(|at| colour_of(&names, at)).collect()
        };
        let (mut left, mut line) = (Self::LEFT_PX, 0);
        let mut entries = Vec::new();
        for (at, &(name, whose, mark, _)) in named.iter().enumerate() {
            // Lines that look the same have one entry.
            if named[..at].iter().any(|&(earlier, of, drawn, _)| (earlier, of, drawn) == (name, whose, mark))
            {
                continue;
            }
            let of_paper = whose == Whose::Paper && mark.is_some();
            let text = if of_paper { format!("{name} (paper)") } else { name.to_string() };
            let letters = text.chars().count() as f64;
            let width = Self::SWATCH_PX + 26 + (letters * LETTER * f64::from(TEXT_PX)) as i32;
            if left > Self::LEFT_PX && left + width > WIDTH_PX as i32 {
                (left, line) = (Self::LEFT_PX, line + 1);
            }
            entries.push(Entry { text, colour: colours[at], whose, mark, left, line });
            left += width;
        }
        let lines = if entries.is_empty() { 0 } else { line + 1 };
        Legend { entries, lines }
    }

    fn draw(&self, area: &Area<'_>) -> Result<(), String> {
        let style = text_style(TEXT_PX).pos(Pos::new(HPos::Left, VPos::Center));
        for entry in &self.entries {
            let middle = entry.line * LEGEND_LINE_PX + LEGEND_LINE_PX / 2 - 4;
            entry.swatch(middle, area)?;
            let at = (entry.left + Self::SWATCH_PX + 6, middle);
            area.draw(&Text::new(entry.text.clone(), at, style.clone())).map_err(say)?;
        }
        Ok(())
    }
}

impl Entry {
    fn swatch(&self, middle: i32, area: &Area<'_>) -> Result<(), String> {
        let (left, right) = (self.left, self.left + Legend::SWATCH_PX);
        let paper = self.whose == Whose::Paper;
        let Some(mark) = self.mark else {
            if paper {
                let middle = ((left + right) / 2, middle);
                return area.draw(&Circle::new(middle, 6, INK.stroke_width(2))).map_err(say);
            }
            let corners = [(left + 8, middle - 6), (right, middle + 6)];
            return area.draw(&Rectangle::new(corners, self.colour.filled())).map_err(say);
        };
        if mark.is_line() {
            let dashes = if paper {
                vec![(left, left + 8), (left + 12, left + 20), (right - 6, right)]
            } else {
                vec![(left, right)]
            };
            for (from, to) in dashes {
                let line = PathElement::new([(from, middle), (to, middle)], self.colour.stroke_width(2));
                area.draw(&line).map_err(say)?;
            }
        }
        if mark == Mark::Triangles {
            let at = ((left + right) / 2, middle);
            let triangle = TriangleMarker::new(at, TRIANGLE_PX, self.colour.filled());
            area.draw(&triangle).map_err(say)?;
        } else if mark != Mark::Line {
            let size = if paper { 6 } else { 4 };
            let style = mark_style(self.whose, self.colour);
            area.draw(&Circle::new(((left + right) / 2, middle), size, style)).map_err(say)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::Axis;
    use super::*;

    #[test]
    fn a_figure_has_its_words_and_the_papers_points() {
        let series = vec![
            Series::ours("swarm", vec![(1.0, 2.0), (10.0, 0.0)]),
            Series::paper("swarm", vec![(1.0, 2.5)]),
        ];
        let figure =
            Figure::lines("fig-1", "Time & size", Axis::log("size", "MB"), Axis::log("time", "s"), series);
        let text = svg(&figure).unwrap();
        for words in ["Time &amp; size", "size (MB)", "time (s)", "swarm (paper)", "<polyline", "<circle"] {
            assert!(text.contains(words), "{words} is not in {text}");
        }
        assert!(!text.contains("NaN") && !text.contains("inf"));
    }

    #[test]
    fn lines_on_each_other_are_all_seen_and_their_marks_are_rings() {
        let points = || vec![(1.0, 2.0), (2.0, 3.0)];
        let series =
            vec![Series::ours("a", points()), Series::ours("b", points()), Series::paper("b", points())];
        let figure = Figure::lines("f", "", Axis::linear("x", ""), Axis::linear("y", ""), series);
        let text = svg(&figure).unwrap();
        let strokes = |colour: &str| {
            text.lines().filter(|line| line.contains("<polyline") && line.contains(colour)).count()
        };
        // Dashes in turn, and a line in the legend.
        assert!(strokes("#0072B2") > 10 && strokes("#D55E00") > 10, "{text}");
        let radius = |size: &str| text.matches(&format!("r=\"{size}\"")).count();
        assert_eq!([radius("6"), radius("4")], [2 + 2 + 1, 2 + 2]);
    }

    /// Each mark is where its value says, also beyond the range that was asked for: no two values that differ
    /// are drawn at one height.
    #[test]
    fn marks_outside_of_the_range_are_at_their_own_height() {
        let series = vec![
            Series::ours("agent", vec![(1e3, 60.0), (1e5, 133.0), (1e6, 193.0)]),
            Series::paper("agent", vec![(1e5, 99.0)]),
        ];
        let y = Axis::linear("time", "ns").range(0.0, 120.0);
        let text = svg(&Figure::lines("fig-5c", "", Axis::log("sessions", ""), y, series)).unwrap();
        let height = |circle: &str| {
            circle.split("cy=\"").nth(1).unwrap().split('"').next().unwrap().parse::<f64>().unwrap()
        };
        let marks = |radius: &str| -> Vec<f64> {
            text.lines()
                .filter(|line| line.contains("<circle") && line.contains(radius))
                .map(height)
                .collect()
        };
        let (ours, paper) = (marks("r=\"4\""), marks("r=\"6\"")[0]);
        let a_ns = (ours[0] - ours[1]) / (133.0 - 60.0);
        assert!(a_ns > 0.0 && ((ours[0] - ours[2]) / (193.0 - 60.0) - a_ns).abs() < 0.02, "{ours:?}");
        assert!(((ours[0] - paper) / (99.0 - 60.0) - a_ns).abs() < 0.04, "{ours:?} {paper}");
    }

    /// Single values beside lines have the colour of their line, however many lines there are, and another
    /// shape; lines of the same name and look have one entry in the legend.
    #[test]
    fn single_values_have_the_colour_of_their_line() {
        let names: Vec<String> = (0..8).map(|at| format!("{at} ms")).collect();
        let mut series: Vec<Series> = (names.iter().zip(0..))
            .map(|(name, at)| Series::ours(name, vec![(1.0, f64::from(at)), (9.0, f64::from(at) + 0.5)]))
            .collect();
        series.extend((names.iter().zip(0..)).map(|(name, at)| {
            let own = format!("{name}, adaptive");
            Series::ours(&own, vec![(2.0, f64::from(at))]).mark(Mark::Triangles).like(name)
        }));
        let bound = |y| Series::paper("bound", vec![(1.0, y), (9.0, y)]).mark(Mark::Line);
        series.extend([bound(1.0), bound(7.0)]);
        let text = svg(&Figure::lines("f", "", Axis::log("x", ""), Axis::linear("y", ""), series)).unwrap();
        for RGBColor(r, g, b) in COLOURS.into_iter().take(8) {
            let colour = format!("#{r:02X}{g:02X}{b:02X}");
            let triangles = text.lines().filter(|line| line.contains("<polygon") && line.contains(&colour));
            assert_eq!(triangles.count(), 2, "one on the plot and one in the legend: {colour}");
        }
        assert_eq!(text.matches("bound (paper)").count(), 1);
    }

    #[test]
    fn zero_has_a_place_on_a_logarithmic_axis() {
        let series = vec![Series::cdf("state", vec![0.0, 0.0, 100.0, 1_000.0])];
        let figure =
            Figure::lines("f", "", Axis::log("x", ""), Axis::linear("y", "").range(0.0, 1.0), series);
        let text = svg(&figure).unwrap();
        let line = text.lines().find(|line| line.contains("<polyline") && line.contains("#0072B2")).unwrap();
        let points = line.split("points=\"").nth(1).unwrap().split('"').next().unwrap();
        assert_eq!(points.split_whitespace().count(), 6, "{points}");
        assert!(text.lines().any(|line| line == "0"), "{text}");
    }

    #[test]
    fn bars_name_their_groups_and_may_be_missing() {
        let groups = vec!["no background".into(), "heavy".into()];
        let series = vec![
            BarSeries::ours("Blast", vec![Some(1.0), Some(2.0)]),
            BarSeries::paper("Blast", vec![Some(1.5), None]),
        ];
        let figure = Figure::bars("fig-4", "Bars", "background", Axis::linear("time", "s"), groups, series);
        let text = svg(&figure).unwrap();
        assert!(text.contains("heavy") && text.contains("the paper"));
        // The background, two bars and a swatch; two discs with rings in them and a ring as swatch.
        assert_eq!(text.matches("<rect").count(), 1 + 2 + 1);
        assert_eq!(text.matches("<circle").count(), 2 + 1);
    }

    #[test]
    fn single_bars_have_their_numbers_and_figures_stand_below_each_other() {
        let bars = |name: &str, values| {
            let axis = Axis::linear(name, "s");
            Figure::bars(
                name,
                name,
                "",
                axis,
                vec!["a".into(), "b".into()],
                vec![BarSeries::ours("x", values)],
            )
        };
        let both = [bars("upper", vec![Some(12.3), None]), bars("lower", vec![Some(0.0), Some(45.6)])];
        let text = stacked(&both).unwrap();
        assert_eq!(text.matches("<svg").count(), 1);
        for words in ["upper", "lower", "12.3", "45.6"] {
            assert!(text.contains(words), "{words}: {text}");
        }
        assert!(stacked(&[]).is_ok());
    }

    #[test]
    fn empty_figures_are_drawn_too() {
        let empty = Figure::lines("e", "", Axis::log("x", ""), Axis::linear("y", ""), vec![]);
        assert!(svg(&empty).unwrap().ends_with("</svg>\n"));
        let empty = Figure::bars("e", "", "x", Axis::log("y", ""), vec![], vec![]);
        svg(&empty).unwrap();
    }

    #[test]
    fn words_wrap_at_spaces() {
        assert_eq!(wrapped("a bc def", 4.0), ["a bc", "def"]);
        assert_eq!(wrapped("immense", 2.0), ["immense"]);
    }
}
