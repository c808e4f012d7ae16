//! Channels as the manager tells them, and the paths of transfers that they are.

use crate::transfer::{Path, TreePath};
use polycast_api::error::{Kind, Refusal};
use polycast_api::manager as api;
use polycast_protocol::pull::Route;
use polycast_types::{Duration as Span, PullTuning, Rate};
use polycast_wire::label;
use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};

/// The receivers with their addresses.
pub(crate) fn addresses(receivers: Vec<api::Receiver>) -> Result<Vec<(String, SocketAddr)>, Refusal> {
    let address = |receiver: api::Receiver| {
        let address = receiver.control_address.parse().map_err(|_| {
            Refusal::new(Kind::Internal, format!("'{}' is no address", receiver.control_address))
        })?;
        Ok((receiver.name, address))
    };
    receivers.into_iter().map(address).collect()
}

/// The headers of a path that goes another way in the same network, if that is all that is new about it.
pub(super) fn rerouted(before: Option<api::Channel>, after: Option<api::Channel>) -> Option<Vec<Vec<u8>>> {
    let (Ok(before), Ok(mut after)) = (path(before), path(after)) else { return None };
    let Path::Multicast { outer: old, .. } = &before else { return None };
    let Path::Multicast { outer, .. } = &mut after else { return None };
    let new = std::mem::replace(outer, old.clone());
    let alike = !old.is_empty() && old.first().map(Vec::len) == new.first().map(Vec::len);
    (alike && before == after).then_some(new)
}

/// The receivers that failures have cut off from a labelled path.
pub(super) fn left_out(channel: Option<&api::Channel>) -> Vec<String> {
    match channel.and_then(|channel| channel.channel.as_ref()) {
        Some(api::channel::Channel::Labelled(labelled)) => labelled.left_out.clone(),
        _ => Vec::new(),
    }
}

/// The racks of receivers, as far as the manager knows them.
pub(super) fn racks(channel: Option<&api::Channel>) -> BTreeMap<String, u32> {
    match channel.and_then(|channel| channel.channel.as_ref()) {
        Some(api::channel::Channel::Labelled(labelled)) => {
            labelled.racks.iter().map(|receiver| (receiver.name.clone(), receiver.rack)).collect()
        }
        _ => BTreeMap::new(),
    }
}

/// The path over a channel that the manager has lent.
///
/// # Errors
/// It cannot be used: in a sentence.
pub(super) fn path(channel: Option<api::Channel>) -> Result<Path, Refusal> {
    let wrong =
        |what: String| Refusal::new(Kind::Internal, format!("the manager's path makes no sense: {what}"));
    match channel.and_then(|channel| channel.channel) {
        Some(api::channel::Channel::Chain(_)) => Ok(Path::Chain),
        Some(api::channel::Channel::Multicast(multicast)) => {
            let address: IpAddr = multicast.address.parse().map_err(|_| wrong(multicast.address.clone()))?;
            let port =
                u16::try_from(multicast.port).map_err(|_| wrong(format!("port {}", multicast.port)))?;
            let group = SocketAddr::new(address, port);
            let attempts = Some(multicast.attempt_interval_ns).filter(|nanos| *nanos > 0).map(Span);
            Ok(Path::Multicast { group, rate: multicast.rate_bps.map(Rate), attempts, outer: Vec::new() })
        }
        Some(api::channel::Channel::Labelled(labelled)) => {
            let address: IpAddr = labelled.address.parse().map_err(|_| wrong(labelled.address.clone()))?;
            let port = u16::try_from(labelled.port).map_err(|_| wrong(format!("port {}", labelled.port)))?;
            let kind = u8::try_from(labelled.kind).ok().and_then(label::LabelKind::from_number);
            let is_of_source = |kind: &label::LabelKind| *kind <= label::LabelKind::Pods;
            let kind = kind
                .filter(is_of_source)
                .ok_or_else(|| wrong(format!("labels of kind {}", labelled.kind)))?;
            let mut outer = Vec::new();
            for label in std::iter::once(&labelled.label).chain(&labelled.further) {
                if !(1..=label::LABEL_LEN_MAX).contains(&label.len()) || label.len() != labelled.label.len() {
                    return Err(wrong(format!("a label of {} bytes", label.len())));
                }
                let mut header = Vec::new();
                label::Header { kind, session: labelled.session, label }.emit(&mut header);
                outer.push(header);
            }
            let group = SocketAddr::new(address, port);
            Ok(Path::Multicast { group, rate: labelled.rate_bps.map(Rate), attempts: None, outer })
        }
        Some(api::channel::Channel::SourceRoutes(routes)) => trees(routes).map(Path::Trees).map_err(wrong),
        None => Err(wrong("it has no channel, or one that this agent cannot use".into())),
    }
}

fn trees(routes: api::SourceRoutes) -> Result<TreePath, String> {
    let too_large = |what: &str| format!("{what} is too large");
    let of_receiver = |receiver: api::ReceiverRoutes| {
        let ways = receiver.trees.iter().map(|hops| route(hops)).collect::<Result<_, _>>()?;
        Ok((receiver.name, ways))
    };
    Ok(TreePath {
        trees: u8::try_from(routes.trees).map_err(|_| too_large("the number of trees"))?,
        payload_len: u16::try_from(routes.payload_bytes).map_err(|_| too_large("a packet"))?,
        credits: routes.credits,
        link_bps: routes.link_rate_bps,
        tuning: routes.tuning.map(tuning).unwrap_or_default(),
        routes: routes.receivers.into_iter().map(of_receiver).collect::<Result<_, String>>()?,
    })
}

fn tuning(tuning: api::PullTuning) -> PullTuning {
    PullTuning {
        credits: tuning.credits,
        initial_rate: tuning.initial_rate_bps.map(Rate),
        increase: tuning.increase_bps.map(Rate),
        interval_us: tuning.interval_us,
        burst_bytes: tuning.burst_bytes,
        block_bytes: tuning.block_bytes,
        rto_ms: tuning.rto_ms,
        overtaken: tuning.overtaken,
        chance: tuning.chance,
    }
}

/// Hops as packets carry them; none without any.
pub(super) fn route(hops: &[u8]) -> Result<Option<Route>, String> {
    if hops.is_empty() {
        return Ok(None);
    }
    Route::from_bytes(hops, 0).map(Some).map_err(|error| error.to_string())
}
