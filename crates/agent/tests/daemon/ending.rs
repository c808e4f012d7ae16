//! An agent that is told to stop ends all that it does for sources, however long these go on.

use super::world::{AgentTask, ManagerTask, World, answer, call, events, manager, serve, until};
use polycast_agent::daemon::{Agent, Engine};
use polycast_agent::transfer::{
    Held, Received, ReceiverProgress, ReceiverSpec, Report, Sink, SourceSpec, TransferError, Verified,
};
use polycast_api::client::{Receivers, SendOptions};
use polycast_net::object::ObjectKind;
use polycast_net::store::{PartFile, Placing};
use polycast_testing::HANG;
use polycast_types::{AppId, DataId, Handle, ObjectId};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// Root hash of the one object here.
const ROOT: [u8; 32] = [0; 32];

/// Receives an object of one byte at once. It then serves others, or confirms, until it is told to end.
#[derive(Default)]
struct Lingers {
    /// Set if receives go on for others.
    serves: bool,
    receives: AtomicUsize,
    confirms: AtomicUsize,
    deliveries: AtomicUsize,
    /// Set once a thread was told to end.
    told: AtomicBool,
    /// While set, threads go on although they were told to end: so does the agent, for a moment.
    holds: AtomicBool,
    /// A thread that no one can end would keep the test's runtime from ending.
    over: AtomicBool,
}

impl Lingers {
    fn linger(&self, running: &AtomicUsize, cancel: &AtomicBool) -> TransferError {
        running.fetch_add(1, Ordering::SeqCst);
        let begun = Instant::now();
        let ends = || {
            let is_told = cancel.load(Ordering::SeqCst);
            self.told.fetch_or(is_told, Ordering::SeqCst);
            (is_told && !self.holds.load(Ordering::SeqCst)) || self.over.load(Ordering::SeqCst)
        };
        while !ends() && begun.elapsed() < HANG * 2 {
            std::thread::sleep(Duration::from_millis(5));
        }
        running.fetch_sub(1, Ordering::SeqCst);
        TransferError::Cancelled
    }
}

impl Engine for Lingers {
    fn deliver(&self, _: SourceSpec, _: &mut dyn FnMut(&Report)) -> Result<Report, TransferError> {
        self.deliveries.fetch_add(1, Ordering::SeqCst);
        Err(TransferError::Cancelled)
    }

    fn receive(
        &self,
        spec: ReceiverSpec,
        on_event: &mut dyn FnMut(&ReceiverProgress),
    ) -> Result<Received, TransferError> {
        let Sink::Kept { path, keeper } = spec.sink else { panic!("{:?}", spec.sink) };
        let (object, name, kind, modified) = (object(), "x".to_string(), ObjectKind::File, None);
        let (mode, root) = (0o644, polycast_net::hash::hex(&ROOT));
        let part = PartFile::open(&path, 1, Placing { replace: true, ..Placing::default() })?;
        part.write(b"x", 0)?;
        let verified =
            Verified { object, name: name.clone(), kind, len_bytes: 1, mode, modified, root: root.clone() };
        keeper.keep(part, &verified)?;
        let received = Received {
            object,
            name: name.clone(),
            kind,
            bytes: 1,
            mode,
            modified,
            root,
            path,
            seconds: 0.1,
            waited: 0.0,
            patched_bytes: 0,
            spared_bytes: 0,
            came_bytes: 1,
            corrupt_groups: 0,
            sealed: false,
            forged_packets: 0,
            unchanged: false,
        };
        if !self.serves {
            return Ok(received);
        }
        on_event(&ReceiverProgress {
            name,
            bytes: 1,
            spared_bytes: 0,
            total: 1,
            corrupt_groups: 0,
            received: Some(received),
        });
        Err(self.linger(&self.receives, &spec.cancel))
    }

    fn confirm(&self, spec: &ReceiverSpec, _: &Held) -> Result<(), TransferError> {
        Err(self.linger(&self.confirms, &spec.cancel))
    }
}

/// Lets go of the threads of a test that has failed.
struct Over(Arc<Lingers>);

impl Drop for Over {
    fn drop(&mut self) {
        self.0.over.store(true, Ordering::SeqCst);
    }
}

fn object() -> ObjectId {
    ObjectId { app: AppId::default(), data: DataId(1) }
}

/// Calls an agent for the object as its source does.
async fn invite(agent: &AgentTask, handle: u64) {
    let at = agent.control;
    let invited = tokio::task::spawn_blocking(move || {
        let mut stream = call(at, (object(), 1), Handle(handle)).unwrap();
        loop {
            if let Some(answered) = answer(&mut stream) {
                return answered;
            }
        }
    });
    invited.await.unwrap().unwrap();
}

/// An agent that has the object.
async fn receiver(engine: &Arc<Lingers>) -> (ManagerTask, World, AgentTask) {
    let manager = manager(0, "").await;
    let world = World::new(manager.address);
    let agent = serve(Agent::start_with(world.config("b"), Arc::clone(engine) as _).await.unwrap());
    invite(&agent, 1).await;
    let client = agent.client().await;
    until("it is here", async || {
        let listed = client.list(None).await.unwrap();
        listed.first().is_some_and(|object| object.state() == polycast_api::agent::ObjectState::Received)
    })
    .await;
    (manager, world, agent)
}

/// A receiver that has all of an object goes on for those who fetch from it: as long as the slowest of them
/// takes, but no longer than its agent.
#[tokio::test(flavor = "multi_thread")]
async fn a_receive_that_serves_others_ends_with_the_agent() {
    let over = Over(Arc::new(Lingers { serves: true, ..Lingers::default() }));
    let (manager, _world, agent) = receiver(&over.0).await;
    until("it serves", async || over.0.receives.load(Ordering::SeqCst) == 1).await;
    agent.task.stop().await;
    until("it serves no more", async || over.0.receives.load(Ordering::SeqCst) == 0).await;
    manager.task.stop().await;
}

/// A source has the root hash of a large object only after all of it has been read.
#[tokio::test(flavor = "multi_thread")]
async fn a_confirmation_ends_with_the_agent() {
    let over = Over(Arc::new(Lingers::default()));
    let (manager, _world, agent) = receiver(&over.0).await;
    invite(&agent, 2).await;
    until("it confirms", async || over.0.confirms.load(Ordering::SeqCst) == 1).await;
    agent.task.stop().await;
    until("it confirms no more", async || over.0.confirms.load(Ordering::SeqCst) == 0).await;
    manager.task.stop().await;
}

/// A transfer that began while the agent says farewell would outlive it: all that run have been told to end.
#[tokio::test(flavor = "multi_thread")]
async fn no_transfer_begins_at_an_agent_that_ends() {
    let engine = Lingers { serves: true, holds: true.into(), ..Lingers::default() };
    let over = Over(Arc::new(engine));
    let (manager, world, agent) = receiver(&over.0).await;
    let other = world.agent("c").await;
    let client = agent.client().await;
    until("both have joined", async || client.status().await.unwrap().peers.len() == 2).await;
    let session = agent.session(1).await;
    let stopping = tokio::spawn(agent.task.stop());
    until("it ends", async || over.0.told.load(Ordering::SeqCst)).await;
    match session.send(DataId(1), &Receivers::All, &SendOptions::default()).await {
        Ok(sending) => drop(events(sending).await.1.unwrap()),
        Err(refused) => drop(refused),
    }
    assert_eq!(over.0.deliveries.load(Ordering::SeqCst), 0);
    over.0.holds.store(false, Ordering::SeqCst);
    stopping.await.unwrap();
    other.task.stop().await;
    manager.task.stop().await;
}
