//! Detection of other processes that have a file open or mapped.
//!
//! Linux gives a write lease on a file only to the process that alone has it open, and a mapping counts as
//! open (fcntl(2)). While a lease is held, a process that opens the file waits until it is given back.

use rustix::fs::{Mode, OFlags};
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::path::Path;

/// Chooses the signal that says that a process waits; the library has no name for it. The number is that of
/// all Linux systems.
const F_SETSIG: libc::c_int = 10;

/// A file that no other process had open when this was made. A process that opens it waits until this is
/// dropped, or until the kernel breaks the lease, after `fs.lease-break-time`, 45 s.
#[derive(Debug)]
pub struct Alone(File);

impl Alone {
    /// `None` where another process has it open or mapped.
    ///
    /// # Errors
    /// It is not there, is not this user's, or lies on a file system without leases.
    pub fn with(path: &Path) -> io::Result<Option<Self>> {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file = File::from(rustix::fs::open(path, flags, Mode::empty())?);
        // When a process opens the file, the kernel tells us by this signal, which does nothing: the usual
        // one would end the process.
        control(&file, F_SETSIG, libc::SIGURG)?;
        match control(&file, libc::F_SETLEASE, libc::F_WRLCK) {
            Ok(_) => Ok(Some(Alone(file))),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Returns true if no process waits to open the file.
    #[must_use]
    pub fn holds(&self) -> bool {
        control(&self.0, libc::F_GETLEASE, 0).is_ok_and(|lease| lease == libc::F_WRLCK)
    }
}

/// Returns true if no other process has this file open or mapped at the moment, as far as the file system
/// reports. It has to be open for writing.
#[must_use]
pub fn is_alone(file: &File) -> bool {
    let leased =
        control(file, F_SETSIG, libc::SIGURG).and_then(|_| control(file, libc::F_SETLEASE, libc::F_WRLCK));
    match leased {
        Ok(_) => {
            // It ends with the file in any case.
            let _ = control(file, libc::F_SETLEASE, libc::F_UNLCK);
            true
        }
        Err(error) => error.kind() != io::ErrorKind::WouldBlock,
    }
}

/// Returns true if a process has this file open for writing, or mapped so. It has to be open for reading
/// only; false where its file system or its owner does not let us know.
#[must_use]
pub fn is_written(file: &File) -> bool {
    let leased =
        control(file, F_SETSIG, libc::SIGURG).and_then(|_| control(file, libc::F_SETLEASE, libc::F_RDLCK));
    match leased {
        Ok(_) => {
            // It ends with the file in any case.
            let _ = control(file, libc::F_SETLEASE, libc::F_UNLCK);
            false
        }
        Err(error) => error.kind() == io::ErrorKind::WouldBlock,
    }
}

fn control(file: &File, command: libc::c_int, argument: libc::c_int) -> io::Result<libc::c_int> {
    // SAFETY: the descriptor is open as long as `file` lives, and these commands take a number, no pointer.
    #[allow(unsafe_code)]
    let outcome = unsafe { libc::fcntl(file.as_raw_fd(), command, argument) };
    if outcome == -1 { Err(io::Error::last_os_error()) } else { Ok(outcome) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use polycast_testing::{HANG, until, wait_for};
    use std::sync::mpsc;
    use std::time::Duration;

    #[test]
    fn who_writes_to_it_is_noticed() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        std::fs::write(&path, b"bytes").unwrap();
        let reader = File::open(&path).unwrap();
        // A child that another test starts has the descriptor that has written it for a moment.
        until("none has it open for writing", || !is_written(&reader));
        let writer = File::options().write(true).open(&path).unwrap();
        assert!(is_written(&reader));
        drop(writer);
        until("it is closed", || !is_written(&reader));
    }

    #[test]
    fn who_has_it_open_is_noticed_and_who_comes_waits() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        std::fs::write(&path, b"bytes").unwrap();
        let reader = File::open(&path).unwrap();
        assert!(Alone::with(&path).unwrap().is_none());
        drop(reader);
        // A child that another test starts has it open for a moment.
        let alone = wait_for("no process has it open", || Alone::with(&path).unwrap());
        assert!(alone.holds());
        let (opened, told) = mpsc::channel();
        let late = path.clone();
        let opening = std::thread::spawn(move || {
            let file = File::open(&late).unwrap();
            opened.send(()).unwrap();
            file
        });
        until("it is opened", || !alone.holds());
        assert!(
            told.recv_timeout(Duration::from_millis(100)).is_err(),
            "it is let in before the lease is back"
        );
        drop(alone);
        told.recv_timeout(HANG).expect("it is let in now");
        drop(opening.join().unwrap());
        until("it is closed", || Alone::with(&path).unwrap().is_some());
        assert!(Alone::with(&folder.path().join("none")).is_err());
    }
}
