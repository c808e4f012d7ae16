//! Addresses of origins, and the files that are there: one, or several.

use super::Reader;
use super::address::{Address, Headers};
use super::repository::{self, HubFile};
use super::s3::{Account, Place};
use crate::images::artifact::{self, Layer};
use polycast_net::store::check_name;
use std::sync::Arc;

/// Beginnings of addresses that are read here.
pub const SCHEMES: [&str; 6] = ["https://", "http://", "file:///", "s3://", "hf://", "oci://"];

/// An address of an origin.
#[derive(Clone, Debug)]
pub struct Origin {
    text: String,
    headers: Arc<Headers>,
}

/// A file of an origin.
#[derive(Clone, Debug)]
pub struct Part {
    /// Its path among the others.
    pub path: String,
    /// The key by which agents know it; where its origin says a digest, by that.
    pub key: String,
    /// Its length, where it is known.
    pub bytes: Option<u64>,
    from: From,
}

/// Place of a file.
#[derive(Clone, Debug)]
enum From {
    Address(Address),
    /// An object of S3, in the state that this one has.
    S3(Place, String),
    Layer(Box<Layer>),
    Hub(Box<HubFile>),
}

/// Files at an address.
#[derive(Clone, Debug)]
pub enum Found {
    /// A file.
    One(Part),
    /// Name and files.
    Several(String, Vec<Part>),
}

impl Origin {
    /// Reads an address.
    ///
    /// # Errors
    /// No such address is read here, in a sentence.
    pub fn parse(text: &str) -> Result<Self, String> {
        if !SCHEMES.iter().any(|scheme| text.starts_with(scheme)) {
            return Err("it is no address of https, http, s3, hf, oci or a file".into());
        }
        if let Some(place) = text.strip_prefix("s3://") {
            Place::parse(place)?;
        }
        if let Some(place) = text.strip_prefix("oci://") {
            artifact::named(place)?;
        }
        if let Some(place) = text.strip_prefix("hf://") {
            repository::Place::parse(place)?;
        }
        Ok(Origin { text: text.to_string(), headers: Arc::default() })
    }

    /// Sends these headers to its server.
    ///
    /// # Errors
    /// It is no address of http or https, in a sentence.
    pub fn with(self, headers: Headers) -> Result<Self, String> {
        if !headers.is_empty() && !self.text.starts_with("http") {
            return Err("headers go with addresses of https and http".into());
        }
        Ok(Origin { headers: Arc::new(headers), ..self })
    }

    /// The files that are there, asked for in this thread. Only where there may be several is a server asked.
    ///
    /// # Errors
    /// The server does not say, in a sentence.
    pub fn find(&self) -> Result<Found, String> {
        if let Some(place) = self.text.strip_prefix("oci://") {
            return artifact::find(place);
        }
        if let Some(place) = self.text.strip_prefix("hf://") {
            return repository::Place::parse(place)?.find();
        }
        match self.text.strip_prefix("s3://").map(Place::parse).transpose()? {
            Some(place) if place.is_prefix() => below(&place),
            _ => {
                let (path, key) = (String::new(), format!("url:{}", self.text));
                let (text, headers) = (self.text.clone(), Arc::clone(&self.headers));
                let from = From::Address(Address { text, headers, etag: None });
                Ok(Found::One(Part { path, key, bytes: None, from }))
            }
        }
    }

    /// The same, each by a key that stands for its present state alone: an address keeps meaning the bytes
    /// that were read there first, and this one is to mean those that are there now.
    ///
    /// # Errors
    /// As there.
    pub fn find_now(&self) -> Result<Found, String> {
        let mut found = self.find()?;
        if let Found::One(part) = &mut found
            && let From::Address(address) = &mut part.from
        {
            part.key = format!("{}@{}", part.key, address.state_now()?);
        }
        Ok(found)
    }
}

/// Objects of S3 by the beginning of their keys.
fn below(prefix: &Place) -> Result<Found, String> {
    let account = Account::of_environment()?;
    let mut parts = Vec::new();
    for listed in account.list(prefix)? {
        // What consoles show as folders are objects without bytes.
        if listed.key.ends_with('/') {
            continue;
        }
        let path = listed.key.strip_prefix(&prefix.key).ok_or("the server lists what was not asked for")?;
        let place = Place { bucket: prefix.bucket.clone(), key: listed.key.clone() };
        let (server, bucket) = (account.server(), &prefix.bucket);
        let key = format!("s3:{server}/{bucket}/{}@{}", listed.key, listed.etag);
        let from = From::S3(place, listed.etag);
        parts.push(Part { path: checked(path)?, key, bytes: Some(listed.bytes), from });
    }
    if parts.is_empty() {
        return Err("there is no object with such a key".into());
    }
    let name = prefix.key.trim_end_matches('/').rsplit('/').next().filter(|name| !name.is_empty());
    Ok(Found::Several(name.unwrap_or(&prefix.bucket).to_string(), parts))
}

/// A path that leads out of no folder.
fn checked(path: &str) -> Result<String, String> {
    let is_odd = |part: &str| matches!(part, "" | "." | "..") || part.contains(['\0', '\n']);
    if path.split('/').any(is_odd) {
        return Err(format!("'{path}' can be no path of a file"));
    }
    Ok(path.to_string())
}

impl Part {
    /// A file of an image's layers.
    pub(crate) fn of_layer(
        path: &str,
        key: String,
        bytes: Option<u64>,
        layer: Layer,
    ) -> Result<Self, String> {
        Ok(Part { path: checked(path)?, key, bytes, from: From::Layer(Box::new(layer)) })
    }

    /// A file of a repository of the hub's.
    pub(super) fn of_hub(path: &str, key: String, bytes: u64, file: HubFile) -> Result<Self, String> {
        Ok(Part { path: checked(path)?, key, bytes: Some(bytes), from: From::Hub(Box::new(file)) })
    }

    /// The name that a copy of it alone gets: the end of its path, or of its address.
    #[must_use]
    pub fn name(&self) -> &str {
        let text = match &self.from {
            From::Address(address) => address.text.split(['?', '#']).next().unwrap_or_default(),
            _ => &self.path,
        };
        let end = text.rsplit('/').find(|part| !part.is_empty()).unwrap_or_default();
        if check_name(end).is_ok() { end } else { "object" }
    }

    /// Begins to read it; gives its length where that is known.
    ///
    /// # Errors
    /// It cannot be read, in a sentence.
    pub fn open(&self) -> Result<(Option<u64>, Reader), String> {
        match &self.from {
            From::S3(place, etag) => Account::of_environment()?.open(place, Some(etag.clone())),
            From::Layer(layer) => layer.open(),
            From::Hub(file) => file.open(),
            From::Address(address) => address.open(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_that_are_read_are_known_and_no_path_leads_out() {
        for text in [
            "https://a/b",
            "file:///a",
            "s3://bucket/key",
            "s3://bucket/",
            "hf://o/m@v1",
            "oci://ghcr.io/o/i:1",
        ] {
            Origin::parse(text).unwrap();
        }
        for text in
            ["gs://b/k", "ftp://a", "file://a", "s3://b/", "hf://m", "oci://", "oci://ghcr.io/o/../i", "a"]
        {
            Origin::parse(text).unwrap_err();
        }
        for path in ["", "../a", "a/../b", "a//b", "/a", "a\nb"] {
            checked(path).unwrap_err();
        }
        assert_eq!(checked("a/b.bin").as_deref(), Ok("a/b.bin"));
    }
}
