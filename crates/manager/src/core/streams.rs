//! Streams of messages (Orca section 4): what agents say of them goes to the table of streams, what that asks
//! of the leases goes to them, and their answers come back.

use super::Inner;
use crate::convert;
use polycast_api::manager::CreateStream;
use polycast_api::manager::manager_message::Message;
use polycast_net::seal::Secret;
use polycast_protocol::leases::{AgentKey, Output};
use polycast_protocol::stream::{StreamWord, StreamsInput, StreamsOutput};
use polycast_types::Handle;
use std::collections::BTreeMap;
use std::net::Ipv4Addr;

/// Streams whose secrets are kept; a manager has no more streams.
const SECRETS_MAX: usize = 4_096;

/// Secrets that messages of streams are sealed with, by source and stream, as the sources have sent them.
/// They are sent to receivers, and written nowhere: sources send them again to the next manager.
#[derive(Debug, Default)]
pub(super) struct Secrets(BTreeMap<(String, String), (u64, Secret)>);

impl Secrets {
    fn keep(&mut self, source: &str, name: &str, handle: u64, secret: Vec<u8>) {
        let key = (source.to_string(), name.to_string());
        let has_room = self.0.len() < SECRETS_MAX || self.0.contains_key(&key);
        if let Some(secret) = secret.try_into().ok().filter(|_| has_room) {
            self.0.insert(key, (handle, Secret::new(secret)));
        }
    }

    fn forget(&mut self, source: &str, name: &str) {
        self.0.remove(&(source.to_string(), name.to_string()));
    }

    fn forget_all_of(&mut self, source: &str) {
        self.0.retain(|(other, _), _| other != source);
    }

    /// Returns the secret of a run of a stream; empty if none was sent.
    fn of(&self, source: &str, name: &str, handle: u64) -> Vec<u8> {
        let kept = self.0.get(&(source.to_string(), name.to_string()));
        kept.filter(|(of, _)| *of == handle).map(|(_, secret)| secret.reveal().to_vec()).unwrap_or_default()
    }
}

impl Inner {
    /// Hands something to the table of streams, and does what follows from it.
    pub(super) fn stream(&mut self, input: StreamsInput) {
        let now = self.now();
        match &input {
            StreamsInput::End { agent, name } => self.stream_secrets.forget(&agent.name, name),
            StreamsInput::Gone { agent } => self.stream_secrets.forget_all_of(&agent.name),
            _ => {}
        }
        self.streams.handle(now, input);
        self.drain();
    }

    /// An agent makes a stream. It may have the path already, from before its session broke or this manager
    /// began.
    pub(super) fn create_stream(&mut self, agent: &AgentKey, create: CreateStream) {
        let request = agent.request(create.request_id);
        let lease = self.machine.leases().find(|lease| *lease.key == request);
        let held =
            lease.map(|lease| (lease.grant.plan.clone(), lease.grant.receiver_names().cloned().collect()));
        let CreateStream { name, request_id: request, handle, secret } = create;
        self.stream_secrets.keep(&agent.name, &name, handle, secret);
        let (agent, handle) = (agent.clone(), Handle(handle));
        let (source, created) = (agent.name.clone(), name.clone());
        self.stream(StreamsInput::Create { agent, name, request, handle, held });
        // One that was refused is not kept.
        if !self.streams.streams().any(|stream| stream.name == created && stream.source == source) {
            self.stream_secrets.forget(&source, &created);
        }
    }

    /// Carries out what the table of streams asks for.
    pub(super) fn serve_stream(&mut self, output: StreamsOutput) {
        match output {
            StreamsOutput::Lease(input) => {
                let now = self.now();
                self.machine.handle(now, input);
            }
            StreamsOutput::Tell { agent, name, word } => {
                tracing::info!(agent = %agent.name, stream = name, ?word, "stream");
                let member = |source: &str| self.machine.members().find(|(name, _)| *name == source);
                let address =
                    |source: &str| member(source).map(|(_, member)| Ipv4Addr::from(member.address.0));
                let secret = match &word {
                    StreamWord::Joined { source, handle, .. } => {
                        self.stream_secrets.of(source, &name, handle.0)
                    }
                    _ => Vec::new(),
                };
                let joined = match &word {
                    StreamWord::Joined { source, channel, .. } => Some((source.clone(), channel.clone())),
                    _ => None,
                };
                let news = Message::Stream(convert::stream_news(name, word, secret, &address));
                match joined {
                    Some((source, channel)) => {
                        self.tell_joined(&source, |plan| plan.channel == channel, &agent, news);
                    }
                    None => self.tell(&agent, news),
                }
            }
        }
    }
}

/// Converts an output of the leases into the input that the table of streams needs.
pub(super) fn heard(output: &Output) -> Option<StreamsInput> {
    match output {
        Output::Response { request, response } if request.is_stream() => {
            Some(StreamsInput::Response { request: request.clone(), response: response.clone() })
        }
        Output::Extended { request, result } if request.is_stream() => {
            Some(StreamsInput::Changed { request: request.clone(), result: result.clone() })
        }
        Output::Replanned { request, plan, .. } if request.is_stream() => {
            Some(StreamsInput::Replanned { request: request.clone(), plan: plan.clone() })
        }
        Output::Released { request, .. } if request.is_stream() => {
            Some(StreamsInput::Ended { request: request.clone() })
        }
        Output::Gone { agent, .. } => Some(StreamsInput::Gone { agent: agent.clone() }),
        _ => None,
    }
}
