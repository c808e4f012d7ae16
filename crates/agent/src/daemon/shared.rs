//! State that all parts of the agent share.

use super::addresses::Place;
use super::catalog::Catalog;
use super::counters::Counters;
use super::engine::Engine;
use super::limits::Limits;
use super::manager_link::ManagerLink;
use super::processes::Processes;
use super::store::Store;
use crate::transfer::{Door, Listen, Options, Sealing, SlowPolicy};
use polycast_api::manager::NodeReport;
use polycast_net::priority::Dscp;
use polycast_types::{Duration as Span, Location, ObjectId};
use std::net::{IpAddr, TcpListener};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Instant, SystemTime};

/// State shared by all parts of the agent.
pub(crate) struct Shared {
    pub name: String,
    /// The listener to go on with, when the agent has moved.
    pub moved: Moved,
    /// Passes on what comes to the control port for a transfer.
    pub door: Door,
    /// Sealing of connections and packets between agents.
    pub sealing: Sealing,
    /// The class of service of data packets.
    pub dscp: Option<Dscp>,
    /// Zone and rack of the host.
    pub location: Location,
    pub store: Store,
    pub limits: Limits,
    pub catalog: Arc<Catalog>,
    pub processes: Processes,
    pub link: ManagerLink,
    pub engine: Arc<dyn Engine>,
    pub counters: Counters,
    pub started: Instant,
}

impl Shared {
    /// Returns the agent's current addresses.
    pub(crate) fn place(&self) -> Place {
        self.link.place()
    }

    /// Address of the interface that carries the transfers.
    pub(crate) fn interface(&self) -> IpAddr {
        self.place().interface
    }

    /// A user here has asked for an object, and is told where it is.
    pub(crate) fn used(&self, id: ObjectId) {
        if self.catalog.touch(id) {
            self.store.note_use(id, SystemTime::now());
        }
    }

    /// Account of this host for those who look at the cluster.
    pub(super) fn account(&self, sending: usize) -> NodeReport {
        let (objects, receiving) = self.catalog.counts();
        let count = |number: usize| u32::try_from(number).unwrap_or(u32::MAX);
        NodeReport {
            version: env!("CARGO_PKG_VERSION").to_string(),
            store_used_bytes: self.catalog.stored_bytes(None),
            store_max_bytes: self.limits.most(),
            store_free_bytes: self.store.free_bytes().unwrap_or(0),
            objects: objects as u64,
            sending: count(sending),
            receiving: count(receiving),
            uptime_seconds: self.started.elapsed().as_secs(),
            rack: self.location.rack.clone(),
            zone: self.location.zone.clone(),
            ..NodeReport::default()
        }
    }

    /// Settings of a transfer that its caller has not chosen.
    pub(crate) fn default_options(&self) -> Options {
        Options {
            // Agents that are there answer at once; those that are not must not keep the others waiting.
            join_timeout: Span::from_secs(10),
            slow: SlowPolicy::SHIPPED,
            listen: Listen::Shared(self.door.clone()),
            sealing: self.sealing.clone(),
            dscp: self.dscp,
            ..Options::default()
        }
    }
}

/// Place for the agent's listener when the agent has moved.
#[derive(Debug, Default)]
pub(crate) struct Moved(Mutex<Option<TcpListener>>);

impl Moved {
    /// It is to be listened here from now on.
    pub(super) fn put(&self, listener: TcpListener) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(listener);
    }

    pub(super) fn take(&self) -> Option<TcpListener> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}
