//! Streams of messages (Orca section 4): what agents say of them goes to the table of streams, what that asks
//! of the leases goes to them, and their answers come back.

use super::Inner;
use crate::convert;
use polycast_api::manager::CreateStream;
use polycast_api::manager::manager_message::Message;
use polycast_net::seal::Secret;
use polycast_protocol::leases::{AgentKey, Output};
use polycast_protocol::stream::{StreamWord, Streams, StreamsInput, StreamsOutput};
use polycast_types::Handle;
use std::collections::{BTreeMap, BTreeSet};

/// Streams whose secrets are kept; a manager has no more streams.
const SECRETS_MAX: usize = 4_096;

/// Secrets that messages of streams are sealed with, by source and stream, as the sources have sent them.
/// They are sent to receivers, and written nowhere: sources send them again to the next manager.
#[derive(Debug, Default)]
pub(super) struct Secrets(BTreeMap<(String, String), (u64, Secret)>);

impl Secrets {
    /// Keeps the secret of a stream that is about to be; `streams` are those that there are.
    fn keep(&mut self, (source, name): (&str, &str), handle: u64, secret: Vec<u8>, streams: &Streams) {
        let key = (source.to_string(), name.to_string());
        if self.0.len() >= SECRETS_MAX && !self.0.contains_key(&key) {
            self.forget_ended(streams, |_| true);
        }
        let has_room = self.0.len() < SECRETS_MAX || self.0.contains_key(&key);
        if let Some(secret) = secret.try_into().ok().filter(|_| has_room) {
            self.0.insert(key, (handle, Secret::new(secret)));
        }
    }

    fn forget(&mut self, source: &str, name: &str) {
        self.0.remove(&(source.to_string(), name.to_string()));
    }

    /// Forgets the secrets of these sources' streams, but those of streams that there are.
    fn forget_ended(&mut self, streams: &Streams, is_meant: impl Fn(&str) -> bool) {
        // Most sources have none, and to name all streams is dear.
        if !self.0.keys().any(|(source, _)| is_meant(source)) {
            return;
        }
        let there: BTreeSet<(String, String)> =
            streams.streams().map(|stream| (stream.source, stream.name)).collect();
        self.0.retain(|key, _| !is_meant(&key.0) || there.contains(key));
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
        if let StreamsInput::End { agent, name } = &input {
            self.stream_secrets.forget(&agent.name, name);
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
        let CreateStream { name, request_id: request, handle, secret, shared } = create;
        self.stream_secrets.keep((&agent.name, &name), handle, secret, &self.streams);
        self.judge_waiting(&name, &agent.name, shared);
        let (agent, handle) = (agent.clone(), Handle(handle));
        let (source, created) = (agent.name.clone(), name.clone());
        self.stream(StreamsInput::Create { agent, name, request, handle, shared, held });
        // One that was refused is not kept.
        if !self.streams.streams().any(|stream| stream.name == created && stream.source == source) {
            self.stream_secrets.forget(&source, &created);
        }
    }

    /// Forgets the secrets of an agent that has left or died, once the table of streams knows that. Another
    /// run of it may have streams already.
    pub(super) fn forget_secrets_of(&mut self, agent: &AgentKey) {
        self.stream_secrets.forget_ended(&self.streams, |source| source == agent.name);
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
                let address = |source: &str| member(source).map(|(_, member)| member.address.0);
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

#[cfg(test)]
mod tests {
    use super::super::{Around, Core, Seat};
    use super::*;
    use crate::config::ManagerConfig;
    use polycast_api::manager::agent_message::Message as Said;
    use polycast_api::manager::{Joined, Leave, ManagerMessage};
    use polycast_protocol::leases::{Join, STREAMS_FROM};
    use std::sync::Arc;
    use tokio::sync::mpsc;

    type Messages = mpsc::Receiver<Result<ManagerMessage, tonic::Status>>;

    fn join(core: &Arc<Core>, name: &str, incarnation: u64) -> (Seat, Messages) {
        let (outbox, messages) = mpsc::channel(64);
        let agent = AgentKey { name: name.into(), incarnation };
        let from = std::net::Ipv4Addr::LOCALHOST.into();
        let join = Join { agent, address: ([10, 0, 0, 1].into(), 1), from, leases: Vec::new() };
        (core.join(join, outbox, Message::Joined(Joined::default())).unwrap(), messages)
    }

    fn creates(seat: &Seat, name: &str, handle: u64) {
        let (name, request_id) = (name.to_string(), STREAMS_FROM + handle);
        seat.handle(Said::CreateStream(CreateStream {
            name,
            request_id,
            handle,
            secret: vec![7; 32],
            shared: false,
        }))
        .unwrap();
    }

    /// Runs of streams whose secrets are kept, in the order of their names.
    fn kept(core: &Core) -> Vec<(String, u64)> {
        let of = |((_, name), (handle, _)): (&(String, String), &(u64, Secret))| (name.clone(), *handle);
        core.with(|inner| inner.stream_secrets.0.iter().map(of).collect())
    }

    #[tokio::test]
    async fn the_secrets_of_a_source_end_with_it() {
        let (core, _news) = Core::new(&ManagerConfig::default(), &Around::default()).unwrap();
        let core = Arc::new(core);
        let (other, _messages) = join(&core, "b", 1);
        creates(&other, "z", 9);
        let (first, _messages) = join(&core, "a", 1);
        creates(&first, "x", 1);
        creates(&first, "y", 2);
        assert_eq!(kept(&core).len(), 3);
        // Another run of it begins.
        drop(first);
        let (second, _messages) = join(&core, "a", 2);
        assert_eq!(kept(&core), [("z".to_string(), 9)]);
        creates(&second, "x", 3);
        assert_eq!(kept(&core), [("x".to_string(), 3), ("z".to_string(), 9)]);
        second.handle(Said::Leave(Leave::default())).unwrap();
        assert_eq!(kept(&core), [("z".to_string(), 9)]);
    }

    fn joins(seat: &Seat, name: &str) {
        let join = polycast_api::manager::JoinStream { name: name.to_string(), ask: 1, sends: Some(5) };
        seat.handle(Said::JoinStream(join)).unwrap();
    }

    /// Gives the reasons for which streams were refused to an agent.
    fn refusals(messages: &mut Messages) -> Vec<String> {
        let mut found = Vec::new();
        while let Ok(message) = messages.try_recv() {
            if let Some(Message::Stream(news)) = message.unwrap().message
                && let Some(polycast_api::manager::stream_news::News::Refused(denied)) = news.news
            {
                found.push(denied.reason);
            }
        }
        found
    }

    /// Agents that ask for a stream before it is there, as after a manager's start, are judged when it comes.
    #[tokio::test(start_paused = true)]
    async fn the_policy_judges_those_that_wait_for_a_stream() {
        for shared in [false, true] {
            let (core, _news) = Core::new(&ManagerConfig::default(), &Around::default()).unwrap();
            let core = Arc::new(core);
            // To a shared stream d may not send, and e may not hear it.
            let policy =
                "[[allow]]\nsource = ['a', 'c', 'e']\nreceivers = ['a', 'c', 'd']\nobjects = ['talk']\n";
            let policy = crate::policy::Policy::from_toml(policy).unwrap();
            core.with(|inner| inner.guard.take_policy(policy.clone()));
            let [mut c, mut d, mut e] = ["c", "d", "e"].map(|name| join(&core, name, 1));
            [&c, &d, &e].into_iter().for_each(|(seat, _)| joins(seat, "talk"));
            let (source, _messages) = join(&core, "a", 1);
            source
                .handle(Said::CreateStream(CreateStream {
                    name: "talk".into(),
                    request_id: STREAMS_FROM + 1,
                    handle: 1,
                    secret: vec![7; 32],
                    shared,
                }))
                .unwrap();
            let heard = |core: &Core| core.with(|inner| inner.streams.streams().next().unwrap().receivers);
            let right: &[&str] = if shared { &["c"] } else { &["c", "d"] };
            assert_eq!(heard(&core), right, "shared: {shared}");
            assert_eq!(refusals(&mut c.1), Vec::<String>::new());
            assert_eq!(refusals(&mut d.1).len(), usize::from(shared));
            let refused = refusals(&mut e.1);
            assert!(refused.len() == 1 && refused[0].contains("policy"), "{refused:?}");
            // A policy that changes ends it for those whom it does not name any more.
            let less = "[[allow]]\nsource = ['a']\nreceivers = ['c']\nobjects = ['talk']\n";
            let less = crate::policy::Policy::from_toml(less).unwrap();
            core.with(|inner| inner.guard.take_policy(less));
            core.enforce();
            let right: &[&str] = if shared { &[] } else { &["c"] };
            assert_eq!(heard(&core), right, "shared: {shared}");
        }
    }

    /// A source that comes back and does not name its stream again has none; its secret makes room.
    #[tokio::test(start_paused = true)]
    async fn secrets_of_streams_that_are_over_make_room() {
        let (core, _news) = Core::new(&ManagerConfig::default(), &Around::default()).unwrap();
        let core = Arc::new(core);
        let (first, _messages) = join(&core, "a", 1);
        creates(&first, "x", 1);
        let (again, _messages) = join(&core, "a", 1);
        tokio::time::advance(std::time::Duration::from_secs(60)).await;
        core.with(Inner::drain);
        assert_eq!(core.with(|inner| inner.streams.streams().count()), 0);
        // The same for so many others.
        core.with(|inner| {
            for number in inner.stream_secrets.0.len()..SECRETS_MAX {
                let key = ("a".to_string(), format!("over-{number}"));
                inner.stream_secrets.0.insert(key, (1, Secret::new([7; 32])));
            }
        });
        creates(&again, "y", 2);
        creates(&again, "z", 3);
        let left = kept(&core);
        assert!(left == [("y".to_string(), 2), ("z".to_string(), 3)], "{} secrets are kept", left.len());
    }
}
