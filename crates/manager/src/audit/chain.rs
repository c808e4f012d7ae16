//! The chain of an audit log's lines, and the files that they lie in.

use polycast_net::hash::{bytes_hash, hex};
use serde_json::Value;
use std::path::{Path, PathBuf};

/// The longest line: what names more is cut before.
pub const LINE_LEN_MAX: usize = 64 << 10;
/// Stands before the first line of all.
pub(super) const BEGINNING: &str = "0000000000000000000000000000000000000000000000000000000000000000";

/// The hash of a line, without its end.
pub(super) fn hash_of(line: &[u8]) -> String {
    hex(&bytes_hash(line))
}

/// The number of a line, and the hash of the one before.
pub(super) fn chain_of(line: &[u8]) -> Option<(u64, String)> {
    let value: Value = serde_json::from_slice(line).ok()?;
    Some((value["n"].as_u64()?, value["before"].as_str()?.to_string()))
}

/// The name of a full file.
pub(super) fn full(path: &Path, number: usize) -> PathBuf {
    let mut name = path.as_os_str().to_os_string();
    name.push(format!(".{number}"));
    name.into()
}
