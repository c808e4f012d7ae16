//! The OpenFlow client against a real Open vSwitch: its own database and daemon, and ports without devices,
//! so that it needs no root and touches nothing else on the machine. Skipped where it is not installed.

use polycast_net::devices::openflow::{
    Action, Change, Endpoint, Field, FlowMod, GroupMod, Instruction, Link, Match, Message, PortChange,
    Switch, SwitchError, SwitchListener, SwitchOptions, port,
};
use polycast_net::tls::{Security, TlsFiles};
use polycast_testing::{HANG, OpenVswitch};
use std::path::{Path, PathBuf};

/// Returns the endpoint of a switch.
fn endpoint(ovs: &OpenVswitch) -> Endpoint {
    Endpoint::Unix(ovs.socket())
}

/// A switch that is late is not given up.
fn patient() -> SwitchOptions {
    SwitchOptions {
        connect_timeout: HANG,
        command_timeout: HANG,
        keepalive: HANG,
        ..SwitchOptions::default()
    }
}

#[tokio::test]
async fn groups_and_rules_are_taken_in_changed_and_taken_out() {
    let Some(ovs) = OpenVswitch::start() else { return };
    let switch = Switch::connect(&endpoint(&ovs), patient()).await.unwrap();
    let matching =
        || Match::udp().and(Field::InPort(1)).and(Field::Ipv4Dst([239, 1, 1, 0], [255, 255, 255, 0]));
    let rewrite = Action::Set(Field::eth_dst([2, 0, 0, 0, 0, 9]));
    let multicast =
        FlowMod::add(100, matching(), vec![Action::SetQueue(1), Action::Group(7)]).with_cookie(0xab);
    let control = || Match::udp().and(Field::ipv4_src([10, 0, 0, 1])).and(Field::UdpDst(7400));
    let unicast = FlowMod::add(50, control(), vec![rewrite, Action::Output(2)]);
    switch.apply([GroupMod::to_ports(7, [2, 3])], [multicast, unicast]).await.unwrap();
    let groups = ovs.ofctl("dump-groups", &[]);
    assert!(
        groups.contains("group_id=7,type=all,bucket=") && groups.contains("actions=output:2"),
        "{groups}"
    );
    let flows = ovs.ofctl("dump-flows", &[]);
    for part in [
        "cookie=0xab",
        "priority=100,udp,in_port=1,nw_dst=239.1.1.0/24 actions=set_queue:1,group:7",
        "priority=50,udp,nw_src=10.0.0.1,tp_dst=7400 actions=set_field:02:00:00:00:00:09->eth_dst,output:2",
    ] {
        assert!(flows.replace("\"p1\"", "1").contains(part), "{part} is not in {flows}");
    }
    // The switch's own words about where a packet goes.
    let packet = "in_port=1,udp,nw_src=10.0.0.1,nw_dst=239.1.1.5,dl_dst=01:00:5e:01:01:05";
    let trace = ovs.run("ovs-appctl", &["-t", &ovs.path("ovs-vswitchd.ctl"), "ofproto/trace", "br0", packet]);
    assert!(trace.contains("group:7") && trace.contains("Datapath actions"), "{trace}");

    let to_one = GroupMod { change: Change::Modify, ..GroupMod::to_ports(7, [3]) };
    switch.apply([to_one], [FlowMod::delete(50, control())]).await.unwrap();
    assert!(!ovs.ofctl("dump-groups", &[]).contains("output:2"));
    assert!(!ovs.ofctl("dump-flows", &[]).contains("priority=50"));
    // Rules that use a group go with it.
    switch.apply([GroupMod::delete(7)], []).await.unwrap();
    assert!(!ovs.ofctl("dump-flows", &[]).contains("priority=100"));
}

#[tokio::test]
async fn what_the_switch_refuses_is_said_in_words() {
    let Some(ovs) = OpenVswitch::start() else { return };
    let switch = Switch::connect(&endpoint(&ovs), patient()).await.unwrap();
    let to_group = |id| FlowMod::add(1, Match::any(), vec![Action::Group(id)]);
    let missing = switch.apply([GroupMod::to_ports(1, [2])], [to_group(1), to_group(99)]).await.unwrap_err();
    let SwitchError::Refused { number, of, reason, .. } = missing else { panic!("{missing}") };
    assert_eq!((number, of, reason), (3, 3, "an action names a group that it does not have"));
    let twice = switch.apply([GroupMod::to_ports(1, [3])], []).await.unwrap_err();
    assert!(twice.to_string().contains("there is a group of this number already"), "{twice}");
    let alone = FlowMod::add(1, Match::any().and(Field::UdpDst(1)), vec![Action::Output(1)]);
    let alone = switch.apply([], [alone]).await.unwrap_err();
    assert!(alone.to_string().contains("without what it needs"), "{alone}");
}

#[tokio::test]
async fn ports_come_go_and_are_counted() {
    let Some(ovs) = OpenVswitch::start() else { return };
    let switch = Switch::connect(&endpoint(&ovs), patient()).await.unwrap();
    let mut events = switch.events();
    let ports = switch.ports().await.unwrap();
    let mut names: Vec<_> = ports.iter().map(|port| (port.number, port.name.as_str())).collect();
    names.sort_unstable();
    assert_eq!(names[..3], [(1, "p1"), (2, "p2"), (3, "p3")]);
    let stats = switch.port_stats().await.unwrap();
    assert!((1..=3).all(|number| stats.iter().any(|stats| stats.port == number)), "{stats:?}");
    ovs.control(&["del-port", "br0", "p3"]);
    let mut awaited = async |change, name: &str| {
        loop {
            let event = events.recv().await.unwrap();
            if event.change == change && event.port.name == name {
                return event.port;
            }
        }
    };
    awaited(PortChange::Deleted, "p3").await;
    let _said = ovs.ofctl("mod-port", &["p2", "down"]);
    assert!(awaited(PortChange::Modified, "p2").await.disabled);
}

#[tokio::test]
async fn a_switch_that_connects_is_known_by_its_number_and_one_that_dies_is_missed() {
    let Some(mut ovs) = OpenVswitch::start() else { return };
    let listener = SwitchListener::bind(([127, 0, 0, 1], 0).into(), patient()).await.unwrap();
    let controller = format!("tcp:{}", listener.address().unwrap());
    ovs.control(&["set", "bridge", "br0", "other-config:datapath-id=00000000000000a7"]);
    ovs.control(&["set-controller", "br0", &controller]);
    let switch = listener.accept().await.unwrap();
    assert_eq!(switch.datapath_id(), 0xa7);
    switch.apply([GroupMod::to_ports(1, [1, 2])], []).await.unwrap();
    ovs.stop();
    switch.link().wait_for(|link| *link == Link::Gone).await.unwrap();
    assert_eq!(switch.ports().await, Err(SwitchError::Gone));
}

#[tokio::test]
async fn what_racks_need_is_there_and_taken_in() {
    let Some(ovs) = OpenVswitch::start() else { return };
    let switch = Switch::connect(&endpoint(&ovs), patient()).await.unwrap();
    assert!(switch.tables() >= 3 && switch.has_groups().await.unwrap());
    let groups = || Match::any().and(Field::EthType(0x0800)).and(Field::ipv4_dst([239, 1, 1, 1]));
    let marked = vec![Action::Set(Field::IpDscp(34)), Action::SetQueue(3), Action::Output(2)];
    let back = FlowMod::add(10, groups().and(Field::InPort(2)), vec![Action::Output(port::IN_PORT)]);
    let on = FlowMod {
        table: 0,
        instructions: vec![Instruction::GotoTable(1)],
        ..FlowMod::add(9, groups(), vec![])
    };
    let messages =
        [FlowMod::add(20, groups().and(Field::InPort(1)), marked), FlowMod { table: 1, ..back }, on];
    switch.send(messages.map(Message::FlowMod).to_vec()).await.unwrap();
    let trace = |packet: &str| {
        ovs.run("ovs-appctl", &["-t", &ovs.path("ovs-vswitchd.ctl"), "ofproto/trace", "br0", packet])
    };
    let packet = "udp,nw_src=10.0.0.1,nw_dst=239.1.1.1,dl_dst=01:00:5e:01:01:01,nw_tos=0";
    let sent = trace(&format!("in_port=1,{packet}"));
    assert!(sent.contains("set_queue:3") && sent.contains("set(ipv4(tos=0x88"), "{sent}");
    // Light goes back by the port that it came from.
    let returned = trace(&format!("in_port=2,{packet}"));
    let actions = returned.lines().find(|line| line.starts_with("Datapath actions:")).unwrap();
    assert!(actions.ends_with(": 2"), "{returned}");
}

/// Certificates of one authority for this end and for the switch, and of another authority.
fn certificates(folder: &Path, name: &str) -> [TlsFiles; 2] {
    use rcgen::{
        BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    };
    use std::os::unix::fs::PermissionsExt as _;
    let mut authority = CertificateParams::default();
    authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    // OpenSSL takes a certificate with its authority's name for one that has signed itself.
    authority.distinguished_name.push(DnType::CommonName, format!("authority {name}"));
    let key = KeyPair::generate().unwrap();
    let ca = authority.self_signed(&key).unwrap().pem();
    let issuer = Issuer::new(authority, key);
    ["ours", "its"].map(|end| {
        let mut params = CertificateParams::new(vec![end.to_string()]).unwrap();
        params.extended_key_usages =
            vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        let key = KeyPair::generate().unwrap();
        let file = |what: &str, text: String| {
            let path = folder.join(format!("{name}-{end}-{what}.pem"));
            std::fs::write(&path, text).unwrap();
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
            path
        };
        let cert = params.signed_by(&key, &issuer).unwrap().pem();
        TlsFiles {
            ca: file("ca", ca.clone()),
            cert: file("cert", cert),
            key: file("key", key.serialize_pem()),
            crl: None,
        }
    })
}

#[tokio::test]
async fn a_switch_that_connects_over_tls_shows_who_it_is() {
    let Some(ovs) = OpenVswitch::start() else { return };
    let [ours, its] = certificates(ovs.place(), "one");
    let [_, foreign] = certificates(ovs.place(), "other");
    let security = Some(Security::files(ours.clone()).unwrap());
    let options = SwitchOptions { security, ..patient() };
    let listener = SwitchListener::bind(([127, 0, 0, 1], 0).into(), options).await.unwrap();
    let controller = format!("ssl:{}", listener.address().unwrap());
    let text = |path: &PathBuf| path.to_str().unwrap().to_string();
    // Another authority's certificate does not let it in.
    ovs.control(&["set-ssl", &text(&foreign.key), &text(&foreign.cert), &text(&ours.ca)]);
    ovs.control(&["set-controller", "br0", &controller]);
    let refused = listener.accept().await.unwrap_err().to_string();
    assert!(refused.contains("was not issued by an authority that this end trusts"), "{refused}");
    assert!(refused.contains("ca of [device-tls]"), "{refused}");
    ovs.control(&["set-ssl", &text(&its.key), &text(&its.cert), &text(&its.ca)]);
    let switch = loop {
        // It may still come with what it had.
        if let Ok(switch) = listener.accept().await {
            break switch;
        }
    };
    assert!(switch.has_groups().await.unwrap());
    switch.apply([GroupMod::to_ports(1, [1, 2])], []).await.unwrap();
}

/// A thousand groups with their rules, as a full table of a ToR: one transaction, nothing lost.
#[tokio::test]
async fn a_full_table_goes_in_at_once() {
    let Some(ovs) = OpenVswitch::start() else { return };
    let switch = Switch::connect(&endpoint(&ovs), patient()).await.unwrap();
    let address = |id: u32| [239, 1, (id / 256) as u8, (id % 256) as u8];
    let groups = (1..=1_000).map(|id| GroupMod::to_ports(id, [2, 3]));
    let matching = |id| Match::udp().and(Field::ipv4_dst(address(id)));
    let flows = (1..=1_000).map(|id| FlowMod::add(10, matching(id), vec![Action::Group(id)]));
    let begun = std::time::Instant::now();
    switch.apply(groups, flows).await.unwrap();
    eprintln!("1000 groups and rules: {} us", begun.elapsed().as_micros());
    assert_eq!(ovs.ofctl("dump-flows", &[]).matches("actions=group:").count(), 1_000);
    assert_eq!(ovs.ofctl("dump-groups", &[]).matches("type=all").count(), 1_000);
}
