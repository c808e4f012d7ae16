//! Programs that are brought to hosts: one for each kind of machine.
//!
//! A program for hosts only has to take an object, so packages have a small one beside the whole one, which
//! has the daemons of a cluster as well.

use crate::exit::{Failure, plain};
use polycast_net::hash::{hash_of, hex};
use polycast_net::object::FileSource;
use std::collections::BTreeMap;
use std::env;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

/// Hexadecimal digits of the program's hash in its name.
const HASH_DIGITS: usize = 16;
/// Folder of programs for hosts, from that of this program.
const FOLDER: &str = "../lib/polycast";
/// A machine's name has fewer letters.
const NAME_MAX: usize = 32;

/// A program that is brought to hosts.
pub(crate) struct Program {
    pub(crate) path: PathBuf,
    pub(crate) len: u64,
    pub(crate) hash: String,
    /// It is this one, and for machines like this one.
    pub(crate) is_own: bool,
}

impl Program {
    /// The given one, or this one.
    pub(crate) fn open(given: Option<&Path>) -> Result<Self, Failure> {
        let path = given.map_or_else(own, |path| Ok(path.to_path_buf()))?;
        let mut program = Self::read(path.clone()).map_err(|error| match error {
            Unread::Io(error) => Failure::path("read", &path, &error),
            Unread::Hash(why) => Failure::unexpected(why),
        })?;
        program.is_own = given.is_none();
        Ok(program)
    }

    fn read(path: PathBuf) -> Result<Self, Unread> {
        let len = fs::metadata(&path)?.len();
        let source = File::open(&path).and_then(FileSource::own)?;
        let hash = hash_of(&source).map_err(|error| Unread::Hash(error.to_string()))?;
        let hash = hex(&hash)[..HASH_DIGITS].to_string();
        Ok(Program { path, len, hash, is_own: false })
    }
}

/// Reason why a program could not be read.
enum Unread {
    Io(io::Error),
    Hash(String),
}

impl From<io::Error> for Unread {
    fn from(error: io::Error) -> Self {
        Unread::Io(error)
    }
}

/// The path of this program.
fn own() -> Result<PathBuf, Failure> {
    env::current_exe().map_err(|error| {
        Failure::unexpected(format!("this program cannot be found: {}", plain(&error)))
            .hint("name it with --program")
    })
}

/// The programs for hosts of one push.
pub(super) struct Programs {
    /// The user's own choice for all of them.
    given: Option<Arc<Program>>,
    /// This program.
    own: PathBuf,
    /// Programs that were asked for, by the kind of machine.
    found: Mutex<BTreeMap<String, Result<Arc<Program>, String>>>,
}

impl Programs {
    /// Looks at the given program, or at this one.
    ///
    /// # Errors
    /// It cannot be read.
    pub(super) fn open(given: Option<&Path>) -> Result<Self, Failure> {
        let own = own()?;
        let given = given.map(|path| Program::open(Some(path)).map(Arc::new)).transpose()?;
        Ok(Programs { given, own, found: Mutex::default() })
    }

    /// The program for a machine whose `uname -sm` is this.
    ///
    /// # Errors
    /// There is none; the sentence says where one could be.
    pub(super) fn of(&self, machine: &str) -> Result<Arc<Program>, String> {
        if let Some(given) = &self.given {
            return Ok(Arc::clone(given));
        }
        let mut found = self.found.lock().unwrap_or_else(PoisonError::into_inner);
        found.entry(machine.to_string()).or_insert_with(|| self.find(machine).map(Arc::new)).clone()
    }

    fn find(&self, machine: &str) -> Result<Program, String> {
        let read = |path: PathBuf| {
            let name = path.display().to_string();
            Program::read(path).map_err(|error| match error {
                Unread::Io(error) => format!("{name} cannot be read: {}", plain(&error)),
                Unread::Hash(why) => why,
            })
        };
        if let Some(path) = beside(&self.own, machine).into_iter().find(|path| path.is_file()) {
            return read(path);
        }
        check_machine(machine)?;
        read(self.own.clone())
    }
}

/// Paths at which the program for such machines may be, from that of this one.
fn beside(own: &Path, machine: &str) -> Vec<PathBuf> {
    let kind = machine.strip_prefix("Linux ").unwrap_or_default();
    let is_name = |letter: char| letter.is_ascii_alphanumeric() || letter == '_';
    let (true, Some(folder)) =
        ((1..=NAME_MAX).contains(&kind.len()) && kind.chars().all(is_name), own.parent())
    else {
        return Vec::new();
    };
    let name = format!("polycast-{kind}");
    vec![folder.join(&name), folder.join(FOLDER).join(&name)]
}

/// Checks that this program can run on a machine like that.
pub(crate) fn check_machine(machine: &str) -> Result<(), String> {
    let (system, kind) = machine.split_once(' ').unwrap_or((machine, ""));
    let own = env::consts::ARCH;
    if system == "Linux" && kind == own {
        return Ok(());
    }
    let other = if system == "Linux" { kind } else { machine };
    Err(format!("it is {other}, and this program is for Linux on {own}: name one for it with --program"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_goes_only_where_it_runs() {
        let own = format!("Linux {}", env::consts::ARCH);
        assert_eq!(check_machine(&own), Ok(()));
        assert!(check_machine("Linux riscv64").unwrap_err().starts_with("it is riscv64"));
        assert!(check_machine("Darwin arm64").unwrap_err().contains("--program"));
    }

    #[test]
    fn a_host_names_no_path_here() {
        let own = Path::new("/usr/bin/polycast");
        let at = beside(own, "Linux aarch64");
        assert_eq!(at[0], Path::new("/usr/bin/polycast-aarch64"));
        assert_eq!(at[1], Path::new("/usr/bin/../lib/polycast/polycast-aarch64"));
        let long = format!("Linux {}", "a".repeat(NAME_MAX + 1));
        for machine in ["Linux ", "Linux ../../etc/passwd", "Linux a b", "Darwin arm64", "aarch64", "", &long]
        {
            assert!(beside(own, machine).is_empty(), "{machine}");
        }
    }
}
