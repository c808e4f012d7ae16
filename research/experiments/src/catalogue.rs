//! All items of all papers, and how words on the command line select among them.

use crate::report::Item;
use crate::{blast, datacast, orca, republic, shufflecast};

/// The papers and their items, in the order in which they are listed.
#[must_use]
pub fn papers() -> [(&'static str, &'static [Item]); 5] {
    [
        ("blast", blast::ITEMS),
        ("datacast", datacast::ITEMS),
        ("orca", orca::ITEMS),
        ("republic", republic::ITEMS),
        ("shufflecast", shufflecast::ITEMS),
    ]
}

/// Nothing of that name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SelectError {
    /// There is no such paper.
    #[error("there is no paper '{name}': choose {choices} or all")]
    Paper {
        /// Name that was typed.
        name: String,
        /// Papers to choose from.
        choices: String,
    },
    /// The paper has no such item.
    #[error("{paper} has no item '{name}': choose {choices}")]
    Item {
        /// The paper.
        paper: String,
        /// Name that was typed.
        name: String,
        /// Items to choose from.
        choices: String,
    },
}

/// The items that the words name: all of them, those of a paper, or one. `all` stands for every paper, and
/// `fig-6` for `fig-6a`, `fig-6b` and so on.
///
/// # Errors
/// If there is no such paper or item.
pub fn select(paper: Option<&str>, item: Option<&str>) -> Result<Vec<Item>, SelectError> {
    let papers = papers();
    let Some(paper) = paper.filter(|&paper| paper != "all" || item.is_some()) else {
        return Ok(papers.iter().flat_map(|(_, items)| items.iter().copied()).collect());
    };
    let Some((_, items)) = papers.iter().find(|(name, _)| *name == paper) else {
        let choices = papers.map(|(name, _)| name).join(", ");
        return Err(SelectError::Paper { name: paper.into(), choices });
    };
    let Some(name) = item else { return Ok(items.to_vec()) };
    let mut found: Vec<Item> = items.iter().copied().filter(|item| item.name == name).collect();
    if found.is_empty() {
        let part = |item: &Item| {
            let letter = item.name.strip_prefix(name).unwrap_or("");
            name.ends_with(|last: char| last.is_ascii_digit())
                && letter.len() == 1
                && letter.bytes().all(|byte| byte.is_ascii_lowercase())
        };
        found = items.iter().copied().filter(part).collect();
    }
    if found.is_empty() {
        let choices = items.iter().map(|item| item.name).collect::<Vec<_>>().join(", ");
        return Err(SelectError::Item { paper: paper.into(), name: name.into(), choices });
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn names_are_words_that_can_be_typed_and_no_two_are_equal() {
        for (paper, items) in papers() {
            let names: BTreeSet<_> = items.iter().map(|item| item.name).collect();
            assert_eq!(names.len(), items.len(), "{paper}");
            for item in items {
                assert_eq!(item.paper, paper, "{}", item.name);
                assert!(item.name.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-'));
            }
        }
    }

    #[test]
    fn words_select_all_a_paper_or_an_item() {
        let count: usize = papers().iter().map(|(_, items)| items.len()).sum();
        assert_eq!(select(None, None).unwrap().len(), count);
        assert_eq!(select(Some("all"), None).unwrap().len(), count);
        assert!(select(Some("blast"), None).unwrap().iter().all(|item| item.paper == "blast"));
        assert_eq!(select(Some("shufflecast"), Some("fig-10")).unwrap()[0].name, "fig-10");
        let parts = select(Some("shufflecast"), Some("fig-7")).unwrap();
        assert_eq!(parts.iter().map(|item| item.name).collect::<Vec<_>>(), ["fig-7a", "fig-7b", "fig-7c"]);
        assert!(select(Some("shufflecast"), Some("fig-")).is_err());
        assert!(select(Some("elmo"), None).unwrap_err().to_string().contains("blast, datacast, orca"));
        let error = select(Some("blast"), Some("fig-9")).unwrap_err().to_string();
        assert!(error.contains("'fig-9'") && error.contains("table-1"), "{error}");
    }
}
