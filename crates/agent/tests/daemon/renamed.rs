//! A source that has a permit for one object, and sends it by another name, or other bytes in its place.

use super::world::{Patient, SOON, World, events, manager, serve, stopped, until};
use polycast_agent::daemon::{Agent, AgentConfig, Engine};
use polycast_agent::transfer::{Received, ReceiverProgress, ReceiverSpec, Report, SourceSpec, TransferError};
use polycast_api::agent::send_event::Event;
use polycast_api::agent::{Object, ObjectState};
use polycast_api::client::{Receivers, SendOptions};
use polycast_net::seal::Secret;
use polycast_types::DataId;
use std::sync::{Arc, Mutex};

/// Part of an object that differs from the one that the source's agent has shown its manager.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
enum Lie {
    #[default]
    None,
    /// Its name in WELCOME.
    Name,
    /// Its bytes.
    Bytes,
}

/// The transports, of a source that may lie.
#[derive(Default)]
struct Renames {
    transports: Patient,
    lie: Mutex<Lie>,
}

impl Engine for Renames {
    fn deliver(
        &self,
        mut spec: SourceSpec,
        on_event: &mut dyn FnMut(&Report),
    ) -> Result<Report, TransferError> {
        match *self.lie.lock().unwrap() {
            Lie::None => {}
            Lie::Name => spec.name = "payroll.csv".into(),
            Lie::Bytes => spec.source = Arc::new(vec![0xee; usize::try_from(spec.source.len()).unwrap()]),
        }
        self.transports.deliver(spec, on_event)
    }

    fn receive(
        &self,
        spec: ReceiverSpec,
        on_event: &mut dyn FnMut(&ReceiverProgress),
    ) -> Result<Received, TransferError> {
        self.transports.receive(spec, on_event)
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_object_comes_by_the_name_in_its_permit_or_not_at_all() {
    let keys = polycast_testing::folder_in_memory();
    let key = keys.path().join("cluster.key");
    Secret::fresh().write_new(&key).unwrap();
    let settings =
        format!("key-file = '{}'\n[ip-multicast]\npool = '239.255.72.0/24'\nport = 17417", key.display());
    let manager = manager(0, &settings).await;
    let world = World::new(manager.address);
    let engine = Arc::new(Renames::default());
    let mut agents = Vec::new();
    for name in ["a", "b"] {
        let config = AgentConfig { key_file: Some(key.clone()), ..world.config(name) };
        agents.push(serve(Agent::start_with(config, Arc::clone(&engine) as _).await.unwrap()));
    }
    let client = agents[0].client().await;
    until("both agents have joined", async || client.status().await.unwrap().peers.len() == 2).await;
    let (source, receiver) = (agents[0].session(1).await, agents[1].session(1).await);
    for (number, lie) in [(1, Lie::None), (2, Lie::Name), (3, Lie::None)] {
        let lies = lie != Lie::None;
        *engine.lie.lock().unwrap() = lie;
        let path = world.file(&format!("model-{number}.bin"), &vec![number as u8; 3_000_000]);
        source.add(DataId(number), &path).await.unwrap();
        let sending = source.send(DataId(number), &Receivers::All, &SendOptions::default()).await.unwrap();
        let (events, error) = events(sending).await;
        let Some(Event::Finished(report)) = events.last() else { panic!("{events:?} {error:?}") };
        assert_eq!(report.is_complete(), !lies, "{report:?}");
        let listed = async || agents[1].client().await.list(None).await.unwrap();
        let is_over = |objects: &[Object]| objects.iter().all(|o| o.state() != ObjectState::Receiving);
        until("the receiver has ended it", async || is_over(&listed().await)).await;
        let objects = listed().await;
        let is_here = objects.iter().any(|object| object.data_id == number);
        assert_eq!(is_here, !lies, "{objects:?}");
        if lies {
            let why = report.receivers[0].error.as_str();
            assert!(why.contains("its permit is for another name than 'payroll.csv'"), "{why}");
        } else {
            assert!(report.sealed, "there are permits only where agents show keys");
            let read = receiver.read(DataId(number), SOON).await.unwrap();
            assert_eq!(read.name, format!("model-{number}.bin"));
        }
    }
    // The root hash of the third one is known now, and signed in each permit: no other bytes come in its
    // place.
    receiver.delete(DataId(3)).await.unwrap();
    *engine.lie.lock().unwrap() = Lie::Bytes;
    let sending = source.send(DataId(3), &Receivers::All, &SendOptions::default()).await.unwrap();
    let (events, error) = events(sending).await;
    let Some(Event::Finished(report)) = events.last() else { panic!("{events:?} {error:?}") };
    let why = report.receivers[0].error.as_str();
    assert!(why.contains("it called for the object with the root hash"), "{why}");
    let is_left =
        async || agents[1].client().await.list(None).await.unwrap().iter().all(|object| object.data_id != 3);
    until("the receiver has left it", is_left).await;
    // Nothing of it stays in the store, nor a part of it.
    let left: Vec<String> = std::fs::read_dir(&agents[1].store)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .filter(|name| name.contains("-2.object") || name.contains("-3.object"))
        .collect();
    assert_eq!(left, Vec::<String>::new());
    stopped(agents, manager).await;
}
