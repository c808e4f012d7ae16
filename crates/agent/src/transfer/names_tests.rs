//! An end that shows a certificate is a receiver by a name in it, and by no other.

use super::session_tests::{hello, start_as};
use super::{Options, Sealing};
use polycast_net::frames::FrameStream;
use polycast_net::tls::{Security, TlsFiles};
use polycast_types::Duration;
use polycast_wire::control::Control;
use rcgen::{BasicConstraints, CertificateParams, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair};
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::time::Duration as Span;
use tempfile::TempDir;

/// Members of one cluster, each with a certificate for its name.
fn members<const N: usize>(names: [&str; N]) -> [(TempDir, Security); N] {
    let mut params = CertificateParams::default();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let key = KeyPair::generate().unwrap();
    let pem = params.self_signed(&key).unwrap().pem();
    let issuer = Issuer::new(params, key);
    names.map(|name| {
        let folder = tempfile::tempdir().unwrap();
        let [ca, cert, key] = ["ca", "cert", "key"].map(|file| folder.path().join(file));
        let mut params = CertificateParams::new(vec![name.to_string()]).unwrap();
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

/// The first frame of the answer that is no ALIVE: REFUSE by its sentence.
fn answer(stream: &mut FrameStream) -> String {
    loop {
        let came = match stream.next_frame().unwrap() {
            Some(Control::Refuse(why)) => return why.to_string(),
            Some(Control::Welcome(_)) => return "WELCOME".into(),
            Some(_) => true,
            None => false,
        };
        if !came && !stream.fill().unwrap() {
            stream.wait(Span::from_secs(5)).unwrap();
        }
    }
}

/// A member that takes another's name has no place, and the report does not say that no receiver came.
#[test]
fn a_receiver_has_the_name_in_its_certificate() {
    let [(_source, source), (_a, a), (_c, c)] = members(["source", "a", "c"]);
    for pulled in [false, true] {
        let options = Options {
            sealing: Sealing::By(source.clone()),
            join_timeout: Duration::from_secs(2),
            ..Options::default()
        };
        let running = start_as(pulled, vec![7; 5_000], options);
        let come = |as_who: &Security, name: &str| {
            let mut stream = FrameStream::connect(running.address, Span::from_secs(5), Some(as_who)).unwrap();
            let words = hello(running.handle, name);
            stream.send(&Control::parse(&words).unwrap()).unwrap();
            let said = answer(&mut stream);
            (stream, said)
        };
        let (_, refused) = come(&c, "b");
        assert!(refused.contains("the certificate of 'b' is for 'c'"), "{refused}");
        let (joined, said) = come(&a, "a");
        assert_eq!(said, "WELCOME");
        drop(joined);
        let report = running.thread.join().expect("no panic").unwrap();
        let b = report.receivers.iter().find(|receiver| receiver.name == "b").unwrap();
        let error = b.error.as_deref().unwrap_or_default();
        assert!(
            error.contains("one that came as 'b' was turned away: the certificate of 'b' is for 'c'"),
            "{error}"
        );
    }
}
