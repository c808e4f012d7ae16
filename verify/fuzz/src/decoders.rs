//! Decoders: packets, words of devices, archives.

use polycast_net::archive::{Manifest, TreeSource, unpack};
use polycast_net::devices::circuits::{DIALECTS, Framing, dialect};
use polycast_net::devices::{openflow, tl1};
use polycast_net::object::ObjectSource;
use polycast_types::RangeSet;
use polycast_wire::control::Control;
use polycast_wire::data::{EXTENSION_LEN_MAX, HEADER_LEN, Header};
use polycast_wire::discovery::Discovery;
use polycast_wire::label;
use polycast_wire::pull;
use polycast_wire::rack::Rack;
use polycast_wire::reach::Reach;
use polycast_wire::stream;
use polycast_wire::switches;
use std::collections::BTreeSet;
use std::fs;
use std::os::unix::ffi::OsStrExt;

/// Checks that a header is written as the bytes that it was read from.
pub fn data_header(bytes: &[u8]) {
    if let Ok((header, len)) = Header::parse(bytes) {
        let mut buffer = [0; HEADER_LEN + EXTENSION_LEN_MAX];
        assert_eq!(header.emit(&mut buffer), len);
        let kept = len - header.tags_len();
        assert_eq!(&buffer[..kept], &bytes[..kept]);
    }
}

/// Checks that a labelled packet is written as the bytes that it was read from, and that switches read the
/// same.
pub fn label_header(bytes: &[u8]) {
    if let Ok((header, len)) = label::Header::parse(bytes) {
        let mut again = Vec::new();
        header.emit(&mut again);
        assert_eq!(again, &bytes[..len]);
        assert_eq!(label::Header::parse_for(bytes, header.label.len()), Ok((header, len)));
    }
    // Most bytes are no packet of any network.
    for label_len in [1, 3, 19, label::LABEL_LEN_MAX] {
        let read = label::Header::parse_for(bytes, label_len);
        assert!(read.is_err() || read.ok() == label::Header::parse(bytes).ok());
    }
}

/// Checks that a piece of a message is written as the bytes that it was read from.
pub fn stream_header(bytes: &[u8]) {
    let check = |datagram: &[u8]| {
        if let Ok((header, payload)) = stream::Header::parse(datagram) {
            let mut again = Vec::new();
            header.emit(&mut again);
            again.extend_from_slice(payload);
            assert_eq!(again, datagram);
        }
    };
    check(bytes);
    // Most bytes are of no kind.
    check(&[&[polycast_wire::VERSION, 7], bytes].concat());
}

/// Checks that a message to a label switch is written as the bytes that it was read from.
pub fn switch_words(bytes: &[u8]) {
    let check = |frame: &[u8]| {
        if let Ok(word) = switches::Word::parse(frame) {
            let mut again = Vec::new();
            word.emit(&mut again);
            assert_eq!(again, frame);
        }
    };
    check(bytes);
    // A fuzzer needs long to find the length field: give it one for free.
    check(&[&(bytes.len() as u16).to_be_bytes(), bytes].concat());
}

/// Checks that a frame is written as the bytes that it was read from.
pub fn control_frame(bytes: &[u8]) {
    let check = |frame: &[u8]| {
        if let Ok(control) = Control::parse(frame) {
            let mut again = Vec::new();
            control.emit(&mut again);
            assert_eq!(again, frame);
        }
    };
    check(bytes);
    // A fuzzer needs long to find the length field: give it one for free.
    check(&[&(bytes.len() as u32).to_be_bytes(), bytes].concat());
}

/// Checks that announcements and doctors' questions are written as the bytes that they were read from.
pub fn discovery(bytes: &[u8]) {
    if let Ok(message) = Discovery::parse(bytes) {
        assert_eq!(message.emit(), bytes);
    }
    if let Ok(message) = Reach::parse(bytes) {
        assert_eq!(message.emit(), bytes);
    }
}

/// Checks that a packet of the pull transport is written as the bytes that it was read from.
pub fn pull_packet(bytes: &[u8]) {
    match pull::Packet::parse(bytes) {
        Ok(pull::Packet::Transfer(header, payload)) => {
            assert_eq!([&header.emit()[..], payload].concat(), bytes)
        }
        Ok(pull::Packet::Greeting { heard }) => assert_eq!(pull::greeting(heard), bytes),
        Err(_) => {}
    }
}

/// Checks that a controller's message is written as the bytes that it was read from.
pub fn rack(bytes: &[u8]) {
    if let Ok(message) = Rack::parse(bytes) {
        let mut again = Vec::new();
        message.emit(&mut again);
        assert_eq!(again, bytes);
    }
}

/// Checks that an OpenFlow message decoded from any bytes can be written, and is read as the same again; a
/// machine that receives them ends in good order.
pub fn openflow(bytes: &[u8]) {
    let check = |message: &[u8]| {
        if let Ok((message, transaction)) = openflow::Message::parse(message) {
            assert_eq!(openflow::Message::parse(&message.emit(transaction)), Ok((message, transaction)));
        }
    };
    check(bytes);
    // A fuzzer needs long to find version and length: give them for free.
    let mut message = bytes.to_vec();
    if let (Ok(len), Some(header)) = (u16::try_from(bytes.len()), message.first_chunk_mut::<4>()) {
        header[0] = openflow::VERSION;
        header[2..].copy_from_slice(&len.to_be_bytes());
        check(&message);
    }
    let mut session = openflow::Session::new();
    session.apply(&[]);
    for piece in message.chunks(7) {
        if session.receive(piece).is_err() {
            break;
        }
    }
    while session.poll().is_some() {}
}

/// Whatever a circuit switch says, cut anywhere, the machine reads the same, and answers only what was asked.
pub fn tl1(bytes: &[u8]) {
    let Ok(plain) = dialect("plain", 24) else { return };
    let events = |piece_len: usize| {
        let mut session = tl1::Session::new();
        let tag = session.request(&plain.retrieve());
        let ended = bytes.chunks(piece_len).any(|piece| session.receive(piece).is_err());
        let events: Vec<_> = std::iter::from_fn(|| session.poll()).collect();
        let done = events.iter().filter(|event| matches!(event, tl1::Event::Done { .. })).count();
        assert_eq!(done + session.pending(), 1, "tag {tag:?}");
        (ended, events)
    };
    assert_eq!(events(bytes.len().max(1)), events(1));
    let text = String::from_utf8_lossy(bytes);
    for dialect in DIALECTS.iter().filter_map(|name| dialect(name, 24).ok()) {
        // Neither end panics, and what is read as a circuit is written as one.
        let _ = dialect.parse(&text);
        for held in dialect.circuits(&text).unwrap_or_default() {
            let lines = dialect.list(&[held.circuit], 24);
            let again = lines.iter().flat_map(|line| dialect.circuits(line).unwrap_or_default());
            assert!(dialect.framing() == Framing::Tl1 || again.count() == 1);
        }
    }
}

/// No stream makes anything appear outside the target, or half of something inside; what does
/// unpack can be packed and unpacked again, to the same stream.
pub fn archive_unpack(bytes: &[u8]) {
    let stream = with_check_sums(bytes);
    let place = tempfile::tempdir_in(stage()).unwrap();
    let inner = place.path().join("inner");
    fs::create_dir(&inner).unwrap();
    let target = inner.join("target");
    let outcome = unpack(stream.as_slice(), &target, false);
    assert_eq!(fs::read_dir(place.path()).unwrap().count(), 1);
    assert_eq!(fs::read_dir(&inner).unwrap().count(), usize::from(outcome.is_ok()));
    if outcome.is_ok()
        && let Ok(packed) = stream_of(&target)
    {
        let again = inner.join("again");
        unpack(packed.as_slice(), &again, false).unwrap();
        assert_eq!(stream_of(&again).unwrap(), packed);
    }
}

/// A list of files that is taken is written as what is read as the same, and becomes a directory of those
/// files or none.
pub fn set_list(bytes: &[u8]) {
    let Ok(list) = Manifest::parse(&with_check_sums(bytes)) else { return };
    assert_eq!(Manifest::parse(&list.to_bytes()).expect("it was read before"), list);
    let total = list.files().map(|file| file.len).sum::<u64>();
    if total > FILES_BYTES_MAX {
        return;
    }
    // What a file's bytes are is another object's business: here they are zeros.
    let place = tempfile::tempdir_in(stage()).unwrap();
    let path_of = |root: &[u8; 32]| place.path().join(name_of_root(root));
    for file in list.files() {
        fs::write(path_of(&file.root), vec![0; file.len as usize]).unwrap();
    }
    let source = list.source(path_of);
    let mut stream = vec![0; source.len() as usize];
    source.read_exact_at(&mut stream, 0).unwrap();
    let target = place.path().join("target");
    if unpack(stream.as_slice(), &target, false).is_err() {
        // The file system has limits of its own.
        return assert!(fs::symlink_metadata(&target).is_err(), "half of a directory is there");
    }
    for file in list.files() {
        let path = target.join(std::ffi::OsStr::from_bytes(file.name));
        let found = fs::symlink_metadata(&path).unwrap();
        assert!(found.is_file() && found.len() == file.len, "{}", path.display());
    }
}

/// Files of a list that are longer together are not written.
const FILES_BYTES_MAX: u64 = 1 << 20;

fn name_of_root(root: &[u8; 32]) -> String {
    root.iter().map(|byte| format!("{byte:02x}")).collect()
}

pub(crate) fn stage() -> std::path::PathBuf {
    let memory = std::path::PathBuf::from("/dev/shm");
    if memory.is_dir() { memory } else { std::env::temp_dir() }
}

fn stream_of(tree: &std::path::Path) -> Result<Vec<u8>, Box<dyn std::error::Error>> {
    let source = TreeSource::open(tree)?;
    let mut bytes = vec![0; source.len() as usize];
    source.read_exact_at(&mut bytes, 0)?;
    Ok(bytes)
}

/// Mends the check sum of every block that looks like a header: a fuzzer can't guess one.
fn with_check_sums(bytes: &[u8]) -> Vec<u8> {
    let mut stream = bytes.to_vec();
    for block in stream.as_chunks_mut::<512>().0 {
        if &block[257..262] == b"ustar" {
            block[148..156].fill(b' ');
            let sum: u32 = block.iter().map(|byte| u32::from(*byte)).sum();
            block[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
        }
    }
    stream
}

/// Any operations on a set of ranges agree with a plain set of numbers.
pub fn range_set(bytes: &[u8]) {
    let mut set = RangeSet::new();
    let mut model = BTreeSet::new();
    for operation in bytes.as_chunks::<3>().0 {
        let start = u64::from(operation[1]);
        let range = start..start + u64::from(operation[2] % 32);
        match operation[0] % 4 {
            0 => {
                let added = range.clone().filter(|value| model.insert(*value)).count();
                assert_eq!(set.insert(range), added as u64);
            }
            1 => {
                let removed = range.clone().filter(|value| model.remove(value)).count();
                assert_eq!(set.remove(range), removed as u64);
            }
            2 => {
                let inside: Vec<u64> = set.iter_within(range.clone()).flatten().collect();
                assert_eq!(inside, model.range(range.clone()).copied().collect::<Vec<_>>());
                assert_eq!(set.covers(range.clone()), range.clone().all(|value| model.contains(&value)));
                let gaps: Vec<u64> = set.gaps(range.clone()).into_iter().flatten().collect();
                assert_eq!(gaps, range.filter(|value| !model.contains(value)).collect::<Vec<_>>());
            }
            _ => {
                assert_eq!(set.first_present(start), model.range(start..).next().copied());
                let missing = (start..).find(|value| !model.contains(value));
                assert_eq!(Some(set.first_missing(start)), missing);
            }
        }
        assert_eq!(set.len(), model.len() as u64);
    }
    let runs: Vec<_> = set.iter().collect();
    assert!(runs.windows(2).all(|pair| pair[0].end < pair[1].start), "ranges touch: {runs:?}");
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::noise::Noise;

    type Target = fn(&[u8]);

    fn on_noise(rounds: u32, target: Target) {
        let mut noise = Noise(0x1234_5678);
        for _ in 0..rounds {
            target(&noise.bytes(200));
        }
    }

    #[test]
    fn decoders_keep_their_promises_on_noise() {
        on_noise(20_000, data_header);
        on_noise(20_000, label_header);
        on_noise(20_000, stream_header);
        on_noise(20_000, switch_words);
        on_noise(20_000, control_frame);
        on_noise(20_000, discovery);
        on_noise(20_000, pull_packet);
        on_noise(20_000, openflow);
        on_noise(20_000, rack);
        // Noise seldom begins like a message: give it the head for free.
        on_noise(20_000, |bytes| rack(&[&[1, 1 + bytes.first().map_or(0, |byte| byte % 5)], bytes].concat()));
        on_noise(5_000, tl1);
        on_noise(2_000, range_set);
        on_noise(200, archive_unpack);
    }

    #[test]
    fn outputs_of_switches_with_random_damage_keep_the_promises() {
        let flow = openflow::FlowMod::add(
            1,
            openflow::Match::udp().and(openflow::Field::InPort(3)),
            vec![openflow::Action::Group(1), openflow::Action::SetQueue(2)],
        );
        let group = openflow::GroupMod::to_ports(1, [1, 2, 3]);
        let texts = "\r\n\n   OCS 26-11-21 09:30:00\r\nM  1 COMPLD\r\n   \"1,2:a\\\"b\"\r\n>\r\n\n   OCS 26-11-21 09:30:00\
                     \r\nM  1 DENY\r\n   IIAC\r\n   /* no; */\r\n;IP 1\r\n<\r\n\n   OCS 26-11-21 09:30:00\r\n*C 1 REPT\r\n;";
        let seeds: [(Target, Vec<u8>); 3] = [
            (openflow, openflow::Message::FlowMod(flow).emit(1)),
            (openflow, openflow::Message::GroupMod(group).emit(1)),
            (tl1, texts.as_bytes().to_vec()),
        ];
        let mut noise = Noise(0x5555_1234);
        for (target, seed) in seeds {
            target(&seed);
            for _ in 0..5_000 {
                let mut damaged = seed.clone();
                for _ in 0..1 + noise.next() % 4 {
                    let at = noise.next() as usize % damaged.len();
                    damaged[at] = match noise.next() % 2 {
                        0 => noise.next() as u8,
                        _ => seed[noise.next() as usize % seed.len()],
                    };
                }
                target(&damaged);
            }
        }
    }

    #[test]
    fn archives_with_random_damage_keep_the_promises() {
        let place = tempfile::tempdir_in(stage()).unwrap();
        let tree = place.path().join("tree");
        fs::create_dir_all(tree.join("sub")).unwrap();
        fs::write(tree.join("sub/file"), [9; 700]).unwrap();
        fs::write(tree.join("x".repeat(150)), b"long").unwrap();
        std::os::unix::fs::symlink("sub/file", tree.join("link")).unwrap();
        let seed = stream_of(&tree).unwrap();
        archive_unpack(&seed);
        let mut noise = Noise(0x8765_4321);
        for _ in 0..2_000 {
            let mut damaged = seed.clone();
            for _ in 0..1 + noise.next() % 4 {
                let at = noise.next() as usize % damaged.len();
                damaged[at] = match noise.next() % 4 {
                    0 => b'/',
                    1 => b'.',
                    2 => noise.next() as u8,
                    _ => damaged[noise.next() as usize % seed.len()],
                };
            }
            archive_unpack(&damaged);
        }
    }
}
