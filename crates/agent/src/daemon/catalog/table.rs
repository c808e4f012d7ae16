//! The states of all objects, what they have of the store, and which have changed lately: a caller that
//! follows many objects looks at those that have changed, and not at all of them for each that comes.

use super::state::State;
use polycast_types::{AppId, DataId, ObjectId};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Deref;

/// Changes that are remembered; a caller that has missed more looks at everything.
const RECENT_MAX: usize = 4_096;

/// States by id. Only those that are put in or taken out here come and go, or change what they have of the
/// store.
#[derive(Debug, Default)]
pub(super) struct Table {
    states: BTreeMap<ObjectId, State>,
    /// Bytes of the store that whole objects have.
    whole_bytes: u128,
    receiving: BTreeSet<ObjectId>,
    /// Objects whose place a newer version has taken, by their length.
    superseded: BTreeSet<(u64, ObjectId)>,
    /// Objects that have come, begun to come or gone; the last ones of `changes`.
    recent: VecDeque<ObjectId>,
    changes: u64,
    /// Number of times that an object was removed or failed to arrive.
    gone: u64,
}

impl Deref for Table {
    type Target = BTreeMap<ObjectId, State>;

    fn deref(&self) -> &Self::Target {
        &self.states
    }
}

impl FromIterator<(ObjectId, State)> for Table {
    fn from_iter<I: IntoIterator<Item = (ObjectId, State)>>(states: I) -> Self {
        let mut table = Table::default();
        states.into_iter().for_each(|(id, state)| table.insert(id, state));
        table
    }
}

impl Table {
    pub(super) fn insert(&mut self, id: ObjectId, state: State) {
        self.forget(id);
        match &state {
            State::Receiving(_) => drop(self.receiving.insert(id)),
            State::Available { .. } => self.whole_bytes += u128::from(state.stored_bytes()),
        }
        self.states.insert(id, state);
        self.note(id);
    }

    pub(super) fn remove(&mut self, id: &ObjectId) {
        self.forget(*id);
        self.gone += 1;
        self.note(*id);
    }

    /// To change what it is used for; what it has of the store stays.
    pub(super) fn get_mut(&mut self, id: &ObjectId) -> Option<&mut State> {
        self.states.get_mut(id)
    }

    fn forget(&mut self, id: ObjectId) {
        match self.states.remove(&id) {
            Some(State::Receiving(_)) => drop(self.receiving.remove(&id)),
            Some(State::Available { object, sends }) => {
                self.superseded.remove(&(object.length, id));
                self.whole_bytes -= u128::from(State::Available { object, sends }.stored_bytes());
            }
            None => {}
        }
    }

    /// A newer version has taken the place of an object.
    pub(super) fn supersede(&mut self, id: ObjectId) {
        if let Some(State::Available { object, .. }) = self.states.get_mut(&id) {
            object.superseded = true;
            self.superseded.insert((object.length, id));
        }
    }

    /// An object is a last version, perhaps once more: it stays as long as others do.
    pub(super) fn renew(&mut self, id: ObjectId) {
        if let Some(State::Available { object, .. }) = self.states.get_mut(&id) {
            object.superseded = false;
            self.superseded.remove(&(object.length, id));
        }
    }

    /// Returns true if a newer version has replaced an object of this length.
    pub(super) fn has_superseded(&self, length: u64) -> bool {
        let first = ObjectId { app: AppId([0; 16]), data: DataId(0) };
        self.superseded.range((length, first)..).next().is_some_and(|(other, _)| *other == length)
    }

    fn note(&mut self, id: ObjectId) {
        if self.recent.len() >= RECENT_MAX {
            self.recent.pop_front();
        }
        self.recent.push_back(id);
        self.changes += 1;
    }

    /// Bytes of the store that all objects have, and those will have that come; `except` does not count.
    pub(super) fn stored_bytes(&self, except: Option<ObjectId>) -> u64 {
        let coming = self.receiving.iter().filter_map(|id| self.states.get(id));
        let coming: u128 = coming.map(|state| u128::from(state.stored_bytes())).sum();
        let except = except.and_then(|id| self.states.get(&id)).map_or(0, State::stored_bytes);
        u64::try_from(self.whole_bytes + coming - u128::from(except)).unwrap_or(u64::MAX)
    }

    /// The objects that are being received.
    pub(super) fn under_way(&self) -> impl Iterator<Item = (ObjectId, &State)> + '_ {
        self.receiving.iter().filter_map(|id| Some((*id, self.states.get(id)?)))
    }

    /// Returns the number of changes so far.
    pub(super) fn changes(&self) -> u64 {
        self.changes
    }

    /// The objects of the changes behind so many, some of them more than once; `None` where these are not
    /// known any more.
    pub(super) fn since(&self, changes: u64) -> Option<impl Iterator<Item = ObjectId> + '_> {
        let missed = usize::try_from(self.changes - changes).ok()?;
        let first = self.recent.len().checked_sub(missed)?;
        Some(self.recent.range(first..).copied())
    }

    /// Returns the number of times that an object was removed or failed to arrive.
    pub(super) fn gone(&self) -> u64 {
        self.gone
    }
}
