//! The workspace as text: manifests, sources and documents.

use std::fs;
use std::path::{Path, PathBuf};
use toml::Table;

/// Folders below the root that hold sources of ours.
const SOURCE_FOLDERS: [&str; 10] =
    ["crates", "research", "verify", "examples", "xtask", "bpf", "p4", "python", "rtl", "spark"];
/// Endings of the files whose style is checked.
const SOURCE_ENDINGS: [&str; 9] = ["rs", "proto", "c", "h", "v", "p4", "py", "java", "scala"];
/// Folders that hold nothing written by hand.
const SKIPPED_FOLDERS: [&str; 7] =
    ["target", "corpus", "artifacts", "__pycache__", ".venv", ".pytest_cache", "node_modules"];
/// Folders below the root that hold documents of ours, besides those in the root itself.
const DOCUMENT_FOLDERS: [&str; 13] = [
    ".github",
    "bpf",
    "crates",
    "docs",
    "examples",
    "p4",
    "packaging",
    "python",
    "research",
    "rtl",
    "spark",
    "verify",
    "xtask",
];
/// The ending of documents.
const DOCUMENT_ENDINGS: [&str; 1] = ["md"];

/// All that the checks look at.
pub(crate) struct Workspace {
    /// The root manifest.
    pub manifest: Table,
    /// One for each crate of the three wings.
    pub members: Vec<Member>,
    /// Every source file.
    pub sources: Vec<Source>,
    /// Every document.
    pub documents: Vec<Source>,
}

/// Wings of the house: what delivers, what research needs beside it, and what verifies both.
pub(crate) const WINGS: [&str; 3] = ["crates", "research", "verify"];

/// A crate of a wing.
pub(crate) struct Member {
    /// The wing that it lies in.
    pub wing: &'static str,
    /// Its folder's name in the wing.
    pub folder: String,
    /// Its manifest.
    pub manifest: Table,
}

/// A source file, or a document.
pub(crate) struct Source {
    /// Path below the workspace's root.
    pub path: String,
    /// Its text.
    pub text: String,
}

/// The folder of what is built.
pub(crate) fn target() -> PathBuf {
    root().join(std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| PathBuf::from("target"), PathBuf::from))
}

/// The root folder of the workspace in which cargo runs this program. Where cargo does not, that in which it
/// was built: copies of a workspace that share what is built share this program too.
pub(crate) fn root() -> PathBuf {
    let run = std::env::var_os("CARGO_MANIFEST_DIR").map(PathBuf::from);
    let xtask = run.filter(|folder| folder.ends_with("xtask") && folder.join("Cargo.toml").exists());
    let xtask = xtask.unwrap_or_else(|| env!("CARGO_MANIFEST_DIR").into());
    xtask.parent().expect("xtask lies in the workspace").to_path_buf()
}

/// Reads the workspace; panics with the path where it cannot, as there is nothing to check then.
pub(crate) fn load() -> Workspace {
    let root = root();
    let mut members = Vec::new();
    for wing in WINGS {
        for folder in folders(&root.join(wing)) {
            let manifest = manifest(&root.join(wing).join(&folder).join("Cargo.toml"));
            members.push(Member { wing, folder, manifest });
        }
    }
    let mut sources = Vec::new();
    for folder in SOURCE_FOLDERS {
        collect(&root, &root.join(folder), &SOURCE_ENDINGS, &mut sources);
    }
    let mut documents = Vec::new();
    for path in sorted(&root).iter().filter(|path| path.is_file()) {
        add(&root, path, &DOCUMENT_ENDINGS, &mut documents);
    }
    for folder in DOCUMENT_FOLDERS {
        collect(&root, &root.join(folder), &DOCUMENT_ENDINGS, &mut documents);
    }
    Workspace { manifest: manifest(&root.join("Cargo.toml")), members, sources, documents }
}

/// Folders of packages of the workspace that are in no wing's table.
const OTHER_PACKAGES: [&str; 3] = ["crates/protocol/tests", "examples/rust", "xtask"];

/// Every package of the workspace: its folder below the root, and its manifest.
pub(crate) fn packages() -> Vec<(String, Table)> {
    let root = root();
    let in_wing = |wing| folders(&root.join(wing)).into_iter().map(move |folder| format!("{wing}/{folder}"));
    let all = WINGS.into_iter().flat_map(in_wing).chain(OTHER_PACKAGES.map(String::from));
    all.map(|folder| (folder.clone(), manifest(&root.join(&folder).join("Cargo.toml")))).collect()
}

/// Reads the root manifest alone.
pub(crate) fn load_manifest() -> Table {
    manifest(&root().join("Cargo.toml"))
}

fn manifest(path: &Path) -> Table {
    read(path).parse().unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn sorted(directory: &Path) -> Vec<PathBuf> {
    let listing = fs::read_dir(directory).into_iter().flatten().flatten();
    let mut paths: Vec<PathBuf> = listing.map(|item| item.path()).collect();
    paths.sort();
    paths
}

fn folders(directory: &Path) -> Vec<String> {
    let name = |path: &PathBuf| path.file_name().map(|name| name.to_string_lossy().into_owned());
    sorted(directory).iter().filter(|path| path.join("Cargo.toml").is_file()).filter_map(name).collect()
}

fn collect(root: &Path, directory: &Path, endings: &[&str], sources: &mut Vec<Source>) {
    for path in sorted(directory) {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if !path.is_dir() {
            add(root, &path, endings, sources);
        } else if !SKIPPED_FOLDERS.contains(&name.as_str()) {
            collect(root, &path, endings, sources);
        }
    }
}

/// Reads a file if its name has one of these endings.
fn add(root: &Path, path: &Path, endings: &[&str], sources: &mut Vec<Source>) {
    let ending = path.extension().unwrap_or_default().to_string_lossy();
    if endings.contains(&ending.as_ref()) {
        let below = path.strip_prefix(root).unwrap_or(path).to_string_lossy().into_owned();
        sources.push(Source { path: below, text: read(path) });
    }
}
