//! Labelled packets as Ethernet frames, for agents in user space.

use polycast_wire::label::Fault;

const IP_AT: usize = 14;
const UDP_AT: usize = IP_AT + 20;
const HEADER_AT: usize = UDP_AT + 8;
const CHECKSUM_AT: usize = UDP_AT + 6;

/// Lets `relabel` change the UDP payload of a frame, and mends the check sum.
///
/// # Errors
/// It is no UDP datagram over IPv4 without options, or what `relabel` says.
pub fn relabel_frame(
    frame: &mut [u8],
    relabel: impl FnOnce(&mut [u8]) -> Result<(), Fault>,
) -> Result<(), Fault> {
    let is_udp = frame.len() >= HEADER_AT && frame[12..15] == [8, 0, 0x45] && frame[IP_AT + 9] == 17;
    if !is_udp {
        return Err(Fault::Malformed);
    }
    let (front, payload) = frame.split_at_mut(HEADER_AT);
    let before = sum(payload);
    relabel(payload)?;
    let checksum = u16::from_be_bytes([front[CHECKSUM_AT], front[CHECKSUM_AT + 1]]);
    // A datagram without check sum keeps none (RFC 768); else the change is added (RFC 1624).
    if checksum != 0 {
        let mended = !fold(u32::from(!checksum) + u32::from(!before) + u32::from(sum(payload)));
        front[CHECKSUM_AT..HEADER_AT]
            .copy_from_slice(&(if mended == 0 { 0xffff } else { mended }).to_be_bytes());
    }
    Ok(())
}

/// The sum over words of 16 bits, with carries added (RFC 1071).
fn sum(bytes: &[u8]) -> u16 {
    let (words, rest) = bytes.as_chunks::<2>();
    // A frame has fewer than 65,536 words: the sum fits.
    let total: u32 = words.iter().map(|word| u32::from(u16::from_be_bytes(*word))).sum();
    fold(total + rest.first().map_or(0, |byte| u32::from(*byte) << 8))
}

fn fold(mut sum: u32) -> u16 {
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn frame(payload: &[u8]) -> Vec<u8> {
        let mut frame = vec![0; HEADER_AT];
        frame[12..15].copy_from_slice(&[8, 0, 0x45]);
        frame[IP_AT + 9] = 17;
        frame[UDP_AT..UDP_AT + 4].copy_from_slice(&[1, 2, 3, 4]);
        frame.extend_from_slice(payload);
        // Zero would say that there is no sum.
        let whole = match !sum(&frame[UDP_AT..]) {
            0 => 0xffff,
            sum => sum,
        };
        frame[CHECKSUM_AT..HEADER_AT].copy_from_slice(&whole.to_be_bytes());
        frame
    }

    proptest! {
        #[test]
        fn check_sums_stay_right(
            payload in proptest::collection::vec(any::<u8>(), 1..3_000), at: u16, byte: u8,
        ) {
            let at = usize::from(at) % payload.len();
            let mut changed = frame(&payload);
            relabel_frame(&mut changed, |payload| { payload[at] = byte; Ok(()) }).unwrap();
            prop_assert_eq!(changed[HEADER_AT + at], byte);
            prop_assert_eq!(sum(&changed[UDP_AT..]), 0xffff);
        }
    }

    #[test]
    fn what_is_no_datagram_is_refused() {
        let whole = frame(&[1, 2, 3]);
        for cut in 0..HEADER_AT {
            assert_eq!(relabel_frame(&mut whole.clone()[..cut], |_| Ok(())), Err(Fault::Malformed));
        }
        for (at, byte) in [(12, 9), (14, 0x46), (IP_AT + 9, 6)] {
            let mut wrong = whole.clone();
            wrong[at] = byte;
            assert_eq!(relabel_frame(&mut wrong, |_| Ok(())), Err(Fault::Malformed));
        }
        let mut none = whole.clone();
        none[CHECKSUM_AT..HEADER_AT].fill(0);
        relabel_frame(&mut none, |payload| {
            payload[0] = 9;
            Ok(())
        })
        .unwrap();
        assert_eq!(none[CHECKSUM_AT..HEADER_AT], [0, 0]);
        assert_eq!(relabel_frame(&mut none, |_| Err(Fault::UnknownSession)), Err(Fault::UnknownSession));
    }
}
