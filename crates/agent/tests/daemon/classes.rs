//! The class of service of what an agent sends, as the kernel of a host that gets it sees it.

use super::world::{AgentTask, World, events, manager, stopped, until};
use nix::sys::socket::{
    ControlMessageOwned, MsgFlags, SockaddrIn, recvmsg, setsockopt,
    sockopt::{IpRecvTos, ReuseAddr},
};
use polycast_agent::daemon::AgentConfig;
use polycast_api::agent::send_event::Event;
use polycast_api::client::{Receivers, SendOptions};
use polycast_types::DataId;
use std::cell::RefCell;
use std::collections::BTreeSet;
use std::io::IoSliceMut;
use std::net::Ipv4Addr;
use std::os::fd::AsRawFd;

/// No other test of this program may send to it.
const PORT: u16 = 17_419;

/// Hears the packets of all groups that processes of this host have joined.
fn ear() -> socket2::Socket {
    let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::DGRAM, None).unwrap();
    setsockopt(&socket, ReuseAddr, &true).unwrap();
    setsockopt(&socket, IpRecvTos, &true).unwrap();
    socket.set_nonblocking(true).unwrap();
    socket.bind(&std::net::SocketAddr::from((Ipv4Addr::UNSPECIFIED, PORT)).into()).unwrap();
    socket
}

/// The classes of all packets that have come.
fn classes(ear: &socket2::Socket) -> BTreeSet<u8> {
    let mut classes = BTreeSet::new();
    loop {
        let (mut bytes, mut control) = (vec![0; 1 << 16], vec![0; 128]);
        let mut parts = [IoSliceMut::new(&mut bytes)];
        let came = recvmsg::<SockaddrIn>(ear.as_raw_fd(), &mut parts, Some(&mut control), MsgFlags::empty());
        let Ok(came) = came else { return classes };
        classes.extend(came.cmsgs().unwrap().filter_map(|control| match control {
            ControlMessageOwned::Ipv4Tos(tos) => Some(tos >> 2),
            _ => None,
        }));
    }
}

/// Sends a file to the other agent.
async fn send_object(source: &AgentTask, other: &AgentTask, world: &World) {
    let session = source.session(1).await;
    session.add(DataId(1), &world.file("model.bin", &[7; 300_000])).await.unwrap();
    let sending = session.send(DataId(1), &Receivers::All, &SendOptions::default()).await.unwrap();
    let (events, error) = events(sending).await;
    let Some(Event::Finished(report)) = events.last() else { panic!("{events:?} {error:?}") };
    assert_eq!((report.fabric.as_str(), report.is_complete()), ("ip-multicast", true), "{report:?}");
    session.delete(DataId(1)).await.unwrap();
    let other = other.session(1).await;
    // Its transfer may just be ending.
    until("the object is gone", async || other.delete(DataId(1)).await.is_ok()).await;
}

/// Sends messages to it until packets of them are heard; gives their classes. The first ones may reach it
/// over TCP.
async fn send_messages(source: &AgentTask, other: &AgentTask, ear: &socket2::Socket) -> BTreeSet<u8> {
    let heard = RefCell::new(BTreeSet::new());
    let (session, hearing) = (source.session(1).await, other.session(2).await);
    session.create_stream("ticks", false).await.unwrap();
    let _hears = hearing.receive_messages("ticks", None).await.unwrap();
    until("packets come to a receiver", async || {
        let mut sender = session.send_messages("ticks");
        sender.send(vec![b"tick".to_vec()]).await;
        let all_heard = sender.finish().await.unwrap().unheard == 0;
        heard.borrow_mut().extend(classes(ear));
        all_heard && !heard.borrow().is_empty()
    })
    .await;
    session.end_stream("ticks").await.unwrap();
    heard.into_inner()
}

#[tokio::test(flavor = "multi_thread")]
async fn objects_and_messages_have_the_class_of_the_settings() {
    let manager = manager(0, &format!("[ip-multicast]\npool = '239.255.74.0/24'\nport = {PORT}")).await;
    let world = World::new(manager.address);
    let marking = AgentConfig { dscp: Some(34), ..world.config("a") };
    let a = world.real_agent(marking).await;
    let b = world.real_agent(world.config("b")).await;
    let client = a.client().await;
    until("both have joined", async || client.status().await.unwrap().peers.len() == 2).await;
    for (source, other, class) in [(&a, &b, 34), (&b, &a, 0)] {
        let ear = ear();
        send_object(source, other, &world).await;
        assert_eq!(classes(&ear), [class].into(), "objects");
        assert_eq!(send_messages(source, other, &ear).await, [class].into(), "messages");
    }
    stopped([a, b], manager).await;
}
