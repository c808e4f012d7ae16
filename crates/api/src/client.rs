//! A client of the agent on this host, over its Unix socket.
//!
//! ```no_run
//! use polycast_api::client::{AgentClient, Receivers, SendOptions};
//! use polycast_types::{AppId, DataId};
//!
//! # async fn example() -> Result<(), polycast_api::client::ClientError> {
//! let agent = AgentClient::connect(&polycast_api::client::default_socket()).await?;
//! let session = agent.register(AppId::default(), u64::from(std::process::id())).await?;
//! session.add(DataId(42), "/data/model.bin".as_ref()).await?;
//! let mut transfer = session.send(DataId(42), &Receivers::All, &SendOptions::default()).await?;
//! while let Some(event) = transfer.next().await? {
//!     println!("{event:?}");
//! }
//! session.unregister().await?;
//! # Ok(())
//! # }
//! ```

mod groups;
mod objects;

pub use objects::{Fetching, Files, Piece, Taking, ToPut, Versions, Wanted, Watching};

use crate::PROTOCOL_VERSION;
use crate::agent::agent_client::AgentClient as Stub;
use crate::agent::{
    AddRequest, Caller, CreateStreamRequest, DeleteRequest, EndStreamRequest, ExtendRequest, Granted, Joined,
    LeaveStreamRequest, ListRequest, ListStreamsRequest, Message, Object, PinRequest, ReadRequest,
    ReceiveMessagesRequest, ReceiveMessagesResponse, RegisterRequest, RegisterResponse, RemoveRequest,
    RemoveResponse, SendEvent, SendMessagesRequest, SendMessagesResponse, SendRequest, SlowReceivers,
    StatusRequest, StatusResponse, Stream, UnregisterRequest, WithdrawRequest,
};
use crate::error::{Kind, Refusal, check_version, innermost};
use hyper_util::rt::TokioIo;
use polycast_types::{AppId, DataId, Duration};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use tokio::net::UnixStream;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Status, Streaming};

/// While a call waits the agent is asked so often whether it lives; one that does not say so in time is given
/// up: it may be stopped. An agent that waits for a slow disk may be silent for a while, too.
const ALIVE_INTERVAL: std::time::Duration = std::time::Duration::from_secs(10);
const ALIVE_WITHIN: std::time::Duration = std::time::Duration::from_secs(180);
/// The longest message of an agent, in bytes: it lists all of its objects in one.
const MESSAGE_LEN_MAX: usize = 256 << 20;

/// Reason why a call failed.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// No agent listens on the socket.
    #[error("no agent listens on {}: {reason}; start one with `polycast agent`", socket.display())]
    Unreachable {
        /// The socket.
        socket: PathBuf,
        /// Reason.
        reason: String,
    },
    /// An agent may listen, but this user may not use its socket.
    #[error(
        "this user may not use the agent's socket {}: run as the agent's user, or have the agent share its socket (socket-mode, \
         socket-group)",
        socket.display()
    )]
    Forbidden {
        /// The socket.
        socket: PathBuf,
    },
    /// The listener is no agent of this user's or root's, in a folder that every user can make or write to.
    #[error(
        "{} is no socket of this user's agents: user {user} listens there, in a folder that every user can make or write to; name the \
         agent's socket, in a folder of its user's alone (--socket, POLYCAST_SOCKET)",
        socket.display()
    )]
    Stranger {
        /// The socket.
        socket: PathBuf,
        /// The number of the user who listens.
        user: u32,
    },
    /// The agent turned the call down.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// The connection to the agent ended during the call.
    #[error("the agent went away: {0}")]
    Lost(String),
    /// The path cannot be told to the agent.
    #[error("{} is not a path that can be added: {reason}", path.display())]
    Path {
        /// The path.
        path: PathBuf,
        /// Reason.
        reason: String,
    },
}

impl ClientError {
    /// Returns the kind of the refusal, if the agent refused.
    #[must_use]
    pub fn kind(&self) -> Option<Kind> {
        match self {
            ClientError::Refused(refusal) => Some(refusal.kind),
            _ => None,
        }
    }
}

impl From<Status> for ClientError {
    fn from(status: Status) -> Self {
        if let Some(refusal) = Refusal::from_status(&status) {
            return ClientError::Refused(refusal);
        }
        match status.code() {
            Code::Unimplemented => ClientError::Refused(Refusal::new(
                Kind::Version,
                format!(
                    "the agent is of another version than this program (protocol {PROTOCOL_VERSION}): install the same"
                ),
            )),
            _ => ClientError::Lost(innermost(&status)),
        }
    }
}

/// Selection of the parts of directories that an object is made of, and its users.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Selected {
    /// Patterns such as `*.tmp` of what is left out.
    pub exclude: Vec<String>,
    /// Takes the targets of links in place of the links.
    pub follow: bool,
    /// Other users of this host do not see it.
    pub private: bool,
}

/// Returns the socket that the agent of this user listens on unless configured otherwise: in the user's
/// run-time folder, or without one beside the agents' stores in shared memory.
#[must_use]
pub fn default_socket() -> PathBuf {
    match std::env::var_os("XDG_RUNTIME_DIR") {
        Some(folder) if !folder.is_empty() => PathBuf::from(folder).join("polycast-agent.sock"),
        _ => default_folder().join("agent.sock"),
    }
}

/// Folder of this user's agents in shared memory: each has its store in a folder of its name below this one.
#[must_use]
pub fn default_folder() -> PathBuf {
    PathBuf::from(format!("/dev/shm/polycast-{}", rustix::process::geteuid().as_raw()))
}

/// Receivers of a transfer.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Receivers {
    /// All agents that the manager knows, except the sending one.
    All,
    /// The agents of these names.
    Named(Vec<String>),
}

/// Policy for a receiver that is slower than the others.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Slow {
    /// All go as fast as the slowest.
    Wait,
    /// One that has held the others for this long, and without which they are faster, catches up at its own
    /// pace.
    CatchUp {
        /// Time; `None` leaves it to the agent.
        after: Option<Duration>,
    },
    /// As before, but it is given up.
    Drop {
        /// Time; `None` leaves it to the agent.
        after: Option<Duration>,
    },
}

/// Settings of a transfer; `Default` is right for most.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub struct SendOptions {
    /// Receivers that are not done this long after the call have failed.
    pub deadline: Option<Duration>,
    /// Policy for slow receivers; `None` leaves it to the agent.
    pub slow: Option<Slow>,
    /// Lets the transfer continue when this client has gone.
    pub detached: bool,
    /// Time that the path is requested for, from the grant on; `None`: as long as the transfer takes.
    pub lease: Option<Duration>,
    /// Name of the fabric that is to carry it, if it can.
    pub fabric: Option<String>,
    /// No other one is.
    pub or_fail: bool,
    /// The byte that the stream begins with.
    pub first_byte: u64,
    /// Settings of a transfer over trees, such as `rto-ms=20,increase=5mbit`; none where it is empty.
    pub pull: String,
}

/// Time that a read waits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Wait {
    /// Until the object is there, at most this long (`None`: without a limit), whether or not a source has
    /// begun to send it.
    UntilReady(Option<Duration>),
    /// Only while it is being received.
    WhileComing(Option<Duration>),
}

/// A connection to the agent.
#[derive(Clone, Debug)]
pub struct AgentClient {
    stub: Stub<Channel>,
}

/// Returns true if the system does not let this user in.
fn is_forbidden(error: &(dyn std::error::Error + 'static)) -> bool {
    std::iter::successors(Some(error), |error| error.source())
        .filter_map(|error| error.downcast_ref::<std::io::Error>())
        .any(|error| error.kind() == std::io::ErrorKind::PermissionDenied)
}

/// A user who listens where another one's agent is looked for.
#[derive(Debug, thiserror::Error)]
#[error("user {0} listens there")]
struct StrangersNumber(u32);

fn stranger_of(error: &(dyn std::error::Error + 'static)) -> Option<u32> {
    std::iter::successors(Some(error), |error| error.source())
        .filter_map(|error| {
            error.downcast_ref::<std::io::Error>()?.get_ref()?.downcast_ref::<StrangersNumber>()
        })
        .map(|stranger| stranger.0)
        .next()
}

/// Returns true if any user of this host can have put a socket there: in a folder that all can write to, or
/// in shared memory, where all can make the folder in which another user expects an agent.
fn may_be_anyones(socket: &Path) -> bool {
    let folder = socket.parent().filter(|folder| !folder.as_os_str().is_empty());
    let folder = std::fs::metadata(folder.unwrap_or(Path::new(".")));
    socket.starts_with(default_folder()) || folder.is_ok_and(|folder| folder.mode() & 0o002 != 0)
}

/// Connects to a socket. An agent's word is taken for which files have an object's bytes: where another user
/// may have been there first, it is this user's own, or root's.
async fn open(path: PathBuf) -> std::io::Result<UnixStream> {
    let stream = UnixStream::connect(&path).await?;
    if may_be_anyones(&path) {
        let user = stream.peer_cred()?.uid();
        if user != 0 && user != rustix::process::geteuid().as_raw() {
            return Err(std::io::Error::other(StrangersNumber(user)));
        }
    }
    Ok(stream)
}

impl AgentClient {
    /// Connects to the agent that listens on `socket`.
    ///
    /// # Errors
    /// No agent listens there, or, where every user can have put the socket, one of another user.
    pub async fn connect(socket: &Path) -> Result<Self, ClientError> {
        let path = socket.to_path_buf();
        let connector = tower::service_fn(move |_| {
            let path = path.clone();
            async move { open(path).await.map(TokioIo::new) }
        });
        // The connector takes no notice of the address, but there has to be one.
        let endpoint = Endpoint::from_static("http://agent");
        let endpoint = endpoint.http2_keep_alive_interval(ALIVE_INTERVAL).keep_alive_timeout(ALIVE_WITHIN);
        let channel = endpoint.connect_with_connector(connector).await;
        let channel = channel.map_err(|error| {
            let socket = socket.to_path_buf();
            if is_forbidden(&error) {
                return ClientError::Forbidden { socket };
            }
            if let Some(user) = stranger_of(&error) {
                return ClientError::Stranger { socket, user };
            }
            ClientError::Unreachable { socket, reason: innermost(&error) }
        })?;
        Ok(AgentClient { stub: Stub::new(channel).max_decoding_message_size(MESSAGE_LEN_MAX) })
    }

    /// Registers a process of an application.
    ///
    /// # Errors
    /// The agent has another protocol version, or too many processes.
    pub async fn register(&self, app: AppId, process: u64) -> Result<Session, ClientError> {
        let caller = Caller::new(app, process);
        let request = RegisterRequest { protocol_version: PROTOCOL_VERSION, caller: Some(caller.clone()) };
        let response = self.stub.clone().register(request).await?.into_inner();
        check_version(response.protocol_version)?;
        let RegisterResponse { agent_name, other_user, .. } = response;
        Ok(Session { stub: self.stub.clone(), caller, agent_name, other_user })
    }

    /// The objects on this host, of one application or of all.
    ///
    /// # Errors
    /// The agent has another protocol version or went away.
    pub async fn list(&self, app: Option<AppId>) -> Result<Vec<Object>, ClientError> {
        let app_id = app.map_or_else(Vec::new, |app| app.0.to_vec());
        let request = ListRequest { protocol_version: PROTOCOL_VERSION, app_id };
        Ok(self.stub.clone().list(request).await?.into_inner().objects)
    }

    /// The agent, its peers and its transfers.
    ///
    /// # Errors
    /// The agent has another protocol version or went away.
    pub async fn status(&self) -> Result<StatusResponse, ClientError> {
        let request = StatusRequest { protocol_version: PROTOCOL_VERSION };
        Ok(self.stub.clone().status(request).await?.into_inner())
    }
}

impl AgentClient {
    /// Returns the manager's address and status.
    ///
    /// # Errors
    /// The agent has another protocol version or went away, or the manager cannot be reached.
    pub async fn manager_status(&self) -> Result<(String, crate::manager::StatusResponse), ClientError> {
        let request = StatusRequest { protocol_version: PROTOCOL_VERSION };
        let response = self.stub.clone().manager_status(request).await?.into_inner();
        let none = || Refusal::new(Kind::Internal, "the agent says nothing of how the manager stands");
        Ok((response.manager_address, response.status.ok_or_else(none)?))
    }

    /// Takes a part of the network out of use, or back.
    ///
    /// # Errors
    /// There is no such part; or the agent or the manager cannot be reached.
    pub async fn drain(&self, part: &str, back: bool) -> Result<crate::agent::DrainResponse, ClientError> {
        let request =
            crate::agent::DrainRequest { protocol_version: PROTOCOL_VERSION, part: part.into(), back };
        Ok(self.stub.clone().drain(request).await?.into_inner())
    }

    /// The streams that the manager knows, and what this agent has counted of its own.
    ///
    /// # Errors
    /// The agent has another protocol version or went away, or the manager cannot be reached.
    pub async fn streams(&self) -> Result<Vec<Stream>, ClientError> {
        let request = ListStreamsRequest { protocol_version: PROTOCOL_VERSION };
        Ok(self.stub.clone().list_streams(request).await?.into_inner().streams)
    }
}

/// A change of a transfer that waits or runs.
#[derive(Clone, Default, Debug)]
pub struct Extension {
    /// The path is wanted for this long from now on; `None`: the time stays.
    pub time: Option<Duration>,
    /// Names of further receivers.
    pub add: Vec<String>,
    /// Names of receivers that need nothing any more.
    pub remove: Vec<String>,
}

/// A registered process.
#[derive(Clone, Debug)]
pub struct Session {
    stub: Stub<Channel>,
    caller: Caller,
    agent_name: String,
    other_user: bool,
}

impl Session {
    /// Returns true if the agent runs as another user: objects added here are brought with [`Session::put`],
    /// and fetched with [`Session::take`].
    #[must_use]
    pub fn is_other_user(&self) -> bool {
        self.other_user
    }

    /// The application that this is a process of.
    #[must_use]
    pub fn app(&self) -> AppId {
        crate::convert::app_id(&self.caller.app_id).unwrap_or_default()
    }

    /// The agent's name in the cluster.
    #[must_use]
    pub fn agent_name(&self) -> &str {
        &self.agent_name
    }

    /// Ends the registration; the application's objects stay.
    ///
    /// # Errors
    /// The agent went away.
    pub async fn unregister(&self) -> Result<(), ClientError> {
        let request = UnregisterRequest { caller: Some(self.caller.clone()) };
        self.stub.clone().unregister(request).await?;
        Ok(())
    }

    /// Makes the file or directory at `path` known as an object of the application. It must not change
    /// until it is deleted.
    ///
    /// # Errors
    /// The path is missing or unreadable, or the id is taken.
    pub async fn add(&self, data: DataId, path: &Path) -> Result<Object, ClientError> {
        self.add_as(data, path, "").await
    }

    /// The same, under another name than the path has; an empty one is the path's.
    ///
    /// # Errors
    /// As there, or the name is none that a file can have.
    pub async fn add_as(&self, data: DataId, path: &Path, name: &str) -> Result<Object, ClientError> {
        self.add_all(data, &[path.to_path_buf()], name, &Selected::default()).await
    }

    /// The same for several paths, which become one directory of this name, each under its own; of
    /// directories this is taken.
    ///
    /// # Errors
    /// As there, or a pattern means nothing, two paths have the same name, or a link cannot be followed.
    pub async fn add_all(
        &self,
        data: DataId,
        paths: &[PathBuf],
        name: &str,
        selected: &Selected,
    ) -> Result<Object, ClientError> {
        self.add_chosen((data, false), paths, name, selected).await
    }

    /// The same as a set: each file of the directory is an object of its own. The agent reads all of them
    /// once.
    ///
    /// # Errors
    /// As there.
    pub async fn add_set(
        &self,
        data: DataId,
        paths: &[PathBuf],
        name: &str,
        selected: &Selected,
    ) -> Result<Object, ClientError> {
        self.add_chosen((data, true), paths, name, selected).await
    }

    async fn add_chosen(
        &self,
        (data, files): (DataId, bool),
        paths: &[PathBuf],
        name: &str,
        selected: &Selected,
    ) -> Result<Object, ClientError> {
        let request = AddRequest {
            caller: Some(self.caller.clone()),
            data_id: data.0,
            files,
            ..add_request(paths, name, selected)?
        };
        Ok(self.stub.clone().add(request).await?.into_inner())
    }

    /// Sends an object; the transfer's events come from the value returned. Dropping it before the end
    /// cancels the transfer, unless others watch it or it is detached.
    ///
    /// # Errors
    /// The object is unknown. What the manager says comes as an error of the first event.
    pub async fn send(
        &self,
        data: DataId,
        receivers: &Receivers,
        options: &SendOptions,
    ) -> Result<Sending, ClientError> {
        let request = self.send_request(data, receivers, options);
        Ok(Sending { events: self.stub.clone().send(request).await?.into_inner() })
    }

    /// Makes the file or directory at `path` an object with a number that the agent draws, and sends it; an
    /// empty name is the path's. Gives the object, which stays, and the transfer.
    ///
    /// # Errors
    /// As [`Session::add_as`] and [`Session::send`].
    pub async fn add_and_send(
        &self,
        path: &Path,
        name: &str,
        receivers: &Receivers,
        options: &SendOptions,
    ) -> Result<(Object, Sending), ClientError> {
        let add = Some(add_request(&[path.to_path_buf()], name, &Selected::default())?);
        let request = SendRequest { add, ..self.send_request(DataId(0), receivers, options) };
        let mut events = self.stub.clone().send(request).await?.into_inner();
        match events.message().await? {
            Some(SendEvent { added: Some(object), .. }) => Ok((object, Sending { events })),
            _ => Err(ClientError::Lost("it does not say which object it has made".into())),
        }
    }

    fn send_request(&self, data: DataId, receivers: &Receivers, options: &SendOptions) -> SendRequest {
        let (names, all) = match receivers {
            Receivers::All => (Vec::new(), true),
            Receivers::Named(names) => (names.clone(), false),
        };
        let (slow_receivers, slow_after_ms) = match options.slow {
            None => (SlowReceivers::Unspecified, None),
            Some(Slow::Wait) => (SlowReceivers::Wait, None),
            Some(Slow::CatchUp { after }) => (SlowReceivers::CatchUp, after.map(Duration::as_millis)),
            Some(Slow::Drop { after }) => (SlowReceivers::Drop, after.map(Duration::as_millis)),
        };
        SendRequest {
            caller: Some(self.caller.clone()),
            data_id: data.0,
            receivers: names,
            all,
            deadline_ms: options.deadline.map(|deadline| deadline.as_millis().max(1)),
            slow_receivers: slow_receivers.into(),
            slow_after_ms,
            detached: options.detached,
            lease_ms: options.lease.map(|lease| lease.as_millis().max(1)),
            fabric: options.fabric.clone().unwrap_or_default(),
            or_fail: options.or_fail,
            first_byte: options.first_byte,
            pull: options.pull.clone(),
            add: None,
        }
    }

    /// Changes a transfer of an object that waits or runs; gives its path, `None` while it waits for one.
    ///
    /// # Errors
    /// The object is not being sent, or the manager cannot change its path so.
    pub async fn extend(&self, data: DataId, change: &Extension) -> Result<Option<Granted>, ClientError> {
        let request = ExtendRequest {
            caller: Some(self.caller.clone()),
            data_id: data.0,
            time_ms: change.time.map(|time| time.as_millis().max(1)),
            add: change.add.clone(),
            remove: change.remove.clone(),
        };
        Ok(self.stub.clone().extend(request).await?.into_inner().granted)
    }

    /// Ends the transfers of an object that wait or run.
    ///
    /// # Errors
    /// The object is not being sent.
    pub async fn withdraw(&self, data: DataId) -> Result<(), ClientError> {
        let request = WithdrawRequest { caller: Some(self.caller.clone()), data_id: data.0 };
        self.stub.clone().withdraw(request).await?;
        Ok(())
    }

    /// Waits until the object is here and verified, and says where its bytes lie.
    ///
    /// # Errors
    /// The object is unknown, it did not come in time, or receiving it failed.
    pub async fn read(&self, data: DataId, wait: Wait) -> Result<Object, ClientError> {
        let (timeout, known_only) = match wait {
            Wait::UntilReady(timeout) => (timeout, false),
            Wait::WhileComing(timeout) => (timeout, true),
        };
        let request = ReadRequest {
            caller: Some(self.caller.clone()),
            data_id: data.0,
            timeout_ms: timeout.map(Duration::as_millis),
            known_only,
        };
        Ok(self.stub.clone().read(request).await?.into_inner())
    }

    /// Removes objects at other agents: those of these numbers, and those of these names but the one of the
    /// number `except`. All agents include this one.
    ///
    /// # Errors
    /// The manager cannot be reached.
    pub async fn remove(
        &self,
        at: &Receivers,
        numbers: &[DataId],
        names: &[String],
        except: Option<DataId>,
    ) -> Result<RemoveResponse, ClientError> {
        self.ask_to_remove(at, numbers, names, (except, false)).await
    }

    /// The same for an object in whose place another one is about to come: what the two have in common need
    /// not be sent.
    ///
    /// # Errors
    /// The manager cannot be reached.
    pub async fn make_way(&self, at: &Receivers, data: DataId) -> Result<RemoveResponse, ClientError> {
        self.ask_to_remove(at, &[data], &[], (None, true)).await
    }

    async fn ask_to_remove(
        &self,
        at: &Receivers,
        numbers: &[DataId],
        names: &[String],
        (except, replaced): (Option<DataId>, bool),
    ) -> Result<RemoveResponse, ClientError> {
        let (agents, all) = match at {
            Receivers::All => (Vec::new(), true),
            Receivers::Named(names) => (names.clone(), false),
        };
        let request = RemoveRequest {
            caller: Some(self.caller.clone()),
            replaced,
            data_ids: numbers.iter().map(|number| number.0).collect(),
            names: names.to_vec(),
            except_data_id: except.map(|except| except.0),
            agents,
            all,
        };
        Ok(self.stub.clone().remove(request).await?.into_inner())
    }

    /// Forgets an object, and removes its bytes if they were received.
    ///
    /// # Errors
    /// The object is unknown, or is being sent or received.
    pub async fn delete(&self, data: DataId) -> Result<(), ClientError> {
        let request = DeleteRequest { caller: Some(self.caller.clone()), data_id: data.0 };
        self.stub.clone().delete(request).await?;
        Ok(())
    }

    /// Keeps an object in the agent's store, or lets it go like others.
    ///
    /// # Errors
    /// The object is unknown, or is being received.
    pub async fn pin(&self, data: DataId, pinned: bool) -> Result<Object, ClientError> {
        let request = PinRequest { caller: Some(self.caller.clone()), data_id: data.0, pinned };
        Ok(self.stub.clone().pin(request).await?.into_inner())
    }
}

/// Batches of messages that wait for the agent.
const BATCHES_MAX: usize = 4;

impl Session {
    /// Makes a stream of messages, which other hosts can join; where it is `shared`, all of them can send.
    ///
    /// # Errors
    /// There is one of this name, or the manager cannot be reached.
    pub async fn create_stream(&self, name: &str, shared: bool) -> Result<(), ClientError> {
        let request = CreateStreamRequest { caller: Some(self.caller.clone()), name: name.into(), shared };
        self.stub.clone().create_stream(request).await?;
        Ok(())
    }

    /// Ends a stream that this application has made here.
    ///
    /// # Errors
    /// It has not.
    pub async fn end_stream(&self, name: &str) -> Result<(), ClientError> {
        let request = EndStreamRequest { caller: Some(self.caller.clone()), name: name.into() };
        self.stub.clone().end_stream(request).await?;
        Ok(())
    }

    /// Begins to send messages to a stream that this application has made here, or to a shared one, which
    /// this joins.
    #[must_use]
    pub fn send_messages(&self, name: &str) -> MessageSender {
        let (batches, queue) = mpsc::channel(BATCHES_MAX);
        let first = (Some(self.caller.clone()), name.to_string());
        let mut stub = self.stub.clone();
        let call = async move { Ok(stub.send_messages(ReceiverStream::new(queue)).await?.into_inner()) };
        MessageSender { first: Some(first), batches: Some(batches), call: tokio::spawn(call) }
    }

    /// Joins a stream, and hears it until the value returned is dropped. `hold` is how long a message waits
    /// for those before it; `None` leaves it to the agent.
    ///
    /// # Errors
    /// The agent has too many streams, or sends this one itself. What the manager says comes as an error of
    /// the first event.
    pub async fn receive_messages(
        &self,
        name: &str,
        hold: Option<Duration>,
    ) -> Result<MessageReceiver, ClientError> {
        let request = ReceiveMessagesRequest {
            caller: Some(self.caller.clone()),
            name: name.into(),
            hold_us: hold.map(|hold| hold.0 / 1_000),
        };
        Ok(MessageReceiver { responses: self.stub.clone().receive_messages(request).await?.into_inner() })
    }

    /// Leaves a stream: all who hear it on this host are told that it has ended for them.
    ///
    /// # Errors
    /// No process here hears it.
    pub async fn leave_stream(&self, name: &str) -> Result<(), ClientError> {
        let request = LeaveStreamRequest { caller: Some(self.caller.clone()), name: name.into() };
        self.stub.clone().leave_stream(request).await?;
        Ok(())
    }
}

/// The sending end of a stream.
#[derive(Debug)]
pub struct MessageSender {
    first: Option<(Option<Caller>, String)>,
    /// `None` when the agent has ended the call.
    batches: Option<mpsc::Sender<SendMessagesRequest>>,
    call: JoinHandle<Result<SendMessagesResponse, ClientError>>,
}

impl MessageSender {
    /// Sends messages; waits where the network is slower. Gives `false` when the agent has ended the call:
    /// [`MessageSender::finish`] says why.
    pub async fn send(&mut self, messages: Vec<Vec<u8>>) -> bool {
        let (caller, name) = self.first.take().unwrap_or_default();
        let request = SendMessagesRequest { caller, name, messages };
        match &self.batches {
            Some(batches) => batches.send(request).await.is_ok(),
            None => false,
        }
    }

    /// Ends sending; gives what the agent has taken, when the network has taken it.
    ///
    /// # Errors
    /// There is no such stream, a message was too long, or the agent went away.
    pub async fn finish(mut self) -> Result<SendMessagesResponse, ClientError> {
        if self.first.is_some() {
            // Without a word the agent would not know which stream is meant.
            self.send(Vec::new()).await;
        }
        self.batches = None;
        match (&mut self.call).await {
            Ok(outcome) => outcome,
            Err(error) => Err(ClientError::Lost(error.to_string())),
        }
    }
}

impl Drop for MessageSender {
    fn drop(&mut self) {
        // Without a finish the outcome is not needed.
        self.call.abort();
    }
}

/// Items that a stream delivers.
#[derive(Clone, PartialEq, Debug)]
pub enum Received {
    /// The stream comes from here: the first event, and again when that changes.
    Joined(Joined),
    /// Messages, in the order of their numbers.
    Messages(Vec<Message>),
}

/// The receiving end of a stream.
#[derive(Debug)]
pub struct MessageReceiver {
    responses: Streaming<ReceiveMessagesResponse>,
}

impl MessageReceiver {
    /// Returns the next item; `None` when the agent ends.
    ///
    /// # Errors
    /// There is no such stream, it has ended, it was left on this host, or the agent went away.
    pub async fn next(&mut self) -> Result<Option<Received>, ClientError> {
        match self.responses.message().await? {
            Some(ReceiveMessagesResponse { joined: Some(joined), .. }) => Ok(Some(Received::Joined(joined))),
            Some(ReceiveMessagesResponse { joined: None, messages }) => {
                Ok(Some(Received::Messages(messages)))
            }
            None => Ok(None),
        }
    }
}

/// The words of what is added, without its number and its caller.
fn add_request(
    paths: &[PathBuf],
    name: &str,
    Selected { exclude, follow, private }: &Selected,
) -> Result<AddRequest, ClientError> {
    let absolute = |path: &PathBuf| {
        let wrong =
            |error: std::io::Error| ClientError::Path { path: path.clone(), reason: error.to_string() };
        std::path::absolute(path).map_err(wrong)
    };
    let paths: Vec<PathBuf> = paths.iter().map(absolute).collect::<Result<_, _>>()?;
    let texts: Option<Vec<String>> = paths.iter().map(|path| path.to_str().map(str::to_string)).collect();
    let raw = |path: PathBuf| path.into_os_string().into_encoded_bytes();
    let (mut more_paths, raw_paths) = match texts {
        Some(texts) => (texts.into_iter(), Vec::new()),
        None => (Vec::new().into_iter(), paths.into_iter().map(raw).collect()),
    };
    Ok(AddRequest {
        path: more_paths.next().unwrap_or_default(),
        more_paths: more_paths.collect(),
        name: name.to_string(),
        exclude: exclude.clone(),
        private: *private,
        follow: *follow,
        raw_paths,
        ..AddRequest::default()
    })
}

/// A transfer that this client watches.
#[derive(Debug)]
pub struct Sending {
    events: Streaming<SendEvent>,
}

impl Sending {
    /// The next event; `None` after the last one.
    ///
    /// # Errors
    /// The transfer failed as a whole, or the agent went away.
    pub async fn next(&mut self) -> Result<Option<crate::agent::send_event::Event>, ClientError> {
        loop {
            match self.events.message().await? {
                // An event that a later version has added says nothing to us.
                Some(SendEvent { event: None, .. }) => {}
                Some(SendEvent { event, .. }) => return Ok(event),
                None => return Ok(None),
            }
        }
    }
}
