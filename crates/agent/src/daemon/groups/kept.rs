//! The groups of an agent as its store keeps them for the next run.

use super::super::store::Store;
use polycast_api::manager::channel::Channel;
use polycast_api::manager::{self as api, Lease, Multicast};
use polycast_net::store::sync_folder;
use polycast_protocol::leases::GROUPS_FROM;
use polycast_types::AppId;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Write as _};

/// The file, and its name while it is written.
const FILE: &str = ".groups.json";
const PASSING: &str = ".groups.new";

/// Knowledge of a group that the next run needs.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Kept {
    /// The user of this host that has made it.
    pub uid: u32,
    /// Number of its request, in all runs.
    pub request: u64,
    pub members: Vec<String>,
    /// Hosts that send beside this one; a run that knows of none reads a file without them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub further_sources: Vec<String>,
    /// Fabric that has to carry it; empty for any.
    pub fabric: String,
    pub rate_bps: Option<u64>,
    pub path: Option<Path>,
}

/// A group's path.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Path {
    pub response: u64,
    pub members: Vec<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    further_sources: Vec<String>,
    pub fabric: String,
    pub address: String,
    pub port: u16,
    pub rate_bps: Option<u64>,
    attempt_interval_ns: u64,
    accepted_bytes: u64,
    /// The plan in the manager's form, which is text.
    plan: String,
}

impl Path {
    /// The path of a lease, if it is one to a group address.
    pub(super) fn of(lease: &Lease) -> Option<Self> {
        let Some(Channel::Multicast(multicast)) = lease.channel.as_ref()?.channel.clone() else {
            return None;
        };
        Some(Path {
            response: lease.response_id,
            members: lease.receivers.clone(),
            further_sources: lease.further_sources.clone(),
            fabric: lease.fabric.clone(),
            address: multicast.address,
            port: u16::try_from(multicast.port).ok()?,
            rate_bps: multicast.rate_bps,
            attempt_interval_ns: multicast.attempt_interval_ns,
            accepted_bytes: lease.accepted_size,
            plan: String::from_utf8(lease.plan.clone()).ok()?,
        })
    }

    /// The lease of a group with this request.
    pub(super) fn lease(&self, request: u64) -> Lease {
        let multicast = Multicast {
            address: self.address.clone(),
            port: self.port.into(),
            rate_bps: self.rate_bps,
            attempt_interval_ns: self.attempt_interval_ns,
        };
        Lease {
            request_id: request,
            response_id: self.response,
            receivers: self.members.clone(),
            further_sources: self.further_sources.clone(),
            accepted_size: self.accepted_bytes,
            fabric: self.fabric.clone(),
            channel: Some(api::Channel { channel: Some(Channel::Multicast(multicast)) }),
            app_id: AppId::default().0.to_vec(),
            data_id: request - GROUPS_FROM,
            left_ms: None,
            plan: self.plan.clone().into_bytes(),
            or_fail: true,
        }
    }
}

/// Reads the groups that an earlier run has kept in the store.
pub(super) fn read(store: &Store) -> Result<BTreeMap<String, Kept>, String> {
    let text = match fs::read(store.folder().join(FILE)) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(BTreeMap::new()),
        text => text.map_err(|error| error.to_string())?,
    };
    let mut kept: BTreeMap<String, Kept> =
        serde_json::from_slice(&text).map_err(|error| error.to_string())?;
    kept.retain(|_, kept| kept.request >= GROUPS_FROM);
    Ok(kept)
}

/// Writes the groups down for the next run: a killed agent leaves the old file or the new one.
pub(super) fn write(store: &Store, kept: &BTreeMap<String, Kept>) -> io::Result<()> {
    let (passing, file) = (store.folder().join(PASSING), store.folder().join(FILE));
    let mut new = File::create(&passing)?;
    new.write_all(&serde_json::to_vec(kept)?)?;
    if !store.is_in_memory() {
        new.sync_data()?;
    }
    fs::rename(&passing, &file)?;
    if store.is_in_memory() { Ok(()) } else { sync_folder(store.folder()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The lease that the next run names is the one that was granted.
    #[test]
    fn a_path_is_named_as_it_was_granted() {
        let multicast = Multicast {
            address: "239.255.64.3".into(),
            port: 7410,
            rate_bps: Some(5),
            attempt_interval_ns: 1_000,
        };
        let lease = Lease {
            request_id: GROUPS_FROM + 9,
            response_id: 44,
            receivers: vec!["b".into(), "c".into()],
            further_sources: vec!["d".into()],
            accepted_size: 1 << 40,
            fabric: "ocs".into(),
            channel: Some(api::Channel { channel: Some(Channel::Multicast(multicast)) }),
            app_id: AppId::default().0.to_vec(),
            data_id: 9,
            left_ms: None,
            plan: b"{\"fabric\":\"ocs\"}".to_vec(),
            or_fail: true,
        };
        let folder = tempfile::tempdir().unwrap();
        let (store, _) = Store::open(folder.path()).unwrap();
        assert_eq!(read(&store), Ok(BTreeMap::new()));
        let kept = Kept {
            uid: 7,
            request: GROUPS_FROM + 9,
            members: vec!["b".into(), "c".into()],
            further_sources: vec!["d".into()],
            fabric: String::new(),
            rate_bps: None,
            path: Path::of(&lease),
        };
        let all = BTreeMap::from([("prices".to_string(), kept.clone())]);
        write(&store, &all).unwrap();
        assert_eq!(read(&store), Ok(all));
        assert_eq!(kept.path.unwrap().lease(kept.request), lease);
        let chain = api::Channel { channel: Some(Channel::Chain(api::Chain {})) };
        assert_eq!(Path::of(&Lease { channel: Some(chain), ..lease }), None);
        fs::write(folder.path().join(FILE), "{").unwrap();
        assert!(read(&store).is_err());
    }
}
