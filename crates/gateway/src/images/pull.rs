//! The manifests and layers of an image, brought here before a runtime asks for them.

use super::login::Who;
use super::{Place, Registry, hex_of, registry_of};
use crate::counts::Counts;
use crate::files::{Endpoint, Files};
use crate::trouble::Trouble;
use axum::http::HeaderValue;
use polycast_api::agent::Object;
use polycast_types::without_secrets;
use serde_json::Value;
use std::path::Path;
use std::sync::Arc;

/// Types of manifests that are asked for.
pub(super) const ACCEPTED: [&str; 4] = [
    "application/vnd.oci.image.index.v1+json",
    "application/vnd.docker.distribution.manifest.list.v2+json",
    "application/vnd.oci.image.manifest.v1+json",
    "application/vnd.docker.distribution.manifest.v2+json",
];
/// Layers of an image at most.
const LAYERS_MAX: usize = 1_024;

/// An image by its name, as runtimes write it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Image {
    /// `docker.io`, `http://127.0.0.1:5000`.
    pub(super) registry: String,
    pub(super) name: String,
    /// A tag, or `sha256:HEX`.
    pub(super) reference: String,
}

impl Image {
    /// Reads `[REGISTRY/]NAME[:TAG|@sha256:HEX]`: without a registry it is Docker Hub's, and without a tag
    /// `latest`. A registry without TLS begins with `http://`.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let (scheme, rest) = match text.strip_prefix("http://") {
            Some(rest) => ("http://", rest),
            None => ("", text),
        };
        let (path, reference) = match rest.split_once('@') {
            Some((path, digest)) => (path, Some(digest)),
            None => (rest, None),
        };
        // The port of a registry has a slash after it.
        let (path, tag) = match path.rsplit_once(':') {
            Some((path, tag)) if !tag.contains('/') => (path, Some(tag)),
            _ => (path, None),
        };
        let is_host = |part: &str| part.contains(['.', ':']) || part == "localhost";
        let (host, name) = match path.split_once('/') {
            Some((host, name)) if is_host(host) => (host, name.to_string()),
            _ if !scheme.is_empty() => return None,
            Some(_) => ("docker.io", path.to_string()),
            None => ("docker.io", format!("library/{path}")),
        };
        let reference = reference.or(tag).unwrap_or("latest").to_string();
        // What is asked for is checked as what a runtime asks for.
        let path = format!("/v2/{name}/manifests/{reference}?ns={host}").parse().ok()?;
        let is_known = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | ':');
        let is_host = host.starts_with(|c: char| c.is_ascii_alphanumeric()) && host.chars().all(is_known);
        let is_right = is_host && Place::parse(&path).is_some();
        is_right.then(|| Image { registry: format!("{scheme}{host}"), name, reference })
    }

    pub(super) fn place(&self, is_manifest: bool, reference: &str) -> Place {
        let registry = self.registry.strip_prefix("http://").unwrap_or(&self.registry).to_string();
        Place { registry, name: self.name.clone(), is_manifest, reference: reference.to_string() }
    }
}

/// A manifest, the configuration, or a layer, which has been brought.
#[derive(Clone, Debug)]
pub struct PulledBlob {
    /// `manifest`, `config` or `layer`.
    pub kind: &'static str,
    /// `sha256:HEX`.
    pub digest: String,
    /// Its length.
    pub bytes: u64,
    /// It, in the agent's store; there is none of no bytes.
    pub object: Option<Object>,
    /// `store`, `peer` or `origin`.
    pub source: &'static str,
}

/// One that pulls an image.
pub struct ImagePuller {
    registry: Arc<Registry>,
    files: Arc<Files>,
    image: Image,
    who: Who,
}

impl ImagePuller {
    /// Pulls an image, by the agent with this socket, with the user's credentials for the registry.
    ///
    /// # Errors
    /// The credentials cannot be read, in a sentence.
    pub fn new(image: Image, agent: &Path) -> Result<Self, String> {
        let (host, registry) = registry_of(&image.registry);
        let who = Who::of_files(&host)?;
        let files = Arc::new(Files::new(agent, Endpoint::Images, Arc::new(Counts::default())));
        Ok(ImagePuller { registry, files, image, who })
    }

    /// Brings the manifests that lead to the image for a platform, such as `linux/amd64`; gives them, and
    /// what is left to bring.
    ///
    /// # Errors
    /// The registry does not give it to this user, or there is none for that platform, in a sentence.
    pub async fn manifests(&self, platform: &str) -> Result<(Vec<PulledBlob>, Vec<Left>), String> {
        let (first, document) = self.manifest(&self.image.reference).await?;
        let mut brought = vec![first];
        let Some(several) = document["manifests"].as_array() else {
            return Ok((brought, parts_of(&document)?));
        };
        let is_of = |one: &&Value| {
            let platform_of = &one["platform"];
            let text = |name: &str| platform_of[name].as_str().unwrap_or_default();
            let (short, long) = (
                format!("{}/{}", text("os"), text("architecture")),
                format!("{}/{}/{}", text("os"), text("architecture"), text("variant")),
            );
            platform == short || platform == long
        };
        let one = several.iter().find(is_of).and_then(|one| one["digest"].as_str());
        let one = one.ok_or_else(|| format!("there is no image for {platform}"))?;
        hex_of(one).ok_or("the list of images names a digest that is none")?;
        let (second, document) = self.manifest(one).await?;
        brought.push(second);
        Ok((brought, parts_of(&document)?))
    }

    async fn manifest(&self, reference: &str) -> Result<(PulledBlob, Value), String> {
        let brought = self.blob("manifest", self.image.place(true, reference)).await?;
        let object = brought.object.as_ref().ok_or("the manifest is empty")?;
        let bytes = self.files.small(object).await.map_err(|error| error.to_string())?;
        let document = serde_json::from_slice(&bytes).map_err(|_| "the manifest is no JSON")?;
        Ok((brought, document))
    }

    /// Brings what a manifest names.
    ///
    /// # Errors
    /// It does not come, in a sentence.
    pub async fn get(&self, left: &Left) -> Result<PulledBlob, String> {
        self.blob(left.kind, self.image.place(false, &left.digest)).await
    }

    async fn blob(&self, kind: &'static str, place: Place) -> Result<PulledBlob, String> {
        let accepts = ACCEPTED.map(HeaderValue::from_static);
        let (registry, asked, who) = (Arc::clone(&self.registry), place.clone(), self.who.clone());
        let upstream = Arc::clone(&registry.upstream);
        let meta =
            upstream.in_thread(move |_| registry.meta(&asked, &accepts, &who)).await.map_err(in_words)?;
        let (digest, bytes) = (format!("sha256:{}", meta.hex), meta.size);
        if bytes == 0 {
            return Ok(PulledBlob { kind, digest, bytes, object: None, source: "store" });
        }
        let asked = self.registry.asked(&place, &meta).map_err(in_words)?;
        let (object, source) = self.files.object(&asked).await.map_err(in_words)?;
        Ok(PulledBlob { kind, digest, bytes, object: Some(object), source: source.name() })
    }
}

/// A part of an image that a manifest names.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Left {
    kind: &'static str,
    /// `sha256:HEX`.
    pub digest: String,
}

fn parts_of(manifest: &Value) -> Result<Vec<Left>, String> {
    let layers = manifest["layers"].as_array().ok_or("the manifest names no layers")?;
    if layers.len() > LAYERS_MAX {
        return Err(format!("the manifest names more than {LAYERS_MAX} layers"));
    }
    let config = manifest.get("config").map(|config| ("config", config));
    let mut left: Vec<Left> = Vec::new();
    for (kind, part) in config.into_iter().chain(layers.iter().map(|layer| ("layer", layer))) {
        let digest = part["digest"].as_str().filter(|digest| hex_of(digest).is_some());
        let digest = digest.ok_or("the manifest names a digest that is none")?.to_string();
        // An empty layer may be there several times.
        if left.iter().all(|one| one.digest != digest) {
            left.push(Left { kind, digest });
        }
    }
    Ok(left)
}

fn in_words(trouble: Trouble) -> String {
    without_secrets(&trouble.message).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_images_are_read_as_runtimes_read_them() {
        let digest = format!("sha256:{}", "a".repeat(64));
        for (text, registry, name, reference) in [
            ("debian", "docker.io", "library/debian", "latest"),
            ("debian:12", "docker.io", "library/debian", "12"),
            ("org/image", "docker.io", "org/image", "latest"),
            ("ghcr.io/o/i:1.2", "ghcr.io", "o/i", "1.2"),
            ("localhost:5000/i", "localhost:5000", "i", "latest"),
            ("http://127.0.0.1:5000/o/i:1", "http://127.0.0.1:5000", "o/i", "1"),
            (&format!("quay.io/o/i:1@{digest}"), "quay.io", "o/i", &*digest),
        ] {
            let image = Image::parse(text).unwrap();
            assert_eq!((&*image.registry, &*image.name, &*image.reference), (registry, name, reference));
        }
        for wrong in
            ["", "a b", "../x", "o/..", "debian:", "debian@sha256:12", "http://x", "a/b?c", "ghcr.io/"]
        {
            assert_eq!(Image::parse(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn a_manifest_names_what_is_left() {
        let digest = |digit: &str| format!("sha256:{}", digit.repeat(64));
        let layer = |digit| serde_json::json!({ "digest": digest(digit) });
        let manifest =
            serde_json::json!({ "config": layer("a"), "layers": [layer("b"), layer("b"), layer("c")] });
        let kinds: Vec<_> = parts_of(&manifest).unwrap().into_iter().map(|one| one.kind).collect();
        assert_eq!(kinds, ["config", "layer", "layer"]);
        parts_of(&serde_json::json!({ "layers": [{ "digest": "../x" }] })).unwrap_err();
        parts_of(&serde_json::json!({})).unwrap_err();
    }
}
