//! The Unix socket for applications: one agent listens on it. Only the agent's user may use it, unless
//! settings name others.

mod door;

use super::error::AgentError;
use door::Door;
use std::fs;
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use tokio::net::UnixListener;

/// File with the groups, and their numbers.
const GROUPS: &str = "/etc/group";
/// Others, and members of the group, may go through a folder.
const OTHERS_GO: u32 = 0o001;
const GROUP_GOES: u32 = 0o010;
/// Mode of a folder that is made for a socket of several users.
const SHARED_FOLDER: u32 = 0o711;

/// Users who may use the socket.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Access {
    /// The socket's mode: 600, 660 or 666.
    mode: u32,
    /// The socket's group, by its number.
    group: Option<u32>,
}

impl Access {
    /// Reads the access from settings; a group alone is let in.
    ///
    /// # Errors
    /// There is no such mode or group, or one without the other means nothing; with the setting's name.
    pub(super) fn of(mode: Option<&str>, group: Option<&str>) -> Result<Self, (&'static str, String)> {
        let number = match group {
            Some(group) => Some(group_number(group).map_err(|why| ("socket-group", why))?),
            None => None,
        };
        let mode = match (mode, number) {
            (None, None) => 0o600,
            (None, Some(_)) => 0o660,
            (Some(text), _) => match text.strip_prefix('0').unwrap_or(text) {
                "600" => 0o600,
                "660" => 0o660,
                "666" => 0o666,
                _ => {
                    let why =
                        format!("'{text}' is none of 600 (the agent's user), 660 (its group) and 666 (all)");
                    return Err(("socket-mode", why));
                }
            },
        };
        match (mode, number) {
            (0o600, Some(_)) => {
                Err(("socket-mode", "600 lets no group in: leave socket-group out, or say 660".into()))
            }
            (0o660, None) => Err(("socket-mode", "660 lets a group in: name it as socket-group".into())),
            (mode, group) => Ok(Access { mode, group }),
        }
    }

    fn is_shared(self) -> bool {
        self.mode != 0o600
    }

    /// Returns true if the users of the socket can go through a folder with this mode and group.
    fn goes_through(self, folder: &fs::Metadata) -> bool {
        let by_group = self.mode == 0o660 && self.group == Some(folder.gid());
        let needed = if by_group { GROUP_GOES } else { OTHERS_GO };
        folder.mode() & needed != 0
    }
}

/// The number of a group, of which the name or the number is known.
fn group_number(group: &str) -> Result<u32, String> {
    match group.parse() {
        // To the system this number says that the group stays as it is.
        Ok(u32::MAX) => return Err(format!("{} is no group's number", u32::MAX)),
        Ok(number) => return Ok(number),
        Err(_) => {}
    }
    let groups = fs::read_to_string(GROUPS).map_err(|error| format!("{GROUPS} cannot be read: {error}"))?;
    let mut lines = groups.lines().map(|line| line.split(':'));
    let found =
        lines.find_map(|mut fields| (fields.next() == Some(group)).then(|| fields.nth(1)?.parse().ok()));
    found
        .flatten()
        .ok_or_else(|| format!("there is no group '{group}' in {GROUPS}: name one that is, or its number"))
}

/// A socket that listens; its file is removed with it.
pub(super) struct Listener {
    listener: UnixListener,
    file: SocketFile,
}

/// The file of a socket, and which file that is: another agent may have put its own in its place.
pub(super) struct SocketFile {
    path: PathBuf,
    is: Option<Which>,
}

/// A file by its device, number and last change: numbers are used again.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Which([u64; 2], [i64; 2]);

impl Which {
    fn at(path: &Path) -> Option<Self> {
        let metadata = fs::symlink_metadata(path).ok()?;
        Some(Which([metadata.dev(), metadata.ino()], [metadata.ctime(), metadata.ctime_nsec()]))
    }
}

impl Listener {
    /// Listens, in place of an agent that has died without removing its socket.
    pub(super) fn bind(path: &Path, access: Access) -> Result<Self, AgentError> {
        let wrong = |error: io::Error| AgentError::socket(path, error);
        if let Some(folder) = path.parent() {
            let is_new = !folder.as_os_str().is_empty() && !folder.exists();
            super::store::trusted_folder(folder).map_err(|reason| AgentError::socket(path, reason))?;
            if access.is_shared() {
                if is_new {
                    fs::set_permissions(folder, fs::Permissions::from_mode(SHARED_FOLDER)).map_err(wrong)?;
                }
                check_way(path, access)?;
            }
        }
        if let Ok(metadata) = fs::symlink_metadata(path) {
            if !metadata.file_type().is_socket() {
                return Err(AgentError::socket(path, "something that is not a socket is there"));
            }
            if std::os::unix::net::UnixStream::connect(path).is_ok() {
                return Err(AgentError::socket(path, "another agent listens on it"));
            }
            fs::remove_file(path).map_err(wrong)?;
        }
        let listener = UnixListener::bind(path).map_err(wrong)?;
        let mut file = SocketFile { path: path.to_path_buf(), is: Which::at(path) };
        // Only our user may use it until it has its group.
        fs::set_permissions(path, fs::Permissions::from_mode(0o600)).map_err(wrong)?;
        if let Some(group) = access.group {
            std::os::unix::fs::chown(path, None, Some(group)).map_err(|error| {
                let why = format!(
                    "it cannot have the group {group}: {error}; the agent's user has to be in that group"
                );
                AgentError::socket(path, why)
            })?;
        }
        fs::set_permissions(path, fs::Permissions::from_mode(access.mode)).map_err(wrong)?;
        file.is = Which::at(path);
        Ok(Listener { listener, file })
    }

    pub(super) fn path(&self) -> &Path {
        &self.file.path
    }

    /// The connections that come, and the file to keep meanwhile.
    pub(super) fn into_incoming(self) -> (Door, SocketFile) {
        (Door::new(self.listener), self.file)
    }
}

/// Checks that the users of the socket can reach it.
fn check_way(path: &Path, access: Access) -> Result<(), AgentError> {
    let wrong = |error: io::Error| AgentError::socket(path, error);
    let full = std::path::absolute(path).map_err(wrong)?;
    for folder in full.ancestors().skip(1) {
        let metadata = fs::metadata(folder).map_err(wrong)?;
        if !access.goes_through(&metadata) {
            let (folder, mode) = (folder.display(), metadata.mode() & 0o777);
            let why = format!(
                "{folder} has the mode {mode:o}, and those whom socket-mode lets in cannot go through it: chmod o+x {folder}, or name \
                another place as socket"
            );
            return Err(AgentError::socket(path, why));
        }
    }
    Ok(())
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        // That of an agent which has begun meanwhile stays. One that is gone already is as good.
        if self.is.is_some() && Which::at(&self.path) == self.is {
            let _ = fs::remove_file(&self.path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PRIVATE: Access = Access { mode: 0o600, group: None };

    #[test]
    fn who_may_use_the_socket_is_said_in_two_settings() {
        assert_eq!(Access::of(None, None), Ok(PRIVATE));
        assert_eq!(Access::of(None, Some("root")), Ok(Access { mode: 0o660, group: Some(0) }));
        assert_eq!(Access::of(Some("0660"), Some("77")), Ok(Access { mode: 0o660, group: Some(77) }));
        assert_eq!(Access::of(Some("666"), None), Ok(Access { mode: 0o666, group: None }));
        for (mode, group, setting, part) in [
            (Some("777"), None, "socket-mode", "'777' is none of 600"),
            (Some("660"), None, "socket-mode", "name it as socket-group"),
            (Some("600"), Some("root"), "socket-mode", "lets no group in"),
            (None, Some("no such group"), "socket-group", "there is no group 'no such group'"),
        ] {
            let (named, why) = Access::of(mode, group).unwrap_err();
            assert!(named == setting && why.contains(part), "{named}: {why}");
        }
    }

    #[tokio::test]
    async fn a_socket_of_several_users_can_be_reached_by_them() {
        let folder = tempfile::tempdir().unwrap();
        let all = Access { mode: 0o666, group: None };
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o700)).unwrap();
        let error = Listener::bind(&folder.path().join("agent.sock"), all).err().unwrap().to_string();
        assert!(error.contains("cannot go through it: chmod o+x"), "{error}");
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o711)).unwrap();
        let path = folder.path().join("sub/agent.sock");
        let own = fs::metadata(folder.path()).unwrap().gid();
        let listener = Listener::bind(&path, Access { mode: 0o660, group: Some(own) }).unwrap();
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!((mode(&path), mode(path.parent().unwrap())), (0o660, 0o711));
        drop(listener);
    }

    /// A process that another test starts just now has a copy of the socket until its program runs.
    async fn bound_in_time(path: &Path) -> Listener {
        let begun = std::time::Instant::now();
        loop {
            match Listener::bind(path, PRIVATE) {
                Err(_) if begun.elapsed() < polycast_testing::HANG => {
                    tokio::time::sleep(std::time::Duration::from_millis(5)).await;
                }
                bound => break bound.unwrap(),
            }
        }
    }

    #[tokio::test]
    async fn a_socket_belongs_to_one_agent_and_a_dead_ones_is_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("sub/agent.sock");
        let first = Listener::bind(&path, PRIVATE).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        let error = Listener::bind(&path, PRIVATE).err().unwrap().to_string();
        assert!(error.ends_with("another agent listens on it"), "{error}");
        // As if killed: no process listens, but the file is there.
        let Listener { listener, file } = first;
        drop(listener);
        std::mem::forget(file);
        assert!(path.exists());
        let next = bound_in_time(&path).await;
        // An agent that ends late leaves the socket of its successor.
        let Listener { listener, file: late } = next;
        drop(listener);
        let successor = bound_in_time(&path).await;
        drop(late);
        assert!(path.exists());
        drop(successor);
        assert!(!path.exists());
        fs::write(&path, "mine").unwrap();
        let error = Listener::bind(&path, PRIVATE).err().unwrap().to_string();
        assert!(error.ends_with("something that is not a socket is there"), "{error}");
        assert_eq!(fs::read(&path).unwrap(), b"mine");
    }
}
