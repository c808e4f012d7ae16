//! How receivers that were not told of a source find it: the source announces itself by multicast (`offer`).

use super::super::entrance::host_name;
use polycast_net::udp::Beacon;
use polycast_types::{Duration, Handle, Time};
use polycast_wire::discovery::{Announcement, CodeSign, Discovery};
use std::collections::BTreeSet;
use std::io;
use std::net::{IpAddr, SocketAddrV4};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Mutex, PoisonError};

/// Announcements, when no receiver asks.
const ANNOUNCE_INTERVAL: Duration = Duration::from_millis(500);
/// Characters of a name in an announcement.
const NAME_CHARS: usize = 200;

/// Hosts that are remembered because they ask.
const SEEKERS_MAX: usize = 64;

/// Those who have asked for offers on the source's network.
#[derive(Debug, Default)]
pub struct Seekers(Mutex<BTreeSet<IpAddr>>);

impl Seekers {
    /// Their addresses, those of the first that came.
    #[must_use]
    pub fn addresses(&self) -> Vec<IpAddr> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).iter().copied().collect()
    }

    fn note(&self, address: IpAddr) {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if known.len() < SEEKERS_MAX {
            known.insert(address);
        }
    }
}

/// The announcements of one offer.
pub(super) struct Announcer {
    beacon: Beacon,
    next: Time,
    seekers: Arc<Seekers>,
    host: String,
    /// An announcement could not be sent, and that was said.
    is_mute: bool,
}

impl Announcer {
    pub(super) fn new(beacon: Beacon, seekers: Arc<Seekers>) -> Self {
        Announcer { beacon, next: Time::ZERO, seekers, host: host_name(), is_mute: false }
    }

    /// An announcement could not be sent: gives whether that is to be said now.
    pub(super) fn is_mute_anew(&mut self) -> bool {
        !std::mem::replace(&mut self.is_mute, true)
    }

    /// Announces the offer at once to those who ask, and now and then while there are free places.
    pub(super) fn turn(
        &mut self,
        now: Time,
        handle: Handle,
        address: SocketAddrV4,
        places: u32,
        (name, object_len): (&str, u64),
        code: Option<CodeSign>,
    ) -> io::Result<()> {
        let mut asked = false;
        let mut buffer = [0; 2_048];
        while let Some((datagram, from)) = self.beacon.receive(&mut buffer) {
            if Discovery::parse(datagram) == Ok(Discovery::Solicit) {
                asked = true;
                self.seekers.note(from.ip());
            }
        }
        if !asked && (places == 0 || now < self.next) {
            return Ok(());
        }
        self.next = now + ANNOUNCE_INTERVAL;
        let (address, port) = (address.ip().octets(), address.port());
        let name = name.chars().take(NAME_CHARS).collect();
        let host = self.host.clone();
        let announcement = Announcement { handle, address, port, places, object_len, name, host, code };
        self.beacon.send(&Discovery::Announce(announcement).emit())
    }
}

impl AsFd for Announcer {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.beacon.as_fd()
    }
}
