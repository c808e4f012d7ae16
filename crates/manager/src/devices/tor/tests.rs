use super::*;

/// Rack 1 of three, with two hosts, a fibre out and two fibres in.
fn task() -> Task {
    let subnet = |rack: u8| ([10, 0, rack, 0], [255, 255, 255, 0]);
    let ports = TorPorts {
        hosts: [(HostId(2), 1), (HostId(3), 2)].into(),
        fibres: vec![10],
        from_splitters: vec![20, 21],
        subnets: Arc::new((0..3).map(subnet).collect()),
        relayed: ([239, 255, 64, 0], [255, 255, 255, 0]),
        ..TorPorts::default()
    };
    let (news, _) = mpsc::channel(8);
    Task {
        rack: 1,
        reach: Reach::At(Endpoint::Unix("/no/such/socket".into()), None),
        said: None,
        options: SwitchOptions::default(),
        ports,
        sweep_after: Duration::from_secs(1),
        news,
        connected: Connected::default(),
        wanted: BTreeSet::new(),
        light: BTreeMap::new(),
        sweep_at: None,
    }
}

fn rule(from: RackPort, to: &[RackPort]) -> DeviceCommand {
    DeviceCommand::RackRule { rack: 1, group: [239, 255, 64, 7].into(), from, to: to.to_vec() }
}

fn relay_rule(rack: u32, source: u32) -> DeviceCommand {
    DeviceCommand::RelayRule { rack, source, from: None, to: vec![0] }
}

fn flows(messages: &[Message]) -> Vec<&FlowMod> {
    let mut flows = Vec::new();
    for message in messages {
        if let Message::FlowMod(flow) = message {
            flows.push(flow);
        }
    }
    flows
}

#[test]
fn a_source_feeds_the_fibre_and_its_own_rack() {
    let source = rule(RackPort::Host(HostId(2)), &[RackPort::Host(HostId(3)), RackPort::Splitter(0)]);
    let messages = task().set(&source).unwrap();
    let group = Message::GroupMod(GroupMod::to_ports(0x1fff_4007, [2]));
    assert!(messages.contains(&group), "{messages:?}");
    let [send, deliver] = flows(&messages)[..] else { panic!("{messages:?}") };
    let out = Instruction::ApplyActions(vec![Action::Output(10)]);
    assert_eq!(send.instructions, [out, Instruction::GotoTable(SECOND)]);
    assert!(send.matching.fields.contains(&Field::InPort(1)), "{send:?}");
    assert_eq!((deliver.table, send.cookie & COOKIE_MASK), (SECOND, COOKIE));
    // Everything that was put in is taken out.
    let undo = task().clear(&source).unwrap();
    assert_eq!(undo[0], Message::GroupMod(GroupMod::delete(0x1fff_4007)));
    assert_eq!(flows(&undo)[0].matching, send.matching);
}

#[test]
fn a_rack_relays_others_and_never_itself() {
    let relay = |source| task().set(&relay_rule(1, source));
    let messages = relay(0).unwrap();
    let [light] = flows(&messages)[..] else { panic!("{messages:?}") };
    assert!(!light.matching.fields.iter().any(|field| matches!(field, Field::InPort(_))), "{light:?}");
    assert_eq!(relay(1), Ok(Vec::new()));
    assert_eq!(relay(9), Err(DeviceError::NoSubnet(9)));
    let nowhere = rule(RackPort::FromSplitters, &[RackPort::Host(HostId(9))]);
    assert_eq!(task().set(&nowhere), Err(DeviceError::NoPort(RackPort::Host(HostId(9)))));
    // Another device's command is an error, and never left out.
    let circuit = DeviceCommand::CrossConnect { from: 1, to: 2 };
    assert_eq!(task().set(&circuit), Err(DeviceError::foreign(&circuit)));
    assert_eq!(task().clear(&circuit), Err(DeviceError::foreign(&circuit)));
}

/// Requested rules may come from another program, which can write where managers keep their leases.
#[test]
fn rules_that_no_plan_has_are_refused() {
    let many = rule(RackPort::Host(HostId(2)), &[RackPort::Host(HostId(3)); 3_000]);
    assert_eq!(task().set(&many), Err(DeviceError::TooManyPorts { ports: 3_000 }));
    let to = vec![0; 9_000];
    let relay = DeviceCommand::RelayRule { rack: 1, source: 0, from: None, to };
    assert_eq!(task().set(&relay), Err(DeviceError::TooManyPorts { ports: 9_000 }));
    let to = vec![RackPort::Host(HostId(3))];
    let unicast =
        DeviceCommand::RackRule { rack: 1, group: [10, 0, 0, 9].into(), from: RackPort::Host(HostId(2)), to };
    assert_eq!(task().set(&unicast), Err(DeviceError::NoGroup([10, 0, 0, 9].into())));
    assert_eq!(task().clear(&unicast), Ok(Vec::new()));
    let all = rule(RackPort::Host(HostId(2)), &[RackPort::Host(HostId(3)); RULE_PORTS_MAX]);
    let longest = task().set(&all).unwrap().iter().map(|message| message.emit(1).len()).max();
    assert!(longest < Some(1 << 16), "what is taken fits into a message");
    let ports = TorPorts { one_table: true, ..task().ports };
    let change = Change { set: vec![unicast], ..Change::default() };
    assert!(Task { ports, ..task() }.exchange(&change).is_err());
}

/// Rules of all priorities that relay or drop own light, on a switch of every rack of this network.
fn relaying_rules(p: u32, k: u32, shared: bool) -> BTreeSet<usize> {
    let network = polycast_topology::Shufflecast::new(p, k).unwrap();
    let statics = polycast_planning::relays::StaticRules::new(&network);
    let subnet = |rack: u32| ([10, (rack >> 8) as u8, rack as u8, 0], [255, 255, 255, 0]);
    let subnets = Arc::new((0..network.tors()).map(subnet).collect::<Vec<_>>());
    let rules = |rack: u32| {
        let ports = TorPorts { subnets: Arc::clone(&subnets), ..task().ports };
        let from_splitters = (0..p).map(|port| 20 + port).collect();
        let fibres = vec![if shared { 20 } else { 10 }];
        let task = Task { rack, ports: TorPorts { from_splitters, fibres, ..ports }, ..task() };
        let sources = statics.sources(rack).iter();
        let mut messages: Vec<Message> =
            sources.flat_map(|&source| task.set(&relay_rule(rack, source)).unwrap()).collect();
        messages.extend(task.standing());
        let first = |flow: &&&FlowMod| flow.table == 0 && flow.priority > PRIORITY_LIGHT;
        flows(&messages).iter().filter(first).count()
    };
    (0..network.tors()).map(rules).collect()
}

#[test]
fn relaying_takes_as_many_rules_as_the_paper_counts() {
    for (p, k, expected) in [(2, 2, 4), (2, 3, 12), (3, 2, 6), (4, 4, 256)] {
        assert_eq!(relaying_rules(p, k, false), [expected].into(), "{p},{k}");
        assert_eq!(relaying_rules(p, k, true), [expected].into(), "{p},{k} with shared ports");
    }
}

/// Rules that a switch's own tool lists, and not those that were sent to it.
#[tokio::test]
async fn a_real_switch_lists_as_many_relaying_rules_as_the_paper_counts() {
    use polycast_testing::{HANG, OpenVswitch};
    let Some(ovs) = OpenVswitch::start() else { return };
    let options = SwitchOptions {
        connect_timeout: HANG,
        command_timeout: HANG,
        keepalive: HANG,
        ..SwitchOptions::default()
    };
    for (p, k, expected) in [(2, 2, 4), (2, 3, 12), (3, 2, 6), (4, 4, 256)] {
        let network = polycast_topology::Shufflecast::new(p, k).unwrap();
        let statics = polycast_planning::relays::StaticRules::new(&network);
        let subnet = |rack: u32| ([10, (rack >> 8) as u8, rack as u8, 0], [255, 255, 255, 0]);
        let subnets = Arc::new((0..network.tors()).map(subnet).collect::<Vec<_>>());
        // All racks, and of a thousand some of every column.
        for rack in (0..network.tors()).step_by(1 + network.tors() as usize / 24) {
            let _said = ovs.ofctl("del-flows", &[]);
            let ports = TorPorts { subnets: Arc::clone(&subnets), ..task().ports };
            let reach = Reach::At(Endpoint::Unix(ovs.socket()), None);
            let tor = Tor::new(rack, reach, options.clone(), ports, Duration::from_secs(600));
            let ((jobs, todo), (news, _news)) = (mpsc::channel(1), mpsc::channel(64));
            let running = tokio::spawn(Box::new(tor).run(todo, news));
            let set = statics.sources(rack).iter().map(|source| relay_rule(rack, *source)).collect();
            let (reply, done) = tokio::sync::oneshot::channel();
            let job = Job { change: Change { set, ..Change::default() }, reply };
            assert!(jobs.send(job).await.is_ok());
            done.await.unwrap().unwrap();
            running.abort();
            let listed = ovs.ofctl("dump-flows", &["table=0"]);
            let count = |priority: u16| listed.matches(&format!("priority={priority},")).count();
            let rules = count(PRIORITY_RELAY) + count(PRIORITY_OWN);
            assert_eq!(rules, expected, "rack {rack} of {p},{k}: {listed}");
        }
    }
}

#[test]
fn light_goes_back_by_the_port_that_has_both_fibres() {
    let ports = TorPorts { fibres: vec![20], ..task().ports };
    let task = Task { ports, ..task() };
    assert_eq!((task.delivery(), task.tables()), (THIRD, 3));
    let standing = task.standing();
    let back = Instruction::ApplyActions(vec![Action::Output(port::IN_PORT)]);
    let rule = flows(&standing).into_iter().find(|flow| flow.instructions.contains(&back)).unwrap();
    assert!(rule.table == SECOND && rule.matching.fields.contains(&Field::InPort(20)), "{rule:?}");
    let relay = task.set(&relay_rule(1, 0)).unwrap();
    assert_eq!(flows(&relay)[0].instructions, [Instruction::GotoTable(SECOND)]);
}

#[test]
fn of_several_copies_one_is_taken_and_goes_into_all_splitters_that_relay() {
    // Two splitters of two outputs each, and the first one's fibre shares its port with one that comes in.
    let ports = TorPorts { fibres: vec![20, 11], from_splitters: vec![20, 21, 22, 23], ..task().ports };
    let task = Task { ports, ..task() };
    assert_eq!((task.delivery(), task.tables()), (SECOND, 2));
    let standing = task.standing();
    let other = flows(&standing).into_iter().find(|flow| flow.priority == PRIORITY_LIGHT).unwrap();
    assert_eq!((other.table, &other.instructions[..]), (0, &[][..]), "other copies are dropped");
    let relay = |from, to: &[u32]| {
        let command = DeviceCommand::RelayRule { rack: 1, source: 0, from: Some(from), to: to.to_vec() };
        let messages = task.set(&command).unwrap();
        let cleared = task.clear(&command).unwrap();
        let [flow] = flows(&messages)[..] else { panic!("{messages:?}") };
        assert_eq!(flows(&cleared)[0].matching, flow.matching, "what was put in is taken out");
        flow.clone()
    };
    for (from, port, first) in [(0, 20, port::IN_PORT), (3, 23, 20)] {
        let flow = relay(from, &[0, 1]);
        assert!(flow.matching.fields.contains(&Field::InPort(port)), "{flow:?}");
        let out = vec![Action::Output(first), Action::Output(11)];
        assert_eq!(flow.instructions, [Instruction::ApplyActions(out), Instruction::GotoTable(SECOND)]);
    }
    assert_eq!(relay(1, &[]).instructions, [Instruction::GotoTable(SECOND)], "it is copied and not relayed");
    let source = rule(RackPort::Host(HostId(2)), &[RackPort::Splitter(0), RackPort::Splitter(1)]);
    let messages = task.set(&source).unwrap();
    let out = Instruction::ApplyActions(vec![Action::Output(20), Action::Output(11)]);
    assert_eq!(flows(&messages)[0].instructions[0], out);
}

#[test]
fn packets_of_ours_have_a_queue_and_a_class() {
    let ports = TorPorts { queue: Some(3), dscp: Some(34), ..task().ports };
    let task = Task { ports, ..task() };
    let source = rule(RackPort::Host(HostId(2)), &[RackPort::Host(HostId(3)), RackPort::Splitter(0)]);
    let messages = task.set(&source).unwrap();
    let [send, deliver] = flows(&messages)[..] else { panic!("{messages:?}") };
    let actions = [Action::Set(Field::IpDscp(34)), Action::SetQueue(3), Action::Output(10)];
    assert_eq!(send.instructions[0], Instruction::ApplyActions(actions.to_vec()));
    let copies = vec![Action::SetQueue(3), Action::Group(0x1fff_4007)];
    assert_eq!(deliver.instructions, [Instruction::ApplyActions(copies)]);
}

#[test]
fn one_table_relays_and_copies_in_one_rule() {
    let ports = TorPorts { one_table: true, ..task().ports };
    let mut task = Task { ports, ..task() };
    let relay = relay_rule(1, 0);
    let copy = rule(RackPort::FromSplitters, &[RackPort::Host(HostId(3))]);
    let change = |set: &[&DeviceCommand], clear: &[&DeviceCommand]| Change {
        set: set.iter().copied().cloned().collect(),
        clear: clear.iter().copied().cloned().collect(),
    };
    let messages = task.exchange(&change(&[&relay, &copy], &[])).unwrap();
    let priorities: Vec<u16> = flows(&messages).iter().map(|flow| flow.priority).collect();
    assert_eq!(priorities, [PRIORITY_RELAY, PRIORITY_GROUP, PRIORITY_BOTH]);
    assert!(flows(&messages).iter().all(|flow| flow.table == 0));
    let both = vec![Action::Output(10), Action::Group(0x1fff_4007)];
    assert_eq!(flows(&messages)[2].instructions, [Instruction::ApplyActions(both)]);
    task.wanted = [relay.clone(), copy.clone()].into();
    // A rack that stops relaying goes on copying.
    let messages = task.exchange(&change(&[], &[&relay])).unwrap();
    let gone: Vec<(Verb, u16)> = flows(&messages).iter().map(|flow| (flow.change, flow.priority)).collect();
    assert_eq!(gone, [(Verb::DeleteStrict, PRIORITY_RELAY), (Verb::DeleteStrict, PRIORITY_BOTH)]);
    let messages = task.exchange(&change(&[], &[&copy])).unwrap();
    assert!(messages.contains(&Message::GroupMod(GroupMod::delete(0x1fff_4007))));
    assert_eq!(flows(&messages).len(), 2);
}

#[tokio::test]
async fn a_switch_that_is_not_there_is_named() {
    let change = Change { set: vec![rule(RackPort::FromSplitters, &[])], ..Change::default() };
    let reason = task().perform(&change).await.unwrap_err().to_string();
    assert!(reason.contains("/no/such/socket"), "{reason}");
}
