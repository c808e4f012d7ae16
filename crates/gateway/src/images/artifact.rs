//! Files that a registry keeps as layers of an artifact, such as a model: each by its digest.

use super::login::Who;
use super::pull::{ACCEPTED, Image};
use super::{MANIFEST_LEN_MAX, Registry, hex_of, registry_of};
use crate::origin::{Found, Part, Reader, resumed};
use crate::trouble::Trouble;
use axum::http::{HeaderValue, Method};
use polycast_types::without_secrets;
use ring::digest::{SHA256, digest};
use serde_json::Value;
use std::fmt;
use std::io::Read;
use std::net::IpAddr;
use std::sync::Arc;

/// Files of an artifact at most.
const FILES_MAX: usize = 10_000;
/// Notes of a layer that say the path of its file: of artifacts of any kind, and of models.
const PATHS: [&str; 2] = ["org.opencontainers.image.title", "org.cncf.model.filepath"];
/// Note of a layer that is a packed folder.
const PACKED: &str = "io.deis.oras.content.unpack";

/// A layer at its registry.
#[derive(Clone)]
pub(crate) struct Layer {
    registry: Arc<Registry>,
    image: Image,
    digest: String,
    who: Who,
}

impl fmt::Debug for Layer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Layer").field(&self.digest).finish()
    }
}

/// Reads `REGISTRY/REPOSITORY[:TAG|@sha256:HEX]`. A registry on this machine has no TLS.
pub(crate) fn named(text: &str) -> Result<Image, String> {
    let host = text.split('/').next().unwrap_or_default();
    let name = host.rsplit_once(':').map_or(host, |(name, _)| name);
    let is_own = name == "localhost" || name.parse().is_ok_and(|ip: IpAddr| ip.is_loopback());
    let has_host = text.contains('/') && (host.contains(['.', ':']) || host == "localhost");
    let image = Image::parse(&format!("{}{text}", if is_own { "http://" } else { "" }));
    let wrong = "write oci://REGISTRY/REPOSITORY:TAG, or ..@sha256:HEX";
    image.filter(|_| has_host).ok_or_else(|| wrong.to_string())
}

/// The files of an artifact, asked for in this thread.
pub(crate) fn find(text: &str) -> Result<Found, String> {
    let image = named(text)?;
    let (host, registry) = registry_of(&image.registry);
    let who = Who::of_files(&host)?;
    let mut manifest = manifest(&registry, &image, &image.reference, &who)?;
    if let Some(several) = manifest["manifests"].as_array() {
        let [one] = &several[..] else {
            return Err("there are several artifacts of that name: name one by its digest".into());
        };
        let one = one["digest"].as_str().filter(|digest| hex_of(digest).is_some());
        manifest =
            self::manifest(&registry, &image, one.ok_or("the list names a digest that is none")?, &who)?;
    }
    let layers = manifest["layers"].as_array().ok_or("the manifest names no layers")?;
    if layers.len() > FILES_MAX {
        return Err(format!("the manifest names more than {FILES_MAX} layers"));
    }
    let name = image.name.rsplit('/').next().unwrap_or_default().to_string();
    let mut parts = Vec::new();
    for layer in layers {
        let digest = layer["digest"].as_str().filter(|digest| hex_of(digest).is_some());
        let digest = digest.ok_or("the manifest names a digest that is none")?.to_string();
        let bytes = layer["size"].as_u64();
        let notes = &layer["annotations"];
        if notes[PACKED] == "true" {
            return Err("a layer is a packed folder, which is not unpacked here: use oras".into());
        }
        let path = PATHS.iter().find_map(|name| notes[*name].as_str());
        let path = match path {
            Some(path) => path,
            None if layers.len() == 1 => &name,
            None => {
                return Err("its layers have no names of files: for an image use polycast image pull".into());
            }
        };
        let (registry, image, who) = (Arc::clone(&registry), image.clone(), who.clone());
        parts.push(Part::of_layer(path, digest.clone(), bytes, Layer { registry, image, digest, who })?);
    }
    match parts.len() {
        0 => Err("the manifest names no layers".into()),
        1 => Ok(Found::One(parts.remove(0))),
        _ => Ok(Found::Several(name, parts)),
    }
}

/// A manifest, whose bytes have the digest by which it is asked for, or that its registry has said.
fn manifest(registry: &Registry, image: &Image, reference: &str, who: &Who) -> Result<Value, String> {
    let place = image.place(true, reference);
    let accepts = ACCEPTED.map(HeaderValue::from_static);
    let meta = registry.meta(&place, &accepts, who).map_err(|trouble| in_words(&trouble))?;
    let at = image.place(true, &format!("sha256:{}", meta.hex));
    let response = registry.ask(Method::GET, &at, &accepts, who).map_err(|trouble| in_words(&trouble))?;
    let mut body = Vec::new();
    let mut reader = response.into_body().into_reader().take(MANIFEST_LEN_MAX);
    reader.read_to_end(&mut body).map_err(|error| error.to_string())?;
    let found: String = digest(&SHA256, &body).as_ref().iter().map(|byte| format!("{byte:02x}")).collect();
    if found != meta.hex {
        return Err(format!("the manifest is not the one with the digest sha256:{}", meta.hex));
    }
    serde_json::from_slice(&body).map_err(|_| "the manifest is no JSON".into())
}

impl Layer {
    /// Begins to read its bytes, which the agent compares with the digest.
    pub(crate) fn open(&self) -> Result<(Option<u64>, Reader), String> {
        let (layer, place) = (self.clone(), self.image.place(false, &self.digest));
        let ask = move |at: u64| {
            layer.registry.ask_from(at, &place, &layer.who).map_err(|trouble| in_words(&trouble))
        };
        resumed::open(ask, true)
    }
}

fn in_words(trouble: &Trouble) -> String {
    without_secrets(&trouble.message).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_have_a_registry() {
        let of = |text| named(text).map(|image| (image.registry, image.name, image.reference));
        let right = |registry: &str, name: &str, reference: &str| {
            Ok((registry.to_string(), name.to_string(), reference.to_string()))
        };
        assert_eq!(of("ghcr.io/o/m:1"), right("ghcr.io", "o/m", "1"));
        assert_eq!(of("127.0.0.1:5000/o/m:1"), right("http://127.0.0.1:5000", "o/m", "1"));
        assert_eq!(of("localhost/m"), right("http://localhost", "m", "latest"));
        for wrong in ["", "m", "o/m:1", "ghcr.io/", "ghcr.io/o/m@sha256:12"] {
            named(wrong).unwrap_err();
        }
    }
}
