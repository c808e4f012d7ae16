//! `polycast accept`: a receiver's side between machines without daemons.

use super::code::CodeArg;
use super::destination::{Destination, Present};
use super::meeting;
use super::network::{self, ACCEPT_PORT};
use super::spool::Spool;
use crate::args::AcceptArgs;
use crate::exit::{Exit, Failure};
use crate::output::{self, Format};
use crate::progress::{Arrived, Progress};
use crate::report::Acceptance;
use crate::{cancel, object};
use polycast_agent::transfer::{
    self, Announced, Listen, Options, ReceiverSpec, Rendezvous, Sealing, Search, Sink, TransferError,
};
use polycast_net::archive::is_free;
use polycast_net::store::{StoreError, check_name, check_target};
use polycast_types::{Handle, Printable};
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;

/// Waits for an offer and receives it.
pub(super) fn run(args: &AcceptArgs, format: Format) -> Result<Exit, Failure> {
    let (place, present) = (Destination::check(&args.place)?, Present::of(&args.place));
    output::check_alone(format, place == Destination::Stdout)?;
    let code = CodeArg::of_words(&args.search.code)?.map(|code| code.code()).transpose()?;
    let spool = if place == Destination::Stdout { Some(Spool::new()?) } else { None };
    let sink = sink_of(&place, present, spool.as_ref());
    let (door, location) = (&args.search, network::location(args.zone.as_deref())?);
    let from = door.from.as_deref().map(network::addresses).transpose()?.unwrap_or_default();
    let interface = network::interface_towards(&args.network, from.first())?;
    let sealing = match &door.key_file {
        Some(path) => Sealing::By(network::security(path)?),
        None if code.is_some() && !door.insecure => Sealing::ByCode,
        None => Sealing::Plain,
    };
    let spec = ReceiverSpec {
        name: args.host.clone().unwrap_or_else(network::machine_name),
        // None yet: the offer that is found names it.
        rendezvous: Rendezvous::At(SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0)), Handle(0)),
        called: None,
        location,
        interface: interface.address,
        sink,
        options: Options {
            update: present == Present::Updated,
            listen: door.port.map_or(Listen::Rather(ACCEPT_PORT), Listen::At),
            sealing,
            ..Options::default()
        },
        cancel: cancel::on_signals()?,
    };
    let search = Search { handle: args.handle, code, from, timeout: door.timeout };
    let progress = Progress::start(&format!("looking for an offer on {}", interface.name));
    let (mut noted, mut refused) = (None, None);
    let mut meet = |offer: &Announced| {
        // A source that does not answer at once is tried again.
        if noted.replace(offer.handle) != Some(offer.handle) {
            output::say(&format!("offered: {offer}"));
        }
        may_take(&place, present, offer).map_err(|why| {
            refused = Some(why);
            // The search only has to end.
            TransferError::Cancelled
        })
    };
    let mut searching = meeting::Search::new(&interface, door.from.as_deref());
    let mut news = |news: &_| searching.say(news);
    let outcome = transfer::accept(spec, &search, &mut news, &mut meet, &mut |state| {
        let waiting = format!("waiting for the source to begin with {}", Printable(&state.name));
        progress.reception(Arrived::of(state), &waiting, "here; waiting for the others");
    });
    progress.finish();
    if let Some(why) = refused {
        return Err(why);
    }
    let mut acceptance = Acceptance::from(outcome?);
    match &spool {
        None => {
            output::result(format, &acceptance, &acceptance.text())?;
            if acceptance.kind == "directory" {
                object::say_links(Path::new(&acceptance.path));
            }
        }
        Some(spool) => {
            acceptance.path = "-".into();
            spool.to_stdout()?;
            output::beside(&acceptance.text());
        }
    }
    Ok(Exit::Done)
}

fn sink_of(place: &Destination, present: Present, spool: Option<&Spool>) -> Sink {
    let replace = present.goes();
    match (place, spool) {
        (Destination::Out(path), _) => Sink::At { path: path.clone(), replace },
        (Destination::Into(folder), _) => Sink::Into { folder: folder.clone(), replace },
        (Destination::Stdout, spool) => {
            Sink::Raw(spool.expect("standard output gets what was spooled").path())
        }
    }
}

/// Checks that the offered object may get its name here, before its source is contacted.
fn may_take(place: &Destination, present: Present, offer: &Announced) -> Result<(), Failure> {
    let Destination::Into(folder) = place else { return Ok(()) };
    check_name(&offer.name).map_err(|why| TransferError::Name(offer.name.clone(), why))?;
    let target = folder.join(&offer.name);
    // A directory may be an empty one, in which another directory finds its place.
    let taken = is_free(&target).is_ok_and(|free| !free);
    if taken && !present.goes() {
        return Err(TransferError::from(StoreError::Exists(target)).into());
    }
    if target.is_dir() {
        return place.check_present(&target, present);
    }
    Ok(check_target(&target, present.goes()).map_err(TransferError::from)?)
}
