//! Section VI-B: how soon a ToR has the rules of a group, in a lab.

use crate::Row;
use crate::lab::{Seen, quantile};
use crate::report::Outcome;

/// The paper's time of one update, on a switch by itself.
const PAPER_MS: f64 = 0.6;

/// The rows of times from a grant until a ToR has its rules, in milliseconds, a value a ToR and request.
#[must_use]
pub fn rule_update(seen: &Seen<Vec<f64>>) -> Outcome {
    let name = "from the grant until a ToR has the rules of a group, median";
    let rows = match seen.as_ref().map(|each_ms| (each_ms, quantile(each_ms, 0.5), quantile(each_ms, 0.99))) {
        Ok((each_ms, Some(median), Some(late))) => vec![
            Row::new(name, Some(PAPER_MS), median, "ms")
                .at_most(PAPER_MS)
                .note(format!("{} updates; the paper's is one switch's alone", each_ms.len())),
            Row::new("the same, 99 %", None, late, "ms"),
        ],
        Ok(_) => vec![Row::missing(name, Some(PAPER_MS), "ms", "no ToR of this lab was told of rules")],
        Err(why) => vec![Row::missing(name, Some(PAPER_MS), "ms", why)],
    };
    rows.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slow_updates_fail_and_none_is_no_number() {
        let rows = |each_ms: Vec<f64>| rule_update(&Ok(each_ms)).rows;
        assert_eq!(rows(vec![0.5, 0.4, 9.0])[0].is_within(), Some(true));
        assert_eq!(rows(vec![0.5, 0.7, 9.0])[0].is_within(), Some(false));
        assert_eq!(rows(vec![0.5, 0.7, 9.0])[1].ours, 9.0);
        assert!(rows(Vec::new())[0].is_missing && rule_update(&Err("root".into())).rows[0].is_missing);
    }
}
