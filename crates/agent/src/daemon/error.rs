//! Reasons why an agent does not run.

use crate::label_switch::LabelSwitchError;
use polycast_api::error::Refusal;
use polycast_api::settings::SettingsError;
use polycast_net::interface::InterfaceError;
use polycast_net::tls::{IdentityError, SealError};
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

/// Reason why there is no certificate.
#[derive(Debug, thiserror::Error)]
pub enum EnrolError {
    /// The folder for it cannot be used.
    #[error("the folder {} for the agent's certificate cannot be used: {source}", folder.display())]
    Folder {
        /// The folder.
        folder: PathBuf,
        /// Reason.
        source: io::Error,
    },
    /// No manager gives one.
    #[error("no manager gives a certificate: {0}")]
    Refused(String),
    /// Another authority's certificate would take the place of the one that this agent goes by.
    #[error(
        "the certificate that came is of another authority than the one in {}, and an agent keeps that: where the cluster has a new \
         authority, start the agent with a token of it and another --identity", path.display()
    )]
    OtherAuthority {
        /// Path of the agent's own authority.
        path: PathBuf,
    },
    /// Certificate that was received but is not this agent's.
    #[error("the certificate that came is of no use: {0}")]
    Unusable(IdentityError),
    /// There is nothing to ask with.
    #[error(
        "there is no certificate that holds in {} ({reason}): start the agent with --token, which 'polycast token new' prints", folder.display()
    )]
    NoToken {
        /// The folder.
        folder: PathBuf,
        /// Fault of the files in it.
        reason: String,
    },
}

/// Reason why the agent does not run, in one sentence.
#[derive(Debug, thiserror::Error)]
pub enum AgentError {
    /// The settings are wrong.
    #[error(transparent)]
    Config(#[from] SettingsError),
    /// It cannot prove its name.
    #[error(transparent)]
    Identity(#[from] IdentityError),
    /// It gets no certificate.
    #[error(transparent)]
    Enrol(#[from] EnrolError),
    /// The interface cannot be used.
    #[error(transparent)]
    Interface(#[from] InterfaceError),
    /// The control port cannot be listened on.
    #[error("the agent cannot listen on {address}: {reason}")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// Reason.
        reason: String,
    },
    /// The Unix socket cannot be listened on.
    #[error("the agent cannot listen on {}: {reason}", path.display())]
    Socket {
        /// The socket.
        path: PathBuf,
        /// Reason.
        reason: String,
    },
    /// The store cannot be used.
    #[error("the store {} cannot be used: {reason}", folder.display())]
    Store {
        /// The folder.
        folder: PathBuf,
        /// Reason.
        reason: String,
    },
    /// Its node of a Datacast fabric cannot run.
    #[error("the agent's node cannot run: {0}")]
    Node(String),
    /// Its agent of the rack cannot run.
    #[error(transparent)]
    Rack(#[from] LabelSwitchError),
    /// The manager refuses this agent.
    #[error("the manager at {manager} turned this agent down: {refusal}")]
    TurnedDown {
        /// Its address.
        manager: String,
        /// Reason.
        refusal: Refusal,
    },
    /// No connection to the manager can be sealed.
    #[error("this agent and the manager at {manager} do not trust each other: {error}")]
    Seal {
        /// Its address.
        manager: String,
        /// Fault of the connection.
        error: SealError,
    },
    /// The service broke down.
    #[error("the agent's service failed: {0}")]
    Serve(String),
}

impl AgentError {
    pub(crate) fn listen(address: SocketAddr, error: &io::Error) -> Self {
        let reason = match error.kind() {
            io::ErrorKind::AddrInUse => "the port is in use".into(),
            io::ErrorKind::AddrNotAvailable => "no interface of this machine has that address".into(),
            _ => error.to_string(),
        };
        AgentError::Listen { address, reason }
    }

    pub(crate) fn socket(path: &Path, reason: impl ToString) -> Self {
        AgentError::Socket { path: path.to_path_buf(), reason: reason.to_string() }
    }

    pub(crate) fn store(folder: &Path, reason: impl ToString) -> Self {
        AgentError::Store { folder: folder.to_path_buf(), reason: reason.to_string() }
    }
}
