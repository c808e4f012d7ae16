//! Inputs that fuzzing begins with: bytes of real sessions, bytes that reached something new in earlier runs,
//! and the packets that the formats are held to.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// The packets of these files of `crates/wire/tests/golden` are inputs of these targets.
const GOLDEN: [(&str, &str); 10] = [
    ("control", "control_frame"),
    ("control", "frame_stream"),
    ("data", "data_header"),
    ("discovery", "discovery"),
    ("label", "label_header"),
    ("label", "label_probe"),
    ("pull", "pull_packet"),
    ("rack", "rack"),
    ("stream", "stream_header"),
    ("switches", "switch_words"),
];
/// Settings are read from samples.
const SAMPLES: [&str; 2] = ["docs/agent.sample.toml", "docs/manager.sample.toml"];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// The inputs of a target.
///
/// # Panics
/// A line of the corpus is no name and no bytes.
#[must_use]
pub fn seeds(target: &str) -> Vec<Vec<u8>> {
    let committed = root().join("verify/fuzz/corpus").join(format!("{target}.hex"));
    let mut seeds = lines(&committed, 0);
    for (golden, _) in GOLDEN.iter().filter(|(_, other)| *other == target) {
        let packets = lines(&root().join(format!("crates/wire/tests/golden/{golden}.hex")), 2);
        if target == "frame_stream" {
            // All packets one after the other; the first eight bytes are where to cut.
            seeds.push([vec![9; 8], packets.concat()].concat());
        } else {
            seeds.extend(packets);
        }
    }
    if target == "settings" {
        seeds.extend(SAMPLES.iter().filter_map(|path| fs::read(root().join(path)).ok()));
    }
    seeds
}

/// The bytes at the end of each line behind the first `skipped` ones; none if there is no such file.
fn lines(path: &Path, skipped: usize) -> Vec<Vec<u8>> {
    let text = fs::read_to_string(path).unwrap_or_default();
    let hex = text.lines().skip(skipped).filter_map(|line| line.split_whitespace().last());
    hex.map(|hex| bytes(hex).unwrap_or_else(|| panic!("{} has a line that ends with {hex}", path.display())))
        .collect()
}

fn bytes(hex: &str) -> Option<Vec<u8>> {
    let (pairs, rest) = hex.as_bytes().as_chunks::<2>();
    let byte = |pair: &[u8; 2]| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok();
    rest.is_empty().then(|| pairs.iter().map(byte).collect())?
}

/// Writes the inputs of a target into a folder, a file each, in the place of what is there.
///
/// # Errors
/// The folder cannot be written.
pub fn unpack(target: &str, folder: &Path) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        fs::remove_file(entry?.path())?;
    }
    for (number, seed) in seeds(target).iter().enumerate() {
        fs::write(folder.join(format!("{number:04}")), seed)?;
    }
    Ok(())
}
