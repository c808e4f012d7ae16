//! Access that a code gives, and to whom: sources that run, over real sockets, and hosts that guess, listen,
//! or know the code and would be the source.

use super::code::{Code, OfferCode};
use super::discovery::{Announced, News, Search, Unfit, accept};
use super::pairing::{Host, NotPaired, WRONG_OF_ONE_MAX, pair};
use super::{
    Options, Path, Prepared, ReceiverSpec, Receivers, Rendezvous, Sealing, Sink, SourceSpec, TransferError,
    prepare,
};
use polycast_net::frames::FrameStream;
use polycast_net::object::ObjectKind;
use polycast_net::tls::Expected;
use polycast_protocol::session::Why;
use polycast_testing::HANG;
use polycast_types::{Duration, Handle, ObjectId, Time};
use polycast_wire::control::{Control, Hello, Overlay};
use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

const LONG: Duration = Duration(HANG.as_nanos() as u64);

/// An offer that runs until it is dropped.
struct Offer {
    address: SocketAddr,
    handle: Handle,
    cancel: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Drop for Offer {
    fn drop(&mut self) {
        self.cancel.store(true, Ordering::Relaxed);
        let ended = self.thread.take().map(JoinHandle::join);
        assert!(ended.is_none_or(|ended| ended.is_ok()) || std::thread::panicking());
    }
}

/// Offers these bytes under this code.
fn offer(code: &OfferCode, bytes: &[u8], sealing: Sealing) -> Offer {
    let cancel = Arc::new(AtomicBool::new(false));
    let group = SocketAddr::new(Ipv4Addr::new(239, 255, 199, 254).into(), 30_998);
    let spec = SourceSpec {
        object: ObjectId::default(),
        name: "object".into(),
        kind: ObjectKind::File,
        source: Arc::new(bytes.to_vec()),
        root: None,
        receivers: Receivers::AtLeast(1),
        location: polycast_types::Location::default(),
        interface: Ipv4Addr::LOCALHOST.into(),
        path: Path::Multicast { group, rate: None, attempts: None, outer: Vec::new() },
        options: Options { code: Some(code.clone()), sealing, join_timeout: LONG, ..Options::default() },
        cancel: Arc::clone(&cancel),
        steering: Arc::default(),
    };
    let prepared: Prepared = prepare(spec).unwrap();
    let (address, handle) = (prepared.control_address(), prepared.handle());
    let thread = Some(std::thread::spawn(move || drop(prepared.run(&mut |_| {}))));
    Offer { address, handle, cancel, thread }
}

/// Takes what is offered at these places, or anywhere, and gives the bytes.
fn take(code: &Code, from: &[&Offer], sealing: Sealing) -> Result<Vec<u8>, TransferError> {
    take_unless(code, from, sealing, &|_| false)
}

/// The same, until something is heard that ends it.
fn take_unless(
    code: &Code,
    from: &[&Offer],
    sealing: Sealing,
    ends: &dyn Fn(&News) -> bool,
) -> Result<Vec<u8>, TransferError> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("object");
    let spec = ReceiverSpec {
        name: "a".into(),
        rendezvous: Rendezvous::At(SocketAddr::from((Ipv4Addr::LOCALHOST, 9)), Handle(0)),
        called: None,
        location: polycast_types::Location::default(),
        interface: Ipv4Addr::LOCALHOST.into(),
        sink: Sink::Raw(path.clone()),
        options: Options { sealing, ..Options::default() },
        cancel: Arc::new(AtomicBool::new(false)),
    };
    let from = from.iter().map(|offer| offer.address).collect();
    let search = Search { code: Some(code.clone()), from, timeout: Some(LONG), ..Search::default() };
    let cancel = Arc::clone(&spec.cancel);
    let mut hears = |said: &News| {
        cancel.fetch_or(ends(said), Ordering::Relaxed);
    };
    accept(spec, &search, &mut hears, &mut |_| Ok(()), &mut |_| {})?;
    Ok(std::fs::read(path).unwrap())
}

fn words(text: &str) -> Code {
    text.parse().unwrap()
}

fn own(text: &str) -> OfferCode {
    OfferCode::own(words(text)).unwrap()
}

fn try_at(offer: &Offer, code: &Code) -> Result<super::pairing::Pairing, NotPaired> {
    pair((offer.address, offer.handle), code, (LONG, &AtomicBool::new(false)))
}

#[test]
fn who_knows_the_code_gets_the_object() {
    for (code, sealing) in [
        (OfferCode::drawn(), Sealing::ByCode),
        (own("four words of ours"), Sealing::ByCode),
        (OfferCode::drawn(), Sealing::Plain),
    ] {
        let source = offer(&code, b"what was offered", sealing.clone());
        let got = take(code.code(), &[&source], sealing);
        assert_eq!(got.unwrap(), b"what was offered");
    }
}

/// One that was told the code, as all receivers were, offers something else under it.
#[test]
fn who_knows_a_drawn_code_is_not_its_source() {
    let code = OfferCode::drawn();
    let stolen = OfferCode::stolen(code.code());
    assert!(stolen != code && stolen.code() == code.code());
    for sealing in [Sealing::ByCode, Sealing::Plain] {
        let evil = offer(&stolen, b"EVILEVILEVIL", sealing.clone());
        let error = take(code.code(), &[&evil], sealing.clone()).unwrap_err();
        assert!(error.to_string().contains("is not the source for which it was drawn"), "{error}");
    }
    // It has the offer's secret, and stands where the source was said to be: it has no key of the source's.
    let honest = offer(&code, b"what was offered", Sealing::ByCode);
    assert!(try_at(&honest, code.code()).is_ok());
    assert_eq!(take(code.code(), &[&honest], Sealing::ByCode).unwrap(), b"what was offered");
}

/// An offer by multicast: the one that stole the code is passed over for the source, whichever is heard
/// first.
#[test]
fn a_stolen_code_does_not_keep_its_receivers_away() {
    let code = OfferCode::drawn();
    let evil: Vec<Offer> =
        (0..3).map(|_| offer(&OfferCode::stolen(code.code()), b"EVILEVILEVIL", Sealing::ByCode)).collect();
    let honest = offer(&code, b"what was offered", Sealing::ByCode);
    for _ in 0..3 {
        assert_eq!(take(code.code(), &[], Sealing::ByCode).unwrap(), b"what was offered");
    }
    drop((evil, honest));
}

#[test]
fn another_code_opens_nothing() {
    let source = offer(&own("four words of ours"), b"what was offered", Sealing::ByCode);
    let passed = |said: &News| matches!(said, News::Passed(_, Unfit::OtherCode));
    // Drawn words are none of this offer, which shows before they are tried.
    for code in [words("four words of yours"), OfferCode::drawn().code().clone()] {
        let error = take_unless(&code, &[&source], Sealing::ByCode, &passed).unwrap_err();
        assert!(matches!(error, TransferError::Cancelled), "{error}");
    }
}

/// A host that tries codes has one guess a connection, and few of them.
#[test]
fn guesses_are_few() {
    let source = offer(&own("four words of ours"), b"what was offered", Sealing::ByCode);
    let mut refused = None;
    for guess in 0..2 * WRONG_OF_ONE_MAX {
        match try_at(&source, &words(&format!("guess number {guess}"))) {
            Err(NotPaired::OtherCode) => assert!(refused.is_none(), "it is heard again"),
            Err(NotPaired::Failed(TransferError::Refused(why))) => drop(refused.get_or_insert((guess, why))),
            other => panic!("{other:?}"),
        }
    }
    let (guesses, why) = refused.expect("it is not heard any more");
    assert_eq!(guesses, WRONG_OF_ONE_MAX);
    assert_eq!(why, Why::TooManyCodes.to_string());
    assert!(
        matches!(try_at(&source, &words("four words of ours")), Err(NotPaired::Failed(_))),
        "nor is the right one"
    );
}

/// In virtual time: an address that guesses waits, others do not, and it may come again.
#[test]
fn one_address_that_guesses_holds_up_no_other() {
    let mut host = Host::new(&own("four words of ours"));
    let (handle, challenge) = (Handle(1), [3; 32]);
    let from = |last: u8| Some(IpAddr::from([10, 0, 0, last]));
    let now = Time::ZERO + Duration::from_secs(100);
    let mut guess =
        |now: Time, last: u8| host.pair(now, from(last), (handle, &challenge), (&[0; 32], &[0; 32]));
    for _ in 0..WRONG_OF_ONE_MAX {
        assert_eq!(guess(now, 1).unwrap_err(), Why::WrongCode);
    }
    assert_eq!(guess(now, 1).unwrap_err(), Why::TooManyCodes);
    assert_eq!(guess(now, 2).unwrap_err(), Why::WrongCode, "another address");
    let mut all = WRONG_OF_ONE_MAX + 1;
    for last in (3..=255).cycle().take(100_000) {
        all += u32::from(guess(now, last).unwrap_err() == Why::WrongCode);
    }
    assert_eq!(all, 640, "so many of all addresses");
    assert_eq!(guess(now + Duration::from_millis(9_999), 1).unwrap_err(), Why::TooManyCodes);
    assert_eq!(guess(now + Duration::from_secs(10), 1).unwrap_err(), Why::WrongCode);
}

/// Words of a pairing, without one of ours: what a source answers before it has a proof is of its share and
/// of nothing else.
#[test]
fn a_source_says_nothing_to_who_has_not_proven() {
    let source = offer(&own("four words of ours"), b"what was offered", Sealing::ByCode);
    let handle = source.handle;
    // 32 bytes that are a point: twice the generator (RFC 9496, appendix A.1).
    let share = [
        0x6a, 0x49, 0x32, 0x10, 0xf7, 0x49, 0x9c, 0xd1, 0x7f, 0xec, 0xb5, 0x10, 0xae, 0x0c, 0xea, 0x23, 0xa1,
        0x10, 0xe8, 0xd5, 0xb9, 0x01, 0xf8, 0xac, 0xad, 0xd3, 0x09, 0x5c, 0x73, 0xa3, 0xb9, 0x19,
    ];
    let said = |frames: &[Control<'_>]| {
        let mut stream = TcpStream::connect(source.address).unwrap();
        stream.set_read_timeout(Some(HANG)).unwrap();
        let mut kinds = Vec::new();
        for frame in frames {
            let mut bytes = Vec::new();
            frame.emit(&mut bytes);
            // An end that has closed the connection has said why.
            let _ = stream.write_all(&bytes);
            let mut head = [0; 4];
            if stream.read_exact(&mut head).is_err() {
                break;
            }
            let mut answer = vec![0; u32::from_be_bytes(head) as usize];
            stream.read_exact(&mut answer).unwrap();
            kinds.push((answer[0], answer.len()));
        }
        kinds
    };
    const REFUSE: u8 = 3;
    const SHARE: (u8, usize) = (28, 33);
    let refused = |kinds: &[(u8, usize)]| kinds.iter().map(|(kind, _)| *kind).collect::<Vec<_>>() == [REFUSE];
    let (pair, prove) = (Control::Pair { handle, share }, Control::Prove { share, proof: [5; 32] });
    let heard = said(&[pair.clone(), prove.clone()]);
    assert_eq!((heard[0], heard[1].0, heard.len()), (SHARE, REFUSE, 2), "{heard:?}");
    // No question is asked twice, nothing is proven before it, and another offer has other words.
    assert!(refused(&said(&[prove])));
    let twice = said(&[pair.clone(), pair]);
    assert_eq!((twice[0], twice[1].0), (SHARE, REFUSE));
    assert!(refused(&said(&[Control::Pair { handle: Handle(handle.0 ^ 1), share }])));
    // What is no point is answered as well, so that nothing shows; it cannot be proven.
    let none = said(&[
        Control::Pair { handle, share: [0xff; 32] },
        Control::Prove { share: [0xff; 32], proof: [5; 32] },
    ]);
    assert_eq!((none[0], none[1].0), (SHARE, REFUSE));
}

/// One that announces itself, and answers what it likes.
#[test]
fn a_source_that_does_not_know_the_code_is_found_out() {
    for (answers, says) in [
        (vec![Control::Share([0; 32])], "its share of a key is none"),
        (vec![Control::Share([0xff; 32])], "its share of a key is none"),
        (vec![Control::Paired([1; 96])], "malformed"),
    ] {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let address = listener.local_addr().unwrap();
        let answering = std::thread::spawn(move || {
            let mut stream = listener.accept().unwrap().0;
            let mut bytes = Vec::new();
            answers.iter().for_each(|answer| answer.emit(&mut bytes));
            stream.write_all(&bytes).unwrap();
            // It stays until the other end goes.
            let _ = stream.read_to_end(&mut Vec::new());
        });
        let code = words("four words of ours");
        let outcome = pair((address, Handle(1)), &code, (LONG, &AtomicBool::new(false)));
        let Err(NotPaired::Failed(error)) = outcome else { panic!("{outcome:?}") };
        assert!(error.to_string().contains(says), "{error}");
        answering.join().unwrap();
    }
}

/// Offers show nothing of a code that a person has made up, and of drawn words only the first.
#[test]
fn announcements_have_nothing_to_try_codes_on() {
    let sign = |code: &OfferCode| Host::new(code).sign();
    assert_eq!(sign(&own("four words of ours")), sign(&own("another one of theirs")));
    let (one, other) = (OfferCode::drawn(), OfferCode::drawn());
    let first = |code: &OfferCode| code.code().to_string()[..5].to_string();
    assert_eq!(sign(&one) == sign(&other), first(&one) == first(&other));
    let announced = Announced {
        address: SocketAddr::from((Ipv4Addr::LOCALHOST, 9)),
        handle: Handle(1),
        name: String::new(),
        object_len: 0,
        host: String::new(),
        places: 1,
        sign: Some(sign(&one)),
        pairing: None,
    };
    assert!(!format!("{announced:?}").contains(&one.code().to_string()[6..]));
}

/// The rows of docs/protocol.md on first frames: each frame, and what proves that its sender may have what it
/// opens.
fn first_frames() -> Vec<(String, String)> {
    let text = include_str!("../../../../docs/protocol.md");
    let rows = text.lines().skip_while(|line| !line.starts_with("| first frame |")).skip(2);
    let rows = rows.take_while(|line| line.starts_with("| ")).map(|line| {
        let cells: Vec<&str> = line.trim_matches('|').split('|').map(str::trim).collect();
        (cells[0].to_string(), cells[4].to_string())
    });
    rows.collect()
}

/// Answers of a sealed offer to a first frame, by kind: of a host that has shown nothing, and of one that has
/// the offer's secret and sends nothing that shows that it takes part.
#[test]
fn first_frames_open_what_the_table_says() {
    const REFUSE: u8 = 3;
    let code = OfferCode::drawn();
    let source = offer(&code, &[7; 600_000], Sealing::ByCode);
    let (handle, hash) = (source.handle, [5; 32]);
    let hello = Hello { handle, name: "a", window_bytes: 1 << 20, serve_port: 9, location: [""; 2] };
    let invite = Control::Invite {
        address: [127, 0, 0, 1].into(),
        port: 9,
        handle,
        object: ObjectId::default(),
        pulled: false,
        object_len: 1,
        root: None,
        permit: None,
        delta: None,
    };
    let enter = Overlay::Enter { handle, ticket: hash, entry: 1, have: Vec::new() };
    // The frame, and the kind of the answer to a stranger and to one with the secret.
    let samples = [
        ("HELLO", Control::Hello(hello.clone()), (REFUSE, 2)),
        ("ENTER", Control::Overlay(enter), (REFUSE, REFUSE)),
        ("MEMBER", Control::Member { handle, member: 1, ticket: hash }, (REFUSE, REFUSE)),
        ("INVITE", invite, (REFUSE, REFUSE)),
        ("ASK", Control::Ask { handle, nonce: hash }, (23, 23)),
        ("PAIR", Control::Pair { handle, share: hash }, (28, 28)),
        ("PROVE", Control::Prove { share: hash, proof: hash }, (REFUSE, REFUSE)),
        ("JOIN", Control::Join { proof: hash, hello }, (REFUSE, 2)),
    ];
    let rows = first_frames();
    let named: Vec<&str> = rows.iter().map(|(frame, _)| frame.as_str()).collect();
    assert_eq!(named, samples.each_ref().map(|(name, ..)| *name), "the table has these rows");
    let open = rows.iter().filter(|(_, proof)| proof == "nothing").map(|(frame, _)| frame.as_str());
    assert_eq!(open.collect::<Vec<_>>(), ["ASK", "PAIR"], "these need nothing");
    let others = [Control::Alive, Control::Have(Vec::new()), Control::Root(hash), Control::Share(hash)];
    let others = others.map(|frame| ("another one", frame, (REFUSE, REFUSE)));
    let Ok(paired) = try_at(&source, code.code()) else { panic!("it knows the code") };
    for (name, frame, (to_stranger, to_member)) in samples.into_iter().chain(others) {
        for (security, expected) in [(None, to_stranger), (Some(paired.security()), to_member)] {
            let stream = FrameStream::connect(source.address, HANG, security.as_ref(), &Expected::Offerer);
            assert_eq!(answer_to(stream.unwrap(), &frame), Some(expected), "{name}, {}", security.is_some());
        }
    }
}

/// The kind of the first frame behind this one that is no ALIVE; `None` where the connection ends.
fn answer_to(mut stream: FrameStream, frame: &Control<'_>) -> Option<u8> {
    stream.send(frame).ok()?;
    loop {
        let said = match stream.next_frame().ok()? {
            Some(Control::Alive) => continue,
            Some(said) => {
                let mut bytes = Vec::new();
                said.emit(&mut bytes);
                return bytes.get(4).copied();
            }
            None => stream.fill().ok()?,
        };
        if !said {
            stream.wait(HANG).ok()?;
        }
    }
}
