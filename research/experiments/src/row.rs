//! One line of a table: the paper's figure and ours.

use serde::{Serialize, Serializer};

/// Share of the paper's number by which ours may differ where nothing else is said.
const NEAR: f64 = 0.05;

/// Method that produced a number of ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// Real code on this machine, by the clock.
    Measured,
    /// Machines or flows in virtual time.
    Simulated,
    /// Planners and arithmetic: no time passes.
    Computed,
}

impl Kind {
    /// The word for it.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Kind::Measured => "measured",
            Kind::Simulated => "simulated",
            Kind::Computed => "computed",
        }
    }
}

/// Condition that ours has to meet for the row to hold. It is chosen by what the paper says, and not by what
/// came out.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Test {
    /// As near to the paper's number as this share of it; that very number where it is 0.
    Within(f64),
    /// No more than this.
    AtMost(f64),
    /// No less than this.
    AtLeast(f64),
    /// From the first to the second.
    Between(f64, f64),
}

/// A figure of a paper beside what we get.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Row {
    /// The words that name its item on the command line, once that is done.
    pub item: String,
    /// Name of the quantity.
    pub name: String,
    /// Method that produced ours; that of its item once that is done, unless the row has its own.
    pub kind: Option<Kind>,
    /// The number that the paper prints, where it prints one.
    pub paper: Option<f64>,
    /// Place where the paper prints it; empty without a number.
    pub place: String,
    /// Our number; not a number, and `null` in JSON, where there is none.
    pub ours: f64,
    /// Set if there is nothing of ours, for the reason that the note gives.
    #[serde(skip)]
    pub is_missing: bool,
    /// The unit of both.
    pub unit: String,
    /// Note for comparing them.
    pub note: String,
    /// Condition that ours has to meet, where the item sets one; in JSON the share of [`Test::Within`].
    #[serde(rename = "tolerance", skip_serializing_if = "is_no_share", serialize_with = "share")]
    pub test: Option<Test>,
}

fn is_no_share(test: &Option<Test>) -> bool {
    !matches!(test, Some(Test::Within(_)))
}

fn share<S: Serializer>(test: &Option<Test>, serializer: S) -> Result<S::Ok, S::Error> {
    match test {
        Some(Test::Within(share)) => serializer.serialize_some(share),
        _ => serializer.serialize_none(),
    }
}

impl Row {
    /// A row without a note.
    #[must_use]
    pub fn new(name: impl Into<String>, paper: Option<f64>, ours: f64, unit: &str) -> Self {
        Row {
            item: String::new(),
            name: name.into(),
            kind: None,
            paper,
            place: String::new(),
            ours,
            is_missing: false,
            unit: unit.into(),
            note: String::new(),
            test: None,
        }
    }

    /// A row that has the paper's number and nothing of ours, and says why.
    #[must_use]
    pub fn missing(name: impl Into<String>, paper: Option<f64>, unit: &str, why: &str) -> Self {
        Row { is_missing: true, ..Row::new(name, paper, f64::NAN, unit).note(why) }
    }

    /// The same row with what ours may differ: a share of the paper's number, 0 where it has to be that very
    /// number. It is chosen by what the paper rounds and what is drawn by lot, and not by what came out.
    #[must_use]
    pub fn within(self, share: f64) -> Self {
        Row { test: Some(Test::Within(share)), ..self }
    }

    /// The same row, which holds where ours is no more than this.
    #[must_use]
    pub fn at_most(self, limit: f64) -> Self {
        Row { test: Some(Test::AtMost(limit)), ..self }
    }

    /// The same row, which holds where ours is no less than this.
    #[must_use]
    pub fn at_least(self, limit: f64) -> Self {
        Row { test: Some(Test::AtLeast(limit)), ..self }
    }

    /// The same row, which holds where ours is neither less nor more.
    #[must_use]
    pub fn between(self, least: f64, most: f64) -> Self {
        Row { test: Some(Test::Between(least, most)), ..self }
    }

    /// The same row without the paper's number and without a test: ours is of another size than the paper's,
    /// as the note says now.
    #[must_use]
    pub fn of_another_size(self, why: &str) -> Self {
        let note = if self.note.is_empty() { why.into() } else { format!("{}; {why}", self.note) };
        Row { paper: None, place: String::new(), test: None, note, ..self }
    }

    /// The same row, compared with the paper only if a step of ours is a small part of the paper's number:
    /// what comes in larger steps agrees by chance.
    #[must_use]
    pub fn in_steps_of(self, step: f64) -> Self {
        if self.paper.is_none_or(|paper| step <= NEAR * paper.abs()) {
            return self;
        }
        let why = format!("it comes in steps of {step}, too coarse to compare");
        self.of_another_size(&why)
    }

    /// The same row of another kind than its item's.
    #[must_use]
    pub fn kind(self, kind: Kind) -> Self {
        Row { kind: Some(kind), ..self }
    }

    /// The same row with where the paper prints its number, where that is not the item's place.
    #[must_use]
    pub fn place(self, place: &str) -> Self {
        Row { place: place.into(), ..self }
    }

    /// Returns whether ours meets the condition of the item; `None` where there is none.
    #[must_use]
    pub fn is_within(&self) -> Option<bool> {
        Some(match self.test.filter(|_| !self.is_missing)? {
            Test::Within(share) => {
                let paper = self.paper?;
                (self.ours - paper).abs() <= (share + f64::EPSILON) * paper.abs()
            }
            Test::AtMost(limit) => self.ours <= limit,
            Test::AtLeast(limit) => self.ours >= limit,
            Test::Between(least, most) => (least..=most).contains(&self.ours),
        })
    }

    /// Returns whether ours agrees with the paper: by its test, or where it has none as near to the paper's
    /// number as a twentieth of it. `None` where there is nothing to compare with.
    #[must_use]
    pub fn agrees(&self) -> Option<bool> {
        self.is_within().or_else(|| self.clone().within(NEAR).is_within())
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
    fn only_rows_with_a_test_have_a_verdict() {
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

    #[test]
    fn rows_without_a_test_agree_where_they_are_near() {
        let row = |ours| Row::new("time", Some(100.0), ours, "s");
        assert_eq!((row(104.0).agrees(), row(94.0).agrees()), (Some(true), Some(false)));
        assert_eq!(row(104.0).within(0.01).agrees(), Some(false), "its test goes first");
        assert_eq!(row(10.0).at_most(166.0).agrees(), Some(true));
        assert_eq!(Row::new("time", None, 1.0, "s").agrees(), None);
    }

    #[test]
    fn limits_need_no_number_of_the_paper_and_can_be_broken() {
        let row = |ours| Row::new("lost", None, ours, "");
        assert_eq!(row(0.0).at_most(0.0).is_within(), Some(true));
        assert_eq!(row(0.1).at_most(0.0).is_within(), Some(false));
        assert_eq!(row(0.99).at_least(1.0).is_within(), Some(false));
        assert_eq!(row(1.0).at_least(1.0).is_within(), Some(true));
        assert_eq!(
            [0.9, 1.0, 3.0, 3.1].map(|ours| row(ours).between(1.0, 3.0).is_within()),
            [Some(false), Some(true), Some(true), Some(false)]
        );
        for limited in
            [row(f64::NAN).at_most(1.0), row(f64::NAN).at_least(1.0), row(f64::NAN).between(0.0, 1.0)]
        {
            assert_eq!(limited.is_within(), Some(false));
        }
    }

    /// Entries in steps of 50 do not agree with 253 because one of them is 250.
    #[test]
    fn what_comes_in_coarse_steps_is_not_compared() {
        let row = Row::new("entries", Some(253.0), 250.0, "").within(0.05).note("quick");
        assert_eq!(row.clone().in_steps_of(12.0), row);
        let coarse = row.in_steps_of(50.0);
        assert_eq!((coarse.paper, coarse.agrees(), coarse.ours), (None, None, 250.0));
        assert_eq!(coarse.note, "quick; it comes in steps of 50, too coarse to compare");
        let other = Row::new("time", Some(99.0), 90.0, "ns").at_most(99.0).of_another_size("of 1,000");
        assert_eq!((other.paper, other.is_within(), other.note.as_str()), (None, None, "of 1,000"));
    }

    /// Nothing of ours neither agrees nor differs, while a number that is none differs.
    #[test]
    fn a_row_without_ours_has_no_verdict() {
        let row = Row::missing("total", Some(33.183), "ms", "it takes root").at_most(25.0);
        assert_eq!((row.is_within(), row.agrees()), (None, None));
        assert_eq!(Row::missing("total", Some(33.183), "ms", "it takes root").agrees(), None);
        assert_eq!(Row::new("total", Some(33.183), f64::NAN, "ms").agrees(), Some(false));
        let document = serde_json::to_value(row).unwrap();
        assert!(document["ours"].is_null() && document["note"] == "it takes root", "{document}");
        assert!(document.get("is_missing").is_none());
    }

    #[test]
    fn the_share_is_in_the_document_and_limits_are_words() {
        let document = |row: Row| serde_json::to_value(row).unwrap();
        let near = document(Row::new("rules", Some(256.0), 256.0, "").within(0.1).kind(Kind::Computed));
        assert_eq!(near["tolerance"], 0.1);
        assert_eq!(near["kind"], "computed");
        assert!(document(Row::new("rules", None, 1.0, "").at_most(2.0)).get("tolerance").is_none());
    }
}
