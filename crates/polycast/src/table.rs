//! Tables for people: columns that line up, and lines that fit the terminal, or 80 columns where there is
//! none, where their cells allow it. A table that is wider than a terminal goes on below itself.

use crate::fold::broken;
use crate::screen;
use console::measure_text_width;

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
pub struct Table {
    heads: Vec<String>,
    sides: Vec<Side>,
    rows: Vec<Vec<String>>,
    left_out: usize,
    rows_max: usize,
    names: usize,
}

impl Table {
    /// A table with these heads; a column whose head begins with `>` has numbers, which stand at the right.
    pub fn new(heads: &[&str]) -> Self {
        let side = |head: &&str| if head.starts_with('>') { Side::Right } else { Side::Left };
        Table {
            heads: heads.iter().map(|head| head.trim_start_matches('>').to_string()).collect(),
            sides: heads.iter().map(side).collect(),
            rows: Vec::new(),
            left_out: 0,
            rows_max: usize::MAX,
            names: 1,
        }
    }

    /// Shows so many rows at most, and says how many there are beyond.
    #[must_use]
    pub fn at_most(mut self, rows: usize) -> Self {
        self.rows_max = rows;
        self
    }

    /// Takes so many columns together, in place of the first alone, for the name of a row.
    #[must_use]
    pub fn named_by(mut self, columns: usize) -> Self {
        self.names = columns;
        self
    }

    /// Adds a row.
    pub fn row(&mut self, cells: impl IntoIterator<Item = String>) {
        if self.rows.len() == self.rows_max {
            self.left_out += 1;
            return;
        }
        let cells: Vec<String> = cells.into_iter().collect();
        assert_eq!(cells.len(), self.heads.len(), "a row has a cell for each column");
        self.rows.push(cells);
    }

    /// Returns true if no row was added.
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// The table as text, each line with its end.
    pub fn text(&self) -> String {
        match screen::terminal_width() {
            Some(width) => self.text_in(width),
            // What reads a pipe takes a row for a line.
            None => self.part(&Vec::from_iter(0..self.heads.len()), screen::COLUMNS) + &self.rest(),
        }
    }

    fn text_in(&self, width: usize) -> String {
        let parts: Vec<String> = self.parts(width).iter().map(|part| self.part(part, width)).collect();
        parts.join("\n") + &self.rest()
    }

    /// The columns that stand beside each other in so much width. The name of a row stands at the left of
    /// each part.
    fn parts(&self, width: usize) -> Vec<Vec<usize>> {
        let (names, last) = (Vec::from_iter(0..self.names), self.heads.len() - 1);
        let of_names =
            names.iter().map(|column| self.width_of(*column)).sum::<usize>() + (self.names - 1) * GAP;
        let (mut parts, mut used) = (vec![names.clone()], of_names);
        for column in self.names..=last {
            let (own, room) = (self.width_of(column), width.saturating_sub(used + GAP));
            let is_broken = column == last && self.sides[last] == Side::Left && room >= BROKEN_MIN;
            match parts.last_mut() {
                Some(part) if part.len() == self.names || own <= room || is_broken => part.push(column),
                _ => {
                    parts.push([names.as_slice(), &[column]].concat());
                    used = of_names;
                }
            }
            used += GAP + own;
        }
        parts
    }

    /// Columns of the widest cell.
    fn width_of(&self, column: usize) -> usize {
        let cells = std::iter::once(&self.heads).chain(&self.rows);
        cells.map(|row| measure_text_width(&row[column])).max().unwrap_or_default()
    }

    /// These columns, each row with its end. The last of them is broken into lines if words stand there.
    fn part(&self, columns: &[usize], width: usize) -> String {
        let [others @ .., last] = columns else { return String::new() };
        let mut widths: Vec<usize> = columns.iter().map(|column| self.width_of(*column)).collect();
        let before: usize = widths[..others.len()].iter().map(|width| width + GAP).sum();
        let room = width.saturating_sub(before);
        // Without room for the last column the terminal's own lines are better.
        if self.sides[*last] == Side::Left && room >= BROKEN_MIN {
            widths[others.len()] = widths[others.len()].min(room);
        }
        let mut text = String::new();
        for row in std::iter::once(&self.heads).chain(&self.rows) {
            let mut pieces = broken(&row[*last], widths[others.len()]).into_iter();
            let mut line = String::new();
            for (column, width) in others.iter().zip(&widths) {
                line += &placed(&row[*column], *width, self.sides[*column]);
                line += &" ".repeat(GAP);
            }
            line += &placed(&pieces.next().unwrap_or_default(), widths[others.len()], self.sides[*last]);
            text += &format!("{}\n", line.trim_end());
            for piece in pieces {
                text += &format!("{}{piece}\n", " ".repeat(before));
            }
        }
        text
    }

    /// A line about the rows that are not shown.
    fn rest(&self) -> String {
        match self.left_out {
            0 => String::new(),
            more => format!("and {more} more: --json has all\n"),
        }
    }
}

fn placed(cell: &str, width: usize, side: Side) -> String {
    let gap = " ".repeat(width.saturating_sub(measure_text_width(cell)));
    match side {
        Side::Left => format!("{cell}{gap}"),
        Side::Right => format!("{gap}{cell}"),
    }
}

/// A sentence of any length in lines that fit; those behind the first begin with `indent` spaces.
pub fn paragraph(text: &str, indent: usize) -> String {
    let lines = broken(text, screen::terminal_width().unwrap_or(screen::COLUMNS).saturating_sub(indent));
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

    #[test]
    fn a_table_that_is_too_wide_goes_on_below_itself() {
        let mut table = Table::new(&["NAME", "STATE", "ADDRESS", "STORE", ">OBJECTS", "TRANSFERS"]);
        for (name, state) in [("gpu0", "ready"), ("gpu1", "silent, heard 9.00 s ago")] {
            let store = "2.87 MiB of 34.14 GiB".to_string();
            table.row([name.into(), state.into(), "10.0.0.1:7401".into(), store, "12".into(), "-".into()]);
        }
        assert_eq!(table.text_in(100).lines().count(), 3, "each row is a line");
        let expected = "\
NAME  STATE                     ADDRESS
gpu0  ready                     10.0.0.1:7401
gpu1  silent, heard 9.00 s ago  10.0.0.1:7401

NAME  STORE                  OBJECTS  TRANSFERS
gpu0  2.87 MiB of 34.14 GiB       12  -
gpu1  2.87 MiB of 34.14 GiB       12  -
";
        assert_eq!(table.text_in(60), expected);
        for width in 30..100 {
            let text = table.text_in(width);
            assert!(text.lines().all(|line| line.len() <= width), "{width}: {text}");
        }
    }
}
