//! Recording what a circuit switch answers, as a dialogue that a test plays to the driver.

use crate::args::bench::BenchOcsRecordArgs;
use polycast::exit::{Exit, Failure};
use polycast::output::{self, Format};
use polycast_api::error::Kind;
use polycast_net::devices::circuits::{Login, RecordError, RecordOptions, record};
use serde_json::json;
use std::fs::OpenOptions;
use std::io::Write as _;
use std::time::Duration;

/// `polycast bench ocs-record`
pub(super) fn run(args: &BenchOcsRecordArgs, format: Format) -> Result<Exit, Failure> {
    let options = RecordOptions {
        address: args.switch,
        dialect: args.dialect.clone(),
        ports: args.ports,
        login: login(args)?,
        changes: args.change.clone(),
        timeout: Duration::from_nanos(args.timeout.0),
    };
    let wrong = |error: std::io::Error| {
        Failure::input(format!("cannot write the dialogue to {}: {error}", args.out.display()))
    };
    let mut file = OpenOptions::new().write(true).create_new(true).open(&args.out).map_err(wrong)?;
    let dialogue = record(&options).map_err(|error| {
        // An empty file is no dialogue.
        let _ = std::fs::remove_file(&args.out);
        failure(&error)
    })?;
    file.write_all(dialogue.text().as_bytes()).map_err(wrong)?;
    let found = |question: &str| {
        dialogue.turns.iter().find(|turn| turn.question == question).map(|turn| turn.found.clone())
    };
    let (identity, circuits) = (found("identity").unwrap_or_default(), found("retrieve").unwrap_or_default());
    let document = json!({
        "switch": args.switch, "dialect": args.dialect, "identity": identity.first(), "circuits": circuits,
        "questions": dialogue.turns.len(), "changes": args.change.len(), "out": args.out,
    });
    let text = format!(
        "{}: {}, {}, kept in {}",
        args.switch,
        output::counted(dialogue.turns.len(), "question"),
        output::counted(circuits.len(), "circuit"),
        args.out.display()
    );
    output::result(format, &document, &text)?;
    Ok(Exit::Done)
}

fn login(args: &BenchOcsRecordArgs) -> Result<Option<Login>, Failure> {
    let (Some(user), Some(path)) = (&args.user, &args.password_file) else { return Ok(None) };
    let text = std::fs::read_to_string(path).map_err(|error| {
        Failure::input(format!("cannot read the password from {}: {error}", path.display()))
    })?;
    let password = text.lines().next().unwrap_or_default().to_string();
    if password.is_empty() {
        return Err(Failure::input(format!("{} has no password in its first line", path.display())));
    }
    Ok(Some(Login { user: user.clone(), password }))
}

fn failure(error: &RecordError) -> Failure {
    match error {
        RecordError::Dialect(_) | RecordError::Port { .. } | RecordError::Taken { .. } => {
            Failure::input(error.to_string())
        }
        _ => Failure::of(Kind::TransferFailed, error.to_string()),
    }
}
