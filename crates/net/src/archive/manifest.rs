//! A directory as a list of its files, each of which is an object of its own.
//!
//! The list is the tar stream of [`TreeSource`] with one block in place of each file's contents: their BLAKE3
//! hash, and zeros. So the rules for names, links and kinds are those of every such stream, and with the
//! files at hand the list becomes that stream again. Files without bytes have no block.

use super::ArchiveError;
use super::format::{BLOCK_LEN, Entry, Kind, TRAILER_LEN};
use super::tree::TreeSource;
use super::unpack::{Stream, components, path_components, refused};
use polycast_types::ModificationTime;
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

/// Files, directories and links that a list may have.
pub const ENTRIES_MAX: usize = 65_536;
/// The longest list, in bytes: it is held in memory, here and at every receiver.
pub const MANIFEST_LEN_MAX: u64 = 32 << 20;
/// The longest path below the directory: as long as the system takes one.
const NAME_LEN_MAX: usize = 4_096;
/// Directories that a path leads through, with its own end.
const DEPTH_MAX: usize = 256;
/// The longest file: as long as an object can be.
const FILE_LEN_MAX: u64 = 1 << 50;

/// BLAKE3 of a file's bytes.
pub type Root = [u8; 32];

/// The files of a directory, and what else is in it.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Manifest {
    entries: Vec<(Entry, Option<Root>)>,
}

/// A file that has bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Listed<'a> {
    /// Path below the directory.
    pub name: &'a [u8],
    /// Length in bytes.
    pub len: u64,
    /// Permissions.
    pub mode: u16,
    /// Root hash of its bytes.
    pub root: Root,
}

impl Manifest {
    /// Lists a directory; `root_of` reads a file of this length.
    ///
    /// # Errors
    /// A file cannot be read, there are too many, or a link leads to what is not among them.
    pub fn of(
        tree: &TreeSource,
        mut root_of: impl FnMut(&Path, u64) -> io::Result<Root>,
    ) -> Result<Self, ArchiveError> {
        if !tree.links_out().is_empty() {
            return Err(ArchiveError::LeadOut(tree.links_out().clone()));
        }
        check_shape(tree)?;
        let mut entries = Vec::new();
        for entry in tree.entries() {
            let root = match entry.kind {
                Kind::File { len } if len > 0 => {
                    let path = tree.path_of(&entry.name);
                    let root = root_of(&path, len);
                    Some(root.map_err(|source| ArchiveError::Io { action: "read", path, source })?)
                }
                _ => None,
            };
            entries.push((entry.clone(), root));
        }
        Ok(Manifest { entries })
    }

    /// Lists files by their paths below the directory, each with its length and the root hash of its bytes,
    /// which one without bytes has not. They get the usual permissions and this time.
    ///
    /// # Errors
    /// There are too many, a path is there twice or leads elsewhere, or through a file.
    pub fn of_files(
        files: impl IntoIterator<Item = (Vec<u8>, u64, Option<Root>)>,
        modified: ModificationTime,
    ) -> Result<Self, ArchiveError> {
        let entry = |name: Vec<u8>, kind: Kind| {
            let mode = if kind == Kind::Directory { 0o755 } else { 0o644 };
            Entry { name, kind, mode, modified }
        };
        let mut listed: BTreeMap<Vec<u8>, (Entry, Option<Root>)> = BTreeMap::new();
        listed.insert(Vec::new(), (entry(Vec::new(), Kind::Directory), None));
        for (name, len, root) in files {
            let slashes = name.iter().enumerate().filter(|(_, byte)| **byte == b'/');
            for above in slashes.map(|(at, _)| name[..at].to_vec()).collect::<Vec<_>>() {
                let folder = || (entry(above.clone(), Kind::Directory), None);
                listed.entry(above.clone()).or_insert_with(folder);
            }
            let file = entry(name.clone(), Kind::File { len });
            if listed.insert(name.clone(), (file, root.filter(|_| len > 0))).is_some() {
                return Err(refused(&name, "it is there twice, or is a directory, too"));
            }
        }
        // What lies in a directory comes after it, in the order of the names.
        Self::parse(&Manifest { entries: listed.into_values().collect() }.to_bytes())
    }

    /// The list as it travels.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        for (entry, root) in &self.entries {
            bytes.extend_from_slice(&entry.headers());
            if let Some(root) = root {
                bytes.extend_from_slice(root);
                bytes.resize(bytes.len().next_multiple_of(BLOCK_LEN as usize), 0);
            }
        }
        bytes.resize(bytes.len() + TRAILER_LEN as usize, 0);
        bytes
    }

    /// Reads a list. One that could not become a directory is refused as a whole.
    ///
    /// # Errors
    /// It is damaged; a name leads elsewhere, is there twice or lies in nothing; a link is no link of the
    /// directory; or lengths do not fit.
    pub fn parse(bytes: &[u8]) -> Result<Self, ArchiveError> {
        if bytes.len() as u64 > MANIFEST_LEN_MAX {
            return Err(refused(&[], "the list is longer than 32 MiB, which is the most"));
        }
        let mut stream = Stream::from(bytes, 0);
        let (mut entries, mut tree, mut total) = (Vec::new(), Shape::default(), 0u64);
        let mut lengths: BTreeMap<Root, u64> = BTreeMap::new();
        while let Some(mut entry) = stream.next_entry()? {
            check_count(entries.len()).map_err(|why| refused(&entry.name, why))?;
            check_name(&entry.name).map_err(|(shown, why)| refused(shown, why))?;
            entry.name = tree.add(&entry)?;
            let refuse = |why| refused(&entry.name, why);
            let mut root = None;
            if let Kind::File { len } = entry.kind
                && len > 0
            {
                total = total
                    .checked_add(len)
                    .filter(|total| *total <= FILE_LEN_MAX)
                    .ok_or_else(|| refuse("with it the directory is longer than an object can be"))?;
                let mut block = [0; BLOCK_LEN as usize];
                stream.fill(&mut block)?;
                let (hash, rest) = block.split_at(32);
                if rest.iter().any(|byte| *byte != 0) {
                    return Err(refuse("it has contents, and a list names only their hash"));
                }
                let hash: Root = hash.try_into().unwrap_or_default();
                if *lengths.entry(hash).or_insert(len) != len {
                    return Err(refuse("another file has the same bytes and another length"));
                }
                root = Some(hash);
            }
            entries.push((entry, root));
        }
        Ok(Manifest { entries })
    }

    /// The files that have bytes, in the order of the list.
    pub fn files(&self) -> impl Iterator<Item = Listed<'_>> {
        self.numbered().map(|(_, file)| file)
    }

    /// The same, each with its number.
    pub fn numbered(&self) -> impl Iterator<Item = (usize, Listed<'_>)> {
        (0..self.entries.len()).filter_map(|number| Some((number, self.file(number)?)))
    }

    /// The file of this number.
    #[must_use]
    pub fn file(&self, number: usize) -> Option<Listed<'_>> {
        let (entry, root) = self.entries.get(number)?;
        let mode = (entry.mode & 0o777) as u16;
        Some(Listed { name: &entry.name, len: entry.content_len(), mode, root: (*root)? })
    }

    /// The directory's stream; `path_of` says where a file's bytes lie.
    #[must_use]
    pub fn source(&self, mut path_of: impl FnMut(&Root) -> PathBuf) -> TreeSource {
        let entries = self.entries.iter().cloned();
        TreeSource::listed(entries.map(|(entry, root)| (entry, root.map(|root| path_of(&root)))))
    }
}

/// Checks that a directory can be a list, before any file of it is read.
fn check_shape(tree: &TreeSource) -> Result<(), ArchiveError> {
    let unlisted =
        |name: &[u8], why| ArchiveError::Unlisted { entry: String::from_utf8_lossy(name).into_owned(), why };
    let mut len = TRAILER_LEN;
    for (count, entry) in tree.entries().enumerate() {
        check_count(count).map_err(|why| unlisted(&entry.name, why))?;
        check_name(&entry.name).map_err(|(shown, why)| unlisted(shown, why))?;
        let block = if entry.content_len() > 0 { BLOCK_LEN } else { 0 };
        len += entry.headers().len() as u64 + block;
        if len > MANIFEST_LEN_MAX {
            return Err(unlisted(&entry.name, "with it the list is longer than 32 MiB, which is the most"));
        }
    }
    Ok(())
}

/// Checks that there may be one more entry.
fn check_count(entries: usize) -> Result<(), &'static str> {
    if entries < ENTRIES_MAX { Ok(()) } else { Err("a list has at most 65,536 files, directories and links") }
}

/// Checks that an entry's path can be listed; if not, returns the part of it to show, and the reason.
fn check_name(name: &[u8]) -> Result<(), (&[u8], &'static str)> {
    let name = name.strip_suffix(b"/").unwrap_or(name);
    if name.len() > NAME_LEN_MAX {
        return Err((&name[..64], "the path that begins so is longer than 4,096 bytes"));
    }
    if name.split(|byte| *byte == b'/').count() > DEPTH_MAX {
        return Err((&name[..name.len().min(64)], "the path that begins so has more than 256 directories"));
    }
    Ok(())
}

/// Tree that the entries so far make, to refuse what the file system would refuse when they are unpacked.
#[derive(Default)]
struct Shape {
    directories: BTreeSet<Vec<u8>>,
    files: BTreeSet<Vec<u8>>,
    links: BTreeSet<Vec<u8>>,
    begun: bool,
}

impl Shape {
    /// Takes in an entry; gives its name without what the stream adds to that of a directory.
    fn add(&mut self, entry: &Entry) -> Result<Vec<u8>, ArchiveError> {
        let refuse = |why| Err(refused(&entry.name, why));
        let path = components(entry)?;
        let Some((_, parent)) = path.split_last() else {
            if std::mem::replace(&mut self.begun, true) {
                return refuse("the directory itself comes first or not at all");
            }
            return Ok(Vec::new());
        };
        self.begun = true;
        let name = joined(&path);
        if !parent.is_empty() && !self.directories.contains(&joined(parent)) {
            let through = |len: usize| {
                let above = joined(&parent[..len]);
                self.files.contains(&above) || self.links.contains(&above)
            };
            if (1..=parent.len()).any(through) {
                return refuse("its path leads through a link or a file");
            }
            return refuse("it comes before the directory that it lies in");
        }
        if [&self.directories, &self.files, &self.links].iter().any(|known| known.contains(&name)) {
            return refuse("it is in the stream twice");
        }
        match &entry.kind {
            Kind::Directory => self.directories.insert(name.clone()),
            Kind::Symlink { .. } => self.links.insert(name.clone()),
            Kind::File { .. } => self.files.insert(name.clone()),
            Kind::HardLink { target } => {
                let target = path_components(target, false).map_err(|why| refused(&entry.name, why))?;
                if !self.files.contains(&joined(&target)) {
                    return refuse("it is another name of a file that has not come");
                }
                self.files.insert(name.clone())
            }
        };
        Ok(name)
    }
}

fn joined(path: &[OsString]) -> Vec<u8> {
    path.join(OsStr::new("/")).into_vec()
}

#[cfg(test)]
mod tests {
    use super::super::unpack;
    use super::*;
    use crate::object::ObjectSource;
    use std::fs;
    use std::io::Read;
    use std::os::unix::fs::symlink;

    #[test]
    fn files_that_lie_nowhere_yet_are_a_list_too() {
        let time = ModificationTime::default();
        let root = |byte: u8| Some([byte; 32]);
        let file = |name: &str, len, root| (name.as_bytes().to_vec(), len, root);
        let files = [file("b/c/x", 3, root(1)), file("a", 2, root(2)), file("b-", 0, None)];
        let list = Manifest::of_files(files, time).unwrap();
        let names: Vec<_> = list.entries.iter().map(|(entry, _)| entry.name.clone()).collect();
        let wanted: Vec<&[u8]> = vec![b"", b"a", b"b", b"b-", b"b/c", b"b/c/x"];
        assert_eq!(names, wanted);
        assert_eq!(list.files().map(|file| (file.len, file.root[0])).collect::<Vec<_>>(), [(2, 2), (3, 1)]);
        for wrong in [
            vec![file("a", 1, root(1)), file("a", 1, root(1))],
            vec![file("a", 1, root(1)), file("a/b", 1, root(1))],
            vec![file("../a", 1, root(1))],
            vec![file("/a", 1, root(1))],
            vec![file("a", 1, root(1)), file("b", 2, root(1))],
        ] {
            Manifest::of_files(wrong, time).unwrap_err();
        }
    }

    fn entry(name: &str, kind: Kind) -> Vec<u8> {
        Entry { name: name.into(), kind, mode: 0o644, modified: ModificationTime::default() }.headers()
    }

    fn file(name: &str, len: u64, root: u8) -> Vec<u8> {
        let mut bytes = entry(name, Kind::File { len });
        bytes.extend_from_slice(&[root; 32]);
        bytes.resize(bytes.len().next_multiple_of(512), 0);
        bytes
    }

    fn said(parts: &[Vec<u8>]) -> String {
        let bytes = [parts.concat(), vec![0; 1_024]].concat();
        Manifest::parse(&bytes)
            .map(|manifest| manifest.files().count().to_string())
            .unwrap_or_else(|error| error.to_string())
    }

    #[test]
    fn a_list_with_its_files_is_the_directory() {
        let place = tempfile::tempdir().unwrap();
        let from = place.path().join("from");
        fs::create_dir_all(from.join("sub/empty")).unwrap();
        for (name, bytes) in
            [("a.bin", vec![7; 100_000]), ("sub/b.bin", vec![7; 100_000]), ("sub/none", vec![])]
        {
            fs::write(from.join(name), bytes).unwrap();
        }
        fs::hard_link(from.join("a.bin"), from.join("sub/again")).unwrap();
        symlink("../a.bin", from.join("sub/link")).unwrap();
        let tree = TreeSource::open(&from).unwrap();
        let manifest = Manifest::of(&tree, |path, _| Ok(*blake3::hash(&fs::read(path)?).as_bytes())).unwrap();
        let read = Manifest::parse(&manifest.to_bytes()).unwrap();
        assert_eq!(read.to_bytes(), manifest.to_bytes());
        let names: Vec<_> =
            read.files().map(|file| String::from_utf8_lossy(file.name).into_owned()).collect();
        assert_eq!(names, ["a.bin", "sub/b.bin"]);
        // The bytes of both are one object, wherever it lies.
        let stored = place.path().join("stored");
        fs::write(&stored, vec![7; 100_000]).unwrap();
        let source = read.source(|_| stored.clone());
        let mut bytes = vec![0; source.len() as usize];
        source.read_exact_at(&mut bytes, 0).unwrap();
        let mut whole = vec![0; tree.len() as usize];
        tree.read_exact_at(&mut whole, 0).unwrap();
        assert!(bytes == whole, "it is not the directory's stream");
        let to = place.path().join("to");
        unpack(bytes.as_slice().by_ref(), &to, false).unwrap();
        assert_eq!(fs::read(to.join("sub/b.bin")).unwrap().len(), 100_000);
    }

    #[test]
    fn lists_that_no_honest_source_makes_are_refused() {
        let directory = |name: &str| entry(name, Kind::Directory);
        let link = |name: &str, to: &str| entry(name, Kind::Symlink { target: to.into() });
        let hard = |name: &str, to: &str| entry(name, Kind::HardLink { target: to.into() });
        let mut with_contents = file("a", 5, 1);
        *with_contents.last_mut().unwrap() = 1;
        for (parts, says) in [
            (vec![file("../a", 5, 1)], "leads out of the directory"),
            (vec![file("/etc/a", 5, 1)], "absolute"),
            (vec![file("a/../../b", 5, 1)], "leads out of the directory"),
            (vec![file("a", 5, 1), file("a", 5, 1)], "twice"),
            (vec![file("a", 5, 1), directory("a")], "twice"),
            (vec![link("a", "/etc"), file("a/passwd", 5, 1)], "leads through a link or a file"),
            (vec![file("a/b", 5, 1)], "before the directory"),
            (vec![hard("a", "b")], "has not come"),
            (vec![link("a", "/etc/passwd"), hard("b", "a")], "has not come"),
            (vec![file("a", 5, 1), hard("b", "../../x")], "leads out of the directory"),
            (vec![file("a", 5, 1), file("b", 6, 1)], "another length"),
            (vec![file("a", 1 << 62, 1)], "longer than an object can be"),
            (vec![file("a", 1 << 50, 1), file("b", 1, 2)], "longer than an object can be"),
            (vec![with_contents], "it has contents"),
        ] {
            let said = said(&parts);
            assert!(said.contains(says), "'{said}' does not say '{says}'");
            assert_eq!(said.lines().count(), 1, "{said}");
        }
        assert_eq!(said(&[file("a", 5, 1), directory("d"), link("d/l", "/etc"), hard("d/b", "a")]), "1");
        let ends = Manifest::parse(&file("a", 5, 1)).unwrap_err().to_string();
        assert!(ends.contains("ends too early"), "{ends}");
    }

    #[test]
    fn lists_are_bounded() {
        let deep = "d/".repeat(256) + "a";
        assert!(said(&[file(&deep, 5, 1)]).contains("more than 256 directories"));
        assert!(said(&[file(&"x".repeat(4_097), 5, 1)]).contains("longer than 4,096 bytes"));
        let long = said(&[vec![0; MANIFEST_LEN_MAX as usize]]);
        assert!(long.contains("longer than 32 MiB"), "{long}");
    }

    #[test]
    fn what_cannot_be_a_list_is_refused_before_it_is_read() {
        let place = tempfile::tempdir().unwrap();
        let deep = place.path().join("deep");
        fs::create_dir_all(deep.join("d/".repeat(257))).unwrap();
        let many = place.path().join("many");
        fs::create_dir(&many).unwrap();
        for number in 0..ENTRIES_MAX {
            fs::File::create(many.join(number.to_string())).unwrap();
        }
        let out = place.path().join("out");
        fs::create_dir(&out).unwrap();
        symlink("../blobs/abc", out.join("weights")).unwrap();
        for (path, says) in [
            (deep, "more than 256 directories; without --files"),
            (many, "which is the most; without --files the directory is one object"),
            (
                out,
                "weights -> ../blobs/abc (nothing is there): a set is made of files that lie in it; say --follow",
            ),
        ] {
            let tree = TreeSource::open(&path).unwrap();
            let said = Manifest::of(&tree, |path, _| panic!("{} was read", path.display()));
            let said = said.unwrap_err().to_string();
            assert!(said.contains(says) && !said.contains("unpack"), "'{said}' does not say '{says}'");
        }
    }

    proptest::proptest! {
        #[test]
        fn whatever_comes_is_read_or_refused(
            bytes in proptest::collection::vec(proptest::prelude::any::<u8>(), 0..2_000),
            at in 0usize..2_000, flipped: u8,
        ) {
            let _ = Manifest::parse(&bytes);
            let mut honest = [file("a", 5, 1), file("b", 9, 2), vec![0; 1_024]].concat();
            let at = at % honest.len();
            honest[at] ^= flipped;
            // What is read is a list that says the same once more.
            if let Ok(read) = Manifest::parse(&honest) {
                proptest::prop_assert_eq!(&Manifest::parse(&read.to_bytes()).unwrap(), &read);
            }
        }
    }
}
