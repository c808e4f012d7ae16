//! The processes that have registered (Table I: `register`, `unregister`).
//!
//! Registrations say which processes use the agent; objects belong to the application, not to a process, so
//! nothing is removed when the last process of an application unregisters. A process that dies without
//! unregistering is forgotten when the next one registers.

use super::users::User;
use polycast_api::error::{Kind, Refusal};
use polycast_types::AppId;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// For how long a process that cannot be looked for has said nothing when its place is another one's.
const SILENT_ENOUGH: Duration = Duration::from_secs(60);

/// The table of registered processes.
pub(crate) struct Processes {
    table: Mutex<BTreeMap<(AppId, u64), Registered>>,
    most: usize,
}

/// One of them.
struct Registered {
    /// The process at the other end of the socket, if the system tells. One outside of the agent's container
    /// has none here.
    pid: Option<i32>,
    user: User,
    /// Time of its last message; an open call of the process holds this too.
    heard_at: Arc<Mutex<Instant>>,
}

impl Registered {
    /// Returns true if it may have gone: it cannot be looked up, has no open call, and has been silent for
    /// long.
    fn may_have_gone(&self) -> bool {
        self.pid.is_none_or(|pid| pid <= 0)
            && Arc::strong_count(&self.heard_at) == 1
            && heard(&self.heard_at).elapsed() >= SILENT_ENOUGH
    }
}

/// A call that is open: as long as this lives its process is there.
#[derive(Debug)]
pub(crate) struct Call(Arc<Mutex<Instant>>);

impl Drop for Call {
    fn drop(&mut self) {
        *heard(&self.0) = Instant::now();
    }
}

fn heard(at: &Mutex<Instant>) -> MutexGuard<'_, Instant> {
    at.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Processes {
    pub(crate) fn new(most: usize) -> Self {
        Processes { table: Mutex::new(BTreeMap::new()), most }
    }

    /// Registers a process; again is no error.
    pub(crate) fn register(
        &self,
        app: AppId,
        process: u64,
        user: User,
        pid: Option<i32>,
    ) -> Result<(), Refusal> {
        let mut table = self.lock();
        table.retain(|_, one| one.pid.is_none_or(is_alive));
        if table.len() >= self.most {
            // Where there is no place left, those go that cannot be looked for: one that is there registers
            // again.
            table.retain(|_, one| !one.may_have_gone());
        }
        if table.len() >= self.most && !table.contains_key(&(app, process)) {
            let message = format!("{} processes are registered, which is this agent's limit", table.len());
            return Err(Refusal::new(Kind::Full, message));
        }
        if table.get(&(app, process)).is_some_and(|one| !user.may_end(Some(one.user.uid()))) {
            let message =
                format!("process {process} of this application is another user's: take another number");
            return Err(Refusal::new(Kind::NotAllowed, message));
        }
        let is_own = |one: &Registered| one.user.uid() == user.uid();
        let count = |table: &BTreeMap<_, Registered>| table.values().filter(|one| is_own(one)).count();
        if !table.contains_key(&(app, process)) && count(&table) >= user.share(self.most) {
            // The same where a user has taken its part.
            table.retain(|_, one| !(is_own(one) && one.may_have_gone()));
            let own = count(&table);
            if own >= user.share(self.most) {
                return Err(user.too_many(own, "processes"));
            }
        }
        // Calls of this process may be open.
        let before = table.get(&(app, process)).map(|one| Arc::clone(&one.heard_at));
        let heard_at = before.unwrap_or_else(|| Arc::new(Mutex::new(Instant::now())));
        *heard(&heard_at) = Instant::now();
        table.insert((app, process), Registered { pid, user, heard_at });
        Ok(())
    }

    /// Ends a registration; gives how many processes of the application are left.
    pub(crate) fn unregister(&self, app: AppId, process: u64, user: User) -> Result<u32, Refusal> {
        self.check(app, process, user)?;
        let mut table = self.lock();
        table.remove(&(app, process));
        let left = table.range((app, 0)..=(app, u64::MAX)).count();
        Ok(u32::try_from(left).unwrap_or(u32::MAX))
    }

    /// Checks that a process of this user has registered. The result is held for as long as the process's
    /// call is open.
    pub(crate) fn check(&self, app: AppId, process: u64, user: User) -> Result<Call, Refusal> {
        match self.lock().get(&(app, process)) {
            Some(one) if user.may_end(Some(one.user.uid())) => {
                *heard(&one.heard_at) = Instant::now();
                Ok(Call(Arc::clone(&one.heard_at)))
            }
            _ => Err(not_registered(process)),
        }
    }

    pub(crate) fn count(&self) -> usize {
        self.lock().len()
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<(AppId, u64), Registered>> {
        // Nothing here panics between two changes that belong together.
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn not_registered(process: u64) -> Refusal {
    Refusal::new(Kind::NotRegistered, format!("process {process} of this application has not registered"))
}

/// Returns true if the process exists, even one of another user.
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
        let user = User::agent();
        processes.register(a, 1, user, None).unwrap();
        processes.register(a, 1, user, None).unwrap();
        processes.register(a, 2, user, None).unwrap();
        assert_eq!(processes.register(b, 1, user, None).unwrap_err().kind, Kind::Full);
        assert_eq!(processes.unregister(a, 1, user).unwrap(), 1);
        assert_eq!(processes.unregister(a, 1, user).unwrap_err().kind, Kind::NotRegistered);
        assert!(processes.check(a, 2, user).is_ok());
        assert!(processes.check(a, 1, user).is_err());
        assert!(processes.check(b, 2, user).is_err());
    }

    #[test]
    fn those_that_cannot_be_looked_for_give_way_when_they_have_been_silent() {
        let processes = Processes::new(2);
        let (app, user) = (AppId::default(), User::agent());
        for process in 1..=2 {
            processes.register(app, process, user, Some(0)).unwrap();
        }
        assert_eq!(processes.register(app, 3, user, Some(0)).unwrap_err().kind, Kind::Full);
        silence(&processes);
        processes.check(app, 2, user).unwrap();
        processes.register(app, 3, user, Some(0)).unwrap();
        assert!(processes.check(app, 1, user).is_err() && processes.check(app, 2, user).is_ok());
    }

    /// All have been silent for long.
    fn silence(processes: &Processes) {
        for one in processes.lock().values() {
            *heard(&one.heard_at) = Instant::now().checked_sub(SILENT_ENOUGH).unwrap();
        }
    }

    /// One user has a part of the places, and those of its processes that may have gone are not in the way of
    /// its next one.
    #[test]
    fn silent_processes_of_a_user_with_its_part_give_way() {
        let processes = Processes::new(8);
        let (app, user, another) = (AppId::default(), User::numbered(1_001), User::numbered(1_002));
        for process in 1..=2 {
            processes.register(app, process, user, Some(0)).unwrap();
        }
        processes.register(app, 7, another, Some(0)).unwrap();
        assert_eq!(processes.register(app, 3, user, Some(0)).unwrap_err().kind, Kind::Full);
        silence(&processes);
        processes.register(app, 3, user, Some(0)).unwrap();
        assert_eq!(processes.count(), 2, "those of other users stay");
        processes.check(app, 7, another).unwrap();
    }

    /// A process that waits in one long call says nothing, and is there.
    #[test]
    fn one_that_has_a_call_open_is_there() {
        let processes = Processes::new(1);
        let (app, user) = (AppId::default(), User::agent());
        processes.register(app, 1, user, None).unwrap();
        let call = processes.check(app, 1, user).unwrap();
        processes.register(app, 1, user, None).unwrap();
        silence(&processes);
        assert_eq!(processes.register(app, 2, user, None).unwrap_err().kind, Kind::Full);
        drop(call);
        assert_eq!(processes.register(app, 2, user, None).unwrap_err().kind, Kind::Full, "it has just ended");
        silence(&processes);
        processes.register(app, 2, user, None).unwrap();
    }

    #[test]
    fn the_dead_are_forgotten() {
        let processes = Processes::new(1);
        let mut child = crate::daemon::limits::tests::spawn(&mut std::process::Command::new("true"));
        let pid = i32::try_from(child.id()).unwrap();
        child.wait().unwrap();
        processes.register(AppId::default(), 1, User::agent(), Some(pid)).unwrap();
        let own = i32::try_from(std::process::id()).unwrap();
        processes.register(AppId::default(), 2, User::agent(), Some(own)).unwrap();
        assert_eq!(processes.count(), 1);
        assert_eq!(
            processes.register(AppId::default(), 3, User::agent(), None).unwrap_err().kind,
            Kind::Full
        );
    }
}
