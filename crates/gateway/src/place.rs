//! Paths that clients of the hub ask for.

use crate::xet::is_hash;
use axum::http::Uri;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};

/// The longest path with its query, in bytes: the hub itself takes no longer ones.
const LEN_MAX: usize = 8_192;
/// The longest name of an owner or a repository, in bytes: the hub's is 96.
const NAME_LEN_MAX: usize = 96;
/// Characters that are escaped in a part of a path.
const ESCAPED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');
/// All paths of the hub begin with this here.
pub(crate) const PREFIX: &str = "/hf";
/// All paths of ModelScope do with this.
pub(crate) const PREFIX_OF_SCOPE: &str = "/ms";

/// A place of the hub.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Place {
    File(FilePlace),
    Api(ApiPlace),
    /// Way to be let in by the servers of Xet.
    XetToken(RevisionPlace),
    /// Xorbs of a file, by the version of the answer and the file's name in Xet.
    Reconstruction(u8, String),
    Xorb,
}

/// A revision of a repository.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct RevisionPlace {
    /// `models`, `datasets` or `spaces`.
    kind: String,
    /// `org/model`.
    name: String,
    pub revision: String,
}

/// A file of a repository.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct FilePlace {
    /// `org/model`, `datasets/org/data`.
    pub repository: String,
    pub revision: String,
    pub path: String,
}

/// A question about repositories and users.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct ApiPlace {
    /// Path with its query, as it came.
    pub asked: String,
    pub about: About,
}

/// Subject of a question.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum About {
    /// A revision that is a commit, which stays as it is.
    Commit,
    /// A revision by a name, which another commit can get.
    Name,
    /// Servers of Xet that files are brought to.
    Xet,
    Other,
}

/// Reason why a path is none of the hub's.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Wrong {
    /// It leads elsewhere.
    Elsewhere,
    /// No client writes such a path.
    Odd,
}

impl Place {
    pub(crate) fn parse(uri: &Uri) -> Result<Self, Wrong> {
        let asked = uri.path_and_query().map_or("", |asked| asked.as_str());
        if asked.len() > LEN_MAX {
            return Err(Wrong::Odd);
        }
        let path = uri.path().strip_prefix(PREFIX).and_then(|path| path.strip_prefix('/'));
        let parts: Vec<String> =
            path.ok_or(Wrong::Elsewhere)?.split('/').map(decoded).collect::<Result<_, _>>()?;
        let parts: Vec<&str> = parts.iter().map(String::as_str).collect();
        match parts[..] {
            ["api", kind @ ("models" | "datasets" | "spaces"), ref name @ .., "xet-read-token", revision]
                if matches!(name.len(), 1 | 2) && name.iter().all(|name| is_name(name)) =>
            {
                let (kind, name, revision) = (kind.to_string(), name.join("/"), revision.to_string());
                Ok(Place::XetToken(RevisionPlace { kind, name, revision }))
            }
            ["cas", version @ ("v1" | "v2"), "reconstructions", name] if is_hash(name) => {
                Ok(Place::Reconstruction(if version == "v1" { 1 } else { 2 }, name.to_string()))
            }
            ["cas", "xorbs", _] => Ok(Place::Xorb),
            ["api", _, ..] => {
                let asked = asked[PREFIX.len()..].to_string();
                Ok(Place::Api(ApiPlace { asked, about: About::of(&parts) }))
            }
            ["datasets" | "spaces", owner, name, "resolve", revision, ref path @ ..] => {
                FilePlace::of(&[parts[0], owner, name], revision, path)
            }
            ["datasets" | "spaces", name, "resolve", revision, ref path @ ..] => {
                FilePlace::of(&[parts[0], name], revision, path)
            }
            [owner, name, "resolve", revision, ref path @ ..] => {
                FilePlace::of(&[owner, name], revision, path)
            }
            [name, "resolve", revision, ref path @ ..] => FilePlace::of(&[name], revision, path),
            _ => Err(Wrong::Elsewhere),
        }
    }
}

impl FilePlace {
    fn of(repository: &[&str], revision: &str, path: &[&str]) -> Result<Place, Wrong> {
        // A slash in a part of a file's path would be another file's.
        let is_odd = path.is_empty()
            || path.iter().any(|part| part.is_empty() || part.contains('/'))
            || repository.iter().any(|name| !is_name(name))
            || revision.is_empty();
        if is_odd {
            return Err(Wrong::Odd);
        }
        let (repository, path) = (repository.join("/"), path.join("/"));
        Ok(Place::File(FilePlace { repository, revision: revision.to_string(), path }))
    }

    /// The file's path at the hub, in this revision.
    pub(crate) fn at(&self, revision: &str) -> String {
        let path: Vec<String> = self.path.split('/').map(escaped).collect();
        format!("/{}/resolve/{}/{}", self.repository, escaped(revision), path.join("/"))
    }

    /// Returns true if the revision is a commit, which stays as it is.
    pub(crate) fn is_of_a_commit(&self) -> bool {
        is_commit(&self.revision)
    }
}

impl RevisionPlace {
    /// Of a repository as files name it: `org/model`, `datasets/org/data`.
    pub(crate) fn of_repository(repository: &str, revision: &str) -> Self {
        let (kind, name) = match repository.split_once('/') {
            Some((kind @ ("datasets" | "spaces"), name)) => (kind, name),
            _ => ("models", repository),
        };
        RevisionPlace { kind: kind.into(), name: name.into(), revision: revision.into() }
    }

    /// The repository as files name it.
    pub(crate) fn repository(&self) -> String {
        if self.kind == "models" { self.name.clone() } else { format!("{}/{}", self.kind, self.name) }
    }

    /// The list of its files at the hub, as clients ask for it.
    pub(crate) fn tree(&self) -> String {
        let RevisionPlace { kind, name, revision } = self;
        format!("/api/{kind}/{name}/tree/{}?recursive=true&expand=false", escaped(revision))
    }

    /// The path of tokens of Xet for it.
    pub(crate) fn token_path(&self) -> String {
        let RevisionPlace { kind, name, revision } = self;
        format!("/api/{kind}/{name}/xet-read-token/{}", escaped(revision))
    }
}

impl About {
    fn of(parts: &[&str]) -> Self {
        let is_xet = |part: &&str| part.starts_with("xet-") && part.ends_with("-token");
        let named = parts.iter().position(|part| matches!(*part, "revision" | "tree"));
        match named.and_then(|at| parts.get(at + 1)) {
            // Paths of files may have any names.
            Some(revision) if is_commit(revision) => About::Commit,
            Some(_) => About::Name,
            None if parts.iter().any(is_xet) => About::Xet,
            None => About::Other,
        }
    }
}

/// Returns true if the text is a commit's digest.
pub(crate) fn is_commit(text: &str) -> bool {
    text.len() == 40 && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

/// Returns true if an owner or a repository can have this name.
pub(crate) fn is_name(name: &str) -> bool {
    let is_known = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    !name.is_empty() && name.len() <= NAME_LEN_MAX && name.chars().all(is_known)
}

pub(crate) fn escaped(text: &str) -> String {
    utf8_percent_encode(text, ESCAPED).to_string()
}

/// A part of a path, which leads to no other place than it says.
fn decoded(part: &str) -> Result<String, Wrong> {
    let text = percent_decode_str(part).decode_utf8().map_err(|_| Wrong::Odd)?;
    let is_odd = text.contains(|c: char| c.is_control() || c == '\\')
        || text.split('/').any(|step| matches!(step, "." | ".."));
    if is_odd { Err(Wrong::Odd) } else { Ok(text.into_owned()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(path: &str) -> Result<Place, Wrong> {
        Place::parse(&path.parse().unwrap())
    }

    #[test]
    fn files_are_known_and_named_to_the_hub_in_one_way() {
        for (path, repository, revision, file, at) in [
            ("/hf/gpt2/resolve/main/a.bin", "gpt2", "main", "a.bin", "/gpt2/resolve/main/a.bin"),
            ("/hf/o/m/resolve/main/d/a.bin?x=1", "o/m", "main", "d/a.bin", "/o/m/resolve/main/d/a.bin"),
            (
                "/hf/datasets/o/d/resolve/refs%2Fpr%2F1/a%20%2Bb%25.csv",
                "datasets/o/d",
                "refs/pr/1",
                "a +b%.csv",
                "/datasets/o/d/resolve/refs%2Fpr%2F1/a%20%2Bb%25.csv",
            ),
            ("/hf/datasets/d/resolve/main/a", "datasets/d", "main", "a", "/datasets/d/resolve/main/a"),
            ("/hf/spaces/o/s/resolve/main/a", "spaces/o/s", "main", "a", "/spaces/o/s/resolve/main/a"),
        ] {
            let Ok(Place::File(place)) = parse(path) else { panic!("{path}") };
            assert_eq!((&*place.repository, &*place.revision, &*place.path), (repository, revision, file));
            assert_eq!(place.at(&place.revision), at);
        }
    }

    #[test]
    fn paths_lead_nowhere_else() {
        for path in [
            "/hf/o/m/resolve/main/../../../etc/passwd",
            "/hf/o/m/resolve/main/%2e%2e/secret",
            "/hf/o/m/resolve/main/a%2f..%2fb",
            "/hf/o/m/resolve/..%2Fx/a",
            "/hf/o/m/resolve/main/a%00b",
            "/hf/o/m/resolve/main/a%0d%0aX: 1",
            "/hf/o/m/resolve/main/a%5c..%5cb",
            "/hf/o/m/resolve/main/a%2Fb",
            "/hf/o/m/resolve/main//a",
            "/hf/o/m/resolve/main/%ff",
            "/hf/o/%6d%20x/resolve/main/a",
            "/hf/../m/resolve/main/a",
            "/hf/api/models/%2e%2e/x",
            "/hf/o/m/resolve/main/",
        ] {
            let Ok(uri) = path.parse::<Uri>() else { continue };
            assert_eq!(Place::parse(&uri), Err(Wrong::Odd), "{path}");
        }
        assert_eq!(parse(&format!("/hf/o/m/resolve/main/{}", "a".repeat(9_000))), Err(Wrong::Odd));
        for path in ["/", "/hf", "/hf/", "/hf/o/m", "/hf/o/m/raw/main/a", "/o/m/resolve/main/a", "/hfx/a"] {
            assert_eq!(parse(path), Err(Wrong::Elsewhere), "{path}");
        }
    }

    #[test]
    fn places_of_xet_are_known() {
        let commit = "a".repeat(40);
        for (path, repository, token) in [
            ("models/gpt2/xet-read-token/main", "gpt2", "/api/models/gpt2/xet-read-token/main"),
            ("models/o/m/xet-read-token/main", "o/m", "/api/models/o/m/xet-read-token/main"),
            (
                "datasets/o/d/xet-read-token/refs%2Fpr%2F1",
                "datasets/o/d",
                "/api/datasets/o/d/xet-read-token/refs%2Fpr%2F1",
            ),
            ("spaces/o/xet-read-token/main", "spaces/o", "/api/spaces/o/xet-read-token/main"),
        ] {
            let Ok(Place::XetToken(place)) = parse(&format!("/hf/api/{path}")) else { panic!("{path}") };
            assert_eq!((&*place.repository(), &*place.token_path()), (repository, token));
            assert_eq!(RevisionPlace::of_repository(repository, &place.revision), place);
            assert_eq!(
                place.tree(),
                token.replace("xet-read-token", "tree") + "?recursive=true&expand=false"
            );
        }
        let name = "0Ab".repeat(21) + "f";
        assert_eq!(
            parse(&format!("/hf/cas/v1/reconstructions/{name}")),
            Ok(Place::Reconstruction(1, name.clone()))
        );
        assert_eq!(
            parse(&format!("/hf/cas/v2/reconstructions/{name}")),
            Ok(Place::Reconstruction(2, name.clone()))
        );
        assert_eq!(parse(&format!("/hf/cas/xorbs/{name}?pass=x")), Ok(Place::Xorb));
        for path in [
            format!("/hf/cas/v3/reconstructions/{name}"),
            "/hf/cas/v2/reconstructions/12".into(),
            format!("/hf/cas/v2/xorbs/{name}"),
            format!("/hf/cas/shards/{commit}"),
        ] {
            assert_eq!(parse(&path), Err(Wrong::Elsewhere), "{path}");
        }
    }

    #[test]
    fn a_question_tells_whether_its_answer_stays() {
        let commit = "a".repeat(40);
        for (path, about) in [
            (format!("/hf/api/models/o/m/revision/{commit}"), About::Commit),
            (format!("/hf/api/models/o/m/tree/{commit}?recursive=true"), About::Commit),
            ("/hf/api/models/o/m/revision/main".into(), About::Name),
            ("/hf/api/models/o/m/tree/main/xet-read-token".into(), About::Name),
            (format!("/hf/api/models/o/m/xet-write-token/{commit}"), About::Xet),
            ("/hf/api/whoami-v2".into(), About::Other),
        ] {
            let Ok(Place::Api(place)) = parse(&path) else { panic!("{path}") };
            assert_eq!((place.about, &*place.asked), (about, &path[3..]));
        }
    }
}
