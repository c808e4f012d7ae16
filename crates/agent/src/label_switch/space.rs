//! Work in the namespace of a switch.

use polycast_net::bpf::in_namespace;
use std::fmt::Display;
use std::path::Path;

/// Runs something in a namespace, or here.
pub(super) fn in_space<T: Send, E: Display + Send>(
    namespace: Option<&Path>,
    work: impl FnOnce() -> Result<T, E> + Send,
) -> Result<T, String> {
    let Some(path) = namespace else { return work().map_err(|error| error.to_string()) };
    match in_namespace(path, work) {
        Ok(done) => done.map_err(|error| error.to_string()),
        Err(error) => Err(format!("{}: {error}", path.display())),
    }
}
