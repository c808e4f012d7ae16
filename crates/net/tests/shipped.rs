//! The kernel programs that are shipped are those of the source beside them.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../bpf")
}

/// Returns the output of a command.
fn said(command: &str) -> String {
    let output = Command::new("sh").args(["-c", command]).current_dir(folder()).output().unwrap();
    String::from_utf8_lossy(&output.stdout).trim().to_string()
}

/// The bytes of the sections of an ELF object that the kernel is given: code, constants and maps.
fn sections(object: &Path) -> BTreeMap<String, Vec<u8>> {
    let bytes = fs::read(object).unwrap();
    let number = |at: usize, len: usize| {
        bytes[at..at + len].iter().rev().fold(0u64, |value, byte| value << 8 | u64::from(*byte)) as usize
    };
    assert_eq!(&bytes[..4], b"\x7fELF");
    let (table, entry_len, count, names) = (number(40, 8), number(58, 2), number(60, 2), number(62, 2));
    let section = |index: usize| {
        let at = table + index * entry_len;
        (number(at, 4), number(at + 4, 4), number(at + 24, 8), number(at + 32, 8))
    };
    let names_at = section(names).2;
    let named = (0..count).filter_map(|index| {
        let (name, kind, at, len) = section(index);
        let name = &bytes[names_at + name..];
        let name = String::from_utf8_lossy(&name[..name.iter().position(|byte| *byte == 0)?]).into_owned();
        // With bytes of its own, and no debug information: that has what headers of the system say.
        let given = kind == 1 && !name.contains(".BTF") && !name.starts_with(".debug");
        given.then(|| (name, bytes[at..at + len].to_vec()))
    });
    named.collect()
}

#[test]
fn the_objects_are_those_of_the_source() {
    let built = fs::read_to_string(folder().join("objects/BUILT")).unwrap();
    let (source, compiler) = built.trim().split_once('\n').unwrap();
    let now = said("cat -- *.c *.h | sha256sum | cut -d ' ' -f 1");
    assert_eq!(now, source, "a source has changed: run bpf/build.sh");
    // Another compiler makes other code of the same source.
    if said("clang --version | head -n 1") != compiler || said("command -v llvm-strip").is_empty() {
        return polycast_testing::skip(&format!("the objects were made by {compiler}, which is not here"));
    }
    let out = tempfile::tempdir().unwrap();
    let made = Command::new(folder().join("build.sh")).arg(out.path()).status().unwrap();
    assert!(made.success());
    for name in ["orca_switch.o", "orca_agent.o", "datacast.o"] {
        let shipped = sections(&folder().join("objects").join(name));
        assert!(shipped.len() > 2 && shipped.contains_key(".maps"), "{name}: {:?}", shipped.keys());
        assert_eq!(shipped, sections(&out.path().join(name)), "{name}: run bpf/build.sh");
    }
}
