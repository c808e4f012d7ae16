//! Examples of sealed content and packets, so that sealing never changes unseen; the second implementation of
//! the tests reads them too. `POLYCAST_GOLDEN=write` writes them again.

use polycast_net::seal::{Seal, Secret};
use polycast_types::Handle;
use std::fmt::Write as _;

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        write!(text, "{byte:02x}").expect("a string takes all");
        text
    })
}

fn example(number: u8, sn: u64, offset: u64, len: usize, header_len: usize) -> String {
    let secret: [u8; 32] = std::array::from_fn(|at| number.wrapping_mul(31).wrapping_add(at as u8));
    let handle = 0x0102_0304_0506_0700 + u64::from(number);
    let seal = Seal::new(&Secret::new(secret), Handle(handle));
    let plain: Vec<u8> = (0..len).map(|at| (at * 7 + usize::from(number)) as u8).collect();
    let header: Vec<u8> = (0..header_len).map(|at| (at * 3 + 1) as u8).collect();
    let mut sealed = plain.clone();
    let content_tag = seal.seal(sn, &mut sealed);
    let mut piece = sealed.clone();
    seal.turn(sn, offset, &mut piece);
    let connection_key = Secret::new(secret).derive("polycast 3 connections", &[]);
    format!(
        "{{\"secret\": \"{}\", \"handle\": {handle}, \"sn\": {sn}, \"plain\": \"{}\", \"sealed\": \"{}\", \
         \"content_tag\": \"{}\", \"offset\": {offset}, \"piece\": \"{}\", \"header\": \"{}\", \"tag\": \"{}\", \
         \"connection_key\": \"{}\"}}",
        hex(&secret),
        hex(&plain),
        hex(&sealed),
        hex(&content_tag),
        hex(&piece),
        hex(&header),
        hex(&seal.tag_of(&header, &sealed)),
        hex(connection_key.reveal()),
    )
}

#[test]
fn content_and_packets_are_sealed_as_kept() {
    let examples = [
        example(1, 0, 0, 64, 24),
        example(2, 7, 0, 1, 32),
        example(3, 1 << 40, 262_143, 1, 24),
        example(4, 5, 1_417, 100, 44),
        example(5, 9, 16, 0, 24),
    ];
    let text = format!("[\n{}\n]\n", examples.join(",\n"));
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden/seal.json");
    if std::env::var("POLYCAST_GOLDEN").as_deref() == Ok("write") {
        std::fs::write(path, &text).unwrap();
    }
    assert_eq!(std::fs::read_to_string(path).unwrap(), text);
}
