//! Programs in the kernel: shipped as objects in `bpf/objects`, beside their source in `bpf/`, loaded and
//! attached to interfaces. They use no types of the kernel's insides, so that one object serves every kernel
//! and machine that it can.
//!
//! A program does nothing any more when its [`Object`] is dropped. Kernel 6.6 or newer, and root.

pub mod datacast;
pub mod frames;
pub mod orca;

use aya::maps::{Array, HashMap, Map, MapData, PerCpuArray};
use aya::programs::{SchedClassifier, TcAttachType, TestRun as _, TestRunOptions};
use aya::{Ebpf, EbpfLoader, Pod};
use std::fmt::Display;
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::Duration;

/// A program's object, or why this build cannot have it.
type Program = Result<&'static [u8], &'static str>;

mod programs {
    use super::Program;

    /// `bpf/build.sh` makes them for little-endian machines.
    macro_rules! shipped {
        ($name:literal) => {
            if cfg!(target_endian = "little") {
                Ok(aya::include_bytes_aligned!(concat!("../../../../bpf/objects/", $name, ".o")))
            } else {
                Err("kernel programs are shipped for little-endian machines")
            }
        };
    }

    pub(super) static ORCA_SWITCH: Program = shipped!("orca_switch");
    pub(super) static ORCA_AGENT: Program = shipped!("orca_agent");
    pub(super) static DATACAST: Program = shipped!("datacast");
}

fn all() -> [(&'static str, &'static Program); 3] {
    [
        ("orca_switch", &programs::ORCA_SWITCH),
        ("orca_agent", &programs::ORCA_AGENT),
        ("datacast", &programs::DATACAST),
    ]
}

/// The programs that are in this build.
#[must_use]
pub fn shipped() -> Vec<&'static str> {
    all().into_iter().filter(|(_, program)| program.is_ok()).map(|(name, _)| name).collect()
}

/// The programs that this build cannot have, and why.
#[must_use]
pub fn missing() -> Vec<(&'static str, &'static str)> {
    all().into_iter().filter_map(|(name, program)| Some((name, (*program).err()?))).collect()
}

/// A program of the kernel that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum BpfError {
    /// This build cannot have it.
    #[error("this build has no kernel program {program}: {reason}")]
    NotBuilt {
        /// Its name.
        program: &'static str,
        /// Reason that it is missing.
        reason: &'static str,
    },
    /// The kernel refuses something.
    #[error("cannot {action}: {reason}{hint}")]
    Kernel {
        /// Operation that was attempted.
        action: String,
        /// Reason that the kernel gives.
        reason: String,
        /// Hint for the user; empty, or it begins with a colon.
        hint: &'static str,
    },
}

impl BpfError {
    fn new(action: impl Into<String>, reason: impl Display) -> Self {
        let hint = if rustix::process::geteuid().is_root() { "" } else { ": kernel programs need root" };
        BpfError::Kernel { action: action.into(), reason: reason.to_string(), hint }
    }
}

/// A compiled file with its programs and maps, in the kernel.
#[derive(Debug)]
pub struct Object {
    name: &'static str,
    ebpf: Ebpf,
}

/// Settings that an [`Object`] is loaded with.
#[derive(Clone, Debug, Default)]
struct Settings<'a> {
    /// Values of the program's constants.
    constants: Vec<(&'static str, u32)>,
    /// Number of entries of each map whose size the program does not give.
    sizes: Vec<(&'a str, u32)>,
}

impl Object {
    fn load(name: &'static str, bytes: &Program, settings: &Settings<'_>) -> Result<Self, BpfError> {
        let bytes = bytes.map_err(|reason| BpfError::NotBuilt { program: name, reason })?;
        let mut loader = EbpfLoader::new();
        for (constant, value) in &settings.constants {
            loader.override_global(constant, value, true);
        }
        for (map, size) in &settings.sizes {
            loader.map_max_entries(map, *size);
        }
        let failed = |error: &dyn Display| BpfError::new(format!("load the kernel program {name}"), error);
        let mut ebpf = loader.load(bytes).map_err(|error| failed(&chain(&error)))?;
        for (_, program) in ebpf.programs_mut() {
            let program: &mut SchedClassifier = program.try_into().map_err(|error| failed(&error))?;
            program.load().map_err(|error| failed(&chain(&error)))?;
        }
        Ok(Object { name, ebpf })
    }

    fn program(&mut self, program: &str) -> Result<&mut SchedClassifier, BpfError> {
        let found = self.ebpf.program_mut(program).and_then(|found| found.try_into().ok());
        Ok(found.unwrap_or_else(|| panic!("the object {} has a program {program}", self.name)))
    }

    /// Has a program see all that comes in by an interface of the calling thread's network namespace.
    fn attach(&mut self, program: &str, interface: &str) -> Result<(), BpfError> {
        let attached = self.program(program)?.attach(interface, TcAttachType::Ingress);
        attached
            .map(drop)
            .map_err(|error| BpfError::new(format!("attach {program} to {interface}"), chain(&error)))
    }

    /// Runs a program on a packet that did not come from anywhere, `repeat` times; gives the action that it
    /// took, the packet as it left it, and how long one run took on average.
    fn try_on(
        &mut self,
        program: &str,
        packet: &[u8],
        repeat: u32,
    ) -> Result<(u32, Vec<u8>, Duration), BpfError> {
        self.try_in(program, packet, repeat, None)
    }

    /// The same, with what the kernel knows of the packet beside its bytes: a `struct __sk_buff`.
    fn try_in(
        &mut self,
        program: &str,
        packet: &[u8],
        repeat: u32,
        context: Option<&[u8]>,
    ) -> Result<(u32, Vec<u8>, Duration), BpfError> {
        let mut out = vec![0; packet.len() + 256];
        let options = TestRunOptions {
            data_in: Some(packet),
            data_out: Some(&mut out),
            ctx_in: context,
            repeat,
            ..TestRunOptions::new()
        };
        let result = self.program(program)?.test_run(options);
        let result = result.map_err(|error| BpfError::new(format!("try {program}"), chain(&error)))?;
        out.truncate(result.data_size_out as usize);
        Ok((result.return_value, out, result.duration))
    }

    fn map(&mut self, map: &str) -> &mut Map {
        self.ebpf.map_mut(map).unwrap_or_else(|| panic!("the object {} has a map {map}", self.name))
    }

    fn set<V: Pod>(&mut self, map: &str, index: u32, value: V) -> Result<(), BpfError> {
        let mut array: Array<&mut MapData, V> = checked(Array::try_from(self.map(map)));
        array
            .set(index, value, 0)
            .map_err(|error| BpfError::new(format!("write the map {map}"), chain(&error)))
    }

    fn get<V: Pod>(&mut self, map: &str, index: u32) -> Result<V, BpfError> {
        let array: Array<&mut MapData, V> = checked(Array::try_from(self.map(map)));
        array.get(&index, 0).map_err(|error| BpfError::new(format!("read the map {map}"), chain(&error)))
    }

    fn insert<V: Pod>(&mut self, map: &str, key: u32, value: V) -> Result<(), BpfError> {
        let mut table: HashMap<&mut MapData, u32, V> = checked(HashMap::try_from(self.map(map)));
        let inserted = table.insert(key, value, 0);
        inserted.map_err(|error| BpfError::new(format!("add to the map {map}"), chain(&error)))
    }

    /// Returns the number of a program's runs while runs were measured, and their total time.
    fn cost(&mut self, program: &str) -> Result<(u64, Duration), BpfError> {
        let info = self.program(program)?.info();
        let info = info.map_err(|error| BpfError::new(format!("ask about {program}"), chain(&error)))?;
        Ok((info.run_count(), info.run_time()))
    }

    /// Nothing happens if the key is not there.
    fn remove<V: Pod>(&mut self, map: &str, key: u32) -> Result<(), BpfError> {
        let mut table: HashMap<&mut MapData, u32, V> = checked(HashMap::try_from(self.map(map)));
        match table.remove(&key) {
            Ok(()) | Err(aya::maps::MapError::KeyNotFound) => Ok(()),
            Err(aya::maps::MapError::SyscallError(error))
                if error.io_error.kind() == io::ErrorKind::NotFound =>
            {
                Ok(())
            }
            Err(error) => Err(BpfError::new(format!("take from the map {map}"), chain(&error))),
        }
    }

    /// Sums over all processors.
    fn counters<const N: usize>(&mut self, map: &str) -> Result<[u64; N], BpfError> {
        let array: PerCpuArray<&mut MapData, u64> = checked(PerCpuArray::try_from(self.map(map)));
        let mut sums = [0; N];
        for (index, sum) in sums.iter_mut().enumerate() {
            let values = array.get(&(index as u32), 0);
            let values =
                values.map_err(|error| BpfError::new(format!("read the map {map}"), chain(&error)))?;
            *sum = values.iter().sum();
        }
        Ok(sums)
    }
}

/// The kind and the sizes of a map are those of our own program.
fn checked<T, E: std::fmt::Debug>(map: Result<T, E>) -> T {
    map.expect("the map is of this kind")
}

/// An error with its reasons.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(reason) = source {
        let reason_text = reason.to_string();
        if !text.contains(&reason_text) {
            text = format!("{text}: {reason_text}");
        }
        source = reason.source();
    }
    text
}

/// Runs something on a thread of its own in a network namespace, such as `/run/netns/h0`, and gives what it
/// gave.
///
/// # Errors
/// There is no such namespace, or it may not be entered.
///
/// # Panics
/// If `work` does.
pub fn in_namespace<T: Send>(path: &Path, work: impl FnOnce() -> T + Send) -> io::Result<T> {
    let namespace = File::open(path)?;
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            nix::sched::setns(&namespace, nix::sched::CloneFlags::CLONE_NEWNET)?;
            Ok(work())
        });
        thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

/// While this is kept, the kernel counts how long programs run.
///
/// # Errors
/// The kernel refuses it.
pub fn measure_runs() -> Result<OwnedFd, BpfError> {
    aya::sys::enable_stats(aya::sys::Stats::RunTime)
        .map_err(|error| BpfError::new("measure kernel programs", chain(&error)))
}
