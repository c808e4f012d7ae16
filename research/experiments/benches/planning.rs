//! Times of the planners on one thread.

use std::collections::BTreeSet;
use std::hint::black_box;

use criterion::{BatchSize, Criterion, criterion_group, criterion_main};
use polycast_experiments::random::Random;
use polycast_experiments::{blast, datacast, orca};
use polycast_planning::circuits;
use polycast_planning::labels::LabelPlanner;
use polycast_planning::relays::StaticRules;
use polycast_planning::trees::TreePlanner;
use polycast_topology::{Failures, Network, Node, Shufflecast};

fn trees(c: &mut Criterion) {
    for text in ["bcube:8,4", "torus:16,3", "fat-tree:48,3", "bcube:20,4", "fat-tree:96,3"] {
        let network: Network = text.parse().expect("a network");
        let mut planner = TreePlanner::new(network);
        let mut random = Random::new(1);
        c.bench_function(&format!("trees/{text}/280 members, 5 % failed"), |b| {
            b.iter_batched(
                || datacast::trees::draw(&network, 280, 0.05, &mut random),
                |draw| black_box(planner.plan(draw.source, &draw.receivers, &draw.failures)),
                BatchSize::LargeInput,
            );
        });
    }
}

fn relays(c: &mut Criterion) {
    let network = Shufflecast::new(4, 4).expect("a network");
    c.bench_function("relays/all static rules of 4,4", |b| b.iter(|| StaticRules::new(black_box(&network))));
}

fn labels(c: &mut Criterion) {
    let clos = orca::papers_network();
    let mut planner = LabelPlanner::new(clos, 69).expect("labels");
    for size in [10u32, 100, 1000] {
        let mut random = Random::new(size.into());
        let mut hosts: Vec<Node> = (0..clos.hosts()).collect();
        random.choose_first(&mut hosts, size as usize + 1);
        c.bench_function(&format!("labels/{size} receivers anywhere"), |b| {
            b.iter(|| black_box(planner.plan(7, hosts[0], &hosts[1..=size as usize], &Failures::none())));
        });
    }
}

fn circuits(c: &mut Criterion) {
    let network = blast::optical(1000);
    let groups = blast::requests(1000, 40, 1000, &mut Random::new(2));
    c.bench_function("circuits/greedy, 1000 racks, 1000 groups", |b| {
        b.iter(|| black_box(circuits::schedule(&network, &groups, &BTreeSet::new())));
    });
}

criterion_group!(benches, trees, relays, labels, circuits);
criterion_main!(benches);
