//! One line of a table: the paper's figure and ours.

use serde::Serialize;

/// A figure of a paper beside what we get.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Row {
    /// The words that name its item on the command line, once that is done.
    pub item: String,
    /// What is measured.
    pub name: String,
    /// What the paper says, where it says a number.
    pub paper: Option<f64>,
    /// What we get.
    pub ours: f64,
    /// The unit of both.
    pub unit: String,
    /// What to know when comparing them.
    pub note: String,
    /// How far ours may be from the paper's, as a share of it, where the item says so.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tolerance: Option<f64>,
}

impl Row {
    /// A row without a note.
    #[must_use]
    pub fn new(name: impl Into<String>, paper: Option<f64>, ours: f64, unit: &str) -> Self {
        let (item, note) = (String::new(), String::new());
        Row { item, name: name.into(), paper, ours, unit: unit.into(), note, tolerance: None }
    }

    /// The same row with what ours may differ: a share of the paper's number, 0 where it has to be that very number. It is
    /// chosen by what the paper rounds and what is drawn by lot, and not by what came out.
    #[must_use]
    pub fn within(mut self, share: f64) -> Self {
        self.tolerance = Some(share);
        self
    }

    /// Whether ours is as near to the paper's as the item asks; `None` where it asks nothing.
    #[must_use]
    pub fn is_within(&self) -> Option<bool> {
        let (paper, tolerance) = (self.paper?, self.tolerance?);
        Some((self.ours - paper).abs() <= tolerance * paper.abs() + f64::EPSILON * paper.abs())
    }

    /// The same row with a note.
    #[must_use]
    pub fn note(mut self, note: impl Into<String>) -> Self {
        self.note = note.into();
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_rows_with_a_tolerance_have_a_verdict() {
        let row = |ours| Row::new("rules", Some(256.0), ours, "");
        assert_eq!(row(256.0).is_within(), None);
        assert_eq!(Row::new("rules", None, 1.0, "").within(0.1).is_within(), None);
        assert_eq!(row(256.0).within(0.0).is_within(), Some(true));
        assert_eq!(row(257.0).within(0.0).is_within(), Some(false));
        assert_eq!(row(258.5).within(0.01).is_within(), Some(true));
        assert_eq!(row(253.0).within(0.01).is_within(), Some(false));
        assert_eq!(Row::new("lost", Some(0.0), 0.0, "").within(0.0).is_within(), Some(true));
        assert_eq!(row(f64::NAN).within(1.0).is_within(), Some(false));
    }
}
