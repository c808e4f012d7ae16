//! Errors of a lab, one sentence each.

use std::path::PathBuf;

/// A lab that cannot be made, found or used.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum LabError {
    /// Namespaces and links belong to root.
    #[error("a lab needs root: run it with sudo")]
    NotRoot,
    /// A program is missing.
    #[error("the program '{program}' is not installed (Debian: {package})")]
    Missing {
        /// The program.
        program: &'static str,
        /// The package that has it.
        package: &'static str,
    },
    /// A specification that cannot be built.
    #[error("'{text}' is no lab: {reason}")]
    Spec {
        /// Text as typed.
        text: String,
        /// Reason for the error.
        reason: String,
    },
    /// A failure that cannot be made.
    #[error("'{text}' is no failure: {reason}")]
    Failure {
        /// Text as typed.
        text: String,
        /// Reason for the error.
        reason: String,
    },
    /// A late receiver that cannot be read.
    #[error(
        "'{text}' names no host that joins: write HOST@SECONDS, such as h9@1.5, within an hour, or h9@20%"
    )]
    Join {
        /// Text as typed.
        text: String,
    },
    /// A flow that cannot be read.
    #[error(
        "'{text}' is no flow: write FROM-TO@BEGIN..END, in seconds, with =WINDOW of 4 KiB to 1 GiB behind it where it is \
         to be bounded, such as h8-h7@2..6=64KiB"
    )]
    Flow {
        /// Text as typed.
        text: String,
    },
    /// A way to deliver that cannot be taken.
    #[error("'{text}' is no way to deliver here: {reason}")]
    Way {
        /// Text as typed.
        text: String,
        /// Reason for the error.
        reason: String,
    },
    /// A name that cannot be one.
    #[error("'{name}' is no name for a lab: use 1 to 32 letters, digits and '-'")]
    Name {
        /// The name.
        name: String,
    },
    /// A name that is taken.
    #[error(
        "there is a lab '{name}' already: choose another name, or take it down with 'polycast lab down {name}'"
    )]
    Exists {
        /// The name.
        name: String,
    },
    /// No lab of this name.
    #[error("there is no lab '{name}'; {}", there(.labs))]
    Unknown {
        /// The name.
        name: String,
        /// The labs that there are.
        labs: Vec<String>,
    },
    /// No host of this name.
    #[error("there is no host '{host}' in the lab: the hosts are h0 to h{last}, and there is 'manager'")]
    Host {
        /// The name.
        host: String,
        /// Number of the last host.
        last: u32,
    },
    /// A file or folder that cannot be used.
    #[error("cannot {action} {}: {reason}", path.display())]
    Path {
        /// Action that failed.
        action: &'static str,
        /// File or folder.
        path: PathBuf,
        /// Reason for the failure.
        reason: String,
    },
    /// Something that the system did not do.
    #[error("cannot {action}: {reason}")]
    System {
        /// Action that failed.
        action: String,
        /// Reason for the failure.
        reason: String,
    },
    /// Message of a lab's process before it ended.
    #[error("{0}")]
    Said(String),
}

impl LabError {
    /// The system did not do something.
    pub(crate) fn system(action: impl Into<String>, reason: impl ToString) -> Self {
        LabError::System { action: action.into(), reason: reason.to_string() }
    }

    /// A file or folder cannot be used.
    pub(crate) fn path(action: &'static str, path: impl Into<PathBuf>, error: &std::io::Error) -> Self {
        LabError::Path { action, path: path.into(), reason: error.to_string() }
    }
}

fn there(labs: &[String]) -> String {
    if labs.is_empty() { "there is none at all".into() } else { format!("there is {}", labs.join(", ")) }
}
