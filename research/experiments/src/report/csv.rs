//! Figures and rows as CSV, for those who draw their own.

use super::{Done, Figure, Plot, Whose};
use crate::{Kind, Test};
use std::fmt::Write;

/// The numbers of a figure: of lines `series,whose,x,y`, a row a point; of bars `group,series,whose,value`.
/// The first line names the columns, with the axes' names and units.
#[must_use]
pub fn figure(figure: &Figure) -> String {
    let mut text = String::new();
    match &figure.plot {
        Plot::Lines(lines) => {
            let _ = writeln!(text, "series,whose,{},{}", field(&figure.x.text()), field(&figure.y.text()));
            for line in lines {
                for (x, y) in &line.points {
                    let _ = writeln!(text, "{},{},{x},{y}", field(&line.name), whose(line.whose));
                }
            }
        }
        Plot::Bars { groups, series } => {
            let _ = writeln!(text, "{},series,whose,{}", field(&figure.x.text()), field(&figure.y.text()));
            for bars in series {
                for (group, value) in groups.iter().zip(&bars.values) {
                    let value = value.map_or(String::new(), |value| value.to_string());
                    let (group, name) = (field(group), field(&bars.name));
                    let _ = writeln!(text, "{group},{name},{},{value}", whose(bars.whose));
                }
            }
        }
    }
    text
}

/// All rows of all items.
#[must_use]
pub fn rows(done: &[Done]) -> String {
    let mut text = "item,name,paper,ours,unit,tolerance,verdict,note,kind,place\n".to_string();
    for row in done.iter().filter_map(|done| done.outcome.as_ref().ok()).flat_map(|outcome| &outcome.rows) {
        let number = |value: Option<f64>| value.map_or(String::new(), |value| value.to_string());
        let _ = writeln!(
            text,
            "{},{},{},{},{},{},{},{},{},{}",
            field(&row.item),
            field(&row.name),
            number(row.paper),
            number(Some(row.ours).filter(|_| !row.is_missing)),
            field(&row.unit),
            number(match row.test {
                Some(Test::Within(share)) => Some(share),
                _ => None,
            }),
            field(&super::page::verdict(row)),
            field(&row.note),
            row.kind.map_or("", Kind::word),
            field(&row.place),
        );
    }
    text
}

fn whose(whose: Whose) -> &'static str {
    match whose {
        Whose::Ours => "ours",
        Whose::Paper => "paper",
    }
}

/// A text as a field.
fn field(text: &str) -> String {
    let plain = !text.contains(['"', ',', '\n', '\r']);
    if plain { text.to_string() } else { format!("\"{}\"", text.replace('"', "\"\"")) }
}

#[cfg(test)]
mod tests {
    use super::super::{Axis, BarSeries, Series};
    use super::*;

    #[test]
    fn lines_and_bars_become_rows() {
        let (x, y) = (Axis::linear("time, mean", "s"), Axis::linear("rate", "Gb/s"));
        let lines = vec![Series::ours("a \"b\"", vec![(0.5, 1.0)]), Series::paper("c", vec![(1.0, 2.5)])];
        let expected =
            "series,whose,\"time, mean (s)\",rate (Gb/s)\n\"a \"\"b\"\"\",ours,0.5,1\nc,paper,1,2.5\n";
        assert_eq!(figure(&Figure::lines("f", "F", x, y.clone(), lines)), expected);
        let groups = vec!["8 racks".to_string(), "16 racks".to_string()];
        let bars = vec![BarSeries::ours("Blast", vec![Some(3.0), None])];
        let expected = "size,series,whose,rate (Gb/s)\n8 racks,Blast,ours,3\n16 racks,Blast,ours,\n";
        assert_eq!(figure(&Figure::bars("f", "F", "size", y, groups, bars)), expected);
    }
}
