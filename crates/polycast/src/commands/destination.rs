//! Where the user wants an object.

use crate::exit::Failure;
use polycast_net::store::{check_name, check_target};
use polycast_types::Printable;
use rustix::fs::Access;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// Says at once what would otherwise be said when all bytes have come: that `out` cannot be written.
///
/// A directory that exists gets the object inside; any other path becomes the object. What is there stays, unless it is to
/// be replaced.
pub fn check(out: &Path, replace: bool) -> Result<(), Failure> {
    match fs::metadata(out) {
        Ok(metadata) if metadata.is_dir() => writable(out, out),
        Ok(metadata) if metadata.is_file() => {
            check_target(out, replace).map_err(|error| Failure::input(error.to_string()))?;
            writable(parent_of(out), out)
        }
        Ok(_) => Err(Failure::input(format!("cannot write to {}: it is a special file", out.display()))),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            if out.as_os_str().as_encoded_bytes().ends_with(b"/") {
                return Err(Failure::input(format!("the directory {} does not exist", out.display())));
            }
            // A link that leads nowhere is there, too.
            check_target(out, replace).map_err(|error| Failure::input(error.to_string()))?;
            writable(parent_of(out), out)
        }
        Err(error) => Err(Failure::path("write to", out, &error)),
    }
}

/// The path that an object of this name gets below `out`, or `out` itself.
pub fn path_of(out: &Path, name: &str) -> Result<PathBuf, Failure> {
    if !out.is_dir() {
        return Ok(out.to_path_buf());
    }
    // The name comes from another machine.
    match check_name(name) {
        Ok(()) => Ok(out.join(name)),
        Err(why) => {
            let message = format!("the object's name '{}' {why}", Printable(name));
            Err(Failure::input(message).hint("say with --out what to call it"))
        }
    }
}

fn parent_of(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if parent.as_os_str().is_empty() => Path::new("."),
        Some(parent) => parent,
        None => Path::new("/"),
    }
}

fn writable(directory: &Path, out: &Path) -> Result<(), Failure> {
    rustix::fs::access(directory, Access::WRITE_OK | Access::EXEC_OK)
        .map_err(|errno| Failure::path("write to", out, &errno.into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_that_can_be_written_are_fine() {
        let place = tempfile::tempdir().unwrap();
        fs::write(place.path().join("file"), b"x").unwrap();
        for path in [place.path().to_path_buf(), place.path().join("new")] {
            check(&path, false).unwrap();
        }
        check(&place.path().join("file"), true).unwrap();
        check(Path::new("new"), false).unwrap();
    }

    #[test]
    fn other_paths_are_refused() {
        let place = tempfile::tempdir().unwrap();
        fs::write(place.path().join("file"), b"x").unwrap();
        std::os::unix::fs::symlink("nowhere", place.path().join("link")).unwrap();
        for path in ["missing/new", "missing/", "file/new", "file", "link"] {
            let failure = check(&place.path().join(path), false).unwrap_err();
            assert!(failure.message.contains(path), "{}", failure.message);
        }
        check(Path::new("/dev/null"), true).unwrap_err();
        assert!(path_of(place.path(), ".bashrc").unwrap_err().message.contains("begins with a dot"));
        assert_eq!(path_of(Path::new("new"), ".bashrc").unwrap(), Path::new("new"));
    }
}
