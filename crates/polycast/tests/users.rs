//! Several users of one machine at one agent: what is whose, and that the agent opens nothing for one that
//! this one could not open itself.

mod common;

use common::cluster::{Cluster, Daemon, socket};
use common::{Place, Ran, command_as, end, noise, tree};
use polycast_api::client::{AgentClient, Receivers, SendOptions};
use polycast_api::error::Kind;
use polycast_testing::{Need, needs};
use polycast_types::{AppId, DataId};
use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::Path;
use std::process::Command;

/// Users that own nothing else.
const ONE: u32 = 65_534;
const ANOTHER: u32 = 65_533;
/// Variables from which a test that runs itself again as another user takes the socket, and a file that only
/// root can read.
const SOCKET: &str = "POLYCAST_TEST_SOCKET";
const SECRET: &str = "POLYCAST_TEST_SECRET";
/// A set that root has added.
const SET: DataId = DataId(9);

/// A place where users can go through, with a folder that this one can write to.
fn place_of(uid: u32) -> (Place, String) {
    let place = Place::new();
    fs::set_permissions(place.root(), Permissions::from_mode(0o711)).unwrap();
    let folder = folder_of(&place, uid);
    (place, folder)
}

fn folder_of(place: &Place, uid: u32) -> String {
    let folder = place.path(&format!("user-{uid}"));
    fs::create_dir(&folder).unwrap();
    chown(&folder, Some(uid), Some(uid)).unwrap();
    folder
}

/// A file of this user's that no other can read.
fn file_of(uid: u32, path: &str, bytes: &[u8]) {
    fs::create_dir_all(Path::new(path).parent().unwrap()).unwrap();
    fs::write(path, bytes).unwrap();
    fs::set_permissions(path, Permissions::from_mode(0o600)).unwrap();
    chown(path, Some(uid), Some(uid)).unwrap();
}

/// A manager, and agents of root's whose sockets all users can use.
fn shared_cluster(place: Place) -> Cluster {
    let config = place.file("agent.toml", b"socket-mode = '666'\n");
    let manager = Daemon::manager("127.0.0.1:0", &[]);
    Cluster::of_with(place, vec![manager], &["a", "b"], &["--config", &config])
}

fn run_as(cluster: &Cluster, uid: u32, agent: &str, arguments: &[&str]) -> Ran {
    let socket = socket(&cluster.place, agent);
    end(command_as(uid, &[arguments, &["--socket", &socket, "--json"]].concat()).spawn().unwrap())
}

fn refused(ran: &Ran, says: &str) {
    assert_eq!(ran.status, 1, "{}", ran.stdout);
    assert!(ran.stderr.contains(says), "{}", ran.stderr);
}

#[test]
fn users_of_one_machine_have_what_is_theirs() {
    if !needs(&[Need::Root, Need::Tool("setpriv")]) {
        return;
    }
    let (place, home) = place_of(ONE);
    let others = folder_of(&place, ANOTHER);
    let cluster = shared_cluster(place);
    let one = |agent: &str, arguments: &[&str]| run_as(&cluster, ONE, agent, arguments);
    let another = |agent: &str, arguments: &[&str]| run_as(&cluster, ANOTHER, agent, arguments);

    // What only its owner can read is sent by its owner, however often, and got by another user elsewhere.
    let (file, bytes) = (format!("{home}/model.bin"), noise(3_000_000));
    file_of(ONE, &file, &bytes);
    for _ in 0..2 {
        let sent = one("a", &["send", &file, "--to", "b"]);
        assert_eq!(sent.status, 0, "{}", sent.stderr);
        assert_eq!(sent.json()["receivers"][0]["verified"], true);
    }
    for agent in ["a", "b"] {
        let out = format!("{others}/from-{agent}");
        let got = another(agent, &["get", "model.bin", "--out", &out]);
        assert_eq!(got.status, 0, "{agent}: {}", got.stderr);
        assert!(fs::read(&out).unwrap() == bytes, "{agent}");
    }
    let listed = another("a", &["ls"]).json();
    assert_eq!((&listed[0]["brought_by"], &listed[0]["path"]), (&ONE.into(), &"".into()), "{listed}");
    assert_eq!(cluster.at("b", &["ls"]).json()[0]["brought_by"], serde_json::Value::Null);

    // Other users may not remove it, and what is to be done elsewhere is not theirs at all.
    refused(&another("a", &["rm", "model.bin"]), &format!("it was brought by user {ONE}"));
    refused(&another("b", &["rm", "model.bin"]), "it has come from elsewhere");
    refused(&one("a", &["rm", "model.bin", "--to", "all"]), "may not have objects removed at other agents");
    refused(&one("a", &["send", &file, "--to", "b", "--replace"]), "only root and the agent's user may");
    refused(&one("a", &["drain", "ocs"]), "may not drain parts of the network");
    assert_eq!(one("a", &["rm", "model.bin"]).status, 0);

    // A private directory is there for its owner and for root.
    let folder = format!("{home}/run7");
    file_of(ONE, &format!("{folder}/deep/weights"), &noise(900_000));
    file_of(ONE, &format!("{folder}/log"), b"private");
    let sent = one("a", &["send", &folder, "--to", "b", "--id", "8", "--private"]);
    assert_eq!(sent.status, 0, "{}", sent.stderr);
    assert_eq!(another("a", &["ls"]).json().as_array().map(Vec::len), Some(0));
    refused(&another("a", &["get", "8", "--out", &format!("{others}/none")]), "there is no object 8 here");
    refused(&another("a", &["rm", "8"]), "there is no object 8");
    assert_eq!(cluster.at("a", &["ls"]).json()[0]["private"], true);
    for agent in ["a", "b"] {
        let out = format!("{home}/back-{agent}");
        assert_eq!(one(agent, &["get", "8", "--out", &out]).status, 0);
        assert!(tree(Path::new(&out)) == tree(Path::new(&folder)));
    }

    // What root has added by its path is root's file, and stays so.
    let secret = cluster.place.file("secret", b"root's");
    assert_eq!(cluster.at("a", &["send", &secret, "--to", "b", "--id", "9"]).status, 0);
    refused(&another("a", &["get", "9", "--out", &format!("{others}/secret")]), "there is no object 9 here");

    // So is a directory whose files it has added one by one; what has come elsewhere is for all there.
    let folder = secret_set(&cluster);
    assert_eq!(cluster.at("a", &["send", &folder, "--files", "--to", "b", "--id", "10"]).status, 0);
    let out = format!("{others}/set");
    refused(&another("a", &["get", "10", "--out", &out]), "there is no object 10 here");
    refused(&another("a", &["rm", "10"]), "there is no object 10");
    let listed = another("a", &["ls"]);
    assert!(!listed.stdout.contains("weights"), "{}", listed.stdout);
    assert_eq!(another("b", &["get", "10", "--out", &out]).status, 0);
    assert_eq!(fs::read(format!("{out}/secret.bin")).unwrap(), b"root's");
}

#[test]
fn a_group_belongs_to_the_user_that_has_made_it() {
    if !needs(&[Need::Root, Need::Tool("setpriv")]) {
        return;
    }
    let cluster = shared_cluster(place_of(ONE).0);
    let as_user = |uid, arguments: &[&str]| run_as(&cluster, uid, "a", arguments);
    assert_eq!(as_user(ONE, &["group", "create", "prices", "--to", "b"]).status, 0);
    refused(&as_user(ANOTHER, &["group", "rm", "prices"]), &format!("the group 'prices' is user {ONE}'s"));
    assert_eq!(as_user(ONE, &["group", "rm", "prices"]).status, 0);
}

/// A directory with a file, both of which only root can open.
fn secret_set(cluster: &Cluster) -> String {
    let folder = cluster.place.path("weights");
    file_of(0, &format!("{folder}/secret.bin"), b"root's");
    fs::set_permissions(&folder, Permissions::from_mode(0o700)).unwrap();
    folder
}

/// The daemon is asked by another user, with words that the command line does not say, to send what only the
/// daemon can open.
#[test]
fn an_agent_opens_no_path_for_another_user() {
    if let Some(socket) = std::env::var_os(SOCKET) {
        let secret = std::env::var_os(SECRET).unwrap();
        return tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
            let agent = AgentClient::connect(Path::new(&socket)).await.unwrap();
            let session = agent.register(AppId::default(), 7).await.unwrap();
            assert!(session.is_other_user());
            let refused = session.add(DataId(1), Path::new(&secret)).await.unwrap_err();
            assert_eq!(refused.kind(), Some(Kind::NotAllowed), "{refused}");
            assert!(refused.to_string().contains("opens no paths that user 65534 names"), "{refused}");
            assert!(agent.list(None).await.unwrap().is_empty());
            // Nor does it send the files of a set that it has opened for its own user, or tell of them.
            let sending = session.send(SET, &Receivers::All, &SendOptions::default()).await;
            let refused = sending.err().unwrap();
            assert_eq!(refused.kind(), Some(Kind::ObjectUnknown), "{refused}");
            let refused = session.files(SET, None).await.unwrap().next().await.unwrap_err();
            assert_eq!(refused.kind(), Some(Kind::ObjectUnknown), "{refused}");
        });
    }
    if !needs(&[Need::Root, Need::Tool("setpriv")]) {
        return;
    }
    let (place, _) = place_of(ONE);
    let secret = place.file("secret", b"root's");
    fs::set_permissions(&secret, Permissions::from_mode(0o600)).unwrap();
    let cluster = shared_cluster(place);
    let id = SET.0.to_string();
    let sent = cluster.at("a", &["send", &secret_set(&cluster), "--files", "--to", "b", "--id", &id]);
    assert_eq!(sent.status, 0, "{}", sent.stderr);
    let mut again = Command::new("setpriv");
    again.args([&format!("--reuid={ONE}"), &format!("--regid={ONE}"), "--clear-groups"]);
    again.arg(std::env::current_exe().unwrap()).args(["--exact", "an_agent_opens_no_path_for_another_user"]);
    again.env(SOCKET, socket(&cluster.place, "a")).env(SECRET, &secret).current_dir("/");
    let ran: Ran = again.output().unwrap().into();
    assert_eq!(ran.status, 0, "{} {}", ran.stdout, ran.stderr);
    assert!(ran.stdout.contains("1 passed"), "{}", ran.stdout);
}

/// In a folder that every user can write to, another user's agent may be there before one's own; it would say
/// which files have an object's bytes.
#[test]
fn no_agent_of_another_user_is_spoken_to_where_every_user_can_make_a_socket() {
    if !needs(&[Need::Root, Need::Tool("setpriv")]) {
        return;
    }
    let (place, home) = place_of(ANOTHER);
    let shared = place.path("shared");
    fs::create_dir(&shared).unwrap();
    fs::set_permissions(&shared, Permissions::from_mode(0o1777)).unwrap();
    let config = place.file("agent.toml", b"socket-mode = '666'\n");
    fs::set_permissions(&config, Permissions::from_mode(0o644)).unwrap();
    let manager = Daemon::manager("127.0.0.1:0", &[]);
    let (store, socket) = (format!("{home}/store"), format!("{shared}/agent.sock"));
    let words =
        ["agent", "--manager", manager.address(), "--name", "x", "--interface", "lo", "--config", &config];
    let more = ["--store", &store, "--socket", &socket];
    let _agent = Daemon::begin(command_as(ANOTHER, &[&words[..], &more].concat()));
    let ls = |uid| end(command_as(uid, &["ls", "--socket", &socket]).spawn().unwrap());
    refused(&ls(ONE), &format!("user {ANOTHER} listens there"));
    refused(&ls(0), &format!("user {ANOTHER} listens there"));
    assert_eq!(ls(ANOTHER).status, 0, "its own");
    // In a folder of its own it is meant.
    fs::set_permissions(&shared, Permissions::from_mode(0o755)).unwrap();
    assert_eq!(ls(ONE).status, 0);
}

/// An agent that is not root, as systemd runs it: root hands over what the agent cannot open, and others are
/// not let in unasked.
#[test]
fn root_sends_through_an_agent_that_is_not_root() {
    if !needs(&[Need::Root, Need::Tool("setpriv")]) {
        return;
    }
    let (place, home) = place_of(ANOTHER);
    let manager = Daemon::manager("127.0.0.1:0", &[]);
    let secret = place.file("secret", &noise(300_000));
    fs::set_permissions(&secret, Permissions::from_mode(0o600)).unwrap();
    let (store, socket) = (format!("{home}/store"), format!("{home}/agent.sock"));
    let words = ["agent", "--manager", manager.address(), "--name", "x", "--interface", "lo"];
    let more = ["--store", &store, "--socket", &socket];
    let _agent = Daemon::begin(command_as(ANOTHER, &[&words[..], &more].concat()));
    let other = Daemon::agent(&place, manager.address(), "y");
    let sent = common::polycast(&["send", &secret, "--to", "y", "--id", "4", "--socket", &socket, "--json"]);
    assert_eq!(sent.status, 0, "{}", sent.stderr);
    let stranger = end(command_as(ONE, &["ls", "--socket", &socket]).spawn().unwrap());
    refused(&stranger, "this user may not use the agent's socket");
    drop(other);
}
