//! `polycast accept`: a receiver's side between machines without daemons.

use super::destination;
use super::network;
use crate::args::AcceptArgs;
use crate::cancel;
use crate::exit::{Exit, Failure};
use crate::output::{self, Format};
use crate::progress::Progress;
use crate::report::Acceptance;
use polycast_agent::transfer::{self, Announced, Options, ReceiverSpec, Rendezvous, Sink, TransferError};
use polycast_net::store::{check_name, check_target};
use polycast_types::Handle;
use std::net::{Ipv4Addr, SocketAddr};

/// Waits for an offer and receives it.
pub fn run(args: &AcceptArgs, format: Format) -> Result<Exit, Failure> {
    destination::check(&args.out, args.force)?;
    let replace = args.force;
    let sink = if args.out.is_dir() {
        Sink::Into { folder: args.out.clone(), replace }
    } else {
        Sink::At { path: args.out.clone(), replace }
    };
    let spec = ReceiverSpec {
        name: args.name.clone().unwrap_or_else(network::machine_name),
        // Nobody yet: whoever offers something.
        rendezvous: Rendezvous::At(SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0)), Handle(0)),
        interface: network::interface(&args.network)?,
        sink: sink.clone(),
        options: Options::default(),
        cancel: cancel::on_signals()?,
    };
    let progress = Progress::start("waiting for an offer");
    let mut meet = |offer: &Announced| {
        progress.note(&format!("offered: {offer}"));
        may_take(&sink, offer)
    };
    let outcome = transfer::accept(spec, args.handle, &mut meet, &mut |state| progress.reception(state));
    progress.finish();
    let acceptance = Acceptance::from(outcome?);
    output::result(format, &acceptance, &acceptance.text())?;
    Ok(Exit::Done)
}

/// Whether what is offered may get its name here: said before its source hears of us.
fn may_take(sink: &Sink, offer: &Announced) -> Result<(), TransferError> {
    let Sink::Into { folder, replace } = sink else { return Ok(()) };
    check_name(&offer.name).map_err(|why| TransferError::Name(offer.name.clone(), why))?;
    let target = folder.join(&offer.name);
    // A directory may be an empty one, in which another directory finds its place.
    if target.is_dir() { Ok(()) } else { Ok(check_target(&target, *replace)?) }
}
