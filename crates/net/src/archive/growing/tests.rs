//! Streams that come in any order, and with an earlier try's rest, against the same streams unpacked as a
//! whole.

use super::super::tests::{look, stream_of};
use super::super::{TreeSource, unpack};
use crate::store::{Held, PartFile, Placing};
use polycast_testing::folder_in_memory;
use proptest::prelude::*;
use std::fs;
use std::ops::Range;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::Path;
use std::sync::Arc;

const UNPACKED: Placing = Placing { replace: false, unpacked: true };

/// Bytes of which every piece is another one; zeros in the middle of long ones.
fn contents(number: usize, len: usize) -> Vec<u8> {
    let mut bytes: Vec<u8> = (0..len).map(|at| (at * 31 + at / 251 + number * 7 + 1) as u8 | 1).collect();
    if len > 300_000 {
        bytes[60_000..260_000].fill(0);
    }
    bytes
}

/// A tree with files of these lengths, and all else that a tree may have.
fn make_tree(root: &Path, lens: &[usize]) {
    fs::create_dir_all(root.join("sub/deeper")).unwrap();
    fs::create_dir(root.join("empty")).unwrap();
    for (number, len) in lens.iter().enumerate() {
        let folder = ["", "sub", "sub/deeper"][number % 3];
        // Every fourth has a name that needs headers of its own.
        let name =
            if number % 4 == 3 { format!("{number}{}", "n".repeat(180)) } else { format!("file {number}") };
        let path = root.join(folder).join(name);
        fs::write(&path, contents(number, *len)).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode([0o640, 0o444, 0o755][number % 3])).unwrap();
        if number == 1 {
            fs::hard_link(&path, root.join("twin")).unwrap();
        }
    }
    symlink("sub/file 1", root.join("link")).unwrap();
    fs::set_permissions(root.join("sub/deeper"), fs::Permissions::from_mode(0o555)).unwrap();
}

/// A receiver of a stream.
struct Coming<'a> {
    stream: &'a [u8],
    group_len: usize,
    part: PartFile,
    verified: Vec<bool>,
}

impl<'a> Coming<'a> {
    fn begin(target: &Path, stream: &'a [u8], group_len: usize) -> Self {
        let part = PartFile::open(target, stream.len() as u64, UNPACKED).unwrap();
        Coming { stream, group_len, part, verified: vec![false; stream.len().div_ceil(group_len)] }
    }

    fn bytes_of(&self, group: usize) -> Range<usize> {
        group * self.group_len..self.stream.len().min((group + 1) * self.group_len)
    }

    fn put(&mut self, group: usize, written: bool) {
        let range = self.bytes_of(group);
        let bytes = &self.stream[range.clone()];
        if written {
            self.part.write(bytes, range.start as u64).unwrap();
        }
        self.verified[group] = true;
        let row = self.verified.iter().take_while(|verified| **verified).count();
        let verified_to = if row == 0 { 0 } else { self.bytes_of(row - 1).end };
        self.part.put(bytes, range.start as u64, verified_to as u64, written).unwrap();
    }

    /// Checks that the bytes that are held are those that came.
    fn check(&self, held: &Held) {
        for group in (0..self.verified.len()).filter(|group| self.verified[*group]) {
            let range = self.bytes_of(group);
            let mut there = vec![0; range.len()];
            held.read_exact_at(&mut there, range.start as u64).unwrap();
            assert!(there == self.stream[range], "group {group} is not what came");
        }
    }

    /// Returns the number of earlier groups that are here now, after another try has taken up what was left.
    fn take_up(&mut self) -> usize {
        assert!(self.part.is_resumed());
        let came = std::mem::replace(&mut self.verified, vec![false; 0]);
        self.verified = vec![false; came.len()];
        let mut here = 0;
        for group in (0..came.len()).filter(|group| came[*group]) {
            let range = self.bytes_of(group);
            let mut there = vec![0; range.len()];
            self.part.read(&mut there, range.start as u64).unwrap();
            if there == self.stream[range] {
                self.put(group, true);
                here += 1;
            }
        }
        here
    }
}

/// Bytes that a folder takes on its file system.
fn room_of(folder: &Path) -> u64 {
    let listing = fs::read_dir(folder).unwrap();
    let of = |entry: fs::DirEntry| {
        let metadata = fs::symlink_metadata(entry.path()).unwrap();
        metadata.blocks() * 512 + if metadata.is_dir() { room_of(&entry.path()) } else { 0 }
    };
    listing.map(|entry| of(entry.unwrap())).sum()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn a_stream_in_any_order_becomes_its_directory(
        lens in proptest::collection::vec(prop_oneof![Just(0), 1usize..600, 1usize..40_000, 1usize..500_000], 0..12),
        group_len in prop_oneof![Just(512usize), Just(4096), Just(65_536), Just(262_144)],
        order in any::<u64>(),
        shuffled in 0usize..4,
        interrupted in any::<bool>(),
    ) {
        let place = folder_in_memory();
        let (from, whole, target) = (place.path().join("from"), place.path().join("whole"), place.path().join("target"));
        make_tree(&from, &lens);
        let stream = stream_of(&TreeSource::open(&from).unwrap());
        // Short groups of a long stream would take their time.
        let group_len = group_len.max((stream.len() / 300).next_power_of_two());
        unpack(stream.as_slice(), &whole, false).unwrap();

        let mut coming = Coming::begin(&target, &stream, group_len);
        let count = coming.verified.len();
        let mut groups: Vec<usize> = (0..count).collect();
        let mut random = order;
        let mut draw = |below: usize| {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (random >> 33) as usize % below
        };
        match shuffled {
            // Round the end, as one hears it that joins late.
            1 => groups.rotate_left(draw(count)),
            2 => groups.reverse(),
            3 => (1..count).rev().for_each(|at| groups.swap(at, draw(at + 1))),
            _ => {}
        }
        let mut held: Arc<Held> = coming.part.held();
        let stop_at = if interrupted { draw(count + 1) } else { count };
        let mut queue = groups.iter().copied();
        for group in queue.by_ref().take(stop_at).collect::<Vec<_>>() {
            coming.put(group, draw(4) == 0);
            if draw(16) == 0 {
                coming.check(&held);
            }
        }
        coming.check(&held);
        if interrupted {
            coming.part.keep_for_later();
            drop(held);
            let Coming { verified, part, .. } = coming;
            drop(part);
            prop_assert!(!target.exists());
            coming = Coming::begin(&target, &stream, group_len);
            coming.verified = verified;
            let came = coming.verified.iter().filter(|came| **came).count();
            let here = if came > 0 { coming.take_up() } else { 0 };
            // At each border of what had come, and of each file, some go with the block that they share.
            let runs = (0..count).filter(|at| coming.verified[*at] && (*at == 0 || !coming.verified[at - 1]));
            let borders = 2 * (runs.count() + lens.len() + 1) * (4096 / group_len + 1);
            prop_assert!(here + borders >= came, "{here} of {came} are here, of {count}");
            held = coming.part.held();
        }
        for group in 0..count {
            if !coming.verified[group] {
                coming.put(group, false);
            }
        }
        coming.check(&held);
        coming.part.unpack().unwrap();
        prop_assert_eq!(look(&target), look(&whole));
        let mut names: Vec<_> = fs::read_dir(place.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        names.sort();
        prop_assert_eq!(names, ["from", "target", "whole"]);
    }
}

/// The part file may have anything where nothing verified is: what an earlier try or an incomplete group has
/// left there shows through no zeros of the stream.
#[test]
fn what_was_in_the_part_file_before_shows_nowhere() {
    for backwards in [false, true] {
        let place = folder_in_memory();
        let (from, target) = (place.path().join("from"), place.path().join("target"));
        make_tree(&from, &[500_000, 100, 700_000, 33_000]);
        let stream = stream_of(&TreeSource::open(&from).unwrap());
        let mut coming = Coming::begin(&target, &stream, 1 << 16);
        let mut groups: Vec<usize> = (0..coming.verified.len()).collect();
        if backwards {
            groups.reverse();
        }
        coming.part.write(&vec![0xff; stream.len()], 0).unwrap();
        groups.into_iter().for_each(|group| coming.put(group, false));
        coming.check(&coming.part.held());
        coming.part.unpack().unwrap();
        assert!(look(&target) == look(&from), "backwards: {backwards}");
    }
}

#[test]
fn a_directory_needs_its_room_once() {
    for backwards in [false, true] {
        let place = folder_in_memory();
        let (from, to) = (place.path().join("from"), place.path().join("to"));
        make_tree(&from, &[5_000_000, 3_000_000, 2_000, 4_000_000]);
        fs::create_dir(&to).unwrap();
        let stream = stream_of(&TreeSource::open(&from).unwrap());
        let mut coming = Coming::begin(&to.join("target"), &stream, 1 << 18);
        let mut groups: Vec<usize> = (0..coming.verified.len()).collect();
        if backwards {
            groups.reverse();
        }
        let mut most = 0;
        for group in groups {
            coming.put(group, false);
            most = most.max(room_of(&to));
        }
        coming.part.unpack().unwrap();
        // A few blocks for headers, and a piece that is in both places for a moment.
        assert!(most < stream.len() as u64 + (3 << 20), "{most} of {}", stream.len());
        assert_eq!(look(&to.join("target")).len(), look(&from).len());
    }
}

#[test]
fn a_stream_that_is_hostile_or_ends_too_early_leaves_nothing() {
    let place = folder_in_memory();
    let (from, target) = (place.path().join("from"), place.path().join("target"));
    make_tree(&from, &[100, 70_000]);
    let stream = stream_of(&TreeSource::open(&from).unwrap());
    let whole_but = |stream: Vec<u8>| {
        let part = PartFile::open(&target, stream.len() as u64, UNPACKED).unwrap();
        let len = stream.len() as u64;
        let said = part.put(&stream, 0, len, false).map_err(|error| error.to_string());
        let said =
            said.and_then(|()| part.unpack().map(drop).map_err(|error| error.to_string())).unwrap_err();
        assert_eq!(fs::read_dir(place.path()).unwrap().count(), 1, "{said}");
        said
    };
    let short = whole_but(stream[..stream.len() - 1_024].to_vec());
    assert!(short.contains("ends too early"), "{short}");
    let cut = whole_but(stream[..40_000].to_vec());
    assert!(cut.contains("ends too early"), "{cut}");
    let mut damaged = stream;
    damaged[150] ^= 1;
    let damaged = whole_but(damaged);
    assert!(damaged.contains("check sum"), "{damaged}");
}

#[test]
fn what_no_try_has_left_is_not_taken_up() {
    let place = folder_in_memory();
    let target = place.path().join("target");
    let tree = place.path().join(".target.polycast-tree");
    fs::create_dir_all(tree.join("precious")).unwrap();
    let open = || PartFile::open(&target, 2_000, UNPACKED).map(drop).map_err(|error| error.to_string());
    let said = open().unwrap_err();
    assert!(said.contains("is not what an earlier try leaves: remove it"), "{said}");
    assert!(tree.join("precious").exists());
    fs::remove_dir_all(&tree).unwrap();
    symlink("/tmp", &tree).unwrap();
    let said = open().unwrap_err();
    assert!(said.contains("is not a directory: remove it"), "{said}");
    fs::remove_file(&tree).unwrap();
    open().unwrap();
    assert_eq!(fs::read_dir(place.path()).unwrap().count(), 0);
}
