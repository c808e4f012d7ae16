//! Permits of the manager, and the fate of calls without them: those of a member that has the key and no
//! permit, or one of its own making, and a policy that changes while the cluster runs.

mod common;

use common::cluster::{Cluster, Daemon};
use common::{Place, end, noise, polycast};
use polycast_net::frames::FrameStream;
use polycast_net::permit::{Group, PermitKey};
use polycast_net::seal::Secret;
use polycast_net::tls::{Expected, Security};
use polycast_testing::{HANG, until};
use polycast_types::{Handle, ObjectId};
use polycast_wire::control::{Control, Overlay};
use polycast_wire::data::Header;
use polycast_wire::permit::{Permit, ShownPermit};
use rustix::net::{AddressFamily, SocketType, sockopt};
use std::fs;
use std::net::{Ipv4Addr, SocketAddrV4, UdpSocket};
use std::path::Path;
use std::time::{Duration, Instant};

/// Interval at which an agent's answer is polled.
const LOOK_AGAIN: Duration = Duration::from_millis(100);

/// A cluster with one key, whose manager has these settings.
fn cluster(settings: &str, names: &[&str]) -> (Cluster, String) {
    let place = Place::new();
    let key = place.path("key");
    assert_eq!(polycast(&["key", "new", &key]).status, 0);
    let config = place.file("manager.toml", settings.replace("PLACE", &place.path("")).as_bytes());
    let manager = Daemon::manager("127.0.0.1:0", &["--config", &config, "--key-file", &key]);
    (Cluster::of_with(place, vec![manager], names, &["--key-file", &key]), key)
}

/// Calls an agent to a transfer as a member with the cluster's key does; gives why it does not come.
fn call(agent: &str, key: &str, permit: Option<ShownPermit<'_>>) -> Option<String> {
    let mut stream = member_at(agent, key);
    let invite = Control::Invite {
        address: [127, 0, 0, 1].into(),
        port: 9,
        handle: Handle(7),
        object: ObjectId::default(),
        pulled: false,
        object_len: 5,
        root: None,
        permit,
        delta: None,
    };
    stream.send(&invite).unwrap();
    answer(stream, |frame| matches!(frame, Control::Joining))
}

/// A connection to an agent, of a member with the cluster's key.
fn member_at(agent: &str, key: &str) -> FrameStream {
    let security = Security::shared(&Secret::read(Path::new(key)).unwrap());
    FrameStream::connect(agent.parse().unwrap(), HANG, Some(&security), &Expected::Sharer).unwrap()
}

/// Returns the reason why a request is refused; `None` where the answer `is_right`.
fn answer(mut stream: FrameStream, is_right: impl Fn(&Control<'_>) -> bool) -> Option<String> {
    let begun = Instant::now();
    while begun.elapsed() < HANG {
        stream.wait(LOOK_AGAIN).unwrap();
        let open = stream.fill();
        match stream.next_frame().unwrap() {
            Some(frame) if is_right(&frame) => return None,
            Some(Control::Refuse(why)) => return Some(why.to_string()),
            Some(other) => panic!("{other:?}"),
            None => drop(open.unwrap()),
        }
    }
    panic!("it does not answer");
}

/// The data channel of a cluster, as any host hears it that joins its group.
fn listen(channel: SocketAddrV4) -> UdpSocket {
    let socket = rustix::net::socket(AddressFamily::INET, SocketType::DGRAM, None).unwrap();
    sockopt::set_socket_reuseaddr(&socket, true).unwrap();
    rustix::net::bind(&socket, &channel).unwrap();
    sockopt::set_ip_add_membership(&socket, channel.ip(), &Ipv4Addr::LOCALHOST).unwrap();
    let socket = UdpSocket::from(socket);
    socket.set_read_timeout(Some(HANG)).unwrap();
    socket
}

/// A transfer's handle is in clear in its packets. A member that is no receiver reads nothing by it, neither
/// at the source nor at a receiver.
#[test]
fn a_member_that_hears_a_handle_fetches_nothing_by_it() {
    let channel = SocketAddrV4::new(Ipv4Addr::new(239, 255, 66, 7), 7_411);
    let settings =
        format!("[ip-multicast]\npool = '{}/32'\nport = {}\nrate = '8mbit'\n", channel.ip(), channel.port());
    let (cluster, key) = cluster(&settings, &["a", "b"]);
    let socket = listen(channel);
    let file = cluster.place.file("object", &noise(4_000_000));
    let mut sending = cluster.begin("a", &["send", &file, "--to", "b"]);
    let mut packet = [0; 9_000];
    let handle = loop {
        let len = socket.recv(&mut packet).unwrap();
        if let Ok((Header::Fragment(header), _)) = Header::parse(&packet[..len]) {
            break header.handle;
        }
    };
    // A source refuses one that it has not told to come as well, in other words.
    for (agent, says) in cluster.agents.iter().zip(["it shows no ticket for it", "malformed packet"]) {
        let mut stream = member_at(agent.ready["control_address"].as_str().unwrap(), &key);
        let enter = Overlay::Enter { handle, ticket: [0; 32], entry: 0, have: Vec::new() };
        stream.send(&Control::Overlay(enter)).unwrap();
        let is_served = |frame: &Control<'_>| {
            matches!(frame, Control::Group { .. } | Control::Overlay(Overlay::Holds(_)))
        };
        let why = answer(stream, is_served).expect("it is not served");
        assert!(why.contains(says), "{why}");
    }
    assert_eq!(sending.try_wait().unwrap(), None, "the transfer was still running");
    assert!(sending.wait().unwrap().success());
}

/// Gives a file another text, at one moment.
fn replace(path: &str, text: &str) {
    let new = format!("{path}.new");
    fs::write(&new, text).unwrap();
    fs::rename(new, path).unwrap();
}

#[test]
fn a_member_without_a_permit_calls_nobody() {
    let (cluster, key) = cluster("", &["a", "b"]);
    let b = cluster.agents[1].ready["control_address"].as_str().unwrap();
    let why = call(b, &key, None).expect("it does not come");
    assert!(why.contains("shows no permit of the manager"), "{why}");

    // One that it has signed itself.
    let group = Group::new(["b".to_string()]);
    let forged = PermitKey::new(&Secret::fresh()).sign(&Permit {
        lease: 1,
        source: "a",
        address: [127, 0, 0, 1].into(),
        object: ObjectId::default(),
        object_len: 5,
        root: None,
        name: "x",
        fabric: "tcp-chain",
        channel: ([0; 4].into(), 0),
        pulled: false,
        receivers: 1,
        group: group.hash(),
        from_unix_s: 0,
        until_unix_s: u64::MAX,
    });
    let why = call(b, &key, forged.show(&group, "b")).expect("it does not come");
    assert!(why.contains("is not signed by this agent's manager"), "{why}");
    let objects = cluster.at("b", &["ls"]).json();
    assert_eq!(objects.as_array().map(Vec::len), Some(0), "{objects}");

    let file = cluster.place.file("f", &noise(300_000));
    let sent = cluster.at("a", &["send", &file, "--to", "all", "--id", "1"]);
    assert_eq!(sent.status, 0, "{}", sent.stderr);
}

#[test]
fn the_policy_says_who_sends_what_to_whom() {
    let settings = "policy = 'PLACE/policy.toml'\naudit-log = 'PLACE/audit'\n";
    let place = Place::new();
    let policy = place.file(
        "policy.toml",
        b"[[allow]]\nsource = ['a']\nreceivers = ['b']\nobjects = ['model-*']\n[[quota]]\nbytes-max = '1MB'\n",
    );
    let (cluster, _) = cluster(&settings.replace("PLACE", &place.path("")), &["a", "b", "c"]);
    let file = |name: &str, bytes: usize| cluster.place.file(name, &noise(bytes));
    let model = file("model-1", 300_000);
    let refused = |at: &str, arguments: &[&str], says: &str| {
        let ran = cluster.at(at, arguments);
        assert_eq!(ran.status, 1, "{arguments:?} {}", ran.stdout);
        assert!(ran.stderr.contains(says), "{}", ran.stderr);
    };
    let sent = cluster.at("a", &["send", &model, "--to", "b", "--id", "1"]);
    assert_eq!(sent.status, 0, "{}", sent.stderr);
    refused("a", &["send", &model, "--to", "c"], "does not let 'a' send 'model-1' to 'c'");
    refused("a", &["send", &file("other", 9), "--to", "b"], "does not let 'a' send 'other' to 'b'");
    refused("b", &["send", &file("model-2", 9), "--to", "a"], "does not let 'b' send 'model-2' to 'a'");
    refused("a", &["send", &file("model-3", 1_000_001), "--to", "b"], "send 1000000 bytes at a time");
    refused("c", &["rm", "1", "--to", "all"], "does not let 'c' remove objects by their numbers at 'a'");
    // Of all, those come whom the policy lets have it.
    let all = cluster.at("a", &["send", &file("model-4", 200_000), "--to", "all", "--id", "4"]);
    let report = all.json();
    let verified = |name: &str| {
        let receivers = report["receivers"].as_array().unwrap();
        receivers.iter().find(|receiver| receiver["name"] == name).map(|found| found["verified"].clone())
    };
    assert_eq!(verified("b"), Some(true.into()), "{report}");
    assert_eq!(verified("c"), Some(false.into()), "{report}");

    // It is read again when it changes; one with a mistake changes nothing.
    replace(&policy, "[[alow]]\n");
    let audit = place.path("audit");
    until("the manager has seen the mistake", || !policies(&audit).is_empty());
    refused("a", &["send", &model, "--to", "c"], "does not let 'a' send 'model-1' to 'c'");
    replace(&policy, "");
    until("the policy is read again", || {
        cluster.at("b", &["send", &model, "--to", "c", "--id", "9"]).status == 0
    });
    audited(cluster, &audit);
}

/// Groups for packets of programs are judged by their names, and taken back when the policy bans them.
#[test]
fn the_policy_decides_about_groups() {
    let place = Place::new();
    let allow = |receivers: &str| {
        format!(
            "[[allow]]\nreceivers = {receivers}\nobjects = ['prices-*']\n[[quota]]\nbytes-max = '1MB'\ntransfers-max = 1\n"
        )
    };
    let policy = place.file("policy.toml", allow("['b', 'c']").as_bytes());
    let settings = format!("policy = '{policy}'\n");
    let (cluster, _) = cluster(&settings, &["a", "b", "c"]);
    let create = |name: &str| cluster.at("a", &["group", "create", name, "--to", "b,c"]);
    let refused = create("other").json()["error"].as_str().unwrap().to_string();
    assert!(refused.contains("does not let 'a' send 'other' to 'b'"), "{refused}");
    let made = create("prices-1");
    assert_eq!(made.status, 0, "it has no bytes to count: {}", made.stderr);
    let refused = create("prices-2").json()["error"].as_str().unwrap().to_string();
    assert!(refused.contains("have 1 transfers at a time"), "{refused}");
    replace(&policy, &allow("['b']"));
    let is_without = |groups: &serde_json::Value| groups[0]["members"] == serde_json::json!(["b"]);
    let listed = cluster.await_answer("a", &["group", "ls"], is_without);
    assert_eq!(listed[0]["address"], made.json()["address"]);
    replace(&policy, &allow("['z']"));
    let is_over = |groups: &serde_json::Value| groups[0]["address"].is_null();
    let listed = cluster.await_answer("a", &["group", "ls"], is_over);
    let trouble = listed[0]["trouble"].as_str().unwrap_or_default();
    assert!(!trouble.is_empty(), "{listed}");
    cluster.await_answer("a", &["status", "--manager"], |status| status["leases"] == serde_json::json!([]));
}

/// No agent has another host send what the policy does not let that host send, nor goes on with it.
#[test]
fn the_policy_decides_about_each_source_of_a_group() {
    let place = Place::new();
    let allow = |sources: &str| format!("[[allow]]\nsource = {sources}\n");
    let policy = place.file("policy.toml", allow("['a']").as_bytes());
    let (cluster, _) = cluster(&format!("policy = '{policy}'\n"), &["a", "b", "c"]);
    let create = || cluster.at("a", &["group", "create", "talk", "--to", "a,c", "--source", "a,b"]);
    let refused = create().json()["error"].as_str().unwrap_or_default().to_string();
    assert!(refused.contains("does not let 'b' send 'talk' to 'a'"), "{refused}");
    replace(&policy, &allow("['a', 'b']"));
    until("the policy is read again", || create().status == 0);
    replace(&policy, &allow("['a']"));
    let is_over = |groups: &serde_json::Value| groups[0]["address"].is_null();
    let listed = cluster.await_answer("a", &["group", "ls"], is_over);
    assert!(!listed[0]["trouble"].as_str().unwrap_or_default().is_empty(), "{listed}");
}

/// Checks that the manager's audit log of that is whole, and is found to be; with one letter changed it is
/// not.
fn audited(mut cluster: Cluster, path: &str) {
    assert_eq!(cluster.managers[0].stop(rustix::process::Signal::TERM), Some(0));
    let refusals = format!("{}refusals-audit", path.strip_suffix("audit").unwrap());
    let (lines, refused) = (log(path), log(&refusals));
    let of =
        |what: &str| lines.iter().chain(&refused).filter(|line| line["what"] == what).collect::<Vec<_>>();
    assert_eq!(of("join").len(), 3, "{lines:?}");
    assert!(of("permit").iter().any(|line| line["name"] == "model-1" && line["source"] == "a"));
    assert!(of("refused").iter().any(|line| line["reason"].as_str().unwrap().contains("'model-1' to 'c'")));
    assert_eq!(of("removal-refused").len(), 1);
    assert_eq!(policies(path), [false, true], "{lines:?}");
    assert_eq!(of("end").len(), 1);
    let good = polycast(&["audit", "verify", path, "--json"]);
    assert_eq!((good.status, good.json()["lines"].as_u64()), (0, Some(lines.len() as u64)));
    assert_eq!(good.json()["signed"]["last"], good.json()["last"], "it is signed when the manager ends");
    assert_eq!(polycast(&["audit", "verify", &refusals]).status, 0);
    let text = fs::read_to_string(path).unwrap().replacen("\"agent\":\"b\"", "\"agent\":\"x\"", 1);
    fs::write(path, text).unwrap();
    let broken = polycast(&["audit", "verify", path]);
    assert_eq!(broken.status, 1);
    assert!(broken.stdout.contains("was changed"), "{}", broken.stdout);
}

/// Returns for each policy that was read while the manager ran whether it was accepted.
fn policies(path: &str) -> Vec<bool> {
    let text = fs::read_to_string(path).unwrap_or_default();
    // The last line may be half there.
    let lines = text.lines().filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok());
    lines.filter(|line| line["what"] == "policy").map(|line| line["taken"] == true).collect()
}

/// The lines of an audit log, as documents.
fn log(path: &str) -> Vec<serde_json::Value> {
    let text = fs::read_to_string(path).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// A receiver that is not allowed any more in mid-transfer is taken out, and the others go on under keys that
/// it does not know.
#[test]
fn who_is_banned_in_mid_transfer_gets_no_new_keys() {
    let place = Place::new();
    let policy = place.file("policy.toml", b"");
    let [.., third, last] = std::process::id().to_be_bytes();
    let settings = format!(
        "policy = '{policy}'\nfabrics = ['ip-multicast']\n[ip-multicast]\npool = '239.253.{third}.{last}/32'\n\
         port = 17413\nrate = '16mbit'\n"
    );
    let (cluster, _) = cluster(&settings, &["a", "b", "c"]);
    // It would take 30 s. Under new keys what a receiver can make by itself, such as a hole, is there at
    // once.
    let file = cluster.place.file("big", &noise(60_000_000));
    let sending = cluster.begin("a", &["send", &file, "--to", "b,c", "--id", "5", "--slow", "wait"]);
    cluster.await_status("c", |status| {
        status["transfers"]
            .as_array()
            .is_some_and(|all| all.iter().any(|one| one["verified_bytes"].as_u64() > Some(0)))
    });
    replace(&policy, "[[allow]]\nreceivers = ['a', 'b']\n");
    // The rest goes over TCP, which is quick, once it is under the new keys.
    cluster.await_status("c", |status| status["transfers"].as_array().is_some_and(Vec::is_empty));
    // Between the two it has no path for a moment.
    until("the time of its path can be set", || {
        cluster.at("a", &["extend", "5", "--time", "300ms"]).status == 0
    });
    let sent = end(sending);
    let report = sent.json();
    let of = |name: &str| {
        let receivers = report["receivers"].as_array().unwrap();
        receivers.iter().find(|receiver| receiver["name"] == name).unwrap().clone()
    };
    assert_eq!(of("b")["verified"], true, "{report}");
    assert_eq!((of("c")["verified"].clone(), sent.status), (false.into(), 1), "{report}");
    assert!(of("c")["error"].as_str().unwrap().contains("taken out"), "{report}");
    assert!(report.to_string().contains("goes on under new keys"), "{report}");
    assert!(cluster.at("c", &["get", "5", "--out", &cluster.place.path("c")]).status != 0);
    assert_eq!(cluster.at("b", &["get", "5", "--out", &cluster.place.path("b")]).status, 0);
}
