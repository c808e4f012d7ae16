//! `polycast accept`: a receiver's side between machines without daemons.

use super::destination;
use super::network;
use crate::args::AcceptArgs;
use crate::cancel;
use crate::exit::{Exit, Failure};
use crate::output::{self, Format};
use crate::progress::Progress;
use crate::report::Acceptance;
use polycast_agent::transfer::{self, Options, ReceiverSpec, Rendezvous, Sink};

/// Waits for an offer and receives it.
pub fn run(args: &AcceptArgs, format: Format) -> Result<Exit, Failure> {
    destination::check(&args.out)?;
    let spec = ReceiverSpec {
        name: args.name.clone().unwrap_or_else(network::machine_name),
        rendezvous: Rendezvous::Discover,
        interface: network::interface(&args.network)?,
        sink: Sink::Path(args.out.clone()),
        options: Options::default(),
        cancel: cancel::on_signals()?,
    };
    let progress = Progress::start("waiting for an offer");
    let received = transfer::receive(spec, &mut |state| progress.reception(state));
    progress.finish();
    let acceptance = Acceptance::from(received?);
    output::result(format, &acceptance, &acceptance.text())?;
    Ok(Exit::Done)
}
