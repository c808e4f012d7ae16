//! Managers whose etcd another program fills: all who ask are told, and when there is room again a manager
//! leads by itself.

use polycast_api::PROTOCOL_VERSION;
use polycast_api::error::{Kind, Refusal};
use polycast_api::manager::agent_message::Message as Said;
use polycast_api::manager::manager_client::ManagerClient;
use polycast_api::manager::{AgentId, AgentMessage, Join, ManagerMessage, StatusRequest};
use polycast_manager::check::check;
use polycast_manager::{Manager, ManagerConfig};
use polycast_testing::{HANG, folder_in_memory};
use std::net::SocketAddr;
use std::time::{Duration, Instant};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Streaming;

#[path = "common/etcd.rs"]
mod etcd;

fn settings(etcd: &str) -> ManagerConfig {
    let text = format!(
        "listen = '127.0.0.1:0'\nsilence-ms = 600000\nlease-ms = 1200000\n[etcd]\nendpoints = ['{etcd}']\n"
    );
    ManagerConfig::from_toml(&text).unwrap()
}

/// Returns a manager's answer to a request for its status.
async fn status(manager: SocketAddr) -> Result<(), Refusal> {
    let mut client = ManagerClient::connect(format!("http://{manager}")).await.unwrap();
    let asked = client.status(StatusRequest { protocol_version: PROTOCOL_VERSION }).await;
    asked.map(drop).map_err(|status| Refusal::from_status(&status).unwrap_or_else(|| panic!("{status}")))
}

/// An agent joins, if it is let in: that is a change, which the leader has to write.
async fn join(manager: SocketAddr, incarnation: u64) -> Option<Streaming<ManagerMessage>> {
    let (outbox, stream) = mpsc::channel(1);
    let join = Join {
        protocol_version: PROTOCOL_VERSION,
        agent: Some(AgentId { name: "a".into(), incarnation }),
        address: "10.0.0.1".into(),
        control_port: 7401,
        leases: Vec::new(),
        node: None,
    };
    outbox.send(AgentMessage { message: Some(Said::Join(join)) }).await.unwrap();
    let mut client = ManagerClient::connect(format!("http://{manager}")).await.unwrap();
    client.session(ReceiverStream::new(stream)).await.ok().map(tonic::Response::into_inner)
}

#[tokio::test(flavor = "multi_thread")]
async fn managers_lead_again_when_there_is_room() {
    let folder = folder_in_memory();
    let Some((_etcd, client)) = etcd::start_small(folder.path().to_str().unwrap(), 2 << 20) else { return };
    let mut managers = Vec::new();
    for _ in 0..2 {
        let manager = Manager::bind(settings(&client)).await.unwrap();
        managers.push(manager.address());
        tokio::spawn(manager.serve(std::future::pending()));
    }
    let begun = Instant::now();
    let mut leads = false;
    while !leads {
        assert!(begun.elapsed() < HANG, "none leads");
        for manager in &managers {
            leads |= status(*manager).await.is_ok();
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let found = check(&settings(&client)).await.unwrap();
    let about = found.etcd.as_ref().expect("the settings name it");
    assert!(found.ok && about.full == Some(false) && about.servers[0].reached, "{found:?}");
    assert!(found.text().contains("are in use"), "{}", found.text());

    let mut filled = etcd::fill(&client, 0);
    let is_told = |said: &Result<(), Refusal>| {
        let is_full = |refusal: &Refusal| {
            refusal.kind == Kind::NotLeader && refusal.message.contains("etcd's database is full")
        };
        said.as_ref().is_err_and(is_full)
    };
    let (begun, mut incarnation) = (Instant::now(), 0);
    let found = loop {
        let mut said = Vec::new();
        for manager in &managers {
            incarnation += 1;
            let _session = join(*manager, incarnation).await;
            said.push(status(*manager).await);
        }
        // Managers make what room they can, and until nothing of that is left the alarm comes and goes.
        let found = check(&settings(&client)).await.unwrap();
        let is_full = found.etcd.as_ref().is_some_and(|etcd| etcd.full == Some(true));
        if is_full && said.iter().all(is_told) {
            break found;
        }
        assert!(begun.elapsed() < HANG, "{said:?}, {found:?}");
        filled = etcd::fill(&client, filled);
        tokio::time::sleep(Duration::from_millis(50)).await;
    };
    assert!(!found.ok);
    assert!(found.faults[0].starts_with("etcd's database is full"), "{:?}", found.faults);

    etcd::clear(&client);
    let begun = Instant::now();
    'led: loop {
        for manager in &managers {
            if status(*manager).await.is_ok() && join(*manager, incarnation + 1).await.is_some() {
                break 'led;
            }
        }
        assert!(begun.elapsed() < HANG, "none leads, though there is room");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert!(check(&settings(&client)).await.unwrap().ok, "no alarm stands");
}

/// A server that is not there is named with its setting.
#[tokio::test]
async fn a_server_of_etcd_that_does_not_answer_is_named() {
    let nowhere = format!("127.0.0.1:{}", polycast_testing::free_port());
    let found = check(&settings(&nowhere)).await.unwrap();
    assert!(!found.ok && found.etcd.as_ref().is_some_and(|etcd| etcd.full.is_none()), "{found:?}");
    let fault = &found.faults[0];
    assert!(fault.contains(&nowhere) && fault.contains("etcd.endpoints"), "{fault}");
}
