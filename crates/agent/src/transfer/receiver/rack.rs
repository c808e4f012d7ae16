//! A receiver's place in its rack (Orca appendix A.4): where several share one, the source hears one of them.
//! That one is the speaker; the others are connected to it, and speak for themselves when it is gone.

use super::{FrameError, FrameStream, Run, SocketAddr, Time, ticket_for};
use polycast_net::tls::Expected;
use polycast_protocol::push::feedback::{Feedback, FeedbackConfig, FeedbackInput, FeedbackOutput};
use polycast_wire::WireError;
use polycast_wire::control::Control;
use rustix::event::{PollFd, PollFlags};
use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::AsFd as _;

/// A speaker is in the same rack: it is there at once, or not at all.
const CONNECT_WITHIN: std::time::Duration = std::time::Duration::from_millis(250);

/// The place.
pub(super) enum Rack {
    /// It speaks for itself.
    Alone,
    /// Another one speaks for it.
    Member {
        /// The connection to that one.
        speaker: Box<FrameStream>,
    },
    /// It speaks for others.
    Speaker(Box<Speaker>),
}

/// State of a speaker.
pub(super) struct Speaker {
    own: u32,
    /// The receivers that may come.
    expected: BTreeSet<u32>,
    feedback: Feedback,
    members: BTreeMap<u32, FrameStream>,
}

impl Rack {
    /// Returns the descriptors that may have something to read or, where something waits, room to write.
    pub(super) fn descriptors(&self) -> Vec<PollFd<'_>> {
        let descriptor = |stream| {
            let stream: &FrameStream = stream;
            let writing = if stream.queued() > 0 { PollFlags::OUT } else { PollFlags::empty() };
            PollFd::from_borrowed_fd(stream.as_fd(), PollFlags::IN | writing)
        };
        match self {
            Rack::Alone => Vec::new(),
            Rack::Member { speaker } => vec![descriptor(speaker)],
            Rack::Speaker(speaker) => speaker.members.values().map(descriptor).collect(),
        }
    }

    pub(super) fn deadline(&self) -> Option<Time> {
        match self {
            Rack::Speaker(speaker) => speaker.feedback.deadline(),
            Rack::Alone | Rack::Member { .. } => None,
        }
    }
}

impl Run {
    /// The source says that this receiver may speak for others.
    pub(super) fn gather(&mut self, own: u32, members: &[u32]) {
        let (feedback, expected) =
            (Feedback::new(FeedbackConfig::new(own)), members.iter().copied().collect());
        self.rack = Rack::Speaker(Box::new(Speaker { own, expected, feedback, members: BTreeMap::new() }));
    }

    /// The source says which receiver speaks for this one.
    pub(super) fn follow(&mut self, member: u32, address: SocketAddr, expected: &Expected) {
        self.rack = Rack::Alone;
        let connected = FrameStream::connect(address, CONNECT_WITHIN, self.security.as_ref(), expected);
        let said = connected.and_then(|mut stream| {
            let ticket = ticket_for(&mut stream, self.secret.as_ref(), CONNECT_WITHIN)?;
            stream.send(&Control::Member { handle: self.handle, member, ticket })?;
            Ok(stream)
        });
        match said {
            Ok(speaker) => self.rack = Rack::Member { speaker: Box::new(speaker) },
            // The source hears this end as it hears any other.
            Err(error) => tracing::info!(%address, %error, "the rack's speaker cannot be reached"),
        }
    }

    /// Leaves the rack: others that are connected here notice that their connection ends.
    pub(super) fn leave_rack(&mut self) {
        self.rack = Rack::Alone;
    }

    /// Says PROGRESS or PTCH_REQ by way of the rack's speaker, if there is one, and everything else to the
    /// source.
    pub(super) fn say_in_rack(&mut self, control: &Control<'static>) {
        let now = self.clock.now();
        match &mut self.rack {
            Rack::Member { speaker } if is_for_rack(control) => {
                if speaker.send(control).is_ok() {
                    return;
                }
                tracing::info!("the rack's speaker is gone");
                self.rack = Rack::Alone;
            }
            Rack::Speaker(speaker) if is_for_rack(control) => {
                let member = speaker.own;
                speaker.feedback.handle(now, FeedbackInput::Said { member, control });
                self.drain_rack(now);
                return;
            }
            _ => {}
        }
        self.link.say(control);
    }

    /// Takes in what the rack's receivers say, and passes it on.
    pub(super) fn rack_turn(&mut self, now: Time, readable: bool) {
        match &mut self.rack {
            Rack::Alone => {
                // This receiver speaks for no rack: those that come to it are sent away.
                drop(self.served.newcomers());
            }
            Rack::Member { speaker } => {
                if readable && let Err(error) = listen(speaker) {
                    tracing::info!(%error, "this end leaves its rack's speaker, and speaks for itself");
                    self.rack = Rack::Alone;
                }
            }
            Rack::Speaker(speaker) => {
                for (member, stream) in self.served.newcomers() {
                    if speaker.expected.contains(&member) {
                        speaker.members.insert(member, stream);
                    }
                }
                if readable {
                    speaker.hear(now);
                }
                self.drain_rack(now);
            }
        }
    }

    fn drain_rack(&mut self, now: Time) {
        let mut said = Vec::new();
        if let Rack::Speaker(speaker) = &mut self.rack {
            while let Some(output) = speaker.feedback.poll(now) {
                match output {
                    FeedbackOutput::ToSource(control) => said.push(control),
                    FeedbackOutput::PutOut { member } => {
                        tracing::info!(member, "speaks for itself: it holds the rack back");
                        speaker.members.remove(&member);
                    }
                }
            }
        }
        said.iter().for_each(|control| self.link.say(control));
    }
}

impl Speaker {
    /// Reads what receivers of the rack say; those that are gone have left.
    fn hear(&mut self, now: Time) {
        let mut gone = Vec::new();
        for (&member, stream) in &mut self.members {
            let filled = stream.flush().and_then(|()| stream.fill().map(drop));
            loop {
                match stream.next_frame() {
                    Ok(Some(control)) => {
                        self.feedback.handle(now, FeedbackInput::Said { member, control: &control });
                    }
                    Ok(None) if filled.is_ok() => break,
                    Ok(None) | Err(_) => {
                        gone.push(member);
                        break;
                    }
                }
            }
        }
        for member in gone {
            self.members.remove(&member);
            self.feedback.handle(now, FeedbackInput::Left { member });
        }
    }
}

/// Reads what comes from the rack's speaker. That one says nothing: words would only gather here.
///
/// # Errors
/// The connection has ended, or something has come.
fn listen(speaker: &mut FrameStream) -> Result<(), FrameError> {
    speaker.flush()?;
    match speaker.fill()? {
        true => Err(FrameError::Wire(WireError::Malformed)),
        false => Ok(()),
    }
}

fn is_for_rack(control: &Control<'_>) -> bool {
    matches!(control, Control::Progress { .. } | Control::PtchReq(_))
}

#[cfg(test)]
mod tests {
    use super::*;
    use polycast_testing::HANG;
    use std::io::Write as _;
    use std::net::{Ipv4Addr, TcpListener, TcpStream};

    /// Words that are never taken would fill the memory.
    #[test]
    fn a_speaker_that_says_something_is_left() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let mut far = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let mut speaker = FrameStream::new(listener.accept().unwrap().0).unwrap();
        listen(&mut speaker).expect("it is silent");
        let mut alive = Vec::new();
        Control::Alive.emit(&mut alive);
        far.write_all(&alive.repeat(10_000)).unwrap();
        speaker.wait(HANG).unwrap();
        let said = listen(&mut speaker);
        assert!(matches!(said, Err(FrameError::Wire(WireError::Malformed))), "{said:?}");
    }
}
