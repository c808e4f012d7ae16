//! A rack's agent on this server (Orca, sections 3.4 and 3.5): leaf labels in place of source labels, and
//! spine labels where a spine asks for them.
//!
//! The kernel relabels packets of the sessions that were told or active last, so that an agent that stood by
//! can take over at once; all others come up here once by an interface of their own, are relabelled here, and
//! are known to the kernel from then on. What has no label is dropped and counted.

mod controller;
mod leaf;

pub use controller::{Controller, ControllerOptions, LabelMap, incarnation};
pub use leaf::{Held, LeafController, LeafOptions, LeafSwitch, Losses};

use crate::transfer::clock::{Clock, wait};
use polycast_net::bpf::BpfError;
use polycast_net::bpf::frames::relabel_frame;
use polycast_net::bpf::orca::{Counts, KernelAgent, Packets};
use polycast_net::tap::Tap;
use polycast_protocol::switch::{RackLabelError, RackLabels};
use polycast_types::Duration;
use polycast_wire::label::{Fault, Header};
use rustix::event::{PollFd, PollFlags};
use std::io;
use std::os::fd::AsFd as _;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The interface between kernel and user space.
const SLOW: &str = "orca0";
/// Interval between checks whether to stop.
const LOOK_AGAIN: Duration = Duration::from_millis(200);
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
    /// Sessions among them that the kernel knows at the same time.
    pub active_max: u32,
}

/// The agent. It does nothing any more when this and its [`SlowPath`] are dropped.
#[derive(Debug)]
pub struct RackAgent {
    state: Arc<Mutex<State>>,
    /// Faults that have been named in the log.
    named: [bool; Fault::ALL.len()],
}

/// State that the controller and the slow path share.
#[derive(Debug)]
struct State {
    kernel: KernelAgent,
    labels: RackLabels,
    relabelled: u64,
    faults: [u64; Fault::ALL.len()],
}

/// The way of packets whose sessions the kernel does not know. It has a thread of its own, so that no packet
/// holds up a heartbeat.
#[derive(Debug)]
pub struct SlowPath {
    state: Arc<Mutex<State>>,
    slow: Tap,
    buffer: Vec<u8>,
}

impl RackAgent {
    /// Sets the agent up at an interface of the calling thread's network namespace, one a namespace. It
    /// relabels nothing before [`RackAgent::set_active`], and only sessions that the kernel knows before
    /// [`SlowPath::run`].
    ///
    /// # Errors
    /// The kernel refuses it.
    pub fn attach(options: RackOptions, interface: &str) -> Result<(Self, SlowPath), RackError> {
        let mut kernel = KernelAgent::attach(options.packets, interface, options.active_max)?;
        let slow = Tap::open(SLOW).map_err(RackError::Interface)?;
        kernel.set_slow_path(SLOW)?;
        let labels = RackLabels::new(options.packets.label_len as usize, options.sessions_max);
        let state = State { kernel, labels, relabelled: 0, faults: [0; Fault::ALL.len()] };
        let state = Arc::new(Mutex::new(state));
        let agent = RackAgent { state: Arc::clone(&state), named: [false; Fault::ALL.len()] };
        Ok((agent, SlowPath { state, slow, buffer: vec![0; FRAME_LEN_MAX] }))
    }

    /// Sets whether it relabels the packets that it is given. A standby agent does so too: the leaf switch
    /// alone decides which agent gets packets.
    ///
    /// # Errors
    /// The kernel refuses it.
    pub fn set_active(&mut self, active: bool) -> Result<(), RackError> {
        Ok(lock(&self.state).kernel.set_agent(active)?)
    }

    /// Packets dropped for a reason, in the kernel and here.
    ///
    /// # Errors
    /// The kernel refuses to tell.
    pub fn dropped(&self, fault: Fault) -> Result<u64, RackError> {
        let mut state = lock(&self.state);
        Ok(state.kernel.counts()?.fault(fault) + state.faults[fault as usize])
    }

    /// Packets relabelled in the kernel, and here.
    ///
    /// # Errors
    /// The kernel refuses to tell.
    pub fn relabelled(&self) -> Result<(u64, u64), RackError> {
        let mut state = lock(&self.state);
        Ok((state.kernel.counts()?.packets(), state.relabelled))
    }

    /// Returns the counters of the kernel's part.
    ///
    /// # Errors
    /// The kernel refuses to report them.
    pub fn kernel_counts(&self) -> Result<Counts, RackError> {
        Ok(lock(&self.state).kernel.counts()?)
    }
}

fn lock(state: &Mutex<State>) -> MutexGuard<'_, State> {
    // A thread that broke down has changed one entry at most.
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Has the kernel relabel a session as these labels say.
fn tell_kernel(kernel: &mut KernelAgent, labels: &RackLabels, session: u32) -> Result<(), BpfError> {
    kernel.set_spine_label(session, labels.spine_label(session))?;
    match labels.get(session) {
        Some(label) => kernel.set_label(session, label),
        None => kernel.remove_leaf_label(session),
    }
}

impl SlowPath {
    /// Relabels what comes up from the kernel, until `stop` is set.
    ///
    /// # Errors
    /// The kernel refuses something.
    pub fn run(&mut self, stop: &AtomicBool) -> Result<(), RackError> {
        let clock = Clock::start();
        while !stop.load(Ordering::Relaxed) {
            let mut fds = [PollFd::from_borrowed_fd(self.slow.as_fd(), PollFlags::IN)];
            wait(&mut fds, clock.now(), None, LOOK_AGAIN).map_err(RackError::Interface)?;
            while self.relabel_one()? {}
        }
        Ok(())
    }

    /// Relabels one packet; gives whether there was one.
    fn relabel_one(&mut self) -> Result<bool, RackError> {
        let Some(frame) = self.slow.receive(&mut self.buffer).map_err(RackError::Interface)? else {
            return Ok(false);
        };
        // The interface's own words, such as IPv6 has them.
        if frame.get(12..14) != Some(&[8, 0]) {
            return Ok(true);
        }
        let mut state = lock(&self.state);
        match relabel_frame(frame, |packet| state.labels.relabel(packet)) {
            Ok(()) => {
                state.relabelled += 1;
                // An interface that is full drops packets, as any does.
                let _ = self.slow.send(frame);
                let session = Header::parse(&frame[PAYLOAD_AT..]).map(|(header, _)| header.session);
                let State { kernel, labels, .. } = &mut *state;
                if let Ok(session) = session {
                    tell_kernel(kernel, labels, session)?;
                }
            }
            Err(fault) => state.faults[fault as usize] += 1,
        }
        Ok(true)
    }
}

impl LabelMap for RackAgent {
    fn set_label(&mut self, session: u32, label: &[u8]) -> Result<(), RackError> {
        let mut state = lock(&self.state);
        let State { kernel, labels, .. } = &mut *state;
        labels.set(session, label)?;
        Ok(tell_kernel(kernel, labels, session)?)
    }

    fn remove_label(&mut self, session: u32) -> Result<(), RackError> {
        let mut state = lock(&self.state);
        state.labels.remove(session);
        Ok(state.kernel.remove_label(session)?)
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
