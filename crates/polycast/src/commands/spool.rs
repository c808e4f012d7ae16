//! Bytes that pass through a file of ours, since they come from standard input or go to standard output.

use crate::exit::Failure;
use polycast_net::scratch::{self, Scratch};
use std::fs::File;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

/// Begins and ends the names of the folders.
const PREFIX: &str = "polycast-spool-";
const SUFFIX: &str = ".spool";
/// Name of the file in the folder.
const NAME: &str = "object";

/// A folder for one file, which goes with this value.
pub(crate) struct Spool(Scratch);

impl Spool {
    /// Makes one in the folder for temporary files.
    pub(crate) fn new() -> Result<Self, Failure> {
        let place = std::env::temp_dir();
        scratch::sweep(&place, |name| scratch::is_between(name, PREFIX, SUFFIX));
        let made = Scratch::make(&place, |number| format!("{PREFIX}{number}{SUFFIX}").into());
        made.map(Spool).map_err(|error| Failure::path("write to", &place, &error))
    }

    /// Returns the path of the file, which may not exist yet.
    pub(crate) fn path(&self) -> PathBuf {
        self.0.path().join(NAME)
    }

    /// Takes all of standard input: how much it is has to be known before the first byte is sent.
    pub(crate) fn of_stdin() -> Result<Self, Failure> {
        let spool = Spool::new()?;
        let path = spool.path();
        let wrong = |error: io::Error| {
            let failure = Failure::path("keep standard input in", &path, &error);
            failure.hint("TMPDIR says where there is more room")
        };
        let mut file = File::create_new(&path).map_err(wrong)?;
        io::copy(&mut io::stdin().lock(), &mut file).map_err(wrong)?;
        Ok(spool)
    }

    /// Gives the file to the program that reads standard output.
    pub(crate) fn to_stdout(&self) -> Result<(), Failure> {
        let path = self.path();
        let file = File::open(&path).map_err(|error| Failure::path("read", &path, &error))?;
        to_stdout(file)
    }
}

/// Writes bytes to standard output.
pub(crate) fn to_stdout(mut from: impl Read) -> Result<(), Failure> {
    let mut stdout = io::stdout().lock();
    io::copy(&mut from, &mut stdout)
        .and_then(|_| stdout.flush())
        .map_err(|error| Failure::path("write to", Path::new("standard output"), &error))
}
