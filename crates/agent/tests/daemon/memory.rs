//! Memory left over from groups that were served: none (Datacast, section 2, scalable group state
//! management).

use crate::real::{Daemons, Trees};
use crate::world::{MAKING, events, stopped, until};
use cap::Cap;
use polycast_api::agent::send_event::Event;
use polycast_api::client::{Receivers, SendOptions, Session};
use polycast_types::DataId;
use std::alloc::System;
use std::process::{Command, Stdio};
use std::time::Duration;

/// Counts what is allocated, so that it does not matter what the allocator or the system keep.
#[global_allocator]
static HEAP: Cap<System> = Cap::new(System, usize::MAX);

/// Set in the process that counts: other tests must not run in it.
const ALONE: &str = "POLYCAST_TEST_ALONE";
/// Groups between two readings, six of which are taken; after fewer, pools still grow.
/// `POLYCAST_GROUPS=10000` makes it more.
const STEP: u64 = 150;
/// Largest growth of four agents and a manager, in bytes a group: pools and queues of libraries still come to
/// their sizes. A table that keeps an entry a group with the names of its members grows by more.
const GROWTH_MAX: f64 = 100.0;

/// Returns the memory allocated when nothing happens: the least of a few readings, as threads that end let go
/// a moment later.
async fn allocated() -> usize {
    let mut least = usize::MAX;
    for _ in 0..10 {
        tokio::time::sleep(Duration::from_millis(30)).await;
        least = least.min(HEAP.allocated());
    }
    least
}

/// One group: an object is added, delivered to two others, and taken away everywhere.
async fn serve_group(sessions: &[Session], names: &[&str], path: &std::path::Path, number: u64) {
    let data = DataId(number + 1);
    let at = |step: u64| ((number + step) % 4) as usize;
    let source = &sessions[at(0)];
    source.add(data, path).await.unwrap();
    let to = Receivers::Named(vec![names[at(1)].into(), names[at(2)].into()]);
    let (events, error) = events(source.send(data, &to, &SendOptions::default()).await.unwrap()).await;
    assert!(error.is_none(), "{error:?}");
    let Some(Event::Finished(report)) = events.last() else { panic!("{events:?}") };
    assert!(report.is_complete() && report.fabric == "datacast", "{report:?}");
    for step in 0..3 {
        // Its transfer may just be ending.
        until("the object is gone", async || sessions[at(step)].delete(data).await.is_ok()).await;
    }
}

async fn serve_groups() {
    // Nothing else can carry it: what cannot be lent at a moment waits.
    let daemons =
        Daemons::start(Trees { test: 2, store_packets: 4, fabrics: "'datacast'", ..Trees::default() }).await;
    let path = daemons.world.file("small", &[7; 3_000]);
    let names = ["a", "b", "c", "d"];
    let mut sessions = Vec::new();
    for agent in &daemons.agents {
        sessions.push(agent.session(1).await);
    }
    let groups = std::env::var("POLYCAST_GROUPS").map_or(6 * STEP, |text| text.parse().unwrap());
    let step = groups / 6;
    let mut readings = Vec::new();
    for number in 0..6 * step {
        serve_group(&sessions, &names, &path, number).await;
        if (number + 1).is_multiple_of(step) {
            readings.push(allocated().await);
        }
    }
    // The first groups fill stores. Then a leak shows in every step; a pool that happened to grow only in
    // some.
    let steps = readings[1..].windows(2).map(|two| (two[1] as f64 - two[0] as f64) / step as f64);
    let steps: Vec<f64> = steps.collect();
    eprintln!("allocated: {readings:?} bytes; {steps:.1?} bytes a group");
    assert!(steps.iter().any(|growth| *growth < GROWTH_MAX), "{readings:?}");
    stopped(daemons.agents, daemons.manager).await;
}

/// A manager, four agents and their nodes, over whole deliveries from `add` to `delete`.
#[test]
fn groups_that_were_served_leave_nothing_in_memory() {
    if std::env::var_os(ALONE).is_some() {
        let runtime = tokio::runtime::Runtime::new().unwrap();
        return runtime.block_on(serve_groups());
    }
    let test = ["--exact", "memory::groups_that_were_served_leave_nothing_in_memory", "--nocapture"];
    let mut alone = Command::new(std::env::current_exe().unwrap());
    alone.args(test).env(ALONE, "1").stdout(Stdio::piped()).stderr(Stdio::piped());
    let making = MAKING.blocking_write();
    let running = alone.spawn().unwrap();
    drop(making);
    let ran = running.wait_with_output().unwrap();
    let said = [ran.stdout, ran.stderr].map(|said| String::from_utf8_lossy(&said).into_owned()).concat();
    assert!(ran.status.success() && said.contains("1 passed"), "{said}");
    eprintln!("{said}");
}
