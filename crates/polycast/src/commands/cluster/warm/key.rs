//! Keys of compile caches: all that what was compiled depends on.

use crate::args::cluster::warm::CacheArgs;
use crate::exit::Failure;
use polycast_net::hash::{bytes_hash, hex};
use polycast_types::Printable;
use std::path::Path;
use std::process::{Command, Stdio};

/// Digits of the key in the name of a topic.
const DIGITS: usize = 32;
/// Instructions of processors that compilers choose code by.
const INSTRUCTIONS: [&str; 7] = ["avx2", "avx512f", "avx512_bf16", "amx_tile", "asimd", "sve", "bf16"];
/// Devices of graphics processors: where there is none there is no driver either.
const DEVICES: [&str; 2] = ["/dev/nvidiactl", "/dev/kfd"];

/// Prints the Python's tag, and the version of each package that there is.
const VERSIONS: &str = "
import importlib.metadata, sys
print('python', sys.implementation.cache_tag)
for name in sys.argv[1:]:
    try:
        print(name, importlib.metadata.version(name))
    except importlib.metadata.PackageNotFoundError:
        pass
";

/// A key.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Key {
    engine: &'static str,
    parts: Vec<(String, String)>,
}

impl Key {
    /// A key that the user has named.
    pub(super) fn named(engine: &'static str, text: &str) -> Self {
        Key { engine, parts: vec![("key".into(), text.into())] }
    }

    /// The key of this machine.
    ///
    /// # Errors
    /// A part of it cannot be told: it is named.
    pub(super) fn found(
        engine: &'static str,
        packages: &[&'static str],
        args: &CacheArgs,
    ) -> Result<Self, Failure> {
        let given =
            |name: &str| args.part.iter().rfind(|(known, _)| known == name).map(|(_, value)| value.clone());
        let (mut parts, mut unknown) = (Vec::new(), Vec::new());
        let mut add = |name: &str, found: Result<String, String>| match given(name).map_or(found, Ok) {
            Ok(value) => parts.push((name.to_string(), value)),
            Err(why) => unknown.push(format!("{name} ({why})")),
        };
        let [gpu, driver] = graphics();
        add("gpu", gpu);
        add("driver", driver);
        add("processor", processor());
        let versions = versions(&args.python, packages);
        for name in std::iter::once("python").chain(packages.iter().copied()) {
            let version = versions.as_ref().map_err(Clone::clone).and_then(|said| {
                let found = said.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
                found.map(str::to_string).ok_or_else(|| format!("{} does not have it", args.python.display()))
            });
            add(name, version);
        }
        add("model", Ok(args.model.clone().unwrap_or_else(|| "any".into())));
        if unknown.is_empty() {
            return Ok(Key { engine, parts });
        }
        let why = format!("the key cannot be told: {}", Printable(&unknown.join("; ")));
        Err(Failure::input(why).hint("name it: --part NAME=VALUE, or all of the key: --key TEXT"))
    }

    pub(super) fn engine(&self) -> &'static str {
        self.engine
    }

    pub(super) fn parts(&self) -> &[(String, String)] {
        &self.parts
    }

    /// The topic of its cache, which is the cache's name, too.
    pub(super) fn topic(&self) -> String {
        let text: String = self.parts.iter().map(|(name, value)| format!("{name}={value}\n")).collect();
        format!("warm-{}-{}", self.engine, &hex(&bytes_hash(text.as_bytes()))[..DIGITS])
    }

    /// It for people.
    pub(super) fn shown(&self) -> String {
        let parts: Vec<_> = self.parts.iter().map(|(name, value)| format!("{name} {value}")).collect();
        Printable(&parts.join(", ")).to_string()
    }
}

/// Runs a program; gives its output, or why there is none.
fn said(command: &mut Command) -> Result<String, String> {
    let name = command.get_program().to_string_lossy().into_owned();
    let done = command.stdin(Stdio::null()).output().map_err(|error| format!("{name}: {error}"))?;
    if !done.status.success() {
        let said = String::from_utf8_lossy(&done.stderr);
        return Err(format!("{name} failed: {}", said.lines().last().unwrap_or_default()));
    }
    Ok(String::from_utf8_lossy(&done.stdout).into_owned())
}

fn versions(python: &Path, packages: &[&str]) -> Result<String, String> {
    said(Command::new(python).arg("-c").arg(VERSIONS).args(packages))
}

/// Names of the graphics processors, and the version of their driver.
fn graphics() -> [Result<String, String>; 2] {
    if !DEVICES.iter().any(|device| Path::new(device).exists()) {
        return [Ok("none".into()), Ok("none".into())];
    }
    let fields = ["--query-gpu=name,driver_version", "--format=csv,noheader"];
    match said(Command::new("nvidia-smi").args(fields)) {
        Ok(said) => graphics_of(&said),
        Err(why) => [Err(why.clone()), Err(why)],
    }
}

/// The same, as `nvidia-smi` prints them: machines differ if one has other kinds of them.
fn graphics_of(said: &str) -> [Result<String, String>; 2] {
    let column = |number: usize| {
        let mut all: Vec<_> =
            said.lines().filter_map(|line| line.split(", ").nth(number)).map(str::trim).collect();
        all.sort_unstable();
        all.dedup();
        if all.is_empty() { Err("nvidia-smi names none".to_string()) } else { Ok(all.join(" + ")) }
    };
    [column(0), column(1)]
}

fn processor() -> Result<String, String> {
    let about =
        std::fs::read_to_string("/proc/cpuinfo").map_err(|error| format!("/proc/cpuinfo: {error}"))?;
    Ok(processor_of(&about))
}

/// The architecture, and the instructions that it has besides.
fn processor_of(about: &str) -> String {
    let line = about.lines().find(|line| line.starts_with("flags") || line.starts_with("Features"));
    let flags: Vec<&str> = line.unwrap_or_default().split_whitespace().collect();
    let has = INSTRUCTIONS.iter().filter(|one| flags.contains(one));
    std::iter::once(&std::env::consts::ARCH).chain(has).copied().collect::<Vec<_>>().join("+")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_machines_say_becomes_parts() {
        let said = "NVIDIA H200, 580.65.06\nNVIDIA H200, 580.65.06\n";
        assert_eq!(graphics_of(said), [Ok("NVIDIA H200".into()), Ok("580.65.06".into())]);
        let said = "NVIDIA L4, 580.65.06\nNVIDIA H200, 580.65.06\n";
        assert_eq!(graphics_of(said)[0].as_deref(), Ok("NVIDIA H200 + NVIDIA L4"));
        assert!(graphics_of("").iter().all(Result::is_err));
        let arch = std::env::consts::ARCH;
        assert_eq!(processor_of("flags\t: sse avx2 amx_tile\n"), format!("{arch}+avx2+amx_tile"));
        assert_eq!(processor_of(""), arch);
    }

    #[test]
    fn another_part_is_another_topic() {
        let key = |driver: &str| Key {
            engine: "vllm",
            parts: vec![("gpu".into(), "H200".into()), ("driver".into(), driver.into())],
        };
        assert_eq!(key("1").topic(), key("1").topic());
        assert_ne!(key("1").topic(), key("2").topic());
        assert_ne!(Key::named("vllm", "a").topic(), Key::named("triton", "a").topic());
        assert!(key("1").topic().starts_with("warm-vllm-"), "{}", key("1").topic());
    }
}
