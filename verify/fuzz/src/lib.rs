//! The bodies of the fuzz targets: each takes any bytes and panics if a promise is broken.
//!
//! Decoders take packets and files as they are. Machines take bytes as a list of choices ([`words::Words`]):
//! what peers say, and how time goes on. `cargo xtask fuzz` looks for bytes that break a promise; the tests
//! here run every target on its corpus and on damaged copies of it.
#![warn(missing_docs)]

pub mod corpus;
pub mod decoders;
pub mod delivery;
pub mod delta;
pub mod drivers;
pub mod frames;
pub mod leases;
pub mod manager;
pub mod pull;
pub mod push;
pub mod rack;
pub mod session;
pub mod settings;
pub mod stream;
pub mod switch;
pub mod words;

/// A body: it panics if a promise is broken.
pub type Target = fn(&[u8]);

/// Names the target for the program that `cargo xtask fuzz` builds.
pub const TARGET: &str = "POLYCAST_FUZZ_TARGET";
/// Names the folder where that program puts the target's seeds.
pub const SEEDS: &str = "POLYCAST_FUZZ_SEEDS";

/// All targets, by name; those that take long for one run are behind the others.
pub const TARGETS: &[(&str, Target)] = &[
    ("control_frame", decoders::control_frame),
    ("data_header", decoders::data_header),
    ("discovery", decoders::discovery),
    ("label_header", decoders::label_header),
    ("label_probe", switch::label_probe),
    ("openflow", decoders::openflow),
    ("pull_packet", decoders::pull_packet),
    ("rack", decoders::rack),
    ("range_set", decoders::range_set),
    ("stream_header", decoders::stream_header),
    ("switch_words", decoders::switch_words),
    ("tl1", decoders::tl1),
    ("plan_record", leases::plan_record),
    ("manager_records", leases::manager_records),
    ("settings", settings::settings),
    ("push_sender", push::push_sender),
    ("push_receiver", push::push_receiver),
    ("delivery", delivery::delivery),
    ("overlay_upstreams", delivery::overlay_upstreams),
    ("overlay_source", delivery::overlay_source),
    ("roster", session::roster),
    ("guest", session::guest),
    ("stream_order", stream::stream_order),
    ("stream_table", stream::stream_table),
    ("pull_source", pull::pull_source),
    ("pull_receiver", pull::pull_receiver),
    ("pull_forwarder", pull::pull_forwarder),
    ("rack_central", rack::rack_central),
    ("rack_leaf", rack::rack_leaf),
    ("rack_agent", rack::rack_agent),
    ("rack_feedback", rack::rack_feedback),
    ("label_switch", switch::label_switch),
    ("leases", leases::leases),
    ("manager_session", manager::manager_session),
    ("frame_stream", frames::frame_stream),
    ("archive_unpack", decoders::archive_unpack),
    ("set_list", decoders::set_list),
    ("delta", delta::delta),
    ("receiver_driver", drivers::receiver_driver),
    ("source_driver", drivers::source_driver),
];

/// The target of this name.
#[must_use]
pub fn target(name: &str) -> Option<Target> {
    TARGETS.iter().find(|(other, _)| *other == name).map(|(_, body)| *body)
}

#[cfg(test)]
mod noise;
#[cfg(test)]
mod record;
#[cfg(test)]
mod tests;
