use super::*;
use alloc::vec;
use proptest::prelude::*;

/// Counts the hops from the takers until each member is reached, over candidates; `None` where one is not.
fn hops(mesh: &Mesh) -> Option<usize> {
    let mut reached: BTreeSet<PeerId> = mesh.takers.clone();
    let mut hops = 0;
    while reached.len() < mesh.ring.len() {
        let is_next = |peer: &&PeerId| {
            !reached.contains(peer) && mesh.members[peer].from.iter().any(|(from, _)| reached.contains(from))
        };
        let next: Vec<PeerId> = mesh.ring.iter().filter(is_next).copied().collect();
        if next.is_empty() {
            return None;
        }
        reached.extend(next);
        hops += 1;
    }
    Some(hops)
}

#[test]
fn all_are_reached_after_a_few_hops() {
    // Four edges to each: the logarithm to the base four of members a taker, and one or two more since edges
    // meet.
    for (members, most) in [(1, 0), (2, 0), (8, 0), (9, 1), (64, 4), (1_000, 7), (5_000, 8)] {
        for seed in 0..3 {
            let mut mesh = Mesh::new(seed, Location::default());
            let told = mesh.join((0..members).map(|peer| (PeerId(peer), Location::default())));
            mesh.check();
            assert_eq!(told.len(), members as usize);
            let hops = hops(&mesh);
            assert!(hops.is_some_and(|hops| hops <= most), "{members} members, seed {seed}: {hops:?} hops");
            let fed: Vec<usize> = mesh.members.values().map(|member| member.fed).collect();
            let (least, most) = (fed.iter().min(), fed.iter().max());
            assert!(most <= Some(&8), "one member serves {most:?} others, another {least:?}");
        }
    }
}

/// Members that a group reaches from those that take it.
fn reached_by(mesh: &Mesh, group: u64) -> BTreeSet<PeerId> {
    let mut reached: BTreeSet<PeerId> = mesh.ring.iter().copied().filter(|peer| mesh.takes(*peer)).collect();
    loop {
        let may = |(from, share): &(PeerId, Share)| reached.contains(from) && share.contains(group);
        let is_next = |peer: &&PeerId| !reached.contains(peer) && mesh.members[peer].from.iter().any(may);
        let next: Vec<PeerId> = mesh.ring.iter().filter(is_next).copied().collect();
        if next.is_empty() {
            return reached;
        }
        reached.extend(next);
    }
}

fn spot(zone: u8, rack: u8) -> Location {
    Location { zone: alloc::format!("z{zone}"), rack: alloc::format!("r{rack}") }
}

/// Each group enters each rack and each zone by one member, and leaves the source's once.
#[test]
fn each_group_enters_each_rack_once_and_leaves_the_sources_once() {
    for (zones, racks, hosts) in [(1u8, 3u8, 4u32), (3, 1, 4), (3, 4, 5), (2, 2, 1), (4, 2, 9)] {
        let mut mesh = Mesh::new(u64::from(hosts), spot(0, 0));
        let all = zones as u32 * racks as u32 * hosts;
        let of = |at: u32| spot((at / hosts) as u8 / racks, (at / hosts) as u8 % racks);
        mesh.join((0..all).map(|at| (PeerId(at), of(at))));
        mesh.check();
        for group in 0..1_000 {
            assert_eq!(reached_by(&mesh, group).len(), all as usize, "group {group} reaches not all");
            let asks =
                |peer: &PeerId| mesh.members[peer].from.iter().filter(|(_, share)| share.contains(group));
            let mut entries: BTreeMap<Location, BTreeSet<PeerId>> = BTreeMap::new();
            for peer in &mesh.ring {
                let outside = |(from, _): &(PeerId, Share)| of(from.0) != of(peer.0);
                if hosts > 1 && asks(peer).copied().any(|from| outside(&from)) {
                    entries.entry(of(peer.0)).or_default().insert(*peer);
                }
            }
            assert!(entries.values().all(|by| by.len() == 1), "group {group}: {entries:?}");
            let home = if racks == 1 { 0 } else { u32::from(racks) * hosts };
            let is_home = |peer: PeerId| peer.0 < home.max(hosts) && of(peer.0).zone == "z0";
            let leave =
                |peer: &&PeerId| of(peer.0).zone != "z0" && asks(peer).any(|(from, _)| is_home(*from));
            let leaves = mesh.ring.iter().filter(leave).count();
            assert!(hosts == 1 || zones == 1 || leaves == 1, "group {group} leaves {leaves} times");
        }
    }
}

/// A single member beside the source stands apart until another one comes there.
#[test]
fn a_single_member_beside_the_source_stands_apart() {
    let mut mesh = Mesh::new(5, spot(0, 0));
    let told = mesh.join((0..9).map(|at| (PeerId(at), spot((at / 8) as u8, 0))).map(|(peer, mut at)| {
        at.zone = if peer.0 == 8 { "z0".into() } else { "z1".into() };
        (peer, at)
    }));
    mesh.check();
    let own = told.iter().find(|told| told.peer == PeerId(8)).expect("all are told");
    assert!(own.takes && own.is_apart && own.from.is_empty(), "{own:?}");
    assert!(
        told.iter().all(|told| told.from.iter().all(|(from, _)| *from != PeerId(8))),
        "none fetches from it"
    );
    assert_eq!(told.iter().filter(|told| told.takes).count(), 1 + TAKERS, "others take, too");
    let told = mesh.join([(PeerId(9), spot(0, 0))]);
    mesh.check();
    let own = told.iter().find(|told| told.peer == PeerId(8)).expect("it is told");
    assert!(own.takes && !own.is_apart, "the two have each other: {own:?}");
}

/// A head that is of no use to one of its rack, or slow, is head no more; one that comes late is none.
#[test]
fn a_rack_gets_other_heads() {
    let mut mesh = Mesh::new(3, spot(0, 0));
    mesh.join((0..12).map(|at| (PeerId(at), spot(0, (at / 6) as u8))));
    let heads = mesh.layout.heads.clone();
    assert_eq!(heads.len(), layout::HEADS_MAX);
    let told = mesh.join([(PeerId(20), spot(0, 1))]);
    assert_eq!(mesh.layout.heads, heads, "it has nothing yet: {told:?}");
    let first = *heads.first().unwrap();
    assert!(!mesh.demote(first).is_empty() && !mesh.layout.heads.contains(&first));
    mesh.check();
    let (by, second) = {
        let heads: Vec<PeerId> = mesh.layout.heads.iter().copied().collect();
        let by = |head: &PeerId| mesh.ring.iter().find(|peer| mesh.members[peer].has(*head)).copied();
        let is_near = |(by, head): &(PeerId, PeerId)| mesh.are_neighbours(*by, *head);
        heads.into_iter().filter_map(|head| Some((by(&head)?, head))).find(is_near).unwrap()
    };
    mesh.lose(by, second, true);
    mesh.check();
    assert!(!mesh.layout.heads.contains(&second));
    assert!(mesh.demote(PeerId(20)).is_empty(), "it is none");
}

#[test]
fn two_members_have_each_other() {
    let mut mesh = Mesh::new(7, Location::default());
    let told = mesh.join([PeerId(1), PeerId(2)].map(|peer| (peer, Location::default())));
    let of = |peer: u32, from: u32| Candidates {
        peer: PeerId(peer),
        from: vec![(PeerId(from), Share::ALL)],
        takes: true,
        is_apart: false,
        is_behind_head: false,
    };
    assert_eq!(told, [of(1, 2), of(2, 1)]);
    assert_eq!(mesh.lose(PeerId(1), PeerId(2), false), [of(1, 2)], "there is no other");
    assert_eq!(mesh.lose(PeerId(1), PeerId(2), true), [Candidates { from: vec![], ..of(1, 2) }]);
    assert_eq!(mesh.lose(PeerId(1), PeerId(2), true), [], "it is none any more");
}

proptest! {
    /// Whatever comes, goes and is lost: the laws hold, those that are told are those whose candidates have
    /// changed, and as long as none was lost, each member is reached.
    #[test]
    fn members_come_and_go(
        seed in any::<u64>(),
        steps in proptest::collection::vec((0u8..6, 0u32..12, 0u32..12), 0..60),
        spots in proptest::collection::vec((0u8..3, 0u8..3), 13),
        is_spread in any::<bool>(),
    ) {
        let of = |at: u32| match is_spread {
            true => spot(spots[at as usize].0, spots[at as usize].1),
            false => Location::default(),
        };
        let mut mesh = Mesh::new(seed, of(12));
        let mut known: BTreeMap<PeerId, Candidates> = BTreeMap::new();
        let mut lost = false;
        for (action, one, other) in steps {
            let (one, other) = (PeerId(one), PeerId(other));
            let told = match action {
                0 | 1 => mesh.join([one, other].map(|peer| (peer, of(peer.0)))),
                5 => mesh.demote(one),
                2 => {
                    known.remove(&one);
                    mesh.leave(one)
                }
                _ => {
                    let told = mesh.lose(one, other, action == 4);
                    lost |= !told.is_empty();
                    told
                }
            };
            known.extend(told.into_iter().map(|told| (told.peer, told)));
            mesh.check();
            let all: BTreeMap<PeerId, Candidates> =
                mesh.ring.iter().map(|peer| (*peer, mesh.told(*peer))).collect();
            prop_assert_eq!(&known, &all);
            prop_assert!(lost || is_spread || hops(&mesh).is_some(), "one is not reached");
            for group in 0..if is_spread && !lost { 64 } else { 0 } {
                prop_assert_eq!(reached_by(&mesh, group).len(), mesh.ring.len(), "group {}", group);
            }
        }
    }
}
