//! Streams of messages that this agent makes, joins and leaves.

use super::streams::{Audience, Created, Joined, Sends, Whereabouts};
use super::{ANSWER_TIMEOUT, ManagerLink};
use polycast_api::error::{Kind, Refusal};
use polycast_api::manager as api;
use polycast_api::manager::agent_message::Message as Said;
use polycast_net::seal::Secret;
use polycast_protocol::leases::STREAMS_FROM;
use std::hash::{BuildHasher as _, RandomState};
use tokio::sync::watch;

/// A stream that we send; it ends when this is dropped.
pub(crate) struct Published {
    link: ManagerLink,
    name: String,
    pub audience: watch::Receiver<Audience>,
}

/// A stream that we hear; left when this is dropped.
pub(crate) struct Listening {
    link: ManagerLink,
    name: String,
    pub whereabouts: watch::Receiver<Whereabouts>,
}

impl ManagerLink {
    /// Makes a stream, to which every member may send if it is `shared`. The secret is told to those that
    /// join, where there is one.
    ///
    /// # Errors
    /// There is one of this name, or the manager cannot be reached.
    pub(crate) async fn create_stream(
        &self,
        name: &str,
        sends: Sends,
        secret: Option<Secret>,
        shared: bool,
    ) -> Result<Published, Refusal> {
        let (audience, mut seen) = watch::channel(Audience::default());
        let request = STREAMS_FROM + self.fresh_request();
        {
            let mut table = self.table();
            if table.streams.created.contains_key(name) || table.streams.joined.contains_key(name) {
                let message = format!("the stream '{name}' is sent or heard here already");
                return Err(Refusal::new(Kind::StreamTaken, message));
            }
            let created = Created { request, sends, secret, shared, audience };
            let word = created.word(name);
            table.streams.created.insert(name.to_string(), created);
            table.say(word);
        }
        let published = Published { link: self.clone(), name: name.into(), audience: seen.clone() };
        let made = seen.wait_for(|audience| audience.made.is_some());
        let Ok(Ok(audience)) = tokio::time::timeout(ANSWER_TIMEOUT, made).await else {
            let message = format!("the manager at {} does not answer", self.manager());
            return Err(Refusal::new(Kind::ManagerUnreachable, message));
        };
        audience.made.clone().unwrap_or(Ok(()))?;
        drop(audience);
        Ok(published)
    }

    /// Joins a stream, and sends to it if it is shared. What the manager says of it, a refusal too, is seen
    /// in what this gives.
    ///
    /// # Errors
    /// It is sent or heard here already.
    pub(crate) fn join_stream(&self, name: &str, sends: Sends) -> Result<Listening, Refusal> {
        let (sender, whereabouts) = watch::channel(Whereabouts::Unknown);
        let mut table = self.table();
        if table.streams.created.get(name).is_some_and(|created| !created.shared) {
            let message = format!("the stream '{name}' is sent by this agent, which cannot join it");
            return Err(Refusal::new(Kind::ReceiverTwice, message));
        }
        if table.streams.joined.contains_key(name) {
            let message = format!("the stream '{name}' is heard here already");
            return Err(Refusal::new(Kind::StreamTaken, message));
        }
        let joined = Joined { ask: RandomState::new().hash_one(name), sends, whereabouts: sender };
        let word = joined.word(name);
        table.streams.joined.insert(name.to_string(), joined);
        table.say(word);
        Ok(Listening { link: self.clone(), name: name.into(), whereabouts })
    }
}

impl Drop for Published {
    fn drop(&mut self) {
        let mut table = self.link.table();
        if let Some(created) = table.streams.created.remove(&self.name) {
            // The manager ends the lease itself.
            table.held.retain(|_, held| held.lease.request_id != created.request);
            table.say(Said::EndStream(api::EndStream { name: self.name.clone() }));
        }
    }
}

impl Drop for Listening {
    fn drop(&mut self) {
        let mut table = self.link.table();
        table.streams.joined.remove(&self.name);
        table.say(Said::LeaveStream(api::LeaveStream { name: self.name.clone() }));
    }
}
