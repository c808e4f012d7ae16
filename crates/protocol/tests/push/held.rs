//! Receivers that are held up for longer than a path may be silent, as by a disk: what waits in their sockets
//! has come.

use crate::settings::config;
use crate::world::{Faults, World};
use crate::{geometry, seconds};
use polycast_protocol::push::{PeerId, SenderConfig, SlowPolicy};
use polycast_types::{Duration, Rate, Time};
use proptest::prelude::*;

proptest! {
    #![proptest_config(ProptestConfig::with_cases(if cfg!(debug_assertions) { 60 } else { 300 }))]

    /// Disks stand still, one after the other or together, from the first packet on or later: no path is
    /// blamed, nothing goes over the chain, and next to nothing is asked for again that waits in a socket
    /// with room for it.
    #[test]
    fn a_disk_that_stands_still_is_no_broken_path(
        seed in any::<u64>(),
        receivers in 1..6_u32,
        packets in 200..4_000_u64,
        held in prop::collection::vec((0..6_u32, 0..3_000_u64, 1..4_000_u64), 1..8),
    ) {
        // It takes two to four seconds.
        let rate = Some(Rate(packets * 8_968 * 8 / 3));
        let config = SenderConfig {
            slow: SlowPolicy::Wait,
            rate,
            stall_timeout: Duration::from_secs(60),
            ..config(geometry(packets))
        };
        let mut world = World::new(seed, receivers, config, Faults::default());
        world.window_packets = 8_192;
        world.start();
        world.close();
        let mut held: Vec<_> =
            held.into_iter().map(|(peer, at, ms)| (Time(1) + Duration::from_millis(at), peer % receivers, ms)).collect();
        held.sort_unstable();
        for (at, peer, ms) in held {
            world.run(at);
            world.pause(peer, Duration::from_millis(ms));
        }
        world.run(seconds(60));
        world.assert_all_done();
        for peer in 0..receivers {
            let status = world.sender.status(PeerId(peer)).unwrap();
            prop_assert!(!status.cut_off && !status.chained, "{peer}: {status:?}");
        }
        let patches = world.patch_packets;
        prop_assert!(patches <= packets / 100 + u64::from(receivers), "{patches} patches of {packets} packets");
    }
}
