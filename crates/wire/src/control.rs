//! Frames of the control channel: Republic's Table III and the hand-shake around it.
//!
//! A frame is a 4-byte length (of what follows), a 1-byte kind and a body. The control channel is one TCP
//! connection between the source and each receiver, opened by the receiver:
//!
//! ```text
//! receiver -> source   HELLO
//! source -> receiver   WELCOME, SEAL, HASHES ..  (or REFUSE; SEAL only where the connection is sealed)
//! receiver -> source   HAVE                      what it holds already; it is ready
//!                      .. data channel ..
//! receiver -> source   INTL_SEQ, PROGRESS .., PTCH_REQ ..
//! source -> receiver   PTCH_DATA .., DATA_FNSD
//! receiver -> source   DATA_RCVD
//! source -> receiver   FINISHED                  the transfer is over for all
//! ```
//!
//! Receivers that multicast does not reach bring the object to each other in GROUPs, with the frames of
//! [`Overlay`]. INVITE opens a transfer at an agent. Where receivers share a rack, one may speak for all of
//! it (Orca appendix A.4): the source says GATHER to that one and SPEAKER to the others, these say MEMBER to
//! it and then PROGRESS and PTCH_REQ, and it says RACK, PROGRESS and RACK_REQ to the source.
//!
//! A pull transfer (Datacast section 3.1) has the same hand-shake, without a data channel of its own: behind
//! WELCOME come TREES, a ROUTE for every tree, and ROOTS, and later a ROUTE for every tree that is repaired.
//!
//! A receiver may say ASK before: OFFERED tells what the source offers. Where an offer has a code, PAIR,
//! SHARE, PROVE and PAIRED come first, on a connection of their own: the two ends see that both know it, and
//! the receiver learns the offer's secret. With that it opens sealed connections; on one that is not, it says
//! JOIN in place of HELLO, which proves that it has the secret.

mod overlay;

pub use overlay::{
    CAME_MAX, CANDIDATES_MAX, CameFrom, CandidateEnd, ENTER_RANGES_MAX, End, Fault, OVERLAY_RANGES_MAX,
    Overlay, Share, WANT_MAX,
};

use crate::cursor::{NAME_LEN_MAX, Put, Reader, SENTENCE_LEN_MAX};
use crate::discovery::{CodeSign, emit_sign, parse_sign};
use crate::permit::ShownPermit;
use crate::pull::{DIGEST_LEN, Digest, HOPS_MAX};
use crate::{VERSION, WireError};
use alloc::boxed::Box;
use alloc::vec::Vec;
use core::net::{IpAddr, Ipv4Addr};
use core::ops::Range;
use polycast_types::{AppId, DataId, Handle, LOCATION_LEN_MAX, ModificationTime, ObjectId};

/// The longest frame, length field not counted.
pub const FRAME_LEN_MAX: usize = 2 << 20;
/// Stands for no block in a ROUTE.
const NO_BLOCK: u32 = u32::MAX;
/// The longest frame that is taken on an accepted connection before its HELLO or MEMBER is accepted, length
/// field not counted.
pub const FIRST_FRAME_LEN_MAX: usize = 64 << 10;
/// Bytes of the length field.
pub const LENGTH_LEN: usize = 4;
/// Maximum number of ranges in one HAVE or PTCH_REQ.
pub const RANGES_MAX: usize = 4_096;
/// Maximum number of hashes in one HASHES.
pub const HASHES_MAX: usize = 8_192;
/// Maximum number of sums in one SUMS.
pub const SUMS_MAX: usize = 32_768;
/// Maximum number of digests in one ROOTS.
pub const DIGESTS_MAX: usize = 32_768;
/// The longest time between two PROGRESS of a pull transfer's receiver, and the longest time to ask again, in
/// milliseconds.
pub const PULL_TIME_MAX_MS: u32 = 60_000;

/// All permissions that a file may bring along: those to read, write and execute.
pub const MODE_MAX: u16 = 0o777;

/// Maximum number of receivers that a rack's speaker may speak for.
pub const MEMBERS_MAX: usize = 256;

/// A BLAKE3 hash or chaining value.
pub type Hash = [u8; 32];

/// Content of PAIRED under the key of a pairing: the offer's secret (32 bytes), the public key of its source
/// (32, Ed25519), the number by which a drawn code was made of that key (16), and a tag (16).
pub type Sealed = [u8; 96];

/// Bytes that choose the group that a receiver has to show, and how; see [`proven_group`].
pub type Salt = [u8; 32];

/// Versions that a delta leads from and to (`polycast_net::delta`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Delta {
    /// The root hash of the version that it is against.
    pub base: Hash,
    /// The root hash of the object that it makes of it.
    pub root: Hash,
    /// The length of that object in bytes.
    pub len: u64,
}

/// Secret from which the keys of a sealed transfer are derived; it is not printed.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct SealSecret(pub [u8; 32]);

impl core::fmt::Debug for SealSecret {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("SealSecret(..)")
    }
}

/// First message of a receiver.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hello<'a> {
    /// The transfer that it asks to join.
    pub handle: Handle,
    /// Its name in reports; of more than [`NAME_LEN_MAX`] bytes only the beginning is sent.
    pub name: &'a str,
    /// Number of bytes of datagrams that its socket can hold: the sender keeps no more in flight.
    pub window_bytes: u64,
    /// TCP port where it serves other receivers of a chain.
    pub serve_port: u16,
    /// Names of its zone and its rack, at most [`LOCATION_LEN_MAX`] bytes each; empty where it has none.
    pub location: [&'a str; 2],
}

/// Kind of an object's bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// Bytes of a file.
    File,
    /// A directory as a tar stream.
    Directory,
    /// A list of files, each of which is an object of its own.
    Set,
}

/// Answer of the source.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Welcome<'a> {
    /// The object's name.
    pub object: ObjectId,
    /// Kind of the object's bytes.
    pub form: Form,
    /// Permissions of the file at the source, at most [`MODE_MAX`]; those in a directory are in its stream.
    pub mode: u16,
    /// Time of the file's last change, if the source gives it; the times in a directory are in its stream.
    pub modified: Option<ModificationTime>,
    /// File or directory name for receivers that choose none; of more than [`NAME_LEN_MAX`] bytes only the
    /// beginning is sent.
    pub name: &'a str,
    /// The object's length in bytes.
    pub object_len: u64,
    /// Bytes of a fragment.
    pub fragment_len: u32,
    /// Bytes of a hash group, a power of two.
    pub group_len: u32,
    /// Data channel: multicast group and port; [`NOWHERE`] where there is none (TCP only).
    pub channel: (IpAddr, u16),
    /// Bytes of the network's own header before every datagram of the data channel: 0, or a multiple of 4
    /// (labelled packets).
    pub outer_len: u8,
    /// After this many ns without a sign of life either end gives the other up.
    pub stall_ns: u64,
    /// Random bytes, others for every receiver: DATA_RCVD has to show bytes that these choose.
    pub salt: Salt,
    /// Length of the object without its holes, in bytes, if the source knows of holes: runs of zeros that
    /// need not be sent.
    pub data_len: Option<u64>,
}

/// Description of a source's offer, for a receiver that asks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Offered<'a> {
    /// The transfer.
    pub handle: Handle,
    /// Number of further receivers that the source takes.
    pub places: u32,
    /// The object's length in bytes.
    pub object_len: u64,
    /// File or directory name; of more than [`NAME_LEN_MAX`] bytes only the beginning is sent.
    pub name: &'a str,
    /// Name of the source's machine, cut in the same way.
    pub host: &'a str,
    /// Sign of the offer's code; `None` where any host may take the offer.
    pub code: Option<CodeSign>,
    /// Bytes of this connection's own: what JOIN proves, it proves for them.
    pub challenge: Hash,
    /// Proof that the source has the offer's secret, for the nonce of ASK; zeros where there is no code.
    pub proof: Hash,
}

/// The hash group that a receiver with this salt shows in the end, of an object of so many groups: the first
/// 8 bytes of the salt, modulo the number of groups. The proof in DATA_RCVD is the BLAKE3 hash of that
/// group's bytes, with the salt as the key.
///
/// # Panics
/// There are no groups; an object has at least one.
#[must_use]
pub fn proven_group(salt: &Salt, groups: u64) -> u64 {
    assert!(groups > 0, "an object has at least one hash group");
    let (number, _) = salt.split_at(8);
    number.iter().fold(0, |number, byte| number << 8 | u64::from(*byte)) % groups
}

/// Address and port where there is none.
pub const NOWHERE: (IpAddr, u16) = (IpAddr::V4(Ipv4Addr::UNSPECIFIED), 0);

/// A frame of the control channel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Control<'a> {
    /// Receiver: its name and place.
    Hello(Hello<'a>),
    /// Source: what it sends and how.
    Welcome(Welcome<'a>),
    /// Either: no, and why, of which at most [`SENTENCE_LEN_MAX`] bytes are sent. The connection ends.
    Refuse(&'a str),
    /// Source: chaining values of hash groups from `first` on.
    Hashes {
        /// Number of the first group.
        first: u64,
        /// One value a group.
        hashes: Vec<Hash>,
    },
    /// Source: root hash of the whole object, after all hashes.
    Root(Hash),
    /// Receiver: it is ready and holds these fragments (half-open ranges) already.
    Have(Vec<Range<u64>>),
    /// Receiver: position of the first packet from the data channel (INTL_SEQ).
    IntlSeq {
        /// `round * fragments + sn`.
        position: u64,
    },
    /// Receiver: how far it is.
    Progress {
        /// Position after the last packet seen on the data channel.
        position: u64,
        /// Packets received from the data channel so far.
        received: u64,
        /// Fragments found lost so far.
        lost: u64,
        /// Bytes verified so far.
        verified_bytes: u64,
        /// Time at which the packet before `position` reached this host, in nanoseconds of its own clock; 0
        /// if unknown.
        arrived_ns: u64,
        /// Time that it then waited there to be taken out of the socket.
        waited_ns: u64,
    },
    /// Receiver: these fragments (half-open ranges) are lost (PTCH_REQ).
    PtchReq(Vec<Range<u64>>),
    /// Source: lost fragments from `sn` on, one after the other (PTCH_DATA).
    PtchData {
        /// First fragment.
        sn: u64,
        /// Their bytes.
        payload: &'a [u8],
    },
    /// Receiver: everything is verified and stored (DATA_RCVD).
    DataRcvd {
        /// Bytes that came as patches.
        patched_bytes: u64,
        /// Proof that the receiver has the bytes of [`proven_group`].
        proof: Hash,
    },
    /// Source: the data channel has offered you everything up to this position (DATA_FNSD).
    DataFnsd {
        /// Position of the sender.
        position: u64,
    },
    /// The source or a candidate: one verified hash group.
    Group {
        /// Its number.
        index: u64,
        /// Its bytes.
        payload: &'a [u8],
    },
    /// Source: the transfer is over for all.
    Finished,
    /// Source's agent to a receiver's agent: join this transfer.
    Invite {
        /// Address of the source's control listener.
        address: IpAddr,
        /// Its TCP port.
        port: u16,
        /// The transfer.
        handle: Handle,
        /// The object.
        object: ObjectId,
        /// True if it is pulled over trees.
        pulled: bool,
        /// The object's length in bytes.
        object_len: u64,
        /// Its root hash, where the source knows it already: a receiver that has that object need not get it
        /// again.
        root: Option<Hash>,
        /// Manager's permit for it, where agents show certificates.
        permit: Option<ShownPermit<'a>>,
        /// Delta, if one is sent, of which the receiver makes the object: length and root hash before are the
        /// delta's.
        delta: Option<Box<Delta>>,
    },
    /// Receiver's agent: it joins.
    Joining,
    /// Either: alive, nothing to say.
    Alive,
    /// Source: packets come on this data channel from now on.
    Channel {
        /// Group address and UDP port.
        channel: (IpAddr, u16),
        /// Bytes of the network's own header before every packet, as in WELCOME.
        outer_len: u8,
    },
    /// Receiver, as its first frame: what do you offer?
    Ask {
        /// The transfer that is meant; 0 for whatever is offered there.
        handle: Handle,
        /// Random bytes: what OFFERED proves, it proves for them.
        nonce: Hash,
    },
    /// Source: this.
    Offered(Offered<'a>),
    /// Receiver, as its first frame: it knows a code, and this is its share of a key.
    Pair {
        /// The transfer.
        handle: Handle,
        /// The share.
        share: Hash,
    },
    /// Source: this is its own share.
    Share(Hash),
    /// Receiver: it has the key, which two ends have that know the same code.
    Prove {
        /// Its share again: the source keeps nothing for those who pair.
        share: Hash,
        /// The proof.
        proof: Hash,
    },
    /// Source: under that key, what the receiver needs to take the offer.
    Paired(Sealed),
    /// Receiver: HELLO of one that has the offer's secret.
    Join {
        /// The proof that it does, for the challenge of OFFERED and the name in HELLO.
        proof: Hash,
        /// Content of HELLO.
        hello: Hello<'a>,
    },
    /// Receiver: so many packets came for the transfer that were not of its source.
    Forged {
        /// Number of these packets.
        packets: u64,
    },
    /// Source, over a sealed connection: what the packets of the transfer are sealed with.
    Seal(SealSecret),
    /// Source: these receivers, by their numbers, share your rack, and may come to you: speak for them (Orca
    /// appendix A.4).
    Gather {
        /// Your own number.
        own: u32,
        /// Theirs, at most [`MEMBERS_MAX`].
        members: Vec<u32>,
    },
    /// Source: give your PROGRESS and PTCH_REQ to the receiver there, which speaks for your rack; at port 0,
    /// to the source again ([`NOWHERE`]).
    Speaker {
        /// Your number.
        member: u32,
        /// Its address.
        address: IpAddr,
        /// TCP port.
        port: u16,
        /// Name of the receiver there, where ends show certificates.
        name: Option<&'a str>,
    },
    /// Receiver to its rack's speaker, as the first frame: which receiver it is.
    Member {
        /// The transfer.
        handle: Handle,
        /// Its number.
        member: u32,
        /// Proof that the source lets it take part, as in ENTER.
        ticket: Hash,
    },
    /// Speaker: its PROGRESS counts for these receivers too from now on, and for no others.
    Rack(Vec<u32>),
    /// Speaker: some receiver of the rack has lost these fragments.
    RackReq(Vec<Range<u64>>),
    /// Source: the object is pulled over trees.
    Trees {
        /// Number of trees.
        count: u8,
        /// Bytes of a block; a tree carries whole blocks.
        block_bytes: u64,
        /// Number of packets that may be requested at a time in each tree.
        credits: u32,
        /// After how long a packet is asked for again, in milliseconds; 0: as the round trips say.
        retry_ms: u32,
        /// Number of packets requested later that arrive before one counts as lost; 0: only time tells.
        overtaken: u32,
        /// Interval between a receiver's progress reports, in milliseconds.
        progress_ms: u32,
    },
    /// Source: the way to it in a tree.
    Route {
        /// The tree.
        tree: u8,
        /// For a tree that was gone and is back: the block that it goes on with.
        begins: Option<u32>,
        /// The hops, as packets carry them; none if the tree does not reach this receiver any more.
        hops: &'a [u8],
    },
    /// Source: digests of the roots of the lists of names, from section `first` on.
    Roots {
        /// Number of the first section.
        first: u64,
        /// One a section.
        digests: Vec<Digest>,
    },
    /// Receiver: nothing comes in this tree any more.
    Stalled {
        /// The tree.
        tree: u8,
    },
    /// Receiver: it has something that may be of the object, and asks for HASHES before it begins to pull.
    AskHashes,
    /// Receiver: an older version may have groups of the object at other places; it asks for their sums.
    AskSums,
    /// Source: sums of hash groups from `first` on, which can be rolled over other bytes.
    Sums {
        /// Number of the first group.
        first: u64,
        /// One a group.
        sums: Vec<u64>,
    },
    /// Frames of the overlay.
    Overlay(Overlay<'a>),
}

impl<'a> Control<'a> {
    /// Length of the frame at the front of `bytes`, length field included, once that field is there.
    ///
    /// # Errors
    /// The length is zero or above [`FRAME_LEN_MAX`].
    pub fn frame_len(bytes: &[u8]) -> Result<Option<usize>, WireError> {
        let Some(field) = bytes.first_chunk::<LENGTH_LEN>() else { return Ok(None) };
        let len = u32::from_be_bytes(*field) as usize;
        if len == 0 || len > FRAME_LEN_MAX { Err(WireError::Malformed) } else { Ok(Some(LENGTH_LEN + len)) }
    }

    /// Reads a whole frame, its length field included.
    ///
    /// # Errors
    /// Not a frame of this format, or one that carries the version, of another one.
    pub fn parse(frame: &'a [u8]) -> Result<Self, WireError> {
        if Self::frame_len(frame)? != Some(frame.len()) {
            return Err(WireError::Malformed);
        }
        let mut r = Reader(&frame[LENGTH_LEN..]);
        let control = parse_body(&mut r)?;
        r.end()?;
        Ok(control)
    }

    /// Appends the frame to `out`.
    pub fn emit(&self, out: &mut Vec<u8>) {
        let start = out.len();
        out.u32(0);
        self.emit_body(out);
        let len = out.len() - start - LENGTH_LEN;
        assert!(len <= FRAME_LEN_MAX, "a frame of {len} bytes is too long");
        out[start..start + LENGTH_LEN].copy_from_slice(&(len as u32).to_be_bytes());
    }

    fn emit_body(&self, out: &mut Vec<u8>) {
        match self {
            Control::Hello(hello) => {
                out.extend_from_slice(&[1, VERSION]);
                put_hello(hello, out);
            }
            Control::Welcome(w) => emit_welcome(w, out),
            Control::Refuse(reason) => {
                out.u8(3);
                out.text(reason, SENTENCE_LEN_MAX);
            }
            Control::Hashes { first, hashes } => {
                out.u8(4);
                out.u64(*first);
                out.extend_from_slice(hashes.as_flattened());
            }
            Control::Root(root) => {
                out.u8(5);
                out.extend_from_slice(root);
            }
            Control::Have(ranges) => emit_ranges(6, ranges, out),
            Control::IntlSeq { position } => emit_numbers(7, &[*position], out),
            Control::Progress { position, received, lost, verified_bytes, arrived_ns, waited_ns } => {
                let counts = [*position, *received, *lost, *verified_bytes];
                emit_numbers(8, &[counts[0], counts[1], counts[2], counts[3], *arrived_ns, *waited_ns], out);
            }
            Control::PtchReq(ranges) => emit_ranges(9, ranges, out),
            Control::PtchData { sn, payload } => emit_payload(10, *sn, payload, out),
            Control::DataRcvd { patched_bytes, proof } => {
                emit_numbers(11, &[*patched_bytes], out);
                out.extend_from_slice(proof);
            }
            Control::DataFnsd { position } => emit_numbers(12, &[*position], out),
            Control::Group { index, payload } => emit_payload(16, *index, payload, out),
            Control::Finished => out.u8(17),
            Control::Invite { address, port, handle, object, pulled, object_len, root, permit, delta } => {
                out.extend_from_slice(&[18, VERSION]);
                out.ip(*address);
                out.u16(*port);
                out.u64(handle.0);
                put_object(object, out);
                out.u8(u8::from(*pulled));
                out.u64(*object_len);
                out.u8(u8::from(root.is_some()));
                out.extend_from_slice(root.as_ref().map_or(&[], |root| root.as_slice()));
                out.u8(u8::from(permit.is_some()));
                if let Some(permit) = permit {
                    permit.emit(out);
                }
                if let Some(delta) = delta {
                    out.extend_from_slice(&delta.base);
                    out.extend_from_slice(&delta.root);
                    out.u64(delta.len);
                }
            }
            Control::Joining => out.u8(19),
            Control::Alive => out.u8(20),
            Control::Channel { channel: (address, port), outer_len } => {
                out.u8(21);
                out.ip(*address);
                out.u16(*port);
                out.u8(*outer_len);
            }
            Control::Ask { handle, nonce } => {
                out.extend_from_slice(&[22, VERSION]);
                out.u64(handle.0);
                out.extend_from_slice(nonce);
            }
            Control::Offered(offered) => put_offered(offered, out),
            Control::Pair { handle, share } => {
                out.extend_from_slice(&[27, VERSION]);
                out.u64(handle.0);
                out.extend_from_slice(share);
            }
            Control::Share(share) => {
                out.u8(28);
                out.extend_from_slice(share);
            }
            Control::Prove { share, proof } => {
                out.u8(29);
                out.extend_from_slice(share);
                out.extend_from_slice(proof);
            }
            Control::Paired(sealed) => {
                out.u8(35);
                out.extend_from_slice(sealed);
            }
            Control::Join { proof, hello } => {
                out.extend_from_slice(&[24, VERSION]);
                out.extend_from_slice(proof);
                put_hello(hello, out);
            }
            Control::Forged { packets } => emit_numbers(26, &[*packets], out),
            Control::Seal(secret) => {
                out.u8(25);
                out.extend_from_slice(&secret.0);
            }
            Control::Gather { own, members } => {
                out.u8(30);
                out.u32(*own);
                put_members(members, out);
            }
            Control::Speaker { member, address, port, name } => {
                out.u8(31);
                out.u32(*member);
                put_end(*address, *port, *name, out);
            }
            Control::Member { handle, member, ticket } => {
                out.extend_from_slice(&[32, VERSION]);
                out.u64(handle.0);
                out.u32(*member);
                out.extend_from_slice(ticket);
            }
            Control::Rack(members) => {
                out.u8(33);
                put_members(members, out);
            }
            Control::RackReq(ranges) => emit_ranges(34, ranges, out),
            Control::Trees { count, block_bytes, credits, retry_ms, overtaken, progress_ms } => {
                out.extend_from_slice(&[40, *count]);
                out.u64(*block_bytes);
                [credits, retry_ms, overtaken, progress_ms].into_iter().for_each(|number| out.u32(*number));
            }
            Control::Route { tree, begins, hops } => {
                assert!(hops.len() <= HOPS_MAX, "a route of {} hops is too long", hops.len());
                out.extend_from_slice(&[41, *tree]);
                out.u32(begins.unwrap_or(NO_BLOCK));
                out.extend_from_slice(hops);
            }
            Control::Roots { first, digests } => {
                out.u8(42);
                out.u64(*first);
                digests.iter().for_each(|digest| out.extend_from_slice(&digest.0));
            }
            Control::Stalled { tree } => out.extend_from_slice(&[43, *tree]),
            Control::AskHashes => out.u8(44),
            Control::AskSums => out.u8(45),
            Control::Sums { first, sums } => {
                out.u8(46);
                out.u64(*first);
                sums.iter().for_each(|sum| out.u64(*sum));
            }
            Control::Overlay(frame) => frame.emit_body(out),
        }
    }
}

fn parse_body<'a>(r: &mut Reader<'a>) -> Result<Control<'a>, WireError> {
    Ok(match r.u8()? {
        1 => {
            version(r)?;
            Control::Hello(take_hello(r)?)
        }
        2 => Control::Welcome(parse_welcome(r)?),
        3 => Control::Refuse(r.text(SENTENCE_LEN_MAX)?),
        4 => Control::Hashes { first: r.u64()?, hashes: parse_hashes(r)? },
        5 => Control::Root(r.array()?),
        6 => Control::Have(take_ranges(r, RANGES_MAX)?),
        7 => Control::IntlSeq { position: r.u64()? },
        8 => Control::Progress {
            position: r.u64()?,
            received: r.u64()?,
            lost: r.u64()?,
            verified_bytes: r.u64()?,
            arrived_ns: r.u64()?,
            waited_ns: r.u64()?,
        },
        9 => Control::PtchReq(take_ranges(r, RANGES_MAX)?),
        10 => Control::PtchData { sn: r.u64()?, payload: r.take(r.0.len())? },
        11 => Control::DataRcvd { patched_bytes: r.u64()?, proof: r.array()? },
        12 => Control::DataFnsd { position: r.u64()? },
        16 => Control::Group { index: r.u64()?, payload: r.take(r.0.len())? },
        17 => Control::Finished,
        18 => {
            version(r)?;
            Control::Invite {
                address: r.ip()?,
                port: r.u16()?,
                handle: Handle(r.u64()?),
                object: take_object(r)?,
                pulled: flag(r)?,
                object_len: r.u64()?,
                root: if flag(r)? { Some(r.array()?) } else { None },
                permit: if flag(r)? { Some(ShownPermit::take(r)?) } else { None },
                // What an agent without deltas takes for too much, so that it gets the object itself.
                delta: if r.0.is_empty() {
                    None
                } else {
                    Some(Box::new(Delta { base: r.array()?, root: r.array()?, len: r.u64()? }))
                },
            }
        }
        19 => Control::Joining,
        20 => Control::Alive,
        21 => {
            let (channel, outer_len) = ((r.ip()?, r.u16()?), r.u8()?);
            if !is_outer_len(outer_len) {
                return Err(WireError::Malformed);
            }
            Control::Channel { channel, outer_len }
        }
        22 => {
            version(r)?;
            Control::Ask { handle: Handle(r.u64()?), nonce: r.array()? }
        }
        23 => Control::Offered(take_offered(r)?),
        26 => Control::Forged { packets: r.u64()? },
        25 => Control::Seal(SealSecret(r.array()?)),
        24 => {
            version(r)?;
            Control::Join { proof: r.array()?, hello: take_hello(r)? }
        }
        27 => {
            version(r)?;
            Control::Pair { handle: Handle(r.u64()?), share: r.array()? }
        }
        28 => Control::Share(r.array()?),
        29 => Control::Prove { share: r.array()?, proof: r.array()? },
        35 => Control::Paired(r.array()?),
        30 => Control::Gather { own: r.u32()?, members: take_members(r)? },
        31 => {
            let member = r.u32()?;
            Control::Speaker { member, address: r.ip()?, port: r.u16()?, name: take_name(r)? }
        }
        32 => {
            version(r)?;
            Control::Member { handle: Handle(r.u64()?), member: r.u32()?, ticket: r.array()? }
        }
        33 => Control::Rack(take_members(r)?),
        34 => Control::RackReq(take_ranges(r, RANGES_MAX)?),
        40 => parse_trees(r)?,
        41 => {
            let tree = r.u8()?;
            let begins = Some(r.u32()?).filter(|block| *block != NO_BLOCK);
            let hops = r.take(r.0.len())?;
            if hops.len() > HOPS_MAX {
                return Err(WireError::Malformed);
            }
            Control::Route { tree, begins, hops }
        }
        42 => Control::Roots { first: r.u64()?, digests: parse_digests(r)? },
        43 => Control::Stalled { tree: r.u8()? },
        44 => Control::AskHashes,
        45 => Control::AskSums,
        46 => Control::Sums { first: r.u64()?, sums: parse_sums(r)? },
        kind if overlay::KINDS.contains(&kind) => Control::Overlay(Overlay::parse_body(kind, r)?),
        _ => return Err(WireError::Malformed),
    })
}

fn put_hello(hello: &Hello<'_>, out: &mut Vec<u8>) {
    out.u64(hello.handle.0);
    out.text(hello.name, NAME_LEN_MAX);
    out.u64(hello.window_bytes);
    out.u16(hello.serve_port);
    hello.location.iter().for_each(|name| out.text(name, LOCATION_LEN_MAX));
}

fn take_hello<'a>(r: &mut Reader<'a>) -> Result<Hello<'a>, WireError> {
    Ok(Hello {
        handle: Handle(r.u64()?),
        name: r.text(NAME_LEN_MAX)?,
        window_bytes: r.u64()?,
        serve_port: r.u16()?,
        location: [r.text(LOCATION_LEN_MAX)?, r.text(LOCATION_LEN_MAX)?],
    })
}

/// Writes the address of another receiver, and its name, if it is given.
fn put_end(address: IpAddr, port: u16, name: Option<&str>, out: &mut Vec<u8>) {
    out.ip(address);
    out.u16(port);
    if let Some(name) = name {
        out.text(name, NAME_LEN_MAX);
    }
}

/// A name at the end of a frame, where there is one.
fn take_name<'a>(r: &mut Reader<'a>) -> Result<Option<&'a str>, WireError> {
    if r.0.is_empty() { Ok(None) } else { r.text(NAME_LEN_MAX).map(Some) }
}

fn put_offered(offered: &Offered<'_>, out: &mut Vec<u8>) {
    out.extend_from_slice(&[23, VERSION]);
    out.u64(offered.handle.0);
    out.u32(offered.places);
    out.u64(offered.object_len);
    out.text(offered.name, NAME_LEN_MAX);
    out.text(offered.host, NAME_LEN_MAX);
    emit_sign(offered.code.as_ref(), out);
    out.extend_from_slice(&offered.challenge);
    out.extend_from_slice(&offered.proof);
}

fn take_offered<'a>(r: &mut Reader<'a>) -> Result<Offered<'a>, WireError> {
    version(r)?;
    Ok(Offered {
        handle: Handle(r.u64()?),
        places: r.u32()?,
        object_len: r.u64()?,
        name: r.text(NAME_LEN_MAX)?,
        host: r.text(NAME_LEN_MAX)?,
        code: parse_sign(r)?,
        challenge: r.array()?,
        proof: r.array()?,
    })
}

fn put_members(members: &[u32], out: &mut Vec<u8>) {
    assert!(members.len() <= MEMBERS_MAX, "a rack of {} receivers is too large", members.len());
    members.iter().for_each(|member| out.u32(*member));
}

/// Numbers to the end of the frame, each larger than the one before.
fn take_members(r: &mut Reader<'_>) -> Result<Vec<u32>, WireError> {
    let mut members: Vec<u32> = Vec::new();
    while !r.0.is_empty() {
        let member = r.u32()?;
        if members.last().is_some_and(|last| *last >= member) || members.len() == MEMBERS_MAX {
            return Err(WireError::Malformed);
        }
        members.push(member);
    }
    Ok(members)
}

fn emit_welcome(w: &Welcome<'_>, out: &mut Vec<u8>) {
    out.extend_from_slice(&[2, VERSION]);
    put_object(&w.object, out);
    out.u8(match w.form {
        Form::File => 0,
        Form::Directory => 1,
        Form::Set => 2,
    });
    out.u16(w.mode);
    out.text(w.name, NAME_LEN_MAX);
    out.u64(w.object_len);
    out.u32(w.fragment_len);
    out.u32(w.group_len);
    out.ip(w.channel.0);
    out.u16(w.channel.1);
    out.u8(w.outer_len);
    out.u64(w.stall_ns);
    out.extend_from_slice(&w.salt);
    if let Some(modified) = w.modified {
        out.u64(modified.seconds.cast_unsigned());
        out.u32(modified.nanos);
    }
    if let Some(data_len) = w.data_len {
        out.u64(data_len);
    }
}

/// Bytes of a time.
const TIME_LEN: usize = 12;

/// A time near the end of a frame, where there is one: what may come behind it is shorter.
fn take_time(r: &mut Reader<'_>) -> Result<Option<ModificationTime>, WireError> {
    if r.0.len() < TIME_LEN {
        return Ok(None);
    }
    let (seconds, nanos) = (r.u64()?.cast_signed(), r.u32()?);
    ModificationTime::new(seconds, nanos).map(Some).ok_or(WireError::Malformed)
}

fn parse_welcome<'a>(r: &mut Reader<'a>) -> Result<Welcome<'a>, WireError> {
    version(r)?;
    let welcome = Welcome {
        object: take_object(r)?,
        form: form(r)?,
        mode: r.u16()?,
        name: r.text(NAME_LEN_MAX)?,
        object_len: r.u64()?,
        fragment_len: r.u32()?,
        group_len: r.u32()?,
        channel: (r.ip()?, r.u16()?),
        outer_len: r.u8()?,
        stall_ns: r.u64()?,
        salt: r.array()?,
        modified: take_time(r)?,
        data_len: if r.0.is_empty() { None } else { Some(r.u64()?) },
    };
    // What the machines divide by and allocate for is checked here, once.
    let sane = (1..=65_535).contains(&welcome.fragment_len)
        && is_outer_len(welcome.outer_len)
        && welcome.group_len.is_power_of_two()
        && (1 << 16..=1 << 20).contains(&welcome.group_len)
        && welcome.mode <= MODE_MAX
        && welcome.object_len <= 1 << 50
        && welcome.data_len.is_none_or(|data_len| data_len <= welcome.object_len);
    if sane { Ok(welcome) } else { Err(WireError::Malformed) }
}

/// Returns true if a header of the network's own can have this length.
fn is_outer_len(len: u8) -> bool {
    usize::from(len) <= crate::label::header_len(crate::label::LABEL_LEN_MAX) && len.is_multiple_of(4)
}

fn parse_hashes(r: &mut Reader<'_>) -> Result<Vec<Hash>, WireError> {
    let (hashes, rest) = r.take(r.0.len())?.as_chunks::<32>();
    if hashes.is_empty() || hashes.len() > HASHES_MAX || !rest.is_empty() {
        return Err(WireError::Malformed);
    }
    Ok(hashes.to_vec())
}

fn parse_sums(r: &mut Reader<'_>) -> Result<Vec<u64>, WireError> {
    let (sums, rest) = r.take(r.0.len())?.as_chunks::<8>();
    if sums.is_empty() || sums.len() > SUMS_MAX || !rest.is_empty() {
        return Err(WireError::Malformed);
    }
    Ok(sums.iter().map(|bytes| u64::from_be_bytes(*bytes)).collect())
}

fn parse_trees<'a>(r: &mut Reader<'a>) -> Result<Control<'a>, WireError> {
    let (count, block_bytes, credits) = (r.u8()?, r.u64()?, r.u32()?);
    let (retry_ms, overtaken, progress_ms) = (r.u32()?, r.u32()?, r.u32()?);
    let times = retry_ms <= PULL_TIME_MAX_MS && (1..=PULL_TIME_MAX_MS).contains(&progress_ms);
    if count > 0 && block_bytes > 0 && (1..=65_536).contains(&credits) && times {
        Ok(Control::Trees { count, block_bytes, credits, retry_ms, overtaken, progress_ms })
    } else {
        Err(WireError::Malformed)
    }
}

fn parse_digests(r: &mut Reader<'_>) -> Result<Vec<Digest>, WireError> {
    let (digests, rest) = r.take(r.0.len())?.as_chunks::<DIGEST_LEN>();
    if digests.is_empty() || digests.len() > DIGESTS_MAX || !rest.is_empty() {
        return Err(WireError::Malformed);
    }
    Ok(digests.iter().map(|bytes| Digest(*bytes)).collect())
}

fn version(r: &mut Reader<'_>) -> Result<(), WireError> {
    match r.u8()? {
        VERSION => Ok(()),
        other => Err(WireError::Version(other)),
    }
}

fn form(r: &mut Reader<'_>) -> Result<Form, WireError> {
    match r.u8()? {
        0 => Ok(Form::File),
        1 => Ok(Form::Directory),
        2 => Ok(Form::Set),
        _ => Err(WireError::Malformed),
    }
}

fn flag(r: &mut Reader<'_>) -> Result<bool, WireError> {
    match r.u8()? {
        0 => Ok(false),
        1 => Ok(true),
        _ => Err(WireError::Malformed),
    }
}

fn put_object(object: &ObjectId, out: &mut Vec<u8>) {
    out.extend_from_slice(&object.app.0);
    out.u64(object.data.0);
}

fn take_object(r: &mut Reader<'_>) -> Result<ObjectId, WireError> {
    Ok(ObjectId { app: AppId(r.array()?), data: DataId(r.u64()?) })
}

fn emit_numbers(kind: u8, numbers: &[u64], out: &mut Vec<u8>) {
    out.u8(kind);
    numbers.iter().for_each(|n| out.u64(*n));
}

fn emit_payload(kind: u8, number: u64, payload: &[u8], out: &mut Vec<u8>) {
    emit_numbers(kind, &[number], out);
    out.extend_from_slice(payload);
}

fn emit_ranges(kind: u8, ranges: &[Range<u64>], out: &mut Vec<u8>) {
    out.u8(kind);
    put_ranges(ranges, RANGES_MAX, out);
}

fn put_ranges(ranges: &[Range<u64>], most: usize, out: &mut Vec<u8>) {
    assert!(ranges.len() <= most, "{} ranges do not fit into one frame", ranges.len());
    for range in ranges {
        out.u64(range.start);
        out.u64(range.end);
    }
}

/// Ranges to the end of the frame: each not empty, in rising order, apart from each other.
fn take_ranges(r: &mut Reader<'_>, most: usize) -> Result<Vec<Range<u64>>, WireError> {
    let (pairs, rest) = r.take(r.0.len())?.as_chunks::<16>();
    if !rest.is_empty() || pairs.len() > most {
        return Err(WireError::Malformed);
    }
    let mut ranges: Vec<Range<u64>> = Vec::with_capacity(pairs.len());
    for pair in pairs {
        let mut pair = Reader(pair);
        let range = pair.u64()?..pair.u64()?;
        if range.is_empty() || ranges.last().is_some_and(|last| last.end >= range.start) {
            return Err(WireError::Malformed);
        }
        ranges.push(range);
    }
    Ok(ranges)
}

#[cfg(test)]
mod tests;
