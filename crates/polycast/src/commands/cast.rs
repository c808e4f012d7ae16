//! `polycast cast`: source and receivers in this process, over the loopback interface.

use super::network;
use crate::args::CastArgs;
use crate::cancel;
use crate::exit::{Exit, Failure};
use crate::object::{self, Named, Reading};
use crate::output::{self, Format};
use crate::progress::Progress;
use crate::report::{self, Copies};
use polycast_agent::transfer::{
    self, Options, Path as DataPath, Received, ReceiverSpec, Receivers, Rendezvous, Report, Sealing, Sink,
    SourceSpec,
};
use polycast_api::error::Kind;
use polycast_api::report::Delivery;
use polycast_net::archive;
use polycast_net::object::ObjectKind;
use polycast_net::scratch::{self, Scratch};
use polycast_net::seal::Secret;
use polycast_net::store::check_target;
use polycast_net::tls::Security;
use polycast_types::format_bytes;
use std::fs;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Room that the receivers leave to others on a file system in memory, in bytes.
const SPARE_ROOM: u64 = 64 << 20;
/// Begins and ends the names of folders with copies that are not kept.
const STAGE_PREFIX: &str = "polycast-cast-";
const STAGE_SUFFIX: &str = ".stage";

/// Delivers to receivers of our own.
pub(super) fn run(args: &CastArgs, format: Format) -> Result<Exit, Failure> {
    let read = &args.read;
    object::deliver_unchanged(
        read.retry_changed,
        || object::open(&args.path, read.follow, Reading::AsItIs),
        |object, _| cast(args, object, format),
    )
}

fn cast(args: &CastArgs, object: Named, format: Format) -> Result<Exit, Failure> {
    let name = object.name.clone();
    let stage = Stage::new(args, object.source.len())?;
    let folders = stage.folders(args.receivers)?;
    check_copies(args, &object, &folders)?;
    let cancel = cancel::on_signals()?;
    let progress = Progress::start(&format!("delivering {name}"));
    let outcome = perform(args, object, &folders, &cancel, &progress);
    progress.finish();
    let (mut report, received) = outcome?;
    // They joined in any order; people count.
    report.receivers.sort_by_key(|receiver| (receiver.name.len(), receiver.name.clone()));
    let mut copies = Copies::new();
    for (number, outcome) in received.into_iter().enumerate() {
        let name = receiver_name(number);
        if let Some(receiver) = report.receivers.iter_mut().find(|receiver| receiver.name == name) {
            match outcome {
                Ok(received) if args.out.is_some() => drop(copies.insert(name, received.path)),
                Ok(_) => {}
                // The receiver itself knows best why it failed.
                Err(failure) => {
                    receiver.verified = false;
                    receiver.kind = Some(failure.kind.to_string());
                    receiver.reason = Some(failure.message.clone());
                    receiver.error = Some(failure.message);
                }
            }
        }
    }
    let delivery = Delivery::new(&name, report);
    output::result(format, &report::document(&delivery, &copies)?, &report::text(&delivery, &copies))?;
    Ok(report::complain(&delivery.report))
}

fn receiver_name(number: usize) -> String {
    format!("receiver-{}", number + 1)
}

/// Runs source and receivers, and returns what the source reports and what each receiver got.
fn perform(
    args: &CastArgs,
    object: Named,
    folders: &[PathBuf],
    cancel: &Arc<AtomicBool>,
    progress: &Progress,
) -> Result<(Report, Vec<Result<Received, Failure>>), Failure> {
    let sealing = match args.plain {
        true => Sealing::Plain,
        false => Sealing::By(Security::shared(&Secret::fresh())),
    };
    let (loss, seed, update) = (args.loss, args.seed, args.update);
    let options = Options { loss, seed, update, sealing, ..Options::default() };
    let interface = Ipv4Addr::LOCALHOST.into();
    let copy = object.name.clone();
    let source = transfer::prepare(SourceSpec {
        object: network::fresh_object(),
        name: object.name,
        kind: object.kind,
        source: object.source,
        root: None,
        receivers: Receivers::Told(folders.len()),
        location: polycast_types::Location::default(),
        interface,
        path: DataPath::Multicast {
            group: network::fresh_group(interface),
            rate: None,
            attempts: None,
            outer: Vec::new(),
        },
        options: options.clone(),
        cancel: Arc::clone(cancel),
        steering: Arc::default(),
    })?;
    let rendezvous = Rendezvous::At(source.control_address(), source.handle());
    std::thread::scope(|scope| {
        let mut receivers = Vec::new();
        for (number, folder) in folders.iter().enumerate() {
            let spec = ReceiverSpec {
                name: receiver_name(number),
                rendezvous: rendezvous.clone(),
                called: None,
                location: polycast_types::Location::default(),
                interface,
                sink: Sink::At { path: folder.join(&copy), replace: args.force },
                options: options.clone(),
                cancel: Arc::clone(cancel),
            };
            let thread = std::thread::Builder::new().name(spec.name.clone());
            let spawned = thread.spawn_scoped(scope, || transfer::receive(spec, &mut |_| ()));
            match spawned {
                Ok(receiver) => receivers.push(receiver),
                Err(error) => {
                    cancel.store(true, Ordering::Relaxed);
                    return Err(Failure::unexpected(format!("cannot start a receiver: {error}")));
                }
            }
        }
        let report = source.run(&mut |report| progress.delivery(report));
        if report.is_err() {
            cancel.store(true, Ordering::Relaxed);
        }
        let received = receivers.into_iter().map(|receiver| match receiver.join() {
            Ok(outcome) => outcome.map_err(Failure::from),
            Err(_) => Err(Failure::unexpected("the receiver broke down")),
        });
        let received = received.collect();
        Ok((report?, received))
    })
}

/// Says before anything is sent what the receivers would say: that something has their copies' name already.
fn check_copies(args: &CastArgs, object: &Named, folders: &[PathBuf]) -> Result<(), Failure> {
    for folder in folders.iter().filter(|_| !args.force && !args.update) {
        let copy = folder.join(&object.name);
        match object.kind {
            ObjectKind::Directory | ObjectKind::Set => archive::check_target(&copy, false)?,
            // What is wrong with one receiver's place concerns that one.
            ObjectKind::File if copy.is_dir() => {}
            ObjectKind::File => {
                check_target(&copy, false).map_err(|error| Failure::writing(&error))?;
            }
        }
    }
    Ok(())
}

/// Folder in which the receivers put their copies.
enum Stage {
    /// Below the folder that the user named.
    Kept(PathBuf),
    /// In a folder that is removed afterwards.
    Passing(Scratch),
}

impl Stage {
    fn new(args: &CastArgs, object_bytes: u64) -> Result<Self, Failure> {
        if let Some(out) = &args.out {
            if out.exists() && !out.is_dir() {
                let message = format!("{} is no folder", out.display());
                return Err(Failure::place(message)
                    .hint("--out names a folder, which gets a copy of each receiver's"));
            }
            fs::create_dir_all(out).map_err(|error| Failure::path("write to", out, &error))?;
            return Ok(Stage::Kept(out.clone()));
        }
        let needed = object_bytes.saturating_mul(args.receivers as u64);
        let places = [PathBuf::from("/dev/shm"), std::env::temp_dir()];
        for place in &places {
            // What casts that were killed have left may be the room that is needed.
            scratch::sweep(place, |name| scratch::is_between(name, STAGE_PREFIX, STAGE_SUFFIX));
            let name = |number: &str| format!("{STAGE_PREFIX}{number}{STAGE_SUFFIX}").into();
            if room_in(place).is_some_and(|room| room >= needed.saturating_add(SPARE_ROOM))
                && let Ok(stage) = Scratch::make(place, name)
            {
                return Ok(Stage::Passing(stage));
            }
        }
        let message = format!(
            "there is no room for {} copies of {} each in {} or {}",
            args.receivers,
            format_bytes(object_bytes),
            places[0].display(),
            places[1].display(),
        );
        Err(Failure::of(Kind::StoreFull, message)
            .hint("take fewer --receivers, or name a folder with more room as --out"))
    }

    /// A folder for each receiver's copy.
    fn folders(&self, receivers: usize) -> Result<Vec<PathBuf>, Failure> {
        let root = match self {
            Stage::Kept(path) => path.as_path(),
            Stage::Passing(stage) => stage.path(),
        };
        let folder = |number| {
            let folder = root.join(receiver_name(number));
            fs::create_dir_all(&folder).map_err(|error| Failure::path("write to", &folder, &error))?;
            Ok(folder)
        };
        (0..receivers).map(folder).collect()
    }
}

/// Bytes that may be written to the file system of `path`.
fn room_in(path: &Path) -> Option<u64> {
    let system = rustix::fs::statvfs(path).ok()?;
    Some(system.f_bavail.saturating_mul(system.f_frsize))
}
