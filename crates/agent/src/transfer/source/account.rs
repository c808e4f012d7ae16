//! Content of a source's report: which fabrics carried the object, what happened to the path, how each
//! receiver fared.

use super::super::error::kind_of;
use super::super::{CHAIN, ControlStep, MULTICAST, ReceiverReport, Report};
use super::{Channel, Run, data_len};
use polycast_api::report::goodput_bps;
use polycast_net::hash::hex;
use polycast_protocol::push::{PeerId, PeerStatus};
use polycast_protocol::session::{Entry, Stage, Why};
use polycast_types::Time;
use std::collections::BTreeMap;

/// The notes of a transfer.
pub(super) struct Account {
    /// The fabric of the path, and those of all paths that carried something.
    pub(super) fabric: String,
    used: Vec<String>,
    multicast_used: bool,
    pub(super) chain_used: bool,
    /// Payload bytes of PTCH_DATA.
    pub(super) unicast_bytes: u64,
    pub(super) path_lost: Option<String>,
    events: Vec<(f64, String)>,
    pub(super) control: Vec<ControlStep>,
    /// Fabric that carried the last bytes of each settled receiver.
    fabrics: BTreeMap<PeerId, String>,
}

impl Account {
    /// Nothing has happened yet, unless there is no path for the reason `path_lost`.
    pub(super) fn new(fabric: Option<String>, path_lost: Option<String>) -> Self {
        Account {
            fabric: fabric.unwrap_or_else(|| MULTICAST.into()),
            used: Vec::new(),
            multicast_used: false,
            chain_used: false,
            unicast_bytes: 0,
            path_lost,
            events: Vec::new(),
            control: Vec::new(),
            fabrics: BTreeMap::new(),
        }
    }

    /// Something has happened to the path.
    pub(super) fn note(&mut self, now: Time, what: String) {
        self.events.push((now.since(Time::ZERO).as_secs_f64(), what));
    }

    /// The path carries fragments.
    pub(super) fn multicast_carries(&mut self) {
        if !std::mem::replace(&mut self.multicast_used, true) && !self.used.contains(&self.fabric) {
            self.used.push(self.fabric.clone());
        }
    }

    /// Another path takes the place of the one before.
    pub(super) fn change_fabric(&mut self, fabric: String) {
        (self.fabric, self.multicast_used) = (fabric, false);
    }

    pub(super) fn settled(&mut self, peer: PeerId, chained: bool) {
        let fabric = if chained { CHAIN.to_string() } else { self.fabric.clone() };
        self.fabrics.insert(peer, fabric);
    }

    pub(super) fn forget(&mut self, peer: PeerId) {
        self.fabrics.remove(&peer);
    }
}

impl Run {
    pub(super) fn report(&self) -> Report {
        let roster = &self.session.roster;
        let now = self.now();
        let mut receivers: Vec<ReceiverReport> =
            roster.entries().map(|entry| self.report_of(entry, now)).collect();
        if roster.started_at().is_some() {
            let came = receivers.len() + 1;
            let missing = (0..roster.missing() as usize).map(|at| format!("receiver {}", came + at));
            receivers.extend(missing.map(|name| {
                ReceiverReport {
                    name,
                    seconds: self.elapsed(now),
                    fabric: "none".into(),
                    ..ReceiverReport::default()
                }
                .failing(Some((kind_of(&Why::NeverJoined), Why::NeverJoined.to_string())))
            }));
        }
        let left = roster.entries().filter(|entry| entry.failure().is_some_and(|why| *why == Why::Rekeyed));
        let account = &self.account;
        let channel = self.channel.as_ref();
        let carried: u64 = channel.map_or(0, |channel| channel.sent_bytes);
        Report {
            object: self.spec.object,
            bytes: self.geometry.object_len,
            root: self.root().map(|root| hex(&root)),
            seconds: receivers.iter().map(|r| r.seconds).fold(0.0, f64::max),
            sent_bytes: account.unicast_bytes + carried + self.served.sent_bytes(),
            patched_bytes: account.unicast_bytes + channel.map_or(0, |channel| channel.patched_bytes),
            spared_bytes: receivers.iter().map(|receiver| receiver.spared_bytes).sum(),
            coded_bytes: 0,
            heard: roster.heard(),
            fabric: self.fabrics(channel),
            path_lost: account.path_lost.clone(),
            events: account.events.clone(),
            control: account.control.clone(),
            receivers,
            trees: Vec::new(),
            sealed: self.secret.is_some(),
            forged_packets: self.session.forged_packets(),
            zones: self.crossings.bytes(),
            passed_over: Vec::new(),
            estimate_s: None,
            took_s: None,
            left: left.map(|entry| entry.name.clone()).collect(),
        }
    }

    fn elapsed(&self, now: Time) -> f64 {
        self.session.roster.started_at().map_or(0.0, |at| now.since(at).as_secs_f64())
    }

    fn report_of(&self, entry: &Entry, now: Time) -> ReceiverReport {
        let peer = entry.guest.map(|guest| PeerId(guest.0));
        let status = peer.and_then(|peer| self.machine.status(peer));
        let status = status.as_ref();
        let settled = peer.and_then(|peer| self.account.fabrics.get(&peer)).cloned();
        let fabric = match (settled, status) {
            (Some(fabric), _) => fabric,
            (None, Some(status)) if status.chained => CHAIN.into(),
            // It never came.
            (None, None) if entry.is_settled() => "none".into(),
            (None, _) => self.account.fabric.clone(),
        };
        let seconds = self.session.roster.time_of(entry, now).as_secs_f64();
        let bytes = status.map_or(0, |status| status.verified_bytes);
        let spared_bytes = status.map_or(0, |status| status.spared_bytes);
        // Holes are nothing that a receiver had.
        let holes_len =
            self.geometry.object_len - data_len(&*self.spec.source).unwrap_or(self.geometry.object_len);
        // What it had already has not come.
        let came_bytes = bytes.saturating_sub(spared_bytes);
        let slower = status.and_then(|status| status.slow);
        ReceiverReport {
            name: entry.name.clone(),
            verified: entry.stage == Stage::Done,
            seconds,
            bytes,
            patched_bytes: status.map_or(0, |status| status.patched_bytes),
            spared_bytes: spared_bytes.saturating_sub(holes_len),
            came_bytes,
            fabric,
            slow: slower.is_some(),
            rate_bps: goodput_bps(came_bytes, seconds),
            reason: reason_of(status),
            ..ReceiverReport::default()
        }
        .failing(self.session.failure_of(entry))
    }

    /// Returns the fabrics that carried the object.
    fn fabrics(&self, channel: Option<&Channel>) -> String {
        let Account { used, chain_used, fabric, .. } = &self.account;
        match (!used.is_empty() && !self.only_chain(), *chain_used) {
            (true, true) => format!("{}+{CHAIN}", used.join("+")),
            (false, true) => CHAIN.to_string(),
            _ if channel.is_none() => CHAIN.to_string(),
            (true, false) => used.join("+"),
            (false, false) => fabric.clone(),
        }
    }

    /// Returns true if multicast carried nothing to any receiver.
    fn only_chain(&self) -> bool {
        let guests = self.session.roster.entries().filter_map(|entry| entry.guest);
        let mut statuses = guests.filter_map(|guest| self.machine.status(PeerId(guest.0)));
        statuses.all(|status| status.chained && !status.streamed)
    }
}

/// Returns the reason why a receiver was slow, or its path was given up though packets came through.
fn reason_of(status: Option<&PeerStatus>) -> Option<String> {
    let status = status?;
    let held_up = "its disk or processor did not keep up with what came";
    match status.slow {
        Some(slower) if status.held_up => Some(format!("{slower}; {held_up}")),
        Some(slower) => Some(slower.to_string()),
        None => (status.held_up && status.cut_off).then(|| format!("{held_up}, so the rest came over TCP")),
    }
}
