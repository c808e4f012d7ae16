//! The store over a real etcd, where one is installed, and over a pretended one.

use super::*;
use polycast_net::tls::ForeignServer;
use polycast_protocol::leases::AgentKey;
use polycast_testing::{HANG, folder_in_memory};

#[path = "../../tests/common/etcd.rs"]
#[allow(dead_code, reason = "other tests need all of it")]
pub(crate) mod real;

/// As little as a real etcd is given here: its file is 24 KiB long when it is empty.
const QUOTA_BYTES: u64 = 4 << 20;

fn member(name: &str) -> (RecordKey, Option<Record>) {
    let agent = AgentKey { name: name.into(), incarnation: 7 };
    let record =
        Record::Member { agent, host: polycast_planning::HostId(0), address: ([10, 0, 0, 1].into(), 1) };
    (RecordKey::Member(name.into()), Some(record))
}

/// Writes an authority's certificate into a folder, and certificates and keys of these names that it has
/// issued.
fn issue(folder: &std::path::Path, authority: &str, names: &[&str]) {
    use rcgen::{BasicConstraints, CertificateParams, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair};
    let write = |name: &str, text: String| {
        let path = folder.join(name);
        std::fs::write(&path, text).unwrap();
        std::fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
    };
    let mut params = CertificateParams::default();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let key = KeyPair::generate().unwrap();
    write(&format!("{authority}.pem"), params.self_signed(&key).unwrap().pem());
    let issuer = Issuer::new(params, key);
    for name in names {
        let mut params = CertificateParams::new(vec!["127.0.0.1".to_string()]).unwrap();
        params.extended_key_usages =
            vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        let key = KeyPair::generate().unwrap();
        write(&format!("{name}.pem"), params.signed_by(&key, &issuer).unwrap().pem());
        write(&format!("{name}.key"), key.serialize_pem());
    }
}

/// Returns the store in an etcd whose servers answer late on a machine that is busy.
fn patient(endpoints: &[String], server: Option<ForeignServer>) -> Store {
    Store::new(Servers::answering_within(endpoints, server, HANG).unwrap(), "/test/")
}

/// Waits until etcd has come up.
async fn answers(store: &Store) {
    let begun = std::time::Instant::now();
    while let Err(error) = store.leader().await {
        assert!(begun.elapsed() < HANG, "{error}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// Messages of managers to etcd go over TLS, with certificates of both; a manager that comes without is told
/// what is missing. Managers that lead one after the other sign permits with one key.
#[tokio::test]
async fn etcd_is_reached_over_tls_with_certificates() {
    let folder = folder_in_memory();
    issue(folder.path(), "ca", &["etcd", "manager"]);
    issue(folder.path(), "other", &["foreign"]);
    let Some((_etcd, client)) = real::start_sealed(folder.path().to_str().unwrap(), QUOTA_BYTES) else {
        return;
    };
    let file = |name: &str| folder.path().join(name);
    let own = |name: &str| Some((file(&format!("{name}.pem")), file(&format!("{name}.key"))));
    let store = |ca: &str, own| {
        let server = ForeignServer { ca: file(ca), own };
        patient(std::slice::from_ref(&client), Some(server))
    };
    let good = store("ca.pem", own("manager"));
    answers(&good).await;
    let first = good.campaign("one:1", 600).await.unwrap().expect("no manager leads");
    let seed = good.permit_seed(first).await.unwrap();
    good.write(first, &[member("a")]).await.unwrap();
    good.revoke(first.lease).await;
    let second = good.campaign("two:1", 600).await.unwrap().expect("no manager leads");
    assert_eq!(good.load(second).await.unwrap().records.len(), 1);
    assert!(good.permit_seed(second).await.unwrap() == seed, "agents know the key of the one before");
    for (ca, own, says) in [
        ("ca.pem", None, "it asks to see a certificate: the settings 'cert' and 'key' name one"),
        ("ca.pem", own("foreign"), "it does not accept the certificate in the setting 'cert'"),
        ("other.pem", own("manager"), "no authority in the setting 'ca' has issued its certificate"),
    ] {
        // A server that is late to say why may end the connection before its words are read.
        let begun = std::time::Instant::now();
        loop {
            let error = store(ca, own.clone()).leader().await.unwrap_err().to_string();
            if error.contains(says) {
                break;
            }
            assert!(begun.elapsed() < HANG, "{says}: {error}");
        }
    }
    let plain = patient(std::slice::from_ref(&client), None);
    assert!(plain.leader().await.is_err());
}

/// One that leads no more without knowing it writes nothing, and so it tells agents nothing.
#[tokio::test]
async fn a_superseded_manager_changes_nothing() {
    let folder = folder_in_memory();
    let Some((_etcd, client)) = real::start(folder.path().to_str().unwrap()) else { return };
    let store = patient(&["127.0.0.1:1".into(), client], None);
    answers(&store).await;
    assert_eq!(store.leader().await.unwrap(), None);
    let first = store.campaign("one:1", 600).await.unwrap().expect("no manager leads");
    assert!(store.campaign("two:1", 600).await.unwrap().is_none(), "there is a leader");
    assert_eq!(store.leader().await.unwrap().as_deref(), Some("one:1"));
    let many: Vec<_> = (0..250).map(|number| member(&format!("host-{number:03}"))).collect();
    store.write(first, &many).await.unwrap();
    assert_eq!(store.load(first).await.unwrap().records.len(), 250);
    // Its lease has ended.
    store.revoke(first.lease).await;
    let second = store.campaign("two:1", 600).await.unwrap().expect("no manager leads any more");
    let late = store.write(first, &[member("late")]).await;
    assert!(matches!(late, Err(StoreError::Superseded)), "{late:?}");
    assert!(matches!(store.keep_alive(first).await, Err(StoreError::Superseded)));
    store.keep_alive(second).await.unwrap();
    let (key, _) = member("host-000");
    store.write(second, &[(key, None), member("new")]).await.unwrap();
    let names: Vec<String> = store
        .load(second)
        .await
        .unwrap()
        .records
        .into_iter()
        .map(|record| match record {
            Record::Member { agent, .. } => agent.name,
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!((names.len(), names[0].as_str()), (250, "host-001"), "the first is gone");
    assert!(names.contains(&"new".to_string()) && !names.contains(&"late".to_string()));
    // Longer than etcd takes at once.
    let (key, long) = lease(60_000);
    store.write(second, &[(key.clone(), Some(long.clone()))]).await.unwrap();
    assert!(store.load(second).await.unwrap().records.contains(&long));
    store.write(second, &[(key, None)]).await.unwrap();
    assert_eq!(store.load(second).await.unwrap().records.len(), 250);
    let pieces =
        api::RangeRequest { key: b"/test/pieces/".into(), range_end: b"/test/pieces0".into(), limit: 9 };
    assert_eq!(store.etcd.range(pieces).await.unwrap().kvs.len(), 0, "nothing of it is left");
    store.resign("two:1").await;
    assert_eq!(store.leader().await.unwrap(), None);
}

/// A path to so many receivers.
fn lease(receivers: usize) -> (RecordKey, Record) {
    let receivers: Vec<String> =
        (0..receivers).map(|number| format!(r#"["host-{number:09}",[[10,0,0,3],7401]]"#)).collect();
    let json = format!(
        r#"{{"Lease":{{"key":{{"agent":{{"name":"h0","incarnation":77}},"request":1}},"object":{{"app":[0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0],"data":1}},"group":{{"source":4,"receivers":[0]}},"grant":{{"plan_id":5,"accepted_bytes":9,"receivers":[{}],"plan":{{"fabric":"ip-multicast","resources":[],"uses":[],"commands":[],"channel":{{"Multicast":{{"group":[[239,1,0,0],7410],"rate":null,"attempt_interval":1000000}}}}}},"service":null,"lease":null}},"granted_at":1,"ends_at":null}}}}"#,
        receivers.join(",")
    );
    let record: Record = serde_json::from_str(&json).unwrap();
    (record.key(), record)
}

/// A record that is longer than etcd takes at once is as good as any other: it can grow, shrink and go, and a
/// leader that dies on the way leaves the one before or the one after.
#[tokio::test(start_paused = true)]
async fn a_record_of_any_length_is_written_whole_or_not_at_all() {
    let (key, long) = lease(60_000);
    let rounds =
        [Some(lease(1).1), Some(long), Some(lease(30_000).1), Some(lease(40_000).1), Some(lease(2).1), None];
    let server = pretended::Server::new();
    let store = Store::new(server.link(), "/test");
    let mut before = None;
    for after in rounds {
        for crash_at in 1.. {
            let mandate = store.campaign("one:1", 60).await.unwrap().expect("no manager leads");
            let link = server.link();
            link.crash_after(crash_at);
            let dying = Store::new(link, "/test");
            let changes = [member("a"), (key.clone(), after.clone())];
            let written = tokio::time::timeout(Duration::from_secs(9), dying.write(mandate, &changes)).await;
            store.revoke(mandate.lease).await;
            let mandate = store.campaign("two:1", 60).await.unwrap().expect("no manager leads any more");
            let loaded = store.load(mandate).await.unwrap();
            assert_eq!(loaded.unread, BTreeMap::new());
            let lease = loaded.records.into_iter().find(|record| record.key() == key);
            assert!(lease == before || lease == after, "after transaction {crash_at}");
            store.revoke(mandate.lease).await;
            if written.is_ok() {
                assert_eq!(lease, after);
                break;
            }
        }
        before = after;
    }
    assert_eq!(server.keys("/test/pieces/"), Vec::<String>::new(), "nothing of it is left");
}

/// Pieces that are not there, a number that is none, and a value that cannot be moved: each is named, and the
/// manager leads.
#[tokio::test(start_paused = true)]
async fn broken_pieces_and_values_too_long_to_move_are_named() {
    let server = pretended::Server::new();
    let store = Store::new(server.link(), "/test");
    let mandate = store.campaign("one:1", 600).await.unwrap().expect("no manager leads");
    let (key, long) = lease(60_000);
    store.write(mandate, &[(key.clone(), Some(long))]).await.unwrap();
    store.make(mandate, vec![delete(store.piece(&key.to_string(), 1), Vec::new())]).await.unwrap();
    server.put("/test/state/lease/00000000000000000006", b"pieces many");
    server.put("/test/state/pending/00000000000000000007", &vec![b'x'; 1_400_000]);
    server.put("/test/state/pending/00000000000000000008", &vec![b'x'; 1_570_000]);
    let loaded = store.load(mandate).await.unwrap();
    assert!(loaded.records.is_empty());
    assert!(loaded.unread[&key.to_string()].starts_with("piece 1 of "), "{:?}", loaded.unread);
    assert_eq!(loaded.unread["lease/00000000000000000006"], "it has no number of pieces");
    let keys: Vec<String> = loaded.unread.keys().cloned().collect();
    store.set_aside(mandate, loaded.values(keys)).await.unwrap();
    let left = server.keys("/test/state/");
    assert_eq!(left, ["/test/state/pending/00000000000000000008"], "all others are moved");
}

fn names(loaded: &Loaded) -> Vec<String> {
    loaded.records.iter().map(|record| record.key().to_string()).collect()
}

/// A leader that dies between the transactions of one change: the next one has all of it, or nothing.
#[tokio::test(start_paused = true)]
async fn a_change_is_written_whole_or_not_at_all() {
    let changes = |round: u64| -> Vec<_> {
        let gone = (0..150).map(|number| (RecordKey::Member(format!("{:03}-{}", number, round - 1)), None));
        gone.chain((0..150).map(|number| member(&format!("{number:03}-{round}")))).collect()
    };
    let mut seen = std::collections::BTreeSet::new();
    // Three parts into the journal, its number, three parts, and an end.
    for crash_at in 1..=8 {
        let server = pretended::Server::new();
        let first = Store::new(server.link(), "/test");
        let mandate = first.campaign("one:1", 60).await.unwrap().expect("no manager leads");
        first.write(mandate, &changes(1)).await.unwrap();
        let link = server.link();
        link.crash_after(crash_at);
        let dying = Store::new(link, "/test");
        let crashed = tokio::time::timeout(Duration::from_secs(9), dying.write(mandate, &changes(2))).await;
        assert!(crashed.is_err(), "it goes on after transaction {crash_at}");
        first.revoke(mandate.lease).await;
        let mandate = first.campaign("two:1", 60).await.unwrap().expect("no manager leads any more");
        let loaded = first.load(mandate).await.unwrap();
        assert!(loaded.unread.is_empty(), "{:?}", loaded.unread);
        let (names, rounds) = (names(&loaded), |round| move |name: &&String| name.ends_with(round));
        assert_eq!(names.len(), 150, "after {crash_at}");
        let new = names.iter().filter(rounds("-2")).count();
        assert!(new == 0 || new == 150, "{new} of 150 changes are there after transaction {crash_at}");
        seen.insert(new);
        assert_eq!(first.get(first.journal_part(0)).await.unwrap(), None, "the journal is gone");
    }
    assert_eq!(seen.into_iter().collect::<Vec<_>>(), [0, 150]);
}

/// A journal that another program has written gets nothing done that no manager would do.
#[tokio::test(start_paused = true)]
async fn a_journal_changes_records_alone() {
    let leased = api::PutRequest { key: b"/test/state/kept".to_vec(), value: b"{}".to_vec(), lease: 7 };
    let foreign = [
        put(b"/registry/secret".to_vec(), b"ours".to_vec()),
        put(b"/test/permit-seed".to_vec(), vec![7; 32]),
        put(b"/test/leader".to_vec(), b"ours".to_vec()),
        delete(b"/registry/".to_vec(), after(b"/registry/")),
        delete(b"/test/state/".to_vec(), b"/z".to_vec()),
        // For etcd that is all that comes after.
        delete(b"/test/state/".to_vec(), vec![0]),
        operation(Op::RequestPut(leased)),
        operation(Op::RequestRange(api::RangeRequest::default())),
        api::RequestOp { request: None },
    ];
    for change in foreign {
        let server = pretended::Server::new();
        let store = Store::new(server.link(), "/test");
        server.put("/registry/secret", b"theirs");
        server.put("/test/version", b"theirs");
        let own = put(b"/test/state/kept".to_vec(), b"{}".to_vec());
        let part = api::TxnRequest { success: vec![own, change.clone()], ..api::TxnRequest::default() };
        server.put("/test/journal/000000", &part.encode_to_vec());
        server.put("/test/journaled", b"1");
        let mandate = store.campaign("one:1", 60).await.unwrap().expect("no manager leads");
        let loaded = store.load(mandate).await.unwrap();
        let said = loaded.unread.get("journal").map(String::as_str);
        assert_eq!(said, Some("part 0 of the journal changes more than records"), "{change:?}");
        for key in ["/registry/secret", "/test/version"] {
            let found = store.get(key.as_bytes().to_vec()).await.unwrap();
            assert_eq!(found.as_deref(), Some(&b"theirs"[..]), "{change:?}");
        }
        assert_eq!(store.leader().await.unwrap().as_deref(), Some("one:1"));
        assert!(!server.was_written("/test/permit-seed") && !server.was_written("/test/state/kept"));
        assert_eq!(server.keys("/test/journal"), Vec::<String>::new(), "it is forgotten");
    }
}

/// A key of the leader that would stay for good, or that cannot be told to agents.
#[tokio::test(start_paused = true)]
async fn a_leader_that_is_no_manager_is_named() {
    let server = pretended::Server::new();
    let store = Store::new(server.link(), "/test");
    server.put("/test/leader", b"10.0.0.1:7400");
    let said = store.leader().await.unwrap_err().to_string();
    assert!(said.starts_with("the key '/test/leader' names no manager (it has no lease)"), "{said}");
    for address in ["\u{1b}[2J:7400", "10.0.0.1:7400\nmore", &"x".repeat(300)] {
        let store = Store::new(pretended::Server::new().link(), "/test");
        assert!(store.campaign(address, 60).await.unwrap().is_some());
        let said = store.leader().await.unwrap_err().to_string();
        assert!(said.starts_with("the key '/test/leader' names no manager (it is no address)"), "{said}");
    }
}

/// Data that can be read in etcd signs no permits where managers have a key in common, nor does data that is
/// written there.
#[tokio::test(start_paused = true)]
async fn the_key_of_permits_is_sealed_where_managers_have_a_key() {
    let server = pretended::Server::new();
    let key = Secret::fresh();
    let sealed = |key: &Secret| Store::new(server.link(), "/test").sealed_with(Some(key.clone()));
    let plain = Store::new(server.link(), "/test");
    let mandate = plain.campaign("one:1", 600).await.unwrap().expect("no manager leads");
    let seed = sealed(&key).permit_seed(mandate).await.unwrap();
    let kept = plain.get(b"/test/permit-seed".to_vec()).await.unwrap().unwrap();
    assert!(!kept.windows(8).any(|part| seed.reveal().starts_with(part)), "it is not there");
    assert!(sealed(&key).permit_seed(mandate).await.unwrap() == seed, "the next leader has the same");
    // A manager without the key has no use for it.
    assert!(matches!(plain.permit_seed(mandate).await, Err(StoreError::Record { .. })));
    server.put("/test/permit-seed", &[7; 32]);
    let next = sealed(&key).permit_seed(mandate).await.unwrap();
    assert!(next != seed && *next.reveal() != [7; 32], "what was put there is not taken");
    assert!(sealed(&key).permit_seed(mandate).await.unwrap() == next);
    assert!(sealed(&Secret::fresh()).permit_seed(mandate).await.unwrap() != next, "another key, another one");
}

/// Keys that are no text, numbers of pieces that no record has, and a server that gives what it was not asked
/// for.
#[tokio::test(start_paused = true)]
async fn what_no_manager_writes_is_not_taken_for_its_own() {
    let server = pretended::Server::new();
    let store = Store::new(server.link(), "/test");
    let mandate = store.campaign("one:1", 600).await.unwrap().expect("no manager leads");
    let value = serde_json::to_vec(&member("\u{fffd}").1.unwrap()).unwrap();
    store.make(mandate, vec![put(b"/test/state/member/\xff".to_vec(), value)]).await.unwrap();
    server.put("/test/state/kept", b"pieces 1000000000");
    let loaded = store.load(mandate).await.unwrap();
    assert_eq!(names(&loaded), Vec::<String>::new());
    assert_eq!(loaded.unread[r"member/\xff"], "no manager writes under such a key");
    let said = &loaded.unread["kept"];
    assert_eq!(said, "it says that it has 1000000000 pieces, and no record has more than 1024");
    // Of any number of other keys a few are named, and nothing is kept of them.
    for number in 0..3_000 {
        server.put(&format!("/test/state/other/{number}"), &[b'x'; 100]);
    }
    let loaded = store.load(mandate).await.unwrap();
    assert_eq!((loaded.unread.len(), loaded.foreign), (21, 3_001));
    assert_eq!(loaded.raw.keys().collect::<Vec<_>>(), ["kept"]);
    assert_eq!(store.known().records.len(), 1);
    server.set_wild();
    let loaded = tokio::time::timeout(Duration::from_secs(60), store.load(mandate)).await;
    let said = loaded.expect("it ends").unwrap_err().to_string();
    assert_eq!(said, "etcd: it gives keys that it was not asked for");
}

/// Leases granted since the backup was made are not in it.
#[tokio::test(start_paused = true)]
async fn a_backup_in_the_place_of_etcd_is_noticed_once() {
    let server = pretended::Server::new();
    let store = Store::new(server.link(), "/test");
    let mut seen = Vec::new();
    for round in 0..4 {
        let mandate = store.campaign("one:1", 600).await.unwrap().expect("no manager leads");
        store.write(mandate, &[member("a"), member("b")]).await.unwrap();
        store.keep_alive(mandate).await.unwrap();
        seen.push(store.load(mandate).await.unwrap().is_set_back);
        store.revoke(mandate.lease).await;
        if round == 1 {
            server.set_back(1);
        }
    }
    assert_eq!(seen, [false, false, true, false]);
}

/// Values that are not ours or cannot be read are named; those that were read stay, and the others are moved
/// when the leader says so.
#[tokio::test(start_paused = true)]
async fn what_cannot_be_read_is_named_and_set_aside() {
    let server = pretended::Server::new();
    let store = Store::new(server.link(), "/test");
    let mandate = store.campaign("one:1", 60).await.unwrap().expect("no manager leads");
    store.write(mandate, &[member("a"), member("b")]).await.unwrap();
    let other = serde_json::to_vec(&member("c").1.unwrap()).unwrap();
    let junk: [(&str, &[u8]); 5] = [
        ("lease/00000000000000000007", b"{\"Lease\":{\"later\":1}}"),
        ("member/b", &other),
        ("pods/web", b"k8s"),
        ("pending/1", b"[]"),
        ("kept", &[0xff; 3]),
    ];
    for (key, value) in junk {
        let key = format!("/test/state/{key}").into_bytes();
        store.make(mandate, vec![put(key, value.to_vec())]).await.unwrap();
    }
    let loaded = store.load(mandate).await.unwrap();
    assert_eq!(names(&loaded), ["member/a"]);
    let unread: Vec<&str> = loaded.unread.keys().map(String::as_str).collect();
    assert_eq!(unread, ["kept", "lease/00000000000000000007", "member/b", "pending/1", "pods/web"]);
    assert_eq!(loaded.unread["member/b"], "it is the record of 'member/c'");
    assert_eq!(loaded.unread["pods/web"], "no manager writes under such a key");
    // One of them is written anew before it is moved.
    store.write(mandate, &[member("b")]).await.unwrap();
    let values = loaded.values(["member/b".into(), "kept".into(), "lease/00000000000000000007".into()]);
    store.set_aside(mandate, values).await.unwrap();
    let loaded = store.load(mandate).await.unwrap();
    assert_eq!(names(&loaded), ["member/a", "member/b"]);
    assert_eq!(loaded.unread.keys().collect::<Vec<_>>(), ["pending/1", "pods/web"]);
    let aside = store.get(b"/test/aside/lease/00000000000000000007".to_vec()).await.unwrap();
    assert_eq!(aside.as_deref(), Some(junk[0].1));
}

/// More records than are read at a time.
#[tokio::test(start_paused = true)]
async fn many_records_are_read_once_each() {
    let server = pretended::Server::new();
    let store = Store::new(server.link(), "/test");
    let mandate = store.campaign("one:1", 600).await.unwrap().expect("no manager leads");
    let many: Vec<_> = (0..2_100).map(|number| member(&format!("host-{number:04}"))).collect();
    store.write(mandate, &many).await.unwrap();
    let names = names(&store.load(mandate).await.unwrap());
    let unique: std::collections::BTreeSet<_> = names.iter().collect();
    assert_eq!((names.len(), unique.len()), (2_100, 2_100));
}

/// Returns the status of etcd's database.
async fn size(store: &Store) -> api::StatusResponse {
    store.etcd.status(0).await.unwrap()
}

/// Writes members anew, again and again, as often as that takes to write many times what there may be;
/// meanwhile the history is forgotten, and the file stays as short as it was early on.
#[tokio::test]
async fn history_stays_level_in_a_small_etcd() {
    const SPAN_BYTES: u64 = 128 << 10;
    let folder = folder_in_memory();
    let Some((_etcd, client)) = real::start_small(folder.path().to_str().unwrap(), QUOTA_BYTES) else {
        return;
    };
    let store = patient(&[client], None).keeping(Span { age: Duration::from_secs(3_600), bytes: SPAN_BYTES });
    answers(&store).await;
    let mandate = store.campaign("one:1", 600).await.unwrap().expect("no manager leads");
    let members: Vec<_> = (0..50).map(|number| member(&format!("host-{number:03}"))).collect();
    let mut written = 0;
    let writes = async {
        for round in 0..500 {
            store.write(mandate, &members).await.unwrap();
            written += members.len();
            // What etcd has been asked to forget it forgets a little later, and says so with the change after
            // that.
            let begun = std::time::Instant::now();
            while round % 10 == 0 && size(&store).await.db_size_in_use as u64 > 8 * SPAN_BYTES {
                assert!(begun.elapsed() < HANG, "etcd forgets nothing: {:?}", size(&store).await);
                tokio::time::sleep(Duration::from_millis(10)).await;
                store.write(mandate, &members[..1]).await.unwrap();
            }
        }
    };
    tokio::select! {
        () = writes => {}
        _ = store.forget_history() => unreachable!("it does not end"),
    }
    let file_bytes = size(&store).await.db_size as u64;
    println!("{written} changes, a file of {file_bytes} bytes");
    assert!(written == 25_000 && file_bytes < QUOTA_BYTES, "{file_bytes} bytes");
    assert!(store.full_members().await.unwrap().is_empty(), "no alarm stands");
    assert_eq!(store.load(mandate).await.unwrap().records.len(), 50, "what there is now is not forgotten");
}

/// More records than are read at a time, read while history is forgotten up to the newest revision: managers
/// read what there is now.
#[tokio::test]
async fn records_are_read_in_pages_while_history_is_forgotten() {
    let folder = folder_in_memory();
    let Some((_etcd, client)) = real::start(folder.path().to_str().unwrap()) else { return };
    let store = patient(&[client], None);
    answers(&store).await;
    let first = store.campaign("one:1", 600).await.unwrap().expect("no manager leads");
    let many: Vec<_> = (0..2_100).map(|number| member(&format!("host-{number:04}"))).collect();
    store.write(first, &many).await.unwrap();
    store.revoke(first.lease).await;
    let second = store.campaign("two:1", 600).await.unwrap().expect("no manager leads any more");
    let forgets = async {
        // One that leads no more does not know it, and another program writes.
        loop {
            let foreign =
                api::TxnRequest { success: vec![put(b"/foreign".to_vec(), vec![1])], ..Default::default() };
            let revision = store.etcd.txn(foreign).await.unwrap().header.unwrap().revision;
            store.compact(revision, false).await.unwrap();
        }
    };
    let loaded = tokio::select! {
        loaded = store.load(second) => loaded.unwrap(),
        () = forgets => unreachable!("it does not end"),
    };
    assert_eq!((loaded.records.len(), loaded.unread.len()), (2_100, 0));
    let newest = size(&store).await.header.unwrap().revision;
    store.compact(newest, true).await.unwrap();
    store.compact(newest, true).await.expect("it is forgotten already");
    assert_eq!(store.load(second).await.unwrap().records.len(), 2_100);
}

/// Another program fills etcd, over TLS; then it removes what it has written. Room is made as far as it can
/// be, and no further.
#[tokio::test]
async fn room_is_made_in_a_full_etcd() {
    let folder = folder_in_memory();
    issue(folder.path(), "ca", &["etcd", "manager"]);
    let Some((_etcd, client)) = real::start_sealed(folder.path().to_str().unwrap(), QUOTA_BYTES) else {
        return;
    };
    let file = |name: &str| folder.path().join(name);
    let server = ForeignServer { ca: file("ca.pem"), own: Some((file("manager.pem"), file("manager.key"))) };
    let store = patient(&[client], Some(server));
    answers(&store).await;
    let mandate = store.campaign("one:1", 600).await.unwrap().expect("no manager leads");
    store.make_room().await.expect("there is room");
    let foreign = |number: u32| put(format!("/foreign/{number}").into_bytes(), vec![1; 32 << 10]);
    let mut count = 0;
    let mut fill = async || loop {
        let txn = api::TxnRequest { success: vec![foreign(count)], ..Default::default() };
        match store.etcd.txn(txn).await {
            Ok(_) => count += 1,
            Err(error) => break error,
        }
    };
    // What etcd has left free in its file comes back, more where it was slow: it is filled again until there
    // is none of that.
    let mut rounds = 0;
    let lack = loop {
        let full = fill().await;
        assert!(matches!(full, StoreError::Full), "{full}");
        match store.make_room().await {
            Ok(()) => rounds += 1,
            Err(lack) => break lack,
        }
        assert!(rounds < 64, "room is made where all is in use");
    };
    assert!(matches!(lack, Lack::InUse { .. }), "{lack}");
    let refused = store.write(mandate, &[member("a")]).await;
    assert!(matches!(refused, Err(StoreError::Full)), "{refused:?}");
    store.keep_alive(mandate).await.expect("that is no change");
    store.revoke(mandate.lease).await;
    let refused = store.campaign("one:1", 600).await;
    assert!(matches!(refused, Err(StoreError::Full)), "{refused:?}");
    let before = size(&store).await;
    assert!(lack.to_string().contains("--quota-backend-bytes"), "{lack}");
    assert_eq!(store.full_members().await.unwrap().len(), 1);
    let gone = api::TxnRequest {
        success: vec![delete(b"/foreign/".to_vec(), b"/foreign0".to_vec())],
        ..Default::default()
    };
    store.etcd.txn(gone).await.expect("keys can be removed");
    // The room is free a moment after the keys are.
    let begun = std::time::Instant::now();
    while let Err(lack) = store.make_room().await {
        assert!(begun.elapsed() < HANG, "{lack}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert!(size(&store).await.db_size < before.db_size / 4, "{:?}", size(&store).await);
    assert!(store.full_members().await.unwrap().is_empty(), "no alarm stands");
    let mandate = store.campaign("two:1", 600).await.unwrap().expect("no manager leads");
    store.write(mandate, &[member("a")]).await.unwrap();
    assert_eq!(store.load(mandate).await.unwrap().records.len(), 1);
}

/// Handling of an etcd that is full, according to its own reports.
#[tokio::test(start_paused = true)]
async fn alarms_are_taken_back_only_where_there_is_room() {
    const QUOTA_BYTES: u64 = 1 << 20;
    for tells_quota in [false, true] {
        let server = pretended::Server::new();
        server.set_quota(QUOTA_BYTES, tells_quota);
        let store = Store::new(server.link(), "/test");
        let refused = |store: &Store<pretended::Link>| {
            let store = Store::new(store.etcd.clone(), "/test");
            async move { matches!(store.campaign("one:1", 9).await, Err(StoreError::Full)) }
        };
        store.make_room().await.unwrap();
        server.set_foreign(QUOTA_BYTES + 1);
        assert!(refused(&store).await, "it is full");
        for _ in 0..3 {
            let lack = store.make_room().await.unwrap_err();
            assert!(matches!(lack, Lack::InUse { .. }), "{lack}");
        }
        assert_eq!(server.upkeep().1, 1, "it is defragmented again, though no key was removed");
        // A little room is none: it would be full again at once.
        server.set_foreign(QUOTA_BYTES - QUOTA_BYTES / 20);
        assert!(store.make_room().await.is_err() && server.is_full());
        server.set_foreign(QUOTA_BYTES / 2);
        server.set_locked(true);
        let lack = store.make_room().await.unwrap_err().to_string();
        assert!(lack.contains("(etcd: permission denied): run `etcdctl defrag`"), "{lack}");
        assert!(refused(&store).await && server.is_full());
        // An operator has done it, and has left the alarm; a manager that comes only then can tell if it is
        // told the quota.
        server.set_locked(false);
        Etcd::defragment(&server.link(), 0).await.unwrap();
        let newcomer = Store::new(server.link(), "/test");
        assert_eq!(newcomer.make_room().await.is_ok(), tells_quota);
        store.make_room().await.unwrap();
        // Twice here, once by the operator, and in vain by a newcomer that cannot tell.
        let defragmented = if tells_quota { 3 } else { 4 };
        assert_eq!((server.is_full(), server.upkeep().1), (false, defragmented));
        let mandate = store.campaign("one:1", 60).await.unwrap().expect("no manager leads");
        store.write(mandate, &[member("a")]).await.unwrap();
        // The next time is judged by itself: the quota may be another one.
        server.set_quota(QUOTA_BYTES * 3 / 4, tells_quota);
        server.set_foreign(QUOTA_BYTES * 3 / 4 + 1);
        assert!(store.write(mandate, &[member("a")]).await.is_err() && store.make_room().await.is_err());
        server.set_foreign(QUOTA_BYTES / 2);
        store.make_room().await.unwrap();
        assert_eq!((server.is_full(), server.upkeep().1), (false, defragmented + 2));
    }
}

/// Records that came and went before they were written are not removed, and no pieces of a record that has
/// none: a burst of transfers stays within one transaction, and is not written twice. A manager that has not
/// read the state removes all that may be there.
#[tokio::test(start_paused = true)]
async fn what_is_not_there_is_not_removed() {
    let server = pretended::Server::new();
    let store = Store::new(server.link(), "/test");
    let mandate = store.campaign("one:1", 600).await.unwrap().expect("no manager leads");
    let (key, record) = lease(2);
    store.write(mandate, &[(key.clone(), Some(record.clone()))]).await.unwrap();
    server.put("/test/pieces/lease/00000000000000000005/000000", b"left by a manager");
    store.load(mandate).await.unwrap();
    let waited = |number| (RecordKey::Pending(polycast_planning::RequestId(number)), None);
    let before = server.revision();
    let mut burst: Vec<_> = (0..100).map(waited).collect();
    store.write(mandate, &burst).await.unwrap();
    assert_eq!(server.revision(), before, "nothing is to be done");
    burst.extend((0..99).map(|number| member(&format!("host-{number}"))));
    burst.push((key.clone(), None));
    store.write(mandate, &burst).await.unwrap();
    assert_eq!(server.revision(), before + 100, "each change is written once");
    assert!(!server.was_written("/test/journal/000000"));
    assert!(!server.keys("/test/state/").contains(&format!("/test/state/{key}")));
    // Pieces come and go with their record.
    let (key, long) = lease(60_000);
    for round in [Some(long.clone()), Some(record), Some(long), None] {
        store.write(mandate, &[(key.clone(), round.clone())]).await.unwrap();
        let loaded = store.load(mandate).await.unwrap();
        assert_eq!(loaded.records.into_iter().find(|record| record.key() == key), round);
    }
    // The next one knows nothing before it has read.
    store.revoke(mandate.lease).await;
    let mandate = store.campaign("two:1", 600).await.unwrap().expect("no manager leads any more");
    store.write(mandate, &[(key, None)]).await.unwrap();
    assert_eq!(server.keys("/test/pieces/"), Vec::<String>::new());
}
