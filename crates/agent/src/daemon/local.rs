//! The Unix socket for applications: one agent listens on it, and nobody but its user may use it.

use super::error::AgentError;
use std::fs;
use std::io;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::path::{Path, PathBuf};
use tokio::net::UnixListener;
use tokio_stream::wrappers::UnixListenerStream;

/// A socket that listens; its file is removed with it.
pub struct Listener {
    listener: UnixListener,
    file: SocketFile,
}

/// The file of a socket.
pub struct SocketFile(PathBuf);

impl Listener {
    /// Listens, in place of an agent that has died without removing its socket.
    pub fn bind(path: &Path) -> Result<Self, AgentError> {
        let wrong = |error: io::Error| AgentError::socket(path, error);
        if let Some(folder) = path.parent() {
            super::store::trusted_folder(folder).map_err(|reason| AgentError::socket(path, reason))?;
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
        let file = SocketFile(path.to_path_buf());
        fs::set_permissions(path, fs::Permissions::from_mode(0o600)).map_err(wrong)?;
        Ok(Listener { listener, file })
    }

    pub fn path(&self) -> &Path {
        &self.file.0
    }

    /// The connections that come, and the file to keep meanwhile.
    pub fn into_incoming(self) -> (UnixListenerStream, SocketFile) {
        (UnixListenerStream::new(self.listener), self.file)
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        // One that is gone already is as good.
        let _ = fs::remove_file(&self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_socket_belongs_to_one_agent_and_a_dead_ones_is_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("sub/agent.sock");
        let first = Listener::bind(&path).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        let error = Listener::bind(&path).err().unwrap().to_string();
        assert!(error.ends_with("another agent listens on it"), "{error}");
        // As if killed: nobody listens, but the file is there.
        let Listener { listener, file } = first;
        drop(listener);
        std::mem::forget(file);
        assert!(path.exists());
        // A process that another test starts just now has a copy of the socket until its program runs.
        let begun = std::time::Instant::now();
        let next = loop {
            match Listener::bind(&path) {
                Err(_) if begun.elapsed() < std::time::Duration::from_secs(5) => {
                    tokio::time::sleep(std::time::Duration::from_millis(5)).await;
                }
                bound => break bound.unwrap(),
            }
        };
        drop(next);
        assert!(!path.exists());
        fs::write(&path, "mine").unwrap();
        let error = Listener::bind(&path).err().unwrap().to_string();
        assert!(error.ends_with("something that is not a socket is there"), "{error}");
        assert_eq!(fs::read(&path).unwrap(), b"mine");
    }
}
