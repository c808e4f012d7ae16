//! Many receivers that ask for one key at nearly the same time, and a new version for receivers of which some
//! have older ones: what leaves the source.

use crate::seconds;
use crate::settings::config;
use crate::world::{Faults, World};
use polycast_protocol::directory::{Directory, DirectoryConfig, DirectoryInput, DirectoryOutput, Wish};
use polycast_protocol::leases::AgentKey;
use polycast_protocol::push::Geometry;
use polycast_types::{AppId, DataId, Duration, ObjectId, Time};
use std::collections::BTreeSet;

fn agent(number: u64) -> AgentKey {
    AgentKey { name: format!("h{number}"), incarnation: 1 }
}

fn outputs(directory: &mut Directory, now: Time) -> Vec<DirectoryOutput> {
    std::iter::from_fn(|| directory.poll(now)).collect()
}

/// 200 agents ask within 50 ms. One reads the origin, and dies at half: the next one reads it. Then each byte
/// leaves it once.
#[test]
fn an_origin_is_read_once_and_each_byte_leaves_the_source_once() {
    const AGENTS: u64 = 200;
    let object = ObjectId { app: AppId::default(), data: DataId(1) };
    let mut directory = Directory::new(DirectoryConfig::default(), Time::ZERO, 0);
    for number in 0..AGENTS {
        directory.handle(Time::ZERO, DirectoryInput::Arrived { agent: agent(number) });
        directory.handle(Time::ZERO, DirectoryInput::Told { agent: agent(number) });
    }
    let wish = Wish { can_fill: true, waits: true, fills: false };
    let mut said = outputs(&mut directory, seconds(10));
    for number in 0..AGENTS {
        let now = seconds(20) + Duration(number * 50_000_000 / AGENTS);
        directory.handle(now, DirectoryInput::Want { agent: agent(number), object, wish });
        said.extend(outputs(&mut directory, now));
    }
    said.extend(outputs(&mut directory, seconds(21)));
    let [DirectoryOutput::Fill { agent: first, .. }] = &said[..] else { panic!("{said:?}") };
    let first = first.clone();
    // It dies when it has half of the object.
    directory.handle(seconds(22), DirectoryInput::Gone { agent: first.clone() });
    let said: Vec<_> = (22..40).flat_map(|at| outputs(&mut directory, seconds(at))).collect();
    let [DirectoryOutput::Fill { agent: second, .. }] = &said[..] else { panic!("{said:?}") };
    let second = second.clone();
    assert_ne!(second, first);
    directory.handle(
        seconds(41),
        DirectoryInput::Have {
            agent: second.clone(),
            object,
            length: 7,
            root: Some([3; 32]),
            age: Duration::ZERO,
        },
    );
    let said: Vec<_> = (41..43).flat_map(|at| outputs(&mut directory, seconds(at))).collect();
    let [DirectoryOutput::Serve { holder, receivers, .. }] = &said[..] else { panic!("{said:?}") };
    assert_eq!((holder, receivers.len() as u64), (&second, AGENTS - 2), "all that live, in one transfer");

    let world = crate::deliver(1, receivers.len() as u32, 400, Faults::default());
    assert!(world.settled.values().all(Option::is_none), "{:?}", world.settled);
    assert_eq!((world.patch_packets, world.unicast_fragments), (0, 0));
    // A few single fragments go ahead until every receiver has shown that it hears.
    assert!(world.data_packets <= 400 + 3, "{} packets for 400 fragments", world.data_packets);
}

/// A new version of so many groups, of which one in a hundred has changed: five receivers have the version
/// before, and two an older one, in which as many others are different too. `empty`: one more has nothing.
fn packets_for_a_version(groups: u64, empty: bool) -> (u64, u64) {
    let geometry = Geometry { object_len: groups << 16, fragment_len: 1 << 15, group_len: 1 << 16 };
    let receivers = 7 + u32::from(empty);
    let mut world = World::new(2, receivers, config(geometry), Faults::default());
    let has = |different: fn(u64) -> bool| {
        (0..groups).filter(|group| !different(*group)).collect::<BTreeSet<u64>>()
    };
    let (before, older) = (has(|group| group % 100 == 7), has(|group| group % 100 == 7 || group % 100 == 57));
    assert_eq!((before.len() as u64, older.len() as u64), (groups / 100 * 99, groups / 100 * 98));
    for peer in 0..7 {
        world.hold(peer, if peer < 5 { before.clone() } else { older.clone() });
    }
    world.start();
    world.close();
    world.run(seconds(600));
    world.assert_all_done();
    assert!(world.settled.values().all(Option::is_none), "{:?}", world.settled);
    (world.data_packets, world.patch_packets + world.unicast_fragments)
}

#[test]
fn of_100_000_groups_those_travel_that_a_receiver_lacks() {
    // What the two lack, which is all that the others lack, too: two packets a group.
    let (sent, repairs) = packets_for_a_version(100_000, false);
    assert!((4_000..=4_010).contains(&sent), "{sent} packets where receivers lack 4,000");
    assert_eq!(repairs, 0);
    // One that has nothing lacks all of it: it goes out once, for all.
    let (sent, repairs) = packets_for_a_version(10_000, true);
    assert!((20_000..=20_010).contains(&sent), "{sent} packets where one lacks 20,000");
    assert_eq!(repairs, 0);
}
