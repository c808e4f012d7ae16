//! The processes that have registered (Table I: `register`, `unregister`).
//!
//! Registrations say who uses the agent; objects belong to the application, not to a process, so nothing
//! is removed when the last process of an application unregisters. A process that dies without
//! unregistering is forgotten when the next one registers.

use polycast_api::error::{Kind, Refusal};
use polycast_types::AppId;
use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The table of registered processes.
pub struct Processes {
    /// With the process at the other end of the socket, if the system tells.
    table: Mutex<BTreeMap<(AppId, u64), Option<i32>>>,
    most: usize,
}

impl Processes {
    pub fn new(most: usize) -> Self {
        Processes { table: Mutex::new(BTreeMap::new()), most }
    }

    /// Registers a process; again is no error.
    pub fn register(&self, app: AppId, process: u64, system_pid: Option<i32>) -> Result<(), Refusal> {
        let mut table = self.lock();
        table.retain(|_, pid| pid.is_none_or(is_alive));
        if table.len() >= self.most && !table.contains_key(&(app, process)) {
            let message = format!("{} processes are registered, which is this agent's limit", table.len());
            return Err(Refusal::new(Kind::Full, message));
        }
        table.insert((app, process), system_pid);
        Ok(())
    }

    /// Ends a registration; gives how many processes of the application are left.
    pub fn unregister(&self, app: AppId, process: u64) -> Result<u32, Refusal> {
        let mut table = self.lock();
        if table.remove(&(app, process)).is_none() {
            return Err(not_registered(process));
        }
        let left = table.range((app, 0)..=(app, u64::MAX)).count();
        Ok(u32::try_from(left).unwrap_or(u32::MAX))
    }

    /// Whether a process has registered.
    pub fn check(&self, app: AppId, process: u64) -> Result<(), Refusal> {
        if self.lock().contains_key(&(app, process)) { Ok(()) } else { Err(not_registered(process)) }
    }

    pub fn count(&self) -> usize {
        self.lock().len()
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<(AppId, u64), Option<i32>>> {
        // Nothing here panics between two changes that belong together.
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn not_registered(process: u64) -> Refusal {
    Refusal::new(Kind::NotRegistered, format!("process {process} of this application has not registered"))
}

/// Whether there is such a process; one of another user is one too.
fn is_alive(pid: i32) -> bool {
    let Some(pid) = rustix::process::Pid::from_raw(pid) else { return true };
    rustix::process::test_kill_process(pid) != Err(rustix::io::Errno::SRCH)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processes_come_and_go() {
        let processes = Processes::new(2);
        let (a, b) = (AppId([1; 16]), AppId([2; 16]));
        processes.register(a, 1, None).unwrap();
        processes.register(a, 1, None).unwrap();
        processes.register(a, 2, None).unwrap();
        assert_eq!(processes.register(b, 1, None).unwrap_err().kind, Kind::Full);
        assert_eq!(processes.unregister(a, 1).unwrap(), 1);
        assert_eq!(processes.unregister(a, 1).unwrap_err().kind, Kind::NotRegistered);
        assert!(processes.check(a, 2).is_ok());
        assert!(processes.check(a, 1).is_err());
        assert!(processes.check(b, 2).is_err());
    }

    #[test]
    fn the_dead_are_forgotten() {
        let processes = Processes::new(1);
        let mut child = std::process::Command::new("true").spawn().unwrap();
        let pid = i32::try_from(child.id()).unwrap();
        child.wait().unwrap();
        processes.register(AppId::default(), 1, Some(pid)).unwrap();
        let own = i32::try_from(std::process::id()).unwrap();
        processes.register(AppId::default(), 2, Some(own)).unwrap();
        assert_eq!(processes.count(), 1);
        assert_eq!(processes.register(AppId::default(), 3, None).unwrap_err().kind, Kind::Full);
    }
}
