//! Status that etcd reports, if managers keep their state in it.

use crate::config::ManagerConfig;
use crate::store::{Etcd as _, Servers, Store, StoreError};
use polycast_api::settings::SettingsError;
use polycast_types::{Printable, format_bytes};
use serde::Serialize;
use std::fmt::Write as _;

/// Status of etcd.
#[derive(Clone, Debug, Serialize)]
pub struct EtcdFindings {
    /// Its servers, in the order of the settings.
    pub servers: Vec<EtcdServerFindings>,
    /// True if etcd takes no change because its database has reached its quota; `None` if no server answers.
    pub full: Option<bool>,
}

/// Status of a server of etcd.
#[derive(Clone, Debug, Serialize)]
pub struct EtcdServerFindings {
    /// Address of the server.
    pub address: String,
    /// True if the server answers.
    pub reached: bool,
    /// Its version.
    pub version: Option<String>,
    /// Length of the server's database file in bytes, which the quota limits.
    pub file_bytes: Option<u64>,
    /// Bytes of that file in use.
    pub in_use_bytes: Option<u64>,
    /// The quota, in bytes, where it tells.
    pub quota_bytes: Option<u64>,
}

/// Asks each server, if the settings name any.
pub(super) async fn look(
    config: &ManagerConfig,
    faults: &mut Vec<String>,
) -> Result<Option<EtcdFindings>, SettingsError> {
    let endpoints = &config.etcd.endpoints;
    if endpoints.is_empty() {
        return Ok(None);
    }
    let wrong =
        |error: StoreError| SettingsError::Value { setting: "etcd.endpoints", reason: error.to_string() };
    let etcd = Servers::new(endpoints, config.etcd.server()?).map_err(wrong)?;
    let mut servers = Vec::new();
    for (at, address) in endpoints.iter().enumerate() {
        let status = etcd.status(at).await.map_err(|error| {
            faults.push(format!(
                "the server of etcd at {address} does not answer: {error} (setting etcd.endpoints)"
            ));
        });
        let status = status.ok();
        let bytes = |count: i64| u64::try_from(count).ok().filter(|count| *count > 0);
        servers.push(EtcdServerFindings {
            address: address.clone(),
            reached: status.is_some(),
            file_bytes: status.as_ref().and_then(|status| bytes(status.db_size)),
            in_use_bytes: status.as_ref().and_then(|status| bytes(status.db_size_in_use)),
            quota_bytes: status.as_ref().and_then(|status| bytes(status.db_size_quota)),
            version: status.map(|status| status.version),
        });
    }
    let full = match servers.iter().any(|server| server.reached) {
        true => Store::new(etcd, &config.etcd.prefix).full_members().await.map(|full| !full.is_empty()),
        false => return Ok(Some(EtcdFindings { servers, full: None })),
    };
    match &full {
        Ok(true) => faults.push(
            "etcd's database is full, and no manager can lead: managers make room by themselves if their own history is what fills \
             it; otherwise remove keys of other programs, or start etcd with a larger --quota-backend-bytes and run \
             `etcdctl alarm disarm`"
                .into(),
        ),
        Ok(false) => {}
        Err(error) => faults.push(format!("etcd does not list its alarms: {error}")),
    }
    Ok(Some(EtcdFindings { servers, full: full.ok() }))
}

impl EtcdFindings {
    /// The same for people.
    pub(super) fn write(&self, text: &mut String) {
        // Writing to a string cannot fail.
        for EtcdServerFindings { address, reached, version, file_bytes, in_use_bytes, quota_bytes } in
            &self.servers
        {
            let state = if *reached { "answers" } else { "does not answer" };
            let version = version.as_deref().map(|version| format!(" ({})", Printable(version)));
            let _ = write!(text, "etcd {address}{} {state}", version.unwrap_or_default());
            if let (Some(file), Some(in_use)) = (file_bytes, in_use_bytes) {
                let _ = write!(text, "; {} of its {} are in use", format_bytes(*in_use), format_bytes(*file));
            }
            if let Some(quota) = quota_bytes {
                let _ = write!(text, ", and it may have {}", format_bytes(*quota));
            }
            text.push('\n');
        }
    }
}
