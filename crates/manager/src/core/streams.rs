//! Streams of messages (Orca section 4): what agents say of them goes to the table of streams, what that wants of the leases
//! goes to them, and their answers come back.

use super::Inner;
use crate::convert;
use polycast_api::manager::CreateStream;
use polycast_api::manager::manager_message::Message;
use polycast_protocol::leases::{AgentKey, Output};
use polycast_protocol::stream::{StreamsInput, StreamsOutput};
use polycast_types::Handle;
use std::net::Ipv4Addr;

impl Inner {
    /// Hands something to the table of streams, and does what follows from it.
    pub(super) fn stream(&mut self, input: StreamsInput) {
        let now = self.now();
        self.streams.handle(now, input);
        self.drain();
    }

    /// An agent makes a stream. It may have the path already, from before its session broke or this manager began.
    pub(super) fn create_stream(&mut self, agent: &AgentKey, create: CreateStream) {
        let request = agent.request(create.request_id);
        let lease = self.machine.leases().find(|lease| *lease.key == request);
        let held =
            lease.map(|lease| (lease.grant.plan.clone(), lease.grant.receiver_names().cloned().collect()));
        let CreateStream { name, request_id: request, handle } = create;
        let (agent, handle) = (agent.clone(), Handle(handle));
        self.stream(StreamsInput::Create { agent, name, request, handle, held });
    }

    /// Does what the table of streams wants done.
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
                let news = convert::stream_news(name, word, &address);
                self.tell(&agent, Message::Stream(news));
            }
        }
    }
}

/// What the table of streams has to hear of the leases.
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
        Output::Gone { agent } => Some(StreamsInput::Gone { agent: agent.clone() }),
        _ => None,
    }
}
