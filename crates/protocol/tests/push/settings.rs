//! Settings of the machines in virtual time.

use crate::watch::RETRY_DELAY;
use polycast_protocol::push::feedback::FeedbackConfig;
use polycast_protocol::push::{FullRate, Geometry, ReceiverConfig, SenderConfig, SlowPolicy};
use polycast_types::{Duration, Handle};

pub(crate) const HANDLE: Handle = Handle(7);

pub(crate) fn config(geometry: Geometry) -> SenderConfig {
    SenderConfig {
        handle: HANDLE,
        geometry,
        batch: 7,
        rate: None,
        multicast: true,
        allowance: None,
        attempt_interval: Duration::from_micros(500).into(),
        full_rate: FullRate::default(),
        path_timeout: Duration::from_millis(500),
        stall_timeout: Duration::from_secs(5),
        progress_timeout: Duration::from_secs(30),
        deadline: None,
        slow: SlowPolicy::CatchUp { after: Duration::from_millis(400) },
        patch_delay: Duration::from_millis(5),
        sealed: false,
        first: 0,
        location: polycast_types::Location::default(),
    }
}

/// Times of a rack's feedback.
pub(crate) fn feedback(own: u32) -> FeedbackConfig {
    FeedbackConfig {
        own,
        gather: Duration::from_millis(1),
        hold: Duration::from_millis(15),
        heartbeat: Duration::from_millis(50),
        patience: Duration::from_millis(100),
        ranges_max: 4_096,
    }
}

pub(crate) fn receiver(geometry: Geometry) -> ReceiverConfig {
    ReceiverConfig {
        geometry,
        reorder_packets: 40,
        reorder_delay: Duration::from_millis(1),
        gather_delay: Duration::from_millis(2),
        retry_delay: RETRY_DELAY,
        reach_packets: 300,
        report_packets: 100,
        heartbeat: Duration::from_millis(50),
    }
}
