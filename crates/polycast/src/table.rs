//! Tables for people: columns that line up, and lines that fit the terminal, or 80 columns where there is
//! none, where their cells allow it.

use crate::fold::broken;
use crate::screen;

/// Between two columns.
const GAP: usize = 2;

/// The least width of a last column that is broken into lines.
const BROKEN_MIN: usize = 16;

/// Alignment of a column's cells.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Side {
    Left,
    Right,
}

/// A table.
pub(crate) struct Table {
    heads: Vec<String>,
    sides: Vec<Side>,
    rows: Vec<Vec<String>>,
    left_out: usize,
    rows_max: usize,
}

impl Table {
    /// A table with these heads; a column whose head begins with `>` has numbers, which stand at the right.
    pub(crate) fn new(heads: &[&str]) -> Self {
        let side = |head: &&str| if head.starts_with('>') { Side::Right } else { Side::Left };
        Table {
            heads: heads.iter().map(|head| head.trim_start_matches('>').to_string()).collect(),
            sides: heads.iter().map(side).collect(),
            rows: Vec::new(),
            left_out: 0,
            rows_max: usize::MAX,
        }
    }

    /// Shows so many rows at most, and says how many there are beyond.
    #[must_use]
    pub(crate) fn at_most(mut self, rows: usize) -> Self {
        self.rows_max = rows;
        self
    }

    /// Adds a row.
    pub(crate) fn row(&mut self, cells: impl IntoIterator<Item = String>) {
        if self.rows.len() == self.rows_max {
            self.left_out += 1;
            return;
        }
        let cells: Vec<String> = cells.into_iter().collect();
        assert_eq!(cells.len(), self.heads.len(), "a row has a cell for each column");
        self.rows.push(cells);
    }

    /// Returns true if no row was added.
    pub(crate) fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// The table as text, each line with its end.
    pub(crate) fn text(&self) -> String {
        self.text_in(screen::result_width())
    }

    fn text_in(&self, width: usize) -> String {
        let chars = |text: &String| text.chars().count();
        let mut widths: Vec<usize> = self.heads.iter().map(chars).collect();
        for row in &self.rows {
            for (width, cell) in widths.iter_mut().zip(row) {
                *width = (*width).max(chars(cell));
            }
        }
        let last = self.heads.len() - 1;
        let before: usize = widths[..last].iter().map(|width| width + GAP).sum();
        let room = width.saturating_sub(before);
        // Without room for the last column the terminal's own lines are better.
        if self.sides[last] == Side::Left && room >= BROKEN_MIN {
            widths[last] = widths[last].min(room);
        }
        let mut text = String::new();
        for row in std::iter::once(&self.heads).chain(&self.rows) {
            let mut pieces = broken(&row[last], widths[last]).into_iter();
            let mut line = String::new();
            for at in 0..last {
                line += &placed(&row[at], widths[at], self.sides[at]);
                line += &" ".repeat(GAP);
            }
            line += &placed(&pieces.next().unwrap_or_default(), widths[last], self.sides[last]);
            text += &format!("{}\n", line.trim_end());
            for piece in pieces {
                text += &format!("{}{piece}\n", " ".repeat(before));
            }
        }
        if self.left_out > 0 {
            text += &format!("and {} more: --json has all\n", self.left_out);
        }
        text
    }
}

fn placed(cell: &str, width: usize, side: Side) -> String {
    match side {
        Side::Left => format!("{cell:width$}"),
        Side::Right => format!("{cell:>width$}"),
    }
}

/// A sentence of any length in lines that fit; those behind the first begin with `indent` spaces.
pub(crate) fn paragraph(text: &str, indent: usize) -> String {
    let lines = broken(text, screen::result_width().saturating_sub(indent));
    lines.join(&format!("\n{}", " ".repeat(indent))) + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_line_up_and_the_last_is_broken() {
        let mut table = Table::new(&["from", ">links", "to"]).at_most(2);
        table.row(["h0".into(), "7".into(), ["spine12"; 12].join(" ")]);
        table.row(["leaf31".into(), "1234".into(), "h5".into()]);
        table.row(["h9".into(), "1".into(), "h1".into()]);
        let text = table.text_in(80);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[0], "from    links  to");
        assert_eq!(lines[1], format!("h0          7  {}", ["spine12"; 8].join(" ")));
        assert_eq!(lines[2], format!("               {}", ["spine12"; 4].join(" ")));
        assert_eq!(lines[3..], ["leaf31   1234  h5", "and 1 more: --json has all"]);
        assert!(lines.iter().all(|line| line.len() <= 80));
        let narrow = table.text_in(47);
        assert!(narrow.lines().all(|line| line.len() <= 47), "{narrow}");
    }
}
