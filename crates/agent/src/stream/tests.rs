//! Messages over the loopback, from a sender to receivers.

use super::*;
use crate::transfer::Path;
use polycast_net::seal::{Seal, Secret};
use polycast_net::udp::Beacon;
use polycast_testing::HANG;
use polycast_types::{Duration, Handle};
use polycast_wire::stream::MESSAGE_LEN_MAX;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::{Duration as Span, Instant};

const LO: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
const STREAM: Handle = Handle(77);
const MTU: u32 = 1_500;

fn path(port: u16, label: &[u8]) -> Path {
    let mut outer = Vec::new();
    if !label.is_empty() {
        let mut header = Vec::new();
        polycast_wire::label::Header { kind: polycast_wire::label::LabelKind::Filter, session: 5, label }
            .emit(&mut header);
        outer.push(header);
    }
    // A group of this process alone.
    let [.., a, b] = std::process::id().to_be_bytes();
    let group = SocketAddr::new(Ipv4Addr::new(239, 251, a, b).into(), port);
    Path::Multicast { group, rate: None, attempts: None, outer }
}

fn receiver(path: &Path, stream: Handle) -> Receiver {
    sealed_receiver(path, stream, None)
}

fn sealed_receiver(path: &Path, stream: Handle, seal: Option<Seal>) -> Receiver {
    late_receiver(path, stream, seal, 0)
}

fn voice(name: &str, handle: Handle, address: Option<IpAddr>, from: u64, seal: Option<Seal>) -> Voice {
    Voice { name: name.into(), handle: Some(handle), address, from: Some(from), seal }
}

/// One that has joined when the source's next message had the number `from`.
fn late_receiver(path: &Path, stream: Handle, seal: Option<Seal>, from: u64) -> Receiver {
    let (source, hold) = (Some(LO), Duration::from_millis(1));
    let options = ReceiverOptions { interface: LO, own: None, hold };
    Receiver::start(options, Way::of(path).unwrap(), vec![voice("a", stream, source, from, seal)]).unwrap()
}

/// Begins to listen; returns when the receiver's thread has noticed.
async fn listen(receiver: &Receiver, sender: &mut Sender) -> (Inbox, Message) {
    let mut inbox = receiver.listen();
    let begun = Instant::now();
    while begun.elapsed() < HANG {
        sender.push(b"?").unwrap();
        assert!(sender.flush());
        if let Ok(Some(message)) = tokio::time::timeout(Span::from_millis(5), inbox.next()).await {
            return (inbox, message);
        }
    }
    panic!("nothing is heard");
}

async fn next(inbox: &mut Inbox) -> Message {
    let next = tokio::time::timeout(HANG, inbox.next()).await;
    next.expect("a message comes").expect("the receiver lives")
}

/// The first message that is none of those by which the beginning was found.
async fn next_real(inbox: &mut Inbox) -> Message {
    loop {
        let message = next(inbox).await;
        if **message.payload != *b"?" {
            return message;
        }
    }
}

async fn flush(sender: &mut Sender) {
    while !sender.flush() {
        tokio::time::sleep(Span::from_millis(1)).await;
    }
}

#[tokio::test]
async fn messages_of_all_sizes_arrive_as_they_were() {
    let seal = Some(Seal::new(&Secret::fresh(), STREAM));
    for (port, label, seal) in [
        (29_301, &[][..], None),
        (29_302, &[1u8; 19][..], None),
        (29_307, &[][..], seal.clone()),
        (29_308, &[1u8; 19][..], seal),
    ] {
        let path = path(port, label);
        let mut sender = Sender::new(LO, MTU, STREAM, seal.clone());
        sender.set_path(Some(&path)).unwrap();
        let receivers = [sealed_receiver(&path, STREAM, seal.clone()), sealed_receiver(&path, STREAM, seal)];
        let mut inboxes = Vec::new();
        for receiver in &receivers {
            inboxes.push(listen(receiver, &mut sender).await.0);
        }
        let lens = [0, 1, 1_400, 1_401, 1_500, 1_500, 3_000, 70_000, MESSAGE_LEN_MAX, 5, 5, 5];
        let message = |i: usize| -> Vec<u8> { (0..lens[i]).map(|at| (at * 7 + i) as u8).collect() };
        let first = sender.sent().messages;
        for i in 0..lens.len() {
            sender.push(&message(i)).unwrap();
            flush(&mut sender).await;
        }
        for inbox in &mut inboxes {
            for (i, len) in lens.into_iter().enumerate() {
                let got = if i == 0 { next_real(inbox).await } else { next(inbox).await };
                assert_eq!((got.number, got.lost, got.payload.len()), (first + i as u64, 0, len));
                assert!(**got.payload == message(i)[..]);
            }
        }
        let error = sender.push(&vec![0; MESSAGE_LEN_MAX + 1]).unwrap_err();
        assert!(error.to_string().contains("longer than 262144"), "{error}");
        assert_eq!(sender.sent().messages, first + lens.len() as u64, "it has no number");
    }
}

#[tokio::test]
async fn what_is_lost_shows_as_a_gap() {
    let path = path(29_303, &[]);
    let mut sender = Sender::new(LO, MTU, STREAM, None);
    sender.set_path(Some(&path)).unwrap();
    let receiver = receiver(&path, STREAM);
    let (mut inbox, _) = listen(&receiver, &mut sender).await;
    sender.push(b"before").unwrap();
    flush(&mut sender).await;
    assert_eq!(**next_real(&mut inbox).await.payload, *b"before");
    // Messages that go out while there is no way have numbers too.
    sender.set_path(None).unwrap();
    for _ in 0..5 {
        sender.push(b"no receiver hears this").unwrap();
        assert!(sender.flush());
    }
    sender.set_path(Some(&path)).unwrap();
    sender.push(b"after").unwrap();
    flush(&mut sender).await;
    let after = next(&mut inbox).await;
    assert_eq!((&after.payload[..], after.lost), (&b"after"[..], 5));
    assert_eq!((sender.sent().unheard, receiver.heard().lost), (5, 5));
}

/// Neither what is plain nor what is sealed with another secret is heard where messages are sealed, nor
/// sealed ones elsewhere.
#[tokio::test]
async fn messages_of_who_has_not_the_key_are_not_heard() {
    let path = path(29_309, &[]);
    let seals = [None, Some(Seal::new(&Secret::fresh(), STREAM)), Some(Seal::new(&Secret::fresh(), STREAM))];
    for (own, seal) in seals.iter().enumerate() {
        let receiver = sealed_receiver(&path, STREAM, seal.clone());
        let mut sender = Sender::new(LO, MTU, STREAM, seal.clone());
        sender.set_path(Some(&path)).unwrap();
        let (mut inbox, _) = listen(&receiver, &mut sender).await;
        for other in seals.iter().enumerate().filter(|(at, _)| *at != own).map(|(_, seal)| seal) {
            let mut stranger = Sender::new(LO, MTU, STREAM, other.clone());
            stranger.set_path(Some(&path)).unwrap();
            // Numbers like those that are due.
            for _ in 0..=sender.sent().messages {
                stranger.push(b"forged, and long enough for a tag").unwrap();
                flush(&mut stranger).await;
            }
        }
        sender.push(b"after").unwrap();
        flush(&mut sender).await;
        assert_eq!(**next_real(&mut inbox).await.payload, *b"after");
        assert!(receiver.heard().refused > 0, "the kernel let them pass");
    }
}

/// Waits for the next datagram to a group.
async fn next_datagram(ear: &Beacon) -> Vec<u8> {
    let mut buffer = vec![0; 65_536];
    let begun = Instant::now();
    while begun.elapsed() < HANG {
        if let Some((datagram, _)) = ear.receive(&mut buffer) {
            return datagram.to_vec();
        }
        tokio::time::sleep(Span::from_millis(1)).await;
    }
    panic!("nothing is heard");
}

/// A host that has recorded a sealed stream, and takes the source's address, plays it to a receiver that has
/// joined after that.
#[tokio::test]
async fn a_receiver_that_joins_late_hears_nothing_that_was_recorded() {
    let path = path(29_311, &[]);
    let Path::Multicast { group, .. } = path else { unreachable!() };
    let seal = Some(Seal::new(&Secret::fresh(), STREAM));
    let mut sender = Sender::new(LO, MTU, STREAM, seal.clone());
    sender.set_path(Some(&path)).unwrap();
    let numbers = sender.next_number();
    let ear = Beacon::open(LO, group).unwrap();
    let mut recorded = Vec::new();
    for number in 0..5 {
        sender.push(format!("old {number}").as_bytes()).unwrap();
        flush(&mut sender).await;
        recorded.push(next_datagram(&ear).await);
    }
    drop(ear);
    let receiver = late_receiver(&path, STREAM, seal, numbers.load(std::sync::atomic::Ordering::SeqCst));
    let mut inbox = receiver.listen();
    let attacker = std::net::UdpSocket::bind((LO, 0)).unwrap();
    let play = || recorded.iter().for_each(|datagram| assert!(attacker.send_to(datagram, group).is_ok()));
    play();
    sender.push(b"new").unwrap();
    flush(&mut sender).await;
    let first = next(&mut inbox).await;
    assert_eq!((first.number, &first.payload[..]), (5, &b"new"[..]));
    play();
    sender.push(b"newer").unwrap();
    flush(&mut sender).await;
    let second = next(&mut inbox).await;
    assert_eq!((second.number, second.lost, &second.payload[..]), (6, 0, &b"newer"[..]));
    assert_eq!(receiver.heard().late, 10, "what was played came, and was not taken");
}

#[tokio::test]
async fn what_others_send_to_the_group_is_not_heard() {
    let path = path(29_304, &[]);
    let mut sender = Sender::new(LO, MTU, STREAM, None);
    sender.set_path(Some(&path)).unwrap();
    let receiver = receiver(&path, STREAM);
    let (mut inbox, _) = listen(&receiver, &mut sender).await;
    let mut other = Sender::new(LO, MTU, Handle(78), None);
    other.set_path(Some(&path)).unwrap();
    other.push(b"of another run").unwrap();
    flush(&mut other).await;
    let Path::Multicast { group, .. } = path else { unreachable!() };
    let socket = std::net::UdpSocket::bind((LO, 0)).unwrap();
    socket.send_to(b"noise", group).unwrap();
    let mut forged = Vec::new();
    let number = sender.sent().messages;
    polycast_wire::stream::Header { stream: STREAM, number, piece: 0, pieces: 1, sealed: false }
        .emit(&mut forged);
    let stranger = std::net::UdpSocket::bind(("127.0.0.2", 0)).unwrap();
    stranger.send_to(&forged, group).unwrap();
    sender.push(b"ours").unwrap();
    flush(&mut sender).await;
    assert_eq!(**next_real(&mut inbox).await.payload, *b"ours");
    assert_eq!(receiver.heard().refused, 0, "the kernel drops what is not wanted");
}

#[tokio::test]
async fn a_slow_listener_loses_and_is_told() {
    let path = path(29_305, &[]);
    let mut sender = Sender::new(LO, MTU, STREAM, None);
    sender.set_path(Some(&path)).unwrap();
    let receiver = receiver(&path, STREAM);
    let (mut slow, first) = listen(&receiver, &mut sender).await;
    let (mut quick, _) = listen(&receiver, &mut sender).await;
    let (mut last, many) = (first.number, 20_000u64);
    let begins = sender.sent().messages;
    for sent in 1..=many {
        sender.push(&[1; 100]).unwrap();
        flush(&mut sender).await;
        // Now and then it is waited for: neither its queue nor the socket's overflows.
        while sent.is_multiple_of(1_000) && last + 1 < begins + sent {
            last = next(&mut quick).await.number;
        }
    }
    let (mut expected, mut lost) = (first.number + 1, 0);
    let mut see = |message: &Message| {
        assert_eq!(message.number, expected + message.lost, "every gap is said");
        (expected, lost) = (message.number + 1, lost + message.lost);
        lost
    };
    while let Some(message) = slow.try_next() {
        see(&message);
    }
    // There is room again, and what had none is said.
    sender.push(b"end").unwrap();
    flush(&mut sender).await;
    let end = next(&mut slow).await;
    assert_eq!((&end.payload[..], end.number), (&b"end"[..], begins + many));
    assert!(see(&end) > 0, "more than the queue holds");
}

#[tokio::test]
async fn a_stream_goes_another_way() {
    let (one, other) = (path(29_306, &[1; 19]), path(29_310, &[]));
    let mut sender = Sender::new(LO, MTU, STREAM, None);
    sender.set_path(Some(&one)).unwrap();
    let receiver = receiver(&one, STREAM);
    let (mut inbox, _) = listen(&receiver, &mut sender).await;
    sender.set_path(Some(&other)).unwrap();
    receiver.set_way(Way::of(&other).unwrap(), vec![voice("a", STREAM, Some(LO), 0, None)]);
    let begun = Instant::now();
    while begun.elapsed() < HANG {
        sender.push(b"here").unwrap();
        flush(&mut sender).await;
        if let Ok(Some(message)) = tokio::time::timeout(Span::from_millis(5), inbox.next()).await
            && **message.payload == *b"here"
        {
            return;
        }
    }
    panic!("nothing is heard on the other way");
}
