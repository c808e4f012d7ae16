//! `polycast warm`: compile caches of one host for others that would compile the same.
//!
//! A cache is a version of a topic whose name has the engine and the key: of another key there is nothing
//! there to get.

mod key;

use super::bytes::{self, Bytes};
use super::{Ending, in_session, names, put, put_taken, runtime};
use crate::args::cluster::warm::{CacheArgs, Engine, PullArgs, PushArgs, WarmArgs, WarmCommand};
use crate::exit::{Exit, Failure};
use crate::object::{self, Reading};
use crate::output::{self, Format};
use key::Key;
use polycast_api::agent::{Object, TopicEvent};
use polycast_api::client::{AgentClient, Session, Wait, default_socket};
use polycast_api::error::Kind;
use polycast_types::{AppId, Duration, Printable, format_bytes};
use serde_json::json;
use std::fs;
use std::path::{Path, PathBuf};

/// The time for which a cache is waited for unless the user names another.
const WAIT: Duration = Duration::from_millis(10_000);

impl Engine {
    fn name(self) -> &'static str {
        match self {
            Engine::Vllm => "vllm",
            Engine::Inductor => "inductor",
            Engine::Triton => "triton",
            Engine::Flashinfer => "flashinfer",
            Engine::Deepgemm => "deepgemm",
        }
    }

    /// Python packages whose versions are in the key.
    fn packages(self) -> &'static [&'static str] {
        match self {
            Engine::Vllm => &["torch", "vllm"],
            Engine::Inductor => &["torch"],
            Engine::Triton => &["torch", "triton"],
            Engine::Flashinfer => &["torch", "flashinfer-python"],
            Engine::Deepgemm => &["torch", "deep-gemm"],
        }
    }

    /// The folder of its cache, as it finds that itself.
    fn folder(self, variable: impl Fn(&str) -> Option<String>) -> Option<PathBuf> {
        let named = |name| variable(name).map(PathBuf::from);
        let home = || named("HOME");
        let caches = || named("XDG_CACHE_HOME").or_else(|| Some(home()?.join(".cache")));
        match self {
            Engine::Vllm => {
                let root = named("VLLM_CACHE_ROOT").or_else(|| Some(caches()?.join("vllm")))?;
                Some(root.join("torch_compile_cache"))
            }
            Engine::Inductor => named("TORCHINDUCTOR_CACHE_DIR").or_else(|| {
                let folder = named("TMPDIR").unwrap_or_else(|| "/tmp".into());
                Some(
                    folder
                        .join(format!("torchinductor_{}", variable("USER").or_else(|| variable("LOGNAME"))?)),
                )
            }),
            Engine::Triton => named("TRITON_CACHE_DIR")
                .or_else(|| Some(named("TRITON_HOME").or_else(home)?.join(".triton").join("cache"))),
            Engine::Flashinfer => {
                Some(named("FLASHINFER_WORKSPACE_BASE").or_else(home)?.join(".cache").join("flashinfer"))
            }
            Engine::Deepgemm => named("DG_JIT_CACHE_DIR").or_else(|| Some(home()?.join(".deep_gemm"))),
        }
    }
}

impl CacheArgs {
    fn key(&self) -> Result<Key, Failure> {
        if self.key == "auto" {
            return Key::found(self.engine.name(), self.engine.packages(), self);
        }
        if self.key.is_empty() || self.key.contains('\n') {
            return Err(Failure::input("a key is a line of text"));
        }
        Ok(Key::named(self.engine.name(), &self.key))
    }

    fn folder(&self) -> Result<PathBuf, Failure> {
        let variable = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
        let folder = self.path.clone().or_else(|| self.engine.folder(variable));
        folder.ok_or_else(|| Failure::input("there is no folder for the cache").hint("name one: --path DIR"))
    }
}

/// Runs `polycast warm`.
pub(super) fn run(args: &WarmArgs, format: Format) -> Result<Exit, Failure> {
    match &args.command {
        WarmCommand::Push(args) => push(args, format),
        WarmCommand::Pull(args) => pull(args, format),
    }
}

fn push(args: &PushArgs, format: Format) -> Result<Exit, Failure> {
    let (key, folder) = (args.cache.key()?, args.cache.folder()?);
    let opened = object::open(&folder, false, Reading::InPlace)?;
    bytes::check_set(opened.kind)?;
    let (stamp, name) = (opened.source.stamp(), key.topic());
    let cache = Bytes { kind: opened.kind, source: opened.source };
    let local = &args.cache.local;
    let socket = local.socket.clone().unwrap_or_else(default_socket);
    let (object, version) = runtime()?.block_on(in_session(local, AppId::default(), async |session| {
        let whose = names::Whose::of(session);
        let data = names::id_of(&whose, std::slice::from_ref(&folder), &name, names::stamp_of(stamp, false));
        // The agent keeps it as it is now: the engine goes on writing there.
        let object = match cache.put(session, data, &name, false, false).await {
            Err(error) if error.kind() == Some(Kind::ObjectTaken) => {
                session.read(data, Wait::WhileComing(None)).await?
            }
            put => put?,
        };
        let published = session.publish(&key.topic(), None, data, None).await?;
        if let Some(to) = &args.to {
            super::hf::send_on(&AgentClient::connect(&socket).await?, &object, &name, to).await?;
        }
        Ok((object, published.version))
    }))?;
    tell(&key, &object, version, &folder, format)
}

fn pull(args: &PullArgs, format: Format) -> Result<Exit, Failure> {
    let (key, folder) = (args.cache.key()?, args.cache.folder()?);
    if !args.replace && is_in_use(&folder) {
        let why = format!("there is a cache at {} already", Printable(&folder.to_string_lossy()));
        return Err(Failure::place(why).hint("--replace replaces it"));
    }
    let local = &args.cache.local;
    // What comes over the socket comes while it runs.
    let runtime = runtime()?;
    let (object, version, taken) =
        runtime.block_on(in_session(local, AppId::default(), async |session| {
            let ending = Ending::watch()?;
            let (object, version) = tokio::select! {
                come = come(session, &key, args.timeout.unwrap_or(WAIT)) => come?,
                () = ending.asked() => return Err(Failure::cancelled()),
            };
            let taken = bytes::take(session, &object).await?;
            Ok((object, version, taken))
        }))?;
    if let Some(above) = folder.parent() {
        fs::create_dir_all(above).map_err(|error| Failure::path("make", above, &error))?;
    }
    // All of it is there at once, or nothing.
    match taken {
        Some(taken) => put_taken(&object, taken, &folder, args.replace)?,
        None => put(&object, Path::new(&object.path), &folder, args.replace)?,
    }
    tell(&key, &object, version, &folder, format)
}

/// Waits for a cache of this key.
async fn come(session: &Session, key: &Key, wait: Duration) -> Result<(Object, u64), Failure> {
    let topic = key.topic();
    let mut events = session.subscribe(&topic).await?;
    let none = || {
        let why = format!("no agent has a cache of this key: {}", key.shown());
        Failure::of(Kind::TimedOut, why)
            .hint("polycast warm push gives one, with the same --key, --model and --part")
    };
    let within = std::time::Duration::from_millis(wait.as_millis());
    let mut event = tokio::time::timeout(within, events.next()).await.map_err(|_| none())??;
    loop {
        let Some(TopicEvent { version, committed, object }) = event else {
            return Err(Failure::unexpected("the agent ended the subscription"));
        };
        if let Some(object) = object.filter(|_| committed) {
            if object.name != topic {
                let why =
                    format!("what is at {topic} is no cache of that key, but {}", Printable(&object.name));
                return Err(Failure::input(why));
            }
            return Ok((object, version));
        }
        event = events.next().await?;
    }
}

/// Returns true if there is something at a path that is no empty folder.
fn is_in_use(path: &Path) -> bool {
    match fs::read_dir(path) {
        Ok(mut entries) => entries.next().is_some(),
        Err(_) => fs::symlink_metadata(path).is_ok(),
    }
}

fn tell(key: &Key, object: &Object, version: u64, folder: &Path, format: Format) -> Result<Exit, Failure> {
    let parts: serde_json::Map<_, _> =
        key.parts().iter().map(|(name, value)| (name.clone(), value.clone().into())).collect();
    let document = json!({
        "engine": key.engine(), "topic": key.topic(), "version": version, "bytes": object.length,
        "path": folder.display().to_string(), "key": parts,
    });
    let (bytes, folder) = (format_bytes(object.length), folder.display().to_string());
    let text = format!("{} ({bytes}) for {}: {}", key.engine(), key.shown(), Printable(&folder));
    output::result(format, &document, &text)?;
    Ok(Exit::Done)
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::ValueEnum as _;

    #[test]
    fn caches_are_where_their_engines_look() {
        let all = |set: &[(&str, &str)]| {
            let variable = |name: &str| {
                let found = set.iter().find(|(known, _)| *known == name);
                found.map(|(_, value)| value.to_string())
            };
            let engines = Engine::value_variants().iter();
            let folders =
                engines.map(|engine| engine.folder(variable).map(|folder| folder.display().to_string()));
            folders.map(Option::unwrap_or_default).collect::<Vec<_>>()
        };
        let usual = all(&[("HOME", "/h"), ("USER", "u")]);
        assert_eq!(
            usual,
            [
                "/h/.cache/vllm/torch_compile_cache",
                "/tmp/torchinductor_u",
                "/h/.triton/cache",
                "/h/.cache/flashinfer",
                "/h/.deep_gemm"
            ]
        );
        let named = all(&[
            ("VLLM_CACHE_ROOT", "/v"),
            ("TORCHINDUCTOR_CACHE_DIR", "/i"),
            ("TRITON_CACHE_DIR", "/t"),
            ("FLASHINFER_WORKSPACE_BASE", "/f"),
            ("DG_JIT_CACHE_DIR", "/d"),
        ]);
        assert_eq!(named, ["/v/torch_compile_cache", "/i", "/t", "/f/.cache/flashinfer", "/d"]);
        assert_eq!(all(&[]).concat(), "");
    }
}
