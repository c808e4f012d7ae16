//! Memory of the machine, and the part of it that this process may still take: that of its control groups, of
//! either version.
//!
//! The contents of a store in memory count for the control group of the agent that has written them. At the
//! limit of a group the kernel ends one of its processes, so that a part of the limit is left to these.

use std::fs;
use std::path::{Path, PathBuf};

/// This part of a group's limit is left to the programs in it.
const PART_OF_PROGRAMS: u64 = 16;
/// A limit from here on is none: the first version says so by a number.
const LIMIT_MAX: u64 = 1 << 60;

/// File names of a version.
struct Version {
    /// Folder of its groups.
    folder: &'static str,
    limit: &'static str,
    usage: &'static str,
    /// Part of the usage that the kernel takes back when the memory is needed.
    reclaimable: &'static str,
}

const FIRST: Version = Version {
    folder: "sys/fs/cgroup/memory",
    limit: "memory.limit_in_bytes",
    usage: "memory.usage_in_bytes",
    reclaimable: "total_inactive_file ",
};
const SECOND: Version = Version {
    folder: "sys/fs/cgroup",
    limit: "memory.max",
    usage: "memory.current",
    reclaimable: "inactive_file ",
};

/// A group that has a limit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Group {
    limit_bytes: u64,
    /// Memory of its processes that the kernel does not take back.
    used_bytes: u64,
}

/// The memory of a machine, as its files below `root` say.
#[derive(Clone, Debug)]
pub(super) struct Memory {
    root: PathBuf,
}

impl Default for Memory {
    fn default() -> Self {
        Memory { root: PathBuf::from("/") }
    }
}

impl Memory {
    /// Bytes that there are at all for this process: those of the machine, or of its control group.
    pub(super) fn all_bytes(&self) -> Option<u64> {
        self.groups().iter().map(|group| group.limit_bytes).chain(self.machine_bytes()).min()
    }

    /// Bytes that this process may still take; `None` where no control group limits it.
    pub(super) fn left_bytes(&self) -> Option<u64> {
        let left = |group: &Group| {
            let for_programs = group.limit_bytes / PART_OF_PROGRAMS;
            group.limit_bytes.saturating_sub(group.used_bytes).saturating_sub(for_programs)
        };
        self.groups().iter().map(left).min()
    }

    fn machine_bytes(&self) -> Option<u64> {
        let text = fs::read_to_string(self.root.join("proc/meminfo")).ok()?;
        let line = text.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
        let kibibytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
        Some(kibibytes << 10)
    }

    /// The groups of this process that have a limit, with those above them.
    fn groups(&self) -> Vec<Group> {
        let text = fs::read_to_string(self.root.join("proc/self/cgroup")).unwrap_or_default();
        let lines = text.lines().filter_map(|line| {
            let mut fields = line.splitn(3, ':').skip(1);
            let (controllers, path) = (fields.next()?, fields.next()?);
            let is_first = controllers.split(',').any(|controller| controller == "memory");
            let version = if is_first { &FIRST } else { &SECOND };
            (is_first || controllers.is_empty()).then_some((version, path))
        });
        lines.flat_map(|(version, path)| self.groups_of(version, path)).collect()
    }

    /// In a container the path may be one of the host's, which is not to be seen there: then the container's
    /// group is the topmost one.
    fn groups_of(&self, version: &Version, path: &str) -> Vec<Group> {
        let top = self.root.join(version.folder);
        let own = top.join(path.trim_start_matches('/'));
        let folders = own.ancestors().take_while(|folder| folder.starts_with(&top));
        folders.filter_map(|folder| group(version, folder)).collect()
    }
}

fn group(version: &Version, folder: &Path) -> Option<Group> {
    let number = |name: &str| fs::read_to_string(folder.join(name)).ok()?.trim().parse::<u64>().ok();
    // `max` is no number, and no limit.
    let limit_bytes = number(version.limit).filter(|limit| *limit < LIMIT_MAX)?;
    let usage = number(version.usage)?;
    let stat = fs::read_to_string(folder.join("memory.stat")).unwrap_or_default();
    let reclaimable =
        stat.lines().find_map(|line| line.strip_prefix(version.reclaimable)?.trim().parse().ok());
    Some(Group { limit_bytes, used_bytes: usage.saturating_sub(reclaimable.unwrap_or(0)) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use tempfile::TempDir;

    /// A machine of which these are the files.
    fn machine(files: &[(&str, &str)]) -> (TempDir, Memory) {
        let folder = tempfile::tempdir().unwrap();
        for (path, text) in files {
            let path = folder.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        let memory = Memory { root: folder.path().to_path_buf() };
        (folder, memory)
    }

    const TOTAL: (&str, &str) = ("proc/meminfo", "MemTotal:        1000 kB\nMemFree: 5 kB\n");

    #[test]
    fn without_a_limit_there_is_the_machine() {
        let (_folder, memory) = machine(&[
            TOTAL,
            ("proc/self/cgroup", "0::/user.slice\n"),
            ("sys/fs/cgroup/user.slice/memory.max", "max\n"),
            ("sys/fs/cgroup/user.slice/memory.current", "7\n"),
        ]);
        assert_eq!((memory.all_bytes(), memory.left_bytes()), (Some(1_024_000), None));
        let (_folder, nothing) = machine(&[]);
        assert_eq!((nothing.all_bytes(), nothing.left_bytes()), (None, None));
        assert!(Memory::default().all_bytes().unwrap() > 1 << 20, "this machine has memory");
    }

    #[test]
    fn a_limit_of_the_second_version_counts_also_above() {
        let files = [
            TOTAL,
            ("proc/self/cgroup", "0::/pod/agent\n"),
            ("sys/fs/cgroup/pod/memory.max", "160000\n"),
            ("sys/fs/cgroup/pod/memory.current", "100000\n"),
            ("sys/fs/cgroup/pod/memory.stat", "anon 5\nfile 60000\ninactive_file 40000\nactive_file 20000\n"),
            ("sys/fs/cgroup/pod/agent/memory.max", "max\n"),
            ("sys/fs/cgroup/pod/agent/memory.current", "90000\n"),
        ];
        let (_folder, memory) = machine(&files);
        assert_eq!(
            (memory.all_bytes(), memory.left_bytes()),
            (Some(160_000), Some(160_000 - 60_000 - 10_000))
        );
        // The path is the host's, and the container sees its own group as the topmost one.
        let (_folder, memory) = machine(&[
            ("proc/self/cgroup", "0::/../of/the/host\n"),
            ("sys/fs/cgroup/memory.max", "16000\n"),
            ("sys/fs/cgroup/memory.current", "20000\n"),
        ]);
        assert_eq!(memory.left_bytes(), Some(0), "nothing is left");
    }

    #[test]
    fn a_limit_of_the_first_version_counts_too() {
        let (_folder, memory) = machine(&[
            TOTAL,
            ("proc/self/cgroup", "8:pids:/x\n4:cpu,memory:/docker/abc\n0::/\n"),
            ("sys/fs/cgroup/memory/docker/abc/memory.limit_in_bytes", "9223372036854771712\n"),
            ("sys/fs/cgroup/memory/docker/abc/memory.usage_in_bytes", "9\n"),
            ("sys/fs/cgroup/memory/memory.limit_in_bytes", "32000\n"),
            ("sys/fs/cgroup/memory/memory.usage_in_bytes", "8000\n"),
            ("sys/fs/cgroup/memory/memory.stat", "inactive_file 1\ntotal_inactive_file 3000\n"),
        ]);
        assert_eq!((memory.all_bytes(), memory.left_bytes()), (Some(32_000), Some(32_000 - 5_000 - 2_000)));
    }
}
