//! The file or directory that the user named.

use crate::args::place::ChoiceArgs;
use crate::commands::spool::Spool;
use crate::exit::Failure;
use crate::output;
use polycast_net::archive::{Skipped, TreeSource};
use polycast_net::object::{FileSource, MODE_USUAL, ObjectKind, ObjectSource};
use polycast_net::store::check_name;
use std::fs;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// An object to deliver.
pub(crate) struct Named {
    /// The last component of its path.
    pub name: String,
    /// File or directory.
    pub kind: ObjectKind,
    /// Its bytes.
    pub source: Arc<dyn ObjectSource>,
    /// Where they lie, if they have come from standard input.
    pub spool: Option<Spool>,
}

/// What an object from standard input is called.
const STDIN_NAME: &str = "stdin";
/// What several paths are called that do not lie in one directory.
const SEVERAL_NAME: &str = "files";
/// Things that are left out and named.
const SKIPPED_NAMED: usize = 8;

/// Opens a file or a directory for delivery; `-` is standard input, which is read to its end first.
pub(crate) fn open(path: &Path) -> Result<Named, Failure> {
    if path.as_os_str() == "-" {
        let spool = Spool::of_stdin()?;
        let at = spool.path();
        let source = FileSource::open(&at).map_err(|error| Failure::path("read", &at, &error))?;
        return Ok(Named {
            name: STDIN_NAME.into(),
            kind: ObjectKind::File,
            source: Arc::new(source.with_mode(MODE_USUAL).with_time(None)),
            spool: Some(spool),
        });
    }
    let kind = kind_of(path)?;
    let source: Arc<dyn ObjectSource> = match kind {
        ObjectKind::Directory => return Ok(directory(name_of(path)?, TreeSource::open(path)?)),
        ObjectKind::File | ObjectKind::Set => {
            Arc::new(FileSource::open(path).map_err(|error| Failure::path("read", path, &error))?)
        }
    };
    Ok(Named { name: name_of(path)?, kind, source, spool: None })
}

/// Opens what the user has chosen; what has no bytes to deliver is left out, and named.
pub(crate) fn open_chosen(choice: &ChoiceArgs) -> Result<Named, Failure> {
    let mut named = match &choice.paths[..] {
        [path] if choice.exclude.is_empty() || path.as_os_str() == "-" => open(path)?,
        [path] if kind_of(path)? == ObjectKind::File => open(path)?,
        [path] => {
            let name = name_of(path)?;
            directory(name, TreeSource::open_without(path, &choice.exclude)?)
        }
        several => {
            if several.iter().any(|path| path.as_os_str() == "-") {
                return Err(Failure::input("standard input is an object of its own: name no path beside -"));
            }
            for path in several {
                kind_of(path)?;
            }
            directory(name_of_all(several), TreeSource::open_all(several, &choice.exclude)?)
        }
    };
    if let Some(name) = &choice.name {
        named.name.clone_from(name);
    }
    Ok(named)
}

fn directory(name: String, tree: TreeSource) -> Named {
    say_skipped(&tree);
    Named { name, kind: ObjectKind::Directory, source: Arc::new(tree), spool: None }
}

/// Names what is left out of a directory since it has no bytes.
fn say_skipped(tree: &TreeSource) {
    for Skipped { path, what } in tree.skipped().iter().take(SKIPPED_NAMED) {
        output::say(&format!("left out: {} is {what}", path.display()));
    }
    if let Some(more) = tree.skipped().len().checked_sub(SKIPPED_NAMED).filter(|more| *more > 0) {
        output::say(&format!("left out: {more} more pipes, sockets and devices"));
    }
}

/// Several paths together are called as the directory that they all lie in.
fn name_of_all(paths: &[PathBuf]) -> String {
    let parent = |path: &PathBuf| path.canonicalize().ok()?.parent().map(Path::to_path_buf);
    let first = parent(&paths[0]);
    let common = first.filter(|first| paths.iter().all(|path| parent(path).as_ref() == Some(first)));
    let name = common.as_deref().and_then(Path::file_name).map(|name| name.to_string_lossy().into_owned());
    name.filter(|name| check_name(name).is_ok()).unwrap_or_else(|| SEVERAL_NAME.into())
}

/// What lies at `path`: looked at before it is opened, as opening a named pipe would block without an end.
pub(crate) fn kind_of(path: &Path) -> Result<ObjectKind, Failure> {
    let metadata = fs::metadata(path).map_err(|error| Failure::path("read", path, &error))?;
    let file_type = metadata.file_type();
    if file_type.is_dir() {
        return Ok(ObjectKind::Directory);
    }
    if file_type.is_file() {
        return Ok(ObjectKind::File);
    }
    let what = if file_type.is_fifo() {
        "a named pipe"
    } else if file_type.is_socket() {
        "a socket"
    } else {
        "a device"
    };
    Err(Failure::input(format!("{} is {what}: only files and directories can be delivered", path.display())))
}

/// The name that receivers see; `.` and `..` have one too.
fn name_of(path: &Path) -> Result<String, Failure> {
    let resolved;
    let name = match path.file_name() {
        Some(name) => name,
        None => {
            resolved = path.canonicalize().map_err(|error| Failure::path("read", path, &error))?;
            resolved.file_name().unwrap_or("root".as_ref())
        }
    };
    Ok(name.to_string_lossy().into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_the_last_component() {
        assert_eq!(name_of(Path::new("a/b.txt")).unwrap(), "b.txt");
        assert_eq!(name_of(Path::new("a/b/")).unwrap(), "b");
        assert_eq!(name_of(Path::new("/")).unwrap(), "root");
        let here = std::env::current_dir().unwrap();
        assert_eq!(name_of(Path::new(".")).unwrap(), here.file_name().unwrap().to_str().unwrap());
    }

    #[test]
    fn special_files_are_named() {
        let failure = open(Path::new("/dev/null")).err().unwrap();
        assert!(failure.message.contains("/dev/null is a device"), "{}", failure.message);
        let failure = open(Path::new("/no/such")).err().unwrap();
        assert_eq!(failure.message, "cannot read /no/such: no such file or directory");
    }
}
