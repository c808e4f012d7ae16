//! Connections whose other end has not said yet what it asks for. Any machine can open them, so they are few,
//! young, and never delay anything.
//!
//! A connection that has said nothing for [`FIRST_WITHIN`], and longer where the other end is far away, is
//! closed. Where one address has many that wait, or all together are many, the oldest are closed: an end that
//! means it says so at once, and is the youngest when it comes. So there is always room for one more, and the
//! listener need never be left alone.

use super::clock::Clock;
use super::door::{Desk, Visitor};
use polycast_net::frames::{FrameError, FrameStream};
use polycast_net::tls::{Binding, SealError, Security};
use polycast_types::{Duration, Time};
use polycast_wire::WireError;
use polycast_wire::control::Control;
use rustix::event::{PollFd, PollFlags};
use std::fmt::Display;
use std::io::{self, ErrorKind};
use std::net::{IpAddr, TcpListener};
use std::os::fd::AsFd;

/// Connections that have said nothing yet.
const STRANGERS_MAX: usize = 256;
/// Maximum number of connections of one address that may wait.
const STRANGERS_OF_ONE_MAX: usize = 8;
/// Age below which connections do not count for that: many receivers of one host may come at the same moment,
/// and each sends HELLO at once.
const YOUNG: Duration = Duration::from_millis(100);
/// A connection says what it asks for within this time, or within some round trips where these take longer.
pub(crate) const FIRST_WITHIN: Duration = Duration::from_secs(1);
/// Connections that are taken in between two looks at something else.
const ACCEPTED_MAX: usize = 64;
/// Shortest interval at which ends that are turned down are named in the log.
const SAY_INTERVAL: Duration = Duration::from_secs(1);
/// Pause after no connection could be taken, most likely for want of descriptors: some will be free again
/// then.
const PAUSE: Duration = Duration::from_millis(100);

/// Answer to an end that comes without a key where one is needed.
const NOT_SEALED: &str = "this end takes sealed connections only: start both ends with the same key or code";

/// A connection that has said nothing yet.
struct Stranger {
    stream: FrameStream,
    address: Option<IpAddr>,
    since: Time,
    /// It has asked what there is, and may not ask again.
    has_asked: bool,
}

/// Origin of the connections.
enum Place {
    /// A listener of this transfer's own.
    Listener(TcpListener),
    /// The agent's door: each has said its first frame there.
    Desk(Desk),
}

/// A listener, and those who have come to it and said nothing yet.
pub(crate) struct Strangers {
    place: Place,
    waiting: Vec<Stranger>,
    clock: Clock,
    /// No connection could be taken: none is before this time.
    paused_until: Option<Time>,
    /// Security of the connections.
    security: Option<Security>,
    /// Set if only questions are accepted on those that are not sealed.
    sealed: bool,
    /// Connections whose other end has not shown our key, and when they were last spoken of.
    unsealed: u64,
    said_at: Option<Time>,
}

impl Strangers {
    /// Takes the connections to a listener that does not block. Where there is `security`, they have to be of
    /// ends that it accepts.
    pub(crate) fn new(listener: TcpListener, security: Option<Security>) -> Self {
        let sealed = security.is_some();
        Self::from(Place::Listener(listener), security, sealed)
    }

    /// Takes the connections that an agent's door passes on.
    pub(crate) fn at_desk(desk: Desk, sealed: bool) -> Self {
        Self::from(Place::Desk(desk), None, sealed)
    }

    fn from(place: Place, security: Option<Security>, sealed: bool) -> Self {
        Strangers {
            place,
            waiting: Vec::new(),
            clock: Clock::start(),
            paused_until: None,
            security,
            sealed,
            unsealed: 0,
            said_at: None,
        }
    }

    /// The port at which they come.
    pub(crate) fn port(&self) -> u16 {
        match &self.place {
            Place::Listener(listener) => listener.local_addr().map_or(0, |address| address.port()),
            Place::Desk(desk) => desk.port(),
        }
    }

    /// Returns true if a first frame is accepted on this connection.
    fn may_say(&self, stream: &FrameStream, control: &Control<'_>) -> bool {
        !self.sealed || stream.is_sealed() || is_question(control)
    }

    /// Adds the descriptors to wait on: [`Strangers::meet`] is to be called when any of them has something,
    /// and now and then.
    pub(crate) fn descriptors<'a>(&'a self, fds: &mut Vec<PollFd<'a>>) {
        match &self.place {
            Place::Listener(_) if self.paused_until.is_some() => {}
            Place::Listener(listener) => fds.push(PollFd::from_borrowed_fd(listener.as_fd(), PollFlags::IN)),
            Place::Desk(desk) => fds.push(desk.bell().descriptor()),
        }
        let waiting = self.waiting.iter();
        fds.extend(waiting.map(|stranger| PollFd::from_borrowed_fd(stranger.stream.as_fd(), PollFlags::IN)));
    }

    /// Takes new connections, and hands over those that `want` says something of their first frame. One whose
    /// first frame is none, or of another version, is told so. It hears what stands for the connection, too.
    pub(crate) fn meet<T>(
        &mut self,
        want: impl FnMut(&Control<'_>, Option<Binding>) -> Option<T>,
    ) -> Vec<(FrameStream, T)> {
        self.meet_at(self.clock.now(), want)
    }

    fn meet_at<T>(
        &mut self,
        now: Time,
        mut want: impl FnMut(&Control<'_>, Option<Binding>) -> Option<T>,
    ) -> Vec<(FrameStream, T)> {
        let mut heard = Vec::new();
        let before = std::mem::take(&mut self.waiting);
        for stranger in before {
            self.hear(now, stranger, &mut want, &mut heard);
        }
        self.fetch_from_desk(&mut want, &mut heard);
        for _ in 0..ACCEPTED_MAX {
            let Some(stranger) = self.accept(now) else { break };
            self.hear(now, stranger, &mut want, &mut heard);
        }
        self.thin_out(now);
        heard
    }

    /// Takes in those who have said their first frame at the agent's door.
    fn fetch_from_desk<T>(
        &mut self,
        want: &mut impl FnMut(&Control<'_>, Option<Binding>) -> Option<T>,
        heard: &mut Vec<(FrameStream, T)>,
    ) {
        let Place::Desk(desk) = &self.place else { return };
        for Visitor { stream, first } in desk.take() {
            let control = Control::parse(&first).expect("the door has written the frame itself");
            match want(&control, stream.binding()) {
                _ if !self.may_say(&stream, &control) => send_away(stream, &NOT_SEALED),
                Some(wish) => heard.push((stream, wish)),
                None => send_away(stream, &WireError::Malformed),
            }
        }
    }

    /// One has asked what there is and been told: it has as long again to say what it asks for.
    pub(crate) fn again(&mut self, stream: FrameStream) {
        let address = stream.peer().map(|peer| peer.ip());
        self.waiting.push(Stranger { stream, address, since: self.clock.now(), has_asked: true });
    }

    fn accept(&mut self, now: Time) -> Option<Stranger> {
        let Place::Listener(listener) = &self.place else { return None };
        if self.paused_until.is_some_and(|until| now < until) {
            return None;
        }
        loop {
            match listener.accept() {
                Ok((stream, from)) => {
                    let was_paused = self.paused_until.take().is_some();
                    if was_paused {
                        tracing::info!("connections are taken again");
                    }
                    let Ok(stream) = FrameStream::stranger(stream, self.security.clone()) else { continue };
                    return Some(Stranger { stream, address: Some(from.ip()), since: now, has_asked: false });
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    self.paused_until = None;
                    return None;
                }
                // It has gone again.
                Err(error)
                    if matches!(error.kind(), ErrorKind::ConnectionAborted | ErrorKind::Interrupted) => {}
                Err(error) => {
                    self.pause(now, &error);
                    return None;
                }
            }
        }
    }

    /// Once a trouble, not once a look.
    fn pause(&mut self, now: Time, error: &io::Error) {
        if self.paused_until.is_none() {
            tracing::warn!(%error, "no connections can be taken: trying again ten times a second");
        }
        self.paused_until = Some(now + PAUSE);
    }

    /// Reads what one has said, and keeps it where that is nothing yet.
    fn hear<T>(
        &mut self,
        now: Time,
        mut stranger: Stranger,
        want: &mut impl FnMut(&Control<'_>, Option<Binding>) -> Option<T>,
        heard: &mut Vec<(FrameStream, T)>,
    ) {
        let open = stranger.stream.fill();
        let binding = stranger.stream.binding();
        let foreign = match stranger.stream.next_frame() {
            Ok(None) => match open {
                Ok(_) if now.since(stranger.since) < patience(&stranger.stream) => {
                    return self.waiting.push(stranger);
                }
                Err(FrameError::Wire(error)) => error,
                Err(FrameError::Seal(error)) => {
                    self.note_unsealed(now, stranger.address, &error);
                    return send_away(stranger.stream, &error);
                }
                _ => return,
            },
            // One question a connection; and it proves something about what it has been answered.
            Ok(Some(Control::Ask { .. } | Control::Pair { .. })) if stranger.has_asked => {
                WireError::Malformed
            }
            Ok(Some(Control::Prove { .. })) if !stranger.has_asked => WireError::Malformed,
            Ok(Some(control)) => match want(&control, binding).map(|wish| (wish, is_question(&control))) {
                Some((_, false)) if self.sealed && !stranger.stream.is_sealed() => {
                    return send_away(stranger.stream, &NOT_SEALED);
                }
                Some((wish, _)) => return heard.push((stranger.stream, wish)),
                None => WireError::Malformed,
            },
            Err(FrameError::Wire(error)) => error,
            Err(_) => return,
        };
        send_away(stranger.stream, &foreign);
    }

    /// Says which ends are turned down and why, now and then: any machine can come often.
    fn note_unsealed(&mut self, now: Time, peer: Option<IpAddr>, error: &SealError) {
        self.unsealed += 1;
        if self.said_at.is_none_or(|at| now.since(at) >= SAY_INTERVAL) {
            self.said_at = Some(now);
            tracing::warn!(?peer, %error, so_far = self.unsealed, "a connection is turned down");
        }
    }

    /// Closes the oldest where there are too many; they are in the order in which they came.
    fn thin_out(&mut self, now: Time) {
        let too_many = self.waiting.len().saturating_sub(STRANGERS_MAX);
        self.waiting.drain(..too_many);
        let is_old = |stranger: &Stranger| now.since(stranger.since) >= YOUNG;
        for at in (0..self.waiting.len()).rev() {
            let address = self.waiting[at].address;
            let later = self.waiting[at..].iter().filter(|other| is_old(other) && other.address == address);
            if is_old(&self.waiting[at]) && later.count() > STRANGERS_OF_ONE_MAX {
                drop(self.waiting.remove(at));
            }
        }
    }

    /// Returns the number of waiting connections.
    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.waiting.len()
    }
}

/// Returns true for a frame by which an end learns what there is, and shows that it may have it: it needs no
/// seal.
fn is_question(control: &Control<'_>) -> bool {
    matches!(control, Control::Ask { .. } | Control::Pair { .. } | Control::Prove { .. })
}

/// Returns the time that a connection has for its first frame: keys are shown before it.
fn patience(stream: &FrameStream) -> Duration {
    Duration(stream.patience(std::time::Duration::from_nanos(FIRST_WITHIN.0)).as_nanos() as u64)
}

fn send_away(mut stream: FrameStream, why: &dyn Display) {
    // One that does not hear this notices that the connection ends.
    let _ = stream.send(&Control::Refuse(&why.to_string()));
    stream.finish();
}

#[cfg(test)]
mod tests {
    use super::*;
    use polycast_testing::until;
    use std::io::Write as _;
    use std::net::{Ipv4Addr, SocketAddr, TcpStream};

    fn open() -> (Strangers, SocketAddr) {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        listener.set_nonblocking(true).unwrap();
        let address = listener.local_addr().unwrap();
        (Strangers::new(listener, None), address)
    }

    fn alive(control: &Control<'_>, _: Option<Binding>) -> Option<()> {
        matches!(control, Control::Alive).then_some(())
    }

    fn connect(address: SocketAddr, count: usize) -> Vec<TcpStream> {
        (0..count).map(|_| TcpStream::connect(address).unwrap()).collect()
    }

    const MILLISECOND: Duration = Duration::from_millis(1);

    /// However many are silent, one that speaks is heard, and few wait.
    #[test]
    fn the_silent_make_room_for_who_speaks() {
        let (mut strangers, address) = open();
        let begun = Time::ZERO + MILLISECOND;
        let silent = connect(address, 100);
        until("all have been taken in", || {
            assert!(strangers.meet_at(begun, alive).is_empty());
            strangers.len() == silent.len()
        });
        let later = begun + YOUNG;
        assert!(strangers.meet_at(later, alive).is_empty());
        assert_eq!(strangers.len(), STRANGERS_OF_ONE_MAX);
        assert!(!is_ready(&strangers), "no connection says anything, and there is nothing to do");
        let mut speaker = TcpStream::connect(address).unwrap();
        speaker.write_all(&[0, 0, 0, 1, 20]).unwrap();
        until("it is heard", || !strangers.meet_at(later, alive).is_empty());
        assert_eq!(strangers.len(), STRANGERS_OF_ONE_MAX);
        assert!(strangers.meet_at(begun + (FIRST_WITHIN - MILLISECOND), alive).is_empty());
        assert_eq!(strangers.len(), STRANGERS_OF_ONE_MAX);
        assert!(strangers.meet_at(begun + FIRST_WITHIN, alive).is_empty());
        assert_eq!(strangers.len(), 0, "the silent are gone after a second");
    }

    /// Returns true if any descriptor that is waited on has something.
    fn is_ready(strangers: &Strangers) -> bool {
        let mut fds = Vec::new();
        strangers.descriptors(&mut fds);
        super::super::clock::wait(&mut fds, Time::ZERO, None, Duration::from_millis(20)).unwrap();
        fds.iter().any(|fd| !fd.revents().is_empty())
    }

    /// A listener is left alone for a moment where connections cannot be taken.
    #[test]
    fn a_listener_without_descriptors_rests() {
        let (mut strangers, address) = open();
        let begun = Time::ZERO + MILLISECOND;
        strangers.pause(begun, &io::Error::from_raw_os_error(24));
        let mut waiting = TcpStream::connect(address).unwrap();
        waiting.write_all(&[0, 0, 0, 1, 20]).unwrap();
        assert!(!is_ready(&strangers), "it would be tried in a circle");
        assert!(strangers.meet_at(begun + (PAUSE - MILLISECOND), alive).is_empty());
        assert!(!is_ready(&strangers), "it still rests");
        until("it is heard", || !strangers.meet_at(begun + PAUSE, alive).is_empty());
        let _next = TcpStream::connect(address).unwrap();
        until("it is looked at again", || is_ready(&strangers));
    }

    /// Receivers of one host that come together are none too many, even before they have said anything.
    #[test]
    fn those_who_come_together_are_all_heard() {
        let (mut strangers, address) = open();
        let begun = Time::ZERO + MILLISECOND;
        let mut together = connect(address, 40);
        until("all have been taken in", || {
            assert!(strangers.meet_at(begun, alive).is_empty());
            strangers.len() == together.len()
        });
        together.iter_mut().for_each(|stream| stream.write_all(&[0, 0, 0, 1, 20]).unwrap());
        let mut heard = 0;
        until("all are heard", || {
            heard += strangers.meet_at(begun, alive).len();
            heard == together.len()
        });
    }
}
