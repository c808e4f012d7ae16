//! A network interface whose frames a program reads and writes.

use rustix::fs::{Mode, OFlags};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

/// An interface of the calling thread's network namespace that is there as long as this value.
#[derive(Debug)]
pub struct Tap {
    file: OwnedFd,
}

impl Tap {
    /// Makes an interface of this name and sets it up. The kernel cuts packets to size, and finishes their
    /// check sums, before they are read here.
    ///
    /// # Errors
    /// The name is taken or longer than 15 bytes, or the kernel refuses it: it takes root.
    pub fn open(name: &str) -> io::Result<Self> {
        let file = rustix::fs::open(
            "/dev/net/tun",
            OFlags::RDWR | OFlags::NONBLOCK | OFlags::CLOEXEC,
            Mode::empty(),
        )?;
        let mut request = request(name)?;
        request.ifr_ifru.ifru_flags = (libc::IFF_TAP | libc::IFF_NO_PI) as libc::c_short;
        call(file.as_fd(), libc::TUNSETIFF, &mut request)?;
        let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::DGRAM, None)?;
        request.ifr_ifru.ifru_flags = (libc::IFF_UP | libc::IFF_RUNNING | libc::IFF_NOARP) as libc::c_short;
        call(socket.as_fd(), libc::SIOCSIFFLAGS as libc::Ioctl, &mut request)?;
        Ok(Tap { file })
    }

    /// Takes the next frame that went out by the interface, if there is one; what does not fit is lost.
    ///
    /// # Errors
    /// The interface is gone.
    pub fn receive<'a>(&self, buffer: &'a mut [u8]) -> io::Result<Option<&'a mut [u8]>> {
        match rustix::io::read(&self.file, &mut *buffer) {
            Ok(len) => Ok(Some(&mut buffer[..len])),
            Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Has a frame come in by the interface.
    ///
    /// # Errors
    /// The interface is gone or down, or this is no frame.
    pub fn send(&self, frame: &[u8]) -> io::Result<()> {
        rustix::io::write(&self.file, frame)?;
        Ok(())
    }
}

impl AsFd for Tap {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

fn request(name: &str) -> io::Result<libc::ifreq> {
    if name.is_empty() || name.len() >= libc::IFNAMSIZ || name.contains(['\0', '/']) {
        let said =
            format!("'{name}' is no name of an interface: they have 1 to {} bytes", libc::IFNAMSIZ - 1);
        return Err(io::Error::new(io::ErrorKind::InvalidInput, said));
    }
    let mut name_bytes = [0; libc::IFNAMSIZ];
    for (to, from) in name_bytes.iter_mut().zip(name.bytes()) {
        *to = from as libc::c_char;
    }
    Ok(libc::ifreq { ifr_name: name_bytes, ifr_ifru: libc::__c_anonymous_ifr_ifru { ifru_ifindex: 0 } })
}

#[allow(unsafe_code)]
fn call(fd: BorrowedFd<'_>, request: libc::Ioctl, argument: &mut libc::ifreq) -> io::Result<()> {
    // SAFETY: both requests that this file makes read and write an ifreq, which is whole, ours alone and
    // outlives the call; the descriptor is open.
    let outcome = unsafe { libc::ioctl(fd.as_raw_fd(), request, std::ptr::from_mut(argument)) };
    if outcome < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
