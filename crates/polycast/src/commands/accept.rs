//! `polycast accept`: a receiver's side between machines without daemons.

use super::destination::Destination;
use super::engine::{self as transfer};
use super::network;
use crate::args::AcceptArgs;
use crate::cancel;
use crate::exit::{Exit, Failure};
use crate::output::{self, Format};
use crate::progress::Progress;
use crate::report::Acceptance;
use polycast_agent::transfer::{ReceiverSpec, Rendezvous, Sink};
use polycast_types::Duration;

/// Waits for an offer and receives it.
pub fn run(args: &AcceptArgs, format: Format) -> Result<Exit, Failure> {
    let destination = Destination::new(&args.out)?;
    let mut options = transfer::options();
    options.join_timeout = args.timeout.unwrap_or(Duration(u64::MAX));
    let spec = ReceiverSpec {
        name: args.name.clone().unwrap_or_else(network::machine_name),
        rendezvous: Rendezvous::Discover,
        interface: network::interface(&args.network)?,
        sink: Sink::Path(destination.first_path()),
        options,
        cancel: cancel::on_signals()?,
    };
    let progress = Progress::start("waiting for an offer");
    let received = transfer::receive(spec, &mut |state| progress.reception(state));
    progress.finish();
    let received = received?;
    let path = destination.settle(&received.path, &received.name)?;
    let acceptance = Acceptance::new(received, path);
    output::result(format, &acceptance, &acceptance.text())?;
    Ok(Exit::Done)
}
