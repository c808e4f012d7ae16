//! Output of a target's fuzzer, as a row of a table.

/// Result of one target.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Row {
    pub target: String,
    pub runs: u64,
    pub edges: u64,
    pub features: u64,
    /// Inputs that reach all of it.
    pub corpus: u64,
    /// Problems, each in a few lines.
    pub problems: Vec<String>,
}

impl Row {
    /// Returns the row of a target that could not be run.
    pub(super) fn broken(target: &str, problem: String) -> Self {
        Row { target: target.to_string(), problems: vec![problem], ..Row::default() }
    }

    /// Reads the last lines of a run.
    pub(super) fn read(target: &str, text: &str) -> Self {
        let number = |line: &str, name: &str| {
            let value = line.split(name).nth(1)?.split_whitespace().next()?;
            value.split('/').next()?.parse::<u64>().ok()
        };
        let last = |name: &str| text.lines().rev().find_map(|line| number(line, name)).unwrap_or(0);
        // One that ends early says only in its progress how often it ran.
        let begun = text
            .lines()
            .rev()
            .find_map(|line| line.strip_prefix('#')?.split_whitespace().next()?.parse::<u64>().ok());
        Row {
            target: target.to_string(),
            runs: last("stat::number_of_executed_units: ").max(begun.unwrap_or(0)),
            edges: last(" cov: "),
            features: last(" ft: "),
            corpus: last(" corp: "),
            problems: Vec::new(),
        }
    }

    fn cells(&self) -> [String; 6] {
        let numbers = [self.runs, self.edges, self.features, self.corpus, self.problems.len() as u64];
        let [runs, edges, features, corpus, finds] = numbers.map(|number| number.to_string());
        [self.target.clone(), runs, edges, features, corpus, finds]
    }

    /// In one line.
    pub(super) fn line(&self) -> String {
        let [target, runs, edges, features, corpus, finds] = self.cells();
        format!("{target}: {runs} runs, {edges} edges, {features} features, {corpus} inputs, {finds} finds")
    }
}

/// All rows, as a table in Markdown.
pub(super) fn table(rows: &[Row]) -> String {
    let mut lines = vec![
        "| target | runs | edges | features | corpus | finds |".to_string(),
        "| --- | ---: | ---: | ---: | ---: | ---: |".to_string(),
    ];
    lines.extend(rows.iter().map(|row| format!("| {} |", row.cells().join(" | "))));
    let (runs, finds) =
        rows.iter().fold((0, 0), |(runs, finds), row| (runs + row.runs, finds + row.problems.len()));
    lines.push(format!("| all | {runs} | | | | {finds} |"));
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_words_of_a_run_are_a_row() {
        let text = "INFO: seed corpus\n#9\tINITED cov: 10 ft: 11 corp: 3/9b\n#70\tNEW    cov: 12 ft: 15 corp: 4/20b lim: 4\n\
                    #99\tDONE   cov: 13 ft: 16 corp: 5/30b\nstat::number_of_executed_units: 1234\n";
        let row = Row::read("guest", text);
        assert_eq!((row.runs, row.edges, row.features, row.corpus), (1_234, 13, 16, 5));
        let table = table(&[row, Row::broken("roster", "it broke".into())]);
        assert!(table.ends_with(
            "| guest | 1234 | 13 | 16 | 5 | 0 |\n| roster | 0 | 0 | 0 | 0 | 1 |\n| all | 1234 | | | | 1 |"
        ));
    }

    #[test]
    fn a_run_that_broke_off_has_its_progress() {
        let row = Row::read(
            "guest",
            "#9\tINITED cov: 10 ft: 11 corp: 3/9b\n#70\tNEW    cov: 12 ft: 15 corp: 4/20b\nERROR",
        );
        assert_eq!((row.runs, row.edges), (70, 12));
    }
}
