//! Links between documents: what they name is there, and the index of `docs/` names every page once.

use crate::prose::without;
use crate::workspace::{Source, root};
use std::collections::{BTreeMap, BTreeSet};

/// The page that names all others below its folder.
pub(crate) const INDEX: &str = "docs/README.md";
/// The folder whose pages the index names.
pub(crate) const INDEXED: &str = "docs/";

/// A link of a document to a file or to a heading.
struct Link {
    /// Counted from 1.
    line: usize,
    /// As it is written.
    target: String,
}

/// Returns true if a file or a folder has this path below the workspace's root.
pub(crate) fn is_there(path: &str) -> bool {
    root().join(path).exists()
}

/// Every link to a file or a heading that is not there, one sentence each. `is_there` knows files that are no
/// documents.
pub(crate) fn check(documents: &[Source], is_there: &dyn Fn(&str) -> bool) -> Vec<String> {
    let headings: BTreeMap<&str, BTreeSet<String>> =
        documents.iter().map(|document| (document.path.as_str(), anchors(&document.text))).collect();
    let mut problems = Vec::new();
    for Source { path, text } in documents {
        for Link { line, target } in links(text) {
            let (file, heading) = target.split_once('#').map_or((&*target, None), |(f, h)| (f, Some(h)));
            let Some(to) = resolve(path, file) else {
                problems.push(format!("{path}:{line} links to {target}, which is outside the repository"));
                continue;
            };
            let known = headings.get(to.as_str());
            if known.is_none() && !is_there(&to) {
                problems.push(format!("{path}:{line} links to {target}, but there is no {to}"));
            } else if let (Some(heading), Some(known)) = (heading, known)
                && !known.contains(heading)
            {
                problems.push(format!("{path}:{line} links to {target}, but {to} has no such heading"));
            }
        }
    }
    problems
}

/// Every page that the index does not name, or names more than once.
pub(crate) fn check_index(documents: &[Source]) -> Vec<String> {
    let Some(index) = documents.iter().find(|document| document.path == INDEX) else {
        return vec![format!("there is no {INDEX}, which names the pages of {INDEXED}")];
    };
    let named: Vec<String> =
        links(&index.text).iter().filter_map(|link| resolve(INDEX, &link.target)).collect();
    let mut problems = Vec::new();
    for Source { path, .. } in documents {
        let times = named.iter().filter(|name| *name == path).count();
        if path.starts_with(INDEXED) && path != INDEX && times != 1 {
            problems.push(format!("{INDEX} names {path} {times} times: name it once"));
        }
    }
    problems
}

/// The links to files and headings; those to other places of the network are left out.
fn links(text: &str) -> Vec<Link> {
    let mut found = Vec::new();
    for (i, line) in without(text, &['`']).lines().enumerate() {
        for rest in line.split("](").skip(1) {
            let inside = rest.split(')').next().unwrap_or_default();
            let target = inside.split_whitespace().next().unwrap_or_default();
            if !target.contains("://") && !target.starts_with("mailto:") {
                found.push(Link { line: i + 1, target: target.to_string() });
            }
        }
    }
    found
}

/// Returns the path below the root that a link in the document at `from` names; `None` where it leads out of
/// it.
pub(crate) fn resolve(from: &str, file: &str) -> Option<String> {
    if file.is_empty() {
        return Some(from.to_string());
    }
    let mut parts: Vec<&str> = from.split('/').collect();
    parts.pop();
    for part in file.split('/') {
        match part {
            "" | "." => (),
            ".." => drop(parts.pop()?),
            part => parts.push(part),
        }
    }
    Some(parts.join("/"))
}

/// The names by which links know a document's headings: lower case, hyphens for spaces, no punctuation, and a
/// number behind the second of the same name.
fn anchors(text: &str) -> BTreeSet<String> {
    let mut anchors = BTreeSet::new();
    for line in without(text, &[]).lines() {
        let title = line.trim_start_matches('#');
        if title.len() == line.len() || !title.starts_with(' ') {
            continue;
        }
        let name: String = title
            .trim()
            .to_lowercase()
            .chars()
            .filter(|c| c.is_alphanumeric() || [' ', '-', '_'].contains(c))
            .map(|c| if c == ' ' { '-' } else { c })
            .collect();
        let mut names = std::iter::once(name.clone()).chain((1..).map(|n: u32| format!("{name}-{n}")));
        anchors.extend(names.find(|name| !anchors.contains(name)));
    }
    anchors
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source(path: &str, text: &str) -> Source {
        Source { path: path.to_string(), text: text.to_string() }
    }

    /// Returns the problems of this page's links, beside a page with headings.
    fn problems(text: &str) -> Vec<String> {
        let other = source("docs/a/other.md", "# Other\n\n## Two `words`, here\n\n## Again\n\n## Again\n");
        check(&[source("docs/page.md", text), other], &|path| path == "crates/a.rs")
    }

    #[test]
    fn the_documents_link_to_what_is_there() {
        let documents = crate::workspace::load().documents;
        let all: usize = documents.iter().map(|document| links(&document.text).len()).sum();
        assert!(all > 50, "only {all} links were found");
        assert_eq!(check(&documents, &is_there), Vec::<String>::new());
        assert_eq!(check_index(&documents), Vec::<String>::new());
    }

    #[test]
    fn files_that_are_not_there_are_found_with_their_line() {
        assert_eq!(
            problems("See\n[this](none.md)."),
            ["docs/page.md:2 links to none.md, but there is no docs/none.md"]
        );
        assert!(problems("[a](a/other.md) [b](../crates/a.rs \"title\")").is_empty());
        assert_eq!(problems("[a](a/other.md) and [b](../other.md)").len(), 1);
        assert_eq!(problems("[two\nlines](none.md)")[0].split_once(' ').unwrap().0, "docs/page.md:2");
        assert_eq!(problems("> [quoted](none.md)").len(), 1);
        assert_eq!(problems("![picture](none.svg)").len(), 1);
        assert!(problems("[a](../../b.md)")[0].ends_with("which is outside the repository"));
    }

    #[test]
    fn headings_that_are_not_there_are_found() {
        for good in ["other", "two-words-here", "again", "again-1"] {
            assert!(problems(&format!("[a](a/other.md#{good})")).is_empty(), "{good}");
        }
        for bad in ["Other", "two-words", "again-2", ""] {
            assert_eq!(problems(&format!("[a](a/other.md#{bad})")).len(), 1, "{bad}");
        }
        assert!(problems("# Here\n\n[a](#here)").is_empty());
        assert_eq!(
            problems("# Here\n\n[a](#there)"),
            ["docs/page.md:3 links to #there, but docs/page.md has no such heading"]
        );
        // A comment of a shell is no heading, and a word with a hash neither.
        assert_eq!(problems("```\n# Here\n```\n#here\n[a](#here)").len(), 1);
    }

    #[test]
    fn code_and_links_to_elsewhere_are_passed_over() {
        assert!(problems("`[a](none.md)` and\n```\n[a](none.md)\n```\n").is_empty());
        assert!(problems("[a](https://example.org/none.md) [b](mailto:a@example.org)").is_empty());
        assert_eq!(problems("[`code`](none.md)").len(), 1);
    }

    #[test]
    fn the_index_names_every_page_once() {
        let index = |text: &str| {
            check_index(&[source("docs/README.md", text), source("docs/a/b.md", ""), source("README.md", "")])
        };
        assert!(index("[b](a/b.md)").is_empty());
        assert_eq!(index("[c](../README.md)"), ["docs/README.md names docs/a/b.md 0 times: name it once"]);
        assert_eq!(
            index("[b](a/b.md) [b](./a/b.md)"),
            ["docs/README.md names docs/a/b.md 2 times: name it once"]
        );
        assert_eq!(check_index(&[source("README.md", "")]).len(), 1);
    }
}
