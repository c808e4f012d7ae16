//! Logs, on standard error.

use crate::args::{LogFormat, LogOptions};
use crate::exit::Failure;
use std::io::{self, IsTerminal};
use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::LevelFilter;

/// Starts logging as the user asked.
pub(crate) fn start(options: &LogOptions) -> Result<(), Failure> {
    let level = match (options.quiet, options.verbose) {
        (true, _) => "error",
        (false, 0) => &options.log,
        (false, 1) => "info",
        (false, 2) => "debug",
        (false, _) => "trace",
    };
    let wrong = || {
        Failure::input(format!("'{level}' is not a log level"))
            .hint("write error, warn, info, debug or trace, or name parts: info,polycast_net=debug")
    };
    // A word that is no level would be taken for the name of a part, and silently log nothing.
    if level.split(',').any(|part| !part.contains('=') && part.parse::<LevelFilter>().is_err()) {
        return Err(wrong());
    }
    let filter = EnvFilter::try_new(level).map_err(|_| wrong())?;
    let builder = tracing_subscriber::fmt().with_env_filter(filter).with_writer(io::stderr);
    let started = match options.log_format {
        LogFormat::Text => builder.with_ansi(io::stderr().is_terminal()).try_init(),
        LogFormat::Json => builder.json().try_init(),
    };
    started.map_err(|error| Failure::unexpected(format!("cannot start logging: {error}")))
}
