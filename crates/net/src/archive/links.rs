//! Symbolic links that lead out of a directory: at a receiver nothing, or something else, is where they lead
//! to.

use polycast_types::Printable;
use rustix::io::Errno;
use std::ffi::OsStr;
use std::fmt;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// Links that are named.
const NAMED_MAX: usize = 1_000;
/// Links that one sentence names.
const SHOWN_MAX: usize = 3;

/// A link that leads to nothing that travels.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LinkOut {
    /// Its path, below the directory.
    pub path: PathBuf,
    /// Target of the link, as the link gives it.
    pub target: PathBuf,
    /// Set if nothing is at the target.
    pub dangles: bool,
}

/// Such links of one directory.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct LinksOut {
    /// Number of links.
    pub count: u64,
    /// The first of them that were found.
    pub first: Vec<LinkOut>,
}

impl LinksOut {
    /// Returns true if there are no links.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Takes in a link below the directory, at `path`, if it leads out; `roots` are directories by their own
    /// paths, without links.
    pub(super) fn look(&mut self, name: &[u8], target: &[u8], path: &Path, roots: &[PathBuf]) {
        match lead(path, roots) {
            Leads::Within if stays_within(name, target) => {}
            Leads::Within | Leads::Out => self.note(name, target, false),
            Leads::Nowhere => self.note(name, target, true),
        }
    }

    fn note(&mut self, name: &[u8], target: &[u8], dangles: bool) {
        self.count += 1;
        if self.first.len() < NAMED_MAX {
            let [path, target] = [name, target].map(|bytes| PathBuf::from(OsStr::from_bytes(bytes)));
            self.first.push(LinkOut { path, target, dangles });
        }
    }
}

impl fmt::Display for LinksOut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.count {
            1 => write!(f, "a link leads to what is not in the directory: ")?,
            count => write!(f, "{count} links lead to what is not in the directory: ")?,
        }
        for (at, link) in self.first.iter().take(SHOWN_MAX).enumerate() {
            let [path, target] = [&link.path, &link.target].map(|path| path.to_string_lossy());
            let comma = if at > 0 { ", " } else { "" };
            write!(f, "{comma}{} -> {}", Printable(&path), Printable(&target))?;
            if link.dangles {
                write!(f, " (nothing is there)")?;
            }
        }
        if self.count > SHOWN_MAX as u64 { write!(f, " and others") } else { Ok(()) }
    }
}

/// Finds the links that lead out of a local directory, as far as it can be read.
#[must_use]
pub fn links_out_of(directory: &Path) -> LinksOut {
    let mut links = LinksOut::default();
    let roots: Vec<PathBuf> = fs::canonicalize(directory).into_iter().collect();
    let mut pending = vec![PathBuf::new()];
    while let Some(below) = pending.pop() {
        let mut items: Vec<_> =
            fs::read_dir(directory.join(&below)).into_iter().flatten().flatten().collect();
        items.sort_unstable_by_key(fs::DirEntry::file_name);
        for item in items {
            let (path, name) = (item.path(), below.join(item.file_name()));
            let Ok(kind) = item.file_type() else { continue };
            if kind.is_dir() {
                pending.push(name);
            } else if kind.is_symlink()
                && let Ok(target) = fs::read_link(&path)
            {
                links.look(name.as_os_str().as_bytes(), target.as_os_str().as_bytes(), &path, &roots);
            }
        }
    }
    links
}

/// Returns true if a link leads to something below the directory, judged by its target alone: `name` is its
/// path there.
fn stays_within(name: &[u8], target: &[u8]) -> bool {
    if target.first() == Some(&b'/') {
        return false;
    }
    let mut depth = name.iter().filter(|byte| **byte == b'/').count();
    for part in target.split(|byte| *byte == b'/') {
        match part {
            b"" | b"." => {}
            b".." if depth == 0 => return false,
            b".." => depth -= 1,
            _ => depth += 1,
        }
    }
    true
}

/// End of a link in the file system.
enum Leads {
    /// Below one of these directories.
    Within,
    /// Elsewhere.
    Out,
    /// At nothing.
    Nowhere,
}

/// Finds the end of the link at `path`.
fn lead(path: &Path, roots: &[PathBuf]) -> Leads {
    match fs::canonicalize(path) {
        Ok(end) if roots.iter().any(|root| end.starts_with(root)) => Leads::Within,
        Ok(_) => Leads::Out,
        Err(error) if leads_nowhere(&error) => Leads::Nowhere,
        // What may not be looked at is there, and not here.
        Err(_) => Leads::Out,
    }
}

/// Returns true if a link was not followed because nothing is at its end, or because links lead in a circle.
pub(super) fn leads_nowhere(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) || goes_round(error)
}

fn goes_round(error: &io::Error) -> bool {
    Errno::from_io_error(error) == Some(Errno::LOOP)
}

/// Returns true if the link at `path` was not followed because its path leads through too many others: the
/// system takes that for a circle.
pub(super) fn leads_too_far(path: &Path, error: &io::Error) -> bool {
    let (Some(folder), Some(name)) = (path.parent(), path.file_name()) else { return false };
    // By a path without links to where it lies, only a circle of its own is one.
    let is_circle = |folder: PathBuf| fs::metadata(folder.join(name)).is_err_and(|error| goes_round(&error));
    goes_round(error) && !fs::canonicalize(folder).is_ok_and(is_circle)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_are_within_or_not() {
        for (name, target, within) in [
            ("a", "b", true),
            ("a", "../b", false),
            ("d/a", "../b", true),
            ("d/a", "../../b", false),
            ("d/e/a", "./../x/../../b", true),
            ("d/e/a", "/b", false),
            ("a", "d/../..", false),
            ("a", "..", false),
        ] {
            assert_eq!(stays_within(name.as_bytes(), target.as_bytes()), within, "{name} -> {target}");
        }
    }

    #[test]
    fn their_sentence_names_the_first_and_their_number() {
        let mut links = LinksOut::default();
        links.note(b"a", b"../x", false);
        assert_eq!(links.to_string(), "a link leads to what is not in the directory: a -> ../x");
        for name in ["b", "c", "d"] {
            links.note(name.as_bytes(), b"/x\n", true);
        }
        let said = links.to_string();
        assert!(said.starts_with("4 links lead to") && said.ends_with("and others"), "{said}");
        assert!(said.contains("(nothing is there)") && !said.contains('\n'), "{said}");
    }
}
