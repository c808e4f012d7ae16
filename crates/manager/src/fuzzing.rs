//! The manager without sockets, for fuzzers: what any machine may send it comes in as bytes. No program uses
//! this.

use crate::config::ManagerConfig;
use crate::convert;
use crate::core::{Around, Core, Seat};
use polycast_api::error::{Refusal, check_version};
use polycast_api::manager::{self as api, AgentMessage, ManagerMessage, agent_message, manager_message};
use polycast_api::settings::SettingsError;
use prost::Message;
use std::net::Ipv4Addr;
use std::sync::Arc;
use tokio::runtime::Handle;
use tokio::sync::mpsc;
use tonic::Status;

/// Answers that may wait for a session.
const MESSAGES_MAX: usize = 4_096;

/// A session: its place, and what it is answered.
type Session = (Seat, mpsc::Receiver<Result<ManagerMessage, Status>>);

/// A manager and sessions with it, by number.
#[derive(Debug)]
pub struct Sessions {
    core: Arc<Core>,
    sessions: Vec<Option<Session>>,
}

impl Sessions {
    /// A manager with these settings, and places for so many sessions.
    ///
    /// # Errors
    /// The settings are wrong.
    pub fn new(runtime: &Handle, settings: &str, count: usize) -> Result<Self, SettingsError> {
        let _inside = runtime.enter();
        let (core, _) = Core::new(&ManagerConfig::from_toml(settings)?, &Around::default())?;
        Ok(Sessions { core: Arc::new(core), sessions: (0..count).map(|_| None).collect() })
    }

    /// A message of a session, as gRPC gives it: the first has to be a Join. A session whose message is
    /// refused ends. Gives the answers, as gRPC takes them.
    pub fn hear(&mut self, number: usize, message: &[u8]) -> Vec<Vec<u8>> {
        let Ok(AgentMessage { message: Some(message) }) = AgentMessage::decode(message) else {
            return Vec::new();
        };
        let at = number % self.sessions.len().max(1);
        let Some(session) = self.sessions.get_mut(at) else { return Vec::new() };
        let went_well = match session.as_ref() {
            Some((seat, _)) => seat.handle(message),
            None => join(&self.core, message).map(|joined| *session = Some(joined)),
        };
        let mut answers = Vec::new();
        if let Some((_, inbox)) = session {
            while let Ok(answer) = inbox.try_recv() {
                answers.extend(answer.ok().map(|answer| answer.encode_to_vec()));
            }
        }
        if went_well.is_err() {
            *session = None;
        }
        // To show the state is to read all of it.
        let _ = self.core.snapshot();
        answers
    }
}

fn join(core: &Arc<Core>, message: agent_message::Message) -> Result<Session, Refusal> {
    let agent_message::Message::Join(join) = message else {
        return Err(Refusal::new(polycast_api::error::Kind::Invalid, "a session begins with a Join"));
    };
    check_version(join.protocol_version)?;
    let (outbox, inbox) = mpsc::channel(MESSAGES_MAX);
    let joined = manager_message::Message::Joined(api::Joined::default());
    // From where it says that it is: what the manager asks of the connection is not fuzzed here.
    let from = join.address.parse().unwrap_or(Ipv4Addr::LOCALHOST.into());
    Ok((core.join(convert::join(join, from)?, outbox, joined)?, inbox))
}
