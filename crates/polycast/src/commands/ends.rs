//! An offer whose receivers this program has started itself, on other machines: `polycast push` and
//! `polycast bcast`.

use super::network::{self, OFFER_PORT};
use crate::cancel;
use crate::exit::{Exit, Failure};
use crate::object::Named;
use crate::output::{self, Format};
use crate::progress::Progress;
use crate::report::{self, Copies};
use polycast_agent::transfer::{
    self, Listen, OfferCode, Options, Path, Receivers, Report, Sealing, SlowPolicy, SourceSpec, Steering,
};
use polycast_api::error::Kind;
use polycast_api::report::{Delivery, ReceiverReport};
use polycast_net::interface::Interface;
use polycast_types::{Duration, Rate};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

/// Time for machines that were reached to begin: they only have to find this one.
const BEGIN_WITHIN: Duration = Duration::from_secs(30);

/// Receivers on other machines that wait for the word to begin.
pub(super) trait Ends {
    /// Hosts that were reached.
    fn hosts(&self) -> Vec<String>;

    /// Lets them begin with the offer at this address; `steering` is told of each that has ended.
    fn begin(&mut self, address: SocketAddr, code: &str, steering: &Arc<Steering>);

    /// Waits for the end of one; gives where the object is, or why there is none.
    fn end(&mut self, host: &str) -> Result<PathBuf, String>;
}

/// The offer to them.
pub(super) struct Offer<'a> {
    pub(super) interface: &'a Interface,
    pub(super) rate: Option<Rate>,
    /// The port that the user named.
    pub(super) port: Option<u16>,
    /// A change of the object is no receiver's fault.
    pub(super) again: bool,
    pub(super) code: &'a OfferCode,
}

/// A delivery, and where its copies are.
pub(super) struct Delivered(pub(super) Delivery, pub(super) Copies);

impl Delivered {
    /// Prints it.
    pub(super) fn conclude(self, format: Format) -> Result<Exit, Failure> {
        let Delivered(delivery, copies) = self;
        output::result(format, &report::document(&delivery, &copies)?, &report::text(&delivery, &copies))?;
        Ok(report::complain(&delivery.report))
    }
}

/// Delivers to the machines that were reached. They know where to find the offer once `port` is set.
pub(super) fn deliver(
    offer: &Offer<'_>,
    object: Named,
    hosts: &[String],
    (ends, failures): (&mut dyn Ends, &[(String, String)]),
    port: &mut Option<u16>,
) -> Result<Delivered, Failure> {
    let name = object.name.clone();
    let report = run(offer, object, ends, port)?;
    Ok(complete(Delivery::new(&name, report), hosts, (ends, failures)))
}

/// Adds what the ends themselves say to the report.
pub(super) fn complete(
    mut delivery: Delivery,
    hosts: &[String],
    (ends, failures): (&mut dyn Ends, &[(String, String)]),
) -> Delivered {
    let report = &mut delivery.report;
    let (mut copies, reached) = (Copies::new(), ends.hosts());
    for host in &reached {
        let receiver = report.receivers.iter_mut().find(|receiver| receiver.name == *host);
        match (ends.end(host), receiver) {
            (Ok(path), Some(receiver)) if receiver.verified => drop(copies.insert(host.clone(), path)),
            // It knows why it has not come.
            (Err(why), Some(receiver)) if !receiver.verified => {
                receiver.kind.get_or_insert_with(|| Kind::TransferFailed.name().to_string());
                receiver.error = Some(why);
            }
            (Err(why), None) => report.receivers.push(failed(host, why)),
            _ => {}
        }
    }
    // Those are the ones that were counted and did not come, under names of their own.
    report.receivers.retain(|receiver| reached.contains(&receiver.name));
    report.receivers.extend(failures.iter().map(|(host, why)| failed(host, why.clone())));
    report.receivers.sort_by_key(|receiver| hosts.iter().position(|host| *host == receiver.name));
    Delivered(delivery, copies)
}

fn failed(host: &str, why: String) -> ReceiverReport {
    ReceiverReport { name: host.to_string(), fabric: "none".into(), ..ReceiverReport::default() }
        .failing(Some((Kind::ReceiverUnknown, why)))
}

fn run(
    offer: &Offer<'_>,
    object: Named,
    ends: &mut dyn Ends,
    port: &mut Option<u16>,
) -> Result<Report, Failure> {
    let interface = offer.interface;
    let steering: Arc<Steering> = Arc::default();
    let options = Options {
        join_timeout: BEGIN_WITHIN,
        listen: offer.port.map_or(Listen::Rather(port.unwrap_or(OFFER_PORT)), Listen::At),
        again: offer.again,
        code: Some(offer.code.clone()),
        sealing: Sealing::ByCode,
        slow: SlowPolicy::SHIPPED,
        ..Options::default()
    };
    let hosts = ends.hosts().len();
    let spec = SourceSpec {
        object: network::fresh_object(),
        name: object.name,
        kind: object.kind,
        source: object.source,
        root: None,
        receivers: Receivers::Count(hosts),
        location: polycast_types::Location::default(),
        interface: interface.address,
        path: Path::Multicast {
            group: network::fresh_group(interface.address),
            rate: offer.rate,
            attempts: None,
            outer: Vec::new(),
        },
        options,
        cancel: cancel::on_signals()?,
        steering: Arc::clone(&steering),
    };
    let source = transfer::prepare(spec)?;
    let address = source.control_address();
    if port.replace(address.port()).is_none() {
        ends.begin(address, &offer.code.code().to_string(), &steering);
    }
    let progress = Progress::start(&format!("waiting for {}", output::counted(hosts, "host")));
    let outcome = source.run(&mut |report| {
        if report.receivers.iter().any(|receiver| receiver.seconds > 0.0 || receiver.verified) {
            progress.delivery(report);
        }
    });
    progress.finish();
    Ok(outcome?)
}
