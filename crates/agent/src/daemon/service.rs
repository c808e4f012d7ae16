//! The gRPC service for applications (Republic Table I).

use super::assemble;
use super::bring;
use super::catalog::{Available, Snapshot};
use super::choice::Choice;
use super::convert;
use super::groups::Groups;
use super::manager_link::FabricWish;
use super::objects::{self, Asks, Digest, Key, Objects, Watching};
use super::processes::Call;
use super::removals;
use super::sends::{Sends, Standing, Watcher, Wish};
use super::sets;
use super::shared::Shared;
use super::status;
use super::streams::Streams;
use super::users::User;
use crate::transfer::Options;
use polycast_api::PROTOCOL_VERSION;
use polycast_api::agent::agent_server::Agent;
use polycast_api::agent::fetch_request::What;
use polycast_api::agent::send_event::Event;
use polycast_api::agent::{
    AddRequest, AssembleRequest, Caller, ChangeGroupRequest, CreateGroupRequest, CreateStreamRequest,
    CreateStreamResponse, DeleteRequest, DeleteResponse, DrainRequest, DrainResponse, EndStreamRequest,
    EndStreamResponse, EndpointUse, ExtendRequest, ExtendResponse, FetchEvent, FetchRequest, FilesEvent,
    FilesRequest, FillRequest, Group, LeaveStreamRequest, LeaveStreamResponse, ListGroupsRequest,
    ListGroupsResponse, ListRequest, ListResponse, ListStreamsRequest, ListStreamsResponse,
    ManagerStatusResponse, Object, Peer, PinRequest, PublishRequest, PublishResponse, PutRequest,
    ReadRequest, ReceiveMessagesRequest, ReceiveMessagesResponse, RegisterRequest, RegisterResponse,
    RemoveGroupRequest, RemoveGroupResponse, RemoveRequest, RemoveResponse, SendEvent, SendMessagesRequest,
    SendMessagesResponse, SendRequest, StatusRequest, StatusResponse, SubscribeRequest, TakeRequest,
    TakeResponse, TopicEvent, UnregisterRequest, UnregisterResponse, WatchEvent, WatchRequest,
    WithdrawRequest, WithdrawResponse,
};
use polycast_api::convert::app_id;
use polycast_api::error::{Kind, Refusal, check_version};
use polycast_net::object::{FileSource, ObjectKind, ObjectSource};
use polycast_net::store::check_name;
use polycast_types::{AppId, DataId, ObjectId, Printable, PullTuning};
use std::collections::hash_map::RandomState;
use std::ffi::OsString;
use std::hash::BuildHasher;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, SystemTime};
use tokio::sync::{mpsc, oneshot};
use tokio_stream::Stream;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::server::UdsConnectInfo;
use tonic::{Request, Response, Status, Streaming};

/// Events that a slow watcher may have waiting; after that it sees the latest state only.
const EVENTS_MAX: usize = 4;
/// Time for which the answer to a subscription waits for the manager, which answers at once; one of an
/// earlier version says nothing of a topic that has no version.
const MANAGER_ANSWERS: Duration = Duration::from_secs(1);
/// Bits of a number that is drawn: programs that read JSON numbers as floating-point ones keep it.
const DRAWN_BITS: u32 = 53;

/// The service.
pub(super) struct Service {
    shared: Arc<Shared>,
    sends: Arc<Sends>,
    streams: Arc<Streams>,
    groups: Arc<Groups>,
    objects: Arc<Objects>,
    uses: Option<Uses>,
}

/// Tells of the use of endpoints that run in the agent's process.
pub(super) type Uses = Box<dyn Fn() -> Vec<EndpointUse> + Send + Sync>;

/// Messages to a process in a call; as long as the call is open the process is there.
pub(super) struct Told<T> {
    events: ReceiverStream<Result<T, Status>>,
    _call: Call,
}

impl<T> Told<T> {
    fn by(events: mpsc::Receiver<Result<T, Status>>, call: Call) -> Response<Self> {
        Response::new(Told { events: ReceiverStream::new(events), _call: call })
    }
}

impl<T> Stream for Told<T> {
    type Item = Result<T, Status>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        Pin::new(&mut self.events).poll_next(context)
    }
}

impl Service {
    pub(super) fn new(
        shared: &Arc<Shared>,
        sends: &Arc<Sends>,
        streams: &Arc<Streams>,
        groups: &Arc<Groups>,
        objects: &Arc<Objects>,
    ) -> Self {
        Service {
            shared: Arc::clone(shared),
            sends: Arc::clone(sends),
            streams: Arc::clone(streams),
            groups: Arc::clone(groups),
            objects: Arc::clone(objects),
            uses: None,
        }
    }

    /// Tells of the use of endpoints, too.
    pub(super) fn telling(self, uses: Option<Uses>) -> Self {
        Service { uses, ..self }
    }

    /// The application of a registered process of this user.
    fn app(&self, caller: Option<&Caller>, user: User) -> Result<AppId, Refusal> {
        Ok(self.process(caller, user)?.0)
    }

    /// A registered process of this user.
    fn process(&self, caller: Option<&Caller>, user: User) -> Result<(AppId, u64), Refusal> {
        let (app, process) = convert::caller(caller)?;
        self.shared.processes.check(app, process, user)?;
        Ok((app, process))
    }

    /// Held as long as the call of a process is open.
    fn call(&self, caller: Option<&Caller>, user: User) -> Result<Call, Refusal> {
        let (app, process) = convert::caller(caller)?;
        self.shared.processes.check(app, process, user)
    }

    /// Does what may wait for a disk; other calls of the same client are answered meanwhile.
    async fn aside<T: Send + 'static>(
        &self,
        act: impl FnOnce(&Shared) -> T + Send + 'static,
    ) -> Result<T, Refusal> {
        let shared = Arc::clone(&self.shared);
        let done = tokio::task::spawn_blocking(move || act(&shared)).await;
        done.map_err(|error| Refusal::new(Kind::Internal, error.to_string()))
    }

    /// The object that a registered process of this user names.
    fn object(&self, caller: Option<&Caller>, user: User, data: u64) -> Result<ObjectId, Refusal> {
        Ok(ObjectId { app: self.app(caller, user)?, data: DataId(data) })
    }

    /// Says of an object that this user must not see that there is none.
    fn check_visible(&self, id: ObjectId, user: User) -> Result<(), Refusal> {
        match status::is_visible(&self.shared, id, user) {
            true => Ok(()),
            false => Err(Refusal::new(Kind::ObjectUnknown, format!("there is no object {id} here"))),
        }
    }

    /// Makes a directory known as a set of files.
    async fn add_set(
        &self,
        (id, user): (ObjectId, User),
        path: PathBuf,
        choice: Choice,
        (called, private): (String, bool),
    ) -> Result<Object, Status> {
        let wrong = |why: String| Refusal::new(Kind::Path, format!("cannot read {}: {why}", path.display()));
        if !path.is_absolute() {
            return Err(wrong("the path is not absolute".into()).into());
        }
        let name = object_name(&path, &called)?;
        let to_add = sets::ToAdd { id, path, choice, name, user, private };
        let object = sets::add(&self.shared, to_add).await?;
        Ok(convert::available(id, object, &self.shared.store.path(id), user))
    }

    /// Makes what a request names known as an object.
    async fn make(&self, (id, user): (ObjectId, User), request: AddRequest) -> Result<Object, Status> {
        user.check_path()?;
        sets::forget_what_has_gone(&self.shared, id, user);
        // Looking at a large directory takes a while: not for an id that is taken anyway.
        let mut paths: Vec<PathBuf> = match request.raw_paths.is_empty() {
            true => std::iter::once(request.path).chain(request.more_paths).map(PathBuf::from).collect(),
            false => request.raw_paths.into_iter().map(|path| OsString::from_vec(path).into()).collect(),
        };
        let path = paths.remove(0);
        if !request.files {
            self.shared.catalog.check_free(id, &path)?;
        }
        let choice = Choice::of(paths, &request.exclude, request.follow)?;
        if choice.is_several() && request.name.is_empty() {
            return Err(Refusal::new(Kind::Invalid, "several paths need a name for the object").into());
        }
        let (called, private) = (request.name, request.private);
        if request.files {
            return self.add_set((id, user), path, choice, (called, private)).await;
        }
        let looked = tokio::task::spawn_blocking(move || look_at(path, &called, choice));
        let object = looked.await.map_err(|error| Refusal::new(Kind::Internal, error.to_string()))??;
        let object =
            self.shared.catalog.add(id, Available { holder: Some(user.holder(private)), ..object })?;
        tracing::info!(object = %id, bytes = object.length, "added");
        Ok(convert::available(id, object, &self.shared.store.path(id), user))
    }

    /// Builds a caller's request, as far as that is possible without the object.
    fn wish(&self, (object, user): (ObjectId, User), request: SendRequest) -> Result<Wish, Refusal> {
        let receivers = convert::receivers(&request)?;
        let pull = PullTuning::parse(&request.pull)
            .map_err(|why| Refusal::new(Kind::Invalid, format!("a setting of pull: {why}")))?;
        let options = Options { pull, ..convert::options(&request, self.shared.default_options()) };
        let lease = convert::lease(&request);
        if request.or_fail && request.fabric.is_empty() {
            return Err(Refusal::new(Kind::Invalid, "or_fail needs the name of a fabric"));
        }
        let fabric = FabricWish { name: request.fabric, or_fail: request.or_fail };
        Ok(Wish { object, receivers, options, lease, fabric, detached: request.detached, user })
    }

    /// Begins to send an object that is here.
    fn begin(&self, wish: &Wish) -> Result<Watcher, Refusal> {
        let (id, first_byte) = (wish.object, wish.options.first_byte);
        self.check_visible(id, wish.user)?;
        if let Some(Snapshot::Available(object)) = self.shared.catalog.get(id)
            && first_byte > object.length.saturating_sub(1)
        {
            let why = format!("byte {first_byte} lies outside object {id}, which has {}", object.length);
            return Err(Refusal::new(Kind::Invalid, why));
        }
        self.sends.start(wish.clone())
    }

    /// Makes an object and begins to send it; one that cannot be sent is not left behind.
    async fn make_and_begin(&self, add: AddRequest, wish: &Wish) -> Result<(Object, Watcher), Status> {
        if add.data_id != 0 || add.caller.is_some() {
            let why = "caller and data_id are said once, of the call: leave them out of add";
            return Err(Refusal::new(Kind::Invalid, why).into());
        }
        let (id, user) = (wish.object, wish.user);
        sets::forget_what_has_gone(&self.shared, id, user);
        let is_new = self.shared.catalog.get(id).is_none();
        let made = self.make((id, user), add).await?;
        match self.begin(wish) {
            Ok(watcher) => Ok((made, watcher)),
            Err(refusal) => {
                if is_new {
                    self.aside(move |shared| sets::delete(shared, id, user, || shared.store.remove(id)))
                        .await??;
                }
                Err(refusal.into())
            }
        }
    }
}

#[tonic::async_trait]
impl Agent for Service {
    async fn register(
        &self,
        request: Request<RegisterRequest>,
    ) -> Result<Response<RegisterResponse>, Status> {
        let credentials = request.extensions().get::<UdsConnectInfo>().and_then(|info| info.peer_cred);
        let user = User::of(&request)?;
        let request = request.into_inner();
        check_version(request.protocol_version)?;
        let (app, process) = convert::caller(request.caller.as_ref())?;
        self.shared.processes.register(app, process, user, credentials.and_then(|peer| peer.pid()))?;
        Ok(Response::new(RegisterResponse {
            protocol_version: PROTOCOL_VERSION,
            agent_name: self.shared.name.clone(),
            other_user: !user.shares_paths(),
        }))
    }

    async fn unregister(
        &self,
        request: Request<UnregisterRequest>,
    ) -> Result<Response<UnregisterResponse>, Status> {
        let user = User::of(&request)?;
        let (app, process) = convert::caller(request.into_inner().caller.as_ref())?;
        let processes_left = self.shared.processes.unregister(app, process, user)?;
        Ok(Response::new(UnregisterResponse { processes_left }))
    }

    async fn add(&self, request: Request<AddRequest>) -> Result<Response<Object>, Status> {
        let user = User::of(&request)?;
        let request = request.into_inner();
        let id = self.object(request.caller.as_ref(), user, request.data_id)?;
        let _call = self.call(request.caller.as_ref(), user)?;
        Ok(Response::new(self.make((id, user), request).await?))
    }

    async fn put(&self, request: Request<Streaming<PutRequest>>) -> Result<Response<Object>, Status> {
        let user = User::of(&request)?;
        let mut requests = request.into_inner();
        let Some(first) = requests.message().await? else {
            return Err(Refusal::new(Kind::Invalid, "the call does not say which object").into());
        };
        let id = self.object(first.caller.as_ref(), user, first.data_id)?;
        let _call = self.call(first.caller.as_ref(), user)?;
        Ok(Response::new(bring::put(&self.shared, (id, user), first, requests).await?))
    }

    async fn assemble(&self, request: Request<AssembleRequest>) -> Result<Response<Object>, Status> {
        let user = User::of(&request)?;
        let request = request.into_inner();
        let id = self.object(request.caller.as_ref(), user, request.data_id)?;
        let _call = self.call(request.caller.as_ref(), user)?;
        Ok(Response::new(assemble::assemble(&self.shared, (id, user), request).await?))
    }

    type TakeStream = Told<TakeResponse>;

    async fn take(&self, request: Request<TakeRequest>) -> Result<Response<Self::TakeStream>, Status> {
        let user = User::of(&request)?;
        let request = request.into_inner();
        let mut id = self.object(request.caller.as_ref(), user, request.data_id)?;
        let call = self.call(request.caller.as_ref(), user)?;
        if !request.app_id.is_empty() {
            id.app = app_id(&request.app_id)?;
        }
        Ok(Told::by(bring::take(&self.shared, (id, user)).await?, call))
    }

    type SendStream = Pin<Box<dyn Stream<Item = Result<SendEvent, Status>> + Send>>;

    async fn send(&self, request: Request<SendRequest>) -> Result<Response<Self::SendStream>, Status> {
        let user = User::of(&request)?;
        let mut request = request.into_inner();
        let add = request.add.take();
        if add.is_some() && request.data_id == 0 {
            request.data_id = drawn();
        }
        let id = self.object(request.caller.as_ref(), user, request.data_id)?;
        let call = self.call(request.caller.as_ref(), user)?;
        let wish = self.wish((id, user), request)?;
        let (events, stream) = mpsc::channel(EVENTS_MAX);
        let watcher = match add {
            Some(add) => {
                let (made, watcher) = self.make_and_begin(add, &wish).await?;
                // There is room: it is the first event.
                let _ = events.send(Ok(SendEvent { event: None, added: Some(made) })).await;
                watcher
            }
            None => self.begin(&wish)?,
        };
        if let Some(set) = self.shared.catalog.set(id) {
            tokio::spawn(sets::send(Arc::clone(&self.sends), set, wish, watcher, events));
        } else {
            tokio::spawn(tell(watcher, events));
        }
        Ok(Response::new(Box::pin(Told::by(stream, call).into_inner())))
    }

    async fn extend(&self, request: Request<ExtendRequest>) -> Result<Response<ExtendResponse>, Status> {
        let user = User::of(&request)?;
        let request = request.into_inner();
        let id = self.object(request.caller.as_ref(), user, request.data_id)?;
        let _call = self.call(request.caller.as_ref(), user)?;
        if request.time_ms.is_none() && request.add.is_empty() && request.remove.is_empty() {
            return Err(Refusal::new(Kind::Invalid, "the call does not say what to change").into());
        }
        let granted = self.sends.extend((id, user), request.time_ms, request.add, request.remove).await?;
        Ok(Response::new(ExtendResponse { granted: granted.as_ref().map(convert::granted) }))
    }

    async fn withdraw(
        &self,
        request: Request<WithdrawRequest>,
    ) -> Result<Response<WithdrawResponse>, Status> {
        let user = User::of(&request)?;
        let request = request.into_inner();
        let id = self.object(request.caller.as_ref(), user, request.data_id)?;
        self.sends.withdraw(id, user)?;
        tracing::info!(object = %id, "withdrawn");
        Ok(Response::new(WithdrawResponse {}))
    }

    async fn read(&self, request: Request<ReadRequest>) -> Result<Response<Object>, Status> {
        let user = User::of(&request)?;
        let request = request.into_inner();
        let id = self.object(request.caller.as_ref(), user, request.data_id)?;
        let _call = self.call(request.caller.as_ref(), user)?;
        let timeout = request.timeout_ms.map(Duration::from_millis);
        let object = self.shared.catalog.wait(id, user, timeout, request.known_only).await?;
        super::opened::check_here(&self.shared.store, id, &object)?;
        self.shared.used(id);
        Ok(Response::new(convert::available(id, object, &self.shared.store.path(id), user)))
    }

    async fn delete(&self, request: Request<DeleteRequest>) -> Result<Response<DeleteResponse>, Status> {
        let user = User::of(&request)?;
        let request = request.into_inner();
        let id = self.object(request.caller.as_ref(), user, request.data_id)?;
        // What was added stays where it is: it does not lie in the store.
        self.aside(move |shared| sets::delete(shared, id, user, || shared.store.remove(id))).await??;
        tracing::info!(object = %id, "deleted");
        Ok(Response::new(DeleteResponse {}))
    }

    async fn pin(&self, request: Request<PinRequest>) -> Result<Response<Object>, Status> {
        let user = User::of(&request)?;
        let request = request.into_inner();
        let id = self.object(request.caller.as_ref(), user, request.data_id)?;
        self.check_visible(id, user)?;
        let pin = move |shared: &Shared| {
            let write = |description: &_| shared.store.describe(id, description);
            shared.catalog.pin(id, user, request.pinned, write)
        };
        let object = self.aside(pin).await??;
        tracing::info!(object = %id, pinned = request.pinned, "kept");
        Ok(Response::new(convert::available(id, object, &self.shared.store.path(id), user)))
    }

    async fn remove(&self, request: Request<RemoveRequest>) -> Result<Response<RemoveResponse>, Status> {
        let user = User::of(&request)?;
        let request = request.into_inner();
        let app = self.app(request.caller.as_ref(), user)?;
        let _call = self.call(request.caller.as_ref(), user)?;
        user.check_trusted("have objects removed at other agents")?;
        Ok(Response::new(removals::ask(&self.shared, app, request).await?))
    }

    async fn list(&self, request: Request<ListRequest>) -> Result<Response<ListResponse>, Status> {
        let user = User::of(&request)?;
        let request = request.into_inner();
        check_version(request.protocol_version)?;
        let app = if request.app_id.is_empty() { None } else { Some(app_id(&request.app_id)?) };
        let objects = status::objects(&self.shared, app, user);
        Ok(Response::new(ListResponse { objects }))
    }

    async fn status(&self, request: Request<StatusRequest>) -> Result<Response<StatusResponse>, Status> {
        let user = User::of(&request)?;
        check_version(request.into_inner().protocol_version)?;
        let sends = Arc::clone(&self.sends);
        let status = self.aside(move |shared| status::status(shared, &sends, user)).await?;
        let (peers, lost) = match status.manager_connected {
            true => self.shared.link.peers().await,
            false => Default::default(),
        };
        let peer = |peer: super::manager_link::Peer| Peer {
            name: peer.name,
            control_address: peer.control_address,
            silent_ms: peer.silent_ms,
            unreachable_by: peer.unreachable_by,
            unreachable_ms: peer.unreachable_ms,
        };
        let (peers, lost) = (peers.into_iter().map(peer).collect(), lost.into_iter().map(peer).collect());
        // Names of repositories may be secrets of those who ask for them.
        let uses = self.uses.as_ref().filter(|_| !user.is_other()).map(|uses| uses()).unwrap_or_default();
        let groups = self.groups.of_this_host();
        Ok(Response::new(StatusResponse { peers, lost, uses, groups, ..status }))
    }

    async fn manager_status(
        &self,
        request: Request<StatusRequest>,
    ) -> Result<Response<ManagerStatusResponse>, Status> {
        check_version(request.into_inner().protocol_version)?;
        let link = &self.shared.link;
        let status = Some(link.manager_status().await?);
        Ok(Response::new(ManagerStatusResponse { manager_address: link.manager(), status }))
    }

    async fn drain(&self, request: Request<DrainRequest>) -> Result<Response<DrainResponse>, Status> {
        User::of(&request)?.check_trusted("drain parts of the network")?;
        let DrainRequest { protocol_version, part, back } = request.into_inner();
        check_version(protocol_version)?;
        convert::check_name("a part", &part)?;
        tracing::info!(part = %Printable(&part), back, "asks the manager to drain");
        let done = self.shared.link.drain(part, back).await?;
        let (part, changed, moved, ended) = (done.part, done.changed, done.moved, done.ended);
        Ok(Response::new(DrainResponse { part, changed, moved, ended }))
    }

    async fn create_stream(
        &self,
        request: Request<CreateStreamRequest>,
    ) -> Result<Response<CreateStreamResponse>, Status> {
        let user = User::of(&request)?;
        let request = request.into_inner();
        let app = self.app(request.caller.as_ref(), user)?;
        convert::check_name("a stream", &request.name)?;
        self.streams.create((app, user), &request.name, request.shared).await?;
        Ok(Response::new(CreateStreamResponse {}))
    }

    async fn end_stream(
        &self,
        request: Request<EndStreamRequest>,
    ) -> Result<Response<EndStreamResponse>, Status> {
        let user = User::of(&request)?;
        let request = request.into_inner();
        let app = self.app(request.caller.as_ref(), user)?;
        self.streams.end((app, user), &request.name)?;
        Ok(Response::new(EndStreamResponse {}))
    }

    async fn send_messages(
        &self,
        request: Request<Streaming<SendMessagesRequest>>,
    ) -> Result<Response<SendMessagesResponse>, Status> {
        let user = User::of(&request)?;
        let mut requests = request.into_inner();
        let Some(first) = requests.message().await? else {
            return Err(Refusal::new(Kind::Invalid, "the call does not say which stream").into());
        };
        let app = self.app(first.caller.as_ref(), user)?;
        convert::check_name("a stream", &first.name)?;
        let _call = self.call(first.caller.as_ref(), user)?;
        let mut pen = self.streams.pen((app, user), &first.name).await?;
        pen.write(&first.messages).await?;
        while let Some(request) = requests.message().await? {
            pen.write(&request.messages).await?;
        }
        Ok(Response::new(pen.totals()))
    }

    type ReceiveMessagesStream = Told<ReceiveMessagesResponse>;

    async fn receive_messages(
        &self,
        request: Request<ReceiveMessagesRequest>,
    ) -> Result<Response<Self::ReceiveMessagesStream>, Status> {
        let user = User::of(&request)?;
        let request = request.into_inner();
        let call = self.call(request.caller.as_ref(), user)?;
        convert::check_name("a stream", &request.name)?;
        let responses = self.streams.hear(&request.name, request.hold_us)?;
        Ok(Told::by(responses, call))
    }

    async fn leave_stream(
        &self,
        request: Request<LeaveStreamRequest>,
    ) -> Result<Response<LeaveStreamResponse>, Status> {
        let user = User::of(&request)?;
        let request = request.into_inner();
        self.app(request.caller.as_ref(), user)?;
        user.check_trusted("end a stream for all who hear it")?;
        self.streams.leave(&request.name)?;
        Ok(Response::new(LeaveStreamResponse {}))
    }

    async fn list_streams(
        &self,
        request: Request<ListStreamsRequest>,
    ) -> Result<Response<ListStreamsResponse>, Status> {
        check_version(request.into_inner().protocol_version)?;
        Ok(Response::new(ListStreamsResponse { streams: self.streams.list().await? }))
    }

    async fn create_group(&self, request: Request<CreateGroupRequest>) -> Result<Response<Group>, Status> {
        let user = User::of(&request)?;
        let request = request.into_inner();
        check_version(request.protocol_version)?;
        Ok(Response::new(self.groups.create(user, request).await?))
    }

    async fn change_group(&self, request: Request<ChangeGroupRequest>) -> Result<Response<Group>, Status> {
        let user = User::of(&request)?;
        let request = request.into_inner();
        check_version(request.protocol_version)?;
        Ok(Response::new(self.groups.change(user, request).await?))
    }

    async fn remove_group(
        &self,
        request: Request<RemoveGroupRequest>,
    ) -> Result<Response<RemoveGroupResponse>, Status> {
        let user = User::of(&request)?;
        let RemoveGroupRequest { protocol_version, name } = request.into_inner();
        check_version(protocol_version)?;
        convert::check_name("a group", &name)?;
        self.groups.remove(user, &name).await?;
        Ok(Response::new(RemoveGroupResponse {}))
    }

    async fn list_groups(
        &self,
        request: Request<ListGroupsRequest>,
    ) -> Result<Response<ListGroupsResponse>, Status> {
        check_version(request.into_inner().protocol_version)?;
        Ok(Response::new(ListGroupsResponse { groups: self.groups.list().await }))
    }

    type FetchStream = Told<FetchEvent>;

    async fn fetch(&self, request: Request<FetchRequest>) -> Result<Response<Self::FetchStream>, Status> {
        let user = User::of(&request)?;
        let request = request.into_inner();
        let process = self.process(request.caller.as_ref(), user)?;
        let object = match request.what {
            Some(What::Key(key)) => {
                let key = Key::parse(&key)?;
                (key.object, key.digest)
            }
            Some(What::DataId(data)) => (ObjectId { app: process.0, data: DataId(data) }, Digest::None),
            None => return Err(Refusal::new(Kind::Invalid, "the call does not say what to fetch").into()),
        };
        let deadline = request.deadline_ms.map(Duration::from_millis);
        let asks = Asks { process, user, can_fill: request.can_fill, deadline };
        let call = self.call(request.caller.as_ref(), user)?;
        let (events, stream) = mpsc::channel(EVENTS_MAX);
        tokio::spawn(Arc::clone(&self.objects).fetch(object, asks, events));
        Ok(Told::by(stream, call))
    }

    async fn fill(&self, request: Request<Streaming<FillRequest>>) -> Result<Response<Object>, Status> {
        let user = User::of(&request)?;
        let mut requests = request.into_inner();
        let Some(first) = requests.message().await? else {
            return Err(Refusal::new(Kind::Invalid, "the call does not say which object").into());
        };
        let process = self.process(first.caller.as_ref(), user)?;
        let _call = self.call(first.caller.as_ref(), user)?;
        Ok(Response::new(objects::fill(&self.objects, (process, user), first, requests).await?))
    }

    async fn publish(&self, request: Request<PublishRequest>) -> Result<Response<PublishResponse>, Status> {
        let user = User::of(&request)?;
        let request = request.into_inner();
        let app = self.app(request.caller.as_ref(), user)?;
        let _call = self.call(request.caller.as_ref(), user)?;
        convert::check_name("a topic", &request.topic)?;
        Ok(Response::new(self.objects.publish((app, user), request).await?))
    }

    type FilesStream = Told<FilesEvent>;

    async fn files(&self, request: Request<FilesRequest>) -> Result<Response<Self::FilesStream>, Status> {
        let user = User::of(&request)?;
        let request = request.into_inner();
        let id = self.object(request.caller.as_ref(), user, request.data_id)?;
        let timeout = request.timeout_ms.map(Duration::from_millis);
        let (events, stream) = mpsc::channel(EVENTS_MAX);
        let call = self.call(request.caller.as_ref(), user)?;
        tokio::spawn(sets::files(Arc::clone(&self.shared), (id, user), timeout, events));
        Ok(Told::by(stream, call))
    }

    type WatchStream = Told<WatchEvent>;

    async fn watch(&self, request: Request<WatchRequest>) -> Result<Response<Self::WatchStream>, Status> {
        let user = User::of(&request)?;
        // Other users cannot open a file that is not whole.
        user.check_trusted("use parts of objects")?;
        let request = request.into_inner();
        let id = self.object(request.caller.as_ref(), user, request.data_id)?;
        let (events, stream) = mpsc::channel(EVENTS_MAX);
        let watching = Watching::new(id, &request.ranges, events)?;
        let timeout = request.timeout_ms.map(Duration::from_millis);
        let call = self.call(request.caller.as_ref(), user)?;
        tokio::spawn(watching.run(Arc::clone(&self.shared), timeout));
        Ok(Told::by(stream, call))
    }

    type SubscribeStream = Told<TopicEvent>;

    async fn subscribe(
        &self,
        request: Request<SubscribeRequest>,
    ) -> Result<Response<Self::SubscribeStream>, Status> {
        let user = User::of(&request)?;
        let request = request.into_inner();
        let app = self.app(request.caller.as_ref(), user)?;
        convert::check_name("a topic", &request.topic)?;
        let (events, stream) = mpsc::channel(EVENTS_MAX);
        let call = self.call(request.caller.as_ref(), user)?;
        let (known, is_known) = oneshot::channel();
        tokio::spawn(Arc::clone(&self.objects).subscribe((app, user), request.topic, events, known));
        // What is published after this answer is for the caller, too.
        let _ = tokio::time::timeout(MANAGER_ANSWERS, is_known).await;
        Ok(Told::by(stream, call))
    }
}

/// A number for an object whose caller gives it none.
fn drawn() -> u64 {
    // The hasher's keys are random.
    (RandomState::new().hash_one(SystemTime::now()) >> (u64::BITS - DRAWN_BITS)).max(1)
}

/// Tells a watcher how its transfer goes, until it has ended or the watcher has gone.
async fn tell(mut watcher: Watcher, events: mpsc::Sender<Result<SendEvent, Status>>) {
    let event = |event| Ok(SendEvent { event: Some(event), added: None });
    let mut told = Standing::default();
    if events.send(event(Event::Waiting(convert::waiting(None)))).await.is_err() {
        return;
    }
    loop {
        let standing = watcher.standing.borrow_and_update().clone();
        if standing.granted.is_none()
            && standing.waiting.is_some()
            && standing.waiting != told.waiting
            && events.send(event(Event::Waiting(convert::waiting(standing.waiting.as_ref())))).await.is_err()
        {
            return;
        }
        if let (None, Some(granted)) = (&told.granted, &standing.granted)
            && events.send(event(Event::Granted(convert::granted(granted)))).await.is_err()
        {
            return;
        }
        if let Some(outcome) = &standing.outcome {
            let last = match outcome {
                Ok(report) => event(Event::Finished(report.as_ref().into())),
                Err(refusal) => Err(refusal.clone().into()),
            };
            // If this fails, the caller has gone.
            let _ = events.send(last).await;
            return;
        }
        let new_report = standing
            .report
            .as_ref()
            .filter(|report| told.report.as_ref().is_none_or(|told| !Arc::ptr_eq(told, report)));
        if let Some(report) = new_report
            && events.send(event(Event::Progress(report.as_ref().into()))).await.is_err()
        {
            return;
        }
        told = standing;
        let changed = tokio::select! {
            changed = watcher.standing.changed() => changed.is_ok(),
            () = events.closed() => false,
        };
        if !changed {
            return;
        }
    }
}

/// Returns the object at a path that is added.
fn look_at(path: PathBuf, called: &str, choice: Choice) -> Result<Available, Refusal> {
    let wrong =
        |reason: String| Refusal::new(Kind::Path, format!("cannot read {}: {reason}", path.display()));
    if !path.is_absolute() {
        return Err(wrong("the path is not absolute".into()));
    }
    // Looked at before it is opened: opening a named pipe would block without an end.
    let metadata = std::fs::metadata(&path).map_err(|error| wrong(error.to_string()))?;
    let (kind, source): (_, Box<dyn ObjectSource>) = if metadata.is_dir() || choice.is_several() {
        let tree = choice.open(&path).map_err(|error| Refusal::new(Kind::Path, error.to_string()))?;
        (ObjectKind::Directory, Box::new(tree))
    } else if metadata.is_file() {
        let file = FileSource::open(&path).map_err(|error| wrong(error.to_string()))?;
        (ObjectKind::File, Box::new(file))
    } else {
        return Err(wrong("it is neither a file nor a directory".into()));
    };
    let name = object_name(&path, called)?;
    let (length, stamp) = (source.len(), source.stamp());
    let (mode, modified) = (source.mode(), source.modified());
    let (root, added_from, since) = (String::new(), Some(path), SystemTime::now());
    let choice = Arc::new(choice);
    let (used, pinned, superseded) = (since, false, false);
    Ok(Available {
        name,
        kind,
        length,
        mode,
        modified,
        stamp,
        root,
        added_from,
        choice,
        since,
        used,
        pinned,
        superseded,
        holder: None,
    })
}

/// Returns the name of an object: the caller's name for it, or the end of the path.
fn object_name(path: &Path, called: &str) -> Result<String, Refusal> {
    if called.is_empty() {
        let wrong = |error| Refusal::new(Kind::Path, format!("cannot read {}: {error}", path.display()));
        return name_of(path).map_err(wrong);
    }
    let odd = |why| Refusal::new(Kind::Invalid, format!("'{}' {why}", Printable(called)));
    check_name(called).map_err(odd)?;
    Ok(called.to_string())
}

/// The name that receivers see; a path that ends with `..` has one too.
fn name_of(path: &Path) -> std::io::Result<String> {
    let resolved;
    let name = match path.file_name() {
        Some(name) => name,
        None => {
            resolved = path.canonicalize()?;
            resolved.file_name().unwrap_or("root".as_ref())
        }
    };
    let odd = || {
        std::io::Error::other("its name is not UTF-8, and so is no object's: name the object, or rename it")
    };
    name.to_str().map(str::to_string).ok_or_else(odd)
}
