//! Handling of an etcd whose database has reached its quota: etcd takes no change then, and no manager can
//! lead.
//!
//! Etcd measures the file that the database is in. Compaction gives room back within the file only, so that
//! the next steps are to defragment it, which makes it shorter, and to take the alarm back, which etcd never
//! does by itself. A server that is defragmented answers nothing meanwhile: this is done only while the alarm
//! stands, when nothing can be written anyway, and by each manager only once until a key is removed.

use super::{Etcd, Store, StoreError, api};
use api::alarm_request::AlarmAction;
use polycast_types::format_bytes;
use std::collections::BTreeMap;
use std::sync::{MutexGuard, PoisonError};
use std::time::Duration;

/// A compaction whose end is waited for, or a defragmentation, may take so long. What is in use is copied: of
/// the 8 GiB that etcd's authors advise at most, a disk that writes 72 MB a second copies all in this time.
pub(super) const LONG_TIMEOUT: Duration = Duration::from_secs(120);
/// One part in so many of the quota has to be free for the alarm to be taken back. With less it would stand
/// again soon, and each time all servers would be defragmented. Where the quota is not known, what is taken
/// for it is too much by what was written in the tenth of a second between two looks of etcd.
const FREE_PART: u64 = 8;

/// Reason why there is no room in etcd, and the way to make some.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub(crate) enum Lack {
    /// The data in use is as much as it takes.
    #[error(
        "{} are in use, though its history is forgotten, and it is full at {}: remove keys of other programs there, or start etcd with \
         a larger --quota-backend-bytes and run `etcdctl alarm disarm`",
        format_bytes(*in_use_bytes),
        format_bytes(*quota_bytes)
    )]
    InUse {
        /// As etcd counts.
        in_use_bytes: u64,
        /// The quota, or what is taken for it.
        quota_bytes: u64,
    },
    /// A server does not make its file shorter.
    #[error(
        "its server at {address} could not be defragmented ({reason}): run `etcdctl defrag` and `etcdctl alarm disarm` as a user that may"
    )]
    Fragmented {
        /// As the settings say.
        address: String,
        /// Reason that it gave.
        reason: String,
    },
    /// One that this manager cannot defragment, because it does not reach it.
    #[error(
        "its member {member:x} is full, and no server in etcd.endpoints that answers is that member: name it there or start it, or run \
         `etcdctl defrag` at it and `etcdctl alarm disarm`"
    )]
    Unreached {
        /// Its number.
        member: u64,
    },
    /// It was not done.
    #[error("no room could be made in it: {0}")]
    Failed(String),
}

impl From<StoreError> for Lack {
    fn from(error: StoreError) -> Self {
        Lack::Failed(error.to_string())
    }
}

/// Facts about an etcd that is full, since its alarm stands.
#[derive(Debug, Default)]
pub(super) struct Fullness {
    /// Length of a full member's file when it was first checked. Servers before etcd 3.6 do not report their
    /// quota, and this is the quota, or nearly so.
    file_bytes: Option<u64>,
    /// At which revision we have defragmented which member.
    defragmented: BTreeMap<u64, i64>,
}

/// Size that a server reports of its database.
struct Size {
    member: u64,
    file_bytes: u64,
    in_use_bytes: u64,
    /// 0 where it does not tell.
    quota_bytes: u64,
    revision: i64,
}

impl From<api::StatusResponse> for Size {
    fn from(status: api::StatusResponse) -> Self {
        let header = status.header.unwrap_or_default();
        Size {
            member: header.member_id,
            file_bytes: status.db_size.unsigned_abs(),
            in_use_bytes: status.db_size_in_use.unsigned_abs(),
            quota_bytes: status.db_size_quota.unsigned_abs(),
            revision: header.revision,
        }
    }
}

impl<E: Etcd> Store<E> {
    /// The members that are full, by their numbers. All of etcd takes no change as long as there is one.
    pub(crate) async fn full_members(&self) -> Result<Vec<u64>, StoreError> {
        let request = api::AlarmRequest { action: AlarmAction::Get.into(), ..api::AlarmRequest::default() };
        let alarms = self.etcd.alarm(request).await?.alarms.into_iter();
        // There are others, which no manager may take back.
        Ok(alarms.filter(|one| one.alarm() == api::AlarmType::Nospace).map(|one| one.member_id).collect())
    }

    /// Makes room in an etcd that is full, as far as it can be made without the loss of a key, and takes the
    /// alarms back if there is some. It can be done by several managers, and again.
    pub(crate) async fn make_room(&self) -> Result<(), Lack> {
        let full = self.full_members().await?;
        if full.is_empty() {
            self.is_full_no_more();
            return Ok(());
        }
        let mut reached = Vec::new();
        let mut silent = StoreError::Etcd("no server of it is named".into());
        for (at, address) in self.etcd.servers().into_iter().enumerate() {
            match self.etcd.status(at).await.map(Size::from) {
                Ok(size) => reached.push((at, address, size)),
                Err(error) => silent = error,
            }
        }
        let Some(revision) = reached.iter().map(|(_, _, size)| size.revision).max() else {
            return Err(silent.into());
        };
        if let Some((.., size)) = reached.iter().find(|(.., size)| full.contains(&size.member)) {
            self.fullness().file_bytes.get_or_insert(size.file_bytes);
        }
        // No manager leads or can lead, and so none needs any of the past.
        self.compact(revision, true).await?;
        for (at, address, _) in &reached {
            self.shorten(*at, address, revision).await?;
        }
        let is_reached = |member: &&u64| reached.iter().any(|(.., size)| size.member == **member);
        if let Some(member) = full.iter().find(|member| !is_reached(member)) {
            return Err(Lack::Unreached { member: *member });
        }
        for member_id in full {
            let (action, alarm) = (AlarmAction::Deactivate.into(), api::AlarmType::Nospace.into());
            self.etcd.alarm(api::AlarmRequest { action, member_id, alarm }).await?;
        }
        self.is_full_no_more();
        Ok(())
    }

    /// Makes a server's file as short as it has to be, if it can be.
    async fn shorten(&self, at: usize, address: &str, revision: i64) -> Result<(), Lack> {
        let size = Size::from(self.etcd.status(at).await?);
        let quota_bytes = match size.quota_bytes {
            0 => self.fullness().file_bytes.unwrap_or(0),
            quota => quota,
        };
        let most = quota_bytes - quota_bytes / FREE_PART;
        if size.file_bytes <= most {
            return Ok(());
        }
        // What etcd says is in use may be too much: what a compaction has given back counts only with the
        // next change, and that can be long in coming where none can be made. After a defragmentation it is
        // right.
        let was_defragmented = self.fullness().defragmented.get(&size.member) == Some(&revision);
        if was_defragmented {
            return Err(Lack::InUse { in_use_bytes: size.in_use_bytes, quota_bytes });
        }
        // Another manager may have done so meanwhile.
        if self.full_members().await?.is_empty() {
            return Ok(());
        }
        tracing::warn!(
            server = address,
            file_bytes = size.file_bytes,
            "etcd is full: its server is defragmented"
        );
        if let Err(error) = self.etcd.defragment(at).await {
            return Err(Lack::Fragmented { address: address.to_string(), reason: error.to_string() });
        }
        self.fullness().defragmented.insert(size.member, revision);
        let size = Size::from(self.etcd.status(at).await?);
        match size.file_bytes <= most {
            true => Ok(()),
            false => Err(Lack::InUse { in_use_bytes: size.in_use_bytes, quota_bytes }),
        }
    }

    /// Forgets what is known: the next time is judged by itself, since the quota may be another one.
    pub(super) fn is_full_no_more(&self) {
        *self.fullness() = Fullness::default();
    }

    fn fullness(&self) -> MutexGuard<'_, Fullness> {
        // Nothing here panics between two changes that belong together.
        self.fullness.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
