//! The files of a repository of the hub, brought here for a client's cache.

use crate::counts::Counts;
use crate::files::{Endpoint, Files};
use crate::place::{FilePlace, is_commit};
use crate::trouble::Trouble;
use crate::upstream::{Digest, Upstream};
use axum::http::{HeaderValue, Method};
use polycast_api::agent::Object;
use polycast_types::without_secrets;
use serde_json::Value;
use std::path::Path;
use std::sync::Arc;

/// Pages of a listing: of 1,000 files each.
const PAGES_MAX: usize = 1_000;

/// A repository, as it is called on the command line and in the cache.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Repository {
    /// `models`, `datasets` or `spaces`.
    pub kind: &'static str,
    /// `org/model`.
    pub name: String,
}

impl Repository {
    /// Path of the repository's files at the hub.
    pub(crate) fn place(&self) -> String {
        if self.kind == "models" { self.name.clone() } else { format!("{}/{}", self.kind, self.name) }
    }
}

/// A file that has been brought.
#[derive(Clone, Debug)]
pub struct Pulled {
    /// It, in the agent's store.
    pub object: Object,
    /// The digest that is its name in the client's cache.
    pub etag: String,
    /// Its length.
    pub bytes: u64,
    /// `store`, `peer` or `origin`.
    pub source: &'static str,
}

/// One that pulls, with a user's token.
pub struct Puller {
    upstream: Arc<Upstream>,
    files: Arc<Files>,
    token: Option<HeaderValue>,
}

impl Puller {
    /// Pulls from a hub, by the agent with this socket.
    ///
    /// # Errors
    /// The token cannot be one.
    pub fn new(upstream: &str, agent: &Path, token: Option<&str>) -> Result<Self, String> {
        let token = bearer(token)?;
        let upstream = Arc::new(Upstream::new(upstream.trim_end_matches('/')));
        let files = Arc::new(Files::new(agent, Endpoint::Hub, Arc::new(Counts::default())));
        Ok(Puller { upstream, files, token })
    }

    /// The commit that a revision stands for, and the paths of its files.
    ///
    /// # Errors
    /// The hub does not tell, in a sentence.
    pub async fn list(
        &self,
        repository: &Repository,
        revision: &str,
    ) -> Result<(String, Vec<String>), String> {
        let (upstream, repository) = (Arc::clone(&self.upstream), repository.clone());
        let (revision, token) = (revision.to_string(), self.token.clone());
        let listed =
            tokio::task::spawn_blocking(move || list_here(&upstream, &repository, &revision, token.as_ref()));
        let (commit, files) = listed.await.map_err(|error| error.to_string())??;
        Ok((commit, files.into_iter().map(|file| file.path).collect()))
    }

    /// Brings a file into the agent's store.
    ///
    /// # Errors
    /// It does not come, in a sentence.
    pub async fn get(&self, repository: &Repository, commit: &str, path: &str) -> Result<Pulled, String> {
        let place =
            FilePlace { repository: repository.place(), revision: commit.into(), path: path.to_string() };
        let meta = self.upstream.meta(&place, self.token.as_ref()).await.map_err(in_words)?;
        let (etag, bytes) = (meta.hex.clone(), meta.size);
        if bytes == 0 {
            return Ok(Pulled { object: Object::default(), etag, bytes, source: "store" });
        }
        let asked = self.upstream.asked(&place, &place.at(commit), &meta, self.token.as_ref());
        let asked = asked.map_err(in_words)?;
        let (object, source) = self.files.object(&asked).await.map_err(in_words)?;
        Ok(Pulled { object, etag, bytes, source: source.name() })
    }
}

/// A file in a list, with digest and length where the list has them.
pub(crate) struct Listed {
    pub path: String,
    pub digest: Option<(Digest, String, u64)>,
}

/// A user's token as the hub takes it.
pub(crate) fn bearer(token: Option<&str>) -> Result<Option<HeaderValue>, String> {
    let token = token.map(|token| HeaderValue::from_str(&format!("Bearer {token}")));
    token.transpose().map_err(|_| "the token has characters that no token has".into())
}

/// The commit that a revision stands for, and its files, asked for in this thread.
pub(crate) fn list_here(
    upstream: &Upstream,
    repository: &Repository,
    revision: &str,
    token: Option<&HeaderValue>,
) -> Result<(String, Vec<Listed>), String> {
    let base = format!("/api/{}/{}", repository.kind, repository.name);
    let revision = percent_encoding::utf8_percent_encode(revision, percent_encoding::NON_ALPHANUMERIC);
    let (about, _) = ask(upstream, &format!("{base}/revision/{revision}"), token)?;
    let commit = about["sha"].as_str().filter(|commit| is_commit(commit));
    let commit = commit.ok_or("the hub does not say which commit that is")?.to_string();
    let mut next = Some(format!("{base}/tree/{commit}?recursive=true&expand=false"));
    let mut listed = Vec::new();
    for _ in 0..PAGES_MAX {
        let Some(page) = next else { return Ok((commit, listed)) };
        let (entries, more) = ask(upstream, &page, token)?;
        let entries = entries.as_array().ok_or("the hub's list of files is none")?;
        for entry in entries.iter().filter(|entry| entry["type"] == "file") {
            let Some(path) = entry["path"].as_str() else { continue };
            check_path(path)?;
            listed.push(Listed { path: path.to_string(), digest: digest_of(entry) });
        }
        next = more;
    }
    Err(format!("the hub's list of files has more than {PAGES_MAX} pages"))
}

/// Asks for a document; gives the path of the next page, too.
fn ask(
    upstream: &Upstream,
    path: &str,
    token: Option<&HeaderValue>,
) -> Result<(Value, Option<String>), String> {
    let request = upstream.request(Method::GET, path, token).map_err(in_words)?;
    let said = upstream.ask_here(&request).map_err(in_words)?;
    if !said.status.is_success() {
        let why = said.headers.get(crate::trouble::ERROR_MESSAGE).and_then(|why| why.to_str().ok());
        return Err(why.map_or_else(|| crate::origin::answered(said.status), str::to_string));
    }
    let next = upstream.next_page(&said.headers);
    serde_json::from_slice(&said.body)
        .map(|document| (document, next))
        .map_err(|_| "the hub's answer is no JSON".into())
}

fn in_words(trouble: Trouble) -> String {
    without_secrets(&trouble.message).into_owned()
}

/// Refuses a path that leads out of the folder that it is in.
fn check_path(path: &str) -> Result<(), String> {
    let is_odd = |part: &str| part.is_empty() || part == "." || part == ".." || part.contains('\0');
    if path.split('/').any(is_odd) {
        Err("the hub lists a file outside the repository".into())
    } else {
        Ok(())
    }
}

/// Reads what a list of files says of one: SHA-256 of large files, the Git digest of others.
fn digest_of(entry: &Value) -> Option<(Digest, String, u64)> {
    let of = |text: Option<&str>, len: usize| {
        let is_hex = |text: &&str| text.len() == len && text.bytes().all(|byte| byte.is_ascii_hexdigit());
        text.filter(is_hex).map(str::to_ascii_lowercase)
    };
    let large = &entry["lfs"];
    if !large.is_null() {
        return Some((Digest::Sha256, of(large["oid"].as_str(), 64)?, large["size"].as_u64()?));
    }
    Some((Digest::Git, of(entry["oid"].as_str(), 40)?, entry["size"].as_u64()?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn no_listed_file_lies_outside() {
        check_path("a/b.bin").unwrap();
        for path in ["../a", "a/../../b", "/etc/passwd", "a//b", "", "."] {
            check_path(path).unwrap_err();
        }
    }

    #[test]
    fn lists_name_digests() {
        let (sha256, git) = ("A1".repeat(32), "b2".repeat(20));
        let large = json!({ "oid": git, "size": 7, "lfs": { "oid": sha256, "size": 9 } });
        assert_eq!(digest_of(&large), Some((Digest::Sha256, "a1".repeat(32), 9)));
        assert_eq!(digest_of(&json!({ "oid": git, "size": 7 })), Some((Digest::Git, git.clone(), 7)));
        assert_eq!(digest_of(&json!({ "oid": "1", "size": 7 })), None);
        assert_eq!(digest_of(&json!({ "oid": git, "size": 7, "lfs": { "size": 9 } })), None);
    }
}
