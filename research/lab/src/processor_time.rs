//! Processor time of programs.

use serde::{Deserialize, Serialize};

/// Processor time of a process, in seconds. Where the kernel does the work of a lab's switches, it does so in
/// the time of whichever process it interrupts, above all of the one that has sent something: only the first
/// is the process's own.
#[derive(Clone, Copy, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct ProcessorTime {
    /// Its own work.
    pub user_s: f64,
    /// The kernel's in its time.
    pub system_s: f64,
}

impl ProcessorTime {
    /// Both.
    #[must_use]
    pub fn total_s(&self) -> f64 {
        self.user_s + self.system_s
    }

    /// Returns the time used since an earlier reading.
    #[must_use]
    pub fn since(&self, earlier: ProcessorTime) -> ProcessorTime {
        ProcessorTime { user_s: self.user_s - earlier.user_s, system_s: self.system_s - earlier.system_s }
    }
}
