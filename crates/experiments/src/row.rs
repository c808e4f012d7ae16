//! One line of a table: the paper's figure and ours.

use serde::Serialize;

/// A figure of a paper beside what we get.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Row {
    /// The figure, table or section.
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
}

impl Row {
    /// A row without a note.
    #[must_use]
    pub fn new(item: &str, name: impl Into<String>, paper: Option<f64>, ours: f64, unit: &str) -> Self {
        Row { item: item.into(), name: name.into(), paper, ours, unit: unit.into(), note: String::new() }
    }

    /// The same row with a note.
    #[must_use]
    pub fn note(mut self, note: impl Into<String>) -> Self {
        self.note = note.into();
        self
    }
}
