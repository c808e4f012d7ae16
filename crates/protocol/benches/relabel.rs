//! Time that an agent takes to relabel a packet in user space, with a million sessions of which 100,000 are
//! active (Orca, figure 5c). `cargo bench -p polycast-protocol --bench relabel`; the kernel's part is
//! measured by a bench of `polycast-net`.

use criterion::measurement::{Measurement, WallTime};
use criterion::{Criterion, Throughput};
use polycast_protocol::switch::RackLabels;
use polycast_types::LabelKind;
use polycast_wire::label::Header;
use std::hint::black_box;
use std::time::Duration;

const LABEL_LEN: usize = 19;
const SESSIONS: u32 = 1_000_000;
const ACTIVE: usize = 100_000;
/// Packets that wait in a receive queue, and their bytes.
const QUEUE: usize = 1_024;
const PACKET_LEN: usize = 1_024;
/// Datagrams of these sizes are compared, in bytes.
const SIZES: [usize; 6] = [64, 256, 1_024, 1_500, 4_096, 9_000];

/// Numbers without order, each different.
fn session(at: u32) -> u32 {
    at.wrapping_mul(2_654_435_761) ^ 0x5bd1_e995
}

/// The active sessions, without order.
fn active() -> Vec<u32> {
    (0..ACTIVE as u32).map(|at| session((u64::from(at) * 48_271 % u64::from(SESSIONS)) as u32)).collect()
}

fn leaf_label() -> [u8; LABEL_LEN] {
    let mut label = [0; LABEL_LEN];
    label[..3].copy_from_slice(&[0x80, 0x55, 0xaa]);
    label
}

fn in_user_space(criterion: &mut Criterion) {
    let mut labels = RackLabels::new(LABEL_LEN, SESSIONS as usize);
    for at in 0..SESSIONS {
        labels.set(session(at), &leaf_label()).expect("there is room");
    }
    println!("{} sessions take {} bytes", labels.len(), labels.memory_bytes());
    let active = active();
    let mut packets = vec![vec![0u8; PACKET_LEN]; QUEUE];
    let mut group = criterion.benchmark_group("relabel");
    group.throughput(Throughput::Elements(1));
    group.bench_function("100,000 active of 1,000,000 sessions", |bencher| {
        let mut next = active.iter().copied().cycle();
        bencher.iter_custom(|count| relabelling(&mut labels, &mut packets, &mut next, count));
    });
    group.finish();
}

/// Returns the time to relabel `count` packets, a queue at a time; writing their headers does not count.
fn relabelling(
    labels: &mut RackLabels,
    packets: &mut [Vec<u8>],
    sessions: &mut impl Iterator<Item = u32>,
    count: u64,
) -> Duration {
    let (mut spent, mut done) = (Duration::ZERO, 0);
    while done < count {
        let batch = (count - done).min(QUEUE as u64) as usize;
        for packet in &mut packets[..batch] {
            let mut header = Vec::with_capacity(40);
            let session = sessions.next().expect("it has no end");
            Header { kind: LabelKind::Filter, session, label: &[0; LABEL_LEN] }.emit(&mut header);
            packet[..header.len()].copy_from_slice(&header);
        }
        let begun = WallTime.start();
        for packet in &mut packets[..batch] {
            assert!(black_box(labels.relabel(black_box(packet))).is_ok());
        }
        spent += WallTime.end(begun);
        done += batch as u64;
    }
    spent
}

/// The same with packets of other sizes, which only makes a difference to what else has to be in the
/// processor's caches: labels are put in place, and the payload is not touched.
fn by_size(criterion: &mut Criterion) {
    let mut labels = RackLabels::new(LABEL_LEN, ACTIVE);
    let active = active();
    active.iter().for_each(|session| labels.set(*session, &leaf_label()).expect("there is room"));
    let mut group = criterion.benchmark_group("relabel, 100,000 sessions, packets of");
    for len in SIZES {
        let mut packets = vec![vec![0u8; len]; QUEUE];
        group.throughput(Throughput::Bytes(len as u64));
        group.bench_function(format!("{len} bytes"), |bencher| {
            let mut next = active.iter().copied().cycle();
            bencher.iter_custom(|count| relabelling(&mut labels, &mut packets, &mut next, count));
        });
    }
    group.finish();
}

fn main() {
    let mut criterion = Criterion::default().configure_from_args().sample_size(30);
    in_user_space(&mut criterion);
    by_size(&mut criterion);
    criterion.final_summary();
}
