//! The fuzzer of one target, whose name is in the environment: what `cargo xtask fuzz` builds and runs.
#![no_main]

use polycast_fuzz::{SEEDS, TARGET, Target, corpus, target};
use std::path::Path;
use std::sync::OnceLock;

static BODY: OnceLock<Target> = OnceLock::new();

/// Chooses the target, and puts its seeds where they are asked for before the folder is read.
fn begin() {
    let name = std::env::var(TARGET).unwrap_or_default();
    let body = target(&name).unwrap_or_else(|| panic!("{TARGET} has to name a target: there is no '{name}'"));
    let _ = BODY.set(body);
    if let Some(folder) = std::env::var_os(SEEDS) {
        corpus::unpack(&name, Path::new(&folder)).expect("the folder of seeds can be written");
    }
}

libfuzzer_sys::fuzz_target!(init: begin(), |bytes: &[u8]| {
    let body = BODY.get().expect("it has begun");
    body(bytes);
});
