//! `polycast`: deliver one object to many machines.
//!
//! The binary parses what was typed, calls the libraries, and prints. Data goes to standard output,
//! everything else to standard error.
#![cfg_attr(
    not(feature = "cluster"),
    allow(dead_code, reason = "much of what commands share is for those that this build lacks")
)]

mod args;
mod cancel;
mod commands;
mod commit;
#[cfg(all(test, feature = "pages", feature = "research"))]
mod documents;
mod exit;
mod fold;
mod hostlist;
mod logging;
mod object;
#[cfg(feature = "otel")]
mod otel;
mod output;
mod progress;
mod reference;
mod report;
mod screen;
#[cfg(feature = "cluster")]
mod table;

fn main() -> std::process::ExitCode {
    let outcome = match args::parse() {
        Ok(args) => commands::run(args),
        Err(outcome) => outcome,
    };
    outcome.into()
}
