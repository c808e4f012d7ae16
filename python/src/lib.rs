//! The part of the Python package that runs in Rust: a client of the agent on this host.
//!
//! Every call releases the interpreter while it waits, and looks ten times a second whether a signal has
//! come. Objects' bytes never pass here: Python maps the files that the agent names. All of it works in a
//! process that was forked: the threads of a runtime do not survive that, so a process that is not the one
//! that made them makes new ones.

mod connection;
mod runtime;
mod values;

use pyo3::prelude::*;

#[pymodule]
fn _native(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("VERSION", env!("CARGO_PKG_VERSION"))?;
    module.add("PROTOCOL_VERSION", polycast_api::PROTOCOL_VERSION)?;
    module.add_function(wrap_pyfunction!(connection::default_socket, module)?)?;
    module.add_class::<connection::Connection>()?;
    module.add_class::<connection::Sending>()?;
    module.add_class::<connection::Cancel>()?;
    module.add_class::<connection::Fetching>()?;
    module.add_class::<connection::Filling>()?;
    module.add_class::<connection::Versions>()?;
    module.add_class::<connection::Watching>()?;
    module.add_class::<connection::Files>()?;
    Ok(())
}
