use super::super::shared;
use super::*;
use crate::seal::Secret;
use proptest::prelude::*;
use rustls::pki_types::ServerName;
use rustls::{ClientConnection, Connection, ServerConnection};
use std::collections::VecDeque;
use std::net::Ipv4Addr;
use std::sync::Arc;

/// One direction of a connection: what is written and not read, of which each read gives so much at most.
#[derive(Default)]
struct Wire {
    bytes: VecDeque<u8>,
    most: usize,
    is_closed: bool,
}

impl Wire {
    fn of(most: usize) -> Self {
        Wire { most, ..Wire::default() }
    }
}

impl Read for Wire {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        let len = to.len().min(self.most).min(self.bytes.len());
        if len == 0 && !self.is_closed {
            return Err(ErrorKind::WouldBlock.into());
        }
        to[..len].iter_mut().for_each(|byte| *byte = self.bytes.pop_front().expect("there are so many"));
        Ok(len)
    }
}

impl Write for Wire {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let len = bytes.len().min(self.most);
        self.bytes.extend(&bytes[..len]);
        Ok(len)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn exchange(tls: &mut Connection, from: &mut Wire, to: &mut Wire) {
    while !from.bytes.is_empty() {
        tls.read_tls(from).unwrap();
        tls.process_new_packets().unwrap();
    }
    while tls.wants_write() {
        tls.write_tls(to).unwrap();
    }
}

/// Both ends of a connection whose hands are shaken, as rustls has them.
fn shaken() -> (Connection, Connection) {
    let configs = shared::configs(&Secret::new([7; 32]), None);
    let name = ServerName::from(std::net::IpAddr::V4(Ipv4Addr::UNSPECIFIED));
    let mut client = Connection::Client(ClientConnection::new(Arc::new(configs.client), name).unwrap());
    let mut server = Connection::Server(ServerConnection::new(Arc::new(configs.server)).unwrap());
    let (mut up, mut down) = (Wire::of(usize::MAX), Wire::of(usize::MAX));
    while client.is_handshaking() || server.is_handshaking() || client.wants_write() || server.wants_write() {
        exchange(&mut client, &mut down, &mut up);
        exchange(&mut server, &mut up, &mut down);
    }
    (client, server)
}

fn records(tls: Connection) -> Records {
    Records::new(&tls.dangerous_extract_secrets().unwrap(), Vec::new(), Vec::new()).unwrap()
}

fn noise(len: usize, seed: u64) -> Vec<u8> {
    (0..len as u64).map(|at| (at.wrapping_mul(31).wrapping_add(seed) ^ (at >> 9)) as u8).collect()
}

/// Reads some bytes.
fn read(records: &mut Records, wire: &mut Wire, wanted: usize) -> Result<Vec<u8>, FrameError> {
    let mut room = vec![0; room_for(wanted)];
    let len = records.read(wire, &mut room, wanted)?;
    assert!(len <= wanted);
    room.truncate(len);
    Ok(room)
}

/// Reads all that is there.
fn read_all(records: &mut Records, wire: &mut Wire, piece: usize) -> Result<Vec<u8>, FrameError> {
    let mut all = Vec::new();
    loop {
        match read(records, wire, piece) {
            Ok(bytes) if bytes.is_empty() => return Ok(all),
            Ok(bytes) => all.extend(bytes),
            Err(FrameError::Io(error)) if error.kind() == ErrorKind::WouldBlock => return Ok(all),
            Err(error) => return Err(error),
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Whatever is written comes as it was, in any pieces, and what is said to be there without a read is.
    #[test]
    fn bytes_come_as_they_were(
        lens in proptest::collection::vec(0usize..100_000, 1..6),
        most in 1usize..80_000,
        piece in 1usize..200_000,
    ) {
        let (client, server) = shaken();
        let (mut client, mut server) = (records(client), records(server));
        let mut wire = Wire::of(most.max(600));
        let (mut sent, mut got) = (Vec::new(), Vec::new());
        for (seed, len) in lens.into_iter().enumerate() {
            let bytes = noise(len, seed as u64);
            let mut left = &bytes[..];
            while !left.is_empty() {
                let taken = client.write(&mut wire, left).unwrap();
                left = &left[taken..];
            }
            sent.extend(bytes);
            let there = server.unread();
            if there > 0 {
                let before = wire.bytes.len();
                let read = read(&mut server, &mut wire, there).unwrap();
                let all = read.len() == there && wire.bytes.len() == before;
                prop_assert!(all, "{} of {there} were there", read.len());
                got.extend(read);
            }
            prop_assert!(server.to_come(1 << 20) <= (1 << 20) + 65 * ADDED_LEN);
            got.extend(read_all(&mut server, &mut wire, piece).unwrap());
        }
        prop_assert!(got == sent, "{} of {} bytes", got.len(), sent.len());
        client.finish(&mut wire);
        prop_assert_eq!(read(&mut server, &mut wire, 1).unwrap().len(), 0, "the other end says that it is over");
    }

    /// Bytes that were changed on their way are not accepted, nor is anything after them; those that came
    /// before are.
    #[test]
    fn what_is_changed_is_not_taken(at in 0usize..200_000, bit in 0u8..8, piece in 1usize..100_000) {
        let (client, server) = shaken();
        let (mut client, mut server) = (records(client), records(server));
        let mut wire = Wire::of(usize::MAX);
        let bytes = noise(60_000, 1);
        prop_assert_eq!(client.write(&mut wire, &bytes).unwrap(), bytes.len());
        let at = at % wire.bytes.len();
        wire.bytes[at] ^= 1 << bit;
        let mut got = Vec::new();
        let failed = loop {
            match read(&mut server, &mut wire, piece) {
                Ok(bytes) => got.extend(bytes),
                Err(error) => break error,
            }
        };
        prop_assert!(bytes.starts_with(&got) && got.len() < bytes.len(), "{} bytes", got.len());
        // A record may seem to be longer than what there is.
        let waits = matches!(&failed, FrameError::Io(error) if error.kind() == ErrorKind::WouldBlock);
        prop_assert!(waits || matches!(failed, FrameError::Seal(_)), "{failed:?}");
        prop_assert!(waits || read(&mut server, &mut wire, piece).is_err(), "it stays so");
    }
}

/// The other end may be rustls itself: it reads what is sealed here, and what it seals is read here.
#[test]
fn rustls_is_understood_and_understands() {
    let (client, mut server) = shaken();
    let mut client = records(client);
    let (mut up, mut down) = (Wire::of(usize::MAX), Wire::of(usize::MAX));
    for len in [1, 5, 16_383, 16_384, 16_385, 60_000] {
        let bytes = noise(len, 3);
        client.write(&mut up, &bytes).unwrap();
        let mut got = Vec::new();
        while got.len() < len {
            server.read_tls(&mut up).unwrap();
            server.process_new_packets().unwrap();
            let mut piece = vec![0; len];
            match server.reader().read(&mut piece) {
                Ok(read) => got.extend_from_slice(&piece[..read]),
                Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock),
            }
        }
        assert!(got == bytes);
        server.writer().write_all(&bytes).unwrap();
        while server.wants_write() {
            server.write_tls(&mut down).unwrap();
        }
        assert!(read_all(&mut client, &mut down, 1 << 18).unwrap() == bytes);
    }
    server.send_close_notify();
    while server.wants_write() {
        server.write_tls(&mut down).unwrap();
    }
    assert_eq!(read(&mut client, &mut down, 1).unwrap().len(), 0);
    client.finish(&mut up);
    server.read_tls(&mut up).unwrap();
    assert!(server.process_new_packets().unwrap().peer_has_closed());
}

/// An alert that rustls sends when something is wrong is received.
#[test]
fn an_alert_is_heard() {
    let (client, mut server) = shaken();
    let mut client = records(client);
    let (mut up, mut down) = (Wire::of(usize::MAX), Wire::of(usize::MAX));
    up.write_all(&[APPLICATION_DATA, 3, 3, 0, 20]).unwrap();
    up.write_all(&[9; 20]).unwrap();
    server.read_tls(&mut up).unwrap();
    assert!(server.process_new_packets().is_err());
    while server.wants_write() {
        server.write_tls(&mut down).unwrap();
    }
    let heard = read(&mut client, &mut down, 1).unwrap_err();
    assert!(heard.to_string().contains("BadRecordMac"), "{heard}");
}

/// One that sends records without an end and without a byte is given up.
#[test]
fn empty_records_are_not_read_for_ever() {
    for wanted in [1, 1 << 18] {
        let (client, server) = shaken();
        let (mut client, mut server) = (records(client), records(server));
        let mut wire = Wire::of(usize::MAX);
        for _ in 0..=EMPTY_MAX {
            client.seal(APPLICATION_DATA, 0, |_| Ok(())).unwrap();
        }
        client.flush(&mut wire).unwrap();
        assert!(matches!(read(&mut server, &mut wire, wanted), Err(FrameError::Seal(_))));
    }
}

/// Records that come whole and fit are opened where they are wanted: of what is said in frames, nothing is
/// kept but pieces of records.
#[test]
fn what_fits_is_opened_where_it_is_wanted() {
    let (client, server) = shaken();
    let (mut client, mut server) = (records(client), records(server));
    let mut wire = Wire::of(usize::MAX);
    let bytes = noise(WRITE_LEN_MAX, 4);
    for len in [WRITE_LEN_MAX, WRITE_LEN_MAX - 1, 1, PLAIN_LEN_MAX, PLAIN_LEN_MAX + 1] {
        assert_eq!(client.write(&mut wire, &bytes[..len]).unwrap(), len);
        let wanted = len.max(PLAIN_LEN_MAX);
        assert!(read(&mut server, &mut wire, wanted).unwrap() == bytes[..len]);
        assert!(server.unread() == 0 && server.until == 0, "{len}: something is left");
    }
}

/// Bytes that are read from elsewhere go out in records as those in memory do; where they cannot be read,
/// nothing follows.
#[test]
fn what_is_read_for_a_record_comes_as_it_was() {
    let (client, server) = shaken();
    let (mut client, mut server) = (records(client), records(server));
    let mut wire = Wire::of(usize::MAX);
    let bytes = noise(200_000, 5);
    let mut sent = 0;
    while sent < bytes.len() {
        let left = &bytes[sent..];
        let read = |at: usize, room: &mut [u8]| {
            room.copy_from_slice(&left[at..at + room.len()]);
            Ok(())
        };
        sent += client.write_with(&mut wire, left.len(), read).unwrap();
    }
    assert!(read_all(&mut server, &mut wire, 70_000).unwrap() == bytes);
    let fails = |at: usize, _: &mut [u8]| match at {
        0 => Ok(()),
        _ => Err(ErrorKind::UnexpectedEof.into()),
    };
    assert!(matches!(client.write_with(&mut wire, 20_000, fails), Err(FrameError::Io(_))));
    assert!(matches!(client.write(&mut wire, &[1]), Err(FrameError::Closed)));
}

/// A key that has sealed so many records that more would be too much ends its connection.
#[test]
fn a_key_seals_no_more_than_it_may() {
    let (client, _) = shaken();
    let mut client = records(client);
    client.seals.next = RECORDS_MAX - 1;
    let mut wire = Wire::of(usize::MAX);
    assert_eq!(client.write(&mut wire, &[1]).unwrap(), 1);
    assert!(matches!(client.write(&mut wire, &[1]), Err(FrameError::Closed)));
}
