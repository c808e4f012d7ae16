//! Where the user wants an object.

use crate::exit::Failure;
use rustix::fs::Access;
use std::fs;
use std::io;
use std::path::Path;

/// Says at once what would otherwise be said when all bytes have come: that `out` cannot be written.
///
/// A directory that exists gets the object inside; any other path becomes the object.
pub fn check(out: &Path) -> Result<(), Failure> {
    match fs::metadata(out) {
        Ok(metadata) if metadata.is_dir() => writable(out, out),
        Ok(metadata) if metadata.is_file() => writable(parent_of(out), out),
        Ok(_) => Err(Failure::input(format!("cannot write to {}: it is a special file", out.display()))),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            if out.as_os_str().as_encoded_bytes().ends_with(b"/") {
                return Err(Failure::input(format!("the directory {} does not exist", out.display())));
            }
            writable(parent_of(out), out)
        }
        Err(error) => Err(Failure::path("write to", out, &error)),
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
        for path in [place.path().to_path_buf(), place.path().join("new"), place.path().join("file")] {
            check(&path).unwrap();
        }
        check(Path::new("new")).unwrap();
    }

    #[test]
    fn other_paths_are_refused() {
        let place = tempfile::tempdir().unwrap();
        fs::write(place.path().join("file"), b"x").unwrap();
        for path in ["missing/new", "missing/", "file/new"] {
            let failure = check(&place.path().join(path)).unwrap_err();
            assert!(failure.message.contains(path), "{}", failure.message);
        }
        check(Path::new("/dev/null")).unwrap_err();
    }
}
