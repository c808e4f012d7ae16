//! Engine that moves the bytes, behind a seam: the service can be tested without a network.

use crate::forwarder::NodeHandle;
use crate::forwarder::daemon::Nodes;
use crate::transfer::{
    self, Held, Path, Received, ReceiverProgress, ReceiverSpec, Rendezvous, Report, SourceSpec, TransferError,
};
use std::sync::Arc;

/// Moves objects. Both functions block until the transfer has ended.
pub trait Engine: Send + Sync + 'static {
    /// Sends one object to its receivers.
    ///
    /// # Errors
    /// No transfer was possible at all; receivers that failed are in the report.
    fn deliver(&self, spec: SourceSpec, on_event: &mut dyn FnMut(&Report)) -> Result<Report, TransferError>;

    /// Receives one object.
    ///
    /// # Errors
    /// The object did not come whole.
    fn receive(
        &self,
        spec: ReceiverSpec,
        on_event: &mut dyn FnMut(&ReceiverProgress),
    ) -> Result<Received, TransferError>;

    /// Tells a source that its object is here.
    ///
    /// # Errors
    /// The source has another one, or is gone.
    fn confirm(&self, spec: &ReceiverSpec, held: &Held) -> Result<(), TransferError> {
        transfer::confirm(spec, held)
    }

    /// Returns true if objects can be pulled over trees.
    fn can_pull(&self) -> bool {
        false
    }
}

/// The transports of [`crate::transfer`]: push, and pull where the host has a node of a Datacast fabric.
#[derive(Clone, Default)]
pub struct Transports {
    /// The host's node.
    pub node: Option<NodeHandle>,
    /// Nodes that report their links to the manager.
    pub nodes: Option<Arc<Nodes>>,
}

impl Engine for Transports {
    fn deliver(&self, spec: SourceSpec, on_event: &mut dyn FnMut(&Report)) -> Result<Report, TransferError> {
        match (&spec.path, &self.node) {
            (Path::Trees(_), Some(node)) => transfer::deliver_pull(spec, node, on_event),
            (Path::Trees(_), None) => Err(no_node()),
            _ => transfer::deliver(spec, on_event),
        }
    }

    fn receive(
        &self,
        spec: ReceiverSpec,
        on_event: &mut dyn FnMut(&ReceiverProgress),
    ) -> Result<Received, TransferError> {
        match (&spec.rendezvous, &self.node) {
            (Rendezvous::Pull(..), Some(node)) => transfer::fetch(&spec, node, on_event),
            (Rendezvous::Pull(..), None) => Err(no_node()),
            _ => transfer::receive(spec, on_event),
        }
    }

    fn can_pull(&self) -> bool {
        self.node.is_some()
    }
}

fn no_node() -> TransferError {
    TransferError::Unusable(
        "this agent has no node of a Datacast fabric: its settings lack [forwarder]".into(),
    )
}
