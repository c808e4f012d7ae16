//! Priority of what must not wait behind data: marks for control packets, and a scheduling class for threads
//! that judge by the clock who lives (Orca section 3.4: an agent that is silent for a time T is replaced, and
//! T goes down to a millisecond).

use nix::errno::Errno;
use nix::sys::socket::{setsockopt, sockopt};
use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};

/// The differentiated services code point of network control, CS6 (RFC 2474), as it stands in the IP header's
/// second byte.
pub const CONTROL_TOS: i32 = 0xc0;
/// The kernel's priority of packets of this kind (`TC_PRIO_INTERACTIVE`, the highest that needs no
/// privilege): the default queue of an interface has a band for it that goes first.
const CONTROL_PRIORITY: i32 = 6;
/// Among real-time threads these are low: the kernel's own come first.
const REAL_TIME_PRIORITY: libc::c_int = 5;
/// Nice value of a thread that may not be a real-time one.
const NICE: i32 = -15;

/// A class of service (DSCP, RFC 2474) that packets are marked with, so that switches can let them go first.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Dscp(u8);

/// There is no such class.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{0} is no class: write 0 to 63")]
pub struct NoClass(pub i64);

impl TryFrom<i64> for Dscp {
    type Error = NoClass;

    fn try_from(class: i64) -> Result<Self, NoClass> {
        u8::try_from(class).ok().filter(|class| *class < 64).map(Dscp).ok_or(NoClass(class))
    }
}

impl Dscp {
    /// Marks all that a socket sends from now on.
    ///
    /// # Errors
    /// The kernel refuses.
    pub fn mark(self, socket: &impl AsFd) -> io::Result<()> {
        // The two bits below are congestion's.
        set_class(socket.as_fd(), i32::from(self.0) << 2)
    }
}

/// Sets the byte that both families' headers have for it. A socket of IPv6 may send over IPv4, too, and the
/// kernel keeps one byte for each.
fn set_class(socket: BorrowedFd<'_>, class: i32) -> io::Result<()> {
    match setsockopt(&socket, sockopt::Ipv6TClass, &class) {
        // A socket of IPv4.
        Err(Errno::ENOPROTOOPT | Errno::EOPNOTSUPP) => {}
        set => set?,
    }
    Ok(setsockopt(&socket, sockopt::Ipv4Tos, &class)?)
}

/// Marks all that a socket sends as network control, so that queues on the way can let it go first.
///
/// # Errors
/// The kernel refuses.
pub fn mark_control(socket: &impl AsFd) -> io::Result<()> {
    let socket: BorrowedFd<'_> = socket.as_fd();
    // In this order: the kernel derives a priority from the code point, and a lower one.
    set_class(socket, CONTROL_TOS)?;
    setsockopt(&socket, sockopt::Priority, &CONTROL_PRIORITY)?;
    Ok(())
}

/// Binds a UDP socket for controllers: it does not block, and what it sends is marked.
///
/// # Errors
/// The address cannot be used.
pub fn control_socket(listen: SocketAddr) -> io::Result<std::net::UdpSocket> {
    let socket = std::net::UdpSocket::bind(listen)?;
    socket.set_nonblocking(true)?;
    mark_control(&socket)?;
    Ok(socket)
}

/// Scheduling of a thread after [`raise_thread`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scheduling {
    /// Before all threads that are not real-time ones (`SCHED_FIFO`).
    RealTime,
    /// With more of the processor than others.
    Preferred,
    /// Like any other thread.
    Usual,
}

impl fmt::Display for Scheduling {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Scheduling::RealTime => "real-time",
            Scheduling::Preferred => "preferred",
            Scheduling::Usual => "usual",
        })
    }
}

/// Gives the calling thread the processor as soon as it has something to do, as far as the system allows;
/// threads and processes that it starts are not raised with it. Only for threads that never work for long at
/// a time.
#[must_use]
pub fn raise_thread() -> Scheduling {
    let priority: libc::c_int = REAL_TIME_PRIORITY;
    let policy: libc::c_int = libc::SCHED_FIFO | libc::SCHED_RESET_ON_FORK;
    // The system call itself, since musl's function of this name does nothing. SAFETY: 0 stands for the
    // calling thread, and the kernel only reads the parameter, which is one int and outlives the call.
    #[allow(unsafe_code)]
    let refused = unsafe { libc::syscall(libc::SYS_sched_setscheduler, 0, policy, &raw const priority) };
    if refused == 0 {
        return Scheduling::RealTime;
    }
    match rustix::process::setpriority_process(None, NICE) {
        Ok(()) => Scheduling::Preferred,
        Err(_) => Scheduling::Usual,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::sys::socket::getsockopt;
    use std::net::Ipv4Addr;

    #[test]
    fn a_controllers_socket_is_marked() {
        let socket = control_socket((Ipv4Addr::LOCALHOST, 0).into()).unwrap();
        assert_eq!(getsockopt(&socket, sockopt::Ipv4Tos).unwrap(), 0xc0);
        assert_eq!(getsockopt(&socket, sockopt::Priority).unwrap(), 6);
        assert_eq!(socket.recv(&mut [0]).unwrap_err().kind(), io::ErrorKind::WouldBlock);
    }

    #[test]
    fn only_64_classes_are_there() {
        let classes = [-1, 0, 63, 64, 256 + 34, i64::MAX].map(|class| Dscp::try_from(class).is_ok());
        assert_eq!(classes, [false, true, true, false, false, false]);
        assert_eq!(Dscp::try_from(64).unwrap_err().to_string(), "64 is no class: write 0 to 63");
    }

    #[test]
    fn a_raised_thread_says_what_it_is() {
        let (said, policy) = std::thread::spawn(|| {
            let said = raise_thread();
            // SAFETY: it takes a number and gives one.
            #[allow(unsafe_code)]
            let policy = unsafe { libc::sched_getscheduler(0) } & !libc::SCHED_RESET_ON_FORK;
            (said, policy)
        })
        .join()
        .unwrap();
        assert_eq!(said == Scheduling::RealTime, policy == libc::SCHED_FIFO, "{said}");
    }
}
