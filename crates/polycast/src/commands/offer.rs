//! `polycast offer`: the source's side between machines without daemons.

use super::network;
use crate::args::{OfferArgs, SlowChoice};
use crate::exit::{Exit, Failure};
use crate::output::{self, Format};
use crate::progress::Progress;
use crate::{cancel, object, report};
use polycast_agent::transfer::{self, Options, Path, Receivers, SlowPolicy, SourceSpec};
use polycast_api::report::Delivery;
use polycast_types::Printable;
use std::sync::Arc;

/// Waits for the receivers and delivers to them.
pub fn run(args: &OfferArgs, format: Format) -> Result<Exit, Failure> {
    let object = object::open_chosen(&args.choice)?;
    let interface = network::interface(&args.network)?;
    let (name, _spool) = (object.name.clone(), object.spool);
    let mut options = Options::default();
    if let Some(timeout) = args.timeout {
        options.join_timeout = timeout;
    }
    options.slow = match args.slow {
        SlowChoice::Wait => SlowPolicy::Wait,
        SlowChoice::Drop => SlowPolicy::SHIPPED.dropping(),
        SlowChoice::CatchUp => SlowPolicy::SHIPPED,
    };
    let spec = SourceSpec {
        object: network::fresh_object(),
        name: object.name,
        kind: object.kind,
        source: object.source,
        root: None,
        receivers: Receivers::Count(args.receivers),
        interface,
        path: Path::Multicast {
            group: network::fresh_group(),
            rate: args.rate,
            attempts: None,
            outer: Vec::new(),
        },
        options,
        cancel: cancel::on_signals()?,
        steering: Arc::default(),
    };
    let source = transfer::prepare(spec)?;
    let (handle, address) = (source.handle().0, source.control_address());
    output::say(&format!("offering {} at {address}, handle {handle:016x}", Printable(&name)));
    let progress = Progress::start(&format!("waiting for {} receivers of {name}", args.receivers));
    let outcome = source.run(&mut |report| progress.delivery(report));
    progress.finish();
    report::conclude(&Delivery::new(&name, outcome?), format)
}
