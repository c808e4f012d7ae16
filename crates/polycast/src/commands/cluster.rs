//! The commands of a cluster: the daemons, and what the local agent is asked to do.

mod audit;
mod away;
mod bytes;
mod coming;
pub(crate) mod datacast;
mod drain;
mod fetch;
mod forwarder;
pub(crate) mod group;
pub(crate) mod hf;
pub(crate) mod image;
mod labels;
mod manager_status;
pub(crate) mod names;
mod nodes;
mod pin;
mod place;
mod removal;
mod setup;
mod status;
pub(crate) mod stream;
mod token;
mod topic;
mod transfers;
pub(crate) mod warm;
pub(crate) mod why;

use super::destination::{Destination, Present};
use super::spool;
use crate::args::SlowChoice;
use crate::args::cluster::{
    Admission, AgentArgs, Command, Destinations, ExtendArgs, GetArgs, IdentityArgs, LocalArgs, ManagerArgs,
    SendArgs, WithdrawArgs,
};
use crate::args::place::is_name;
use crate::cancel::Hangup;
use crate::exit::{AGENT_LOST, Exit, Failure, plain};
use crate::object::{self, Named, Reading};
use crate::output::{self, Format};
use crate::progress::Progress;
use crate::report;
use bytes::{Bytes, Taken};
use names::Which;
use polycast_agent::daemon::{Agent, AgentConfig, AgentError};
use polycast_api::agent::send_event::Event;
use polycast_api::agent::{Granted, Object, ObjectKind, PathForm, TransferReport, Waiting};
use polycast_api::client::{
    AgentClient, ClientError, Extension, Receivers, Selected, SendOptions, Session, Slow, Wait,
    default_socket,
};
use polycast_api::documents;
use polycast_api::error::Kind;
use polycast_api::report::{Delivery, ReceiverReport, Report};
use polycast_api::settings::{HubConfig, OciConfig};
use polycast_gateway::{Counts, Gateway};
use polycast_manager::{Manager, ManagerConfig, ManagerError, check};
use polycast_net::archive::{self, TreeSource};
use polycast_net::hash::{hash_of, hex};
use polycast_net::interface;
use polycast_net::object::{FileSource, ObjectSource};
use polycast_net::tls::IdentityFiles;
use polycast_types::{AppId, DataId, ObjectId, Printable, format_bytes};
use sd_notify::NotifyState;
use serde_json::{Value, json};
use std::collections::HashMap;
use std::fmt::Write as _;
use std::fs::File;
use std::io::{self, Read};
use std::net::IpAddr;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::runtime::Runtime;
use tokio::signal::unix::{Signal, SignalKind, signal};

/// Bytes copied at a time.
const COPY_LEN: usize = 1 << 20;
/// Time limit for a cancelled transfer to release its object.
const FORGET_WITHIN: Duration = Duration::from_secs(5);
/// Remedy for a delivery that was cut off at this end.
const GOES_ON: &str = "receivers keep what they have verified: the same command goes on from there";
/// Receivers that have an object, where others do not, are named up to so many.
const HAVE_NAMED_MAX: usize = 8;
/// Interval at which the release is checked.
const FORGET_AGAIN: Duration = Duration::from_millis(20);

pub(super) fn runtime() -> Result<Runtime, Failure> {
    Runtime::new().map_err(|error| Failure::unexpected(format!("cannot start: {error}")))
}

/// The signals by which the user or the system asks to end; none is missed from `watch` on.
struct Ending {
    interrupt: Signal,
    terminate: Signal,
    hangup: Hangup,
}

impl Ending {
    /// Needs a runtime around it.
    fn watch() -> Result<Self, Failure> {
        let wrong = |error| Failure::unexpected(format!("cannot watch for signals: {error}"));
        let interrupt = signal(SignalKind::interrupt()).map_err(wrong)?;
        let terminate = signal(SignalKind::terminate()).map_err(wrong)?;
        let hangup = Hangup::watch().map_err(wrong)?;
        Ok(Ending { interrupt, terminate, hangup })
    }

    async fn asked(mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
            () = self.hangup.recv() => {}
        }
        crate::cancel::ask();
    }

    /// The same, or, where that counts, the end of standard input: it comes also when the program that has
    /// started this one is killed.
    async fn asked_or_input_ends(self, input_counts: bool) {
        if !input_counts {
            return self.asked().await;
        }
        let (sender, ended) = tokio::sync::oneshot::channel();
        std::thread::spawn(move || {
            // An input that cannot be read has ended, too.
            let _ = io::copy(&mut io::stdin().lock(), &mut io::sink());
            let _ = sender.send(());
        });
        tokio::select! {
            () = self.asked() => {}
            _ = ended => {}
        }
    }
}

impl IdentityArgs {
    fn files(&self) -> IdentityFiles {
        IdentityFiles {
            key_file: self.key_file.clone(),
            tls_ca: self.tls_ca.clone(),
            tls_cert: self.tls_cert.clone(),
            tls_key: self.tls_key.clone(),
            tls_crl: self.tls_crl.clone(),
        }
    }
}

/// Runs a daemon, or asks the local agent for something.
pub(super) fn run(command: &Command, format: Format) -> Result<Exit, Failure> {
    if matches!(command, Command::Manager(_) | Command::Agent(_) | Command::Forwarder(_)) {
        // They run for months.
        polycast_net::heap::share_heaps();
    }
    match command {
        Command::Manager(args) => manager(args, format),
        Command::Agent(args) => agent(args, format),
        Command::Forwarder(args) => forwarder::run(args, format),
        Command::LabelSwitch(args) => labels::switch(args, format),
        Command::RackAgent(args) => labels::rack_agent(args, format),
        Command::Send(args) => send(args, format),
        Command::Datacast(args) => datacast::run(args, format),
        Command::Extend(args) => extend(args, format),
        Command::Withdraw(args) => withdraw(args, format),
        Command::Stream(args) => stream::run(args, format),
        Command::Group(args) => group::run(args, format),
        Command::Get(args) => get(args, format),
        Command::Fetch(args) => fetch::run(args, format),
        Command::Hf(args) => hf::run(args, format),
        Command::Image(args) => image::run(args, format),
        Command::Warm(args) => warm::run(args, format),
        Command::Publish(args) => topic::publish(args, format),
        Command::Subscribe(args) => topic::subscribe(args, format),
        Command::Ls(args) => ls(args, format),
        Command::Rm(args) => removal::rm(args, format),
        Command::Pin(args) => pin::run(args, true, format),
        Command::Unpin(args) => pin::run(args, false, format),
        Command::Status(args) if args.manager => manager_status::run(&args.local, format),
        Command::Status(args) if args.watch => status::watch(&args.local, format),
        Command::Status(args) => status::run(&args.local, format),
        Command::Why(args) => why::run(args, format),
        Command::Transfers(args) => transfers::run(args, format),
        Command::Nodes(args) => nodes::run(args, format),
        Command::Drain(args) => drain::drain(args, format),
        Command::Undrain(args) => drain::undrain(args, format),
    }
}

/// Keeps tokens and audit logs, beside a manager.
pub(super) fn admission(command: &Admission, format: Format) -> Result<Exit, Failure> {
    match command {
        Admission::Token(args) => token::run(&args.command, format),
        Admission::Audit(args) => audit::run(&args.command, format),
        Admission::Setup(args) => setup::run(&args.command, format),
    }
}

/// Daemons listen to other machines only if these show a key or certificate, or the user has said that they
/// need not.
fn check_door(daemon: &str, address: IpAddr, has_identity: bool, insecure: bool) -> Result<(), Failure> {
    if address.is_loopback() || insecure || has_identity {
        return Ok(());
    }
    let message =
        format!("the {daemon} would take part with every machine that reaches {address}, and seal nothing");
    Err(Failure::input(message).hint(
        "give it the cluster's key: polycast key new cluster.key, and on each machine --key-file cluster.key; or certificates with \
         --tls-ca, --tls-cert and --tls-key; or start the manager with --ca and agents with --token; \
         or say --insecure (in its settings: insecure = true)",
    ))
}

/// `polycast manager`
fn manager(args: &ManagerArgs, format: Format) -> Result<Exit, Failure> {
    let mut config = match &args.config {
        Some(path) => ManagerConfig::load(path).map_err(|error| Failure::input(error.to_string()))?,
        None => ManagerConfig::default(),
    };
    if let Some(listen) = args.listen {
        config.listen = listen;
    }
    if !args.etcd.is_empty() {
        config.etcd.endpoints = args.etcd.clone();
    }
    if args.advertise.is_some() {
        config.etcd.advertise = args.advertise.clone();
    }
    if args.check {
        let findings = runtime()?.block_on(async {
            let checked = match args.probe {
                true => check::check_and_probe(&config, Ending::watch()?.asked()).await,
                false => check::check(&config).await,
            };
            checked.map_err(|error| Failure::input(error.to_string()))
        })?;
        output::result(format, &findings, &findings.text())?;
        return Ok(if findings.ok { Exit::Done } else { Exit::Failed });
    }
    config.set_identity(args.identity.files());
    config.ca = args.ca.clone().or(config.ca);
    config.manager_name = args.manager_name.clone().unwrap_or(config.manager_name);
    config.insecure |= args.identity.insecure;
    let has_identity = config.ca.is_some() || config.identity() != IdentityFiles::default();
    check_door("manager", config.listen.ip(), has_identity, config.insecure)?;
    runtime()?.block_on(async {
        let ending = Ending::watch()?;
        let manager = Manager::bind(config).await?;
        let address = manager.address();
        let mut document = json!({ "listening": address.to_string() });
        let text = with_page(&mut document, format!("manager listens on {address}"), manager.page());
        ready(format, &document, &text)?;
        manager.serve(ending.asked_or_input_ends(args.life.until_input_ends)).await?;
        Ok(Exit::Done)
    })
}

/// `polycast agent`
fn agent(args: &AgentArgs, format: Format) -> Result<Exit, Failure> {
    let mut config = match &args.config {
        Some(path) => AgentConfig::load(path).map_err(|error| Failure::input(error.to_string()))?,
        None => AgentConfig::default(),
    };
    if let Some(manager) = &args.manager {
        config.manager.clone_from(manager);
    }
    config.name = args.name.clone().or(config.name);
    // Whatever starts the agent may have a variable without a value for them.
    let named = |name: &Option<String>| name.clone().filter(|name| !name.is_empty());
    config.rack = named(&args.rack).or(config.rack);
    config.zone = named(&args.zone).or(config.zone);
    config.interface = args.network.interface.clone().or(config.interface);
    config.control_port = args.port.or(config.control_port);
    config.set_identity(args.identity.files());
    config.token = args.token.clone().or(config.token);
    config.identity = args.identity_folder.clone().or(config.identity);
    config.manager_name = args.manager_name.clone().unwrap_or(config.manager_name);
    config.insecure |= args.identity.insecure;
    config.is_passing = args.life.until_input_ends;
    let interface = interface::resolve(config.interface.as_deref());
    let address = interface.map_err(|error| Failure::input(error.to_string()))?.address;
    let name = config.resolved_name();
    let has_identity =
        config.resolved_identity(&name).is_some() || config.identity_files() != IdentityFiles::default();
    check_door("agent", address, has_identity, config.insecure)?;
    config.store = args.store.clone().or(config.store);
    config.store_max = args.store_max.clone().or(config.store_max);
    config.store_ttl = args.store_ttl.clone().or(config.store_ttl);
    config.socket = args.local.socket.clone().or(config.socket);
    runtime()?.block_on(async {
        let ending = Ending::watch()?;
        let (hub, oci) = (config.hub.clone(), config.oci.clone());
        let mut agent = Agent::start(config).await?;
        let gateways = endpoints(hub.as_ref(), oci.as_ref(), &mut agent).await?;
        let (name, socket, control) = (agent.name().to_string(), agent.socket(), agent.control_address());
        let mut document = json!({
            "name": name, "socket": socket.display().to_string(), "control_address": control.to_string(),
        });
        let text = format!("agent {name} listens on {} and {control}", socket.display());
        let mut text = with_page(&mut document, text, agent.page());
        for (name, endpoint, gateway) in gateways {
            text = format!("{text}; {endpoint}");
            document[name] = endpoint[endpoint.find("http").unwrap_or(0)..].into();
            // It ends with the program.
            tokio::spawn(gateway.serve(std::future::pending()));
        }
        ready(format, &document, &text)?;
        agent.serve(ending.asked_or_input_ends(args.life.until_input_ends)).await?;
        Ok(Exit::Done)
    })
}

/// The endpoints that the agent's settings have: the name of each, and how it is told of.
async fn endpoints(
    hub: Option<&HubConfig>,
    oci: Option<&OciConfig>,
    agent: &mut Agent,
) -> Result<Vec<(&'static str, String, Gateway)>, Failure> {
    let refused = |listen: SocketAddr| {
        move |error: io::Error| Failure::input(format!("cannot listen on {listen}: {}", plain(&error)))
    };
    let (counts, mut gateways) = (Arc::new(Counts::default()), Vec::new());
    if let Some(hub) = hub {
        let gateway = Gateway::of_hub(hub, agent.socket(), Arc::clone(&counts)).await;
        let gateway = gateway.map_err(refused(hub.listen))?;
        gateways.push(("hub", format!("HF_ENDPOINT=http://{}/hf", gateway.address()), gateway));
    }
    if let Some(oci) = oci {
        let gateway = Gateway::of_images(oci, agent.socket(), Arc::clone(&counts)).await;
        let gateway = gateway.map_err(refused(oci.listen))?;
        gateways.push(("oci", format!("registry mirror http://{}", gateway.address()), gateway));
    }
    if !gateways.is_empty() {
        let told = Arc::clone(&counts);
        agent.add_uses(move || told.uses());
        agent.add_metrics(move || counts.metrics());
    }
    Ok(gateways)
}

/// Adds where a daemon's page is, if it has one.
fn with_page(document: &mut Value, text: String, page: Option<SocketAddr>) -> String {
    let Some(page) = page else { return text };
    document["http"] = page.to_string().into();
    format!("{text}; page at http://{page}/view, metrics at /metrics")
}

/// Says that a daemon is ready: to people on standard error, to programs on standard output, to the service
/// manager that started it where it asked for that.
fn ready(format: Format, document: &Value, text: &str) -> Result<(), Failure> {
    if let Err(error) = sd_notify::notify(&[NotifyState::Ready, NotifyState::Status(text)]) {
        tracing::warn!(%error, "the service manager cannot be told");
    }
    match format {
        Format::Json => output::result(format, document, ""),
        Format::Text => {
            output::say(text);
            Ok(())
        }
    }
}

pub(super) async fn connect(local: &LocalArgs) -> Result<AgentClient, Failure> {
    let socket = local.socket.clone().unwrap_or_else(default_socket);
    Ok(AgentClient::connect(&socket).await?)
}

async fn register(local: &LocalArgs, app: AppId) -> Result<Session, Failure> {
    Ok(connect(local).await?.register(app, u64::from(std::process::id())).await?)
}

/// Does `work` in a registered session, which ends with it.
async fn in_session<T>(
    local: &LocalArgs,
    app: AppId,
    work: impl AsyncFnOnce(&Session) -> Result<T, Failure>,
) -> Result<T, Failure> {
    let session = register(local, app).await?;
    let outcome = work(&session).await;
    // An agent that is gone needs no goodbye.
    let _ = session.unregister().await;
    outcome
}

/// `polycast send`
fn send(args: &SendArgs, format: Format) -> Result<Exit, Failure> {
    object::deliver_unchanged(
        args.choice.read.retry_changed,
        // Looked at here, because the agent may run as another user and elsewhere.
        || object::open_chosen(&args.choice, Reading::InPlace),
        |object, left| send_once(args, object, left > 0, format),
    )
}

/// Sends an object once; where it may be sent `again`, that it was changed is an error whatever receivers
/// say.
fn send_once(args: &SendArgs, object: Named, again: bool, format: Format) -> Result<Exit, Failure> {
    let (id, delivery, missed) = send_for(args, object, again)?;
    if let Some(how) = how_to_get(id, &delivery) {
        output::say(&how);
    }
    let exit = report::conclude_without(&delivery, &missed, format)?;
    let broke_off = |receiver: &ReceiverReport| receiver.error.is_some() && receiver.bytes > 0;
    if delivery.report.receivers.iter().any(broke_off) {
        output::say(&format!("hint: {GOES_ON}"));
    }
    Ok(exit)
}

/// Sends a file to agents that are named; gives its id, too.
pub(super) fn sent(args: &SendArgs) -> Result<(ObjectId, Delivery), Failure> {
    let object = object::open_chosen(&args.choice, Reading::InPlace)?;
    send_for(args, object, false).map(|(id, delivery, _)| (id, delivery))
}

/// The name of the local agent.
pub(super) fn own_name(local: &LocalArgs) -> Result<String, Failure> {
    runtime()?
        .block_on(in_session(local, AppId::default(), async |session| Ok(session.agent_name().to_string())))
}

/// The object's id, what has become of it, and agents that were not there with the milliseconds of their
/// silence.
type Account = (ObjectId, Delivery, Vec<(String, u64)>);

fn send_for(args: &SendArgs, object: Named, again: bool) -> Result<Account, Failure> {
    let paths = match &object.spool {
        Some(spool) => vec![spool.path()],
        None => args.choice.paths.clone(),
    };
    if args.files {
        bytes::check_set(object.kind)?;
    }
    let name = object.name;
    let (stamp, bytes) = (object.source.stamp(), Bytes { kind: object.kind, source: object.source });
    let object_is_passing = object.spool.is_some();
    let receivers = receivers(&args.to);
    let options = send_options(args);
    let app = args.id.map(|id| id.app).unwrap_or_default();
    runtime()?.block_on(in_session(&args.local, app, async |session| {
        let ending = Ending::watch()?;
        if args.replace && is_untrusted(session) {
            let message =
                "--replace removes objects at other machines, which only root and the agent's user may";
            return Err(Failure::input(message).hint("take another name (--as) or --id"));
        }
        if args.files {
            bytes::check_paths(session)?;
        }
        let data = match args.id {
            Some(id) => id.data,
            None => {
                names::id_of(&names::Whose::of(session), &paths, &name, names::stamp_of(stamp, args.files))
            }
        };
        let add = async || {
            if session.is_other_user() {
                return bytes.put(session, data, &name, args.private, args.id.is_some()).await;
            }
            match args.files {
                true => session.add_set(data, &paths, &name, &selected(args)).await,
                false => session.add_all(data, &paths, &name, &selected(args)).await,
            }
        };
        let was_there = !args.replace && is_there(&args.local, ObjectId { app, data }).await?;
        let object = if args.replace {
            removal::add_instead(session, data, add, args.id.is_some(), &receivers).await?
        } else {
            add().await.map_err(taken)?
        };
        let progress = Progress::start(&format!("waiting for a path for {}", object.name));
        let outcome = tokio::select! {
            outcome = follow(session, data, (&receivers, &options), &progress) => outcome,
            () = ending.asked() => Err(Failure::cancelled().hint(GOES_ON)),
        };
        progress.finish();
        let outcome = outcome.and_then(|report| match again && !is_at_all(&report) {
            true => object::changed(&*bytes.source).map_or(Ok(report), Err),
            false => Ok(report),
        });
        if (outcome.is_err() && !was_there) || object_is_passing {
            forget(session, data).await;
        }
        let report = outcome.map_err(with_hint)?;
        if args.replace {
            removal::retire(session, data, &name, &report).await?;
        }
        let missed = match &args.to {
            Destinations::All => missed(&args.local, session.agent_name(), &report).await?,
            Destinations::Named(_) => Vec::new(),
        };
        Ok((ObjectId { app, data }, Delivery::new(&object.name, report), missed))
    }))
}

/// Says what to do where the agent has gone.
fn with_hint(failure: Failure) -> Failure {
    if failure.kind == AGENT_LOST { failure.hint(GOES_ON) } else { failure }
}

fn is_at_all(report: &Report) -> bool {
    report.receivers.iter().all(|receiver| receiver.verified)
}

fn selected(args: &SendArgs) -> Selected {
    let exclude = args.choice.exclude.iter().map(ToString::to_string).collect();
    Selected { exclude, follow: args.choice.read.follow, private: args.private }
}

fn send_options(args: &SendArgs) -> SendOptions {
    let slow = match args.slow {
        SlowChoice::Wait => Slow::Wait,
        SlowChoice::Drop => Slow::Drop { after: None },
        SlowChoice::CatchUp => Slow::CatchUp { after: None },
    };
    SendOptions {
        deadline: args.timeout,
        slow: Some(slow),
        lease: args.lease,
        fabric: args.fabric.clone(),
        or_fail: args.or_fail,
        first_byte: args.first.unwrap_or(0),
        pull: args.pull.clone(),
        ..SendOptions::default()
    }
}

/// The agents that were not there when an object went to all, as far as the manager knew them: names, and how
/// long they have been silent.
async fn missed(local: &LocalArgs, own: &str, report: &Report) -> Result<Vec<(String, u64)>, Failure> {
    let status = connect(local).await?.status().await?;
    let reached = |name: &String| name == own || report.receivers.iter().any(|one| one.name == *name);
    let known = status.peers.into_iter().chain(status.lost).map(|peer| (peer.name, peer.silent_ms));
    Ok(known.filter(|(name, _)| !reached(name)).collect())
}

fn receivers(to: &Destinations) -> Receivers {
    match to {
        Destinations::All => Receivers::All,
        Destinations::Named(names) => Receivers::Named(names.clone()),
    }
}

/// Returns true if a command that asks for an object accepts this one by its name.
fn is_typed(id: ObjectId, name: &str) -> bool {
    let by_name = id.app == AppId::default() && is_name(name) && name.parse::<ObjectId>().is_err();
    // Others may call it oddly: what is typed is no place for quotes of a shell.
    by_name && name.chars().all(|c| c.is_ascii_alphanumeric() || "._-+=@%".contains(c))
}

/// Returns the command to type where an object has come: with its id only if its name cannot be used. Where
/// it is nowhere there is none.
fn how_to_get(id: ObjectId, Delivery { name, report, .. }: &Delivery) -> Option<String> {
    let have = report.receivers.iter().filter(|receiver| receiver.verified);
    let have: Vec<String> = have.map(|receiver| Printable(&receiver.name).to_string()).collect();
    let place = match have.len() {
        0 => return None,
        all if all == report.receivers.len() => "the receivers".to_string(),
        1..=HAVE_NAMED_MAX => have.join(", "),
        many => format!("the {many} receivers that have it"),
    };
    let which = if is_typed(id, name) { name.clone() } else { id.to_string() };
    Some(format!("on {place}: polycast get {which}"))
}

/// Adds a hint to the error about an id that belongs to something else.
fn taken(error: ClientError) -> Failure {
    let taken = error.kind() == Some(Kind::ObjectTaken);
    let failure = Failure::from(error);
    if taken { failure.hint("take another --id, or say --replace") } else { failure }
}

/// Returns true if the local agent has this object already, such as a version that was published.
async fn is_there(local: &LocalArgs, id: ObjectId) -> Result<bool, Failure> {
    let objects = connect(local).await?.list(Some(id.app)).await?;
    Ok(objects.iter().any(|object| object.id().ok() == Some(id)))
}

/// Deletes an object that could not be sent, so that it does not remain under an id that the user may use
/// again. A cancelled transfer takes a moment to end.
async fn forget(session: &Session, data: DataId) {
    let begun = Instant::now();
    while let Err(error) = session.delete(data).await {
        if error.kind() != Some(Kind::ObjectBusy) || begun.elapsed() > FORGET_WITHIN {
            // Where the agent has gone the user has heard that already.
            if error.kind().is_some() {
                tracing::warn!(data = data.0, %error, "the object stays known to the agent");
            }
            return;
        }
        tokio::time::sleep(FORGET_AGAIN).await;
    }
}

fn account(report: TransferReport) -> Result<Report, Failure> {
    Ok(report.try_into().map_err(ClientError::from)?)
}

async fn follow(
    session: &Session,
    data: DataId,
    (receivers, options): (&Receivers, &SendOptions),
    progress: &Progress,
) -> Result<Report, Failure> {
    let mut sending = session.send(data, receivers, options).await?;
    while let Some(event) = sending.next().await? {
        match event {
            Event::Progress(report) => progress.delivery(&account(report)?),
            Event::Finished(report) => return account(report),
            Event::Waiting(waiting) => {
                if let Some(text) = waiting_text(&waiting) {
                    progress.waiting(&text);
                }
            }
            Event::Granted(granted) => progress.state(&granted_text(&granted)),
        }
    }
    Err(Failure::unexpected("the agent ended the transfer without a report"))
}

/// Describes the state of a request, once the manager has reported it.
fn waiting_text(waiting: &Waiting) -> Option<String> {
    let before = waiting.before?;
    let mut text = match before {
        0 => "waiting for a path, first in the queue".to_string(),
        1 => "waiting for a path, 1 request before this one".to_string(),
        _ => format!("waiting for a path, {before} requests before this one"),
    };
    if let Some(millis) = waiting.estimate_ms {
        let _ = write!(text, ", about {}", report::seconds(millis as f64 / 1e3));
    }
    Some(text)
}

fn granted_text(granted: &Granted) -> String {
    let seconds = |millis: u64| report::seconds(millis as f64 / 1e3);
    let mut text = format!("path granted over {}", Printable(&granted.fabric));
    if let Some(millis) = granted.service_ms {
        let _ = write!(text, ", about {} at its rate", seconds(millis));
    }
    if let Some(millis) = granted.lease_ms {
        let _ = write!(text, ", lent for {}", seconds(millis));
    }
    if let Some(estimate) = granted.estimate_s {
        let _ = write!(text, ", estimated {}", report::seconds(estimate));
    }
    for passed in &granted.passed_over {
        let _ = write!(text, "; not over {}: {}", Printable(&passed.fabric), Printable(&passed.why));
    }
    text
}

/// `polycast extend`
fn extend(args: &ExtendArgs, format: Format) -> Result<Exit, Failure> {
    let change = Extension { time: args.time, add: args.add.clone(), remove: args.remove.clone() };
    let granted = runtime()?.block_on(in_session(&args.local, args.id.app, async |session| {
        Ok(session.extend(args.id.data, &change).await?)
    }))?;
    let document = json!({
        "object": args.id.to_string(), "waiting": granted.is_none(),
        "path": granted.as_ref().map(documents::path),
    });
    let text = match &granted {
        Some(granted) => {
            let lent = granted.lease_ms.map_or_else(String::new, |millis| {
                format!(", lent for {}", report::seconds(millis as f64 / 1e3))
            });
            let receivers = output::counted(granted.receivers.len(), "receiver");
            format!("{}: {receivers} over {}{lent}", args.id, granted.fabric)
        }
        None => format!("{}: changed, still waiting for a path", args.id),
    };
    output::result(format, &document, &text)?;
    Ok(Exit::Done)
}

/// `polycast withdraw`
fn withdraw(args: &WithdrawArgs, format: Format) -> Result<Exit, Failure> {
    runtime()?.block_on(in_session(&args.local, args.id.app, async |session| {
        Ok(session.withdraw(args.id.data).await?)
    }))?;
    let document = json!({ "object": args.id.to_string(), "withdrawn": true });
    output::result(format, &document, &format!("withdrawn {}", args.id))?;
    Ok(Exit::Done)
}

/// Returns true if the agent refuses this user requests that concern other machines.
fn is_untrusted(session: &Session) -> bool {
    session.is_other_user() && !rustix::process::geteuid().is_root()
}

/// `polycast get`
fn get(args: &GetArgs, format: Format) -> Result<Exit, Failure> {
    let place = Destination::check(&args.place)?;
    output::check_alone(format, place == Destination::Stdout)?;
    let present = Present::of(&args.place);
    // What comes over the socket comes while it runs.
    let runtime = runtime()?;
    let (id, object, taken) = runtime.block_on(async {
        let id = match &args.which {
            Which::Id(id) => *id,
            name => name.newest_among(&connect(&args.local).await?.list(Some(name.app())).await?)?,
        };
        let read = in_session(&args.local, id.app, async |session| {
            let progress = Progress::start(&format!("asking for {}", args.which));
            let read = session.read(id.data, Wait::WhileComing(None));
            let object = coming::shown(&args.local, (id, &args.which.to_string()), &progress, read).await?;
            let taken = bytes::take(session, &object).await?;
            Ok((object, taken))
        });
        let (object, taken) = read.await?;
        Ok::<_, Failure>((id, object, taken))
    })?;
    let (name, len) = (Printable(&object.name), format_bytes(object.length));
    let Some((target, unchanged)) = place_at(&object, taken, &place, present)? else { return Ok(Exit::Done) };
    let document = json!({
        "object": id.to_string(), "name": object.name, "kind": documents::kind(&object), "bytes": object.length,
        "root": object.root, "path": target.display().to_string(), "unchanged": unchanged,
    });
    let how = if unchanged { " is up to date" } else { "" };
    let target = target.display().to_string();
    output::result(format, &document, &format!("{name} ({len}){how}: {}", Printable(&target)))?;
    Ok(Exit::Done)
}

/// Puts an object of the agent's where it is wanted, from where it lies or as it is taken; gives where, and
/// whether it was there already. `None` where it went to standard output.
fn place_at(
    object: &Object,
    taken: Option<Taken>,
    place: &Destination,
    present: Present,
) -> Result<Option<(PathBuf, bool)>, Failure> {
    let from = PathBuf::from(&object.path);
    let Some(target) = place.path_of(&object.name)? else {
        match taken {
            Some(taken) => spool::to_stdout(taken)?,
            None => stdout(object, &from)?,
        }
        output::beside(&format!("{} ({})", Printable(&object.name), format_bytes(object.length)));
        return Ok(None);
    };
    place.check_present(&target, present)?;
    let progress = Progress::start(&format!("writing {}", Printable(&target.to_string_lossy())));
    let unchanged = present == Present::Updated && is_equal(object, &target);
    if !unchanged {
        match taken {
            Some(taken) => put_taken(object, taken, &target, present.goes())?,
            None => put(object, &from, &target, present.goes())?,
        }
        progress.finish();
        if matches!(object.kind(), ObjectKind::Directory | ObjectKind::Set) {
            object::say_links(&target);
        }
    }
    Ok(Some((target, unchanged)))
}

/// Copies an object to its place.
fn put(object: &Object, from: &Path, target: &Path, replace: bool) -> Result<(), Failure> {
    match (object.kind() == ObjectKind::Directory, object.form()) {
        (true, PathForm::Directory) => {
            unpack(Stream { source: &TreeSource::open(from)?, at: 0 }, target, replace)
        }
        (true, PathForm::Unspecified) => {
            let message = format!("{} was made of chosen paths here, which are where they were", object.name);
            Err(Failure::input(message).hint("get it on a receiver"))
        }
        (true, PathForm::Bytes) => {
            let file = File::open(from).map_err(|error| Failure::path("read", from, &error))?;
            unpack(file, target, replace)
        }
        (false, _) => place::copy(from, target, place::How::of(object, replace)),
    }
}

/// Puts what comes over the socket to its place.
fn put_taken(object: &Object, taken: Taken, target: &Path, replace: bool) -> Result<(), Failure> {
    // The agent gives a set as the stream of its directory.
    if matches!(object.kind(), ObjectKind::Directory | ObjectKind::Set) {
        return unpack(taken, target, replace);
    }
    place::taken(taken, object.length, target, place::How::of(object, replace))
}

/// Gives an object's bytes to the program that reads standard output: those of a directory are a tar stream.
fn stdout(object: &Object, from: &Path) -> Result<(), Failure> {
    if object.form() == PathForm::Directory {
        return spool::to_stdout(Stream { source: &TreeSource::open(from)?, at: 0 });
    }
    spool::to_stdout(File::open(from).map_err(|error| Failure::path("read", from, &error))?)
}

/// Returns true if the file or directory at `target` already has the object's bytes.
fn is_equal(object: &Object, target: &Path) -> bool {
    let held: Box<dyn ObjectSource> = if object.kind() == ObjectKind::Directory {
        let Ok(tree) = archive::present(target) else { return false };
        Box::new(tree)
    } else {
        let Ok(file) = FileSource::open(target) else { return false };
        Box::new(file)
    };
    held.len() == object.length && hash_of(&*held).is_ok_and(|root| hex(&root) == object.root)
}

/// An object source read from its beginning to its end.
struct Stream<'a> {
    source: &'a TreeSource,
    at: u64,
}

impl Read for Stream<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let left = self.source.len() - self.at;
        let len = usize::try_from(left).unwrap_or(usize::MAX).min(buffer.len());
        self.source.read_exact_at(&mut buffer[..len], self.at)?;
        self.at += len as u64;
        Ok(len)
    }
}

fn unpack(reader: impl Read, target: &Path, replace: bool) -> Result<(), Failure> {
    archive::unpack(io::BufReader::with_capacity(COPY_LEN, reader), target, replace)?;
    Ok(())
}

/// `polycast ls`
fn ls(local: &LocalArgs, format: Format) -> Result<Exit, Failure> {
    let (objects, rests) = runtime()?.block_on(async {
        let client = connect(local).await?;
        let (objects, status) = (client.list(None).await?, client.status().await?);
        Ok::<_, Failure>((objects, status.rests.len()))
    })?;
    let documents: Vec<Value> = objects.iter().map(documents::object).collect();
    let mut text = String::new();
    let mut names: HashMap<&str, usize> = HashMap::new();
    for object in &objects {
        *names.entry(&object.name).or_default() += 1;
    }
    for (object, document) in objects.iter().zip(&documents) {
        let field = |name: &str| document[name].as_str().unwrap_or_default().to_string();
        let (len, name) = (format_bytes(object.length), Printable(&object.name));
        let state = documents::percent(object).map_or(field("state"), |percent| format!("{percent:>3} %"));
        let _ = write!(text, "{state:9}  {len:>10}  {name}");
        let others = names[object.name.as_str()] > 1;
        let typed = object.id().is_ok_and(|id| is_typed(id, &object.name));
        let _ = match typed && !others {
            true => writeln!(text),
            false => writeln!(text, "  (id {})", field("object")),
        };
    }
    if text.is_empty() {
        text.push_str("no objects\n");
    }
    if rests > 0 {
        let _ = writeln!(text, "and rests of {rests} that did not come: polycast status");
    }
    output::result(format, &documents, text.trim_end())?;
    Ok(Exit::Done)
}

impl From<ClientError> for Failure {
    fn from(error: ClientError) -> Self {
        let kind = error.kind().unwrap_or(match error {
            ClientError::Lost(_) => Kind::Internal,
            ClientError::Path { .. } => Kind::Path,
            _ => Kind::Invalid,
        });
        let failure = Failure::of(kind, error.to_string());
        match error {
            ClientError::Unreachable { .. } => Failure { kind: "agent-unreachable", ..failure },
            ClientError::Forbidden { .. } | ClientError::Stranger { .. } => {
                Failure { kind: "socket-permission", ..failure }
            }
            ClientError::Lost(_) => Failure { kind: AGENT_LOST, ..failure },
            _ => failure,
        }
    }
}

impl From<ManagerError> for Failure {
    fn from(error: ManagerError) -> Self {
        Failure::input(error.to_string())
    }
}

impl From<AgentError> for Failure {
    fn from(error: AgentError) -> Self {
        match error {
            AgentError::Serve(_) => Failure::unexpected(error.to_string()),
            _ => Failure::input(error.to_string()),
        }
    }
}
