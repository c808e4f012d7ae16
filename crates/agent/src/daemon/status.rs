//! State of the agent at one moment, for one of its users: what `polycast status` and `polycast ls` ask for,
//! and the page shows.

use super::catalog::Snapshot;
use super::convert;
use super::manager_link::LinkState;
use super::sends::Sends;
use super::shared::Shared;
use super::users::User;
use polycast_api::PROTOCOL_VERSION;
use polycast_api::agent::transfer::Direction;
use polycast_api::agent::{Object, StatusResponse, Transfer};
use polycast_types::{AppId, ObjectId};

/// The agent's state, without what only the manager knows. Looks at files.
pub(super) fn status(shared: &Shared, sends: &Sends, user: User) -> StatusResponse {
    let rests = match user.is_other() {
        true => Vec::new(),
        false => shared.limits.rests(&shared.catalog, &shared.store),
    };
    let state = shared.link.state();
    StatusResponse {
        protocol_version: PROTOCOL_VERSION,
        agent_name: shared.name.clone(),
        interface_address: shared.interface().to_string(),
        control_address: shared.place().control.to_string(),
        manager_address: shared.link.manager(),
        manager_connected: state == LinkState::Joined,
        manager_error: match state {
            LinkState::Joined => String::new(),
            LinkState::Away { reason, .. } => reason,
        },
        store: shared.store.folder().to_string_lossy().into_owned(),
        store_free_bytes: shared.store.free_bytes().unwrap_or(0),
        uptime_seconds: shared.started.elapsed().as_secs(),
        registered_processes: u32::try_from(shared.processes.count()).unwrap_or(u32::MAX),
        transfers: transfers(shared, sends, user),
        store_max_bytes: shared.limits.most(),
        store_used_bytes: shared.catalog.stored_bytes(None),
        rests: rests.into_iter().map(convert::rest).collect(),
        clock_ahead_s: shared.link.clock_ahead_s(),
        descriptors_max: rustix::process::getrlimit(rustix::process::Resource::Nofile).current,
        ..StatusResponse::default()
    }
}

/// The objects that this user may see: of an application, or of all.
pub(super) fn objects(shared: &Shared, app: Option<AppId>, user: User) -> Vec<Object> {
    let objects = shared.catalog.list(app).into_iter();
    let objects = objects.filter(|(_, snapshot)| snapshot.is_for(user));
    objects.map(|(id, snapshot)| convert::object(id, snapshot, &shared.store.path(id), user)).collect()
}

/// Returns false for an object that is here and that this user must not see.
pub(super) fn is_visible(shared: &Shared, id: ObjectId, user: User) -> bool {
    shared.catalog.get(id).is_none_or(|there| there.is_for(user))
}

/// The transfers that this user may see.
fn transfers(shared: &Shared, sends: &Sends, user: User) -> Vec<Transfer> {
    let mut transfers = Vec::new();
    for (id, standing) in sends.list().into_iter().filter(|(id, _)| is_visible(shared, *id, user)) {
        let report = standing.report;
        let slowest = report.iter().flat_map(|report| &report.receivers).map(|receiver| receiver.bytes).min();
        transfers.push(Transfer {
            app_id: id.app.0.to_vec(),
            data_id: id.data.0,
            direction: Direction::Sending.into(),
            length: report.as_ref().map_or(0, |report| report.bytes),
            bytes: slowest.unwrap_or(0),
            report: report.map(|report| report.as_ref().into()),
            waiting: standing.granted.is_none().then(|| convert::waiting(standing.waiting.as_ref())),
            granted: standing.granted.as_ref().map(convert::granted),
            spared_bytes: 0,
        });
    }
    let objects = shared.catalog.list(None).into_iter();
    for (id, snapshot) in objects.filter(|(_, snapshot)| snapshot.is_for(user)) {
        if let Snapshot::Receiving { bytes, spared, total, .. } = snapshot {
            transfers.push(Transfer {
                app_id: id.app.0.to_vec(),
                data_id: id.data.0,
                direction: Direction::Receiving.into(),
                length: total,
                bytes,
                spared_bytes: spared,
                ..Transfer::default()
            });
        }
    }
    transfers
}
