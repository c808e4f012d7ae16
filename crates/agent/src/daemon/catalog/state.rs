//! States of objects: there, or on their way.

use crate::daemon::choice::Choice;
use crate::daemon::users::{Holder, User};
use crate::transfer::Arrivals;
use polycast_net::object::{ObjectKind, Stamp};
use polycast_types::{Handle, ModificationTime};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::SystemTime;

/// An object that can be read or sent.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Available {
    /// Its name as a file, for the receivers.
    pub name: String,
    pub kind: ObjectKind,
    pub length: u64,
    /// Permissions of the file.
    pub mode: u16,
    /// Time of its last change, if known.
    pub modified: Option<ModificationTime>,
    /// The state of what was added; all zero in the store, where nothing changes.
    pub stamp: Stamp,
    /// Empty while it has not been computed.
    pub root: String,
    /// Path of its bytes; `None`: in the store.
    pub added_from: Option<PathBuf>,
    /// Further paths and exclusions of an added directory.
    pub choice: Arc<Choice>,
    /// Since when it is here.
    pub since: SystemTime,
    /// The user of this host who has brought it; `None`: it has come from elsewhere.
    pub holder: Option<Holder>,
    /// Time of the last request for it.
    pub used: SystemTime,
    /// It stays, whatever else needs its room.
    pub pinned: bool,
    /// A newer version has taken its place.
    pub superseded: bool,
}

/// Progress of an object that is being received.
#[derive(Debug, Default)]
pub(crate) struct Progress {
    /// The name that it has at the source, once that is known.
    pub name: OnceLock<String>,
    pub bytes: AtomicU64,
    /// Bytes of these that did not have to come: they were here, or are holes.
    pub spared: AtomicU64,
    pub total: AtomicU64,
    /// Parts of it that are verified.
    pub arrivals: Arc<Arrivals>,
    /// Set to end receiving.
    pub cancel: Arc<AtomicBool>,
    /// The source whose invitation it follows, and the transfer's handle.
    pub called_by: OnceLock<(SocketAddr, Handle)>,
    /// The user of this host who brings it; `None`: it comes from elsewhere.
    pub holder: Option<Holder>,
}

#[derive(Debug)]
pub(super) enum State {
    Available { object: Available, sends: usize },
    Receiving(Arc<Progress>),
}

impl State {
    pub(super) fn holder(&self) -> Option<Holder> {
        match self {
            State::Available { object, .. } => object.holder,
            State::Receiving(progress) => progress.holder,
        }
    }

    pub(super) fn is_of(&self, user: User) -> bool {
        self.holder().is_some_and(|holder| holder.uid == user.uid())
    }

    /// Bytes of the store that it has or will have.
    pub(super) fn stored_bytes(&self) -> u64 {
        match self {
            State::Available { object, .. } if object.added_from.is_some() => 0,
            State::Available { object, .. } => object.length,
            State::Receiving(progress) => progress.total.load(Ordering::Relaxed),
        }
    }
}
