//! An end that shows a certificate is a receiver by a name in it, and by no other.

use super::session_tests::{Source, hello, patient, start_as};
use super::{Called, Options, Permitted, ReceiverSpec, Rendezvous, Sealing, Sink, receive};
use polycast_net::frames::FrameStream;
use polycast_net::tls::{Expected, Security, TlsFiles};
use polycast_testing::HANG;
use polycast_types::{Duration, Handle, ObjectId};
use polycast_wire::control::Control;
use polycast_wire::control::NOWHERE;
use rcgen::{BasicConstraints, CertificateParams, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair};
use std::fs::{self, Permissions};
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::os::unix::fs::PermissionsExt;
use std::sync::Arc;
use tempfile::TempDir;

/// Members of one cluster, each with a certificate for its name, or for several with commas between them.
pub(super) fn members<const N: usize>(names: [&str; N]) -> [(TempDir, Security); N] {
    let mut params = CertificateParams::default();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let key = KeyPair::generate().unwrap();
    let pem = params.self_signed(&key).unwrap().pem();
    let issuer = Issuer::new(params, key);
    names.map(|name| {
        let folder = tempfile::tempdir().unwrap();
        let [ca, cert, key] = ["ca", "cert", "key"].map(|file| folder.path().join(file));
        let mut params =
            CertificateParams::new(name.split(',').map(String::from).collect::<Vec<_>>()).unwrap();
        params.extended_key_usages =
            vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        let own = KeyPair::generate().unwrap();
        fs::write(&ca, &pem).unwrap();
        fs::write(&cert, params.signed_by(&own, &issuer).unwrap().pem()).unwrap();
        fs::write(&key, own.serialize_pem()).unwrap();
        fs::set_permissions(&key, Permissions::from_mode(0o600)).unwrap();
        (folder, Security::files(TlsFiles { ca, cert, key, crl: None }).unwrap())
    })
}

/// The first frame of the answer that is no ALIVE, REFUSE by its sentence; `None` where the connection ends
/// before.
fn answer(stream: &mut FrameStream) -> Option<String> {
    loop {
        let came = match stream.next_frame().ok()? {
            Some(Control::Refuse(why)) => return Some(why.to_string()),
            Some(Control::Welcome(_)) => return Some("WELCOME".into()),
            Some(_) => true,
            None => false,
        };
        if !came && !stream.fill().ok()? {
            stream.wait(HANG).ok()?;
        }
    }
}

pub(super) fn connect(address: SocketAddr, as_who: &Security) -> FrameStream {
    FrameStream::connect(address, HANG, Some(as_who), &Expected::Member("source".into())).unwrap()
}

/// Comes to a source by this name; gives the connection, and what it says.
pub(super) fn come(source: &Source, as_who: &Security, name: &str) -> Option<(FrameStream, String)> {
    let mut stream = connect(source.address, as_who);
    stream.send(&Control::parse(&hello(source.handle, name)).unwrap()).ok()?;
    let said = answer(&mut stream)?;
    Some((stream, said))
}

/// One that comes as "b" and is "c", and then "a": why "b" has failed at the end of a source that waits so
/// long for it. `None` where they did not get a word with it.
fn misnamed(pulled: bool, join_timeout: Duration, [source, a, c]: [&Security; 3]) -> Option<String> {
    let options = Options { sealing: Sealing::By(source.clone()), join_timeout, ..patient() };
    let running = start_as(pulled, vec![7; 5_000], options);
    let came = come(&running, c, "b").and_then(|(_, refused)| Some((refused, come(&running, a, "a")?.1)));
    let outcome = running.thread.join().expect("no panic");
    let (refused, said) = came?;
    assert!(refused.contains("the certificate of 'b' is for 'c'"), "{refused}");
    assert_eq!(said, "WELCOME");
    let report = outcome.unwrap();
    let b = report.receivers.iter().find(|receiver| receiver.name == "b").unwrap();
    Some(b.error.clone().unwrap_or_default())
}

/// A member that takes another's name has no place, and the report does not say that no receiver came.
#[test]
fn a_receiver_has_the_name_in_its_certificate() {
    // The agents that the source calls show its own certificate.
    let [(_source, source), (_a, a), (_c, c)] = members(["source,a,b", "a", "c"]);
    for pulled in [false, true] {
        // The source waits until the end for one that never comes: no longer than the others need on this
        // machine.
        let error = [1, 4, 16, 64]
            .into_iter()
            .find_map(|seconds| misnamed(pulled, Duration::from_secs(seconds), [&source, &a, &c]));
        let error = error.expect("both get a word with a source");
        assert!(
            error.contains("one that came as 'b' was turned away: the certificate of 'b' is for 'c'"),
            "{error}"
        );
    }
}

/// Returns the error of a receiver that its permit sends to "source", where another member has taken that
/// address, and whether that member received a frame.
fn misled(receiver: &Security, member: &Security) -> (String, bool) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let address = listener.local_addr().unwrap();
    let member = member.clone();
    let answering = std::thread::spawn(move || {
        let mut stream = FrameStream::stranger(listener.accept().unwrap().0, Some(member)).unwrap();
        // Whether HELLO comes.
        while let Ok(frame) = stream.next_frame().map(|frame| frame.is_some()) {
            if frame || stream.fill().is_err() {
                return frame;
            }
            stream.wait(HANG).unwrap();
        }
        false
    });
    let folder = tempfile::tempdir().unwrap();
    let permitted = Permitted { source: "source".into(), name: "object".into(), channel: NOWHERE };
    let called =
        Called { object: ObjectId::default(), object_len: 5, root: None, permitted: Some(permitted) };
    let spec = ReceiverSpec {
        name: "a".into(),
        rendezvous: Rendezvous::At(address, Handle(1)),
        called: Some(called),
        location: polycast_types::Location::default(),
        interface: Ipv4Addr::LOCALHOST.into(),
        sink: Sink::Raw(folder.path().join("object")),
        options: Options { sealing: Sealing::By(receiver.clone()), ..patient() },
        cancel: Arc::default(),
    };
    let said = receive(spec, &mut |_| {}).unwrap_err().to_string();
    (said, answering.join().unwrap())
}

/// A member that has taken the source's address is not the source: it hears no frame, and none of its bytes
/// come.
#[test]
fn a_source_has_the_name_in_the_permit() {
    let [(_a, a), (_x, x)] = members(["a", "x"]);
    let (said, has_heard) = misled(&a, &x);
    assert!(said.contains("the certificate of 'source' is for 'x'"), "{said}");
    assert!(!has_heard);
}
