//! A container image of a program that needs no library: a layout of OCI in an archive, which `podman load`,
//! `docker load`, `ctr image import` and `skopeo copy oci-archive:` take. No daemon makes it.

use super::{must, words};
use serde_json::{Value, json};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The user that programs in the image are: no command but the devices of switches and `lab` needs root.
const USER: &str = "65532:65532";
const PROGRAM: &str = "/usr/bin/polycast";
const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
const CONFIG: &str = "application/vnd.oci.image.config.v1+json";
const LAYER: &str = "application/vnd.oci.image.layer.v1.tar+gzip";

/// A layout that is being made.
struct Layout<'a>(&'a Path);

impl Layout<'_> {
    /// Keeps a file under its digest; gives what refers to it.
    fn keep(&self, kind: &str, from: &Path) -> Result<Value, String> {
        let (digest, size) = (digest(from)?, fs::metadata(from).map_err(|error| error.to_string())?.len());
        let to = self.0.join("blobs/sha256").join(&digest);
        fs::rename(from, to).map_err(|error| format!("cannot keep {digest}: {error}"))?;
        Ok(json!({ "mediaType": kind, "digest": format!("sha256:{digest}"), "size": size }))
    }

    /// The same of a document.
    fn write(&self, kind: &str, document: &Value) -> Result<Value, String> {
        let part = self.0.join("part");
        fs::write(&part, document.to_string()).map_err(|error| error.to_string())?;
        self.keep(kind, &part)
    }
}

fn digest(path: &Path) -> Result<String, String> {
    let said = words(Command::new("sha256sum").arg(path))?;
    said.split_whitespace().next().map(str::to_string).ok_or_else(|| "sha256sum says nothing".into())
}

/// An archive that is the same for the same files.
fn archive(folder: &Path, to: &Path, what: &[&str]) -> Result<(), String> {
    let mut tar = Command::new("tar");
    tar.args(["--sort=name", "--mtime=@0", "--owner=0", "--group=0", "--numeric-owner", "--format=gnu"]);
    must(tar.arg("-C").arg(folder).arg("-cf").arg(to).args(what))
}

/// The machine in the words of images.
fn architecture() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}

/// Makes `polycast-VERSION-ARCH-image.tar`.
pub(super) fn make(out: &Path, version: &str, program: &Path, licence: &Path) -> Result<PathBuf, String> {
    let stage = tempfile::tempdir().map_err(|error| format!("cannot make a folder: {error}"))?;
    let (root, layout) = (stage.path().join("root"), stage.path().join("layout"));
    let failed = |error: std::io::Error| format!("cannot put the image together: {error}");
    // What comes by standard input, and is sent on, waits below /tmp.
    for folder in ["root/usr/bin", "root/usr/share/doc/polycast", "root/tmp", "layout/blobs/sha256"] {
        fs::create_dir_all(stage.path().join(folder)).map_err(failed)?;
    }
    for (folder, mode) in [("usr/bin", 0o755), ("usr/share/doc/polycast", 0o755), ("tmp", 0o1777)] {
        fs::set_permissions(root.join(folder), fs::Permissions::from_mode(mode)).map_err(failed)?;
    }
    let own = root.join(PROGRAM.trim_start_matches('/'));
    fs::copy(program, &own).map_err(failed)?;
    fs::set_permissions(&own, fs::Permissions::from_mode(0o755)).map_err(failed)?;
    fs::copy(licence, root.join("usr/share/doc/polycast/copyright")).map_err(failed)?;
    let layer = stage.path().join("layer.tar");
    archive(&root, &layer, &["tmp", "usr"])?;
    let uncompressed = digest(&layer)?;
    must(Command::new("gzip").arg("-n").arg(&layer))?;

    let layout = Layout(&layout);
    let layer = layout.keep(LAYER, &layer.with_extension("tar.gz"))?;
    let labels = json!({
        "org.opencontainers.image.title": "polycast",
        "org.opencontainers.image.version": version,
        "org.opencontainers.image.licenses": env!("CARGO_PKG_LICENSE"),
        "org.opencontainers.image.source": env!("CARGO_PKG_REPOSITORY"),
    });
    let config = json!({
        "architecture": architecture(), "os": "linux",
        "config": { "User": USER, "Entrypoint": [PROGRAM], "WorkingDir": "/", "Labels": labels },
        "rootfs": { "type": "layers", "diff_ids": [format!("sha256:{uncompressed}")] },
        "history": [{ "created_by": "cargo xtask dist" }],
    });
    let config = layout.write(CONFIG, &config)?;
    let mut manifest = layout.write(
        MANIFEST,
        &json!({ "schemaVersion": 2, "mediaType": MANIFEST, "config": config, "layers": [layer], "annotations": labels }),
    )?;
    manifest["platform"] = json!({ "architecture": architecture(), "os": "linux" });
    // Those who load it name it by the first; containerd asks for the second.
    let name = format!("docker.io/library/polycast:{version}");
    manifest["annotations"] =
        json!({ "org.opencontainers.image.ref.name": version, "io.containerd.image.name": name });
    let index = json!({
        "schemaVersion": 2, "mediaType": "application/vnd.oci.image.index.v1+json", "manifests": [manifest],
    });
    for (name, document) in [("index.json", index), ("oci-layout", json!({ "imageLayoutVersion": "1.0.0" }))]
    {
        fs::write(layout.0.join(name), document.to_string()).map_err(failed)?;
    }
    fs::create_dir_all(out).map_err(failed)?;
    let made = out.join(format!("polycast-{version}-{}-image.tar", std::env::consts::ARCH));
    archive(layout.0, &made, &["blobs", "index.json", "oci-layout"])?;
    Ok(made)
}
