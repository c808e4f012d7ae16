//! The rights that docs/security.md promises, and the tests that ARCHITECTURE.md names for them.

use std::collections::BTreeSet;

/// The cells of the rows of all tables in a text whose head has this cell last, or at its beginning.
fn rows<'a>(text: &'a str, head: &'a str) -> impl Iterator<Item = Vec<&'a str>> {
    let mut inside = false;
    text.lines().filter_map(move |line| {
        let cells: Vec<&str> =
            line.strip_prefix("| ")?.trim_end_matches(" |").split(" | ").map(str::trim).collect();
        if cells.first() == Some(&head) || cells.last() == Some(&head) {
            inside = true;
            return None;
        }
        (inside && !line.starts_with("| ---")).then_some(cells)
    })
}

/// Returns the actions that the tables of rights deny to hosts and users, without their explanations.
pub(crate) fn promised(security: &str) -> BTreeSet<String> {
    let tables = security
        .split("\n\n")
        .filter(|part| part.lines().next().is_some_and(|head| head.ends_with("| may not |")));
    let cells = tables.flat_map(|table| {
        rows(table, "may not")
            .filter_map(|cells| cells.get(2).map(|cell| (*cell).to_string()))
            .collect::<Vec<_>>()
    });
    let clauses = cells.flat_map(|cell| {
        cell.split("; ")
            .map(|clause| clause.split(": ").next().unwrap_or(clause).to_string())
            .collect::<Vec<_>>()
    });
    clauses.filter(|clause| !clause.is_empty() && clause != "|").collect()
}

/// Each of them with the file and the name of its test, as ARCHITECTURE.md has it.
pub(crate) fn tested(architecture: &str) -> Vec<(String, String, String)> {
    let tables = architecture.split("\n\n").filter(|part| part.starts_with("| may not |"));
    let code = |cell: &str| cell.trim_matches('`').to_string();
    let row = |cells: Vec<&str>| Some((cells.first()?.to_string(), code(cells.get(1)?), code(cells.get(2)?)));
    tables.flat_map(|table| rows(table, "may not").filter_map(row).collect::<Vec<_>>()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workspace::root;
    use std::fs;

    #[test]
    fn each_right_that_is_promised_has_a_test() {
        let read = |path: &str| fs::read_to_string(root().join(path)).unwrap();
        let promised = promised(&read("docs/security.md"));
        let tested = tested(&read("ARCHITECTURE.md"));
        assert!(promised.len() > 25, "{promised:?}");
        let named: BTreeSet<String> = tested.iter().map(|(right, ..)| right.clone()).collect();
        assert_eq!(promised, named);
        for (right, file, test) in tested {
            let source = read(&file);
            let is_there = ["fn", "def"].iter().any(|word| source.contains(&format!("{word} {test}(")));
            assert!(is_there, "the test of '{right}' is not in {file}");
        }
    }

    #[test]
    fn cells_are_taken_apart() {
        let text = "## Rights\n\n| host | may | may not |\n| --- | --- | --- |\n| a | b; c | read it: it is sealed; write it |\n| d | e | |\n\nMore.\n";
        assert_eq!(promised(text), ["read it", "write it"].map(String::from).into());
        let text = "| may not | file | test |\n| --- | --- | --- |\n| read it | `a.rs` | `b` |\n";
        assert_eq!(tested(text), [("read it".into(), "a.rs".into(), "b".into())]);
    }
}
