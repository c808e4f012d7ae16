//! Filter of the datagrams that a receiver takes. The kernel drops all others, before they take room in the
//! socket.

use polycast_types::Handle;
use polycast_wire::VERSION;
use polycast_wire::label::FIXED_LEN;
use socket2::{SockFilter, Socket};
use std::io;
use std::net::IpAddr;

/// Datagrams that a receiver takes: those of one transfer or stream, in our version of the format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Only {
    /// The address that they come from, where that is known.
    pub source: Option<IpAddr>,
    /// Handle that they carry; none where several senders have one each.
    pub handle: Option<Handle>,
    /// Bytes that the network puts before them.
    pub outer: Outer,
}

/// Bytes that the network puts before every datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outer {
    /// So many bytes.
    Bytes(u8),
    /// A label, which says how long it is.
    Label,
}

/// The filter sees a datagram from its UDP header on.
const UDP_LEN: u32 = 8;
/// Offset of the source's address, counted from the IP header, of either family.
const IP_SOURCE_AT: u32 = 12;
const IPV6_SOURCE_AT: u32 = 8;
/// Both formats, of objects and of messages, have the handle here.
const HANDLE_AT: u32 = 8;
/// The second byte of a labelled packet is the label's length.
const LABEL_LEN_AT: u32 = 1;
/// Offsets from here on count from the IP header (`SKF_NET_OFF`, -0x100000).
const NET_OFFSET: u32 = 0xfff0_0000;

const LOAD_WORD: u16 = (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16;
const LOAD_WORD_AT_X: u16 = (libc::BPF_LD | libc::BPF_W | libc::BPF_IND) as u16;
const LOAD_BYTE: u16 = (libc::BPF_LD | libc::BPF_B | libc::BPF_ABS) as u16;
const LOAD_BYTE_AT_X: u16 = (libc::BPF_LD | libc::BPF_B | libc::BPF_IND) as u16;
const SET_X: u16 = (libc::BPF_LDX | libc::BPF_W | libc::BPF_IMM) as u16;
const TO_X: u16 = (libc::BPF_MISC | libc::BPF_TAX) as u16;
const ADD: u16 = (libc::BPF_ALU | libc::BPF_ADD | libc::BPF_K) as u16;
const AND: u16 = (libc::BPF_ALU | libc::BPF_AND | libc::BPF_K) as u16;
const IF_EQUAL: u16 = (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16;
const RETURN: u16 = (libc::BPF_RET | libc::BPF_K) as u16;

impl Only {
    /// Tells the kernel. What comes from now on is dropped unless it is wanted; what is too short to say so
    /// is, too.
    pub(super) fn attach(&self, socket: &Socket) -> io::Result<()> {
        socket.attach_filter(&self.program())
    }

    fn program(&self) -> Vec<SockFilter> {
        let one = |code, k| SockFilter::new(code, 0, 0, k);
        // A load and the word that it must give; else the datagram is dropped right there.
        let must = |code, at, word| [one(code, at), SockFilter::new(IF_EQUAL, 1, 0, word), one(RETURN, 0)];
        let mut program = Vec::new();
        let words = match self.source {
            None => Vec::new(),
            Some(IpAddr::V4(source)) => vec![(IP_SOURCE_AT, source.to_bits())],
            Some(IpAddr::V6(source)) => {
                let (words, _) = source.octets().as_chunks::<4>().0.iter().fold(
                    (Vec::new(), IPV6_SOURCE_AT),
                    |(mut words, at), word| {
                        words.push((at, u32::from_be_bytes(*word)));
                        (words, at + 4)
                    },
                );
                words
            }
        };
        for (at, word) in words {
            program.extend(must(LOAD_WORD, NET_OFFSET + at, word));
        }
        match self.outer {
            Outer::Bytes(len) => program.push(one(SET_X, len.into())),
            Outer::Label => program.extend([
                one(LOAD_BYTE, UDP_LEN + LABEL_LEN_AT),
                one(ADD, 3),
                one(AND, !3),
                one(ADD, FIXED_LEN as u32),
                one(TO_X, 0),
            ]),
        }
        program.extend(must(LOAD_BYTE_AT_X, UDP_LEN, VERSION.into()));
        if let Some(Handle(handle)) = self.handle {
            program.extend(must(LOAD_WORD_AT_X, UDP_LEN + HANDLE_AT, (handle >> 32) as u32));
            program.extend(must(LOAD_WORD_AT_X, UDP_LEN + HANDLE_AT + 4, handle as u32));
        }
        program.push(one(RETURN, u32::MAX));
        program
    }
}
