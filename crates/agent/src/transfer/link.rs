//! A receiver's control connection to its source, for push and pull alike: frames, and the machine that
//! decides (`protocol::session`).

use super::clock::Clock;
use super::discovery::{Announced, show};
use super::error::TransferError;
use super::gone::gone;
use super::{ReceiverSpec, Rendezvous};
use polycast_net::frames::{FrameError, FrameStream};
use polycast_net::seal::Secret;
use polycast_net::tls::{Expected, Security};
use polycast_protocol::session::{
    ANSWER_WITHIN, End, Gone, Guest, GuestConfig, GuestInput, GuestOutput, Offer,
};
use polycast_types::{Handle, Time};
use polycast_wire::control::{Control, Hash, SealSecret};
use polycast_wire::cursor::NAME_LEN_MAX;
use rustix::event::{PollFd, PollFlags};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// While what an earlier try left is checked, the source hears at least this often that this end lives.
const SIGN_INTERVAL: polycast_types::Duration = polycast_types::Duration::from_millis(250);
/// No other end is waited for longer, however far away the source is.
const PATIENCE_MAX: Duration = Duration::from_secs(10);
/// Time that this end waits for its last message to be taken.
const PART_WITHIN: Duration = Duration::from_secs(1);

/// The connection and the machine behind it.
pub(super) struct Link {
    pub(super) guest: Guest,
    clock: Clock,
    stream: FrameStream,
    /// It cannot be used any more.
    gone: bool,
    /// End of the connection, while frames that came before are still to be taken.
    ended: Option<Gone>,
    /// Time at which this end last reported that it lives.
    signed_at: Time,
    /// Proof that this end has the offer's secret, where connections are not sealed with it.
    proof: Option<Hash>,
    /// Time that it took to connect: a packet's way to the source and back, or more.
    round_trip: Duration,
}

impl Link {
    /// Connects, says HELLO and waits for the source's answer.
    pub(super) fn join(
        spec: &ReceiverSpec,
        address: SocketAddr,
        handle: Handle,
        (window_bytes, serve_port): (u64, u16),
        clock: Clock,
    ) -> Result<(Self, Offer), TransferError> {
        let security = spec.security()?;
        let within = spec.options.answer_within;
        let begun = clock.now();
        let expected = spec.expected();
        let mut stream = connect(address, within, (security.as_ref(), &expected), &spec.cancel)?;
        let round_trip = Duration::from_nanos(clock.now().since(begun).0);
        let proof = match &spec.rendezvous {
            Rendezvous::Announced(Announced { pairing: Some(pairing), .. }) if security.is_none() => {
                // HELLO says no more of the name.
                let name = &spec.name[..spec.name.floor_char_boundary(usize::from(NAME_LEN_MAX))];
                Some(show(&mut stream, pairing, (handle, name), (within, &spec.cancel))?)
            }
            _ => None,
        };
        let answer_timeout = within.max(ANSWER_WITHIN);
        let config = GuestConfig::new(handle, spec.name.clone());
        let (called, location) = (spec.called.clone(), spec.location.clone());
        let config = GuestConfig { window_bytes, serve_port, location, answer_timeout, called, ..config };
        let (now, guest) = (clock.now(), Guest::new(clock.now(), config));
        let mut link =
            Link { guest, clock, stream, gone: false, ended: None, signed_at: now, proof, round_trip };
        let offer = link.await_offer(spec)?;
        Ok((link, offer))
    }

    /// Returns the time to wait for another end that the source has named: at least this long, and longer
    /// where the source is far away.
    pub(super) fn patience(&self, least: Duration) -> Duration {
        least.max((self.round_trip * 4).min(PATIENCE_MAX))
    }

    /// Returns true if only the two ends can read and change the messages here.
    pub(super) fn is_sealed(&self) -> bool {
        self.stream.is_sealed()
    }

    /// Waits for the secret that packets are sealed with, and tickets are made of: the first message of a
    /// source after WELCOME, where its connections are sealed.
    pub(super) fn await_secret(&mut self, spec: &ReceiverSpec) -> Result<Option<Secret>, TransferError> {
        if !self.is_sealed() {
            return Ok(None);
        }
        loop {
            if spec.cancel.load(Ordering::Relaxed) {
                return Err(TransferError::Cancelled);
            }
            match self.next_frame() {
                Some(Control::Seal(SealSecret(secret))) => {
                    return Ok(Some(Secret::new(secret)));
                }
                Some(Control::Alive) => continue,
                Some(Control::Refuse(_)) | None => {}
                Some(_) => {
                    let what = "it seals its connections, and does not say how its packets are sealed";
                    return Err(TransferError::Contradiction(what.into()));
                }
            }
            self.note_end();
            while let Some(output) = self.poll() {
                if let GuestOutput::Ended(end) = output {
                    return Err(error_of(end, 0, 0));
                }
            }
            self.stream.wait(Duration::from_millis(100))?;
            self.fill();
        }
    }

    fn await_offer(&mut self, spec: &ReceiverSpec) -> Result<Offer, TransferError> {
        loop {
            if spec.cancel.load(Ordering::Relaxed) {
                return Err(TransferError::Cancelled);
            }
            while let Some(output) = self.poll() {
                match output {
                    GuestOutput::Offer(offer) => return Ok(offer),
                    GuestOutput::Ended(end) => return Err(error_of(end, 0, 0)),
                    _ => {}
                }
            }
            self.stream.wait(Duration::from_millis(100))?;
            self.fill();
            // One frame: what follows WELCOME is for those who take the offer.
            drop(self.next_frame());
            self.note_end();
        }
    }

    /// The machine's next output; what only has to be said is said here.
    pub(super) fn poll(&mut self) -> Option<GuestOutput> {
        loop {
            match self.guest.poll(self.clock.now())? {
                GuestOutput::Hello => {
                    let sent = match (self.guest.hello(), self.proof) {
                        (Control::Hello(hello), Some(proof)) => {
                            self.stream.send(&Control::Join { proof, hello })
                        }
                        (hello, _) => self.stream.send(&hello),
                    };
                    self.note(sent);
                }
                GuestOutput::Say(control) => self.say(&control),
                GuestOutput::Refuse(reason) => {
                    if !self.gone {
                        // The source need not wait for this end, and its report can say why.
                        let _ = self.stream.send(&Control::Refuse(&reason));
                        self.stream.part(PART_WITHIN);
                    }
                }
                output => return Some(output),
            }
        }
    }

    pub(super) fn handle(&mut self, input: GuestInput<'_>) {
        self.guest.handle(self.clock.now(), input);
    }

    /// The source's address.
    pub(super) fn source(&self) -> Option<IpAddr> {
        Some(self.stream.peer()?.ip().to_canonical())
    }

    /// Returns the address and port of the source that this end is connected to.
    pub(super) fn source_end(&self) -> Option<SocketAddr> {
        Some(SocketAddr::new(self.source()?, self.stream.peer()?.port()))
    }

    /// Says a word, if there is still one to hear it.
    pub(super) fn say(&mut self, control: &Control<'_>) {
        if !self.gone {
            let sent = self.stream.send(control);
            self.note(sent);
        }
    }

    /// This end is at work and lives: the source hears of it now and then.
    pub(super) fn sign(&mut self) {
        let now = self.clock.now();
        if now.since(self.signed_at) >= SIGN_INTERVAL {
            self.signed_at = now;
            self.say(&Control::Alive);
        }
    }

    /// This end cannot go on: the source is told, unless it knows.
    pub(super) fn fail(&mut self, error: &TransferError) {
        self.handle(GuestInput::Failed(error.to_string()));
        while self.poll().is_some() {}
    }

    /// Sends what waits and reads what has come. The connection's end counts after its last frame: see
    /// [`Link::note_end`].
    pub(super) fn fill(&mut self) {
        if !self.gone {
            let flushed = self.stream.flush();
            let filled = self.stream.fill().map(drop);
            self.ended = flushed.and(filled).err().map(gone);
        }
    }

    /// The next frame; the machine has heard it.
    pub(super) fn next_frame(&mut self) -> Option<Control<'_>> {
        if self.gone {
            return None;
        }
        match self.stream.next_frame() {
            Ok(Some(control)) => {
                self.guest.handle(self.clock.now(), GuestInput::Frame(&control));
                Some(control)
            }
            Ok(None) => None,
            Err(error) => {
                self.ended.get_or_insert(gone(error));
                None
            }
        }
    }

    /// All frames that had come are taken: if the connection has ended, that counts now.
    pub(super) fn note_end(&mut self) {
        if let Some(how) = self.ended.take() {
            self.end(how);
        }
    }

    fn note(&mut self, sent: Result<(), FrameError>) {
        if let Err(error) = sent {
            self.end(gone(error));
        }
    }

    fn end(&mut self, how: Gone) {
        if !std::mem::replace(&mut self.gone, true) {
            self.handle(GuestInput::Gone(how));
        }
    }

    /// Returns the descriptor to wait on; none where the connection has ended.
    pub(super) fn descriptor(&self) -> Option<PollFd<'_>> {
        let writing = if self.stream.queued() > 0 { PollFlags::OUT } else { PollFlags::empty() };
        (!self.gone).then(|| PollFd::from_borrowed_fd(self.stream.as_fd(), PollFlags::IN | writing))
    }
}

/// Connects to a source, which has to be the one that is expected.
pub(super) fn connect(
    address: SocketAddr,
    within: polycast_types::Duration,
    (security, expected): (Option<&Security>, &Expected),
    cancel: &AtomicBool,
) -> Result<FrameStream, TransferError> {
    let within = Duration::from_nanos(within.0);
    let ends = || cancel.load(Ordering::Relaxed);
    FrameStream::connect_unless(address, within, (security, expected), &ends).map_err(|error| match error {
        FrameError::Io(_) if ends() => TransferError::Cancelled,
        FrameError::Io(source) => TransferError::Unreachable { address, source },
        error => TransferError::Unusable(error.to_string()),
    })
}

/// A session that has ended before the object was there, as an error of the transfer.
pub(super) fn error_of(end: End, verified: u64, total: u64) -> TransferError {
    let reason = match end {
        End::Done => unreachable!("a session that ends well is no error"),
        End::Refused(reason) if verified > 0 => return TransferError::Ended { verified, total, reason },
        End::Refused(words) => return TransferError::Refused(words),
        End::NoAnswer(span) => return TransferError::NoAnswer(span),
        End::Lost(Gone::Foreign(error)) => return TransferError::Protocol(error),
        End::Failed(words) => return TransferError::Unusable(words),
        End::Contradicts(why) => return why.into(),
        End::Lost(Gone::Closed) => "the connection was closed".to_string(),
        // Nothing was said yet.
        End::Lost(Gone::Broken(words)) if total == 0 => return TransferError::Unusable(words),
        End::Lost(Gone::Broken(words)) => words,
        End::Silent(span) => format!("no sign of life for {span}"),
    };
    TransferError::SourceLost { verified, total, reason }
}
