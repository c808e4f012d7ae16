//! How a source's agent calls the receivers' agents into a transfer.

use super::clock::Clock;
use polycast_net::frames::{FrameError, FrameStream};
use polycast_types::{Handle, ObjectId};
use polycast_wire::control::{Control, Hash};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

/// How long either end waits for the other's one frame.
const TIMEOUT: Duration = Duration::from_secs(5);

/// An invitation to a transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Invitation {
    /// The source's control listener.
    pub source: SocketAddr,
    /// The transfer.
    pub handle: Handle,
    /// The object.
    pub object: ObjectId,
    /// Whether it is pulled over trees, by way of the agent's node.
    pub pulled: bool,
    /// The object's length.
    pub object_len: u64,
    /// Its root hash, where the source knows it.
    pub root: Option<Hash>,
}

/// Reads an invitation from a connection to an agent's control listener, asks `decide` whether to join, and
/// answers. Gives the invitation if the agent joins.
///
/// # Errors
/// The other end is not a source of this protocol version, or went away.
pub fn accept_invite(
    stream: TcpStream,
    decide: impl FnOnce(&Invitation) -> Result<(), String>,
) -> Result<Option<Invitation>, FrameError> {
    let mut stream = FrameStream::new(stream)?;
    let invitation = match await_frame(&mut stream, |frame| match frame {
        Control::Invite { address, port, handle, object, pulled, object_len, root } => Some(Invitation {
            source: (*address, *port).into(),
            handle: *handle,
            object: *object,
            pulled: *pulled,
            object_len: *object_len,
            root: *root,
        }),
        _ => None,
    }) {
        Ok(invitation) => invitation,
        Err(error) => {
            // A peer of another version is told so before the connection ends.
            let _ = stream.send(&Control::Refuse(&error.to_string()));
            stream.finish();
            return Err(error);
        }
    };
    let decision = decide(&invitation);
    let answer = match &decision {
        Ok(()) => Control::Joining,
        Err(reason) => Control::Refuse(reason),
    };
    stream.send(&answer)?;
    stream.finish();
    Ok(decision.is_ok().then_some(invitation))
}

/// Invites the agent at `address`; an error says why it does not join.
pub(crate) fn invite(address: SocketAddr, invitation: &Invitation) -> Result<(), String> {
    let SocketAddr::V4(source) = invitation.source else { return Err("sources have IPv4 addresses".into()) };
    let failed = |error: FrameError| format!("its agent at {address} cannot be reached: {error}");
    let mut stream = FrameStream::connect(address, TIMEOUT).map_err(|e| failed(e.into()))?;
    stream
        .send(&Control::Invite {
            address: source.ip().octets(),
            port: source.port(),
            handle: invitation.handle,
            object: invitation.object,
            pulled: invitation.pulled,
            object_len: invitation.object_len,
            root: invitation.root,
        })
        .map_err(failed)?;
    let answer = await_frame(&mut stream, |frame| match frame {
        Control::Joining => Some(Ok(())),
        Control::Refuse(reason) => Some(Err((*reason).to_string())),
        _ => None,
    });
    answer.map_err(failed)?
}

/// Waits for the first frame and reads it with `pick`.
fn await_frame<T>(
    stream: &mut FrameStream,
    pick: impl Fn(&Control<'_>) -> Option<T>,
) -> Result<T, FrameError> {
    let clock = Clock::start();
    while clock.seconds() < TIMEOUT.as_secs_f64() {
        let open = stream.fill();
        if let Some(frame) = stream.next_frame()? {
            return pick(&frame).ok_or(FrameError::Wire(polycast_wire::WireError::Malformed));
        }
        open?;
        stream.wait(Duration::from_millis(100))?;
    }
    Err(FrameError::Io(std::io::ErrorKind::TimedOut.into()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    fn exchange(decision: Result<(), String>) -> (Result<(), String>, Option<Invitation>) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let agent =
            std::thread::spawn(move || accept_invite(listener.accept().unwrap().0, |_| decision).unwrap());
        let invitation = Invitation {
            source: "127.0.0.1:7".parse().unwrap(),
            handle: Handle(3),
            object: ObjectId::default(),
            pulled: true,
            object_len: 5,
            root: Some([6; 32]),
        };
        (invite(address, &invitation), agent.join().unwrap())
    }

    #[test]
    fn an_agent_joins_or_says_why_not() {
        let (told, got) = exchange(Ok(()));
        assert_eq!(told, Ok(()));
        let got = got.unwrap();
        assert_eq!((got.handle, got.pulled), (Handle(3), true));
        assert_eq!((got.object_len, got.root), (5, Some([6; 32])));
        let (told, got) = exchange(Err("the store is full".into()));
        assert_eq!(told, Err("the store is full".into()));
        assert_eq!(got, None);
    }
}
