//! The shared libraries of a program, as its loader finds them here.

use crate::exit::{Failure, plain};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A folder with links to the libraries, which goes away with this.
pub(super) struct Libraries(pub(super) PathBuf);

impl Drop for Libraries {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

impl Libraries {
    /// Finds those that are below none of these folders; `None` where there are none.
    pub(super) fn of(program: &Path, excluded: &[String]) -> Result<Option<Self>, Failure> {
        let ran = Command::new("ldd").arg(program).output().map_err(|error| {
            Failure::input(format!("cannot run ldd, which finds libraries: {}", plain(&error)))
        })?;
        let found = paths(&String::from_utf8_lossy(&ran.stdout));
        let found: Vec<&Path> = found
            .iter()
            .map(Path::new)
            .filter(|path| !excluded.iter().any(|folder| path.starts_with(folder)))
            .collect();
        if found.is_empty() {
            return Ok(None);
        }
        let folder = std::env::temp_dir().join(format!("polycast-libs-{}", uuid::Uuid::new_v4().simple()));
        let wrong = |error: &std::io::Error| Failure::path("make", &folder, error);
        std::fs::create_dir(&folder).map_err(|error| wrong(&error))?;
        let libraries = Libraries(folder.clone());
        for path in found {
            let Some(name) = path.file_name() else { continue };
            symlink(path, folder.join(name)).map_err(|error| wrong(&error))?;
        }
        Ok(Some(libraries))
    }
}

/// Paths in what ldd says: those behind an arrow, and that of the loader.
fn paths(said: &str) -> Vec<String> {
    let path = |line: &str| {
        let (_, found) = line.split_once(" => ").unwrap_or(("", line));
        found.split_whitespace().next().filter(|path| path.starts_with('/')).map(str::to_string)
    };
    said.lines().filter_map(path).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_found() {
        let said = "\tlinux-vdso.so.1 (0x7ff)\n\tlibc.so.6 => /lib/x86_64-linux-gnu/libc.so.6 (0x7f)\n\
                    \tlibgone.so => not found\n\t/lib64/ld-linux-x86-64.so.2 (0x7f)\n";
        assert_eq!(paths(said), ["/lib/x86_64-linux-gnu/libc.so.6", "/lib64/ld-linux-x86-64.so.2"]);
        assert!(paths("\tnot a dynamic executable\n").is_empty());
    }
}
