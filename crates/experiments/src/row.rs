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
}

impl Row {
    /// A row without a note.
    #[must_use]
    pub fn new(name: impl Into<String>, paper: Option<f64>, ours: f64, unit: &str) -> Self {
        let (item, note) = (String::new(), String::new());
        Row { item, name: name.into(), paper, ours, unit: unit.into(), note }
    }

    /// The same row with a note.
    #[must_use]
    pub fn note(mut self, note: impl Into<String>) -> Self {
        self.note = note.into();
        self
    }
}
