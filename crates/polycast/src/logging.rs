//! Logs, on standard error.

use crate::args::log::{LogFormat, LogOptions, USUAL};
use crate::exit::{Failure, without_numbers};
use crate::screen;
use polycast_types::{Printable, without_secrets};
use std::io;
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::field::MakeExt;
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::fmt::{self, FormatFields, format};
use tracing_subscriber::layer::{Layer, SubscriberExt};
use tracing_subscriber::registry::LookupSpan;
use tracing_subscriber::util::SubscriberInitExt;

/// The same for a daemon, which also says in a line what it has done: a transfer, or that it leads now.
const USUAL_OF_DAEMONS: &str = "warn,polycast::done=info";

/// Starts logging as the user asked; to a person who has asked for nothing, and runs no daemon, it is told as
/// other lines are.
pub(crate) fn start(options: &LogOptions, is_daemon: bool) -> Result<(), Failure> {
    let level = match (options.quiet, options.verbose) {
        (true, _) => "error",
        (false, 0) => &options.log,
        // Of others' code only what is wrong: it says much, and nothing of the transfer.
        (false, 1) => "warn,polycast=info",
        (false, 2) => "warn,polycast=debug",
        (false, _) => "warn,polycast=trace",
    };
    let is_usual = level == USUAL || options.quiet;
    let level = if level == USUAL && is_daemon { USUAL_OF_DAEMONS } else { level };
    let wanted = parts(level).ok_or_else(|| {
        Failure::input(format!("'{level}' is not a log level"))
            .hint("write error, warn, info, debug or trace, or name parts: info,polycast_net=debug")
    })?;
    let lines = fmt::layer().with_writer(|| Above);
    let lines = match options.log_format {
        LogFormat::Text if is_usual && !is_daemon => lines.fmt_fields(people()).event_format(Told).boxed(),
        LogFormat::Text => lines.fmt_fields(fields()).with_ansi(console::colors_enabled_stderr()).boxed(),
        LogFormat::Json => lines.json().boxed(),
    };
    let wanted = without_requests(wanted);
    let registry = tracing_subscriber::registry().with(lines.with_filter(wanted));
    #[cfg(feature = "otel")]
    let registry = registry.with(crate::otel::layer().map_err(Failure::input)?);
    let started = registry.try_init();
    started.map_err(|error| Failure::unexpected(format!("cannot start logging: {error}")))
}

/// An event as a line of the program's own: `warning: the disk is slow receiver=gpu1`.
struct Told;

impl<S, N> fmt::FormatEvent<S, N> for Told
where
    S: Subscriber + for<'span> LookupSpan<'span>,
    N: for<'writer> FormatFields<'writer> + 'static,
{
    fn format_event(
        &self,
        context: &fmt::FmtContext<'_, S, N>,
        mut writer: format::Writer<'_>,
        event: &Event<'_>,
    ) -> std::fmt::Result {
        let word = if *event.metadata().level() == Level::ERROR { "error:" } else { "warning:" };
        let mut line = format!("{} ", screen::toned(word));
        context.format_fields(format::Writer::new(&mut line), event)?;
        writeln!(writer, "{}", screen::fit_note(&line))
    }
}

/// Standard error, above what is shown there: a line is written at once.
struct Above;

impl io::Write for Above {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        screen::above(|| io::stderr().write_all(bytes))?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Parses the levels at which parts of the program are logged; `None` where these are no levels.
fn parts(text: &str) -> Option<Targets> {
    // A word that is no level would be taken for the name of a part, and silently log nothing.
    let is_level = |part: &&str| part.contains('=') || part.parse::<LevelFilter>().is_ok();
    let parts: Vec<&str> = text.split(',').filter(|part| !part.is_empty()).collect();
    if text.contains(char::is_whitespace) || !parts.iter().all(is_level) {
        return None;
    }
    if parts.is_empty() {
        Some(Targets::new().with_default(LevelFilter::ERROR))
    } else {
        parts.join(",").parse().ok()
    }
}

/// The same without what the client of HTTP says of its work: at its finest level that is requests as they
/// are sent, with addresses that sign or name who may read there.
fn without_requests(wanted: Targets) -> Targets {
    let level = wanted.default_level().unwrap_or(LevelFilter::OFF).min(LevelFilter::WARN);
    wanted.with_targets([("ureq", level), ("ureq_proto", level)])
}

/// The same for lines of the program's own: a reason stands in brackets, without the system's number for it.
fn people() -> impl for<'writer> FormatFields<'writer> + Send + Sync + 'static {
    let field = format::debug_fn(|writer, field, value| {
        let value = format!("{value:?}");
        let value = without_secrets(&value);
        match field.name() {
            "message" => write!(writer, "{}", Printable(&value)),
            "error" | "reason" | "why" | "refusal" => {
                write!(writer, "({})", Printable(&without_numbers(value.to_string())))
            }
            name => write!(writer, "{name}={}", Printable(&value)),
        }
    });
    field.delimited(" ")
}

/// Formats fields. The text of others in them neither begins a line nor moves a cursor.
fn fields() -> impl for<'writer> FormatFields<'writer> + Send + Sync + 'static {
    let field = format::debug_fn(|writer, field, value| {
        let value = format!("{value:?}");
        let value = without_secrets(&value);
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

    #[test]
    fn levels_are_of_all_or_of_parts() {
        use tracing::Level;

        let wanted = parts("info,polycast_net=debug,polycast_agent::transfer=trace,rustls=off").unwrap();
        for (part, level, is_logged) in [
            ("polycast", Level::INFO, true),
            ("polycast", Level::DEBUG, false),
            ("polycast_net::udp", Level::DEBUG, true),
            ("polycast_net::udp", Level::TRACE, false),
            ("polycast_agent::transfer::source", Level::TRACE, true),
            ("polycast_agent::daemon", Level::DEBUG, false),
            ("rustls::client", Level::ERROR, false),
        ] {
            assert_eq!(wanted.would_enable(part, &level), is_logged, "{part} {level}");
        }
        for fine in ["error", "WARN", "off", "polycast_net=debug", "polycast_net=debug,info"] {
            assert!(parts(fine).is_some(), "{fine}");
        }
        for (text, is_logged) in [("", false), ("info,", true), ("info", true), ("polycast_net=info", false)]
        {
            assert_eq!(parts(text).unwrap().would_enable("polycast", &Level::INFO), is_logged, "'{text}'");
        }
        for wrong in
            ["loud", "info,loud", "polycast_net", "polycast_net=loud", "a=b=c", "info polycast_net=debug"]
        {
            assert!(parts(wrong).is_none(), "{wrong}");
        }
    }

    #[test]
    fn daemons_say_what_they_have_done() {
        use tracing::Level;

        for (level, is_said) in [(USUAL, false), (USUAL_OF_DAEMONS, true), ("warn,polycast=info", true)] {
            let wanted = parts(level).unwrap();
            assert_eq!(wanted.would_enable("polycast::done", &Level::INFO), is_said, "{level}");
        }
        assert!(!parts(USUAL_OF_DAEMONS).unwrap().would_enable("polycast_agent::daemon", &Level::INFO));
    }

    #[test]
    fn requests_are_logged_at_no_level() {
        use tracing::Level;

        for (level, part, asked, is_logged) in [
            ("trace", "ureq::run", Level::DEBUG, false),
            ("trace", "ureq_proto::client", Level::INFO, false),
            ("ureq=trace", "ureq", Level::TRACE, false),
            ("info", "ureq", Level::WARN, true),
            ("error", "ureq", Level::WARN, false),
            ("trace", "polycast", Level::TRACE, true),
        ] {
            let wanted = without_requests(parts(level).unwrap());
            assert_eq!(wanted.would_enable(part, &asked), is_logged, "{level}: {part} {asked}");
        }
    }

    #[test]
    fn a_warning_reads_as_a_sentence_with_its_reason() {
        let written: Arc<Mutex<Vec<u8>>> = Arc::default();
        let sink = Arc::clone(&written);
        let lines = fmt::layer().with_writer(move || Sink(Arc::clone(&sink)));
        let lines = lines.fmt_fields(people()).event_format(Told);
        tracing::subscriber::with_default(tracing_subscriber::registry().with(lines), || {
            let error = io::Error::from_raw_os_error(1);
            tracing::warn!(%error, receiver = "gpu1", "the offer cannot be announced");
        });
        let text = String::from_utf8(written.lock().unwrap().clone()).unwrap();
        assert!(text.contains("the offer cannot be announced (operation not permitted) receiver"), "{text}");
    }

    /// A name that another host has chosen cannot make up a line of the log, or move the cursor of the
    /// terminal that shows it.
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
            tracing::warn!(
                reason = "no https://me:s3cret@host/a?sig=s3cret",
                "got it from http://host/a?s3cret"
            );
        });
        let text = String::from_utf8(written.lock().unwrap().clone()).unwrap();
        assert_eq!(text.matches("all is well").count(), 3, "{text}");
        assert_eq!(text.lines().count(), 2, "{text}");
        assert!(text.contains("https://***@host/a?***") && !text.contains("s3cret"), "{text}");
        assert!(!text.contains('\u{1b}'), "{text}");
    }
}
