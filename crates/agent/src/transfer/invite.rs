//! Calls of a source's agent to the receivers' agents, to invite them into a transfer.

use super::clock::Clock;
use polycast_net::frames::{FrameError, FrameStream};
use polycast_net::permit::KeptPermit;
use polycast_net::tls::{Expected, Security};
use polycast_types::{Handle, ObjectId, Printable};
use polycast_wire::control::{Control, Delta, Hash};
use polycast_wire::permit::ShownPermit;
use std::net::SocketAddr;
use std::time::Duration;

/// Time that the source waits for an agent's answer, and again after each sign that the agent is about to
/// give one.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(5);
/// Limit on the whole wait.
const ANSWERED_WITHIN: Duration = Duration::from_secs(75);

/// An invitation to a transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Invitation {
    /// The source's control listener.
    pub source: SocketAddr,
    /// The transfer.
    pub handle: Handle,
    /// The object.
    pub object: ObjectId,
    /// Set if it is pulled over trees, by way of the agent's node.
    pub pulled: bool,
    /// The object's length.
    pub object_len: u64,
    /// Its root hash, where the source knows it.
    pub root: Option<Hash>,
    /// Delta that is sent, and that makes the object: length and root hash are the delta's.
    pub delta: Option<Delta>,
}

impl Invitation {
    /// Reads an INVITE; `None` for any other frame.
    #[must_use]
    pub fn of(frame: &Control<'_>) -> Option<Self> {
        match frame {
            &Control::Invite {
                address, port, handle, object, pulled, object_len, root, ref delta, ..
            } => {
                let (source, delta) = ((address, port).into(), delta.as_deref().copied());
                Some(Invitation { source, handle, object, pulled, object_len, root, delta })
            }
            _ => None,
        }
    }
}

/// The permit that INVITE shows, if it shows one.
pub(crate) fn permit_of(frame: &Control<'_>) -> Option<KeptPermit> {
    match frame {
        Control::Invite { permit, .. } => permit.as_ref().map(KeptPermit::of),
        _ => None,
    }
}

/// Tells a source that this agent joins, or why it does not.
///
/// # Errors
/// The source went away.
pub(crate) fn answer(stream: &mut FrameStream, decision: Result<(), &str>) -> Result<(), FrameError> {
    stream.send(&match decision {
        Ok(()) => Control::Joining,
        Err(reason) => Control::Refuse(reason),
    })?;
    stream.finish();
    Ok(())
}

/// Reason why an agent does not join.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum NotJoining {
    /// It cannot be reached.
    Unreachable(String),
    /// It does not want to, or may not.
    Refuses(String),
}

/// Invites the agent of this name at `address`; an error says why it does not join. `waits` is called once,
/// where the agent says that it takes its time.
pub(crate) fn invite(
    (name, address): (&str, SocketAddr),
    invitation: &Invitation,
    permit: Option<ShownPermit<'_>>,
    security: Option<&Security>,
    waits: &mut dyn FnMut(),
) -> Result<(), NotJoining> {
    let failed = |error: FrameError| {
        NotJoining::Unreachable(format!("its agent at {address} cannot be reached: {error}"))
    };
    let source = invitation.source.ip();
    if address.is_ipv4() != source.is_ipv4() {
        let family = |is_v4: bool| if is_v4 { "IPv4" } else { "IPv6" };
        let (its, own) = (family(address.is_ipv4()), family(source.is_ipv4()));
        let why = format!(
            "its agent has {its} ({}), and the source {own} ({source}): give both addresses of one family (--interface)",
            address.ip()
        );
        return Err(NotJoining::Refuses(why));
    }
    let expected = Expected::Member(name.to_string());
    let mut stream = FrameStream::connect(address, TIMEOUT, security, &expected).map_err(failed)?;
    stream
        .send(&Control::Invite {
            address: invitation.source.ip(),
            port: invitation.source.port(),
            handle: invitation.handle,
            object: invitation.object,
            pulled: invitation.pulled,
            object_len: invitation.object_len,
            root: invitation.root,
            permit,
            delta: invitation.delta.map(Box::new),
        })
        .map_err(failed)?;
    let pick = |frame: &Control<'_>| match frame {
        Control::Joining => Some(Ok(())),
        Control::Refuse(reason) => Some(Err(NotJoining::Refuses(Printable(reason).to_string()))),
        _ => None,
    };
    await_frame(&mut stream, pick, waits).map_err(failed)?
}

/// Waits for the first frame that is no sign of life, and reads it with `pick`; the first sign of life is
/// told.
fn await_frame<T>(
    stream: &mut FrameStream,
    pick: impl Fn(&Control<'_>) -> Option<T>,
    waits: &mut dyn FnMut(),
) -> Result<T, FrameError> {
    let (clock, mut heard_s) = (Clock::start(), 0.0);
    while clock.seconds() < (heard_s + TIMEOUT.as_secs_f64()).min(ANSWERED_WITHIN.as_secs_f64()) {
        let open = stream.fill();
        match stream.next_frame()? {
            Some(Control::Alive) => {
                if heard_s == 0.0 {
                    waits();
                }
                heard_s = clock.seconds();
                continue;
            }
            Some(frame) => {
                return pick(&frame).ok_or(FrameError::Wire(polycast_wire::WireError::Malformed));
            }
            None => open.map(drop)?,
        }
        stream.wait(Duration::from_millis(100))?;
    }
    Err(FrameError::Io(std::io::ErrorKind::TimedOut.into()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write as _;
    use std::net::TcpListener;

    fn exchange(decision: Result<(), String>) -> (Result<(), NotJoining>, Invitation) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let agent = std::thread::spawn(move || {
            let mut stream = FrameStream::stranger(listener.accept().unwrap().0, None).unwrap();
            let invitation = await_frame(&mut stream, Invitation::of, &mut || {}).unwrap();
            let decision = decision.as_ref().map(drop).map_err(String::as_str);
            // It takes its time, and says so.
            (0..3).for_each(|_| stream.send(&Control::Alive).unwrap());
            answer(&mut stream, decision).unwrap();
            invitation
        });
        let invitation = Invitation {
            source: "127.0.0.1:7".parse().unwrap(),
            handle: Handle(3),
            object: ObjectId::default(),
            pulled: true,
            object_len: 5,
            root: Some([6; 32]),
            delta: Some(Delta { base: [7; 32], root: [8; 32], len: 9 }),
        };
        let mut waits = 0;
        let told = invite(("b", address), &invitation, None, None, &mut || waits += 1);
        assert_eq!(waits, 1, "however often it says that it takes its time");
        (told, agent.join().unwrap())
    }

    /// Whatever an agent answers, the source goes on with the others.
    #[test]
    fn an_agent_that_says_too_much_is_one_that_does_not_join() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let agent = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let text = vec![b'x'; 65_530];
            stream.write_all(&[&65_533u32.to_be_bytes()[..], &[3, 0xff, 0xfa], &text].concat()).unwrap();
            stream
        });
        let source = "127.0.0.1:7".parse().unwrap();
        let (handle, object) = (Handle(3), ObjectId::default());
        let invitation =
            Invitation { source, handle, object, pulled: false, object_len: 1, root: None, delta: None };
        let why = invite(("b", address), &invitation, None, None, &mut || {}).unwrap_err();
        let said = |why: &str| why.ends_with("cannot be reached: malformed packet");
        assert!(matches!(&why, NotJoining::Unreachable(why) if said(why)), "{why:?}");
        drop(agent.join().unwrap());
    }

    #[test]
    fn an_agent_joins_or_says_why_not() {
        let (told, got) = exchange(Ok(()));
        assert_eq!(told, Ok(()));
        assert_eq!((got.handle, got.pulled), (Handle(3), true));
        assert_eq!((got.object_len, got.root), (5, Some([6; 32])));
        assert_eq!(got.delta, Some(Delta { base: [7; 32], root: [8; 32], len: 9 }));
        let (told, _) = exchange(Err("the store is full".into()));
        assert_eq!(told, Err(NotJoining::Refuses("the store is full".into())));
    }
}
