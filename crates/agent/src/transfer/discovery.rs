//! Finding a source without a manager.

use super::clock::Clock;
use super::error::TransferError;
use polycast_net::udp::Beacon;
use polycast_types::Handle;
use polycast_wire::discovery::{Discovery, GROUP, PORT};
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4};
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, Ordering};

/// Opens the discovery socket on an interface.
pub(crate) fn beacon(interface: Ipv4Addr) -> Result<Beacon, TransferError> {
    Beacon::open(interface, SocketAddrV4::new(GROUP.into(), PORT))
        .map_err(|source| TransferError::Multicast { interface, source })
}

/// Asks for offers until one with a free place comes. `refused` are handles that have turned us down.
pub(crate) fn find_source(
    interface: Ipv4Addr,
    timeout: Option<polycast_types::Duration>,
    refused: &[Handle],
    cancel: &AtomicBool,
) -> Result<(SocketAddr, Handle), TransferError> {
    let beacon = beacon(interface)?;
    let clock = Clock::start();
    let mut next_solicit = 0.0;
    let mut buffer = [0; 2_048];
    loop {
        if cancel.load(Ordering::Relaxed) {
            return Err(TransferError::Cancelled);
        }
        if clock.seconds() >= next_solicit {
            next_solicit = clock.seconds() + 0.5;
            beacon
                .send(&Discovery::Solicit.emit())
                .map_err(|source| TransferError::Multicast { interface, source })?;
        }
        while let Some(datagram) = beacon.receive(&mut buffer) {
            match Discovery::parse(datagram) {
                Ok(Discovery::Announce(a)) if a.places > 0 && !refused.contains(&a.handle) => {
                    return Ok((SocketAddr::from((a.address, a.port)), a.handle));
                }
                Err(error @ polycast_wire::WireError::Version(_)) => return Err(error.into()),
                _ => {}
            }
        }
        if timeout.is_some_and(|t| clock.seconds() >= t.as_secs_f64()) {
            return Err(TransferError::NothingOffered(timeout.map_or(0, |t| t.0 / 1_000_000_000)));
        }
        let mut fds = [rustix::event::PollFd::from_borrowed_fd(beacon.as_fd(), rustix::event::PollFlags::IN)];
        super::clock::wait(&mut fds, clock.now(), None, polycast_types::Duration::from_millis(100))?;
    }
}
