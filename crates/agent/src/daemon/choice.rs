//! Choice of the parts of the file system that an added directory is made of, if it is not one whole
//! directory.

use polycast_api::error::{Kind, Refusal};
use polycast_net::archive::{ArchiveError, Glob, Selection, TreeSource};
use std::path::{Path, PathBuf};

/// Paths and patterns that one call may name.
const WORDS_MAX: usize = 65_536;

/// Further paths, and what is left out.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Choice {
    more: Vec<PathBuf>,
    selection: Selection,
}

impl Choice {
    /// Builds the choice that a caller has requested.
    ///
    /// # Errors
    /// A path is not absolute, or a pattern means nothing.
    pub(crate) fn of(more: Vec<PathBuf>, exclude: &[String], follow: bool) -> Result<Self, Refusal> {
        let invalid = |message: String| Refusal::new(Kind::Invalid, message);
        if more.len() + exclude.len() > WORDS_MAX {
            return Err(invalid(format!("these are more than {WORDS_MAX} paths and patterns")));
        }
        if let Some(path) = more.iter().find(|path| !path.is_absolute()) {
            return Err(Refusal::new(Kind::Path, format!("{} is not absolute", path.display())));
        }
        let globs = exclude.iter().map(|text| text.parse::<Glob>());
        let exclude = globs.collect::<Result<_, _>>().map_err(|error| invalid(error.to_string()))?;
        Ok(Choice { more, selection: Selection { exclude, follow } })
    }

    /// Returns true for one whole path.
    pub(crate) fn is_all(&self) -> bool {
        self.more.is_empty() && self.selection == Selection::default()
    }

    /// Returns true if there are several paths.
    pub(crate) fn is_several(&self) -> bool {
        !self.more.is_empty()
    }

    /// The directory that it makes with the first path.
    pub(crate) fn open(&self, first: &Path) -> Result<TreeSource, ArchiveError> {
        if self.is_several() {
            let paths: Vec<PathBuf> = std::iter::once(first.to_path_buf()).chain(self.more.clone()).collect();
            return TreeSource::open_all(&paths, &self.selection);
        }
        TreeSource::open_some(first, &self.selection)
    }
}
