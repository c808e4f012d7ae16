//! Where a received object goes.

use crate::exit::Failure;
use rustix::fs::Access;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// Where an object whose name is not known yet is to go.
#[derive(Debug)]
pub enum Destination {
    /// To exactly this path.
    At(PathBuf),
    /// Into this directory, under its own name.
    Inside(PathBuf),
}

impl Destination {
    /// What the user means by `--out PATH`, checked as far as that can be done beforehand.
    pub fn new(out: &Path) -> Result<Self, Failure> {
        match fs::metadata(out) {
            Ok(metadata) if metadata.is_dir() => {
                writable(out, out)?;
                Ok(Destination::Inside(out.to_path_buf()))
            }
            Ok(metadata) if !metadata.is_file() => {
                Err(Failure::input(format!("cannot write to {}: it is a special file", out.display())))
            }
            Ok(_) => {
                writable(parent_of(out), out)?;
                Ok(Destination::At(out.to_path_buf()))
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                if out.as_os_str().as_encoded_bytes().ends_with(b"/") {
                    return Err(Failure::input(format!("the directory {} does not exist", out.display())));
                }
                writable(parent_of(out), out)?;
                Ok(Destination::At(out.to_path_buf()))
            }
            Err(error) => Err(Failure::path("write to", out, &error)),
        }
    }

    /// Where the object is put while its name is not known.
    pub fn first_path(&self) -> PathBuf {
        match self {
            Destination::At(path) => path.clone(),
            // Always the same, so that a second try finds what the first one left.
            Destination::Inside(directory) => directory.join(".polycast-incoming"),
        }
    }

    /// Gives the object that lies at [`Self::first_path`] its place, now that its name is known.
    pub fn settle(&self, first: &Path, name: &str) -> Result<PathBuf, Failure> {
        match self {
            Destination::At(path) => Ok(path.clone()),
            Destination::Inside(directory) => {
                let settled = plain_name(name).and_then(|name| {
                    let path = directory.join(name);
                    fs::rename(first, &path).map_err(|error| Failure::path("write to", &path, &error))?;
                    Ok(path)
                });
                if settled.is_err() {
                    let _ = fs::remove_file(first).or_else(|_| fs::remove_dir_all(first));
                }
                settled
            }
        }
    }
}

/// The name, if it is one and no path: a source must not choose the directory.
fn plain_name(name: &str) -> Result<&str, Failure> {
    let is_path = name.contains('/') || name.contains('\0');
    if is_path || matches!(name, "" | "." | "..") {
        return Err(Failure::input(format!("the source gives the object the name '{name}', which is none")));
    }
    Ok(name)
}

fn parent_of(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        Some(_) => Path::new("."),
        None => Path::new("/"),
    }
}

/// Says at once what the last rename would say at the end.
fn writable(directory: &Path, out: &Path) -> Result<(), Failure> {
    rustix::fs::access(directory, Access::WRITE_OK | Access::EXEC_OK)
        .map_err(|errno| Failure::path("write to", out, &errno.into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_that_exists_gets_the_object_inside() {
        let place = tempfile::tempdir().unwrap();
        let inside = Destination::new(place.path()).unwrap();
        let first = inside.first_path();
        fs::write(&first, b"x").unwrap();
        assert_eq!(inside.settle(&first, "name").unwrap(), place.path().join("name"));
        assert_eq!(fs::read_dir(place.path()).unwrap().count(), 1);
    }

    #[test]
    fn any_other_path_is_taken_as_it_is() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("new");
        assert_eq!(Destination::new(&path).unwrap().first_path(), path);
        assert!(Destination::new(&place.path().join("missing/new")).is_err());
        assert!(Destination::new(&place.path().join("missing/")).is_err());
        assert!(Destination::new(Path::new("/dev/null")).is_err());
        assert_eq!(Destination::new(Path::new("new")).unwrap().first_path(), Path::new("new"));
    }

    #[test]
    fn names_from_the_source_lead_nowhere_else() {
        let place = tempfile::tempdir().unwrap();
        let inside = Destination::new(place.path()).unwrap();
        for name in ["", ".", "..", "a/b", "/etc/passwd", "../x", "a\0b"] {
            let first = inside.first_path();
            fs::write(&first, b"x").unwrap();
            assert!(inside.settle(&first, name).is_err(), "{name}");
            assert!(!first.exists(), "left behind for {name}");
        }
    }
}
