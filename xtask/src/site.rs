//! `cargo xtask site`: makes a site with a search out of the documents, with mdBook, and checks that its
//! links lead somewhere.
//!
//! The pages are those of `docs/`, listed in the order in which `docs/README.md` names them. Links that lead
//! out of `docs/` go to the repository, where the files are.

use crate::links::{INDEX, INDEXED, resolve};
use crate::python::must;
use crate::workspace::{self, Source};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

/// The program that makes the pages.
pub(crate) const MDBOOK: &str = "mdbook";
/// Endings of files below `docs/` that no page of the site shows.
const LEFT_OUT: [&str; 2] = ["py", "json"];
/// A page of mdBook's own for addresses that are not there: its links begin at the root of a server.
const NOT_FOUND: &str = "404.html";
const FENCE: &str = "```";

/// Runs the task.
pub(crate) fn run(arguments: &[String]) -> ExitCode {
    let done = match arguments {
        [] => build(),
        _ => Err("`cargo xtask site` takes nothing".to_string()),
    };
    match done {
        Ok(pages) => {
            println!("{}: {pages} pages", workspace::target().join("site/book/index.html").display());
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Makes the site; gives how many pages it has.
fn build() -> Result<usize, String> {
    let (root, folder) = (workspace::root(), workspace::target().join("site"));
    let documents = workspace::load().documents;
    let repository = repository()?;
    let source = folder.join("src");
    let _ = fs::remove_dir_all(&folder);
    copy(&root.join(INDEXED), &source)?;
    for Source { path, text } in documents.iter().filter(|page| page.path.starts_with(INDEXED)) {
        let is_folder = |path: &str| root.join(path).is_dir();
        let page = with_links_out(path, text, &repository, &is_folder);
        write(&source.join(&path[INDEXED.len()..]), &page)?;
    }
    write(&source.join("SUMMARY.md"), &summary(&documents)?)?;
    let settings = "book.toml";
    fs::rename(source.join(settings), folder.join(settings)).map_err(|e| format!("{settings}: {e}"))?;
    must(Command::new(MDBOOK).arg("build").arg(&folder).env("MDBOOK_LOG", "warn"))?;
    let pages = pages(&folder.join("book"))?;
    let problems = check(&pages, &|path| folder.join("book").join(path).is_file());
    if problems.is_empty() { Ok(pages.len()) } else { Err(problems.join("\n")) }
}

/// The repository's address on the web.
fn repository() -> Result<String, String> {
    let manifest = workspace::load_manifest();
    let named = manifest["workspace"]["package"].get("repository").and_then(|value| value.as_str());
    named.map(String::from).ok_or_else(|| "Cargo.toml names no repository".to_string())
}

/// Copies a folder with all that is in it, without what no page shows.
fn copy(from: &Path, to: &Path) -> Result<(), String> {
    let failed = |error: std::io::Error| format!("cannot copy {}: {error}", from.display());
    fs::create_dir_all(to).map_err(failed)?;
    for entry in fs::read_dir(from).map_err(failed)? {
        let path = entry.map_err(failed)?.path();
        let place = to.join(path.file_name().unwrap_or_default());
        if path.is_dir() {
            copy(&path, &place)?;
        } else if path.extension().is_none_or(|ending| LEFT_OUT.iter().all(|out| ending != *out)) {
            fs::copy(&path, &place).map_err(failed)?;
        }
    }
    Ok(())
}

fn write(path: &Path, text: &str) -> Result<(), String> {
    fs::write(path, text).map_err(|error| format!("cannot write {}: {error}", path.display()))
}

/// The pages in the order of the index, by its headings: what mdBook lists at the side.
fn summary(documents: &[Source]) -> Result<String, String> {
    let text_of = |path: &str| documents.iter().find(|page| page.path == path).map(|page| page.text.as_str());
    let index = text_of(INDEX).ok_or_else(|| format!("there is no {INDEX}"))?;
    let mut summary = String::from("# Polycast\n\n[What to read](README.md)\n");
    for line in index.lines() {
        if let Some(heading) = line.strip_prefix("## ") {
            summary += &format!("\n# {heading}\n\n");
        }
        for target in targets(line) {
            let page = resolve(INDEX, target).filter(|path| path.starts_with(INDEXED));
            let Some((page, text)) = page.and_then(|page| Some((page.clone(), text_of(&page)?))) else {
                continue;
            };
            let title = text.lines().find_map(|line| line.strip_prefix("# ")).unwrap_or(target);
            summary += &format!("- [{title}]({})\n", &page[INDEXED.len()..]);
        }
    }
    Ok(summary)
}

/// Returns the targets of the links of a line.
fn targets(line: &str) -> impl Iterator<Item = &str> {
    line.split("](").skip(1).filter_map(|rest| rest.split(')').next())
}

/// A page whose links out of `docs/` lead to the repository. Blocks of code stay as they are.
fn with_links_out(path: &str, text: &str, repository: &str, is_folder: &dyn Fn(&str) -> bool) -> String {
    let mut is_code = false;
    let mut page = String::with_capacity(text.len());
    for line in text.lines() {
        is_code ^= line.trim_start().starts_with(FENCE);
        let mut parts = line.split("](");
        page += parts.next().unwrap_or_default();
        for part in parts {
            let target = part.split(')').next().unwrap_or_default();
            let (file, heading) =
                target.split_once('#').map_or((target, ""), |(file, heading)| (file, heading));
            // Folders have no page of their own.
            let is_out = |to: &String| !is_code && (!to.starts_with(INDEXED) || is_folder(to));
            let out = resolve(path, file).filter(is_out);
            page += "](";
            match out.filter(|_| !target.contains("://") && !target.starts_with("mailto:")) {
                Some(to) => {
                    let kind = if is_folder(&to) { "tree" } else { "blob" };
                    let heading = if heading.is_empty() { String::new() } else { format!("#{heading}") };
                    page += &format!("{repository}/{kind}/main/{to}{heading}{}", &part[target.len()..]);
                }
                None => page += part,
            }
        }
        page.push('\n');
    }
    page
}

/// The pages of the site by their paths in it, which have `/` between folders.
fn pages(book: &Path) -> Result<BTreeMap<String, String>, String> {
    fn walk(folder: &Path, into: &mut Vec<PathBuf>) -> std::io::Result<()> {
        for entry in fs::read_dir(folder)? {
            let path = entry?.path();
            if path.is_dir() {
                walk(&path, into)?;
            } else if path.extension().is_some_and(|ending| ending == "html") {
                into.push(path);
            }
        }
        Ok(())
    }
    let failed = |error: std::io::Error| format!("cannot read {}: {error}", book.display());
    let mut paths = Vec::new();
    walk(book, &mut paths).map_err(failed)?;
    let mut pages = BTreeMap::new();
    for path in paths {
        let name = path.strip_prefix(book).unwrap_or(&path).to_string_lossy().into_owned();
        if name != NOT_FOUND {
            pages.insert(name, fs::read_to_string(&path).map_err(failed)?);
        }
    }
    Ok(pages)
}

/// Every link of the site that leads nowhere, one sentence each.
fn check(pages: &BTreeMap<String, String>, is_there: &dyn Fn(&str) -> bool) -> Vec<String> {
    let names: BTreeMap<&str, BTreeSet<&str>> =
        pages.iter().map(|(path, text)| (path.as_str(), values(text, "id").collect())).collect();
    let mut problems = BTreeSet::new();
    for (path, text) in pages {
        for target in values(text, "href").chain(values(text, "src")) {
            let is_elsewhere = [":", "//"].iter().any(|mark| target.contains(mark));
            if target.is_empty() || is_elsewhere {
                continue;
            }
            let (file, heading) = target.split_once('#').unwrap_or((target, ""));
            let to = resolve(path, file.split('?').next().unwrap_or_default());
            let Some(to) = to.filter(|to| names.contains_key(to.as_str()) || is_there(to)) else {
                problems.insert(format!("the page {path} links to {target}, which the site does not have"));
                continue;
            };
            let known = names.get(to.as_str());
            if !heading.is_empty() && known.is_some_and(|known| !known.contains(heading)) {
                problems.insert(format!("the page {path} links to {target}, but {to} has no such heading"));
            }
        }
    }
    problems.into_iter().collect()
}

/// The values that an attribute has in a page.
fn values<'a>(text: &'a str, attribute: &str) -> impl Iterator<Item = &'a str> {
    let begin = format!(" {attribute}=\"");
    let parts: Vec<&str> = text.split(begin.as_str()).skip(1).collect();
    parts.into_iter().filter_map(|rest| rest.split('"').next())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source(path: &str, text: &str) -> Source {
        Source { path: path.to_string(), text: text.to_string() }
    }

    #[test]
    fn the_site_lists_every_page_below_the_headings_of_the_index() {
        let pages = [
            source(
                INDEX,
                "# Documents\n\n## Use\n\n| a | [a/b.md](a/b.md), [x](../X.md) |\n\n## More\n\n[c](c.md)\n",
            ),
            source("docs/a/b.md", "# Title of b\n"),
            source("docs/c.md", "# C\n"),
            source("X.md", "# X\n"),
        ];
        assert_eq!(
            summary(&pages).unwrap(),
            "# Polycast\n\n[What to read](README.md)\n\n# Use\n\n- [Title of b](a/b.md)\n\n# More\n\n- [C](c.md)\n"
        );
        let documents = workspace::load().documents;
        let listed = summary(&documents).unwrap();
        let of_docs = documents.iter().filter(|page| page.path.starts_with(INDEXED));
        assert_eq!(listed.matches("- [").count(), of_docs.count() - 1, "{listed}");
    }

    #[test]
    fn links_out_of_the_documents_lead_to_the_repository() {
        let page = |text: &str| with_links_out("docs/a/b.md", text, "https://r", &|path| path == "examples");
        assert_eq!(
            page("[x](../../X.md#h) and [y](c.md#d)"),
            "[x](https://r/blob/main/X.md#h) and [y](c.md#d)\n"
        );
        assert_eq!(page("![x](../../examples)."), "![x](https://r/tree/main/examples).\n");
        for same in
            ["[a](https://x.org/../..)", "[a](mailto:a@x.org)", "[a](#b)", "```\n[x](../../X.md)\n```"]
        {
            assert_eq!(page(same), format!("{same}\n"));
        }
    }

    #[test]
    fn folders_are_shown_by_the_repository() {
        let page = with_links_out("docs/a.md", "[x](b)", "https://r", &|path| path == "docs/b");
        assert_eq!(page, "[x](https://r/tree/main/docs/b)\n");
    }

    #[test]
    fn links_that_lead_nowhere_are_found() {
        let pages = |text: &str| {
            let other = "<h1 id=\"here\">".to_string();
            BTreeMap::from([("a/b.html".to_string(), text.to_string()), ("c.html".to_string(), other)])
        };
        let problems = |text: &str| check(&pages(text), &|path| path == "logo.svg").len();
        for good in
            ["../c.html#here", "../c.html", "https://x.org", "../logo.svg", "../logo.svg?v=1", "data:x"]
        {
            assert_eq!(problems(&format!("<a href=\"{good}\">")), 0, "{good}");
        }
        for bad in ["c.html", "../c.html#there", "../none.svg", "../../c.html", "#there"] {
            assert_eq!(problems(&format!("<img src=\"{bad}\">")), 1, "{bad}");
        }
    }
}
