//! Control frames over TCP, sealed or plain, without blocking.

mod block;

pub use block::Block;

use crate::tls::{Binding, Expected, PeerNames, Pipe, SealError, Security, room_for};
use block::Sending;
use polycast_wire::WireError;
use polycast_wire::control::{Control, FIRST_FRAME_LEN_MAX, FRAME_LEN_MAX, LENGTH_LEN};
use socket2::{Domain, Protocol, Socket, Type};
use std::io;
use std::net::{SocketAddr, TcpStream};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::time::{Duration, Instant};

/// A connection that fails.
#[derive(Debug, thiserror::Error)]
pub enum FrameError {
    /// The other end closed it.
    #[error("the connection was closed")]
    Closed,
    /// The network broke it.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// The other end does not speak our protocol.
    #[error("{0}")]
    Wire(#[from] WireError),
    /// The other end is not one that this end trusts, or does not trust this one.
    #[error("{0}")]
    Seal(#[from] SealError),
}

impl FrameError {
    /// Nothing can be read or written just now.
    pub(crate) fn is_wait(&self) -> bool {
        matches!(self, FrameError::Io(error) if error.kind() == io::ErrorKind::WouldBlock)
    }

    /// It is to be tried again at once.
    fn is_interrupted(&self) -> bool {
        matches!(self, FrameError::Io(error) if error.kind() == io::ErrorKind::Interrupted)
    }
}

/// A TCP connection that carries control frames both ways.
#[derive(Debug)]
pub struct FrameStream {
    pipe: Pipe,
    incoming: Vec<u8>,
    /// The bytes of `incoming` before this have been handed out; those after `filled` are free.
    taken: usize,
    filled: usize,
    /// Bytes of frames that have come so far.
    received: u64,
    /// Longer frames are refused, and one read asks for so much.
    frame_len_max: usize,
    read_len: usize,
    outgoing: Vec<u8>,
    written: usize,
    /// Group that follows `outgoing`, sent from where it is.
    sending: Option<Sending>,
    /// A wait for something to read ends with so many bytes.
    low_water: libc::c_int,
}

/// Bytes that one read asks for at least.
const READ_LEN: usize = 64 << 10;
/// Bytes that the system takes of an urgent connection before they are on their way: see
/// [`FrameStream::keep_queue_short`].
const UNSENT_MAX: libc::c_int = 16 << 10;
/// Bytes that one read asks for on a connection before the other end has shown its key.
const FIRST_READ_LEN: usize = 4 << 10;
/// So many round trips are between a word and the answer at most: a lost packet costs some.
const PATIENT_ROUND_TRIPS: u32 = 4;
/// No way is so long that an answer takes longer.
const PATIENCE_MAX: Duration = Duration::from_secs(10);
/// While a connection is made it is looked so often whether it is still wanted.
const CONNECT_LOOK: Duration = Duration::from_millis(100);

impl FrameStream {
    /// Takes over a connection.
    ///
    /// # Errors
    /// It cannot be made non-blocking.
    pub fn new(stream: TcpStream) -> io::Result<Self> {
        prepare(&stream)?;
        Ok(Self::over(Pipe::plain(stream)))
    }

    fn over(pipe: Pipe) -> Self {
        FrameStream {
            pipe,
            incoming: Vec::new(),
            taken: 0,
            filled: 0,
            received: 0,
            frame_len_max: FRAME_LEN_MAX,
            read_len: READ_LEN,
            outgoing: Vec::new(),
            written: 0,
            sending: None,
            low_water: 1,
        }
    }

    /// Takes over a connection that any machine may have opened: until [`FrameStream::trust`] it takes short
    /// frames only. The other end decides whether it is sealed, which needs `security`; see
    /// [`FrameStream::is_sealed`].
    ///
    /// # Errors
    /// It cannot be made non-blocking.
    pub fn stranger(stream: TcpStream, security: Option<Security>) -> io::Result<Self> {
        prepare(&stream)?;
        let mut stream = Self::over(Pipe::accepted(stream, security));
        (stream.frame_len_max, stream.read_len) = (FIRST_FRAME_LEN_MAX, FIRST_READ_LEN);
        Ok(stream)
    }

    /// The system takes little more than what it can send now: what a slow path does not take waits where
    /// [`FrameStream::queued`] counts it, so that a sender of much can hold back and a later frame does not
    /// wait behind megabytes.
    pub fn keep_queue_short(&self) {
        self.set(libc::IPPROTO_TCP, libc::TCP_NOTSENT_LOWAT, UNSENT_MAX);
    }

    /// A wait for something to read ends when the frame of which a part is here is here whole, and not with
    /// each packet of it. One that reads such a connection looks now and then by itself whether something
    /// comes at all.
    pub fn wait_for_whole(&mut self) {
        let here = &self.incoming[self.taken..self.filled];
        let promised = self.frame_len(here).ok().flatten().unwrap_or(0);
        let missing = self.pipe.to_come(promised.saturating_sub(here.len()));
        let low_water = libc::c_int::try_from(missing).unwrap_or(libc::c_int::MAX).max(1);
        if low_water != self.low_water {
            self.low_water = low_water;
            self.set(libc::SOL_SOCKET, libc::SO_RCVLOWAT, low_water);
        }
    }

    /// Sets an option of the connection that makes it better, and without which all works.
    fn set(&self, level: libc::c_int, option: libc::c_int, value: libc::c_int) {
        // SAFETY: the option is one integer, which outlives the call; the kernel copies it and writes
        // nothing.
        #[allow(unsafe_code, reason = "no safe wrapper for these options in the libraries at hand")]
        let failed = unsafe {
            libc::setsockopt(
                self.as_fd().as_raw_fd(),
                level,
                option,
                (&raw const value).cast(),
                size_of::<libc::c_int>() as libc::socklen_t,
            )
        };
        if failed != 0 {
            tracing::debug!(option, error = %io::Error::last_os_error(), "a connection cannot be set so");
        }
    }

    /// The other end is known from here on: it may say all that the protocol allows.
    pub fn trust(&mut self) {
        (self.frame_len_max, self.read_len) = (FRAME_LEN_MAX, READ_LEN);
    }

    fn frame_len(&self, bytes: &[u8]) -> Result<Option<usize>, WireError> {
        match Control::frame_len(bytes)? {
            Some(len) if len > LENGTH_LEN + self.frame_len_max => Err(WireError::Malformed),
            len => Ok(len),
        }
    }

    /// Connects, waiting at most `timeout`; where there is `security`, sealed, and to the end that is
    /// expected. The other end's key or certificate is looked at with the first frame.
    ///
    /// # Errors
    /// No process listens there, or no answer came in time.
    pub fn connect(
        address: SocketAddr,
        timeout: Duration,
        security: Option<&Security>,
        expected: &Expected,
    ) -> Result<Self, FrameError> {
        Self::connect_unless(address, timeout, (security, expected), &|| false)
    }

    /// The same; it is given up as soon as `ends` says so.
    ///
    /// # Errors
    /// As [`FrameStream::connect`], and of kind `Interrupted` where it was given up.
    pub fn connect_unless(
        address: SocketAddr,
        timeout: Duration,
        (security, expected): (Option<&Security>, &Expected),
        ends: &dyn Fn() -> bool,
    ) -> Result<Self, FrameError> {
        let stream = open(address, timeout, ends)?;
        let Some(security) = security else { return Ok(Self::new(stream)?) };
        prepare(&stream)?;
        Ok(Self::over(Pipe::connected(stream, security, expected)?))
    }

    /// Returns true if the other end has shown its key, and no third machine can read the connection.
    #[must_use]
    pub fn is_sealed(&self) -> bool {
        self.pipe.is_sealed()
    }

    /// Returns the names that the other end may use: those in its certificate, or any where it has shown the
    /// key of all.
    #[must_use]
    pub fn peer_names(&self) -> PeerNames {
        self.pipe.peer_names()
    }

    /// Returns the binding, which stands for this sealed connection alone, once the two ends have shown who
    /// they are.
    #[must_use]
    pub fn binding(&self) -> Option<Binding> {
        self.pipe.binding()
    }

    /// Waits until the two ends of a sealed connection have shown who they are, for at most `timeout`. Before
    /// the first frame only.
    ///
    /// # Errors
    /// The other end is none that this one takes, or it does not answer in time.
    pub fn shake_hands(&mut self, timeout: Duration) -> Result<(), FrameError> {
        let until = Instant::now() + timeout;
        self.flush()?;
        while self.pipe.is_shaking() {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(io::Error::from(io::ErrorKind::TimedOut).into());
            }
            self.wait(left)?;
            self.fill()?;
        }
        Ok(())
    }

    /// Address of the other end.
    #[must_use]
    pub fn peer(&self) -> Option<SocketAddr> {
        self.pipe.stream().peer_addr().ok()
    }

    /// Returns the round-trip time to the other end, as the kernel has measured it; `None` where it has not
    /// yet, as on a path so long that it began to doubt the first packet.
    #[must_use]
    pub fn round_trip(&self) -> Option<Duration> {
        // SAFETY: all zeros is a valid value of this plain structure of integers.
        #[allow(unsafe_code, reason = "no safe wrapper for this option in the libraries at hand")]
        let mut info: libc::tcp_info = unsafe { std::mem::zeroed() };
        let mut len = size_of::<libc::tcp_info>() as libc::socklen_t;
        // SAFETY: the kernel writes at most `len` bytes into `info`, which is as long, and the length into
        // `len`; both outlive the call.
        #[allow(unsafe_code, reason = "as above")]
        let failed = unsafe {
            libc::getsockopt(
                self.as_fd().as_raw_fd(),
                libc::IPPROTO_TCP,
                libc::TCP_INFO,
                (&raw mut info).cast(),
                &raw mut len,
            )
        };
        (failed == 0 && info.tcpi_rtt > 0).then(|| Duration::from_micros(info.tcpi_rtt.into()))
    }

    /// Returns the time to wait for what the other end sends at once: at least `least`, and longer where the
    /// path is long.
    #[must_use]
    pub fn patience(&self, least: Duration) -> Duration {
        let wanted = self.round_trip().map_or(PATIENCE_MAX, |round_trip| round_trip * PATIENT_ROUND_TRIPS);
        least.max(wanted.min(PATIENCE_MAX))
    }

    /// Queues a frame and sends what the connection takes now.
    ///
    /// # Errors
    /// The connection is broken.
    pub fn send(&mut self, control: &Control<'_>) -> Result<(), FrameError> {
        self.queue(control);
        self.flush()
    }

    /// Queues a frame; [`FrameStream::flush`] and [`FrameStream::flush_some`] send it.
    ///
    /// # Panics
    /// A group is still being sent from where it is.
    pub fn queue(&mut self, control: &Control<'_>) {
        assert!(self.sending.is_none(), "a frame is queued when the group before it is sent");
        control.emit(&mut self.outgoing);
    }

    /// Bytes that wait to be sent.
    #[must_use]
    pub fn queued(&self) -> usize {
        let block = self.sending.as_ref().map_or(0, Sending::left_len);
        self.outgoing.len() - self.written + block + usize::from(self.pipe.has_pending())
    }

    /// Sends what the connection takes now.
    ///
    /// # Errors
    /// The connection is broken.
    pub fn flush(&mut self) -> Result<(), FrameError> {
        self.flush_some(usize::MAX).map(drop)
    }

    /// Sends at most so many bytes of what the connection takes now; gives how many.
    ///
    /// # Errors
    /// The connection is broken.
    pub fn flush_some(&mut self, most: usize) -> Result<usize, FrameError> {
        let (mut sent, mut most) = (0, most);
        loop {
            match self.write_some(most) {
                Ok(None) => break,
                Ok(Some(0)) => return Err(FrameError::Closed),
                Ok(Some(n)) => {
                    (sent, most) = (sent + n, most - n);
                    self.note_written(n);
                }
                Err(error) if error.is_wait() => return Ok(sent),
                Err(error) if error.is_interrupted() => {}
                Err(error) => return Err(error),
            }
        }
        self.pipe.flush()?;
        Ok(sent)
    }

    /// Writes at most so many bytes of what comes next; `None` where nothing is left to write.
    fn write_some(&mut self, most: usize) -> Result<Option<usize>, FrameError> {
        let head = &self.outgoing[self.written..];
        let head = &head[..head.len().min(most)];
        let written = match &self.sending {
            _ if most == 0 => return Ok(None),
            Some(Sending::File { held, left }) if !left.is_empty() => {
                let len = usize::try_from(left.end - left.start).expect("a group fits into memory");
                self.pipe.write_from(head, (held, left.start), len.min(most - head.len()))?
            }
            _ if !head.is_empty() => self.pipe.write(head)?,
            Some(Sending::Block { block, sent }) if *sent < block.bytes().len() => {
                let left = &block.bytes()[*sent..];
                self.pipe.write(&left[..left.len().min(most)])?
            }
            _ => return Ok(None),
        };
        Ok(Some(written))
    }

    fn note_written(&mut self, bytes: usize) {
        let of_head = bytes.min(self.outgoing.len() - self.written);
        self.written += of_head;
        if let Some(sending) = &mut self.sending {
            sending.note_written(bytes - of_head);
        }
        if self.written == self.outgoing.len() {
            self.outgoing.clear();
            self.written = 0;
            self.sending.take_if(|sending| sending.left_len() == 0);
        }
    }

    /// Reads what has come; gives whether anything has.
    ///
    /// # Errors
    /// The connection is broken, or closed with nothing left to read.
    pub fn fill(&mut self) -> Result<bool, FrameError> {
        if self.taken > 0 {
            self.incoming.copy_within(self.taken..self.filled, 0);
            self.filled -= self.taken;
            self.taken = 0;
        }
        let promised = self.frame_len(&self.incoming[..self.filled])?.unwrap_or(0);
        // Room for a long frame is made as its bytes come: what is only promised takes none.
        let room = promised.min(2 * self.filled).max(self.filled + self.read_len).max(self.incoming.len());
        // A long frame comes to lie in a buffer of its own, so that it can go on in it.
        let is_long = promised > self.filled.max(self.read_len);
        let until = if is_long { promised } else { self.filled + self.read_len };
        let wanted = until.min(room) - self.filled;
        self.make_room(wanted);
        loop {
            match self.pipe.read(&mut self.incoming[self.filled..], wanted) {
                Ok(0) => return Err(FrameError::Closed),
                Ok(n) => {
                    self.filled += n;
                    self.received += n as u64;
                    return self.take_unread();
                }
                Err(error) if error.is_wait() => return Ok(false),
                Err(error) if error.is_interrupted() => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Takes what was unsealed together with what was read just now: the connection would not report it.
    fn take_unread(&mut self) -> Result<bool, FrameError> {
        loop {
            let unread = self.pipe.unread();
            if unread == 0 {
                return Ok(true);
            }
            self.make_room(unread);
            match self.pipe.read_here(&mut self.incoming[self.filled..], unread)? {
                0 => return Ok(true),
                n => {
                    self.filled += n;
                    self.received += n as u64;
                }
            }
        }
    }

    /// Makes room in which so many more bytes can be read.
    fn make_room(&mut self, wanted: usize) {
        let end = self.filled + room_for(wanted);
        if self.incoming.len() < end {
            self.incoming.resize(end, 0);
        }
    }

    /// Bytes of frames that have come so far, whole or not.
    #[must_use]
    pub fn received(&self) -> u64 {
        self.received
    }

    /// The next whole frame that has been read.
    ///
    /// # Errors
    /// It is not a frame of our protocol.
    pub fn next_frame(&mut self) -> Result<Option<Control<'_>>, FrameError> {
        let bytes = &self.incoming[self.taken..self.filled];
        match self.frame_len(bytes)? {
            Some(len) if len <= bytes.len() => {
                let start = self.taken;
                self.taken += len;
                Ok(Some(Control::parse(&self.incoming[start..start + len])?))
            }
            _ => Ok(None),
        }
    }

    /// Waits until there is something to read, or to write if something is queued, at most `timeout`.
    ///
    /// # Errors
    /// Waiting is impossible.
    pub fn wait(&self, timeout: Duration) -> io::Result<()> {
        use rustix::event::{PollFd, PollFlags, poll};
        let writing = if self.queued() > 0 { PollFlags::OUT } else { PollFlags::empty() };
        let mut fds = [PollFd::from_borrowed_fd(self.as_fd(), PollFlags::IN | writing)];
        let timeout = rustix::time::Timespec::try_from(timeout).map_err(io::Error::other)?;
        match poll(&mut fds, Some(&timeout)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Ends the connection after a last word: waits until the other end has closed it, at most `timeout`. To
    /// close at once, with bytes unread, would reset the connection and could destroy the last word on its
    /// way.
    pub fn part(&mut self, timeout: Duration) {
        let until = std::time::Instant::now() + timeout;
        while self.queued() > 0 && std::time::Instant::now() < until {
            if self.flush().is_err() || self.wait(Duration::from_millis(20)).is_err() {
                return;
            }
        }
        self.finish();
        while std::time::Instant::now() < until {
            self.taken = self.filled;
            match self.fill() {
                Ok(true) => {}
                Ok(false) if self.wait(Duration::from_millis(20)).is_ok() => {}
                _ => return,
            }
        }
    }

    /// Says that nothing more will be sent.
    pub fn finish(&mut self) {
        self.pipe.finish();
    }
}

/// Opens a connection, and looks meanwhile whether it is still wanted.
fn open(address: SocketAddr, timeout: Duration, ends: &dyn Fn() -> bool) -> io::Result<TcpStream> {
    use rustix::event::{PollFd, PollFlags, poll};
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    socket.set_nonblocking(true)?;
    match socket.connect(&address.into()) {
        Ok(()) => return Ok(socket.into()),
        Err(error) if error.raw_os_error() == Some(libc::EINPROGRESS) => {}
        Err(error) => return Err(error),
    }
    let begun = Instant::now();
    loop {
        let left = timeout.saturating_sub(begun.elapsed());
        if left.is_zero() {
            return Err(io::Error::new(io::ErrorKind::TimedOut, "connection timed out"));
        }
        if ends() {
            return Err(io::ErrorKind::Interrupted.into());
        }
        let mut fds = [PollFd::from_borrowed_fd(socket.as_fd(), PollFlags::OUT)];
        let span = rustix::time::Timespec::try_from(left.min(CONNECT_LOOK)).map_err(io::Error::other)?;
        match poll(&mut fds, Some(&span)) {
            Ok(0) | Err(rustix::io::Errno::INTR) => {}
            Ok(_) => return socket.take_error()?.map_or_else(|| Ok(socket.into()), Err),
            Err(error) => return Err(error.into()),
        }
    }
}

fn prepare(stream: &TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    stream.set_nonblocking(true)
}

impl AsFd for FrameStream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.pipe.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use polycast_testing::HANG;
    use std::io::Write as _;
    use std::net::TcpListener;

    fn pair() -> (FrameStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let other = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        (FrameStream::stranger(listener.accept().unwrap().0, None).unwrap(), other)
    }

    /// A queued frame goes out in pieces, and comes as it is.
    #[test]
    fn a_frame_goes_out_in_pieces() {
        let (mut near, mut far) = pair();
        let payload = vec![7; 50_000];
        near.queue(&Control::Group { index: 3, payload: &payload });
        let (queued, mut pieces) = (near.queued(), Vec::new());
        while near.queued() > 0 {
            pieces.push(near.flush_some(16 << 10).unwrap());
        }
        assert_eq!(pieces.iter().sum::<usize>(), queued);
        assert!(pieces.len() > 3 && pieces.iter().all(|piece| *piece <= 16 << 10), "{pieces:?}");
        let mut came = vec![0; queued];
        std::io::Read::read_exact(&mut far, &mut came).unwrap();
        assert!(came.ends_with(&payload));
    }

    /// A connection that is not wanted any more is not waited for, however long it may take.
    #[test]
    fn connecting_ends_when_it_is_not_wanted_any_more() {
        // A listener whose queue is full answers no more.
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
        socket.bind(&SocketAddr::from((std::net::Ipv4Addr::LOCALHOST, 0)).into()).unwrap();
        socket.listen(0).unwrap();
        let address = socket.local_addr().unwrap().as_socket().unwrap();
        let mut taken = Vec::new();
        let outcome = loop {
            let looks = std::cell::Cell::new(0);
            let ends = || looks.replace(looks.get() + 1) >= 3;
            match FrameStream::connect_unless(address, 10 * HANG, (None, &Expected::Sharer), &ends) {
                Ok(stream) => taken.push(stream),
                Err(error) => break error,
            }
        };
        assert!(
            matches!(&outcome, FrameError::Io(error) if error.kind() == io::ErrorKind::Interrupted),
            "{outcome}"
        );
        drop(taken);
    }

    /// Nothing is waited for longer than before where the path is short.
    #[test]
    fn the_way_to_the_other_end_is_known() {
        let (near, _far) = pair();
        let round_trip = near.round_trip().expect("the handshake has measured it");
        assert!(round_trip < HANG, "{round_trip:?}");
        assert_eq!(near.patience(HANG), HANG);
    }

    /// Reads until something came or the connection failed.
    fn read(stream: &mut FrameStream) -> Result<(), FrameError> {
        while !stream.fill()? {
            stream.wait(Duration::from_secs(1)).unwrap();
        }
        Ok(())
    }

    #[test]
    fn what_is_promised_takes_no_room_before_it_comes() {
        let (mut stream, mut other) = pair();
        stream.trust();
        other.write_all(&[0, 0x1f, 0xff, 0xff, 16]).unwrap();
        for more in [0, 1_000, 1_000] {
            other.write_all(&vec![0; more]).unwrap();
            read(&mut stream).unwrap();
        }
        assert!(stream.incoming.len() < 3 * READ_LEN, "{} bytes for 2,005", stream.incoming.len());
        assert!(matches!(stream.next_frame(), Ok(None)));
    }

    #[test]
    fn a_stranger_says_no_long_frames() {
        let promised = |len: u32| [&len.to_be_bytes()[..], &[16]].concat();
        for (len, refused) in [(FIRST_FRAME_LEN_MAX as u32, false), (FIRST_FRAME_LEN_MAX as u32 + 1, true)] {
            let (mut stream, mut other) = pair();
            other.write_all(&promised(len)).unwrap();
            read(&mut stream).unwrap();
            assert!(stream.incoming.len() <= 2 * FIRST_READ_LEN);
            assert_eq!(stream.next_frame().is_err(), refused, "{len}");
            stream.trust();
            assert!(matches!(stream.next_frame(), Ok(None)), "one that is known may say it");
        }
    }

    /// The system holds little of what a slow path does not take.
    #[test]
    fn a_short_queue_holds_little() {
        let queued = |short: bool| {
            let (mut stream, other) = pair();
            socket2::SockRef::from(&other).set_recv_buffer_size(4_096).unwrap();
            if short {
                stream.keep_queue_short();
            }
            let payload = vec![7; 8 << 10];
            let mut taken = 0;
            while stream.queued() == 0 {
                stream.send(&Control::PtchData { sn: 0, payload: &payload }).unwrap();
                taken += payload.len();
            }
            taken
        };
        let (short, long) = (queued(true), queued(false));
        assert!(2 * short < long, "{short} bytes, and {long} of a usual connection");
    }

    /// Frames that come in one record are all taken, though nothing more is to be read on the connection.
    #[test]
    fn what_is_unsealed_together_is_read_together() {
        let security = Security::shared(&crate::seal::Secret::fresh());
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let mut near = FrameStream::connect(address, HANG, Some(&security), &Expected::Sharer).unwrap();
        let mut far = FrameStream::stranger(listener.accept().unwrap().0, Some(security)).unwrap();
        near.send(&Control::Alive).unwrap();
        while !matches!(far.next_frame(), Ok(Some(Control::Alive))) {
            for end in [&mut near, &mut far] {
                end.fill().unwrap();
                end.flush().unwrap();
                end.wait(Duration::from_millis(20)).unwrap();
            }
        }
        assert!(near.is_sealed() && far.is_sealed());
        let payload = [7; 1_000];
        (0..15).for_each(|index| Control::Group { index, payload: &payload }.emit(&mut near.outgoing));
        near.flush().unwrap();
        far.wait(HANG).unwrap();
        assert!(far.fill().unwrap());
        for index in 0..15 {
            assert_eq!(far.next_frame().unwrap(), Some(Control::Group { index, payload: &payload }));
        }
    }

    #[test]
    fn frames_of_all_sizes_pass_in_order() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let payload: Vec<u8> = (0..300_000u32).map(|i| i as u8).collect();
        let sent = payload.clone();
        let writer = std::thread::spawn(move || {
            let mut stream = FrameStream::connect(address, HANG, None, &Expected::Sharer).unwrap();
            for index in 0..40 {
                stream.send(&Control::Group { index, payload: &sent[..index as usize * 7_000] }).unwrap();
                stream.send(&Control::Alive).unwrap();
            }
            while stream.queued() > 0 {
                stream.wait(Duration::from_millis(100)).unwrap();
                stream.flush().unwrap();
            }
        });
        let mut stream = FrameStream::new(listener.accept().unwrap().0).unwrap();
        let mut seen = 0;
        loop {
            match stream.fill() {
                Ok(true) => {}
                Ok(false) => stream.wait(Duration::from_secs(1)).unwrap(),
                Err(FrameError::Closed) => break,
                Err(error) => panic!("{error}"),
            }
            while let Some(frame) = stream.next_frame().unwrap() {
                match frame {
                    Control::Group { index, payload: got } => {
                        assert_eq!(index * 2, seen);
                        assert_eq!(got, &payload[..index as usize * 7_000]);
                    }
                    other => assert_eq!(other, Control::Alive),
                }
                seen += 1;
            }
        }
        writer.join().unwrap();
        assert_eq!(seen, 80);
    }
}
