//! Certificates that are wrong, in handshakes with ends that show them all the same: what is said by the end
//! that looks at one, by the end that has shown it, and by that end where it is started with it.

use polycast_net::frames::FrameStream;
use polycast_net::tls::{Expected, SealError, Security, TlsFiles};
use polycast_testing::HANG;
use polycast_wire::control::Control;
use rcgen::{
    BasicConstraints, CertificateParams, CustomExtension, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    PKCS_ED25519, SanType, SerialNumber,
};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::ring;
use rustls::pki_types::{CertificateDer, PrivatePkcs8KeyDer, ServerName, UnixTime};
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use rustls::version::TLS13;
use rustls::{
    ClientConfig, ClientConnection, DigitallySignedStruct, Error, ServerConfig, ServerConnection,
    SignatureScheme, StreamOwned,
};
use std::fs;
use std::io::{self, Write as _};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

#[path = "common/authority.rs"]
mod authority;

use authority::{Authority, called, params, write};

const DAY: Duration = Duration::from_secs(86_400);
/// Longer than any sentence.
const SENTENCE_MAX: usize = 600;

/// Certificates and key that an end shows.
struct Bad {
    chain: Vec<CertificateDer<'static>>,
    /// The same as files have it, where it is as it was made.
    pem: Option<String>,
    key: KeyPair,
}

impl Bad {
    fn new(params: &CertificateParams, issuer: &Issuer<'_, KeyPair>) -> Self {
        let key = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, issuer).unwrap();
        Bad { chain: vec![certificate.der().clone()], pem: Some(certificate.pem()), key }
    }

    /// The same with this behind it.
    fn with(mut self, between: &[rcgen::Certificate]) -> Self {
        self.chain.extend(between.iter().map(|certificate| certificate.der().clone()));
        let pem = between.iter().map(rcgen::Certificate::pem).collect::<String>();
        self.pem = self.pem.map(|own| own + &pem);
        self
    }

    /// The same with other bytes in the place of these, wherever they are.
    fn patched(mut self, from: &[u8], to: &[u8]) -> Self {
        let mut bytes = self.chain[0].to_vec();
        let found: Vec<usize> =
            (0..bytes.len() - from.len()).filter(|at| bytes[*at..].starts_with(from)).collect();
        assert!(!found.is_empty() && from.len() == to.len());
        found.into_iter().for_each(|at| bytes[at..at + to.len()].copy_from_slice(to));
        self.chain[0] = bytes.into();
        self.pem = None;
        self
    }

    fn certified(&self) -> Arc<SingleCertAndKey> {
        let key = PrivatePkcs8KeyDer::from(self.key.serialize_der());
        let key = ring::sign::any_supported_type(&key.into()).unwrap();
        // Nothing looks at what is in it.
        Arc::new(CertifiedKey { cert: self.chain.clone(), key, ocsp: None }.into())
    }
}

/// Takes any server.
#[derive(Debug)]
struct Anyone;

impl ServerCertVerifier for Anyone {
    fn verify_server_cert(
        &self,
        _end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _cert: &CertificateDer<'_>,
        _dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        unreachable!("there is TLS 1.3 only")
    }

    fn verify_tls13_signature(
        &self,
        _message: &[u8],
        _cert: &CertificateDer<'_>,
        _dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        ring::default_provider().signature_verification_algorithms.supported_schemes()
    }
}

/// Returns the message for an error of the library.
fn sentence(error: &io::Error) -> String {
    let inner = error.get_ref().and_then(|inner| inner.downcast_ref::<Error>());
    inner.map_or_else(|| error.to_string(), |inner| SealError::from(inner.clone()).to_string())
}

/// Returns the error that ends a handshake, or what is done after it; nothing where that ends without one.
fn end_of(mut go_on: impl FnMut() -> io::Result<(usize, usize)>) -> String {
    for _ in 0..10 {
        if let Err(error) = go_on() {
            return sentence(&error);
        }
    }
    String::new()
}

/// Reads until the connection fails; gives what is said of that.
fn look(stream: &mut FrameStream) -> String {
    loop {
        match stream.fill() {
            Err(error) => return error.to_string(),
            Ok(_) => assert!(stream.next_frame().unwrap().is_none(), "it is taken"),
        }
        stream.wait(HANG).unwrap();
    }
}

/// Returns the message of an end that connects to one that shows this, and the message that the latter
/// receives.
fn connecting(looker: &Security, bad: &Bad, expected: &Expected) -> (String, String) {
    let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_protocol_versions(&[&TLS13])
        .unwrap()
        .with_no_client_auth()
        .with_cert_resolver(bad.certified());
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let answering = std::thread::spawn(move || {
        let mut stream = listener.accept().unwrap().0;
        let mut tls = ServerConnection::new(Arc::new(config)).unwrap();
        end_of(|| tls.complete_io(&mut stream))
    });
    let mut stream = FrameStream::connect(address, HANG, Some(looker), expected).unwrap();
    stream.send(&Control::Alive).unwrap();
    let said = look(&mut stream);
    stream.part(HANG);
    (said, answering.join().unwrap())
}

/// Returns the message of an end to which one connects that shows this, or nothing; and the message that the
/// latter receives.
fn answering(looker: &Security, bad: Option<&Bad>) -> (String, String) {
    let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_protocol_versions(&[&TLS13])
        .unwrap()
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(Anyone));
    let config = match bad {
        Some(bad) => config.with_client_cert_resolver(bad.certified()),
        None => config.with_no_client_auth(),
    };
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let looker = looker.clone();
    let answering = std::thread::spawn(move || {
        let mut stream = FrameStream::stranger(listener.accept().unwrap().0, Some(looker)).unwrap();
        let said = look(&mut stream);
        stream.part(HANG);
        said
    });
    let mut stream = TcpStream::connect(address).unwrap();
    let name = ServerName::from(std::net::IpAddr::V4(Ipv4Addr::UNSPECIFIED));
    let mut tls = ClientConnection::new(Arc::new(config), name).unwrap();
    let heard = end_of(|| tls.complete_io(&mut stream));
    drop(stream);
    (answering.join().unwrap(), heard)
}

/// Checks that a message to the user is a sentence of ours, on one line, and no longer than a person reads.
fn check_words(what: &str, said: &str, parts: &[&str]) {
    for part in parts {
        assert!(said.contains(part), "{what}: '{part}' is not in: {said}");
    }
    assert!(said.len() < SENTENCE_MAX, "{what}: {} bytes", said.len());
    assert!(!said.contains(char::is_control), "{what}: {said:?}");
    for jargon in ["invalid peer", "Context", "Error", "Unsupported", "Other(", "unexpected", "alert"] {
        assert!(!said.contains(jargon), "{what}: '{jargon}' is in: {said}");
    }
}

/// An end that is right, and what it goes by.
struct Looker {
    _folder: tempfile::TempDir,
    files: TlsFiles,
    security: Security,
}

impl Looker {
    /// Creates the end "a", whose authority is the first; all are trusted.
    fn new(authorities: &[&Authority], lists: Option<String>) -> Self {
        let (folder, mut files) = authorities[0].member("a");
        let roots: String = authorities.iter().map(|authority| authority.pem.as_str()).collect();
        fs::write(&files.ca, roots).unwrap();
        if let Some(lists) = lists {
            let path = folder.path().join("crl.pem");
            fs::write(&path, lists).unwrap();
            files.crl = Some(path);
        }
        let security = Security::files(files.clone()).unwrap();
        Looker { _folder: folder, files, security }
    }

    /// Whichever end connects, this one says these words, the other one hears those, and cannot be started
    /// with what it shows.
    fn refuses(&self, what: &str, bad: &Bad, says: &[&str], hears: &str) {
        let member = Expected::Member("b".into());
        for (said, heard) in [connecting(&self.security, bad, &member), answering(&self.security, Some(bad))]
        {
            check_words(what, &said, says);
            if !hears.is_empty() {
                check_words(what, &heard, &[hears]);
            }
        }
        let Some(pem) = &bad.pem else { return };
        let own = tempfile::tempdir().unwrap();
        let files = write(own.path(), &fs::read_to_string(&self.files.ca).unwrap(), pem, &bad.key);
        let started = Security::files(TlsFiles { crl: self.files.crl.clone(), ..files });
        let said = started.expect_err(what).to_string();
        // What can be done is the same; whose it is is another one.
        check_words(what, &said.replace(&own.path().display().to_string(), ""), &says[..says.len().min(1)]);
    }

    /// One that connects says these words of an end that is another one than it has to be.
    fn expects_another(&self, what: &str, bad: &Bad, expected: &Expected, says: &[&str]) {
        let (said, heard) = connecting(&self.security, bad, expected);
        check_words(what, &said, says);
        check_words(what, &heard, &["the log of the other end says why"]);
    }
}

/// Authorities below this one with one name and keys of their own, each of which could have issued any other.
fn same_named(authority: &Authority, count: usize) -> Vec<rcgen::Certificate> {
    let mut own = CertificateParams::default();
    (own.distinguished_name, own.is_ca) = (called("between"), IsCa::Ca(BasicConstraints::Unconstrained));
    let middle = Issuer::new(own.clone(), KeyPair::generate().unwrap());
    let issued = |at: usize| {
        let key = KeyPair::generate().unwrap();
        // One leads to the authority.
        let issuer = if at == 0 { &authority.issuer } else { &middle };
        own.signed_by(&key, issuer).unwrap()
    };
    (0..count).map(issued).collect()
}

fn at(from: SystemTime, to: SystemTime) -> CertificateParams {
    let mut params = params("b");
    (params.not_before, params.not_after) = (from.into(), to.into());
    params
}

const OTHER_CLOCK: &str = "it has expired or is not valid yet by the other machine's clock: renew it, or set the clocks of both machines";
const PURPOSE: &str = "issue one with the extended key usages serverAuth and clientAuth";
const LOG: &str = "the log of the other end says why";

#[test]
fn a_certificate_that_is_not_good_now_or_here_is_refused_in_a_sentence_at_each_end() {
    let ours = Authority::called("ours", KeyPair::generate_for(&PKCS_ED25519).unwrap());
    let looker = Looker::new(&[&ours], None);
    let now = SystemTime::now();
    let issued = |params: &CertificateParams| Bad::new(params, &ours.issuer);

    let old = issued(&at(now - 2 * DAY, now - DAY));
    let says = ["it was valid until", "and by the clock of this machine it is", "renew it, or set the clock"];
    looker.refuses("expired, or a clock a day ahead", &old, &says, OTHER_CLOCK);
    let young = issued(&at(now + DAY, now + 2 * DAY));
    let says =
        ["it is valid from", "and by the clock of this machine it is", "set the clocks of both machines"];
    looker.refuses("not valid yet, or a clock a day behind", &young, &says, OTHER_CLOCK);
    let never = issued(&at(now + DAY, now - DAY));
    looker.refuses("valid at no time", &never, &["it ends before it begins"], OTHER_CLOCK);

    let theirs = Authority::called("theirs", KeyPair::generate().unwrap());
    let foreign = Bad::new(&params("b"), &theirs.issuer);
    let says = ["was not issued by an authority", "--tls-ca"];
    looker.refuses(
        "an unknown authority",
        &foreign,
        &says,
        "no authority that the other end trusts has issued it",
    );
    let namesake = Authority::called("ours", KeyPair::generate_for(&PKCS_ED25519).unwrap());
    let foreign = Bad::new(&params("b"), &namesake.issuer);
    looker.refuses(
        "one of the same name",
        &foreign,
        &says,
        "no authority that the other end trusts has issued it",
    );

    let mut purpose = params("b");
    purpose.extended_key_usages = vec![ExtendedKeyUsagePurpose::CodeSigning];
    looker.refuses("for another purpose", &issued(&purpose), &[PURPOSE], PURPOSE);

    let mut own = params("b");
    own.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let key = KeyPair::generate().unwrap();
    let alone = own.self_signed(&key).unwrap();
    let alone = Bad { chain: vec![alone.der().clone()], pem: Some(alone.pem()), key };
    looker.refuses("self-signed", &alone, &["it is an authority's own (CA:TRUE)"], LOG);
    let parent = Issuer::new(params("parent"), KeyPair::generate().unwrap());
    let below = params("parent").signed_by(&KeyPair::generate().unwrap(), &ours.issuer).unwrap();
    let child = Bad::new(&params("b"), &parent).with(&[below]);
    looker.refuses("issued by a member", &child, &["by one that is no authority's (CA:FALSE)"], LOG);
}

#[test]
fn a_certificate_that_is_odd_is_refused_in_a_sentence_at_each_end() {
    let ours = Authority::called("ours", KeyPair::generate_for(&PKCS_ED25519).unwrap());
    let looker = Looker::new(&[&ours], None);
    let issued = |params: &CertificateParams| Bad::new(params, &ours.issuer);

    let mut critical = params("b");
    let mut extension = CustomExtension::from_oid_content(&[1, 2, 3, 4], vec![5, 0]);
    extension.set_criticality(true);
    critical.custom_extensions = vec![extension];
    looker.refuses(
        "a critical extension",
        &issued(&critical),
        &["a critical extension that is not known"],
        LOG,
    );

    let mut twice = params("b");
    // Another name of the subject, which is said already.
    twice.custom_extensions =
        vec![CustomExtension::from_oid_content(&[2, 5, 29, 17], vec![0x30, 3, 0x82, 1, b'c'])];
    looker.refuses("an extension twice", &issued(&twice), &["it is damaged, or no certificate"], LOG);

    let ed448 = issued(&params("b")).patched(&[6, 3, 0x2b, 0x65, 0x70], &[6, 3, 0x2b, 0x65, 0x71]);
    let says = ["a method that is not taken, such as SHA-1 or MD5", "SHA-256 or Ed25519"];
    looker.refuses("signed by another method", &ed448, &says, "signed by a method that is not taken there");
    let first = issued(&params("b")).patched(&[0xa0, 3, 2, 1, 2], &[0xa0, 3, 2, 1, 0]);
    looker.refuses("of version 1", &first, &["of a version of X.509 before 3", "subjectAltName"], LOG);
    let none = Bad { chain: vec![vec![1u8, 2, 3].into()], pem: None, ..issued(&params("b")) };
    looker.refuses("no certificate", &none, &["it is damaged, or no certificate"], "says why");

    let mut own = CertificateParams::default();
    own.distinguished_name = called("between");
    let between = Issuer::new(own, KeyPair::generate().unwrap());
    let chain = |count: usize| Bad::new(&params("b"), &between).with(&same_named(&ours, count));
    looker.refuses(
        "a chain of 100",
        &chain(100),
        &["there are 100 certificates between", "6 are the most"],
        LOG,
    );
    // No handshake carries it; the other end hears that what it says makes no sense.
    looker.refuses("a chain of 300", &chain(300), &["it has more than 64 kB", "fewer names"], "");
}

#[test]
fn an_end_of_another_name_is_refused_in_a_sentence_whatever_its_names_are() {
    let ours = Authority::called("ours", KeyPair::generate().unwrap());
    let looker = Looker::new(&[&ours], None);
    let of = |names: Vec<SanType>| {
        let mut params = params("b");
        params.subject_alt_names = names;
        Bad::new(&params, &ours.issuer)
    };
    let dns = |name: &str| SanType::DnsName(name.try_into().unwrap());
    let agent = |name: &str| {
        SanType::URI(format!("spiffe://example.org/polycast/agent/{name}").as_str().try_into().unwrap())
    };
    let (member, manager) = (Expected::Member("b".into()), Expected::Manager("manager".into()));

    let says = [
        "the certificate of 'b' is for 'x': start the agent with the name in its certificate, or give it one",
    ];
    looker.expects_another("another name", &of(vec![dns("x")]), &member, &says);
    let says = ["the other end is no manager: its certificate is for 'x'", "has the DNS name 'manager'"];
    looker.expects_another("another role", &of(vec![dns("x")]), &manager, &says);
    let says = ["is no manager", "is for 'manager'"];
    looker.expects_another("an agent called so", &of(vec![agent("manager")]), &manager, &says);

    // So short that all of them are in one certificate that a handshake carries.
    let short =
        |n: u32| [n / 676, n / 26 % 26, n % 26].map(|at| char::from_u32(at + u32::from('a')).unwrap());
    let many = of((0..10_000).map(|n| dns(&short(n).iter().collect::<String>())).collect());
    let says = ["is for 'aaa', 'aab', 'aac', 'aad' and 9996 more"];
    looker.expects_another("ten thousand names", &many, &member, &says);
    let long = of(vec![agent(&"n".repeat(60_000))]);
    looker.expects_another("a name of 60 kB", &long, &member, &[&format!("is for '{}…'", "n".repeat(64))]);
    let odd = of(vec![agent("x\u{1b}[2J\r\nERROR all is lost\0"), dns("y\0.b")]);
    let says = [r"is for 'x\u{1b}[2J\u{d}\u{a}ERROR all is lost\u{0}': start"];
    looker.expects_another("what moves the cursor", &odd, &member, &says);
    let any = of(vec![dns("*.example.org")]);
    let says = ["the certificate of 'b.example.org' is for '*.example.org'"];
    looker.expects_another("a name for many", &any, &Expected::Member("b.example.org".into()), &says);
    let address = of(vec![SanType::IpAddress(Ipv4Addr::LOCALHOST.into())]);
    looker.expects_another("an address", &address, &member, &["the certificate of 'b' is for no name"]);
    let nothing = of(vec![dns("b\0.x"), dns("")]);
    looker.expects_another(
        "names that are none",
        &nothing,
        &member,
        &["the certificate of 'b' is for no name"],
    );
}

#[test]
fn a_certificate_that_lists_do_not_clear_is_refused_in_a_sentence_at_each_end() {
    let ours = Authority::called("ours", KeyPair::generate().unwrap());
    let theirs = Authority::called("theirs", KeyPair::generate_for(&PKCS_ED25519).unwrap());
    let namesake = Authority::called("theirs", KeyPair::generate_for(&PKCS_ED25519).unwrap());
    let own = ours.list(&[]).pem().unwrap();
    let of = |list: String| Looker::new(&[&ours, &theirs], Some(own.clone() + &list));
    let mut numbered = params("b");
    numbered.serial_number = Some(SerialNumber::from(7));
    let bad = Bad::new(&numbered, &theirs.issuer);

    let revoked = of(theirs.list(&[7]).pem().unwrap());
    let says = ["its authority has revoked it", "give the machine another one"];
    revoked.refuses("revoked", &bad, &says, "it has been revoked: get another one from the authority");
    let says = ["no list in --tls-crl says whether it is revoked", "put the lists of all authorities there"];
    let hears = "none of whose revoked ones that end has a list";
    of(String::new()).refuses("no list of its authority", &bad, &says, hears);
    of(namesake.list(&[]).pem().unwrap()).refuses("a list of a namesake", &bad, &says, hears);

    // A list that is signed by another method.
    let mut list = theirs.list(&[]).der().to_vec();
    let (from, to) = ([6, 3, 0x2b, 0x65, 0x70], [6, 3, 0x2b, 0x65, 0x71]);
    for at in 0..list.len() - from.len() {
        if list[at..].starts_with(&from) {
            list[at..at + to.len()].copy_from_slice(&to);
        }
    }
    let looker = of(format!("-----BEGIN X509 CRL-----\n{}\n-----END X509 CRL-----\n", base64(&list)));
    let says = ["the list in --tls-crl that is to say whether it is revoked cannot be used", "cRLSign"];
    looker.refuses("a list signed by another method", &bad, &says, LOG);
}

/// An end that has a certificate for clients only is checked again as any other.
#[test]
fn a_client_is_let_go_when_its_certificate_is_revoked() {
    let ours = Authority::called("ours", KeyPair::generate().unwrap());
    let looker = Looker::new(&[&ours], Some(ours.list(&[]).pem().unwrap()));
    let mut client = params("b");
    client.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
    client.serial_number = Some(SerialNumber::from(7));
    let client = Bad::new(&client, &ours.issuer);
    let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_protocol_versions(&[&TLS13])
        .unwrap()
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(Anyone))
        .with_client_cert_resolver(client.certified());
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let speaking = std::thread::spawn(move || {
        let name = ServerName::from(std::net::IpAddr::V4(Ipv4Addr::UNSPECIFIED));
        let mut stream = StreamOwned::new(ClientConnection::new(Arc::new(config), name).unwrap(), stream);
        let mut alive = Vec::new();
        Control::Alive.emit(&mut alive);
        while stream.write_all(&alive).and_then(|()| stream.flush()).is_ok() {
            std::thread::sleep(Duration::from_millis(50));
        }
    });
    let mut stream =
        FrameStream::stranger(listener.accept().unwrap().0, Some(looker.security.clone())).unwrap();
    while stream.next_frame().unwrap().is_none() {
        stream.fill().unwrap();
        stream.wait(Duration::from_millis(50)).unwrap();
    }
    ours.revoke(looker.files.crl.as_ref().unwrap(), &[7]);
    let begun = Instant::now();
    let said = loop {
        assert!(begun.elapsed() < HANG, "it goes on");
        while stream.next_frame().unwrap().is_some() {}
        match stream.fill() {
            Ok(_) => stream.wait(Duration::from_millis(50)).unwrap(),
            Err(error) => break error.to_string(),
        }
    };
    assert!(said.contains("its authority has revoked it"), "{said}");
    drop(stream);
    speaking.join().unwrap();
}

fn base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let of = |three: &[u8]| {
        let bits = (0..3).fold(0, |bits, at| bits << 8 | usize::from(*three.get(at).unwrap_or(&0)));
        let digit =
            |at: usize| if at <= three.len() { DIGITS[bits >> (18 - 6 * at) & 63] as char } else { '=' };
        [0, 1, 2, 3].map(digit)
    };
    let digits: Vec<char> = bytes.chunks(3).flat_map(of).collect();
    digits.chunks(64).map(|line| line.iter().collect::<String>() + "\n").collect()
}

#[test]
fn an_end_that_shows_nothing_hears_what_it_needs() {
    let ours = Authority::called("ours", KeyPair::generate().unwrap());
    let looker = Looker::new(&[&ours], None);
    let (said, heard) = answering(&looker.security, None);
    check_words("at the end that asks", &said, &["the other end shows no certificate", "--tls-cert"]);
    check_words("at the other one", &heard, &["the other end asks to see a certificate", "--tls-cert"]);
}
