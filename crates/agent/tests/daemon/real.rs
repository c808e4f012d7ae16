//! The service with the real engine, over the loopback interface.

use super::world::{World, events, manager, serve, until};
use polycast_agent::daemon::Agent;
use polycast_api::agent::send_event::Event;
use polycast_api::agent::{ObjectKind, PathForm};
use polycast_api::client::{Receivers, SendOptions, Wait};
use polycast_types::{DataId, Duration as Span};

const SOON: Wait = Wait::UntilReady(Some(Span::from_secs(20)));

/// Sends a file and a directory from one agent to two, and gives which fabric carried the file.
async fn deliver(settings: &str) -> String {
    let manager = manager(0, settings).await;
    let world = World::new(manager.address);
    let mut agents = Vec::new();
    for name in ["a", "b", "c"] {
        agents.push(serve(Agent::start(world.config(name)).await.unwrap()));
    }
    let client = agents[0].client().await;
    until("all agents have joined", async || client.status().await.unwrap().peers.len() == 3).await;
    let bytes: Vec<u8> = (0..3_000_017u32).map(|i| ((i * 31) >> 3) as u8).collect();
    let source = agents[0].session(1).await;
    source.add(DataId(1), &world.file("model.bin", &bytes)).await.unwrap();
    let tree = world.folder.path().join("tree");
    std::fs::create_dir_all(tree.join("empty")).unwrap();
    std::fs::write(tree.join("leaf"), b"leaf").unwrap();
    source.add(DataId(2), &tree).await.unwrap();
    let mut fabric = String::new();
    for number in [1, 2] {
        let sending = source.send(DataId(number), &Receivers::All, &SendOptions::default()).await.unwrap();
        let (events, error) = events(sending).await;
        assert!(error.is_none(), "{error:?}");
        let Some(Event::Finished(report)) = events.last() else { panic!("{events:?}") };
        assert!(report.is_complete(), "{report:?}");
        assert_eq!(report.receivers.len(), 2);
        if number == 1 {
            fabric.clone_from(&report.fabric);
        }
        assert_eq!(source.read(DataId(number), SOON).await.unwrap().root, report.root);
    }
    for agent in &agents[1..] {
        let session = agent.session(1).await;
        let file = session.read(DataId(1), SOON).await.unwrap();
        assert_eq!((file.kind(), file.name.as_str()), (ObjectKind::File, "model.bin"));
        assert!(std::fs::read(&file.path).unwrap() == bytes);
        let directory = session.read(DataId(2), SOON).await.unwrap();
        assert_eq!((directory.kind(), directory.form()), (ObjectKind::Directory, PathForm::Bytes));
        let target = world.folder.path().join("out");
        let mut stream = std::fs::File::open(&directory.path).unwrap();
        polycast_net::archive::unpack(&mut stream, &target).unwrap();
        assert_eq!(std::fs::read(target.join("leaf")).unwrap(), b"leaf");
        assert!(target.join("empty").is_dir());
        std::fs::remove_dir_all(target).unwrap();
    }
    for agent in agents {
        agent.task.stop().await;
    }
    manager.task.stop().await;
    fabric
}

#[tokio::test(flavor = "multi_thread")]
async fn over_multicast() {
    // Groups of the loopback interface are this machine's: other tests use other ones.
    assert_eq!(deliver("[ip-multicast]\npool = '239.255.66.0/24'\nport = 17411").await, "ip-multicast");
}

#[tokio::test(flavor = "multi_thread")]
async fn over_the_chain() {
    assert_eq!(deliver("fabrics = ['tcp-chain']").await, "tcp-chain");
}
