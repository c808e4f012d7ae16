//! Finding a source without a manager.

use super::clock::{Clock, wait};
use super::error::TransferError;
use super::{Received, ReceiverProgress, ReceiverSpec, Rendezvous, receive};
use polycast_net::udp::Beacon;
use polycast_protocol::session::Offer;
use polycast_types::{Duration, Handle, Printable, Time, format_bytes};
use polycast_wire::WireError;
use polycast_wire::discovery::{Announcement, Discovery, GROUP, PORT};
use rustix::event::{PollFd, PollFlags};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4};
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

/// Offers are asked for this often.
const SOLICIT_INTERVAL: Duration = Duration::from_millis(500);
/// All sources answer at once: after this, whoever is on air has been heard.
const GATHER_WITHIN: Duration = Duration::from_millis(250);
/// An offer that had no place is asked again after this.
const AGAIN_AFTER: std::time::Duration = std::time::Duration::from_millis(500);
/// The longest time without a look at whether the caller wants to end it.
const LOOK_INTERVAL: Duration = Duration::from_millis(100);
/// Offers that are remembered.
const OFFERS_MAX: usize = 64;
/// Offers that are named where there are several.
const NAMED_MAX: usize = 8;
/// Characters of a name where there are several.
const NAME_CHARS: usize = 40;

/// An offer, as its source has announced it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Announced {
    /// The source's control address.
    pub address: SocketAddr,
    /// The transfer.
    pub handle: Handle,
    /// The name of the file or directory.
    pub name: String,
    /// The object's length in bytes.
    pub object_len: u64,
}

impl Announced {
    fn of(announcement: Announcement) -> Self {
        let Announcement { handle, address, port, object_len, name, .. } = announcement;
        Announced { address: SocketAddr::from((address, port)), handle, name, object_len }
    }

    /// Whether a source offers what it has announced: somebody may have agreed to that.
    pub(super) fn check(&self, offer: &Offer) -> Result<(), TransferError> {
        // Names are cut in announcements.
        let same = offer.name.starts_with(&self.name) && offer.geometry.object_len == self.object_len;
        let other = || TransferError::Contradiction("it offers something else than it has announced".into());
        if same { Ok(()) } else { Err(other()) }
    }

    fn write(&self, f: &mut fmt::Formatter<'_>, name: &str) -> fmt::Result {
        let len = format_bytes(self.object_len);
        write!(f, "{} ({len}) from {}, handle {:016x}", Printable(name), self.address, self.handle.0)
    }
}

impl fmt::Display for Announced {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.write(f, &self.name)
    }
}

/// Several offers, in a line.
#[derive(Debug)]
pub struct Offers(Vec<Announced>);

impl fmt::Display for Offers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} offers are on air: ", self.0.len())?;
        for (at, offer) in self.0.iter().take(NAMED_MAX).enumerate() {
            f.write_str(if at > 0 { "; " } else { "" })?;
            offer.write(f, &offer.name.chars().take(NAME_CHARS).collect::<String>())?;
        }
        f.write_str(if self.0.len() > NAMED_MAX { "; and others" } else { "" })
    }
}

/// Opens the discovery socket on an interface.
pub(crate) fn beacon(interface: Ipv4Addr) -> Result<Beacon, TransferError> {
    Beacon::open(interface, SocketAddrV4::new(GROUP.into(), PORT))
        .map_err(|source| TransferError::Multicast { interface, source })
}

/// Waits for an offer, the one with this handle where it is given, and receives it. `on_offer` hears what it is and may refuse
/// it before its source hears anything. The spec's rendezvous does not count.
///
/// # Errors
/// There are several offers and no handle says which, `on_offer` refuses, or as [`receive`].
pub fn accept(
    mut spec: ReceiverSpec,
    wanted: Option<Handle>,
    on_offer: &mut dyn FnMut(&Announced) -> Result<(), TransferError>,
    on_event: &mut dyn FnMut(&ReceiverProgress),
) -> Result<Received, TransferError> {
    let mut refused = BTreeMap::new();
    loop {
        let found = find_offer(spec.interface, wanted, &refused, &spec.cancel)?;
        let handle = found.handle;
        on_offer(&found)?;
        spec.rendezvous = Rendezvous::Announced(found);
        match receive(spec.clone(), on_event) {
            // Another one took the last place meanwhile. It may lose it again: one that says nothing more is not waited for.
            Err(error @ (TransferError::Refused(_) | TransferError::NoAnswer(_))) if wanted.is_none() => {
                tracing::info!(%error, "turned down, waiting for a place or another offer");
                refused.insert(handle, Instant::now());
            }
            outcome => return outcome,
        }
    }
}

/// Asks for offers until one with a free place comes.
fn find_offer(
    interface: Ipv4Addr,
    wanted: Option<Handle>,
    refused: &BTreeMap<Handle, Instant>,
    cancel: &AtomicBool,
) -> Result<Announced, TransferError> {
    let beacon = beacon(interface)?;
    let clock = Clock::start();
    let mut next_solicit = Time::ZERO;
    let mut offers = BTreeMap::new();
    let mut decide_at: Option<Time> = None;
    let mut versions = BTreeSet::new();
    let mut buffer = [0; 2_048];
    loop {
        if cancel.load(Ordering::Relaxed) {
            return Err(TransferError::Cancelled);
        }
        let now = clock.now();
        if now >= next_solicit {
            next_solicit = now + SOLICIT_INTERVAL;
            beacon
                .send(&Discovery::Solicit.emit())
                .map_err(|source| TransferError::Multicast { interface, source })?;
        }
        while let Some(datagram) = beacon.receive(&mut buffer) {
            match Discovery::parse(datagram) {
                Ok(Discovery::Announce(a))
                    if a.places > 0
                        && refused.get(&a.handle).is_none_or(|at| at.elapsed() >= AGAIN_AFTER) =>
                {
                    let fits = wanted.is_none_or(|wanted| wanted == a.handle) && offers.len() < OFFERS_MAX;
                    if fits {
                        decide_at.get_or_insert(now + GATHER_WITHIN);
                        offers.entry(a.handle).or_insert_with(|| Announced::of(a));
                    }
                }
                // It need not be meant for us; the others are still waited for.
                Err(error @ WireError::Version(version)) if versions.insert(version) => {
                    tracing::warn!(%error, "an offer cannot be read");
                }
                _ => {}
            }
        }
        if decide_at.is_some_and(|at| wanted.is_some() || now >= at) {
            let first = offers.pop_first();
            return match first {
                Some((_, only)) if offers.is_empty() => Ok(only),
                first => {
                    let all = first.into_iter().chain(offers).map(|(_, offer)| offer);
                    Err(TransferError::SeveralOffers(Offers(all.collect())))
                }
            };
        }
        let mut fds = [PollFd::from_borrowed_fd(beacon.as_fd(), PollFlags::IN)];
        wait(&mut fds, now, decide_at, LOOK_INTERVAL)?;
    }
}
