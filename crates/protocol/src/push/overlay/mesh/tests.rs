use super::*;
use alloc::vec;
use proptest::prelude::*;

/// Counts the hops from the takers until each member is reached, over candidates; `None` where one is not.
fn hops(mesh: &Mesh) -> Option<usize> {
    let mut reached: BTreeSet<PeerId> = mesh.takers.clone();
    let mut hops = 0;
    while reached.len() < mesh.ring.len() {
        let is_next = |peer: &&PeerId| {
            !reached.contains(peer) && mesh.members[peer].from.iter().any(|from| reached.contains(from))
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
            let mut mesh = Mesh::new(seed);
            let told = mesh.join((0..members).map(PeerId));
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

#[test]
fn two_members_have_each_other() {
    let mut mesh = Mesh::new(7);
    let told = mesh.join([PeerId(1), PeerId(2)]);
    let of = |peer: u32, from: u32| Candidates { peer: PeerId(peer), from: vec![PeerId(from)], takes: true };
    assert_eq!(told, [of(1, 2), of(2, 1)]);
    assert_eq!(mesh.lose(PeerId(1), PeerId(2), false), Some(of(1, 2)), "there is no other");
    assert_eq!(mesh.lose(PeerId(1), PeerId(2), true), Some(Candidates { from: vec![], ..of(1, 2) }));
    assert_eq!(mesh.lose(PeerId(1), PeerId(2), true), None, "it is none any more");
}

proptest! {
    /// Whatever comes, goes and is lost: the laws hold, those that are told are those whose candidates have
    /// changed, and as long as none was lost, each member is reached.
    #[test]
    fn members_come_and_go(
        seed in any::<u64>(),
        steps in proptest::collection::vec((0u8..5, 0u32..12, 0u32..12), 0..60),
    ) {
        let mut mesh = Mesh::new(seed);
        let mut known: BTreeMap<PeerId, Candidates> = BTreeMap::new();
        let mut lost = false;
        for (action, one, other) in steps {
            let (one, other) = (PeerId(one), PeerId(other));
            let told = match action {
                0 | 1 => mesh.join([one, other]),
                2 => {
                    known.remove(&one);
                    mesh.leave(one)
                }
                _ => {
                    let told = mesh.lose(one, other, action == 4);
                    lost |= told.is_some();
                    told.into_iter().collect()
                }
            };
            known.extend(told.into_iter().map(|told| (told.peer, told)));
            mesh.check();
            let all: BTreeMap<PeerId, Candidates> =
                mesh.ring.iter().map(|peer| (*peer, mesh.told(*peer))).collect();
            prop_assert_eq!(&known, &all);
            prop_assert!(lost || hops(&mesh).is_some(), "one is not reached");
        }
    }
}
