//! Versions of objects: which one may be older than another, and which one is meant by its root hash.

use super::{Catalog, Send, State, of_app};
use polycast_net::object::ObjectKind;
use polycast_types::{AppId, ObjectId};
use std::sync::Arc;

/// Objects that are looked at for what another one has in common with them.
const OLDER_MAX: usize = 2;

impl Catalog {
    /// Objects that may be older versions of one that is about to come, of the same application: those of its
    /// name, and those as long as it; the newest first. They stay while the guards live.
    pub(crate) fn older(
        self: &Arc<Self>,
        id: ObjectId,
        name: &str,
        kind: ObjectKind,
        length: u64,
    ) -> Vec<Send> {
        let like = |state: &State| match state {
            State::Available { object, .. }
                if object.kind == kind && object.length > 0 && !object.is_private() =>
            {
                let named = object.name == name;
                (named || object.length == length).then_some((named, object.since))
            }
            _ => None,
        };
        let inner = self.lock();
        let listed = inner.objects.range(of_app(Some(id.app))).filter(|(other, _)| **other != id);
        let mut found: Vec<_> = listed.filter_map(|(other, state)| Some((like(state)?, *other))).collect();
        drop(inner);
        found.sort_unstable();
        found.into_iter().rev().take(OLDER_MAX).filter_map(|(_, other)| self.begin_send(other).ok()).collect()
    }

    /// An object of this application with this root hash, which stays while the guard lives.
    pub(crate) fn of_root(self: &Arc<Self>, app: AppId, root: &str) -> Option<Send> {
        let inner = self.lock();
        let is_it = |state: &State| match state {
            State::Available { object, .. } => object.root == root && !object.is_private(),
            State::Receiving(_) => false,
        };
        // What was added may have changed since; what is in the store has not.
        let is_added =
            |state: &State| matches!(state, State::Available { object, .. } if object.added_from.is_some());
        let all = inner.objects.range(of_app(Some(app))).filter(|(_, state)| is_it(state));
        let found = all.min_by_key(|(_, state)| is_added(state)).map(|(id, _)| *id);
        drop(inner);
        found.and_then(|id| self.begin_send(id).ok())
    }
}
