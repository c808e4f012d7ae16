//! `polycast hf`: repositories of the Hugging Face Hub.

use super::{receivers, runtime};
use crate::args::cluster::hf::{HfArgs, HfCommand, Kind};
use crate::args::cluster::local::Destinations;
use crate::exit::{Exit, Failure};
use crate::output::{self, Format};
use futures_util::stream::{self, StreamExt as _};
use polycast_api::agent::Object;
use polycast_api::agent::send_event::Event;
use polycast_api::client::{AgentClient, SendOptions, default_socket};
use polycast_gateway::origin::{hub_home, hub_token};
use polycast_gateway::pull::{Pulled, Puller, Repository};
use polycast_types::{Printable, format_bytes};
use serde_json::{Value, json};
use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

/// Files on their way at a time.
const FILES_MAX: usize = 8;

/// Runs `polycast hf`.
pub(super) fn run(
    HfArgs { command: HfCommand::Pull(args) }: &HfArgs,
    format: Format,
) -> Result<Exit, Failure> {
    let (name, revision) = &args.repository;
    let kind = match args.repo_type {
        Kind::Model => "models",
        Kind::Dataset => "datasets",
        Kind::Space => "spaces",
    };
    let repository = Repository { kind, name: name.clone() };
    let cache = args.cache.clone().map_or_else(usual_cache, Ok)?;
    let folder = cache.join(format!("{kind}--{}", name.replace('/', "--")));
    let socket = args.local.socket.clone().unwrap_or_else(default_socket);
    let refused = |why: String| Failure::input(format!("cannot pull {name}: {}", Printable(&why)));
    let puller = Puller::new(&args.upstream, &socket, hub_token().as_deref()).map_err(refused)?;
    let (commit, files) = runtime()?.block_on(async {
        // Without an agent nothing needs to be asked.
        let agent = AgentClient::connect(&socket).await?;
        let (commit, mut paths) = puller.list(&repository, revision).await.map_err(refused)?;
        paths.retain(|path| is_chosen(path, &args.include, &args.exclude));
        let ready = Ready { agent: &agent, folder: &folder, commit: &commit, to: args.to.as_ref() };
        let one = async |path: &String| {
            let pulled = puller.get(&repository, &commit, path).await;
            let pulled = pulled.map_err(|why| refused(format!("{path}: {why}")))?;
            ready.take(path, &pulled).await
        };
        let pulls: Vec<_> = paths.iter().map(one).collect();
        let mut pulls = stream::iter(pulls).buffered(FILES_MAX);
        let mut files: Vec<Value> = Vec::new();
        while let Some(file) = pulls.next().await {
            files.push(file?);
        }
        drop(pulls);
        Ok::<_, Failure>((commit.clone(), files))
    })?;
    let snapshot = folder.join("snapshots").join(&commit);
    // The name is written when all it leads to is there.
    if *revision != commit {
        write_whole(&folder.join("refs").join(revision), commit.as_bytes())?;
    }
    let text = format!("{} files of {name}: {}", files.len(), snapshot.display());
    let document = json!({
        "repository": name, "commit": commit, "path": snapshot.display().to_string(), "files": files,
    });
    output::result(format, &document, &text)?;
    Ok(Exit::Done)
}

/// A place for files, and those that get them besides.
struct Ready<'a> {
    agent: &'a AgentClient,
    folder: &'a Path,
    commit: &'a str,
    to: Option<&'a Destinations>,
}

impl Ready<'_> {
    /// Puts a file into the cache, and sends it on; gives what is said of it.
    async fn take(&self, path: &str, pulled: &Pulled) -> Result<Value, Failure> {
        let blob = self.folder.join("blobs").join(&pulled.etag);
        if !fs::metadata(&blob).is_ok_and(|there| there.len() == pulled.bytes) {
            self.copy(pulled, &blob).await?;
        }
        let link = self.folder.join("snapshots").join(self.commit).join(path);
        let up = "../".repeat(path.split('/').count() + 1);
        let target = format!("{up}blobs/{}", pulled.etag);
        make_folder_of(&link)?;
        let is_there = fs::read_link(&link).is_ok_and(|there| there == Path::new(&target));
        if !is_there {
            let _ = fs::remove_file(&link);
            std::os::unix::fs::symlink(&target, &link)
                .map_err(|error| Failure::path("make", &link, &error))?;
        }
        if let Some(to) = self.to.filter(|_| pulled.bytes > 0) {
            send_on(self.agent, &pulled.object, path, to).await?;
        }
        let (size, source) = (format_bytes(pulled.bytes), pulled.source);
        output::say(&format!("{} ({size}): {source}", Printable(path)));
        Ok(json!({ "path": path, "bytes": pulled.bytes, "etag": pulled.etag, "source": source }))
    }

    async fn copy(&self, pulled: &Pulled, blob: &Path) -> Result<(), Failure> {
        make_folder_of(blob)?;
        let part = blob.with_extension(format!("{}.polycast", std::process::id()));
        let written = |error: io::Error| Failure::path("write", &part, &error);
        let mut file = File::create(&part).map_err(written)?;
        if pulled.bytes > 0 && pulled.object.path.is_empty() {
            // The agent is another user's.
            let id = pulled.object.id().map_err(polycast_api::client::ClientError::from)?;
            let session = self.agent.register(id.app, u64::from(std::process::id())).await?;
            let mut taking = session.take(id).await?;
            while let Some(piece) = taking.next().await? {
                file.write_all(&piece).map_err(written)?;
            }
            let _ = session.unregister().await;
        } else if pulled.bytes > 0 {
            let path = Path::new(&pulled.object.path);
            let mut there = File::open(path).map_err(|error| Failure::path("read", path, &error))?;
            io::copy(&mut there, &mut file).map_err(written)?;
        }
        fs::rename(&part, blob).map_err(|error| Failure::path("write", blob, &error))
    }
}

/// Has an object in the stores of other agents; `shown` is what the user calls it.
pub(super) async fn send_on(
    agent: &AgentClient,
    object: &Object,
    shown: &str,
    to: &Destinations,
) -> Result<(), Failure> {
    let id = object.id().map_err(polycast_api::client::ClientError::from)?;
    let session = agent.register(id.app, u64::from(std::process::id())).await?;
    let mut sending = session.send(id.data, &receivers(to), &SendOptions::default()).await?;
    while let Some(event) = sending.next().await? {
        let Event::Finished(report) = event else { continue };
        if let Some(failed) = report.receivers.iter().find(|receiver| !receiver.verified) {
            let why = format!("{} has not got {shown}: {}", failed.name, failed.error);
            return Err(Failure::input(Printable(&why).to_string()));
        }
    }
    let _ = session.unregister().await;
    Ok(())
}

fn make_folder_of(path: &Path) -> Result<(), Failure> {
    let Some(folder) = path.parent() else { return Ok(()) };
    fs::create_dir_all(folder).map_err(|error| Failure::path("make", folder, &error))
}

/// Writes a small file, which is there as a whole or not at all.
fn write_whole(path: &Path, bytes: &[u8]) -> Result<(), Failure> {
    make_folder_of(path)?;
    let part = path.with_extension("polycast");
    let written = fs::write(&part, bytes).and_then(|()| fs::rename(&part, path));
    written.map_err(|error| Failure::path("write", path, &error))
}

/// A variable of the environment that is set to something.
fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.trim().is_empty())
}

fn usual_cache() -> Result<PathBuf, Failure> {
    let cache =
        variable("HF_HUB_CACHE").map(PathBuf::from).or_else(|| hub_home().map(|home| home.join("hub")));
    cache.ok_or_else(|| Failure::input("there is no folder for the cache").hint("name one: --cache DIR"))
}

/// Returns true if a file is chosen: by one of the patterns, if there are any, and by none of the others.
fn is_chosen(path: &str, include: &[String], exclude: &[String]) -> bool {
    let is_of = |patterns: &[String]| patterns.iter().any(|pattern| matches(pattern, path));
    (include.is_empty() || is_of(include)) && !is_of(exclude)
}

/// Returns true if a text is of a pattern, in which `*` stands for any letters, slashes among them, and `?`
/// for one. A pattern that ends with a slash has all that begins with it.
fn matches(pattern: &str, text: &str) -> bool {
    let pattern: Vec<char> = pattern.chars().chain(pattern.ends_with('/').then_some('*')).collect();
    let text: Vec<char> = text.chars().collect();
    let (mut at, mut next, mut star) = (0, 0, None);
    while next < text.len() {
        match pattern.get(at) {
            Some('*') => {
                star = Some((at, next));
                at += 1;
            }
            Some(letter) if *letter == '?' || *letter == text[next] => {
                at += 1;
                next += 1;
            }
            _ => {
                // The last star stands for one letter more.
                let Some((place, taken)) = star else { return false };
                star = Some((place, taken + 1));
                (at, next) = (place + 1, taken + 1);
            }
        }
    }
    pattern[at..].iter().all(|letter| *letter == '*')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_choose_files() {
        for (pattern, path, is) in [
            ("*.safetensors", "model.safetensors", true),
            ("*.safetensors", "sub/model.safetensors", true),
            ("*.safetensors", "model.safetensors.index.json", false),
            ("model-0000?-of-*", "model-00001-of-00002.bin", true),
            ("original/", "original/params.json", true),
            ("original/", "params.json", false),
            ("a*b*c", "axxbxxbc", true),
            ("a*b*c", "axxbxx", false),
            ("", "a", false),
        ] {
            assert_eq!(matches(pattern, path), is, "{pattern} {path}");
        }
        let both = |path| is_chosen(path, &["*.json".into()], &["sub/*".into()]);
        assert_eq!([both("a.json"), both("sub/a.json"), both("a.bin")], [true, false, false]);
    }
}
