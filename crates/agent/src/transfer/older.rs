//! Data that a receiver has of an object before it comes: rests of earlier tries, and older versions of it.

use super::assembler::Assembler;
use polycast_net::object::{ObjectSource, Zeros};
use polycast_net::rolling::Wanted;
use polycast_net::store::{PartFile, StoreError};
use polycast_protocol::push::Geometry;
use polycast_protocol::reuse::{Act, Input, Look, Reuse, Seek, VERSIONS_MAX, Version};
use polycast_protocol::session::Offer;
use polycast_wire::control::Form;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

/// Objects of fewer groups are sent as they are: to wait for their hashes would take longer.
const GROUPS_LEAST: u64 = 4;
/// Groups that are looked at before a receiver does something else.
const LOOKS_MAX: usize = 64;

/// Bytes of an older version.
pub(super) type Older = Arc<dyn ObjectSource>;

type Find = dyn Fn(&Offer) -> Vec<Older> + Send + Sync;

/// Finder of a receiver's older versions of an offered object; those that are most like it come first. None
/// of their data is trusted: their groups are hashed like those that come.
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

    /// Finds the older versions for an offer.
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

/// Content of a part file when a transfer begins.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum InPart {
    Nothing,
    /// Rest of an earlier try to receive the object.
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
    /// Set if the part file is the first version.
    in_part: bool,
    older: Vec<Older>,
    /// The first of the older versions is zeros, which the object's holes are.
    has_holes: bool,
    /// The version at the object's place, which comes next, for as long as it may be the object.
    present: Option<Older>,
    geometry: Geometry,
    /// Sums of groups, which are looked for elsewhere; none before they are asked for.
    sums: Option<Wanted>,
    /// Bytes that are searched.
    searched: Vec<u8>,
}

/// Result of a turn.
pub(super) struct Turn {
    /// Groups that are right.
    pub(super) held: Vec<u64>,
    /// Bytes of those that are holes.
    pub(super) holes_len: u64,
    /// Groups that the version at the object's place has where the object has them. That version is the
    /// object once these are all groups.
    pub(super) in_place: u64,
    /// There may be more at once.
    pub(super) more: bool,
    /// The source is to be asked for sums.
    pub(super) ask_sums: bool,
}

impl Looking {
    /// `None` where nothing is here. `present` is the version at the object's place. `searches`: whether the
    /// source can be asked for sums.
    pub(super) fn at(
        offer: &Offer,
        part: InPart,
        (present, mut older): (Option<Older>, Vec<Older>),
        searches: bool,
    ) -> Option<Self> {
        let geometry = offer.geometry;
        let len = geometry.object_len;
        let has_holes = offer.data_len < len;
        older.splice(0..0, present.clone());
        if has_holes {
            older.insert(0, Arc::new(Zeros(len)));
        }
        let rest = match part {
            InPart::Nothing => None,
            InPart::Rest => Some(Version { len, whole: true, shifts: false }),
            InPart::Recycled => Some(Version { len, whole: false, shifts: false }),
        };
        // Weights keep their length, and nothing in them moves; streams of directories are padded.
        let may_move = |other: u64| searches && (other != len || offer.form == Form::Directory);
        let version = |(at, source): (usize, &Older)| match has_holes && at == 0 {
            true => Version { len, whole: true, shifts: false },
            false => Version { len: source.len(), whole: false, shifts: may_move(source.len()) },
        };
        let versions: Vec<Version> = rest.into_iter().chain(older.iter().enumerate().map(version)).collect();
        let machine = Reuse::new(geometry, &versions);
        let in_part = part != InPart::Nothing;
        (!versions.is_empty()).then_some(Looking {
            machine,
            in_part,
            older,
            has_holes,
            present: present.filter(|present| present.len() == len),
            geometry,
            sums: None,
            searched: Vec::new(),
        })
    }

    /// The source tells sums of groups from `first` on, of which so many have hashes; gives whether that is
    /// what was asked for.
    pub(super) fn add_sums(&mut self, first: u64, sums: &[u64], hashes: u64) -> bool {
        let Some(wanted) = &mut self.sums else { return false };
        if first != wanted.known() || first + sums.len() as u64 > hashes {
            return false;
        }
        wanted.add(sums);
        true
    }

    /// Looks at some groups whose hashes are known.
    pub(super) fn turn(&mut self, assembler: &mut Assembler) -> Result<Turn, StoreError> {
        self.machine.handle(Input::Known(assembler.hashes().len() as u64));
        if let Some(sums) = &self.sums {
            self.machine.handle(Input::Sums(sums.known()));
        }
        let mut turn = Turn { held: Vec::new(), holes_len: 0, in_place: 0, more: true, ask_sums: false };
        for _ in 0..LOOKS_MAX {
            match self.machine.poll() {
                None => {
                    turn.more = false;
                    break;
                }
                Some(Act::AskSums) => {
                    self.sums = Some(Wanted::new(self.geometry.group_len, self.geometry.groups()));
                    turn.ask_sums = true;
                }
                Some(Act::Seek(seek)) => {
                    let found = self.seek(seek, assembler);
                    self.machine.handle(Input::Sought { seek, found });
                    // That takes as long as many looks.
                    break;
                }
                Some(Act::Look(look)) => {
                    let older = look.version.checked_sub(usize::from(self.in_part));
                    let same = match older {
                        None => assembler.check_held(look.group)?,
                        Some(at) => assembler.take_from(&*self.older[at], look.group, look.at)?,
                    };
                    self.machine.handle(Input::Looked { look, same });
                    if same {
                        self.take(&mut turn, look, older);
                    }
                }
            }
        }
        Ok(turn)
    }

    /// Notes a group that is right, and was found in this older version, or in the part file.
    fn take(&mut self, turn: &mut Turn, look: Look, older: Option<usize>) {
        turn.held.push(look.group);
        let bytes = self.geometry.group_bytes(look.group);
        let in_place = if self.has_holes && older == Some(0) {
            turn.holes_len += bytes.end - bytes.start;
            self.has_zeros_in_place(bytes)
        } else {
            self.present.is_some() && older == Some(usize::from(self.has_holes)) && look.at == bytes.start
        };
        match in_place {
            true => turn.in_place += 1,
            false => self.present = None,
        }
    }

    /// Returns true if the version at the object's place has zeros where the object has a hole: nothing else
    /// has looked there.
    fn has_zeros_in_place(&mut self, bytes: Range<u64>) -> bool {
        let Some(present) = &self.present else { return false };
        self.searched.resize((bytes.end - bytes.start) as usize, 0);
        let read = present.read_exact_at(&mut self.searched, bytes.start);
        read.is_ok() && self.searched.iter().all(|byte| *byte == 0)
    }

    /// The first of these places where a group may begin that lacks, and which.
    fn seek(&mut self, seek: Seek, assembler: &Assembler) -> Option<(u64, u64)> {
        let wanted = self.sums.as_mut().expect("it is asked for sums before");
        let older = &self.older[seek.version - usize::from(self.in_part)];
        let len = seek.to - seek.from + u64::from(self.geometry.group_len) - 1;
        self.searched.resize(len as usize, 0);
        // One that cannot be read any more has nothing.
        older.read_exact_at(&mut self.searched, seek.from).ok()?;
        let (at, group) = wanted.find(&self.searched, |group| assembler.lacks(group))?;
        Some((seek.from + at as u64, group))
    }

    /// Returns true once nothing more is checked.
    pub(super) fn is_done(&self) -> bool {
        self.machine.is_done()
    }
}
