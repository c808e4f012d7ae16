//! Inputs of a directory, and the messages that it sends.

use crate::leases::AgentKey;
use alloc::collections::BTreeSet;
use alloc::string::String;
use alloc::vec::Vec;
use polycast_types::{AppId, Duration, ObjectId};

/// A root hash.
pub type Root = [u8; 32];

/// Bounds and times.
#[derive(Clone, Copy, Debug)]
pub struct DirectoryConfig {
    /// Time for which agents that request the same object are gathered before they are served together.
    pub window: Duration,
    /// Time after its start during which a manager may not know yet which agents have which objects: until
    /// then no agent reads an origin, and no version is committed.
    pub settle: Duration,
    /// Time that a receiver may take to report an object itself after its sender has reported the arrival.
    pub arrive: Duration,
    /// Maximum number of remembered pairs of an agent and an object that it has; objects beyond it are not
    /// found.
    pub holds_max: usize,
    /// Maximum number of requests at a time, including subscriptions.
    pub wishes_max: usize,
    /// Maximum number of topics.
    pub topics_max: usize,
    /// Number of times an object is sent to the same receiver before the receiver is notified why it does not
    /// get it.
    pub tries_max: u32,
    /// Time that an agent may take to begin sending an object, where its receiver reports that nothing
    /// arrives.
    pub begin: Duration,
}

impl Default for DirectoryConfig {
    fn default() -> Self {
        DirectoryConfig {
            window: Duration::from_millis(50),
            settle: Duration::from_millis(4_000),
            arrive: Duration::from_millis(10_000),
            holds_max: 1 << 18,
            wishes_max: 1 << 16,
            topics_max: 4_096,
            tries_max: 3,
            begin: Duration::from_millis(20_000),
        }
    }
}

/// Options of an agent's request for an object.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Wish {
    /// It can get the bytes from where they are from at first.
    pub can_fill: bool,
    /// It waits until an agent has it; otherwise it is told at once if none has.
    pub waits: bool,
    /// It gets the bytes already, as an earlier manager has told it to.
    pub fills: bool,
}

/// A version of a topic.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Version {
    /// Its number; versions of a topic only rise.
    pub number: u64,
    /// The object that it is.
    pub object: ObjectId,
}

/// Events that the directory handles.
#[derive(Clone, Debug)]
pub enum DirectoryInput {
    /// A session of an agent has begun. It says again what it has and what it asks for, and then
    /// [`DirectoryInput::Told`].
    Arrived {
        /// The agent.
        agent: AgentKey,
    },
    /// It has said everything: what it has not named again is not there any more.
    Told {
        /// The agent.
        agent: AgentKey,
    },
    /// An agent has left or died.
    Gone {
        /// The agent.
        agent: AgentKey,
    },
    /// An agent has an object, verified.
    Have {
        /// The agent.
        agent: AgentKey,
        /// The object.
        object: ObjectId,
        /// Its length in bytes.
        length: u64,
        /// Its root hash, where that is known.
        root: Option<Root>,
        /// For how long it has had it. Of different objects of one id the youngest counts.
        age: Duration,
    },
    /// It has it no more.
    Lost {
        /// The agent.
        agent: AgentKey,
        /// The object.
        object: ObjectId,
    },
    /// An agent asks for an object that it has not. Ends with its [`DirectoryInput::Have`],
    /// [`DirectoryInput::Unwant`] or [`DirectoryOutput::Denied`].
    Want {
        /// The agent.
        agent: AgentKey,
        /// The object.
        object: ObjectId,
        /// Options.
        wish: Wish,
    },
    /// It asks for it no more.
    Unwant {
        /// The agent.
        agent: AgentKey,
        /// The object.
        object: ObjectId,
    },
    /// Nothing of an object that it asks for has come for a while. Another agent may send it than the one
    /// that was told to.
    Unserved {
        /// The agent.
        agent: AgentKey,
        /// The object.
        object: ObjectId,
        /// The one that was told to send it waits for its path: it is not at fault. Another one that sends
        /// nothing now may be faster, but no origin is read.
        waits: bool,
    },
    /// An agent that was told to get the bytes from their origin could not.
    FillFailed {
        /// The agent.
        agent: AgentKey,
        /// The object.
        object: ObjectId,
        /// One sentence.
        reason: String,
    },
    /// An agent serves these still; said again in every session.
    Serving {
        /// The agent.
        agent: AgentKey,
        /// The numbers of the serves.
        serves: Vec<u64>,
    },
    /// The hosts that are drained, all of them: they get nothing new, and send only what no other can.
    Drained {
        /// Names of their agents.
        hosts: BTreeSet<String>,
    },
    /// Results of a serve for some of its receivers.
    Served {
        /// The agent that served.
        agent: AgentKey,
        /// The number of the serve.
        serve: u64,
        /// The receivers' names, and for those that did not get it, why.
        outcomes: Vec<(String, Result<(), String>)>,
    },
    /// An agent asks for every version of a topic. Refused by [`DirectoryOutput::TopicRefused`].
    Subscribe {
        /// The agent.
        agent: AgentKey,
        /// The application that the topic belongs to.
        app: AppId,
        /// The topic's name.
        topic: String,
    },
    /// It does not any more.
    Unsubscribe {
        /// The agent.
        agent: AgentKey,
        /// The topic's name.
        topic: String,
    },
    /// An agent has a new version, and has said that it has the object. Answered by
    /// [`DirectoryOutput::Published`] or [`DirectoryOutput::TopicRefused`].
    Publish {
        /// The agent.
        agent: AgentKey,
        /// The application that the topic belongs to.
        app: AppId,
        /// The topic's name.
        topic: String,
        /// The version.
        version: Version,
        /// Time that subscribers are waited for; `None`: until they have it, or have failed.
        patience: Option<Duration>,
    },
    /// A version of a topic that an earlier manager has committed, as an agent reports it.
    Committed {
        /// The agent.
        agent: AgentKey,
        /// The application that the topic belongs to.
        app: AppId,
        /// The topic's name.
        topic: String,
        /// The version.
        version: Version,
    },
}

/// Messages that the driver has to send.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum DirectoryOutput {
    /// An agent is to send an object to these; where it sends it to others already, they are added.
    Serve {
        /// The agent that has it.
        holder: AgentKey,
        /// The number of the serve.
        serve: u64,
        /// The object.
        object: ObjectId,
        /// The receivers' names.
        receivers: Vec<String>,
    },
    /// An agent is to get an object from its origin: no agent has it, and no other is told to. It may be told
    /// twice.
    Fill {
        /// The agent.
        agent: AgentKey,
        /// The object.
        object: ObjectId,
    },
    /// An agent does not get an object.
    Denied {
        /// The agent.
        agent: AgentKey,
        /// The object.
        object: ObjectId,
        /// Reason.
        why: WishRefusal,
    },
    /// To a subscriber. The first one says that versions published from now on are for this agent, too.
    News {
        /// The agent.
        agent: AgentKey,
        /// The topic's name.
        topic: String,
        /// The version; `None` where none has been published.
        version: Option<Version>,
        /// Set if it is committed: all agents that could get it have it, and so has this one. Otherwise it is
        /// about to come.
        committed: bool,
    },
    /// To a publisher: the version is committed.
    Published {
        /// The agent.
        agent: AgentKey,
        /// The topic's name.
        topic: String,
        /// The version's number.
        number: u64,
        /// Subscribers that have it.
        have: Vec<String>,
        /// Subscribers that do not, each with the reason.
        missing: Vec<(String, Missed)>,
    },
    /// To a publisher or subscriber: it cannot be.
    TopicRefused {
        /// The agent.
        agent: AgentKey,
        /// The topic's name.
        topic: String,
        /// The number of the version that was published; `None` for a subscriber.
        number: Option<u64>,
        /// Reason.
        why: TopicRefusal,
    },
}

/// Reasons why an agent does not get an object.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum WishRefusal {
    /// There is no agent to get it from.
    #[error("no agent has it, and no process that asks for it says where to get it from")]
    Nobody,
    /// All who could get it have failed.
    #[error("no agent has it, and it cannot be got from its origin: {0}")]
    Origin(String),
    /// It was sent, and did not arrive.
    #[error("it could not be received: {0}")]
    Failed(String),
    /// Its host gets nothing new.
    #[error("{0} is being drained: polycast drain {0} --undo brings it back")]
    Draining(String),
    /// There are too many wishes.
    #[error("the manager has {0} wishes for objects already, which is its limit")]
    Full(usize),
}

/// Reasons why a subscriber has not got a version.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Missed {
    /// It could not be given the version's object.
    #[error("{0}")]
    Object(WishRefusal),
    /// The manager could not ask for the version's object on its behalf.
    #[error("{0}")]
    Topic(TopicRefusal),
    /// It has unsubscribed in the meantime.
    #[error("it has unsubscribed")]
    Unsubscribed,
    /// Its agent has gone in the meantime.
    #[error("its agent has died or left")]
    Gone,
    /// The publisher's time was up.
    #[error("it did not have it in time")]
    Late,
    /// It had the object, and has lost it before the version was committed.
    #[error("it did not keep it")]
    NotKept,
    /// The version had been committed before, without this subscriber.
    #[error("it did not have it when it was committed")]
    Earlier,
}

impl TopicRefusal {
    /// The number that a version may have in place of the one that was refused, for a publisher that has
    /// named none; at once, or when the one that is on its way is committed.
    #[must_use]
    pub fn next_number(&self) -> Option<u64> {
        match self {
            TopicRefusal::NotAbove { last, .. } | TopicRefusal::Staging { staging: last, .. } => {
                last.checked_add(1)
            }
            _ => None,
        }
    }
}

/// Reasons why a topic cannot be published or subscribed to.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum TopicRefusal {
    /// The name cannot be one.
    #[error("'{0}' cannot be a topic's name: take 1 to 255 letters without spaces, commas or slashes")]
    BadName(String),
    /// It is another application's.
    #[error("the topic '{0}' belongs to another application")]
    OtherApplication(String),
    /// The version is not above the last one.
    #[error(
        "version {number} of '{topic}' is not above version {last}, which is there already: versions only rise"
    )]
    NotAbove {
        /// The topic's name.
        topic: String,
        /// The version.
        number: u64,
        /// The last one.
        last: u64,
    },
    /// Another version is on its way.
    #[error("version {staging} of '{topic}' is on its way: publish the next one when it is committed")]
    Staging {
        /// The topic's name.
        topic: String,
        /// The version.
        staging: u64,
    },
    /// The publisher has not got the object.
    #[error("the publisher of '{0}' does not have the object")]
    NotHeld(String),
    /// No agent has the object any more.
    #[error("no agent has the object any more that was to be version {number} of '{topic}'")]
    Vanished {
        /// The topic's name.
        topic: String,
        /// The version.
        number: u64,
    },
    /// A limit is reached.
    #[error("the manager has {0} topics or wishes already, which is its limit")]
    Full(usize),
}
