//! The file or directory that the user named.

use crate::args::place::ChoiceArgs;
use crate::cancel;
use crate::commands::spool::Spool;
use crate::exit::{Exit, Failure};
use crate::output;
use polycast_api::error::Kind;
use polycast_net::archive::{Selection, Skipped, TreeSource, links_out_of};
use polycast_net::object::{FileSource, MODE_USUAL, ObjectKind, ObjectSource, changed_in};
use polycast_net::store::check_name;
use polycast_types::Printable;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// An object to deliver.
pub struct Named {
    /// The last component of its path.
    pub name: String,
    /// File or directory.
    pub kind: ObjectKind,
    /// Its bytes.
    pub source: Arc<dyn ObjectSource>,
    /// File of the bytes, if they have come from standard input.
    pub(crate) spool: Option<Spool>,
}

/// Name of an object from standard input.
const STDIN_NAME: &str = "stdin";
/// Name of several paths that do not lie in one directory.
const SEVERAL_NAME: &str = "files";
/// Things that are left out and named.
const SKIPPED_NAMED: usize = 8;

/// Way to read a file that a program writes to: as it is now, where its file system can do that, or in place.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Reading {
    /// It is: this process sends it.
    AsItIs,
    /// Another process reads it, too: both see the same.
    InPlace,
}

/// Opens a file or a directory for delivery; `-` is standard input, which is read to its end first.
pub fn open(path: &Path, follow: bool, reading: Reading) -> Result<Named, Failure> {
    let selection = Selection { exclude: Vec::new(), follow };
    open_one(path, None, &selection, reading)
}

fn open_one(
    path: &Path,
    called: Option<&str>,
    selection: &Selection,
    reading: Reading,
) -> Result<Named, Failure> {
    if path.as_os_str() == "-" {
        let spool = Spool::of_stdin()?;
        let at = spool.path();
        let source = FileSource::open(&at).map_err(|error| Failure::path("read", &at, &error))?;
        return Ok(Named {
            name: called.unwrap_or(STDIN_NAME).into(),
            kind: ObjectKind::File,
            source: Arc::new(source.with_mode(MODE_USUAL).with_time(None)),
            spool: Some(spool),
        });
    }
    let kind = kind_of(path)?;
    let name = called.map_or_else(|| name_of(path), |called| Ok(called.to_string()))?;
    if kind == ObjectKind::Directory {
        return Ok(directory(name, TreeSource::open_some(path, selection)?, selection));
    }
    let source = match reading {
        Reading::AsItIs => FileSource::open_as_it_is(path),
        Reading::InPlace => FileSource::open(path),
    };
    let source = Arc::new(source.map_err(|error| Failure::path("read", path, &error))?);
    Ok(Named { name, kind, source, spool: None })
}

/// Opens what the user has chosen; what has no bytes to deliver is left out, and named.
pub(crate) fn open_chosen(choice: &ChoiceArgs, reading: Reading) -> Result<Named, Failure> {
    let selection = Selection { exclude: choice.exclude.clone(), follow: choice.read.follow };
    let called = choice.name.as_deref();
    match &choice.paths[..] {
        [path] => open_one(path, called, &selection, reading),
        several => {
            if several.iter().any(|path| path.as_os_str() == "-") {
                return Err(Failure::input("standard input is an object of its own: name no path beside -"));
            }
            for path in several {
                kind_of(path)?;
            }
            let name = called.map_or_else(|| name_of_all(several), str::to_string);
            Ok(directory(name, TreeSource::open_all(several, &selection)?, &selection))
        }
    }
}

/// Delivers, and begins again with what is there by then where that was changed meanwhile: `retries` times at
/// most. `deliver` gets the object, and how many times may follow.
pub fn deliver_unchanged(
    retries: u32,
    mut open: impl FnMut() -> Result<Named, Failure>,
    mut deliver: impl FnMut(Named, u32) -> Result<Exit, Failure>,
) -> Result<Exit, Failure> {
    let mut left = retries;
    loop {
        let object = open()?;
        let source = Arc::clone(&object.source);
        let outcome = deliver(object, left);
        if outcome.is_ok() || left == 0 || cancel::is_asked() {
            return outcome;
        }
        let Some(failure) = changed(&*source) else { return outcome };
        output::say(&format!(
            "{}: beginning again, time {} of {retries}",
            failure.message,
            retries - left + 1
        ));
        left -= 1;
    }
}

/// Returns a failure if an object was changed since it was opened.
pub fn changed(source: &dyn ObjectSource) -> Option<Failure> {
    let error = source.check().err()?;
    changed_in(&error).map(|changed| Failure::of(Kind::TransferFailed, changed.to_string()))
}

fn directory(name: String, tree: TreeSource, selection: &Selection) -> Named {
    say_skipped(&tree, selection);
    Named { name, kind: ObjectKind::Directory, source: Arc::new(tree), spool: None }
}

/// Names what is left out of a directory since it has no bytes, and the links that lead to what is not sent.
fn say_skipped(tree: &TreeSource, selection: &Selection) {
    for Skipped { path, what } in tree.skipped().iter().take(SKIPPED_NAMED) {
        output::say(&format!("left out: {} is {what}", path.display()));
    }
    if let Some(more) = tree.skipped().len().checked_sub(SKIPPED_NAMED).filter(|more| *more > 0) {
        output::say(&format!("left out: {more} more pipes, sockets and devices"));
    }
    let links = tree.links_out();
    if !links.is_empty() {
        let what = match selection.follow {
            true => "receivers get the links",
            false => "receivers get the links alone, and with --follow what they lead to",
        };
        output::say(&format!("not sent: {links}; {what}"));
    }
}

/// Names the links of a directory that has come which lead to what has not come with it.
pub fn say_links(directory: &Path) {
    let links = links_out_of(directory);
    if !links.is_empty() {
        output::say(&format!(
            "{}: {links}; with --follow its source sends what they lead to",
            directory.display()
        ));
    }
}

/// Several paths together are called as the directory that they all lie in.
fn name_of_all(paths: &[PathBuf]) -> String {
    let parent = |path: &PathBuf| path.canonicalize().ok()?.parent().map(Path::to_path_buf);
    let first = parent(&paths[0]);
    let common = first.filter(|first| paths.iter().all(|path| parent(path).as_ref() == Some(first)));
    let name = common.as_deref().and_then(Path::file_name).and_then(OsStr::to_str).map(str::to_string);
    name.filter(|name| check_name(name).is_ok()).unwrap_or_else(|| SEVERAL_NAME.into())
}

/// Returns the kind of object at `path`, checked before it is opened, as opening a named pipe would block
/// without an end.
pub fn kind_of(path: &Path) -> Result<ObjectKind, Failure> {
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
    Err(Failure::place(format!("{} is {what}: only files and directories can be delivered", path.display())))
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
    let odd = || {
        let name = name.to_string_lossy();
        let message = format!(
            "{} cannot be sent under its own name, '{}': it is not UTF-8",
            path.display(),
            Printable(&name)
        );
        Failure::input(message)
            .hint("rename it, say --as where there is one, or send the directory that it lies in")
    };
    name.to_str().map(str::to_string).ok_or_else(odd)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::ffi::OsStrExt;

    #[test]
    fn names_are_the_last_component() {
        assert_eq!(name_of(Path::new("a/b.txt")).unwrap(), "b.txt");
        assert_eq!(name_of(Path::new("a/b/")).unwrap(), "b");
        assert_eq!(name_of(Path::new("/")).unwrap(), "root");
        let here = std::env::current_dir().unwrap();
        assert_eq!(name_of(Path::new(".")).unwrap(), here.file_name().unwrap().to_str().unwrap());
    }

    #[test]
    fn a_name_that_is_no_text_is_refused_and_never_changed() {
        let folder = tempfile::tempdir().unwrap();
        let odd = folder.path().join(OsStr::from_bytes(b"caf\xe9"));
        fs::create_dir(&odd).unwrap();
        fs::write(odd.join(OsStr::from_bytes(b"\xe9.bin")), b"bytes").unwrap();
        for path in [&odd, &odd.join(OsStr::from_bytes(b"\xe9.bin"))] {
            let failure = open(path, false, Reading::InPlace).err().unwrap();
            assert!(failure.message.contains("it is not UTF-8"), "{}", failure.message);
            let named = open_one(path, Some("cafe"), &Selection::default(), Reading::InPlace).ok().unwrap();
            assert_eq!(named.name, "cafe");
        }
        // Of several paths the directory's name is only a guess.
        assert_eq!(name_of_all(&[odd.join("a"), odd.join("b")]), SEVERAL_NAME);
    }

    /// A file that a program writes to until it has been read so many times.
    #[test]
    fn what_changes_is_sent_again_as_often_as_was_said() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        for (retries, changes, done) in [(0, 1, false), (1, 1, true), (2, 3, false), (3, 0, true)] {
            fs::write(&path, b"0").unwrap();
            let mut times = 0;
            let outcome = deliver_unchanged(
                retries,
                || open(&path, false, Reading::InPlace),
                |object, left| {
                    assert_eq!(left, retries - times);
                    times += 1;
                    if times > changes {
                        return Ok(Exit::Done);
                    }
                    fs::write(&path, times.to_string().repeat(5 + times as usize)).unwrap();
                    object.source.check().map_err(|error| Failure::input(error.to_string()))?;
                    panic!("the change was not seen");
                },
            );
            assert_eq!((outcome.is_ok(), times), (done, (changes + u32::from(done)).min(retries + 1)));
        }
        // What fails for another reason is not tried again.
        let mut times = 0;
        let outcome = deliver_unchanged(
            5,
            || open(&path, false, Reading::InPlace),
            |_, _| {
                times += 1;
                Err(Failure::input("no receiver came"))
            },
        );
        assert_eq!((outcome.unwrap_err().message.as_str(), times), ("no receiver came", 1));
    }

    #[test]
    fn special_files_are_named() {
        let failure = open(Path::new("/dev/null"), false, Reading::InPlace).err().unwrap();
        assert!(failure.message.contains("/dev/null is a device"), "{}", failure.message);
        let failure = open(Path::new("/no/such"), false, Reading::InPlace).err().unwrap();
        assert_eq!(failure.message, "cannot read /no/such: no such file or directory");
    }
}
