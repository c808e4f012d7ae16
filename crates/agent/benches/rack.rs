//! Orca, figure 6d, over sockets: confirmed updates a second of the manager's central controller, the
//! controllers of leafs and their agents, each with a socket and a thread of its own, on addresses of this
//! machine's loopback. A change of one label is confirmed when both agents of its rack have it. `cargo bench
//! -p polycast-agent --bench rack`

use polycast_agent::rack::{
    Controller, ControllerOptions, LeafController, LeafOptions, RackError, incarnation,
};
use polycast_manager::Racks;
use polycast_net::words::WordsKey;
use polycast_protocol::rack::{Change, FeedConfig, LeafConfig};
use polycast_protocol::switch::RackLabels;
use polycast_types::Duration;
use std::collections::VecDeque;
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration as Span, Instant};

/// Number of leafs in each measurement.
const LEAFS: [u8; 3] = [1, 8, 16];
/// Changes that may wait for confirmation at a time.
const WAITING: [usize; 2] = [64, 512];
const AGENTS: u8 = 2;
const LABEL_LEN: usize = 19;
const SESSIONS: u32 = 60_000;
const MEASURED: Span = Span::from_secs(5);
const WITHIN: Span = Span::from_secs(20);
const TIMEOUT: Duration = Duration::from_millis(1_000);

/// A port at which no process listens now.
fn free(ip: Ipv4Addr) -> std::io::Result<SocketAddrV4> {
    match UdpSocket::bind((ip, 0))?.local_addr()? {
        SocketAddr::V4(address) => Ok(address),
        SocketAddr::V6(address) => Err(std::io::Error::other(format!("{address} is no IPv4 address"))),
    }
}

/// The controllers of one rack, which run until they are told to stop.
fn start_rack(
    rack: u8,
    listen: SocketAddrV4,
    central: SocketAddrV4,
    stop: &Arc<AtomicBool>,
) -> Result<Vec<JoinHandle<()>>, RackError> {
    // The sender is known by its address.
    let server = |port: u8| Ipv4Addr::new(127, 78, rack + 1, port + 1);
    let options = LeafOptions {
        config: LeafConfig {
            rack: rack.into(),
            ports: AGENTS.into(),
            incarnation: incarnation(),
            active: 1,
            standby: 1,
            timeout: TIMEOUT,
            period: TIMEOUT / 20,
            labels_max: SESSIONS as usize,
            feed: FeedConfig::default(),
        },
        listen,
        central,
        servers: (0..AGENTS).map(server).collect(),
        key: WordsKey::default(),
    };
    let mut leaf = LeafController::open(options)?;
    let stopped = Arc::clone(stop);
    let mut threads = vec![std::thread::spawn(move || drop(leaf.run(&stopped, &mut ())))];
    for port in 0..AGENTS {
        let options = ControllerOptions {
            rack: rack.into(),
            port: port.into(),
            listen: SocketAddrV4::new(server(port), 0),
            leaf: listen,
            period: TIMEOUT / 3,
            labels_max: SESSIONS as usize,
            key: WordsKey::default(),
        };
        let mut agent = Controller::open(options, RackLabels::new(LABEL_LEN, SESSIONS as usize))?;
        let stopped = Arc::clone(stop);
        threads.push(std::thread::spawn(move || drop(agent.run(&stopped))));
    }
    Ok(threads)
}

/// Keeps so many changes waiting until the time is over; gives how many were confirmed, and the time it took.
async fn measure(leafs: u8, waiting: usize) -> Result<(u64, Span), Box<dyn std::error::Error>> {
    let listens = (0..leafs).map(|_| free(Ipv4Addr::LOCALHOST)).collect::<Result<Vec<_>, _>>()?;
    let listen = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    let racks =
        Racks::start(listen, listens.iter().map(|leaf| (*leaf).into()).collect(), &WordsKey::default())?;
    let SocketAddr::V4(central) = racks.address() else {
        return Err("the address is no IPv4 address".into());
    };
    let stop = Arc::new(AtomicBool::new(false));
    let mut threads = Vec::new();
    for (rack, listen) in (0..leafs).zip(&listens) {
        threads.extend(start_rack(rack, *listen, central, &stop)?);
    }
    let mut number = 0u64;
    let mut change = || {
        number += 1;
        let mut label = vec![0; LABEL_LEN];
        // leafStatus and some hosts: neighbouring changes differ.
        label[0] = 0x80 | (number as u8 & 0x60);
        let session = (number.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as u32 % SESSIONS;
        vec![Change { leaf: (number % u64::from(leafs)) as u32, session, label }]
    };
    // All are there when each rack has confirmed something.
    for _ in 0..leafs {
        tokio::time::timeout(WITHIN, racks.set(change())?).await???;
    }
    let (begun, mut confirmed) = (Instant::now(), 0u64);
    let mut under_way = VecDeque::new();
    while begun.elapsed() < MEASURED {
        while under_way.len() < waiting {
            under_way.push_back(racks.set(change())?);
        }
        let Some(first) = under_way.pop_front() else { continue };
        tokio::time::timeout(WITHIN, first).await???;
        confirmed += 1;
    }
    let took = begun.elapsed();
    stop.store(true, Ordering::Relaxed);
    drop(racks);
    for thread in threads {
        if thread.join().is_err() {
            return Err("a controller broke down".into());
        }
    }
    Ok((confirmed, took))
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    for leafs in LEAFS {
        for waiting in WAITING {
            let (confirmed, took) = runtime.block_on(measure(leafs, waiting))?;
            let rate = confirmed as f64 / took.as_secs_f64();
            println!(
                "{leafs} leafs, {AGENTS} agents each, {waiting} changes waiting: {rate:.0} confirmed updates a second"
            );
        }
    }
    Ok(())
}
