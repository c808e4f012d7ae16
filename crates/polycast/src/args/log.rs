//! What can be typed of logs.

use clap::{ArgAction, Args as Arguments, ValueEnum};

/// Level of logs that the user has not asked for.
pub(crate) const USUAL: &str = "warn";

/// What is logged.
#[derive(Arguments, Debug)]
pub(crate) struct LogOptions {
    /// What to log to standard error: error, warn, info, debug, trace, or by part
    /// (info,polycast_net=debug)
    #[arg(long, global = true, value_name = "LEVEL", env = "POLYCAST_LOG", default_value = USUAL)]
    #[arg(display_order = 101)]
    pub log: String,
    /// Log more of Polycast's own parts: -v for info, -vv for debug, -vvv for trace
    #[arg(long, short, global = true, action = ArgAction::Count, display_order = 103)]
    pub verbose: u8,
    /// Say nothing but results, errors and what others have to type: no progress, no notes
    #[arg(long, short, global = true, display_order = 104, conflicts_with = "verbose")]
    pub quiet: bool,
    /// How log lines are written
    #[arg(long, global = true, value_name = "FORMAT", default_value = "text", display_order = 102)]
    pub log_format: LogFormat,
}

/// The form of log lines.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum LogFormat {
    /// For people
    Text,
    /// One JSON object a line
    Json,
}
