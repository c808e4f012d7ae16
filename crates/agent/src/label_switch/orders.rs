//! Requests to the process of label switches over its Unix socket: a line of JSON, and a line as an answer.

use super::switches::{Devices, lock};
use crate::forwarder::daemon::listen;
use serde::{Deserialize, Serialize};
use serde_json::json;
use std::io::{self, BufRead as _, BufReader, Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// The longest line that is read.
const LINE_LEN_MAX: u64 = 4 << 10;
/// A connection on which nothing is said for so long is closed.
const WORDS_WITHIN: Duration = Duration::from_secs(1);

/// An order.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "do", rename_all = "kebab-case", deny_unknown_fields)]
pub enum Order {
    /// Tell what the switches have counted.
    Status,
    /// Have a switch forward nothing any more, while all its links stay up: so fails one whose forwarding has
    /// died.
    Silence {
        /// The switch, such as `spine0`.
        switch: String,
    },
}

/// Counters of a switch.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SwitchStatus {
    /// Its name.
    pub name: String,
    /// Its number among the network's nodes.
    pub node: u32,
    /// Labelled packets taken in.
    pub packets: u64,
    /// Copies sent.
    pub copies: u64,
    /// Sessions that it has an entry for.
    pub entries: u64,
    /// Groups whose programs' packets a leaf takes in and hands out.
    #[serde(default)]
    pub groups: u64,
    /// Packets dropped, for all reasons; the log names each reason once.
    pub dropped: u64,
    /// Sessions that the agents of a leaf keep labels for.
    pub labels: u64,
    /// Sessions for which the rack also keeps the spine label of its pod.
    pub spine_labels: u64,
    /// Number of times that a leaf has replaced a silent agent.
    pub agents_lost: u64,
    /// Number of times that a replaced agent has sent a message again: it was only late.
    pub agents_returned: u64,
}

/// Answers at a socket, in a thread.
pub(super) fn answer(path: &Path, devices: &Arc<Mutex<Devices>>) -> io::Result<()> {
    let listener = listen(path)?;
    let devices = Arc::clone(devices);
    std::thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            if let Err(error) = serve(stream, &devices) {
                tracing::debug!(%error, "an order was not answered");
            }
        }
    });
    Ok(())
}

fn serve(mut stream: UnixStream, devices: &Mutex<Devices>) -> io::Result<()> {
    stream.set_read_timeout(Some(WORDS_WITHIN))?;
    stream.set_write_timeout(Some(WORDS_WITHIN))?;
    let mut line = String::new();
    BufReader::new((&mut stream).take(LINE_LEN_MAX)).read_line(&mut line)?;
    let answer = match serde_json::from_str(&line) {
        Err(error) => json!({ "error": format!("that is no order: {error}") }),
        Ok(Order::Status) => json!({ "switches": lock(devices).status() }),
        Ok(Order::Silence { switch }) => match lock(devices).silence(&switch) {
            Ok(()) => json!({ "silenced": switch }),
            Err(error) => json!({ "error": error }),
        },
    };
    writeln!(stream, "{answer}")
}
