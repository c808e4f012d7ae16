//! Members that claim to be what they are not: a certificate of the cluster makes none the manager.

use super::world::{Patient, World, events, manager, serve, stopped, until};
use polycast_agent::daemon::{Agent, AgentConfig};
use polycast_api::agent::send_event::Event;
use polycast_api::client::{Receivers, SendOptions};
use polycast_manager::authority::Authority;
use polycast_net::tls::{Security, Talk, TlsFiles};
use polycast_testing::own_address;
use polycast_types::DataId;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpListener;

const HOUR: Duration = Duration::from_secs(3_600);

/// An agent's settings with a token of this authority.
fn with_token(world: &World, authority: &Authority, name: &str) -> AgentConfig {
    let token = authority.new_token(name, HOUR).unwrap().to_string();
    let identity = Some(world.folder.path().join(format!("identity-{name}")));
    AgentConfig { token: Some(token), identity, ..world.config(name) }
}

/// The files of a certificate that an agent has got for its token.
fn files(config: &AgentConfig) -> TlsFiles {
    let folder = config.identity.as_deref().unwrap();
    let [ca, cert, key] = ["ca.pem", "cert.pem", "key.pem"].map(|file| folder.join(file));
    TlsFiles { ca, cert, key, crl: None }
}

/// The same with the authority behind the certificate, as managers show it.
fn with_chain(files: TlsFiles, folder: &Path) -> TlsFiles {
    let cert = folder.join("chain.pem");
    let chain = [&files.cert, &files.ca].map(|file| fs::read_to_string(file).unwrap()).concat();
    fs::write(&cert, chain).unwrap();
    fs::set_permissions(&cert, fs::Permissions::from_mode(0o600)).unwrap();
    TlsFiles { cert, ..files }
}

fn engine() -> Arc<Patient> {
    Arc::default()
}

/// One in the manager's place that has an ordinary certificate gets no token, and its agents no certificate
/// of it. The honest manager takes the same token afterwards.
#[tokio::test(flavor = "multi_thread")]
async fn a_member_in_the_managers_place_learns_no_token() {
    let folder = polycast_testing::folder_in_memory();
    let honest = manager(0, &format!("ca = '{}'", folder.path().display())).await;
    let authority = Authority::open(folder.path()).unwrap();
    let world = World::new(honest.address);
    let x = with_token(&world, &authority, "x");
    drop(Agent::start_with(x.clone(), engine()).await.unwrap());
    let shown = with_chain(files(&x), world.folder.path());
    let security = Security::files_or_nobody(shown).unwrap();

    let listener = TcpListener::bind((own_address(), 0)).await.unwrap();
    let place = listener.local_addr().unwrap().to_string();
    let rogue = tokio::spawn(async move {
        let (stream, _) = listener.accept().await.unwrap();
        Talk::accept(stream, &security).await.is_ok()
    });
    let b = with_token(&world, &authority, "b");
    let misled = AgentConfig { manager: place, ..b.clone() };
    let said = Agent::start_with(misled, engine()).await.err().expect("it gets no certificate").to_string();
    assert!(said.contains("the other end is no manager: its certificate is for 'x'"), "{said}");
    assert!(!rogue.await.unwrap(), "nothing is said to one that is no manager");
    assert!(!b.identity.as_deref().unwrap().join("ca.pem").exists());

    let b = serve(Agent::start_with(b, engine()).await.unwrap());
    let client = b.client().await;
    until("it has joined", async || client.status().await.unwrap().manager_connected).await;
    b.task.stop().await;
    honest.task.stop().await;
}

/// A manager that a member has started with its own certificate gets no agent.
#[tokio::test(flavor = "multi_thread")]
async fn no_agent_joins_a_member() {
    let folder = polycast_testing::folder_in_memory();
    let honest = manager(0, &format!("ca = '{}'", folder.path().display())).await;
    let authority = Authority::open(folder.path()).unwrap();
    let world = World::new(honest.address);
    let [x, b] = ["x", "b"].map(|name| with_token(&world, &authority, name));
    for config in [&x, &b] {
        drop(Agent::start_with(config.clone(), engine()).await.unwrap());
    }
    let TlsFiles { ca, cert, key, .. } = files(&x);
    let [ca, cert, key] = [ca, cert, key].map(|file: PathBuf| file.display().to_string());
    let settings = format!("manager-name = 'x'\ntls-ca = '{ca}'\ntls-cert = '{cert}'\ntls-key = '{key}'");
    let rogue = manager(0, &settings).await;
    let misled = AgentConfig { manager: rogue.address.to_string(), token: None, ..b };
    let agent = serve(Agent::start_with(misled, engine()).await.unwrap());
    let said = agent.task.end().await.expect_err("it is not let in").to_string();
    assert!(said.contains("the other end is no manager: its certificate is for 'x'"), "{said}");
    rogue.task.stop().await;
    honest.task.stop().await;
}

/// Receivers that fetch from each other know by its name the one that they fetch from: the source sends the
/// object once, not to each of them.
#[tokio::test(flavor = "multi_thread")]
async fn receivers_know_each_other_by_their_certificates() {
    const LEN: u64 = 3_000_000;
    let folder = polycast_testing::folder_in_memory();
    let settings = format!("fabrics = ['tcp-chain']\nca = '{}'", folder.path().display());
    let honest = manager(0, &settings).await;
    let authority = Authority::open(folder.path()).unwrap();
    let world = World::new(honest.address);
    let mut agents = Vec::new();
    for name in ["a", "b", "c"] {
        let config = with_token(&world, &authority, name);
        agents.push(serve(Agent::start_with(config, engine()).await.unwrap()));
    }
    let client = agents[0].client().await;
    until("all agents have joined", async || client.status().await.unwrap().peers.len() == 3).await;
    let source = agents[0].session(1).await;
    let mut sent = Vec::new();
    // On a machine that is busy the source may have to give much of it again.
    for number in 1..=8 {
        let path = world.file(&format!("{number}.bin"), &vec![number as u8; LEN as usize]);
        source.add(DataId(number), &path).await.unwrap();
        let sending = source.send(DataId(number), &Receivers::All, &SendOptions::default()).await.unwrap();
        let (events, error) = events(sending).await;
        let Some(Event::Finished(report)) = events.last() else { panic!("{events:?} {error:?}") };
        assert!(report.is_complete() && report.sealed && report.fabric == "tcp-chain", "{report:?}");
        sent.push(report.sent_bytes);
        if report.sent_bytes < LEN + LEN / 2 {
            break;
        }
    }
    assert!(sent.last().is_some_and(|bytes| *bytes < LEN + LEN / 2), "{sent:?}");
    stopped(agents, honest).await;
}
