//! Logs, on standard error.

use crate::args::{LogFormat, LogOptions};
use crate::exit::Failure;
use polycast_types::Printable;
use std::io::{self, IsTerminal};
use tracing_subscriber::EnvFilter;
use tracing_subscriber::field::MakeExt;
use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::fmt::format;

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
    // What others say is in fields: it neither begins a line nor moves a cursor.
    let fields = format::debug_fn(|writer, field, value| {
        let value = format!("{value:?}");
        match field.name() {
            "message" => write!(writer, "{}", Printable(&value)),
            name => write!(writer, "{name}={}", Printable(&value)),
        }
    });
    let started = match options.log_format {
        LogFormat::Text => {
            builder.fmt_fields(fields.delimited(" ")).with_ansi(io::stderr().is_terminal()).try_init()
        }
        LogFormat::Json => builder.json().try_init(),
    };
    started.map_err(|error| Failure::unexpected(format!("cannot start logging: {error}")))
}
