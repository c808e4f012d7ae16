//! Ends of transfers, told as events once they are over: a program that sends traces makes spans of them.
//!
//! Both ends know the transfer's handle, which is drawn anew for each: it binds their events together.

use super::error::TransferError;
use super::{Received, ReceiverSpec, SourceSpec};
use polycast_api::report::Report;
use polycast_types::{Handle, ObjectId};
use std::time::Instant;

/// Target of these events.
pub const TARGET: &str = "polycast::span";

/// A source, from its beginning on.
pub(super) struct Source {
    handle: Handle,
    object: ObjectId,
    name: String,
    len: u64,
    begun: Instant,
}

impl Source {
    pub(super) fn begin(handle: Handle, spec: &SourceSpec) -> Self {
        Source {
            handle,
            object: spec.object,
            name: spec.name.clone(),
            len: spec.source.len(),
            begun: Instant::now(),
        }
    }

    /// Tells of its end, and of each receiver's as it was seen from here.
    pub(super) fn told(&self, outcome: &Result<Report, TransferError>) {
        if !tracing::enabled!(target: TARGET, tracing::Level::TRACE) {
            return;
        }
        let (ago, handle) = (self.begun.elapsed().as_secs_f64(), self.handle.0);
        let report = match outcome {
            Ok(report) => report,
            Err(error) => {
                let error = error.to_string();
                tracing::trace!(target: TARGET, role = "source", handle, ago, seconds = ago, object = %self.object,
                    name = self.name, bytes = self.len, error);
                return;
            }
        };
        let verified = report.receivers.iter().filter(|receiver| receiver.verified).count() as u64;
        tracing::trace!(target: TARGET, role = "source", handle, ago, seconds = ago, object = %self.object, name = self.name,
            bytes = self.len, fabric = report.fabric, receivers = report.receivers.len() as u64, verified,
            sent_bytes = report.sent_bytes, patched_bytes = report.patched_bytes, spared_bytes = report.spared_bytes,
            sealed = report.sealed, error = "");
        for receiver in &report.receivers {
            let error = receiver.error.as_deref().or(receiver.reason.as_deref()).unwrap_or_default();
            let error = if receiver.verified { "" } else { error };
            tracing::trace!(target: TARGET, role = "delivery", handle, ago, seconds = receiver.seconds, object = %self.object,
                name = self.name, receiver = receiver.name, bytes = self.len, fabric = receiver.fabric,
                verified = u64::from(receiver.verified), patched_bytes = receiver.patched_bytes,
                spared_bytes = receiver.spared_bytes, error);
        }
    }
}

/// A receiver, from its beginning on.
pub(super) struct Receiver<'a> {
    handle: Handle,
    name: &'a str,
    begun: Instant,
}

impl<'a> Receiver<'a> {
    pub(super) fn begin(handle: Handle, spec: &'a ReceiverSpec) -> Self {
        Receiver { handle, name: &spec.name, begun: Instant::now() }
    }

    /// Tells of its end.
    pub(super) fn told(&self, outcome: &Result<Received, TransferError>) {
        if !tracing::enabled!(target: TARGET, tracing::Level::TRACE) {
            return;
        }
        let (ago, handle, receiver) = (self.begun.elapsed().as_secs_f64(), self.handle.0, self.name);
        match outcome {
            Ok(received) => tracing::trace!(target: TARGET, role = "receiver", handle, ago, seconds = ago,
                object = %received.object, name = received.name, receiver, bytes = received.bytes,
                waited_seconds = received.waited, patched_bytes = received.patched_bytes,
                spared_bytes = received.spared_bytes, sealed = received.sealed, error = ""),
            Err(error) => {
                let error = error.to_string();
                tracing::trace!(target: TARGET, role = "receiver", handle, ago, seconds = ago, receiver, error);
            }
        }
    }
}
