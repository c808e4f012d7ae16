//! A transfer's handle is in clear in every packet: who fetches by it shows a ticket, too.

use super::names_tests::{come, connect, members};
use super::session_tests::{patient, start_over};
use super::{Options, Path, Sealing};
use polycast_net::frames::FrameStream;
use polycast_net::seal::Secret;
use polycast_net::tls::{Binding, Security};
use polycast_testing::HANG;
use polycast_types::Handle;
use polycast_wire::control::{Control, Hash, Overlay, SealSecret};

/// The first of these frames that is something to `take`; `None` where the connection ends before.
fn first<T>(stream: &mut FrameStream, take: impl Fn(&Control<'_>) -> Option<T>) -> Option<T> {
    loop {
        let came = match stream.next_frame().ok()? {
            Some(frame) => match take(&frame) {
                Some(taken) => return Some(taken),
                None => true,
            },
            None => false,
        };
        if !came && !stream.fill().ok()? {
            stream.wait(HANG).ok()?;
        }
    }
}

/// Returns true if ENTER with this entry brings a group, with the ticket that `make` makes of the
/// connection's binding.
fn fetches(
    (address, handle, entry): (std::net::SocketAddr, Handle, u64),
    as_who: &Security,
    make: impl Fn(Binding) -> Hash,
) -> bool {
    let mut stream = connect(address, as_who);
    stream.shake_hands(HANG).unwrap();
    let ticket = make(stream.binding().expect("it is sealed"));
    stream.send(&Control::Overlay(Overlay::Enter { handle, ticket, entry, have: Vec::new() })).unwrap();
    first(&mut stream, |frame| match frame {
        Control::Group { .. } => Some(true),
        Control::Refuse(_) => Some(false),
        _ => None,
    })
    .unwrap_or(false)
}

#[test]
fn only_who_takes_part_fetches() {
    let [(_source, source), (_a, a), (_b, b), (_c, c)] = members(["source,a,b", "a", "b", "c"]);
    let options = Options { sealing: Sealing::By(source), ..patient() };
    let running = start_over(Path::Chain, vec![7; 600_000], options);
    let mut receivers = [(&a, "a"), (&b, "b")].map(|(security, name)| {
        let (mut stream, said) = come(&running, security, name).unwrap();
        assert_eq!(said, "WELCOME");
        let secret = first(&mut stream, |frame| match frame {
            Control::Seal(SealSecret(secret)) => Some(Secret::new(*secret)),
            _ => None,
        });
        (stream, secret.expect("it is sealed"))
    });
    for (stream, _) in &mut receivers {
        stream.send(&Control::Have(Vec::new())).unwrap();
    }
    let secret = receivers[0].1.clone();
    let entry = first(&mut receivers[0].0, |frame| match frame {
        Control::Overlay(Overlay::Candidates { entry, .. }) => Some(*entry),
        _ => None,
    });
    // A receiver's entry: what decides is the ticket alone.
    let at = (running.address, running.handle, entry.expect("there is no data channel"));
    // One that is no receiver hears the handle, and has a certificate.
    assert!(!fetches(at, &c, |_| [0; 32]), "no ticket");
    assert!(!fetches(at, &c, |binding| Secret::new([5; 32]).ticket(&binding)), "of another transfer");
    // What was shown on one connection is nothing on another.
    let mut other = connect(running.address, &a);
    other.shake_hands(HANG).unwrap();
    let replayed = secret.ticket(&other.binding().unwrap());
    assert!(!fetches(at, &a, |_| replayed), "of another connection");
    // Each group is given once: up to here none was.
    assert!(fetches(at, &a, |binding| secret.ticket(&binding)), "a receiver may");
    running.cancel.store(true, std::sync::atomic::Ordering::Relaxed);
    let _ = running.thread.join().expect("no panic");
}
