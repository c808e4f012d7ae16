//! Logs, on standard error.

use crate::args::{LogFormat, LogOptions};
use crate::exit::Failure;
use polycast_types::Printable;
use std::io::{self, IsTerminal};
use tracing_subscriber::EnvFilter;
use tracing_subscriber::field::MakeExt;
use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::fmt::{FormatFields, format};

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
        LogFormat::Text => builder.fmt_fields(fields()).with_ansi(io::stderr().is_terminal()).try_init(),
        LogFormat::Json => builder.json().try_init(),
    };
    started.map_err(|error| Failure::unexpected(format!("cannot start logging: {error}")))
}

/// How fields are written. What others say is in them: it neither begins a line nor moves a cursor.
fn fields() -> impl for<'writer> FormatFields<'writer> + Send + Sync + 'static {
    let field = format::debug_fn(|writer, field, value| {
        let value = format!("{value:?}");
        match field.name() {
            "message" => write!(writer, "{}", Printable(&value)),
            name => write!(writer, "{name}={}", Printable(&value)),
        }
    });
    field.delimited(" ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::sync::{Arc, Mutex};

    struct Sink(Arc<Mutex<Vec<u8>>>);

    impl Write for Sink {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    /// A name that another host has chosen cannot make up a line of the log, or move the cursor of the terminal that shows it.
    #[test]
    fn what_others_say_stays_in_its_line() {
        let written: Arc<Mutex<Vec<u8>>> = Arc::default();
        let sink = Arc::clone(&written);
        let subscriber = tracing_subscriber::fmt()
            .fmt_fields(fields())
            .with_ansi(false)
            .with_writer(move || Sink(Arc::clone(&sink)));
        let name = "a\n2026-01-01T00:00:00Z  INFO polycast: all is well\u{1b}[2J";
        tracing::subscriber::with_default(subscriber.finish(), || {
            tracing::warn!(%name, reason = %name, "it says {name}");
        });
        let text = String::from_utf8(written.lock().unwrap().clone()).unwrap();
        assert_eq!(text.matches("all is well").count(), 3, "{text}");
        assert_eq!(text.lines().count(), 1, "{text}");
        assert!(!text.contains('\u{1b}'), "{text}");
    }
}
