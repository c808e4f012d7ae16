//! A statement of which files were made from which commit: SLSA provenance 1 in an in-toto statement.

use super::Tagged;
use crate::dist;
use serde_json::{Value, json};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Type of a statement, in the envelope that signs it.
const PAYLOAD_TYPE: &str = "application/vnd.in-toto+json";
/// Names of what this build does with its parameters: the page says it.
const BUILD_TYPE: &str = "https://github.com/polycast/polycast/blob/main/docs/howto/release.md";
/// Builder where no service is one.
const BY_HAND: &str = "https://github.com/polycast/polycast/blob/main/docs/howto/release.md#by-hand";

/// The time, as RFC 3339 has it.
pub(super) fn now() -> Result<String, String> {
    Ok(dist::words(Command::new("date").args(["-u", "+%Y-%m-%dT%H:%M:%SZ"]))?.trim().to_string())
}

fn digest(path: &Path) -> Result<String, String> {
    let said = dist::words(Command::new("sha256sum").arg("--").arg(path))?;
    said.split_whitespace()
        .next()
        .map(|sum| sum.trim_start_matches('\\').to_string())
        .ok_or_else(|| "sha256sum says nothing".into())
}

/// Service that builds, and its run.
fn builder() -> (String, Option<String>) {
    let variable = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
    match (
        variable("GITHUB_SERVER_URL"),
        variable("GITHUB_REPOSITORY"),
        variable("GITHUB_RUN_ID"),
        variable("GITHUB_WORKFLOW_REF"),
    ) {
        (Some(server), Some(repository), Some(run), Some(workflow)) => {
            let attempt = variable("GITHUB_RUN_ATTEMPT").unwrap_or_else(|| "1".into());
            (
                format!("{server}/{workflow}"),
                Some(format!("{server}/{repository}/actions/runs/{run}/attempts/{attempt}")),
            )
        }
        _ => (BY_HAND.to_string(), None),
    }
}

/// The statement about these files.
pub(super) fn of(root: &Path, tagged: &Tagged, files: &[PathBuf], begun: &str) -> Result<String, String> {
    let subject = |path: &PathBuf| {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        Ok(json!({ "name": name, "digest": { "sha256": digest(path)? } }))
    };
    let subjects: Vec<Value> = files.iter().map(subject).collect::<Result<_, String>>()?;
    let rustc = dist::words(Command::new("rustc").current_dir(root).arg("--version"))?;
    let repository = env!("CARGO_PKG_REPOSITORY");
    let (id, run) = builder();
    let mut metadata = json!({ "startedOn": begun, "finishedOn": now()? });
    if let Some(run) = run {
        metadata["invocationId"] = run.into();
    }
    let statement = json!({
        "_type": "https://in-toto.io/Statement/v1",
        "subject": subjects,
        "predicateType": "https://slsa.dev/provenance/v1",
        "predicate": {
            "buildDefinition": {
                "buildType": BUILD_TYPE,
                "externalParameters": { "repository": repository, "tag": tagged.tag },
                "internalParameters": { "architecture": std::env::consts::ARCH, "profile": "dist", "rustc": rustc.trim() },
                "resolvedDependencies": [
                    { "uri": format!("git+{repository}@refs/tags/{}", tagged.tag), "digest": { "gitCommit": tagged.commit } },
                    { "name": "Cargo.lock", "uri": format!("{repository}/blob/{}/Cargo.lock", tagged.commit),
                      "digest": { "sha256": digest(&root.join("Cargo.lock"))? } },
                ],
            },
            "runDetails": { "builder": { "id": id }, "metadata": metadata },
        },
    });
    Ok(format!("{statement:#}\n"))
}

/// Bytes that an envelope of DSSE signs.
fn signed_bytes(text: &str) -> Vec<u8> {
    format!("DSSEv1 {} {PAYLOAD_TYPE} {} {text}", PAYLOAD_TYPE.len(), text.len()).into_bytes()
}

/// The statement in an envelope, signed with a private key of Ed25519.
pub(super) fn signed(text: &str, key: &Path) -> Result<String, String> {
    let folder = tempfile::tempdir().map_err(|error| format!("cannot make a folder: {error}"))?;
    let path = |name: &str| folder.path().join(name);
    let kept = fs::write(path("bytes"), signed_bytes(text)).and_then(|()| fs::write(path("text"), text));
    kept.map_err(|error| format!("cannot keep what is signed: {error}"))?;
    let openssl = || Command::new("openssl");
    let base64 = |name: &str| {
        let said = dist::words(openssl().args(["base64", "-A", "-in"]).arg(path(name)))?;
        Ok::<_, String>(said.trim().to_string())
    };
    dist::words(
        openssl()
            .args(["pkeyutl", "-sign", "-rawin", "-inkey"])
            .arg(key)
            .arg("-in")
            .arg(path("bytes"))
            .arg("-out")
            .arg(path("signature")),
    )?;
    dist::words(
        openssl()
            .args(["pkey", "-pubout", "-outform", "DER", "-in"])
            .arg(key)
            .arg("-out")
            .arg(path("public")),
    )?;
    let envelope = json!({
        "payloadType": PAYLOAD_TYPE, "payload": base64("text")?,
        "signatures": [{ "keyid": format!("sha256:{}", digest(&path("public"))?), "sig": base64("signature")? }],
    });
    Ok(format!("{envelope}\n"))
}
