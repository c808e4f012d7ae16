//! Sets: lists of files, each of which is an object of its own. A set is here when all of its files are, and
//! they stay as long as it does.

use super::{Available, Catalog, Inner, Receive, State, User, unknown};
use polycast_api::error::{Kind, Refusal};
use polycast_net::archive::{Listed, Manifest, Root};
use polycast_net::hash::{hex, parse_hex};
use polycast_types::{AppId, DataId, ObjectId, Printable};
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::SystemTime;

/// Sets whose files are waited for at the same time; each has its list in memory.
const GATHERING_MAX: usize = 32;
/// Largest number of such sets from one source.
const GATHERING_OF_ONE: usize = 8;

/// Contents of a set.
#[derive(PartialEq, Eq, Debug)]
pub(crate) struct Set {
    pub manifest: Manifest,
    /// In the order of the list; of files that are equal the first one.
    parts: Vec<Part>,
    /// Index of each part among them, and the files of the list that have its bytes.
    ids: BTreeMap<ObjectId, (usize, Vec<usize>)>,
}

/// Files that a set still lacks, as far as a caller has checked.
#[derive(Default, Debug)]
pub(crate) struct Lacking {
    /// Its files that are not here.
    ids: BTreeSet<ObjectId>,
    /// Missing files that are on their way.
    coming: BTreeSet<ObjectId>,
    /// Changes of the catalog that were taken in.
    seen: Option<u64>,
    /// Files that were looked at.
    looks: u64,
}

impl Lacking {
    /// Returns the number of files that are not here.
    pub(crate) fn count(&self) -> usize {
        self.ids.len()
    }

    /// Returns true if any file is on its way.
    pub(crate) fn comes(&self) -> bool {
        !self.coming.is_empty()
    }
}

/// Position of a caller that follows the files of a set.
#[derive(Default, Debug)]
pub(crate) struct Following {
    set: Option<Arc<Set>>,
    seen: u64,
}

/// Bytes that one or several files of a set have.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Part {
    pub id: ObjectId,
    pub root: Root,
    pub len: u64,
    /// The path of the first file that has them.
    pub name: Vec<u8>,
}

/// The object that a file of a set is: its number is the beginning of its hash, so that equal files are one
/// object.
pub(crate) fn part_id(app: AppId, root: &Root) -> ObjectId {
    let first = root.first_chunk::<8>().copied().unwrap_or_default();
    ObjectId { app, data: DataId(u64::from_be_bytes(first)) }
}

impl Set {
    /// Builds the set that a list describes as object `id`.
    ///
    /// # Errors
    /// Two different files would have the same number.
    pub(crate) fn of(id: ObjectId, manifest: Manifest) -> Result<Self, Refusal> {
        let mut ids: BTreeMap<ObjectId, (usize, Vec<usize>)> = BTreeMap::new();
        let mut parts: Vec<Part> = Vec::new();
        for (number, Listed { name, len, root, .. }) in manifest.numbered() {
            let part = part_id(id.app, &root);
            let taken = |what: &str| {
                let why = format!("the file '{}' of set {id} {what}", printable(name));
                Refusal::new(Kind::Invalid, why)
            };
            if part == id {
                return Err(taken("has the number of the set itself: give the set another one"));
            }
            let (at, files) = ids.entry(part).or_insert((parts.len(), Vec::new()));
            files.push(number);
            match parts.get(*at) {
                None => parts.push(Part { id: part, root, len, name: name.to_vec() }),
                Some(other) if other.root == root => {}
                Some(_) => return Err(taken("has the same number as another file with other bytes")),
            }
        }
        Ok(Set { manifest, parts, ids })
    }

    /// Its different files.
    pub(crate) fn parts(&self) -> &[Part] {
        &self.parts
    }

    /// The files of the list that have the bytes of this object.
    pub(crate) fn files_of(&self, id: ObjectId) -> impl Iterator<Item = Listed<'_>> {
        let numbers = self.ids.get(&id).map_or(&[][..], |(_, files)| files);
        numbers.iter().filter_map(|number| self.manifest.file(*number))
    }

    /// Bytes of its different files.
    pub(crate) fn bytes(&self) -> u64 {
        self.parts.iter().map(|part| part.len).sum()
    }
}

/// A path as messages show it.
pub(crate) fn printable(name: &[u8]) -> String {
    Printable(&String::from_utf8_lossy(name)).to_string()
}

impl Inner {
    /// Refuses what a set needs that is here or comes.
    pub(super) fn check_unlisted(&self, id: ObjectId) -> Result<(), Refusal> {
        match self.sets.iter().find(|(set, list)| **set != id && list.ids.contains_key(&id)) {
            Some((set, _)) => Err(Refusal::new(
                Kind::ObjectBusy,
                format!("object {id} is a file of set {set}: remove the set"),
            )),
            None => Ok(()),
        }
    }

    /// Refuses to remove for a set what a user has pinned or brought; what was entered with a set is the
    /// set's.
    fn check_unclaimed(&self, id: ObjectId) -> Result<(), Refusal> {
        let claimed = |why: &str| Err(Refusal::new(Kind::ObjectBusy, format!("object {id} {why}")));
        match self.objects.get(&id) {
            Some(State::Available { object, .. }) if object.pinned => claimed("is pinned"),
            Some(state) if state.holder().is_some() && !self.entered.contains(&id) => {
                claimed("was brought by itself")
            }
            _ => Ok(()),
        }
    }

    fn admit_gathering(&mut self, source: Option<IpAddr>) -> Result<(), Refusal> {
        let all: usize = self.gathering.values().sum();
        let own = self.gathering.get(&source).copied().unwrap_or_default();
        let full = |why: String| Err(Refusal::new(Kind::Full, why));
        if own >= GATHERING_OF_ONE {
            return full(format!("it waits for the files of {own} sets of this source already"));
        }
        if all >= GATHERING_MAX {
            return full(format!("it waits for the files of {all} sets already"));
        }
        *self.gathering.entry(source).or_default() += 1;
        Ok(())
    }

    pub(super) fn end_gathering(&mut self, source: Option<IpAddr>) {
        if let Some(count) = self.gathering.get_mut(&source) {
            *count -= 1;
            if *count == 0 {
                self.gathering.remove(&source);
            }
        }
    }

    /// Returns for each set and its files the last use of the set if they may be removed, and `None` if it is
    /// pinned, is being sent or received, or lies where it was added.
    pub(super) fn bound(&self) -> BTreeMap<ObjectId, Option<SystemTime>> {
        let mut bound: BTreeMap<ObjectId, Option<SystemTime>> = BTreeMap::new();
        let is_added = |id: &ObjectId| matches!(self.objects.get(id), Some(State::Available { object, .. }) if object.added_from.is_some());
        for (id, set) in &self.sets {
            let used = match self.objects.get(id) {
                Some(State::Available { object, sends: 0 }) if !object.pinned => Some(object.used),
                _ => None,
            };
            let used = used.filter(|_| !set.ids.keys().any(is_added));
            for id in set.ids.keys().chain([id]) {
                let both = |one: Option<SystemTime>| Some(one?.max(used?));
                bound.entry(*id).and_modify(|one| *one = both(*one)).or_insert(used);
            }
        }
        bound
    }
}

impl Receive {
    /// The list of a set is here, from this source: its files have places of their own, so it gives its place
    /// back.
    ///
    /// # Errors
    /// The files of too many sets are waited for.
    pub(crate) fn gather(&mut self, source: Option<IpAddr>) -> Result<(), Refusal> {
        let mut inner = self.catalog.lock();
        inner.admit_gathering(source)?;
        inner.receiving -= 1;
        drop(inner);
        self.gathers = Some(source);
        self.catalog.changed();
        Ok(())
    }
}

impl Catalog {
    /// Removes a file that no set needs any more, or that is not what its set names; see [`Catalog::delete`].
    ///
    /// # Errors
    /// A user has pinned it, or has brought it by itself.
    pub(crate) fn delete_part(
        &self,
        id: ObjectId,
        user: User,
        remove: impl FnOnce() -> io::Result<bool>,
    ) -> Result<(), Refusal> {
        self.delete_if(id, user, |inner| inner.check_unclaimed(id), remove)
    }

    /// The files of a set of which something is here or comes.
    pub(crate) fn present(&self, set: &Set) -> BTreeSet<ObjectId> {
        let inner = self.lock();
        set.ids.keys().filter(|id| inner.objects.contains_key(id)).copied().collect()
    }

    /// The set that is coming, or is here, is made of these files: they stay as long as it does.
    pub(crate) fn list_files(&self, id: ObjectId, set: Arc<Set>) {
        self.lock().sets.insert(id, set);
        self.changed();
    }

    /// The set does not come: its files stay for themselves.
    pub(crate) fn forget_list(&self, id: ObjectId) {
        self.lock().sets.remove(&id);
    }

    /// Returns the contents of a set, once they are known.
    pub(crate) fn set(&self, id: ObjectId) -> Option<Arc<Set>> {
        self.lock().sets.get(&id).cloned()
    }

    /// The files of a set that are not here yet, and whether any of them is on its way.
    ///
    /// # Errors
    /// One that is here has other bytes than the set names: this one.
    pub(crate) fn lacking(&self, set: &Set) -> Result<Lacking, (ObjectId, Refusal)> {
        let mut lacking = Lacking::default();
        self.look(set, &mut lacking).map(|()| lacking)
    }

    /// Brings up to date what a set lacks: looks at those of its files that have changed since the last look.
    ///
    /// # Errors
    /// One that is here has other bytes than the set names: this one.
    pub(crate) fn look(&self, set: &Set, lacking: &mut Lacking) -> Result<(), (ObjectId, Refusal)> {
        let inner = self.lock();
        let changed = lacking.seen.and_then(|seen| inner.objects.since(seen));
        let at: Vec<usize> = match changed {
            Some(changed) => changed.filter_map(|id| Some(set.ids.get(&id)?.0)).collect(),
            None => {
                (lacking.ids, lacking.coming) = Default::default();
                (0..set.parts.len()).collect()
            }
        };
        lacking.seen = Some(inner.objects.changes());
        for part in at.into_iter().map(|at| &set.parts[at]) {
            lacking.looks += 1;
            lacking.ids.remove(&part.id);
            lacking.coming.remove(&part.id);
            match inner.objects.get(&part.id) {
                Some(State::Available { object, .. }) => {
                    part.check(object).map_err(|refusal| (part.id, refusal))?;
                    continue;
                }
                Some(State::Receiving(_)) => drop(lacking.coming.insert(part.id)),
                None => {}
            }
            lacking.ids.insert(part.id);
        }
        Ok(())
    }

    /// Enters a file of a set that lies where it was added; one that is here already is as good, wherever it
    /// lies.
    pub(crate) fn add_part(
        &self,
        part: &Part,
        object: Available,
        is_fresh: impl Fn(&Available) -> bool,
    ) -> Result<(), Refusal> {
        let mut inner = self.lock();
        match inner.objects.get(&part.id) {
            Some(State::Available { object: there, sends }) => {
                part.check(there)?;
                if there.added_from.is_none() || is_fresh(there) {
                    return Ok(());
                }
                // The file that had these bytes has others by now.
                if *sends > 0 {
                    return Err(Refusal::new(Kind::ObjectBusy, format!("object {} is being sent", part.id)));
                }
            }
            _ => inner.admit(part.id, self.objects_max)?,
        }
        inner.objects.insert(part.id, State::Available { object, sends: 0 });
        inner.entered.insert(part.id);
        inner.journal.insert(part.id);
        drop(inner);
        self.changed();
        Ok(())
    }

    /// The files of a set that has gone which no other set needs.
    pub(crate) fn unlisted(&self, set: &Set) -> Vec<ObjectId> {
        let inner = self.lock();
        set.ids.keys().filter(|id| inner.check_unlisted(**id).is_ok()).copied().collect()
    }

    /// The files of a set that is here, and where each lies that is not in the store.
    ///
    /// # Errors
    /// It is no set, or one of its files has gone.
    pub(crate) fn files_of(
        &self,
        id: ObjectId,
    ) -> Result<(Arc<Set>, BTreeMap<ObjectId, Available>), Refusal> {
        let inner = self.lock();
        let set = inner.sets.get(&id).cloned();
        let set =
            set.ok_or_else(|| Refusal::new(Kind::Invalid, format!("object {id} is no set of files")))?;
        let mut files = BTreeMap::new();
        for part in set.ids.keys() {
            if let Some(State::Available { object, .. }) = inner.objects.get(part) {
                files.insert(*part, object.clone());
            }
        }
        Ok((set, files))
    }

    /// The same, but of the files only those that have come since the last call, where these are known; the
    /// first call gives all.
    ///
    /// # Errors
    /// It is no set.
    pub(crate) fn files_since(
        &self,
        id: ObjectId,
        following: &mut Following,
    ) -> Result<(Arc<Set>, BTreeMap<ObjectId, Available>), Refusal> {
        let inner = self.lock();
        let (set, seen) = (inner.sets.get(&id), following.seen);
        let is_same = |set: &&Arc<Set>| following.set.as_ref().is_some_and(|other| Arc::ptr_eq(set, other));
        let changed = set.filter(is_same).and_then(|set| Some((set, inner.objects.since(seen)?)));
        let found = changed.map(|(set, changed)| {
            let changed: BTreeSet<ObjectId> = changed.filter(|part| set.ids.contains_key(part)).collect();
            let files = changed.into_iter().filter_map(|part| match inner.objects.get(&part)? {
                State::Available { object, .. } => Some((part, object.clone())),
                State::Receiving(_) => None,
            });
            (Arc::clone(set), files.collect())
        });
        following.seen = inner.objects.changes();
        drop(inner);
        let found = found.map_or_else(|| self.files_of(id), Ok)?;
        following.set = Some(Arc::clone(&found.0));
        Ok(found)
    }

    /// Checks that this user may see a set that is here or is arriving.
    pub(crate) fn check_for(&self, id: ObjectId, user: User) -> Result<(), Refusal> {
        match self.get(id) {
            Some(there) if !there.is_for(user) => Err(unknown(id)),
            _ => Ok(()),
        }
    }
}

impl Part {
    /// Checks that an object that is here is this file.
    fn check(&self, object: &Available) -> Result<(), Refusal> {
        if object.length == self.len && parse_hex(&object.root) == Some(self.root) {
            return Ok(());
        }
        let why = format!(
            "the file '{}' is to have {} bytes with the hash {}, and object {} here has {} with {}",
            printable(&self.name),
            self.len,
            hex(&self.root),
            self.id,
            object.length,
            Printable(&object.root)
        );
        Err(Refusal::new(Kind::TransferFailed, why))
    }
}

#[cfg(test)]
mod tests {
    use super::super::Description;
    use super::*;
    use crate::daemon::store::Store;
    use polycast_net::archive::TreeSource;
    use polycast_net::object::ObjectKind;
    use std::fs;

    fn app(data: u64) -> ObjectId {
        ObjectId { app: AppId::default(), data: DataId(data) }
    }

    fn set(id: ObjectId, files: &[(&str, &[u8])]) -> Arc<Set> {
        let folder = tempfile::tempdir().unwrap();
        for (name, bytes) in files {
            fs::write(folder.path().join(name), bytes).unwrap();
        }
        let tree = TreeSource::open(folder.path()).unwrap();
        let root_of = |path: &std::path::Path, _| Ok(*blake3::hash(&fs::read(path)?).as_bytes());
        Arc::new(Set::of(id, Manifest::of(&tree, root_of).unwrap()).unwrap())
    }

    fn receive(catalog: &Arc<Catalog>, id: ObjectId, kind: ObjectKind, length: u64, root: &Root) {
        let (name, root) = ("a".into(), hex(root));
        let (mode, modified) = (0o644, None);
        let description =
            Description { name, kind, length, mode, modified, root, holder: None, pinned: false };
        catalog.begin_receive(id).unwrap().complete(description);
        std::thread::sleep(std::time::Duration::from_millis(2));
    }

    #[test]
    fn files_stay_as_long_as_a_set_needs_them() {
        let catalog = Arc::new(Catalog::new(100, 10, Vec::new()));
        // Two sets, which have one file in common, and one of whose files are twice the same.
        let one = set(app(1), &[("a", b"aaa"), ("b", b"bb"), ("c", b"aaa")]);
        let two = set(app(2), &[("d", b"aaa"), ("e", b"e")]);
        assert_eq!((one.parts().len(), one.bytes()), (2, 5));
        let [a, b] = [one.parts()[0].id, one.parts()[1].id];
        let e = two.parts()[1].id;
        for (set, list) in [(1, &one), (2, &two)] {
            catalog.list_files(app(set), Arc::clone(list));
            assert!(catalog.lacking(list).unwrap().count() > 0);
            for part in list.parts() {
                if !catalog.is_known(part.id) {
                    receive(&catalog, part.id, ObjectKind::File, part.len, &part.root);
                }
            }
            let lacking = catalog.lacking(list).unwrap();
            assert_eq!((lacking.count(), lacking.comes()), (0, false));
            receive(&catalog, app(set), ObjectKind::Set, 10, &[0; 32]);
        }
        let idle = |catalog: &Catalog| catalog.idle().into_iter().map(|idle| idle.id).collect::<Vec<_>>();
        // A set goes before its files, and a file only after all of its sets.
        let order = idle(&catalog);
        let at = |id: ObjectId| order.iter().position(|other| *other == id).unwrap();
        assert!(
            at(app(1)) < at(a) && at(app(2)) < at(a) && at(app(1)) < at(b) && at(app(2)) < at(e),
            "{order:?}"
        );
        let refusal = catalog.delete(a, super::super::User::agent(), || Ok(true)).unwrap_err();
        assert!(refusal.message.contains("is a file of set 1"), "{refusal}");
        // Nothing of a set that is being sent, or is pinned.
        let sending = catalog.begin_send(app(1)).unwrap();
        assert_eq!(idle(&catalog), [app(2), e]);
        drop(sending);
        catalog.pin(app(2), super::super::User::agent(), true, |_| Ok(())).unwrap();
        assert_eq!(idle(&catalog), [app(1), b]);
        catalog.delete(app(1), super::super::User::agent(), || Ok(true)).unwrap();
        assert_eq!(catalog.unlisted(&one), [b]);
    }

    #[test]
    fn a_set_that_waits_leaves_its_place_to_its_files() {
        let catalog = Arc::new(Catalog::new(100, 1, Vec::new()));
        let [one, other] = [1, 2].map(|last| Some(IpAddr::from([10, 0, 0, last])));
        let gather = |data, source| {
            let mut receive = catalog.begin_receive(app(data)).unwrap();
            receive.gather(source).map(|()| receive)
        };
        let mut waiting: Vec<Receive> =
            (0..GATHERING_OF_ONE as u64).map(|data| gather(data, one).unwrap()).collect();
        let refusal = gather(50, one).unwrap_err();
        assert!(refusal.message.contains("8 sets of this source"), "{refusal}");
        waiting.push(gather(51, other).unwrap());
        waiting.remove(0);
        waiting.push(gather(52, one).unwrap());
        drop(waiting);
        assert!(catalog.lock().gathering.is_empty() && catalog.lock().receiving == 0);
    }

    #[test]
    fn what_a_user_pinned_or_brought_goes_with_no_set() {
        let catalog = Arc::new(Catalog::new(100, 10, Vec::new()));
        let list = set(app(1), &[("a", b"a"), ("b", b"b"), ("c", b"c")]);
        let [a, b, c] = [0, 1, 2].map(|at| list.parts()[at].id);
        for part in list.parts() {
            receive(&catalog, part.id, ObjectKind::File, part.len, &part.root);
        }
        let agent = User::agent();
        catalog.pin(a, agent, true, |_| Ok(())).unwrap();
        catalog.delete(b, agent, || Ok(true)).unwrap();
        let (name, root) = ("b".into(), hex(&list.parts()[1].root));
        let holder = Some(agent.holder(false));
        let kind = ObjectKind::File;
        let (mode, modified) = (0o644, None);
        let brought = Description { name, kind, length: 1, mode, modified, root, holder, pinned: false };
        catalog.begin_bring(b, agent, agent.holder(false)).unwrap().complete(brought);
        for (id, says) in [(a, "is pinned"), (b, "brought by itself")] {
            let refusal = catalog.delete_part(id, agent, || Ok(true)).unwrap_err();
            assert!(refusal.message.contains(says), "{refusal}");
        }
        catalog.delete_part(c, agent, || Ok(true)).unwrap();
    }

    /// A set that a user of this host has added is there for that user, the agent's and root: while it is
    /// being added, when it is here, and when an agent that starts again finds it. One that has come from
    /// elsewhere is for all.
    #[test]
    fn an_added_set_is_not_for_other_users() {
        let catalog = Arc::new(Catalog::new(100, 10, Vec::new()));
        let agent = User::agent();
        let other = User::numbered(agent.uid() + 1);
        let sees = |catalog: &Catalog, user: User| {
            catalog.list(None).iter().any(|(_, there)| there.is_for(user))
                && catalog.check_for(app(1), user).is_ok()
        };
        let adding = catalog.begin_bring(app(1), agent, agent.holder_in_place(false)).unwrap();
        assert!(sees(&catalog, agent) && !sees(&catalog, other), "while it is being added");
        let (name, root) = ("a".into(), hex(&[0; 32]));
        let (kind, length, mode, modified) = (ObjectKind::Set, 4, 0o644, None);
        let holder = adding.progress().holder;
        let added = Description { name, kind, length, mode, modified, root, holder, pinned: false };
        adding.complete(added.clone());
        assert!(sees(&catalog, agent) && !sees(&catalog, other), "when it is here");
        let refusal = catalog.delete(app(1), other, || Ok(true)).unwrap_err();
        assert_eq!(refusal.kind, Kind::ObjectUnknown);
        let folder = tempfile::tempdir().unwrap();
        let (store, _) = Store::open(folder.path()).unwrap();
        fs::write(store.path(app(1)), b"list").unwrap();
        store.describe(app(1), &added).unwrap();
        drop(store);
        let (_, found) = Store::open(folder.path()).unwrap();
        let again = Catalog::new(100, 10, found);
        assert!(sees(&again, agent) && !sees(&again, other), "after a restart");
        let elsewhere = Arc::new(Catalog::new(100, 10, Vec::new()));
        receive(&elsewhere, app(1), ObjectKind::Set, 4, &[0; 32]);
        assert!(sees(&elsewhere, agent) && sees(&elsewhere, other), "what has come");
    }

    /// A set of many files: to take it in, and to follow it, takes a few looks for each file, and not one for
    /// each that lacks.
    #[test]
    fn many_files_are_looked_at_a_few_times_each() {
        // About as many as a list has room for.
        const FILES: u64 = 16_000;
        let tree = tempfile::tempdir().unwrap();
        for number in 0..FILES {
            fs::write(tree.path().join(format!("{number:05}")), number.to_be_bytes()).unwrap();
        }
        let tree = TreeSource::open(tree.path()).unwrap();
        let root_of = |path: &std::path::Path, _| Ok(*blake3::hash(&fs::read(path)?).as_bytes());
        let list = Arc::new(Set::of(app(1), Manifest::of(&tree, root_of).unwrap()).unwrap());
        let catalog = Arc::new(Catalog::new(2 * FILES as usize, 10, Vec::new()));
        catalog.list_files(app(1), Arc::clone(&list));
        let (mut lacking, mut following, mut told) = (Lacking::default(), Following::default(), 0);
        for part in list.parts() {
            let receive = catalog.begin_receive(part.id).unwrap();
            catalog.look(&list, &mut lacking).unwrap();
            assert!(lacking.comes());
            let (name, root) = ("a".into(), hex(&part.root));
            let kind = ObjectKind::File;
            receive.complete(Description {
                name,
                kind,
                length: part.len,
                mode: 0o644,
                modified: None,
                root,
                holder: None,
                pinned: false,
            });
            catalog.look(&list, &mut lacking).unwrap();
            told += catalog.files_since(app(1), &mut following).unwrap().1.len() as u64;
        }
        assert_eq!((lacking.count(), lacking.comes()), (0, false));
        assert_eq!(told, FILES, "each file is told once");
        // At first all of them, then each when it begins and when it has come.
        assert!(lacking.looks <= 3 * FILES, "{} looks at {FILES} files", lacking.looks);
        assert_eq!(catalog.gone(), 0, "the folder of the store is read for nothing");
        // One that has missed too much looks at all of them again, and finds what has gone.
        for part in &list.parts()[..5_000] {
            catalog.lock().objects.remove(&part.id);
        }
        catalog.look(&list, &mut lacking).unwrap();
        assert_eq!(lacking.count(), 5_000);
    }

    #[test]
    fn a_file_that_has_other_bytes_is_named() {
        let catalog = Arc::new(Catalog::new(100, 10, Vec::new()));
        let list = set(app(1), &[("model.bin", b"aaa")]);
        let part = &list.parts()[0];
        receive(&catalog, part.id, ObjectKind::File, 3, &[9; 32]);
        let (id, refusal) = catalog.lacking(&list).unwrap_err();
        assert_eq!(id, part.id);
        assert!(refusal.message.contains("'model.bin'") && refusal.message.contains("090909"), "{refusal}");
        // One that is as long as something else, too.
        let same = Set::of(part.id, list.manifest.clone()).unwrap_err();
        assert!(same.message.contains("give the set another one"), "{same}");
    }
}
