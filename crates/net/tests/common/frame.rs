//! UDP packets as Ethernet frames, for tests of programs in the kernel.
#![allow(dead_code, reason = "each test program uses its part")]

use std::net::SocketAddrV4;

/// The sum over 16-bit words that a right packet makes all ones.
fn sum(bytes: &[u8]) -> u16 {
    let words = bytes.chunks(2).map(|word| u32::from(word[0]) << 8 | u32::from(*word.get(1).unwrap_or(&0)));
    let total: u32 = words.sum();
    let folded = (total & 0xffff) + (total >> 16);
    (folded + (folded >> 16)) as u16
}

/// The sum over a frame's UDP packet and the addresses around it.
fn udp_sum(frame: &[u8]) -> u16 {
    let udp = &frame[34..];
    let pseudo = [&frame[26..34], &[0, 17], &(udp.len() as u16).to_be_bytes()].concat();
    sum(&[&pseudo[..], udp].concat())
}

/// Returns true if the checksum of UDP is right.
pub(super) fn udp_is_right(frame: &[u8]) -> bool {
    udp_sum(frame) == 0xffff
}

/// Returns true if the checksums of IP and UDP are right.
pub(super) fn is_right(frame: &[u8]) -> bool {
    sum(&frame[14..34]) == 0xffff && udp_is_right(frame)
}

/// A frame with right sums.
pub(super) fn udp(from: SocketAddrV4, to: SocketAddrV4, payload: &[u8]) -> Vec<u8> {
    let mut frame = without_udp_sum(from, to, payload);
    let check = !udp_sum(&frame);
    // Zero would say that there is none; all ones means the same number.
    let check = if check == 0 { 0xffff } else { check };
    frame[40..42].copy_from_slice(&check.to_be_bytes());
    assert!(is_right(&frame));
    frame
}

/// A frame whose UDP packet has no sum, so that it stays right when its payload changes.
pub(super) fn without_udp_sum(from: SocketAddrV4, to: SocketAddrV4, payload: &[u8]) -> Vec<u8> {
    let udp_len = (8 + payload.len()) as u16;
    let mut frame = match to.ip().octets() {
        [224..=239, b, c, d] => vec![1, 0, 0x5e, b & 0x7f, c, d],
        _ => vec![2, 0, 0, 0, 0, 2],
    };
    frame.extend([2, 0, 0, 0, 0, 1, 8, 0]);
    frame.extend([0x45, 0]);
    frame.extend((20 + udp_len).to_be_bytes());
    frame.extend([0, 0, 0x40, 0, 64, 17, 0, 0]);
    frame.extend(from.ip().octets());
    frame.extend(to.ip().octets());
    let check = !sum(&frame[14..34]);
    frame[24..26].copy_from_slice(&check.to_be_bytes());
    frame.extend(from.port().to_be_bytes());
    frame.extend(to.port().to_be_bytes());
    frame.extend(udp_len.to_be_bytes());
    frame.extend([0, 0]);
    frame.extend(payload);
    frame
}
