//! A report as a message of the agent's service, and back.

use super::{ControlStep, PassedOver, ReceiverReport, Report, TreeStatus, ZoneBytes};
use crate::agent::{self as wire, TransferReport};
use crate::convert::object_id;
use crate::error::Refusal;

impl From<&Report> for TransferReport {
    fn from(report: &Report) -> Self {
        TransferReport {
            app_id: report.object.app.0.to_vec(),
            data_id: report.object.data.0,
            length: report.bytes,
            root: report.root.clone().unwrap_or_default(),
            seconds: report.seconds,
            sent_bytes: report.sent_bytes,
            patched_bytes: report.patched_bytes,
            spared_bytes: report.spared_bytes,
            coded_bytes: report.coded_bytes,
            fabric: report.fabric.clone(),
            receivers: report.receivers.iter().map(Into::into).collect(),
            path_lost: report.path_lost.clone().unwrap_or_default(),
            events: report
                .events
                .iter()
                .map(|(seconds, what)| wire::PathEvent { seconds: *seconds, what: what.clone() })
                .collect(),
            control: report
                .control
                .iter()
                .map(|step| wire::ControlStep { step: step.step.clone(), micros: step.micros })
                .collect(),
            trees: report.trees.iter().map(Into::into).collect(),
            heard: report.heard,
            sealed: report.sealed,
            forged_packets: report.forged_packets,
            zones: report.zones.iter().map(Into::into).collect(),
            passed_over: report.passed_over.iter().map(Into::into).collect(),
            estimate_s: report.estimate_s,
            took_s: report.took_s,
        }
    }
}

impl From<&ZoneBytes> for wire::ZoneBytes {
    fn from(zone: &ZoneBytes) -> Self {
        wire::ZoneBytes { from: zone.from.clone(), to: zone.to.clone(), bytes: zone.bytes }
    }
}

impl From<wire::ZoneBytes> for ZoneBytes {
    fn from(zone: wire::ZoneBytes) -> Self {
        ZoneBytes { from: zone.from, to: zone.to, bytes: zone.bytes }
    }
}

impl From<&PassedOver> for wire::PassedOver {
    fn from(passed: &PassedOver) -> Self {
        wire::PassedOver { fabric: passed.fabric.clone(), why: passed.why.clone() }
    }
}

impl From<wire::PassedOver> for PassedOver {
    fn from(passed: wire::PassedOver) -> Self {
        PassedOver { fabric: passed.fabric, why: passed.why }
    }
}

impl TryFrom<TransferReport> for Report {
    type Error = Refusal;

    fn try_from(report: TransferReport) -> Result<Self, Refusal> {
        Ok(Report {
            object: object_id(&report.app_id, report.data_id)?,
            bytes: report.length,
            root: said(report.root),
            seconds: report.seconds,
            sent_bytes: report.sent_bytes,
            patched_bytes: report.patched_bytes,
            spared_bytes: report.spared_bytes,
            coded_bytes: report.coded_bytes,
            heard: report.heard,
            fabric: report.fabric,
            path_lost: said(report.path_lost),
            events: report.events.into_iter().map(|event| (event.seconds, event.what)).collect(),
            control: report
                .control
                .into_iter()
                .map(|step| ControlStep { step: step.step, micros: step.micros })
                .collect(),
            receivers: report.receivers.into_iter().map(Into::into).collect(),
            trees: report.trees.into_iter().map(Into::into).collect(),
            left: Vec::new(),
            sealed: report.sealed,
            forged_packets: report.forged_packets,
            zones: report.zones.into_iter().map(Into::into).collect(),
            passed_over: report.passed_over.into_iter().map(Into::into).collect(),
            estimate_s: report.estimate_s,
            took_s: report.took_s,
        })
    }
}

impl From<&ReceiverReport> for wire::ReceiverReport {
    fn from(receiver: &ReceiverReport) -> Self {
        wire::ReceiverReport {
            name: receiver.name.clone(),
            verified: receiver.verified,
            seconds: receiver.seconds,
            bytes: receiver.bytes,
            patched_bytes: receiver.patched_bytes,
            spared_bytes: receiver.spared_bytes,
            came_bytes: receiver.came_bytes,
            fabric: receiver.fabric.clone(),
            error: receiver.error.clone().unwrap_or_default(),
            kind: receiver.kind.clone().unwrap_or_default(),
            slow: receiver.slow,
            rate_bps: receiver.rate_bps,
            reason: receiver.reason.clone().unwrap_or_default(),
        }
    }
}

impl From<wire::ReceiverReport> for ReceiverReport {
    fn from(receiver: wire::ReceiverReport) -> Self {
        ReceiverReport {
            name: receiver.name,
            verified: receiver.verified,
            seconds: receiver.seconds,
            bytes: receiver.bytes,
            patched_bytes: receiver.patched_bytes,
            spared_bytes: receiver.spared_bytes,
            came_bytes: receiver.came_bytes,
            fabric: receiver.fabric,
            slow: receiver.slow,
            rate_bps: receiver.rate_bps,
            reason: said(receiver.reason),
            error: said(receiver.error),
            kind: said(receiver.kind),
        }
    }
}

impl From<&TreeStatus> for wire::TreeReport {
    fn from(tree: &TreeStatus) -> Self {
        wire::TreeReport {
            tree: tree.tree.into(),
            interests: tree.interests,
            duplicates: tree.duplicates,
            halved: tree.halved,
            packets: tree.packets,
            sent_bytes: tree.sent_bytes,
            first_bytes: tree.first_bytes,
            rate_bps: tree.rate_bps,
        }
    }
}

impl From<wire::TreeReport> for TreeStatus {
    fn from(tree: wire::TreeReport) -> Self {
        TreeStatus {
            tree: u8::try_from(tree.tree).unwrap_or(u8::MAX),
            interests: tree.interests,
            duplicates: tree.duplicates,
            halved: tree.halved,
            packets: tree.packets,
            sent_bytes: tree.sent_bytes,
            first_bytes: tree.first_bytes,
            rate_bps: tree.rate_bps,
        }
    }
}

/// On the wire, an empty text is none.
fn said(text: String) -> Option<String> {
    (!text.is_empty()).then_some(text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::tests::report;

    #[test]
    fn a_report_is_the_same_behind_the_service() {
        assert_eq!(Report::try_from(TransferReport::from(&report())), Ok(report()));
        let bare = Report { root: None, path_lost: None, events: Vec::new(), ..report() };
        assert_eq!(Report::try_from(TransferReport::from(&bare)), Ok(bare));
        let foreign = TransferReport { app_id: vec![1], ..TransferReport::from(&report()) };
        assert!(Report::try_from(foreign).unwrap_err().message.contains("16 bytes, not 1"));
    }
}
