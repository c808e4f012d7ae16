//! What moves the bytes, behind a seam: the service can be tested without a network.

use crate::transfer::{self, Received, ReceiverProgress, ReceiverSpec, Report, SourceSpec, TransferError};

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
}

/// The push transport of [`crate::transfer`].
#[derive(Clone, Copy, Default, Debug)]
pub struct PushEngine;

impl Engine for PushEngine {
    fn deliver(&self, spec: SourceSpec, on_event: &mut dyn FnMut(&Report)) -> Result<Report, TransferError> {
        transfer::deliver(spec, on_event)
    }

    fn receive(
        &self,
        spec: ReceiverSpec,
        on_event: &mut dyn FnMut(&ReceiverProgress),
    ) -> Result<Received, TransferError> {
        transfer::receive(spec, on_event)
    }
}
