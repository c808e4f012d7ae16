//! A rack's agent on this server (Orca, sections 3.4 and 3.5): leaf labels in place of source labels.
//!
//! The kernel relabels packets of the sessions that were active last; all others come up here once by an interface of their
//! own, are relabelled here, and are known to the kernel from then on. What has no label is dropped and counted.

mod controller;
mod leaf;

pub use controller::{Controller, ControllerOptions, LabelMap, incarnation};
pub use leaf::{LeafController, LeafOptions};

use polycast_net::bpf::BpfError;
use polycast_net::bpf::frames::relabel_frame;
use polycast_net::bpf::orca::{Counts, KernelAgent, Packets};
use polycast_net::tap::Tap;
use polycast_protocol::switch::{RackLabelError, RackLabels};
use polycast_wire::label::{Fault, Header};
use std::io;
use std::os::fd::{AsFd as _, BorrowedFd};

/// The interface between kernel and user space.
const SLOW: &str = "orca0";
/// Packets that are handled before others get their turn.
const BURST_MAX: usize = 64;
/// The largest frame.
const FRAME_LEN_MAX: usize = 66_000;
const PAYLOAD_AT: usize = 42;

/// An agent that cannot be set up or told something.
#[derive(Debug, thiserror::Error)]
pub enum RackError {
    /// The kernel refuses its program, or a change.
    #[error(transparent)]
    Kernel(#[from] BpfError),
    /// The interface to user space cannot be made.
    #[error("cannot make the interface {SLOW}: {0}")]
    Interface(io::Error),
    /// The controller cannot use its socket.
    #[error("cannot use the controllers' socket: {0}")]
    Controller(io::Error),
    /// The label cannot be kept.
    #[error(transparent)]
    Label(#[from] RackLabelError),
}

/// Settings of an agent.
#[derive(Clone, Copy, Debug)]
pub struct RackOptions {
    /// The network's packets.
    pub packets: Packets,
    /// Sessions that it keeps labels for.
    pub sessions_max: usize,
    /// Those of them that the kernel knows at the same time.
    pub active_max: u32,
}

/// The agent. It does nothing any more when this is dropped.
#[derive(Debug)]
pub struct RackAgent {
    kernel: KernelAgent,
    labels: RackLabels,
    slow: Tap,
    buffer: Vec<u8>,
    relabelled: u64,
    faults: [u64; Fault::ALL.len()],
    /// Which have been named in the log.
    named: [bool; Fault::ALL.len()],
}

impl RackAgent {
    /// Sets the agent up at an interface of the calling thread's network namespace, one a namespace. It relabels nothing before
    /// [`RackAgent::set_active`].
    ///
    /// # Errors
    /// The kernel refuses it.
    pub fn attach(options: RackOptions, interface: &str) -> Result<Self, RackError> {
        let mut kernel = KernelAgent::attach(options.packets, interface, options.active_max)?;
        let slow = Tap::open(SLOW).map_err(RackError::Interface)?;
        kernel.set_slow_path(SLOW)?;
        Ok(RackAgent {
            kernel,
            labels: RackLabels::new(options.packets.label_len as usize, options.sessions_max),
            slow,
            buffer: vec![0; FRAME_LEN_MAX],
            relabelled: 0,
            faults: [0; Fault::ALL.len()],
            named: [false; Fault::ALL.len()],
        })
    }

    /// Whether it relabels what it is given. One that stands by does so too: the leaf switch alone decides who gets packets.
    ///
    /// # Errors
    /// The kernel refuses it.
    pub fn set_active(&mut self, active: bool) -> Result<(), RackError> {
        Ok(self.kernel.set_agent(active)?)
    }

    /// Relabels what has come up from the kernel. To be called when the descriptor is readable.
    fn relabel_waiting(&mut self) -> Result<(), RackError> {
        for _ in 0..BURST_MAX {
            let Some(frame) = self.slow.receive(&mut self.buffer).map_err(RackError::Interface)? else {
                break;
            };
            // The interface's own words, such as IPv6 has them.
            if frame.get(12..14) != Some(&[8, 0]) {
                continue;
            }
            let labels = &self.labels;
            match relabel_frame(frame, |packet| labels.relabel(packet)) {
                Ok(()) => {
                    self.relabelled += 1;
                    // An interface that is full drops packets, as any does.
                    let _ = self.slow.send(frame);
                    let session = Header::parse(&frame[PAYLOAD_AT..]).map(|(header, _)| header.session);
                    if let Some((session, label)) =
                        session.ok().and_then(|session| Some((session, labels.get(session)?)))
                    {
                        self.kernel.set_label(session, label)?;
                    }
                }
                Err(fault) => self.faults[fault as usize] += 1,
            }
        }
        Ok(())
    }

    /// Packets dropped for a reason, in the kernel and here.
    ///
    /// # Errors
    /// The kernel refuses to tell.
    pub fn dropped(&mut self, fault: Fault) -> Result<u64, RackError> {
        Ok(self.kernel.counts()?.fault(fault) + self.faults[fault as usize])
    }

    /// Packets relabelled in the kernel, and here.
    ///
    /// # Errors
    /// The kernel refuses to tell.
    pub fn relabelled(&mut self) -> Result<(u64, u64), RackError> {
        Ok((self.kernel.counts()?.packets(), self.relabelled))
    }

    /// What the kernel's part counted.
    ///
    /// # Errors
    /// The kernel refuses to tell.
    pub fn kernel_counts(&mut self) -> Result<Counts, RackError> {
        Ok(self.kernel.counts()?)
    }
}

impl LabelMap for RackAgent {
    fn set_label(&mut self, session: u32, label: &[u8]) -> Result<(), RackError> {
        self.labels.set(session, label)?;
        Ok(self.kernel.replace_label(session, label)?)
    }

    fn remove_label(&mut self, session: u32) -> Result<(), RackError> {
        self.labels.remove(session);
        Ok(self.kernel.remove_label(session)?)
    }

    fn packets(&self) -> Option<BorrowedFd<'_>> {
        Some(self.slow.as_fd())
    }

    fn serve(&mut self) -> Result<(), RackError> {
        self.relabel_waiting()
    }

    fn name_faults(&mut self) {
        for fault in Fault::ALL {
            let count = self.dropped(fault).unwrap_or_default();
            if count > 0 && !std::mem::replace(&mut self.named[fault as usize], true) {
                tracing::warn!(count, "dropped {fault}");
            }
        }
    }
}
