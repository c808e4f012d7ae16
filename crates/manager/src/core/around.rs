//! Surroundings of a core that belong to the machine and the network: the time of day, and the devices.

use crate::config::ManagerConfig;
use crate::devices::{Device, DeviceId};
use crate::fabrics::{self, Hosts};
use crate::guard::Guard;
use crate::leader::standbys::Lookout;
use polycast_api::settings::SettingsError;
use polycast_net::tls::Security;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

type Wall = dyn Fn() -> u64 + Send + Sync;
type Devices = BTreeMap<DeviceId, Box<dyn Device>>;
type MakeDevices = fn(&ManagerConfig, &Hosts, Option<&Security>) -> Result<Devices, SettingsError>;

/// The world as a core sees it, and what it may allow. Tests have one of their own.
#[derive(Clone)]
pub(crate) struct Around {
    wall: Arc<Wall>,
    devices: MakeDevices,
    /// Security of connections to devices that belong to the manager, if they support it.
    security: Option<Security>,
    guard: Arc<Guard>,
    lookout: Arc<Lookout>,
}

impl Default for Around {
    fn default() -> Self {
        // Agents are told the time when they join, and count on by themselves: where the host's clock is set
        // later, permits go on from what they know, and numbers that rise do not fall.
        let (begun, begun_at) = (SystemTime::now(), Instant::now());
        let wall = move || {
            let since_epoch = begun.duration_since(UNIX_EPOCH).unwrap_or_default() + begun_at.elapsed();
            u64::try_from(since_epoch.as_nanos()).unwrap_or(u64::MAX)
        };
        Around {
            wall: Arc::new(wall),
            devices: fabrics::devices,
            security: None,
            guard: Arc::default(),
            lookout: Arc::default(),
        }
    }
}

impl fmt::Debug for Around {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Around").finish_non_exhaustive()
    }
}

impl Around {
    /// One with another time, and with these devices.
    #[cfg(test)]
    pub(crate) fn pretended(wall: Arc<Wall>, devices: MakeDevices) -> Self {
        Around { wall, devices, ..Around::default() }
    }

    /// The machine's and the network's, for a manager that shows itself so.
    #[must_use]
    pub(crate) fn secured(security: Option<Security>) -> Self {
        Around { security, ..Around::default() }
    }

    /// The same with this guard.
    pub(crate) fn guarded(self, guard: &Arc<Guard>) -> Self {
        Around { guard: Arc::clone(guard), ..self }
    }

    /// Returns how this manager proves its name, and which ends it takes for members.
    pub(crate) fn security(&self) -> Option<&Security> {
        self.security.as_ref()
    }

    /// Returns the guard, which knows what is allowed.
    pub(crate) fn guard(&self) -> Arc<Guard> {
        Arc::clone(&self.guard)
    }

    /// Returns what this manager has seen of the others and of etcd.
    pub(crate) fn lookout(&self) -> Arc<Lookout> {
        Arc::clone(&self.lookout)
    }

    /// The time of day, in nanoseconds, as it was when this manager began and has gone on since then.
    pub(crate) fn wall_ns(&self) -> u64 {
        (self.wall)()
    }

    pub(super) fn devices(&self, config: &ManagerConfig, hosts: &Hosts) -> Result<Devices, SettingsError> {
        (self.devices)(config, hosts, self.security.as_ref())
    }
}
