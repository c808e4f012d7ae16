//! Putting an object of the agent's at a place of the user's: nothing is there before all of it is, and runs
//! of zeros stay holes.

use super::COPY_LEN;
use crate::exit::Failure;
use polycast_api::agent::Object;
use polycast_net::object::{Changed, FileState, MODE_USUAL};
use polycast_net::store::{PartFile, Placing, StoreError, copy_sparse};
use polycast_types::ModificationTime;
use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

/// Rules for putting a file in its place.
#[derive(Clone, Copy)]
pub(super) struct How {
    /// Set if an existing file is replaced.
    pub replace: bool,
    /// Permissions of the file.
    pub mode: u32,
    /// Time of the file's last change, if that is known.
    pub modified: Option<ModificationTime>,
}

impl How {
    /// As the agent says of the object.
    pub(super) fn of(object: &Object, replace: bool) -> Self {
        let nanos = object.modified_nanos;
        let modified = object.modified_seconds.and_then(|seconds| ModificationTime::new(seconds, nanos));
        How { replace, mode: object.mode, modified }
    }
}

/// Copies a file with its holes, within the kernel where the file systems can.
pub(super) fn copy(from: &Path, target: &Path, how: How) -> Result<(), Failure> {
    let wrong = |error: io::Error| Failure::path("read", from, &error);
    let file = File::open(from).map_err(wrong)?;
    let state = || file.metadata().map(|metadata| FileState::of(&metadata)).map_err(wrong);
    let (before, len) = (state()?, file.metadata().map_err(wrong)?.len());
    std::thread::sleep(before.unsettled_for());
    put(len, target, how, |part| {
        copy_sparse(&file, &part.file()).map_err(|error| Failure::path("write", target, &error))?;
        // Where the agent has noted its use, only its times are others.
        match before.became(&state()?, || true) {
            Some(how) => Err(Failure::input(Changed::new(from, how).to_string())),
            None => Ok(()),
        }
    })
}

/// Writes what comes over the socket; runs of zeros become holes.
pub(super) fn taken(mut from: impl Read, len: u64, target: &Path, how: How) -> Result<(), Failure> {
    put(len, target, how, |part| {
        let wrong = |error: io::Error| Failure::path("write", target, &error);
        let (mut at, mut buffer) = (0, vec![0; COPY_LEN]);
        loop {
            // A whole buffer at a time, so that a run of zeros is seen as one.
            let piece = fill(&mut from, &mut buffer).map_err(wrong)?;
            if piece.is_empty() {
                return Ok(());
            }
            part.write(piece, at).map_err(store)?;
            at += piece.len() as u64;
        }
    })
}

fn fill<'a>(from: &mut impl Read, buffer: &'a mut [u8]) -> io::Result<&'a [u8]> {
    let mut len = 0;
    while len < buffer.len() {
        match from.read(&mut buffer[len..]) {
            Ok(0) => break,
            Ok(read) => len += read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(&buffer[..len])
}

fn put(
    len: u64,
    target: &Path,
    How { replace, mode, modified }: How,
    write: impl FnOnce(&PartFile) -> Result<(), Failure>,
) -> Result<(), Failure> {
    let placing = Placing { replace, ..Placing::default() };
    let part = PartFile::open(target, len, placing).map_err(store)?;
    if part.is_resumed() {
        // What an earlier try has left must not show through holes.
        let emptied = part.file().set_len(0).and_then(|()| part.file().set_len(len));
        emptied.map_err(|error| Failure::path("write", target, &error))?;
    }
    write(&part)?;
    // An agent of an earlier version says nothing.
    let mode = u16::try_from(mode).ok().filter(|mode| *mode != 0).unwrap_or(MODE_USUAL);
    part.commit(mode, modified).map_err(store)?;
    Ok(())
}

fn store(error: StoreError) -> Failure {
    Failure::writing(&error)
}

#[cfg(test)]
mod tests {
    use super::*;
    use polycast_net::store::part_path;
    use std::fs;
    use std::os::unix::fs::{FileExt, MetadataExt};

    const LEN: u64 = 64 << 20;

    /// A file with some bytes here and there, of which most are zeros.
    fn sparse(path: &Path) {
        let file = File::create_new(path).unwrap();
        file.set_len(LEN).unwrap();
        for at in [0, 9 << 20, LEN - 5] {
            file.write_all_at(b"bytes", at).unwrap();
        }
    }

    #[test]
    fn holes_stay_holes() {
        let folder = tempfile::tempdir().unwrap();
        let (from, to, taken_to) =
            (folder.path().join("from"), folder.path().join("to"), folder.path().join("taken"));
        sparse(&from);
        let how = How { replace: false, mode: 0o640, modified: ModificationTime::new(981_158_400, 7) };
        // An earlier try has left something else.
        fs::write(part_path(&to), vec![7; 3 << 20]).unwrap();
        copy(&from, &to, how).unwrap();
        taken(File::open(&from).unwrap(), LEN, &taken_to, how).unwrap();
        for path in [&to, &taken_to] {
            assert!(fs::read(path).unwrap() == fs::read(&from).unwrap());
            let there = fs::metadata(path).unwrap();
            assert!(there.blocks() * 512 < 4 << 20, "{}: {} blocks", path.display(), there.blocks());
            assert_eq!(there.mode() & 0o777, 0o640);
            assert_eq!((there.mtime(), there.mtime_nsec()), (981_158_400, 7));
        }
        assert!(copy(&from, &to, how).is_err(), "it is there already");
    }
}
