//! How a source that nobody has been told of is found: it announces itself by multicast (`offer`).

use polycast_net::udp::Beacon;
use polycast_types::{Duration, Handle, Time};
use polycast_wire::discovery::{Announcement, Discovery};
use std::io;
use std::net::SocketAddrV4;
use std::os::fd::{AsFd, BorrowedFd};

/// Announcements, when no receiver asks.
const ANNOUNCE_INTERVAL: Duration = Duration::from_millis(500);
/// Characters of a name in an announcement.
const NAME_CHARS: usize = 200;

/// The announcements of one offer.
pub(super) struct Announcer {
    beacon: Beacon,
    next: Time,
}

impl Announcer {
    pub(super) fn new(beacon: Beacon) -> Self {
        Announcer { beacon, next: Time::ZERO }
    }

    /// Announces free places now and then, and at once to those who ask.
    pub(super) fn turn(
        &mut self,
        now: Time,
        handle: Handle,
        address: SocketAddrV4,
        places: u32,
        (name, object_len): (&str, u64),
    ) -> io::Result<()> {
        let mut asked = false;
        let mut buffer = [0; 2_048];
        while let Some(datagram) = self.beacon.receive(&mut buffer) {
            asked |= Discovery::parse(datagram) == Ok(Discovery::Solicit);
        }
        if places == 0 || (!asked && now < self.next) {
            return Ok(());
        }
        self.next = now + ANNOUNCE_INTERVAL;
        let (address, port) = (address.ip().octets(), address.port());
        let name = name.chars().take(NAME_CHARS).collect();
        let announcement = Announcement { handle, address, port, places, object_len, name };
        self.beacon.send(&Discovery::Announce(announcement).emit())
    }
}

impl AsFd for Announcer {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.beacon.as_fd()
    }
}
