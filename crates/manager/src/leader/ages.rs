//! A leader over a real etcd with little room, for as many transfers as would fill it many times: what etcd
//! keeps stays as it was.
//!
//! `POLYCAST_TRANSFERS=500000 cargo test --release -p polycast-manager --lib a_cluster_that_ages -- --ignored
//! --nocapture` is the same for as many as that.

use super::{Role, compete};
use crate::config::ManagerConfig;
use crate::convert;
use crate::core::{Around, Core, Seat};
use crate::store::api::{PutRequest, RequestOp, TxnRequest, request_op};
use crate::store::tests::real;
use crate::store::{Etcd as _, Servers, Span, Store};
use polycast_api::PROTOCOL_VERSION;
use polycast_api::manager::agent_message::Message as Said;
use polycast_api::manager::manager_message::Message as Told;
use polycast_api::manager::{self as api, ManagerMessage};
use polycast_testing::{HANG, folder_in_memory};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::{mpsc, watch};

/// Quota of etcd's database: a few thousand transfers would fill it.
const QUOTA_BYTES: u64 = 8 << 20;
const SPAN: Span = Span { age: Duration::from_secs(3_600), bytes: 512 << 10 };
/// Transfers that run at the same time.
const AT_ONCE: u64 = 32;

/// An agent that has joined.
struct Agent {
    seat: Seat,
    messages: mpsc::Receiver<Result<ManagerMessage, tonic::Status>>,
}

impl Agent {
    fn join(core: &Arc<Core>, name: &str, number: u8) -> Self {
        let join = api::Join {
            protocol_version: PROTOCOL_VERSION,
            agent: Some(api::AgentId { name: name.into(), incarnation: 1 }),
            address: format!("10.0.0.{number}"),
            control_port: 7401,
            leases: Vec::new(),
            node: None,
        };
        let (outbox, messages) = mpsc::channel(4_096);
        let joined = Told::Joined(api::Joined::default());
        let seat = core.join(
            convert::join(join, std::net::Ipv4Addr::from([10, 0, 0, number]).into()).unwrap(),
            outbox,
            joined,
        );
        Agent { seat: seat.unwrap(), messages }
    }

    fn ask(&self, request_id: u64) {
        let request = api::PathRequest {
            request_id,
            app_id: vec![0; 16],
            data_id: request_id,
            data_size: 50_000,
            remaining_size: 50_000,
            receivers: vec!["b".into(), "c".into()],
            ..api::PathRequest::default()
        };
        self.seat.handle(Said::Request(request)).unwrap();
    }

    /// Waits for a path, and gives it back at once.
    async fn send_once(&mut self) {
        loop {
            let message = tokio::time::timeout(HANG, self.messages.recv()).await.expect("it is answered");
            match message.expect("the manager leads").unwrap().message {
                Some(Told::Granted(api::Granted { request_id, response_id, .. })) => {
                    let release = api::Release { request_id, response_id, ..api::Release::default() };
                    return self.seat.handle(Said::Release(release)).unwrap();
                }
                Some(Told::Denied(denied)) => panic!("{denied:?}"),
                _ => {}
            }
        }
    }
}

/// Status that etcd reports after some transfers.
#[derive(Debug)]
struct Seen {
    transfers: u64,
    file_bytes: u64,
    in_use_bytes: u64,
    revision: i64,
}

/// Lends and takes back as many paths; gives what etcd has said at the beginning and after each tenth.
async fn age(client: &str, transfers: u64) -> Vec<Seen> {
    let servers = || Servers::answering_within(&[client.to_string()], None, HANG).unwrap();
    let store = Store::new(servers(), "/polycast").keeping(SPAN);
    let config = ManagerConfig::from_toml(&format!(
        "fabrics = ['ip-multicast']\nsilence-ms = 600000\nlease-ms = 1200000\n\
         [ip-multicast]\npool = '239.1.0.0/24'\n\
         [etcd]\nttl-s = 600\nendpoints = ['{client}']\nadvertise = '127.0.0.1:2'\n"
    ));
    let config = config.unwrap();
    let (role, mut roles) = watch::channel(Role::Follower(None));
    let leading = tokio::spawn(async move {
        compete(&config, &store, "127.0.0.1:2", &role, &Around::default()).await;
    });
    let led = tokio::time::timeout(HANG, roles.wait_for(|role| matches!(role, Role::Leader(_)))).await;
    let core = match &*led.expect("it leads").unwrap() {
        Role::Leader(core) => Arc::clone(core),
        role => panic!("{role:?}"),
    };
    let mut source = Agent::join(&core, "a", 1);
    let _receivers = [Agent::join(&core, "b", 2), Agent::join(&core, "c", 3)];
    let etcd = servers();
    let mut seen = Vec::new();
    for number in 0..transfers + AT_ONCE {
        if number >= AT_ONCE {
            source.send_once().await;
        }
        if number < transfers {
            source.ask(number + 1);
        }
        if number % (transfers / 10) == 0 {
            seen.push(look(&etcd, number).await);
        }
    }
    leading.abort();
    seen
}

/// Waits until what etcd was told to forget is forgotten, which takes it a moment, and asks how it stands. It
/// counts what it has forgotten with the next change.
async fn look(etcd: &Servers, transfers: u64) -> Seen {
    let begun = Instant::now();
    loop {
        let status = etcd.status(0).await.unwrap();
        let seen = Seen {
            transfers,
            file_bytes: status.db_size as u64,
            in_use_bytes: status.db_size_in_use as u64,
            revision: status.header.unwrap_or_default().revision,
        };
        if seen.in_use_bytes < 6 * SPAN.bytes {
            return seen;
        }
        assert!(begun.elapsed() < HANG, "nothing is forgotten: {seen:?}");
        tokio::time::sleep(Duration::from_millis(20)).await;
        let put = PutRequest { key: b"/another/program".to_vec(), value: Vec::new(), lease: 0 };
        let put = RequestOp { request: Some(request_op::Request::RequestPut(put)) };
        etcd.txn(TxnRequest { success: vec![put], ..TxnRequest::default() }).await.unwrap();
    }
}

async fn ages(transfers: u64) {
    let folder = folder_in_memory();
    let Some((_etcd, client)) = real::start_small(folder.path().to_str().unwrap(), QUOTA_BYTES) else {
        return;
    };
    let begun = Instant::now();
    let seen = age(&client, transfers).await;
    for Seen { transfers, file_bytes, in_use_bytes, revision } in &seen {
        println!(
            "{transfers:9} transfers: a file of {file_bytes} bytes, {in_use_bytes} in use, revision {revision}"
        );
    }
    println!("{transfers} transfers in {:.1} s", begun.elapsed().as_secs_f64());
    let (early, last) = (&seen[2], seen.last().unwrap());
    // It may have been written faster for a while than it was forgotten.
    assert!(last.file_bytes <= early.file_bytes.max(QUOTA_BYTES / 2), "it grows: {early:?}, {last:?}");
}

#[tokio::test]
async fn twenty_thousand_transfers_leave_no_more_than_the_first_ones() {
    ages(20_000).await;
}

#[tokio::test]
#[ignore = "half a million transfers through a real etcd take about three minutes; the test above asks the same of fewer"]
async fn a_cluster_that_ages_needs_no_more_room() {
    ages(std::env::var("POLYCAST_TRANSFERS").map_or(500_000, |text| text.parse().unwrap())).await;
}
