//! Files of repositories of the Hugging Face Hub, each by its digest.

use super::{Found, Part, Reader, Servers, answered, resumed};
use crate::place::{FilePlace, is_commit};
use crate::pull::{self, Listed, Repository};
use crate::upstream::{Meta, Upstream};
use axum::http::{HeaderValue, Method, Request, header};
use percent_encoding::percent_decode_str;
use polycast_types::without_secrets;
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

/// The hub where the environment names none.
const USUAL: &str = "https://huggingface.co";
/// Form of an address.
const FORM: &str =
    "write hf://ORG/NAME[@REVISION], with /PATH after it for one file, or hf://datasets/ORG/NAME";

/// A repository, or a file of one.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Place {
    repository: Repository,
    revision: String,
    path: Option<String>,
}

/// A file at the hub.
#[derive(Clone)]
pub(super) struct HubFile {
    upstream: Arc<Upstream>,
    request: Request<Vec<u8>>,
    size: u64,
}

impl fmt::Debug for HubFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("HubFile").field(&self.request.uri().path()).finish()
    }
}

/// A variable of the environment that is set to something.
fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.trim().is_empty())
}

/// The folder in which the Hub's clients keep all that is theirs.
#[must_use]
pub fn hub_home() -> Option<PathBuf> {
    let usual = || {
        let cache = variable("XDG_CACHE_HOME").map(PathBuf::from);
        let cache = cache.or_else(|| variable("HOME").map(|home| PathBuf::from(home).join(".cache")));
        cache.map(|cache| cache.join("huggingface"))
    };
    variable("HF_HOME").map(PathBuf::from).or_else(usual)
}

/// The user's token, where the Hub's clients look for it.
#[must_use]
pub fn hub_token() -> Option<String> {
    let file = || {
        let path =
            variable("HF_TOKEN_PATH").map(PathBuf::from).or_else(|| Some(hub_home()?.join("token")))?;
        std::fs::read_to_string(path).ok()
    };
    let token = variable("HF_TOKEN").or_else(file)?;
    Some(token.trim().to_string()).filter(|token| !token.is_empty())
}

impl Place {
    /// Reads `[datasets/|spaces/]ORG/NAME[@REVISION][/PATH]`.
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        let (kind, rest) = match text.split_once('/') {
            Some((kind @ ("datasets" | "spaces"), rest)) => (kind, rest),
            _ => ("models", text),
        };
        let kind = ["datasets", "spaces"].into_iter().find(|known| *known == kind).unwrap_or("models");
        let parts: Vec<&str> = rest.splitn(3, '/').collect();
        let is_name = |name: &str| {
            let is_known = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
            !name.is_empty() && name.len() <= 96 && name.chars().all(is_known) && !name.starts_with('.')
        };
        let [organisation, last, ref path @ ..] = parts[..] else { return Err(FORM.into()) };
        let (last, revision) = last.split_once('@').unwrap_or((last, "main"));
        let revision = percent_decode_str(revision).decode_utf8().map_err(|_| FORM)?.into_owned();
        let is_odd = |part: &str| matches!(part, "" | "." | "..") || part.contains(|c: char| c.is_control());
        let path = path.first().map(ToString::to_string);
        let path_is_odd = path.as_deref().is_some_and(|path| path.split('/').any(is_odd));
        if !is_name(organisation) || !is_name(last) || revision.split('/').any(is_odd) || path_is_odd {
            return Err(FORM.into());
        }
        let repository = Repository { kind, name: format!("{organisation}/{last}") };
        Ok(Place { repository, revision, path })
    }

    /// The files that are there, asked for in this thread with the user's token.
    pub(super) fn find(&self) -> Result<Found, String> {
        let base = variable("HF_ENDPOINT").unwrap_or_else(|| USUAL.into());
        let upstream = Arc::new(Upstream::new(base.trim_end_matches('/')));
        let token = pull::bearer(hub_token().as_deref())?;
        let repository = self.repository.place();
        let one = |path: &str, revision: &str, listed: Option<Meta>| {
            let (revision, path) = (revision.to_string(), path.to_string());
            let place = FilePlace { repository: repository.clone(), revision, path: path.clone() };
            let asked = || upstream.meta_here(&place, token.as_ref());
            let meta = listed.map_or_else(asked, Ok).map_err(|trouble| in_words(&trouble.message))?;
            // A name such as main may be another commit's by the time of the reading.
            let revision =
                meta.commit.as_deref().filter(|commit| is_commit(commit)).unwrap_or(&place.revision);
            let request = upstream.request(Method::GET, &place.at(revision), token.as_ref());
            let request = request.map_err(|trouble| in_words(&trouble.message))?;
            let file = HubFile { upstream: Arc::clone(&upstream), request, size: meta.size };
            Part::of_hub(&path, meta.key(), meta.size, file)
        };
        if let Some(path) = &self.path {
            return Ok(Found::One(one(path, &self.revision, None)?));
        }
        let listed = pull::list_here(&upstream, &self.repository, &self.revision, token.as_ref());
        let (commit, files) = listed.map_err(|why| in_words(&why))?;
        let mut parts = Vec::with_capacity(files.len());
        for Listed { path, digest } in files {
            let meta = digest.map(|(digest, hex, size)| Meta { digest, hex, size, commit: None, xet: None });
            parts.push(one(&path, &commit, meta)?);
        }
        if parts.is_empty() {
            return Err("the repository has no files".into());
        }
        let name = self.repository.name.rsplit('/').next().unwrap_or_default().to_string();
        Ok(Found::Several(name, parts))
    }
}

impl HubFile {
    /// Begins to read it; the agent compares the bytes with the digest.
    pub(super) fn open(&self) -> Result<(Option<u64>, Reader), String> {
        let (request, size) = (self.request.clone(), self.size);
        let upstream = Arc::clone(&self.upstream);
        let ask = move |at: u64| {
            let mut request = request.clone();
            if at > 0 {
                let range = HeaderValue::from_str(&format!("bytes={at}-"));
                request.headers_mut().insert(header::RANGE, range.map_err(|error| error.to_string())?);
            }
            let way: &Servers = upstream.way();
            let answer = way.ask_on(request)?;
            if answer.status().is_success() { Ok(answer) } else { Err(answered(answer.status())) }
        };
        let (_, reader) = resumed::open(ask, true)?;
        Ok((Some(size), reader))
    }
}

fn in_words(why: &str) -> String {
    without_secrets(why).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn repositories_and_files_are_read() {
        let of = |text| {
            Place::parse(text).map(|place| {
                let Place { repository: Repository { kind, name }, revision, path } = place;
                format!("{kind} {name} {revision} {}", path.as_deref().unwrap_or("-"))
            })
        };
        for (text, wanted) in [
            ("o/m", "models o/m main -"),
            ("o/m@v1", "models o/m v1 -"),
            ("o/m@refs%2Fpr%2F1/a/b.bin", "models o/m refs/pr/1 a/b.bin"),
            ("datasets/o/d@v1/a", "datasets o/d v1 a"),
            ("spaces/o/s", "spaces o/s main -"),
        ] {
            assert_eq!(of(text).as_deref(), Ok(wanted));
        }
        for wrong in
            ["", "m", "o/", "../m", "o/..", "o/m@", "o/m/../x", "o/m//x", "o/m@..%2Fx", "o/m/", "o /m"]
        {
            of(wrong).unwrap_err();
        }
    }
}
