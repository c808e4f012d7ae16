//! Time that the kernel's part of an agent takes to relabel a packet, with 100,000 active sessions (Orca,
//! figure 5c), by the kernel's own count of the program's run time, which includes its two readings of the
//! clock. It needs root. `cargo bench -p polycast-net --bench orca_agent`

use polycast_net::bpf::measure_runs;
use polycast_net::bpf::orca::{KernelAgent, Packets};
use polycast_net::tap::Tap;
use polycast_types::LabelKind;
use polycast_wire::label::Header;
use std::time::Instant;

const LABEL_LEN: usize = 19;
const SESSIONS: u32 = 1_000_000;
const ACTIVE: usize = 100_000;
/// Frames of these sizes are compared, in bytes; the first is the smallest that has a label, rounded up.
const SIZES: [usize; 6] = [72, 256, 1_024, 1_500, 4_096, 9_000];
/// Number of times that each size is measured.
const PASSES: u32 = 3;

/// The active sessions, without order, each different.
fn active() -> Vec<u32> {
    let session = |at: u32| at.wrapping_mul(2_654_435_761) ^ 0x5bd1_e995;
    (0..ACTIVE as u32).map(|at| session((u64::from(at) * 48_271 % u64::from(SESSIONS)) as u32)).collect()
}

fn leaf_label() -> [u8; LABEL_LEN] {
    let mut label = [0; LABEL_LEN];
    label[..3].copy_from_slice(&[0x80, 0x55, 0xaa]);
    label
}

/// A frame of a labelled packet, of this length.
fn frame(len: usize) -> Vec<u8> {
    let mut frame = vec![0x01, 0, 0x5e, 0, 0, 9, 2, 0, 0, 0, 0, 1, 8, 0, 0x45, 0];
    frame.extend((len as u16 - 14).to_be_bytes());
    frame.extend([0, 0, 0x40, 0, 16, 17, 0, 0, 10, 0, 0, 1, 239, 1, 1, 9, 1, 1]);
    frame.extend(7_474u16.to_be_bytes());
    frame.extend((len as u16 - 34).to_be_bytes());
    frame.extend([0x12, 0x34]);
    Header { kind: LabelKind::Filter, session: 0, label: &[0; LABEL_LEN] }.emit(&mut frame);
    frame.resize(len, 7);
    frame
}

/// Packets come in by an interface of the bench's own; the kernel says how long the program ran.
fn in_the_kernel() -> Result<(), Box<dyn std::error::Error>> {
    nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNET)?;
    let wire = Tap::open("wire")?;
    let packets = Packets { udp_port: 7_474, label_len: LABEL_LEN as u32 };
    // An LRU table that is nearly full forgets early: twice the room.
    let mut agent = KernelAgent::attach(packets, "wire", 2 * ACTIVE as u32)?;
    agent.set_agent(true)?;
    let active = active();
    for session in &active {
        agent.set_label(*session, &leaf_label())?;
    }
    let measured = measure_runs()?;
    let mut sink = vec![0; 10_000];
    for len in SIZES {
        let mut frame = frame(len);
        for _ in 0..PASSES {
            let before = (agent.cost()?, agent.counts()?.packets());
            let begun = Instant::now();
            for session in &active {
                frame[46..50].copy_from_slice(&session.to_be_bytes());
                wire.send(&frame)?;
                while wire.receive(&mut sink)?.is_some() {}
            }
            let elapsed = begun.elapsed();
            let after = (agent.cost()?, agent.counts()?.packets());
            let (runs, relabelled) = (after.0.0 - before.0.0, after.1 - before.1);
            let nanos = (after.0.1 - before.0.1).as_nanos() as f64 / runs as f64;
            println!(
                "kernel, packets of {len} bytes: {runs} runs, {relabelled} relabelled, {nanos:.0} ns a run: \
                 {:.1} Gbit/s; with a copy from and to user space {:.0} ns a packet",
                len as f64 * 8.0 / nanos,
                elapsed.as_nanos() as f64 / runs as f64
            );
        }
    }
    drop(measured);
    Ok(())
}

fn main() {
    if let Err(error) = in_the_kernel() {
        println!("not measured: {error}");
    }
}
