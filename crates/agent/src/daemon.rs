//! The agent's service: Republic's API for applications (Table I), the agent's side of the manager's
//! (Table II), and transfers in both directions.
//!
//! An [`Agent`] is a few tasks around shared tables. Transfers themselves run in threads of their own,
//! through an [`Engine`].
//!
//! ```no_run
//! use polycast_agent::daemon::{Agent, AgentConfig};
//!
//! # async fn example() -> Result<(), polycast_agent::daemon::AgentError> {
//! let config = AgentConfig { manager: "10.0.0.1:7400".into(), ..AgentConfig::default() };
//! let agent = Agent::start(config).await?;
//! println!("{} listens on {}", agent.name(), agent.socket().display());
//! agent.serve(async { let _ = tokio::signal::ctrl_c().await; }).await
//! # }
//! ```

mod addresses;
mod assemble;
mod bring;
mod catalog;
mod choice;
mod config;
mod convert;
mod counters;
mod engine;
mod enrol;
mod error;
mod groups;
mod invite;
mod limits;
mod local;
mod manager_link;
mod objects;
mod opened;
mod page;
mod place;
mod processes;
mod removals;
mod sends;
mod service;
mod sets;
mod shared;
mod status;
mod store;
mod streams;
mod users;

pub use config::{AgentConfig, CONTROL_PORT};
pub use engine::{Engine, Transports};
pub use error::{AgentError, EnrolError};

use crate::forwarder::daemon::Nodes;
use crate::label_switch::RackAgentProcess;
use crate::transfer::{Door, Sealing};
use catalog::Catalog;
use enrol::Enrolment;
use groups::Groups;
use invite::Invitations;
use limits::Limits;
use manager_link::{Identity, ManagerLink};
use objects::Objects;
use place::Wish;
use polycast_api::AGENT_DESCRIPTORS;
use polycast_api::agent::EndpointUse;
use polycast_api::agent::agent_server::AgentServer;
use polycast_api::http::{Access, Metric, Token};
use polycast_api::manager::NodeReport;
use polycast_net::interface;
use polycast_net::tls::Security;
use polycast_net::words::WordsKey;
use processes::Processes;
use sends::Sends;
use service::Service;
use shared::Shared;
use std::future::Future;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use store::Store;
use streams::Streams;
use tokio::sync::watch;
use tonic::transport::Server;
use tonic_reflection::server::Builder;
use tonic_reflection::server::v1::{ServerReflection, ServerReflectionServer};

/// Time that transfers and calls in progress may take to end when the agent ends.
const FAREWELL: Duration = Duration::from_secs(3);

/// Returns the agent's proof of its name, and its origin if a manager's authority issued it.
async fn shown(config: &AgentConfig) -> Result<(Option<Enrolment>, Option<Security>), AgentError> {
    let name = config.resolved_name();
    let enrolment = config.resolved_identity(&name).map(|folder| Enrolment {
        folder,
        managers: config.manager.split(',').map(|manager| manager.trim().to_string()).collect(),
        name: name.clone(),
        manager: config.manager_name.clone(),
    });
    let security = match &enrolment {
        Some(enrolment) => {
            let token = config.token.as_ref().and_then(|token| token.parse().ok());
            Some(enrolment.enrol(token.as_ref()).await?)
        }
        None => config.identity_files().security_of(&name, &config.manager_name)?,
    };
    Ok((enrolment, security))
}

/// An agent that listens.
pub struct Agent {
    shared: Arc<Shared>,
    sends: Arc<Sends>,
    streams: Arc<Streams>,
    groups: Arc<Groups>,
    objects: Arc<Objects>,
    enrolment: Option<Enrolment>,
    local: local::Listener,
    http: Option<tokio::net::TcpListener>,
    /// Conditions for those who look at the view.
    access: Access,
    /// Metrics of what else runs in this process.
    more_metrics: Vec<page::More>,
    uses: Option<service::Uses>,
    invitations: Invitations,
    /// Interface and port for the agent.
    wish: Wish,
    /// Its store goes with it.
    is_passing: bool,
    shutdown: watch::Sender<bool>,
}

impl Agent {
    /// Opens the store and listens; calls wait until [`Agent::serve`] runs. The manager need not be there.
    ///
    /// # Errors
    /// The settings are wrong, or the interface, the store, the socket or the control port cannot be used.
    pub async fn start(mut config: AgentConfig) -> Result<Self, AgentError> {
        config.check()?;
        config.ask_zone()?;
        let shown = shown(&config).await?;
        let mut transports = Transports::default();
        if let Some(forwarder) = &config.forwarder {
            // They live as long as the engine does.
            let mut forwarder = forwarder.clone();
            forwarder.nodes.iter_mut().for_each(|node| node.dscp = node.dscp.or(config.dscp));
            let nodes = Nodes::start(&forwarder, shown.1.as_ref())
                .map_err(|error| AgentError::Node(error.to_string()))?;
            let own = forwarder.nodes.first().and_then(|node| nodes.get(&node.name));
            transports = Transports { node: own.cloned(), nodes: Some(nodes) };
        }
        if let Some(rack_agent) = &config.rack_agent {
            let process = RackAgentProcess::start(rack_agent, &WordsKey::of(shown.1.as_ref()))?;
            // It runs as long as the process does.
            std::thread::spawn(move || {
                if let Err(error) = process.run() {
                    tracing::error!(%error, "the agent of the rack has ended");
                }
            });
        }
        Self::start_as(config, Arc::new(transports), shown).await
    }

    /// Like [`Agent::start`], with another engine.
    ///
    /// # Errors
    /// As there.
    pub async fn start_with(config: AgentConfig, engine: Arc<dyn Engine>) -> Result<Self, AgentError> {
        config.check()?;
        let shown = shown(&config).await?;
        Self::start_as(config, engine, shown).await
    }

    async fn start_as(
        config: AgentConfig,
        engine: Arc<dyn Engine>,
        (enrolment, security): (Option<Enrolment>, Option<Security>),
    ) -> Result<Self, AgentError> {
        let name = config.resolved_name();
        let sealing = security.map_or(Sealing::Plain, Sealing::By);
        let interface = interface::resolve(config.interface.as_deref())?;
        let (store, found) = Store::open(&config.resolved_store(&name))?;
        let (found, sets) = sets::whole(&store, found);
        let catalog = Arc::new(Catalog::new(config.objects_max, config.receives_max, found));
        sets.into_iter().for_each(|(id, set)| catalog.list_files(id, set));
        let local = local::Listener::bind(&config.resolved_socket(), config.socket_access()?)?;
        let http = page_listener(config.http).await?;
        let token = config.view_token_file.as_deref().map(Token::read).transpose()?;
        let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
        let access = Access { token, names: vec![name.clone(), host] };
        let wish =
            Wish { interface: config.interface.clone(), port: config.control_port, usual_port: CONTROL_PORT };
        let wanted = SocketAddr::from((interface.address, wish.port.unwrap_or(CONTROL_PORT)));
        let refused = |error: std::io::Error| AgentError::listen(wanted, &error);
        let (listener, place) = wish.listen(interface.address).map_err(refused)?;
        tracing::info!(interface = %interface.name, address = %interface.address, "the agent's transfers go by");
        let me = Identity { name: name.clone(), place: watch::Sender::new(place) };
        let link = ManagerLink::new(&config.manager, me, (sealing.security(), &config.manager_name))?;
        let shared = Arc::new(Shared {
            name,
            moved: shared::Moved::default(),
            door: Door::new(place.control),
            sealing,
            dscp: config.class()?,
            location: config.location()?,
            limits: Limits::new(config.store_max_bytes()?, config.store_ttl_span()?, &store),
            store,
            catalog,
            processes: Processes::new(config.processes_max),
            link,
            engine,
            counters: counters::Counters::default(),
            started: Instant::now(),
        });
        if let Some(warning) = shared.limits.warning(&shared.store) {
            tracing::warn!(store = %shared.store.folder().display(), "{warning}");
        }
        let sends = Arc::new(Sends::new(Arc::clone(&shared), config.sends_max));
        let groups = Arc::new(Groups::new(Arc::clone(&shared)));
        tell_of_host(&shared, &sends, &groups);
        Ok(Agent {
            objects: Arc::new(Objects::new(Arc::clone(&shared), Arc::clone(&sends))),
            sends,
            streams: Arc::new(Streams::new(Arc::clone(&shared), config.streams_max)),
            groups,
            invitations: Invitations::new(Arc::clone(&shared), listener, config.receives_max)
                .map_err(refused)?,
            shared,
            wish,
            enrolment,
            local,
            http,
            access,
            more_metrics: Vec::new(),
            uses: None,
            is_passing: config.is_passing,
            shutdown: watch::Sender::new(false),
        })
    }

    /// Its name in the cluster.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.shared.name
    }

    /// The Unix socket for applications.
    #[must_use]
    pub fn socket(&self) -> &Path {
        self.local.path()
    }

    /// Returns the address that other agents reach it at.
    #[must_use]
    pub fn control_address(&self) -> SocketAddr {
        self.shared.place().control
    }

    /// Returns the address of its page with metrics, if the settings have one.
    #[must_use]
    pub fn page(&self) -> Option<SocketAddr> {
        self.http.as_ref()?.local_addr().ok()
    }

    /// Shows these metrics, too, on the page with metrics.
    pub fn add_metrics(&mut self, more: impl Fn() -> Vec<Metric> + Send + Sync + 'static) {
        self.more_metrics.push(Box::new(more));
    }

    /// Tells of the use of endpoints in its status.
    pub fn add_uses(&mut self, uses: impl Fn() -> Vec<EndpointUse> + Send + Sync + 'static) {
        self.uses = Some(Box::new(uses));
    }

    /// Returns the folder of received objects.
    #[must_use]
    pub fn store(&self) -> PathBuf {
        self.shared.store.folder().to_path_buf()
    }

    /// Serves until `shutdown` is ready. Transfers that run then are cancelled, paths are released.
    ///
    /// # Errors
    /// The service broke down, or the manager refuses this agent: another one has its name, or the
    /// manager is of another version.
    pub async fn serve(self, shutdown: impl Future<Output = ()> + Send) -> Result<(), AgentError> {
        let Agent {
            shared,
            sends,
            streams,
            groups,
            objects,
            enrolment,
            local,
            http,
            access,
            more_metrics,
            uses,
            invitations,
            wish,
            is_passing,
            shutdown: ending,
        } = self;
        tracing::info!(name = %shared.name, control = %shared.place().control, socket = %local.path().display(),
            store = %shared.store.folder().display(), "the agent listens");
        let following = Following::start(&shared, wish);
        let service = Service::new(&shared, &sends, &streams, &groups, &objects);
        let grouping = tokio::spawn(groups.run(ending.subscribe()));
        let asking = tokio::spawn(Arc::clone(&objects).run(ending.subscribe()));
        let mut server_ending = ending.subscribe();
        let (incoming, _socket) = local.into_incoming();
        let services =
            Server::builder().add_service(AgentServer::new(service.telling(uses))).add_service(reflection()?);
        let server = services.serve_with_incoming_shutdown(incoming, async move {
            // The sender lives until the end of this function; without it this is the end too.
            let _ = server_ending.wait_for(|ends| *ends).await;
        });
        let invitations = tokio::spawn(invitations.run(ending.subscribe()));
        let expiring = tokio::spawn(expire(Arc::clone(&shared), ending.subscribe()));
        let removing = tokio::spawn(removals::serve(Arc::clone(&shared), ending.subscribe()));
        if let Some(listener) = http {
            let (shared, sends, more) = (Arc::clone(&shared), Arc::clone(&sends), more_metrics);
            show((listener, access), page::Page { shared, sends, objects, more }, ending.subscribe());
        }
        let mut linked = tokio::spawn(shared.link.clone().run(ending.subscribe()));
        let mut server = std::pin::pin!(server);
        let mut shutdown = std::pin::pin!(shutdown);
        let outcome = tokio::select! {
            served = &mut server => served.map_err(|error| AgentError::Serve(error.to_string())),
            refused = &mut linked => refused.unwrap_or_else(|error| Err(AgentError::Serve(error.to_string()))),
            () = renew(enrolment.as_ref(), &shared) => Ok(()),
            () = &mut shutdown => Ok(()),
        };
        sends.cancel_all();
        streams.close();
        shared.catalog.cancel_receives();
        let farewell = async {
            sends.ended().await;
            shared.catalog.receives_ended().await;
        };
        let _ = tokio::time::timeout(FAREWELL, farewell).await;
        let keeps = !is_passing && !shared.catalog.list(None).is_empty();
        shared.catalog.close();
        shared.link.leave(keeps).await;
        let _ = ending.send(true);
        if !matches!(outcome, Err(AgentError::Serve(_))) {
            let _ = tokio::time::timeout(FAREWELL, &mut server).await;
        }
        for task in [invitations, expiring, removing, asking, grouping] {
            let _ = tokio::time::timeout(FAREWELL, task).await;
        }
        drop(following);
        tracing::info!("the agent has ended");
        outcome
    }
}

/// Has heartbeats tell of this host, as long as the agent runs.
fn tell_of_host(shared: &Arc<Shared>, sends: &Arc<Sends>, groups: &Arc<Groups>) {
    let (here, sends, groups) = (Arc::downgrade(shared), Arc::downgrade(sends), Arc::downgrade(groups));
    shared.link.account_by(move || {
        let account = here.upgrade()?.account(sends.upgrade()?.count());
        Some(NodeReport { groups: groups.upgrade()?.account(), ..account })
    });
}

/// Listens for those who look at the agent's page, if there is one.
async fn page_listener(address: Option<SocketAddr>) -> Result<Option<tokio::net::TcpListener>, AgentError> {
    let Some(address) = address else { return Ok(None) };
    let listener = tokio::net::TcpListener::bind(address).await;
    listener.map(Some).map_err(|error| AgentError::listen(address, &error))
}

/// Builds the service that describes the agent's service to clients such as grpcurl, so that they need no
/// protos.
fn reflection() -> Result<ServerReflectionServer<impl ServerReflection>, AgentError> {
    let descriptors = Builder::configure().register_encoded_file_descriptor_set(AGENT_DESCRIPTORS);
    descriptors.build_v1().map_err(|error| AgentError::Serve(error.to_string()))
}

/// Serves the page for those who watch the agent, until it ends.
fn show(
    (listener, access): (tokio::net::TcpListener, Access),
    page: page::Page,
    mut ending: watch::Receiver<bool>,
) {
    let ended = async move {
        let _ = ending.wait_for(|ends| *ends).await;
    };
    tokio::spawn(polycast_api::http::serve(listener, Arc::new(page), access, ended));
}

/// Keeps the agent's certificate fresh, as long as the agent runs.
async fn renew(enrolment: Option<&Enrolment>, shared: &Shared) {
    match (enrolment, shared.sealing.security()) {
        (Some(enrolment), Some(security)) => enrolment.renew(&security).await,
        _ => std::future::pending().await,
    }
}

/// Removes what has been in the store for too long, now and then.
async fn expire(shared: Arc<Shared>, mut ending: watch::Receiver<bool>) {
    let Some(interval) = shared.limits.look_interval() else { return };
    while tokio::time::timeout(interval, ending.wait_for(|ends| *ends)).await.is_err() {
        let shared = Arc::clone(&shared);
        // Removing files may take a while.
        let looked =
            tokio::task::spawn_blocking(move || shared.limits.expire(&shared.catalog, &shared.store));
        let _ = looked.await;
    }
}

/// A thread that keeps the agent where its interface is. When this has been dropped it uses the agent no
/// more: its store may be another one's.
struct Following(Arc<Mutex<bool>>);

impl Following {
    fn start(shared: &Arc<Shared>, wish: Wish) -> Self {
        let ended = Arc::new(Mutex::new(false));
        let (shared, ends) = (Arc::downgrade(shared), Arc::clone(&ended));
        std::thread::spawn(move || place::follow(&shared, &wish, &ends));
        Following(ended)
    }
}

impl Drop for Following {
    fn drop(&mut self) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = true;
    }
}

/// Runs an agent until `shutdown` is ready.
///
/// # Errors
/// As [`Agent::start`] and [`Agent::serve`].
pub async fn run(config: AgentConfig, shutdown: impl Future<Output = ()> + Send) -> Result<(), AgentError> {
    Agent::start(config).await?.serve(shutdown).await
}
