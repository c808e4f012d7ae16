//! Ends that show certificates, over real connections: which end takes which, and what is said of those that
//! are not taken.

use polycast_net::frames::{FrameError, FrameStream};
use polycast_net::seal::Secret;
use polycast_net::tls::{
    Blocking, Expected, IdentityFiles, Offerer, OffererKey, OtherEnd, PeerNames, Remark, SealError, Security,
    Talk, TlsFiles,
};
use polycast_testing::HANG;
use polycast_wire::control::Control;
use rcgen::{CertificateParams, ExtendedKeyUsagePurpose, KeyPair, SanType, SerialNumber};
use std::fs::{self, Permissions};
use std::io::Write as _;
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

#[path = "common/authority.rs"]
mod authority;

use authority::{Authority, params};

const HOUR: Duration = Duration::from_secs(3_600);

/// Reads a frame; gives the names of the other end, or why there is none.
fn read(stream: &mut FrameStream) -> Result<PeerNames, FrameError> {
    loop {
        if stream.next_frame()?.is_some() {
            return Ok(stream.peer_names());
        }
        if !stream.fill()? {
            stream.wait(HANG).unwrap();
        }
    }
}

/// Lets one end connect to the other one, which has this name; each says a word.
fn meet(
    client: &Security,
    server: &Security,
    name: &str,
) -> (Result<PeerNames, FrameError>, Result<PeerNames, FrameError>) {
    meet_expected(client, server, &Expected::Member(name.to_string()))
}

/// The same where this end is expected.
fn meet_expected(
    client: &Security,
    server: &Security,
    expected: &Expected,
) -> (Result<PeerNames, FrameError>, Result<PeerNames, FrameError>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let server = server.clone();
    let answering = std::thread::spawn(move || {
        let mut stream = FrameStream::stranger(listener.accept().unwrap().0, Some(server)).unwrap();
        let heard = read(&mut stream);
        if heard.is_ok() {
            stream.send(&Control::Alive).unwrap();
        }
        stream.part(HANG);
        heard
    });
    let mut stream = FrameStream::connect(address, HANG, Some(client), expected).unwrap();
    stream.send(&Control::Alive).unwrap();
    let heard = read(&mut stream);
    drop(stream);
    (heard, answering.join().unwrap())
}

fn sealing(outcome: Result<PeerNames, FrameError>) -> SealError {
    match outcome {
        Err(FrameError::Seal(error)) => error,
        other => panic!("{other:?}"),
    }
}

#[test]
fn members_of_one_authority_meet_and_know_each_others_names() {
    let authority = Authority::new();
    let (_a, a) = authority.member("a");
    let folder = tempfile::tempdir().unwrap();
    let mut spiffe = params("b.example.org");
    let uri = "spiffe://example.org/polycast/agent/b";
    spiffe.subject_alt_names.push(SanType::URI(uri.try_into().unwrap()));
    let b = authority.issue(folder.path(), spiffe);
    let (of_b, of_a) = meet(&Security::files(a).unwrap(), &Security::files(b).unwrap(), "b");
    let (of_a, of_b) = (of_a.unwrap(), of_b.unwrap());
    assert_eq!(of_a, PeerNames::Only(vec!["a".into()]));
    assert!(of_b.allow("b") && of_b.allow("b.example.org") && !of_b.allow("a"));
    let said = of_a.check("c").unwrap_err().to_string();
    assert!(said.contains("the certificate of 'c' is for 'a'"), "{said}");
    let shared = Security::shared(&Secret::fresh());
    assert_eq!(meet(&shared, &shared, "b").0.unwrap(), PeerNames::Any);
    assert_eq!(meet_expected(&shared, &shared, &Expected::Sharer).0.unwrap(), PeerNames::Any);
}

/// One that has an offer's secret can take it, and fetch from others that take it; to them it is not the
/// source.
#[test]
fn who_has_an_offers_secret_is_not_its_source() {
    let (secret, key) = (Secret::fresh(), OffererKey::fresh());
    let public = *key.public();
    let source = Security::offered(&secret, &Offerer::Own(key));
    let [a, x] = [0, 1].map(|_| Security::offered(&secret, &Offerer::Other(public)));
    for (end, expected) in [(&source, Expected::Offerer), (&source, Expected::Sharer), (&x, Expected::Sharer)]
    {
        let (client, server) = meet_expected(&a, end, &expected);
        assert!(client.is_ok() && server.is_ok(), "{expected:?}");
    }
    // It makes itself a key, or shows that of all.
    let own = Security::offered(&secret, &Offerer::Own(OffererKey::fresh()));
    for end in [&x, &own] {
        assert_eq!(sealing(meet_expected(&a, end, &Expected::Offerer).0), SealError::OtherKey);
    }
    assert_eq!(sealing(meet_expected(&a, &own, &Expected::Sharer).0), SealError::OtherKey);
    // One that knows the source's key and not the secret is let in nowhere.
    let stranger = Security::offered(&Secret::fresh(), &Offerer::Other(public));
    for end in [&source, &x] {
        assert!(meet_expected(&stranger, end, &Expected::Sharer).1.is_err());
    }
    // Where there is a key file, its holders have no other key.
    let shared = Security::shared(&secret);
    assert!(meet_expected(&shared, &shared, &Expected::Offerer).0.is_ok());
}

#[test]
fn who_is_of_another_authority_is_not_let_in_and_both_hear_why() {
    let (_a, a) = Authority::new().member("a");
    let (_b, b) = Authority::new().member("b");
    let (client, server) = meet(&Security::files(a.clone()).unwrap(), &Security::files(b).unwrap(), "b");
    assert_eq!(sealing(client), SealError::ForeignCertificate);
    let said = sealing(server).to_string();
    assert!(said.contains("no authority that the other end trusts has issued it"), "{said}");

    // One end has a key, and the other one a certificate.
    let (certificate, key) = (Security::files(a).unwrap(), Security::shared(&Secret::fresh()));
    for (client, server) in [(&certificate, &key), (&key, &certificate)] {
        let (client, server) = meet(client, server, "b");
        assert_eq!((sealing(client), sealing(server)), (SealError::OtherKind, SealError::OtherKind));
    }
}

/// A member of the same authority is not the manager, and not another member: nothing is said to it.
#[test]
fn one_that_connects_takes_the_end_that_it_expects_alone() {
    let authority = Authority::new();
    let of = |name: &str| {
        let (folder, files) = authority.member(name);
        (folder, Security::files(files).unwrap())
    };
    let [(_a, a), (_x, x), (_manager, manager)] = ["a", "x", "manager"].map(of);
    let expected = Expected::Manager("manager".into());
    assert!(meet_expected(&a, &manager, &expected).0.is_ok());
    let (client, server) = meet_expected(&a, &x, &expected);
    let said = sealing(client).to_string();
    assert!(said.contains("the other end is no manager: its certificate is for 'x'"), "{said}");
    assert!(matches!(sealing(server), SealError::RefusedCertificate(_)), "it has heard no frame");
    let other = Expected::Manager("head.example.org".into());
    let said = sealing(meet_expected(&a, &manager, &other).0).to_string();
    assert!(said.contains("has the DNS name 'head.example.org'"), "{said}");

    let said = sealing(meet(&a, &x, "b").0).to_string();
    assert!(said.contains("the certificate of 'b' is for 'x'"), "{said}");
    let unnamed = sealing(meet_expected(&a, &x, &Expected::Sharer).0);
    assert_eq!(unnamed, SealError::OtherEnd(OtherEnd::Unnamed));

    // An agent that is called so by its SPIFFE identity is no manager.
    let folder = tempfile::tempdir().unwrap();
    let mut spiffe = params("y");
    let uri = "spiffe://example.org/polycast/agent/manager";
    spiffe.subject_alt_names.push(SanType::URI(uri.try_into().unwrap()));
    let spiffe = Security::files(authority.issue(folder.path(), spiffe)).unwrap();
    let said = sealing(meet_expected(&a, &spiffe, &expected).0).to_string();
    assert!(said.contains("no manager: its certificate is for 'y', 'manager'"), "{said}");
}

/// A manager has the managers' name in its certificate, and an agent has it not.
#[test]
fn a_manager_and_an_agent_begin_with_certificates_of_their_own_kind_only() {
    let authority = Authority::new();
    let own = |params: CertificateParams| {
        let folder = tempfile::tempdir().unwrap();
        let TlsFiles { ca, cert, key, .. } = authority.issue(folder.path(), params);
        let (tls_ca, tls_cert, tls_key) = (Some(ca), Some(cert), Some(key));
        (folder, IdentityFiles { tls_ca, tls_cert, tls_key, ..IdentityFiles::default() })
    };
    let mut both = params("gpu-1");
    both.subject_alt_names.push(SanType::DnsName("manager".try_into().unwrap()));
    let [(_agent, agent), (_manager, manager), (_both, both)] =
        [params("gpu-1"), params("manager"), both].map(own);
    assert!(agent.security_of("gpu-1", "manager").is_ok() && manager.security_of_manager("manager").is_ok());
    let said = both.security_of("gpu-1", "manager").unwrap_err().to_string();
    assert!(said.contains("the certificate of 'gpu-1' is a manager's too"), "{said}");
    assert!(both.security_of("gpu-1", "head").is_ok(), "managers are called otherwise there");
    let said = agent.security_of_manager("manager").unwrap_err().to_string();
    assert!(said.contains("is for 'gpu-1'") && said.contains("the DNS name 'manager' only"), "{said}");
}

/// Both ends of a connection know the same of it, and of another connection between the same two ends
/// something else.
#[tokio::test]
async fn a_connection_is_told_from_all_others() {
    let authority = Authority::new();
    let [(_a, a), (_manager, manager)] = ["a", "manager"].map(|name| authority.member(name));
    let [a, manager] = [a, manager].map(|files| Security::files(files).unwrap());
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let (expected, remark) = (Expected::Manager("manager".into()), Remark::default());
    let mut seen = Vec::new();
    for _ in 0..2 {
        let (near, far) = tokio::join!(Talk::connect(&address, Some(&a), &expected, &remark), async {
            Talk::accept(listener.accept().await.unwrap().0, &manager).await.map_err(|(error, _)| error)
        });
        let [near, far] = [near.unwrap(), far.unwrap()].map(|talk| talk.binding().unwrap());
        assert!(near == far);
        seen.push(near);
    }
    assert!(seen[0] != seen[1]);
}

#[test]
fn a_certificate_with_many_names_is_named_by_some() {
    let authority = Authority::new();
    let folder = tempfile::tempdir().unwrap();
    let mut many = params("h0");
    let more = (1..1_000).map(|n| SanType::DnsName(format!("h{n}").try_into().unwrap()));
    many.subject_alt_names.extend(more);
    let (_a, a) = authority.member("a");
    let many = Security::files(authority.issue(folder.path(), many)).unwrap();
    let said = sealing(meet(&Security::files(a).unwrap(), &many, "b").0).to_string();
    assert!(said.contains("is for 'h0', 'h1', 'h2', 'h3' and 996 more") && said.len() < 300, "{said}");
}

#[test]
fn a_certificate_that_no_end_accepts_ends_its_owner_in_a_sentence() {
    let authority = Authority::new();
    let folder = tempfile::tempdir().unwrap();
    let now = SystemTime::now();
    let at = |from: SystemTime, to: SystemTime| {
        let mut params = params("a");
        (params.not_before, params.not_after) = (from.into(), to.into());
        params
    };
    let mut only_server = params("a");
    only_server.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    for (params, says) in [
        (at(now - 3 * HOUR, now - HOUR), "it was valid until"),
        (at(now + HOUR, now + 3 * HOUR), "set the clocks of both machines"),
        (only_server, "serverAuth and clientAuth"),
    ] {
        let said = Security::files(authority.issue(folder.path(), params)).unwrap_err().to_string();
        assert!(said.contains(says) && !said.contains('\n'), "{said}");
    }
    let files = authority.issue(folder.path(), params("a"));
    let said = || Security::files(files.clone()).unwrap_err().to_string();
    fs::write(&files.ca, Authority::new().pem).unwrap();
    assert!(said().contains("it was not issued by an authority in --tls-ca"), "{}", said());
    fs::write(&files.ca, &authority.pem).unwrap();
    fs::write(&files.key, KeyPair::generate().unwrap().serialize_pem()).unwrap();
    assert!(said().contains("is not the private key of the certificate"), "{}", said());
    fs::set_permissions(&files.key, Permissions::from_mode(0o644)).unwrap();
    assert!(said().contains("chmod 600"), "{}", said());
    fs::set_permissions(&files.key, Permissions::from_mode(0o600)).unwrap();
    fs::write(&files.key, "x").unwrap();
    assert!(said().contains("is not a private key in PEM"), "{}", said());
    fs::write(&files.cert, "x").unwrap();
    assert!(said().contains("is not a certificate in PEM"), "{}", said());
    fs::remove_file(&files.ca).unwrap();
    assert!(said().contains("cannot be read"), "{}", said());
}

#[test]
fn files_that_change_hold_for_new_connections() {
    let authority = Authority::new();
    let (_a, a) = authority.member("a");
    let (folder, b) = authority.member("b");
    let (a, b) =
        (Security::files(a).unwrap(), Security::files(b.clone()).map(|security| (security, b)).unwrap());
    assert!(meet(&a, &b.0, "b").0.unwrap().allow("b"));
    authority.issue(folder.path(), params("c"));
    assert!(meet(&a, &b.0, "c").0.unwrap().allow("c"), "the new certificate is shown");
    // One that is written half leaves the one before it.
    fs::write(&b.1.cert, "-----BEGIN CERTIFICATE-----\nMII").unwrap();
    assert!(meet(&a, &b.0, "c").0.unwrap().allow("c"));
    // One that has run out meanwhile is refused by those who connect.
    let mut old = params("c");
    old.not_after = (SystemTime::now() - HOUR).into();
    authority.issue(folder.path(), old);
    assert!(meet(&a, &b.0, "c").0.unwrap().allow("c"), "it is not taken up either");
}

/// Two ends that are connected: the one that has connected, and the one of this name that has answered.
fn connected(client: &Security, server: &Security, name: &str) -> (FrameStream, FrameStream) {
    let expected = Expected::Member(name.to_string());
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let mut client = FrameStream::connect(address, HANG, Some(client), &expected).unwrap();
    let mut server = FrameStream::stranger(listener.accept().unwrap().0, Some(server.clone())).unwrap();
    client.send(&Control::Alive).unwrap();
    let answering = std::thread::spawn(move || {
        read(&mut server).unwrap();
        server.send(&Control::Alive).unwrap();
        server
    });
    read(&mut client).unwrap();
    (client, answering.join().unwrap())
}

/// Reads until the connection fails, and gives why.
fn end_of(mut stream: FrameStream) -> SealError {
    let begun = Instant::now();
    while begun.elapsed() < HANG {
        stream.wait(Duration::from_millis(50)).unwrap();
        match stream.fill() {
            Err(FrameError::Seal(error)) => return error,
            Err(other) => panic!("{other}"),
            Ok(_) => while stream.next_frame().unwrap().is_some() {},
        }
    }
    panic!("it goes on");
}

#[test]
fn a_revoked_certificate_is_refused_and_ends_what_is_connected() {
    let authority = Authority::new();
    let lists = tempfile::tempdir().unwrap();
    let list = lists.path().join("crl.pem");
    authority.revoke(&list, &[]);
    let folders = [(); 3].map(|()| tempfile::tempdir().unwrap());
    let member = |at: usize, name: &str| {
        let mut params = params(name);
        params.serial_number = Some(SerialNumber::from(at as u64 + 1));
        let files = authority.issue(folders[at].path(), params);
        Security::files(TlsFiles { crl: Some(list.clone()), ..files }).unwrap()
    };
    let [a, b, c] = [member(0, "a"), member(1, "b"), member(2, "c")];
    let ((to_b, of_b), (to_c, mut of_c)) = (connected(&a, &b, "b"), connected(&a, &c, "c"));
    authority.revoke(&list, &[2]);
    assert!(end_of(to_b).to_string().contains("its authority has revoked it"));
    drop(of_b);
    // Others stay.
    let mut to_c = to_c;
    std::thread::sleep(Duration::from_millis(1_100));
    of_c.send(&Control::Alive).unwrap();
    read(&mut to_c).unwrap();
    for (here, there) in [meet(&a, &b, "b"), {
        let (b, a) = meet(&b, &a, "a");
        (a, b)
    }] {
        let [here, there] = [sealing(here).to_string(), sealing(there).to_string()];
        assert!(here.contains("its authority has revoked it"), "{here}");
        assert!(there.contains("it has been revoked: get another one"), "{there}");
    }
    assert!(meet(&a, &c, "c").0.unwrap().allow("c"));

    // Where there are lists, each authority needs one.
    let folder = tempfile::tempdir().unwrap();
    let foreign = Authority::new();
    let files = foreign.issue(folder.path(), params("d"));
    let said = Security::files(TlsFiles { crl: Some(list.clone()), ..files }).unwrap_err().to_string();
    assert!(said.contains("no list in --tls-crl says whether it is revoked"), "{said}");
    fs::write(&list, "").unwrap();
    let (_d, files) = authority.member("d");
    let said = Security::files(TlsFiles { crl: Some(list), ..files }).unwrap_err().to_string();
    assert!(said.contains("is not a list of revoked certificates in PEM: there is none in it"), "{said}");
}

/// An agent goes away from a manager whose certificate has been revoked meanwhile, though that one says
/// nothing of it.
#[tokio::test]
async fn a_revoked_manager_is_left() {
    let (authority, folder) = (Authority::new(), tempfile::tempdir().unwrap());
    let list = folder.path().join("crl.pem");
    authority.revoke(&list, &[]);
    let (_a, files) = authority.member("a");
    let a = Security::files(TlsFiles { crl: Some(list.clone()), ..files }).unwrap();
    let place = tempfile::tempdir().unwrap();
    let mut own = params("manager");
    own.serial_number = Some(SerialNumber::from(7));
    let manager = Security::files(authority.issue(place.path(), own)).unwrap();
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let (expected, remark) = (Expected::Manager("manager".into()), Remark::default());
    let (near, far) = tokio::join!(Talk::connect(&address, Some(&a), &expected, &remark), async {
        Talk::accept(listener.accept().await.unwrap().0, &manager).await.map_err(|(error, _)| error)
    });
    let (mut near, mut far) = (near.unwrap(), far.unwrap());
    authority.revoke(&list, &[7]);
    // Heartbeats.
    let left = tokio::time::timeout(HANG, async {
        loop {
            far.write_all(b"x").await.unwrap();
            far.flush().await.unwrap();
            if let Err(error) = near.read_exact(&mut [0]).await {
                return error;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    });
    let said = left.await.expect("it goes on").to_string();
    assert!(said.contains("its authority has revoked it"), "{said}");
    assert_eq!(remark.take(), Some(SealError::Revoked));
}

/// Authorities have several lists, and one may have the name of another one: that of the authority before it,
/// whose key was changed.
#[test]
fn what_any_list_of_an_authority_has_revoked_is_revoked() {
    let [old, new] = [(); 2].map(|()| Authority::called("authority", KeyPair::generate().unwrap()));
    let folder = tempfile::tempdir().unwrap();
    let list = folder.path().join("crl.pem");
    let lists = [old.list(&[]), old.list(&[9]), new.list(&[8])];
    fs::write(&list, lists.iter().map(|list| list.pem().unwrap()).collect::<String>()).unwrap();
    let member = |authority: &Authority, name: &str, number: u64| {
        let mut params = params(name);
        params.serial_number = Some(SerialNumber::from(number));
        let place = tempfile::tempdir().unwrap();
        let files = authority.issue(place.path(), params);
        fs::write(&files.ca, [&old.pem[..], &new.pem[..]].concat()).unwrap();
        (place, files)
    };
    let with_lists =
        |files: TlsFiles| Security::files(TlsFiles { crl: Some(list.clone()), ..files }).unwrap();
    let ((_a, a), (_b, b)) = (member(&old, "a", 1), member(&new, "b", 2));
    let (a, b) = (with_lists(a), with_lists(b));
    assert!(meet(&a, &b, "b").0.unwrap().allow("b"));
    assert!(meet(&b, &a, "a").0.unwrap().allow("a"));
    for (authority, number) in [(&old, 9), (&new, 8)] {
        let (_revoked, files) = member(authority, "c", number);
        let c = Security::files(files).unwrap();
        for (looker, name) in [(&a, "a"), (&b, "b")] {
            assert_eq!(sealing(meet(looker, &c, "c").0), SealError::Revoked, "{number}");
            assert_eq!(sealing(meet(&c, looker, name).1), SealError::Revoked, "{number}");
        }
    }
    // A number of the other one's is of another certificate.
    let (_d, d) = member(&old, "d", 8);
    assert!(meet(&a, &Security::files(d).unwrap(), "d").0.unwrap().allow("d"));
}

/// A thread that only speaks to an end stops when that one's certificate is revoked.
#[test]
fn a_revoked_listener_hears_no_more() {
    let (authority, folder) = (Authority::new(), tempfile::tempdir().unwrap());
    let list = folder.path().join("crl.pem");
    authority.revoke(&list, &[]);
    let (_b, files) = authority.member("b");
    let b = Security::files(TlsFiles { crl: Some(list.clone()), ..files }).unwrap();
    let place = tempfile::tempdir().unwrap();
    let mut own = params("a");
    own.serial_number = Some(SerialNumber::from(7));
    let a = Security::files(authority.issue(place.path(), own)).unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let speaking = std::thread::spawn(move || {
        let mut speaker = Blocking::answer(listener.accept().unwrap().0, &b, HANG).unwrap().unwrap();
        authority.revoke(&list, &[7]);
        let begun = Instant::now();
        while begun.elapsed() < HANG {
            if let Err(error) = speaker.write_all(b"x").and_then(|()| speaker.flush()) {
                return error.to_string();
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        panic!("it goes on")
    });
    let mut heard = FrameStream::connect(address, HANG, Some(&a), &Expected::Member("b".into())).unwrap();
    heard.shake_hands(HANG).unwrap();
    let said = speaking.join().unwrap();
    assert!(said.contains("its authority has revoked it"), "{said}");
}

/// Keeps what is logged.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<String>>>, Arc<AtomicUsize>);

impl tracing::Subscriber for Log {
    fn enabled(&self, metadata: &tracing::Metadata<'_>) -> bool {
        *metadata.level() <= tracing::Level::WARN
    }

    fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        tracing::span::Id::from_u64(1 + self.1.fetch_add(1, Ordering::Relaxed) as u64)
    }

    fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}

    fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}

    fn event(&self, event: &tracing::Event<'_>) {
        let mut line = String::new();
        event.record(&mut |field: &tracing::field::Field, value: &dyn std::fmt::Debug| {
            line += &format!("{field}={value:?} ");
        });
        self.0.lock().unwrap().push(line);
    }

    fn enter(&self, _: &tracing::span::Id) {}

    fn exit(&self, _: &tracing::span::Id) {}
}

/// A list that lacks, or is none, makes no revoked certificate good, and is said once.
#[test]
fn what_a_list_has_revoked_stays_so_whatever_becomes_of_the_file() {
    let (authority, folder) = (Authority::new(), tempfile::tempdir().unwrap());
    let list = folder.path().join("crl.pem");
    authority.revoke(&list, &[7]);
    let (_a, files) = authority.member("a");
    let place = tempfile::tempdir().unwrap();
    let mut revoked = params("b");
    revoked.serial_number = Some(SerialNumber::from(7));
    let b = Security::files(authority.issue(place.path(), revoked)).unwrap();
    let whole = fs::read_to_string(&list).unwrap();
    let a = Security::files(TlsFiles { crl: Some(list.clone()), ..files }).unwrap();
    let other = Authority::new();
    other.revoke(&folder.path().join("other.pem"), &[]);
    let foreign = fs::read_to_string(folder.path().join("other.pem")).unwrap();
    for (what, text, says) in [
        ("removed", None, "crl.pem cannot be read"),
        ("emptied", Some(String::new()), "there is none in it"),
        (
            "half written",
            Some(whole[..whole.len() / 2].into()),
            "is not a list of revoked certificates in PEM",
        ),
        ("of another authority", Some(foreign), "no list in --tls-crl says whether it is revoked"),
        ("no text", Some("\0".repeat(5_000)), "there is none in it"),
        ("huge", Some(whole.repeat(1 + (1 << 20) / whole.len())), "it has more than 1048576 bytes"),
    ] {
        let log = Log::default();
        let changes = a.changes();
        match text {
            None => fs::remove_file(&list).unwrap(),
            Some(text) => fs::write(&list, text).unwrap(),
        }
        tracing::subscriber::with_default(log.clone(), || {
            for _ in 0..100 {
                assert_eq!(a.changes(), changes, "{what}");
            }
        });
        let said = log.0.lock().unwrap().clone();
        assert!(said.len() == 1 && said[0].contains(says), "{what}: {said:?}");
        let said = sealing(meet(&a, &b, "b").0).to_string();
        assert!(said.contains("its authority has revoked it"), "{what}: {said}");
    }
    fs::write(&list, whole).unwrap();
    assert_eq!(a.changes(), 1, "what is right again is taken up");
}
