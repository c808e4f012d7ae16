//! `polycast offer`: the source's side between machines without daemons.

use super::code::{self, CodeArg};
use super::kept_code::KeptCodes;
use super::meeting::{Gathering, fallback_hint};
use super::network::{self, OFFER_PORT};
use crate::args::{OfferArgs, SlowChoice};
use crate::exit::{Exit, Failure};
use crate::object::{self, Named, Reading};
use crate::output::{self, Format};
use crate::progress::Progress;
use crate::{cancel, report};
use polycast_agent::transfer::{
    self, Listen, OfferCode, Options, Path, Prepared, Receivers, Sealing, SlowPolicy, SourceSpec,
};
use polycast_api::report::Delivery;
use polycast_types::{Duration, Printable};
use std::sync::Arc;

/// Time to wait for receivers that were requested by number.
const USUAL: Duration = Duration::from_secs(30);

/// Remedy for an offer that was ended before a receiver has come.
const KEPT_HINT: &str =
    "receivers that look for this offer find it again if you offer with the same code: --code CODE";

/// Waits for the receivers and delivers to them.
pub(super) fn run(args: &OfferArgs, format: Format) -> Result<Exit, Failure> {
    let kept = KeptCodes::of_user();
    let code = code_of(args, kept.as_ref())?;
    let mut port = None;
    let outcome = object::deliver_unchanged(
        args.choice.read.retry_changed,
        || object::open_chosen(&args.choice, Reading::AsItIs),
        |object, left| offer(args, object, (&code, left > 0, &mut port), format),
    );
    if let (Ok(Exit::Done), Some(kept)) = (&outcome, kept) {
        kept.forget(code.code());
    }
    outcome
}

/// The user's own code, or one that is drawn.
fn code_of(args: &OfferArgs, kept: Option<&KeptCodes>) -> Result<OfferCode, Failure> {
    let door = &args.door;
    let Some(given) = &door.code else {
        let code = OfferCode::drawn();
        let needs_none = door.open || door.key_file.is_some();
        if let Some(Err(error)) = kept.filter(|_| !needs_none).map(|kept| kept.keep(&code)) {
            tracing::debug!(%error, "the code is not kept: an offer that is begun again has another one");
        }
        return Ok(code);
    };
    if *given == CodeArg::Asked && args.choice.paths.iter().any(|path| path.as_os_str() == "-") {
        let failure = Failure::input("standard input has either the object or the code");
        return Err(failure.hint(format!("put the code into {}", code::VARIABLE)));
    }
    let code = given.code()?;
    if let Some(known) = kept.and_then(|kept| kept.find(&code)) {
        return Ok(known);
    }
    code::check_strength(&code, door.weak_code)?;
    OfferCode::own(code).map_err(|error| Failure::input(error.to_string()))
}

/// Offers an object once, with this code; where it is offered again it is at the same port.
fn offer(
    args: &OfferArgs,
    object: Named,
    (code, again, port): (&OfferCode, bool, &mut Option<u16>),
    format: Format,
) -> Result<Exit, Failure> {
    let location = network::location(args.zone.as_deref())?;
    let interface = network::interface(&args.network)?;
    let (name, _spool, door) = (object.name.clone(), object.spool, &args.door);
    // Without a number it is for all that come.
    let serves = door.serve || args.receivers.is_none();
    let receivers = args.receivers.unwrap_or(1);
    let by_key = door.key_file.as_deref().map(network::security).transpose()?;
    let code = (!door.open && by_key.is_none()).then(|| code.clone());
    let sealing = match by_key {
        Some(security) => Sealing::By(security),
        None if door.open || door.insecure => Sealing::Plain,
        None => Sealing::ByCode,
    };
    let has_code = code.is_some();
    let flags = Flags { insecure: door.insecure, key: door.key_file.is_some() };
    let mut options = Options {
        join_timeout: args.timeout.unwrap_or(USUAL),
        listen: door.port.map_or(Listen::Rather(port.unwrap_or(OFFER_PORT)), Listen::At),
        again,
        code: code.clone(),
        sealing,
        ..Options::default()
    };
    options.slow = slow_policy(args.slow);
    let spec = SourceSpec {
        object: network::fresh_object(),
        name: object.name,
        kind: object.kind,
        source: object.source,
        root: None,
        receivers: match serves {
            true => Receivers::AtLeast(receivers),
            false => Receivers::Count(receivers),
        },
        location,
        interface: interface.address,
        path: Path::Multicast {
            group: network::group_of(door.pool, &interface)?.draw(door.udp_port),
            rate: args.rate,
            attempts: None,
            outer: Vec::new(),
        },
        options,
        cancel: cancel::on_signals()?,
        steering: Arc::default(),
    };
    let source = transfer::prepare(spec)?;
    *port = Some(source.control_address().port());
    let command = announce(&source, &name, code.as_ref(), flags, format);
    let progress = Progress::start("waiting for receivers");
    let (expected, seekers) = (args.receivers, source.seekers());
    let mut gathering = Gathering::new(expected, format, interface.clone(), command, seekers).serving(serves);
    let outcome = source.run(&mut |report| gathering.turn(report, &progress));
    progress.finish();
    let report = outcome?;
    if report.receivers.is_empty() && cancel::is_asked() {
        let failure = Failure::cancelled();
        return Err(if has_code { failure.hint(KEPT_HINT) } else { failure });
    }
    if let Some(hint) = fallback_hint(&report, &interface, door.udp_port) {
        output::say(&hint);
    }
    report::conclude(&Delivery::new(&name, report), format)
}

fn slow_policy(choice: SlowChoice) -> SlowPolicy {
    match choice {
        SlowChoice::Wait => SlowPolicy::Wait,
        SlowChoice::Drop => SlowPolicy::SHIPPED.dropping(),
        SlowChoice::CatchUp => SlowPolicy::SHIPPED,
    }
}

/// Flags that receivers have to type besides the code.
#[derive(Clone, Copy)]
struct Flags {
    insecure: bool,
    key: bool,
}

/// Says what is offered, where, and what to type on the other machines; gives the command that needs no
/// multicast.
fn announce(source: &Prepared, name: &str, code: Option<&OfferCode>, flags: Flags, format: Format) -> String {
    let (handle, address) = (format!("{:016x}", source.handle().0), source.control_address());
    let interface = &source.interface().name;
    let code = code.map(|code| code.code().to_string());
    let event = serde_json::json!({
        "event": "offer",
        "code": code,
        "open": code.is_none() && !flags.key,
        "sealed": flags.key || (code.is_some() && !flags.insecure),
        "address": address.ip().to_string(),
        "port": address.port(),
        "interface": interface,
        "handle": handle,
        "name": name,
        "unannounced": source.unannounced(),
    });
    let command = match &code {
        Some(code) if flags.insecure => format!("polycast accept {code} --insecure"),
        Some(code) => format!("polycast accept {code}"),
        None if flags.key => "polycast accept --key-file FILE".to_string(),
        None => "polycast accept".to_string(),
    };
    let anywhere = match address.port() {
        OFFER_PORT if address.is_ipv4() => format!("{command} --from {}", address.ip()),
        OFFER_PORT => format!("{command} --from [{}]", address.ip()),
        _ => format!("{command} --from {address}"),
    };
    let is_open = code.is_none() && !flags.key;
    output::event(format, &event, || {
        output::say(&format!("offering {} on {interface} at {address}, handle {handle}", Printable(name)));
        output::tell(&format!("on the other machines: {command}"));
        output::say(&format!("where multicast does not pass: {anywhere}"));
        if let Some(why) = source.unannounced() {
            output::say(why);
        }
        if is_open || flags.insecure {
            output::say(
                "nothing is sealed: every machine on the network can read along, and put in what it likes",
            );
        }
    });
    anywhere
}
