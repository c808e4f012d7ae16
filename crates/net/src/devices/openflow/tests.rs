use super::*;
use proptest::prelude::*;
use std::net::SocketAddr;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

/// Bytes as the specification has them, put together by hand.
#[test]
fn messages_are_laid_out_as_specified() {
    assert_eq!(
        Message::Hello { versions: Some(16) }.emit(7),
        [4, 0, 0, 16, 0, 0, 0, 7, 0, 1, 0, 8, 0, 0, 0, 16]
    );
    let group = Message::GroupMod(GroupMod::to_ports(9, [2]));
    let bucket = [
        0, 32, 0, 0, 255, 255, 255, 255, 255, 255, 255, 255, 0, 0, 0,
        0, // length, weight, watch port and group
        0, 0, 0, 16, 0, 0, 0, 2, 255, 255, 0, 0, 0, 0, 0, 0, // output
    ];
    let head = [4, 15, 0, 48, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 9];
    assert_eq!(group.emit(1), [&head[..], &bucket].concat());
    let matching = Match::udp().and(Field::Ipv4Dst([239, 1, 1, 0], [255, 255, 255, 0])).and(Field::InPort(1));
    let flow = Message::FlowMod(FlowMod::add(100, matching, vec![Action::Group(9)]));
    let wire = flow.emit(2);
    let fields = [
        0, 1, 0, 35, 0x80, 0, 10, 2, 8, 0, 0x80, 0, 20, 1, 17, // OXM, Ethernet type, protocol
        0x80, 0, 25, 8, 239, 1, 1, 0, 255, 255, 255, 0, // masked destination
        0x80, 0, 0, 4, 0, 0, 0, 1, 0, 0, 0, 0, 0, // port, padding
    ];
    assert_eq!(wire[48..48 + 40], fields);
    assert_eq!(wire[88..], [0, 4, 0, 16, 0, 0, 0, 0, 0, 22, 0, 8, 0, 0, 0, 9]);
}

fn any_field() -> impl Strategy<Value = Field> {
    prop_oneof![
        any::<u32>().prop_map(Field::InPort),
        any::<([u8; 6], [u8; 6])>().prop_map(|(value, mask)| Field::EthDst(value, mask)),
        any::<[u8; 6]>().prop_map(Field::eth_dst),
        any::<([u8; 6], [u8; 6])>().prop_map(|(value, mask)| Field::EthSrc(value, mask)),
        any::<u16>().prop_map(Field::EthType),
        any::<u8>().prop_map(Field::IpProtocol),
        any::<([u8; 4], [u8; 4])>().prop_map(|(value, mask)| Field::Ipv4Src(value, mask)),
        any::<[u8; 4]>().prop_map(Field::ipv4_dst),
        any::<u16>().prop_map(Field::UdpSrc),
        any::<u16>().prop_map(Field::UdpDst),
    ]
}

fn any_actions() -> impl Strategy<Value = Vec<Action>> {
    let action = prop_oneof![
        any::<u32>().prop_map(Action::Output),
        any::<u32>().prop_map(Action::Group),
        any::<u32>().prop_map(Action::SetQueue),
        any::<[u8; 6]>().prop_map(|address| Action::Set(Field::eth_dst(address))),
        any::<[u8; 4]>().prop_map(|address| Action::Set(Field::ipv4_src(address))),
    ];
    proptest::collection::vec(action, 0..5)
}

fn any_port() -> impl Strategy<Value = Port> {
    (any::<u32>(), any::<[u8; 6]>(), "[a-z0-9-]{0,15}", any::<bool>(), any::<bool>()).prop_map(
        |(number, address, name, disabled, link_down)| Port { number, address, name, disabled, link_down },
    )
}

fn any_flow() -> impl Strategy<Value = FlowMod> {
    let change = prop_oneof![
        Just(Change::Add),
        Just(Change::Modify),
        Just(Change::Delete),
        Just(Change::DeleteStrict)
    ];
    let instruction = prop_oneof![
        any_actions().prop_map(Instruction::ApplyActions),
        any::<u8>().prop_map(Instruction::GotoTable)
    ];
    let fields = proptest::collection::vec(any_field(), 0..6);
    let lists = (fields, proptest::collection::vec(instruction, 0..3));
    (change, any::<(u64, u64, u8, u16, u16)>(), lists).prop_map(
        |(change, numbers, (fields, instructions))| {
            let (cookie, cookie_mask, table, priority, idle_timeout_s) = numbers;
            let matching = Match { fields };
            FlowMod { change, cookie, cookie_mask, table, priority, idle_timeout_s, matching, instructions }
        },
    )
}

fn any_message() -> impl Strategy<Value = Message> {
    let data = || proptest::collection::vec(any::<u8>(), 0..64);
    let change = prop_oneof![Just(PortChange::Added), Just(PortChange::Deleted), Just(PortChange::Modified)];
    let group_change = prop_oneof![Just(Change::Add), Just(Change::Modify), Just(Change::Delete)];
    let group = (group_change, any::<u32>(), proptest::collection::vec(any_actions(), 0..4))
        .prop_map(|(change, id, buckets)| GroupMod { change, id, buckets });
    let stats = any::<(u32, [u64; 6])>().prop_map(|(port, numbers)| {
        let [received_packets, sent_packets, received_bytes, sent_bytes, received_dropped, sent_dropped] =
            numbers;
        PortStats {
            port,
            received_packets,
            sent_packets,
            received_bytes,
            sent_bytes,
            received_dropped,
            sent_dropped,
        }
    });
    prop_oneof![
        any::<Option<u32>>().prop_map(|versions| Message::Hello { versions }),
        (any::<(u16, u16)>(), data()).prop_map(|((kind, code), data)| Message::Error { kind, code, data }),
        data().prop_map(Message::EchoRequest),
        data().prop_map(Message::EchoReply),
        Just(Message::FeaturesRequest),
        any::<(u64, u32, u8)>().prop_map(|(datapath_id, buffers, tables)| Message::FeaturesReply {
            datapath_id,
            buffers,
            tables
        }),
        (change, any_port()).prop_map(|(change, port)| Message::PortStatus { change, port }),
        any_flow().prop_map(Message::FlowMod),
        group.prop_map(Message::GroupMod),
        Just(Message::PortsRequest),
        Just(Message::PortStatsRequest),
        (proptest::collection::vec(any_port(), 0..5), any::<bool>())
            .prop_map(|(ports, more)| Message::PortsReply { ports, more }),
        (proptest::collection::vec(stats, 0..5), any::<bool>())
            .prop_map(|(stats, more)| Message::PortStatsReply { stats, more }),
        Just(Message::BarrierRequest),
        Just(Message::BarrierReply),
        data().prop_map(|body| Message::Other { kind: 10, body }),
    ]
}

proptest! {
    #[test]
    fn messages_are_read_as_they_are_written(message in any_message(), transaction: u32) {
        let wire = message.emit(transaction);
        prop_assert_eq!(Message::len_at(&wire), Ok(Some(wire.len())));
        prop_assert_eq!(Message::parse(&wire), Ok((message, transaction)));
    }

    /// Whatever happens to a message, it is read as another one or refused, and what is read can be written.
    #[test]
    fn damage_is_no_panic(message in any_message(), at: prop::sample::Index, byte: u8, cut: prop::sample::Index) {
        let mut wire = message.emit(1);
        let at = at.index(wire.len());
        wire[at] = byte;
        wire.truncate(cut.index(wire.len() + 1));
        if let Ok((read, transaction)) = Message::parse(&wire) {
            prop_assert_eq!(Message::parse(&read.emit(transaction)), Ok((read, transaction)));
        }
    }
}

#[test]
fn an_old_switch_is_told_apart() {
    let mut session = Session::new();
    // OpenFlow 1.0 without a bitmap.
    let error = session.receive(&[1, 0, 0, 8, 0, 0, 0, 1]).unwrap_err();
    assert_eq!(error, CodecError::Version(1));
    // OpenFlow 1.4 that speaks 1.3 too.
    let mut session = Session::new();
    session.receive(&[5, 0, 0, 16, 0, 0, 0, 1, 0, 1, 0, 8, 0, 0, 0, 0x32]).unwrap();
    let features = Message::FeaturesRequest.emit(2);
    assert!(session.outgoing().windows(features.len()).any(|window| window == features));
}

/// A switch that answers what `reply` says to each message.
async fn serve(mut stream: TcpStream, mut reply: impl FnMut(Message, u32) -> Vec<u8>) {
    stream.write_all(&Message::Hello { versions: None }.emit(1)).await.unwrap();
    let (mut buffer, mut bytes) = ([0; 1024], Vec::new());
    while let Ok(len @ 1..) = stream.read(&mut buffer).await {
        bytes.extend_from_slice(&buffer[..len]);
        while let Some(len) = Message::len_at(&bytes).unwrap().filter(|len| *len <= bytes.len()) {
            let message: Vec<u8> = bytes.drain(..len).collect();
            let (message, transaction) = Message::parse(&message).unwrap();
            let answer = match message {
                Message::FeaturesRequest => {
                    Message::FeaturesReply { datapath_id: 42, buffers: 0, tables: 254 }.emit(transaction)
                }
                other => reply(other, transaction),
            };
            stream.write_all(&answer).await.unwrap();
        }
    }
}

async fn listen() -> (TcpListener, Endpoint) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address: SocketAddr = listener.local_addr().unwrap();
    (listener, Endpoint::Tcp(address))
}

#[tokio::test]
async fn refusals_belong_to_their_own_transaction() {
    let (listener, endpoint) = listen().await;
    tokio::spawn(async move {
        let (stream, _) = listener.accept().await.unwrap();
        serve(stream, |message, transaction| match message {
            // Groups above 10 are refused.
            Message::GroupMod(group) if group.id > 10 => {
                Message::Error { kind: 6, code: 3, data: vec![] }.emit(transaction)
            }
            Message::BarrierRequest => Message::BarrierReply.emit(transaction),
            Message::EchoRequest(data) => Message::EchoReply(data).emit(transaction),
            _ => Vec::new(),
        })
        .await;
    });
    let switch = Switch::connect(&endpoint, SwitchOptions::default()).await.unwrap();
    assert_eq!(switch.datapath_id(), 42);
    let apply = |ids: Vec<u32>| {
        let switch = switch.clone();
        tokio::spawn(
            async move { switch.apply(ids.into_iter().map(|id| GroupMod::to_ports(id, [1])), []).await },
        )
    };
    let (good, bad, empty) = (apply(vec![1, 2, 3]), apply(vec![4, 11, 12]), apply(vec![]));
    assert_eq!(good.await.unwrap(), Ok(()));
    let error = bad.await.unwrap().unwrap_err();
    assert_eq!(
        error.to_string(),
        "the switch refuses change 2 of 3: it has no room for more groups (OpenFlow error 6, 3)"
    );
    assert_eq!(empty.await.unwrap(), Ok(()));
}

#[tokio::test(start_paused = true)]
async fn a_silent_switch_is_given_up() {
    let (listener, endpoint) = listen().await;
    tokio::spawn(async move {
        let (stream, _) = listener.accept().await.unwrap();
        serve(stream, |_, _| Vec::new()).await;
    });
    let switch = Switch::connect(&endpoint, SwitchOptions::default()).await.unwrap();
    assert_eq!(switch.ports().await, Err(SwitchError::TimedOut { millis: 5_000 }));
    switch.link().wait_for(|link| *link == Link::Gone).await.unwrap();
    assert_eq!(switch.ports().await, Err(SwitchError::Gone));
}

#[tokio::test]
async fn ports_and_their_changes_are_heard_of() {
    let port = |number: u32, link_down| Port {
        number,
        address: [2, 0, 0, 0, 0, number as u8],
        name: format!("eth{number}"),
        disabled: false,
        link_down,
    };
    let (listener, endpoint) = listen().await;
    tokio::spawn(async move {
        let (stream, _) = listener.accept().await.unwrap();
        serve(stream, |message, transaction| match message {
            Message::PortsRequest => {
                let part = |number, more| Message::PortsReply { ports: vec![port(number, false)], more };
                let status = Message::PortStatus { change: PortChange::Modified, port: port(1, true) };
                [part(1, true).emit(transaction), status.emit(0), part(2, false).emit(transaction)].concat()
            }
            _ => Vec::new(),
        })
        .await;
    });
    let switch = Switch::connect(&endpoint, SwitchOptions::default()).await.unwrap();
    let mut events = switch.events();
    assert_eq!(switch.ports().await.unwrap(), [port(1, false), port(2, false)]);
    assert_eq!(events.recv().await.unwrap(), PortEvent { change: PortChange::Modified, port: port(1, true) });
}

#[tokio::test]
async fn switches_that_connect_are_accepted_and_others_refused() {
    let nowhere = SocketAddr::from(([127, 0, 0, 1], 0));
    let listener = SwitchListener::bind(nowhere, SwitchOptions::default()).await.unwrap();
    let address = listener.address().unwrap();
    tokio::spawn(async move {
        serve(TcpStream::connect(address).await.unwrap(), |_, _| Vec::new()).await;
    });
    assert_eq!(listener.accept().await.unwrap().datapath_id(), 42);
    let mut stranger = TcpStream::connect(address).await.unwrap();
    stranger.write_all(b"GET / HTTP/1.1\r\n\r\n").await.unwrap();
    assert!(matches!(listener.accept().await, Err(SwitchError::Unreachable { .. })));
}

/// Parts of answers that do not end are kept up to a bound that all of them share, and leave room when they
/// have ended.
#[test]
fn parts_of_answers_have_a_bound_together() {
    let port = |number| Port {
        number,
        address: [2, 0, 0, 0, 0, 9],
        name: "eth".into(),
        disabled: false,
        link_down: false,
    };
    let part = |more| Message::PortsReply { ports: (0..1_000).map(port).collect(), more };
    let mut session = Session::new();
    let asked: Vec<u32> = (0..20).map(|_| session.ask_ports().unwrap()).collect();
    for (transaction, more) in asked.iter().flat_map(|one| [(*one, true), (*one, true), (*one, false)]) {
        session.receive(&part(more).emit(transaction)).unwrap();
        assert_eq!(session.poll().is_some(), !more, "there is room again after each");
    }
    let asked: Vec<u32> = (0..20).map(|_| session.ask_ports().unwrap()).collect();
    for transaction in &asked {
        session.receive(&part(true).emit(*transaction)).unwrap();
    }
    let mut count = 0;
    for transaction in asked {
        session.receive(&Message::PortsReply { ports: Vec::new(), more: false }.emit(transaction)).unwrap();
        let Some(Event::Done { reply: Reply::Ports(ports), .. }) = session.poll() else {
            panic!("no answer")
        };
        count += ports.len();
    }
    assert_eq!(count, 16_384);
}
