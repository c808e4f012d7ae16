//! What a receiver has of an object before it comes: rests of earlier tries, and older versions of it.

use super::assembler::Assembler;
use polycast_net::object::ObjectSource;
use polycast_net::store::{PartFile, StoreError};
use polycast_protocol::push::Geometry;
use polycast_protocol::reuse::{Input, Reuse, VERSIONS_MAX, Version};
use polycast_protocol::session::Offer;
use std::fmt;
use std::sync::Arc;

/// Objects of fewer groups are sent as they are: to wait for their hashes would take longer.
const GROUPS_LEAST: u64 = 4;
/// Groups that are looked at before a receiver does something else.
const LOOKS_MAX: usize = 64;

/// Bytes of an older version.
pub(super) type Older = Arc<dyn ObjectSource>;

type Find = dyn Fn(&Offer) -> Vec<Older> + Send + Sync;

/// Where a receiver finds older versions of what it is offered; those that are most like it come first. Of none of them anything is
/// believed: their groups are hashed like those that come.
#[derive(Clone, Default)]
pub struct OlderVersions {
    find: Option<Arc<Find>>,
    /// The part file is one of them.
    recycled: bool,
}

impl OlderVersions {
    /// Found in this way.
    pub fn found_by(find: impl Fn(&Offer) -> Vec<Arc<dyn ObjectSource>> + Send + Sync + 'static) -> Self {
        OlderVersions { find: Some(Arc::new(find)), recycled: false }
    }

    /// The same, where the part file is an older version, too, and no earlier try's.
    #[must_use]
    pub fn in_recycled_part(self, recycled: bool) -> Self {
        OlderVersions { recycled, ..self }
    }

    /// Those of an offer.
    pub(super) fn of(&self, offer: &Offer) -> Vec<Older> {
        if offer.geometry.groups() < GROUPS_LEAST {
            return Vec::new();
        }
        let mut found = self.find.as_ref().map_or_else(Vec::new, |find| find(offer));
        // A rest, and what is in the object's place, come before them.
        found.truncate(VERSIONS_MAX - 2);
        found
    }
}

impl fmt::Debug for OlderVersions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.find.is_some() { "OlderVersions(..)" } else { "OlderVersions(none)" })
    }
}

/// What a part file has in it when a transfer begins.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum InPart {
    Nothing,
    /// What an earlier try to receive the object has left.
    Rest,
    /// An older version that no process has open any more: the object takes its pages.
    Recycled,
}

impl InPart {
    pub(super) fn of(part: &PartFile, older: &OlderVersions) -> Self {
        match (part.is_resumed(), older.recycled) {
            (false, _) => InPart::Nothing,
            (true, false) => InPart::Rest,
            (true, true) => InPart::Recycled,
        }
    }
}

/// Looks at what is here while hashes come.
pub(super) struct Looking {
    machine: Reuse,
    /// Whether the part file is the first version.
    in_part: bool,
    older: Vec<Older>,
}

impl Looking {
    /// `None` where nothing is here.
    pub(super) fn at(geometry: Geometry, part: InPart, older: Vec<Older>) -> Option<Self> {
        let len = geometry.object_len;
        let rest = match part {
            InPart::Nothing => None,
            InPart::Rest => Some(Version { len, whole: true }),
            InPart::Recycled => Some(Version { len, whole: false }),
        };
        let versions = older.iter().map(|source| Version { len: source.len(), whole: false });
        let versions: Vec<Version> = rest.into_iter().chain(versions).collect();
        let machine = Reuse::new(geometry, &versions);
        (!versions.is_empty()).then_some(Looking { machine, in_part: part != InPart::Nothing, older })
    }

    /// Looks at some groups whose hashes are known; gives those that are right, and whether there may be more at once.
    pub(super) fn turn(&mut self, assembler: &mut Assembler) -> Result<(Vec<u64>, bool), StoreError> {
        self.machine.handle(Input::Known(assembler.hashes().len() as u64));
        let mut held = Vec::new();
        for _ in 0..LOOKS_MAX {
            let Some(look) = self.machine.poll() else { return Ok((held, false)) };
            let same = match look.version.checked_sub(usize::from(self.in_part)) {
                None => assembler.check_held(look.group)?,
                Some(at) => assembler.take_from(&*self.older[at], look.group)?,
            };
            self.machine.handle(Input::Looked { look, same });
            held.extend(same.then_some(look.group));
        }
        Ok((held, true))
    }

    /// Whether nothing more is looked at.
    pub(super) fn is_done(&self) -> bool {
        self.machine.is_done()
    }
}
