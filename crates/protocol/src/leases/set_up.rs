//! Set-up of paths at their devices (Republic section III-B: a request is accepted before its path is there).
//!
//! A path is leased at once, and its devices are commanded meanwhile. Where they fail, the path moves to
//! another fabric, or waits while they are commanded again. A path that is given back is kept ready for a
//! while: a request for the same hosts gets it as it is, without any device being set.

use super::state::RecordKey;
use super::words::{Output, PathState};
use super::{Leases, OnDeviceFailure};
use alloc::string::String;
use alloc::vec::Vec;
use polycast_planning::{DeviceCommand, Plan, PlanId, Running};
use polycast_types::{Duration, Time};

/// Pauses before devices are told again: the first, and the longest.
const PAUSES: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(1));

impl Leases {
    /// The devices of a path have answered.
    pub(super) fn set_up(&mut self, now: Time, id: PlanId, result: Result<(), String>) {
        // One that has been given back meanwhile needs nothing.
        let Some(lease) = self.leases.get_mut(&id) else { return };
        let Err(reason) = result else {
            lease.tries = 0;
            return self.tell(id, PathState::Ready);
        };
        // A stream has no end by which another fabric's path would come back: it waits for its own.
        if self.config.on_device_failure == OnDeviceFailure::Fallback
            && !lease.key.is_stream()
            && !lease.only
            && let Some(running) = self.network.get(id)
            && let Ok(plan) = self.fabrics.plan_without(&self.network, &running.group, running.plan.fabric)
        {
            return self.replace(id, plan, Some(reason));
        }
        let Some(lease) = self.leases.get_mut(&id) else { return };
        let pause = (PAUSES.0 * (1 << lease.tries.min(4))).min(PAUSES.1);
        lease.tries = lease.tries.saturating_add(1);
        self.retries.insert((now + pause, id));
        self.tell(id, PathState::Waits { reason });
    }

    fn tell(&mut self, id: PlanId, state: PathState) {
        if let Some(lease) = self.leases.get(&id) {
            let request = lease.key.clone();
            self.outputs.push_back(Output::Path { plan_id: id, request, state });
        }
    }

    /// Has devices told again whose time has come.
    pub(super) fn retry(&mut self, now: Time) {
        while let Some((at, id)) = self.retries.first().copied()
            && at <= now
        {
            self.retries.pop_first();
            if let Some(lease) = self.leases.get(&id) {
                let plan = lease.grant.plan.clone();
                self.outputs.push_back(Output::Again { plan_id: id, plan });
            }
        }
    }

    /// Keeps a path ready that was given back in good order. Gives whether devices go on to hold it.
    pub(super) fn keep_ready(&mut self, running: Running) -> bool {
        if self.config.kept_max == 0 || running.plan.commands.is_empty() {
            return false;
        }
        self.network.keep(running);
        self.touch(RecordKey::Kept);
        self.forget_surplus();
        true
    }

    /// Forgets the oldest of the paths kept ready, where there are too many.
    pub(super) fn forget_surplus(&mut self) {
        while self.network.kept().count() > self.config.kept_max {
            let Some(oldest) = self.network.forget_oldest() else { break };
            self.touch(RecordKey::Kept);
            self.outputs.push_back(Output::Forgotten { plan: oldest.plan });
        }
    }

    /// Takes out the paths kept ready that share something with one that is taken over, which may be among
    /// them: devices let go of what it does not need itself.
    pub(super) fn make_way(&mut self, plan: &Plan) {
        if plan.commands.is_empty() {
            return;
        }
        for Running { plan: mut displaced, .. } in self.network.displace(plan) {
            self.touch(RecordKey::Kept);
            displaced.commands.change(|all| all.retain(|command| !plan.commands.contains(command)));
            if !displaced.commands.is_empty() {
                self.outputs.push_back(Output::Forgotten { plan: displaced });
            }
        }
    }

    /// Takes out the paths kept ready that share something with `plan`; gives what devices hold for them.
    pub(super) fn displace(&mut self, plan: &Plan) -> Vec<DeviceCommand> {
        if plan.commands.is_empty() {
            return Vec::new();
        }
        let displaced = self.network.displace(plan);
        if !displaced.is_empty() {
            self.touch(RecordKey::Kept);
        }
        displaced.iter().flat_map(|running| running.plan.commands.iter().cloned()).collect()
    }
}
