//! OpenFlow 1.3, the language in which ToR switches are told what to forward (Blast section IV-B, Shufflecast
//! section IV; ONF TS-006).
//!
//! Only what Polycast needs: the hand-shake, flows, groups of type ALL, barriers, ports, echoes and errors. A
//! [`Message`] is read and written here, [`Session`] is the controller's machine for one connection, and
//! [`Switch`] connects it to a socket.

mod action;
mod client;
mod matching;
mod session;

use polycast_wire::WireError;
use polycast_wire::cursor::{Put, Reader};

pub use action::{Action, Instruction};
pub use client::{Arrival, Endpoint, Link, PortEvent, Switch, SwitchError, SwitchListener, SwitchOptions};
pub use matching::{Field, Match};
pub use session::{Event, Reply, Session};

/// The protocol's version on the wire.
pub const VERSION: u8 = 4;
/// A message's header, in bytes.
pub const HEADER_LEN: usize = 8;
/// The longest message, in bytes.
pub const MESSAGE_MAX: usize = u16::MAX as usize;

/// Ports with a meaning of their own.
pub mod port {
    /// The port by which the packet came in.
    pub const IN_PORT: u32 = 0xffff_fff8;
    /// Forward as an ordinary switch does.
    pub const NORMAL: u32 = 0xffff_fffa;
    /// To the controller.
    pub const CONTROLLER: u32 = 0xffff_fffd;
    /// The switch itself.
    pub const LOCAL: u32 = 0xffff_fffe;
    /// Any port, where a port chooses what is deleted.
    pub const ANY: u32 = 0xffff_ffff;
}

/// All groups, where one chooses what is deleted.
pub const GROUP_ALL: u32 = 0xffff_fffc;
/// Any group.
pub const GROUP_ANY: u32 = 0xffff_ffff;

/// Bytes that are not a message of OpenFlow 1.3.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum CodecError {
    /// Too short, or a length that cannot be.
    #[error("malformed OpenFlow message")]
    Malformed,
    /// Another version.
    #[error("the switch speaks OpenFlow version {0} on the wire and version 4 (OpenFlow 1.3) is needed")]
    Version(u8),
}

impl From<WireError> for CodecError {
    /// A cursor knows only bytes that are too few.
    fn from(_: WireError) -> Self {
        CodecError::Malformed
    }
}

/// Writes the number of bytes from `start` to the end as the 16-bit length at `at`.
fn set_len(wire: &mut [u8], start: usize, at: usize) {
    let len = u16::try_from(wire.len() - start).expect("an OpenFlow structure is shorter than 64 KiB");
    wire[at..at + 2].copy_from_slice(&len.to_be_bytes());
}

/// Operation on flows or groups.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Change {
    /// Puts in; a flow of the same match and priority is replaced.
    Add,
    /// Changes what is there.
    Modify,
    /// Takes out all that match.
    Delete,
    /// Takes out what has exactly this match and priority (flows only).
    DeleteStrict,
}

/// A rule.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FlowMod {
    /// Operation on the rule.
    pub change: Change,
    /// The controller's own mark.
    pub cookie: u64,
    /// Bits of the cookie that choose what is changed or deleted; 0 for all flows.
    pub cookie_mask: u64,
    /// The table.
    pub table: u8,
    /// The highest priority that matches wins.
    pub priority: u16,
    /// Goes away after this long without a packet, in seconds; 0 for never.
    pub idle_timeout_s: u16,
    /// Packets that it matches.
    pub matching: Match,
    /// Instructions for the packets.
    pub instructions: Vec<Instruction>,
}

impl FlowMod {
    /// A new rule of table 0 that does `actions`.
    #[must_use]
    pub fn add(priority: u16, matching: Match, actions: Vec<Action>) -> Self {
        let instructions =
            if actions.is_empty() { Vec::new() } else { vec![Instruction::ApplyActions(actions)] };
        let (cookie, cookie_mask, table, idle_timeout_s) = (0, 0, 0, 0);
        let change = Change::Add;
        FlowMod { change, cookie, cookie_mask, table, priority, idle_timeout_s, matching, instructions }
    }

    /// The same rule, taken out.
    #[must_use]
    pub fn delete(priority: u16, matching: Match) -> Self {
        FlowMod { change: Change::DeleteStrict, ..FlowMod::add(priority, matching, Vec::new()) }
    }

    /// The same rule with the controller's mark.
    #[must_use]
    pub fn with_cookie(mut self, cookie: u64) -> Self {
        self.cookie = cookie;
        self
    }
}

/// A group of type ALL: every packet goes through every bucket.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct GroupMod {
    /// Operation on the group.
    pub change: Change,
    /// Its number.
    pub id: u32,
    /// The actions of each copy.
    pub buckets: Vec<Vec<Action>>,
}

impl GroupMod {
    /// A new group that copies to these ports.
    #[must_use]
    pub fn to_ports(id: u32, ports: impl IntoIterator<Item = u32>) -> Self {
        let buckets = ports.into_iter().map(|port| vec![Action::Output(port)]).collect();
        GroupMod { change: Change::Add, id, buckets }
    }

    /// The group, taken out; rules that use it go with it.
    #[must_use]
    pub fn delete(id: u32) -> Self {
        GroupMod { change: Change::Delete, id, buckets: Vec::new() }
    }
}

/// A port of a switch.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Port {
    /// Its number.
    pub number: u32,
    /// Its hardware address.
    pub address: [u8; 6],
    /// Its name, up to 15 letters.
    pub name: String,
    /// Set if the port was switched off.
    pub disabled: bool,
    /// Set if there is no light, or no other end.
    pub link_down: bool,
}

/// Change of a port.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PortChange {
    /// It is new.
    Added,
    /// It is gone.
    Deleted,
    /// Something about it has changed.
    Modified,
}

/// Counters of a port, in packets and bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct PortStats {
    /// The port's number.
    pub port: u32,
    /// Packets that came in.
    pub received_packets: u64,
    /// Packets that went out.
    pub sent_packets: u64,
    /// Bytes that came in.
    pub received_bytes: u64,
    /// Bytes that went out.
    pub sent_bytes: u64,
    /// Packets that came in and were dropped.
    pub received_dropped: u64,
    /// Packets that should have gone out and were dropped.
    pub sent_dropped: u64,
}

/// A message of the protocol.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Message {
    /// The first word of each end, with the versions that it speaks as bits (bit 4 is OpenFlow 1.3).
    Hello {
        /// The versions; `None` where the other end names only its highest.
        versions: Option<u32>,
    },
    /// Something was refused.
    Error {
        /// The kind of mistake.
        kind: u16,
        /// Code of the error within its kind.
        code: u16,
        /// The beginning of what was refused.
        data: Vec<u8>,
    },
    /// Asks whether the other end lives.
    EchoRequest(Vec<u8>),
    /// It does.
    EchoReply(Vec<u8>),
    /// Asks what the switch is.
    FeaturesRequest,
    /// Features of the switch.
    FeaturesReply {
        /// Its number.
        datapath_id: u64,
        /// Packets that it can keep for the controller.
        buffers: u32,
        /// Tables of flows.
        tables: u8,
    },
    /// A port has changed.
    PortStatus {
        /// Kind of change.
        change: PortChange,
        /// The port as it is now.
        port: Port,
    },
    /// Changes rules.
    FlowMod(FlowMod),
    /// Changes a group.
    GroupMod(GroupMod),
    /// Asks for all ports.
    PortsRequest,
    /// The ports, or a part of them.
    PortsReply {
        /// The ports.
        ports: Vec<Port>,
        /// Set if another part follows.
        more: bool,
    },
    /// Asks what all ports have seen.
    PortStatsRequest,
    /// Counters of all ports, or a part of them.
    PortStatsReply {
        /// One entry a port.
        stats: Vec<PortStats>,
        /// Set if another part follows.
        more: bool,
    },
    /// Asks which groups there can be.
    GroupFeaturesRequest,
    /// Types of groups that there can be.
    GroupFeaturesReply {
        /// Types as bits; bit 0 is ALL.
        types: u32,
    },
    /// Asks for an answer when everything before it has been done.
    BarrierRequest,
    /// It has.
    BarrierReply,
    /// Something that is not ours to understand.
    Other {
        /// The type on the wire.
        kind: u8,
        /// Bytes that follow the header.
        body: Vec<u8>,
    },
}

const MULTIPART_REQUEST: u8 = 18;
const MULTIPART_REPLY: u8 = 19;
const PORT_STATS: u16 = 4;
const GROUP_FEATURES: u16 = 8;
const PORT_DESCRIPTION: u16 = 13;
/// Our types of messages; all others are [`Message::Other`].
const HELLO: u8 = 0;
const ERROR: u8 = 1;
const ECHO_REQUEST: u8 = 2;
const ECHO_REPLY: u8 = 3;
const FEATURES_REQUEST: u8 = 5;
const FEATURES_REPLY: u8 = 6;
const PORT_STATUS: u8 = 12;
const FLOW_MOD: u8 = 14;
const GROUP_MOD: u8 = 15;
const BARRIER_REQUEST: u8 = 20;
const BARRIER_REPLY: u8 = 21;
const PORT_LEN: usize = 64;
const PORT_STATS_LEN: usize = 112;

impl Message {
    /// Returns the length of the message at the beginning of `bytes`, if its header is there.
    ///
    /// # Errors
    /// The length is shorter than the header, or the version is none of OpenFlow's.
    pub fn len_at(bytes: &[u8]) -> Result<Option<usize>, CodecError> {
        let Some(header) = bytes.first_chunk::<HEADER_LEN>() else { return Ok(None) };
        // The newest version is 6; a stranger's first byte is hardly ever one of them.
        if !(1..=6).contains(&header[0]) {
            return Err(CodecError::Malformed);
        }
        let len = usize::from(u16::from_be_bytes([header[2], header[3]]));
        if len < HEADER_LEN { Err(CodecError::Malformed) } else { Ok(Some(len)) }
    }

    /// Reads one whole message; gives its transaction id too.
    ///
    /// # Errors
    /// It is not a message of OpenFlow 1.3. Only greetings and errors may be of another version.
    pub fn parse(bytes: &[u8]) -> Result<(Self, u32), CodecError> {
        if Self::len_at(bytes)? != Some(bytes.len()) {
            return Err(CodecError::Malformed);
        }
        let mut reader = Reader(bytes);
        let (version, kind) = (reader.u8()?, reader.u8()?);
        reader.skip(2)?;
        let transaction = reader.u32()?;
        if version != VERSION && !matches!(kind, HELLO | ERROR) {
            return Err(CodecError::Version(version));
        }
        let message = match kind {
            HELLO => Message::Hello { versions: parse_hello(version, &mut reader)? },
            ERROR => {
                let (kind, code) = (reader.u16()?, reader.u16()?);
                Message::Error { kind, code, data: reader.rest().to_vec() }
            }
            ECHO_REQUEST => Message::EchoRequest(reader.rest().to_vec()),
            ECHO_REPLY => Message::EchoReply(reader.rest().to_vec()),
            FEATURES_REQUEST => Message::FeaturesRequest,
            FEATURES_REPLY => {
                let (datapath_id, buffers, tables) = (reader.u64()?, reader.u32()?, reader.u8()?);
                Message::FeaturesReply { datapath_id, buffers, tables }
            }
            PORT_STATUS => {
                let change = match reader.u8()? {
                    0 => PortChange::Added,
                    1 => PortChange::Deleted,
                    2 => PortChange::Modified,
                    _ => return Err(CodecError::Malformed),
                };
                reader.skip(7)?;
                Message::PortStatus { change, port: parse_port(&mut reader)? }
            }
            FLOW_MOD => parse_flow_mod(&mut reader, bytes)?,
            GROUP_MOD => parse_group_mod(&mut reader, bytes)?,
            MULTIPART_REQUEST | MULTIPART_REPLY => parse_multipart(kind, &mut reader, bytes)?,
            BARRIER_REQUEST => Message::BarrierRequest,
            BARRIER_REPLY => Message::BarrierReply,
            kind => other(kind, bytes),
        };
        Ok((message, transaction))
    }

    /// The message on the wire.
    ///
    /// # Panics
    /// If it is longer than a message can be: the code that builds one keeps it short.
    #[must_use]
    pub fn emit(&self, transaction: u32) -> Vec<u8> {
        let mut wire = vec![VERSION, 0, 0, 0];
        wire.u32(transaction);
        wire[1] = self.emit_body(&mut wire);
        let len = u16::try_from(wire.len()).expect("an OpenFlow message is shorter than 64 KiB");
        wire[2..4].copy_from_slice(&len.to_be_bytes());
        wire
    }

    /// Appends what follows the header and gives the type.
    fn emit_body(&self, wire: &mut Vec<u8>) -> u8 {
        match self {
            Message::Hello { versions } => {
                if let Some(versions) = versions {
                    wire.u16(1);
                    wire.u16(8);
                    wire.u32(*versions);
                }
                HELLO
            }
            Message::Error { kind, code, data } => {
                wire.u16(*kind);
                wire.u16(*code);
                wire.extend_from_slice(data);
                ERROR
            }
            Message::EchoRequest(data) => {
                wire.extend_from_slice(data);
                ECHO_REQUEST
            }
            Message::EchoReply(data) => {
                wire.extend_from_slice(data);
                ECHO_REPLY
            }
            Message::FeaturesRequest => FEATURES_REQUEST,
            Message::FeaturesReply { datapath_id, buffers, tables } => {
                wire.u64(*datapath_id);
                wire.u32(*buffers);
                wire.u8(*tables);
                wire.zeros(11);
                FEATURES_REPLY
            }
            Message::PortStatus { change, port } => {
                wire.u8(*change as u8);
                wire.zeros(7);
                emit_port(port, wire);
                PORT_STATUS
            }
            Message::FlowMod(flow) => {
                emit_flow_mod(flow, wire);
                FLOW_MOD
            }
            Message::GroupMod(group) => {
                emit_group_mod(group, wire);
                GROUP_MOD
            }
            Message::PortsRequest => {
                emit_multipart(PORT_DESCRIPTION, false, wire);
                MULTIPART_REQUEST
            }
            Message::PortStatsRequest => {
                emit_multipart(PORT_STATS, false, wire);
                wire.u32(port::ANY);
                wire.zeros(4);
                MULTIPART_REQUEST
            }
            Message::PortsReply { ports, more } => {
                emit_multipart(PORT_DESCRIPTION, *more, wire);
                ports.iter().for_each(|port| emit_port(port, wire));
                MULTIPART_REPLY
            }
            Message::PortStatsReply { stats, more } => {
                emit_multipart(PORT_STATS, *more, wire);
                stats.iter().for_each(|stats| emit_port_stats(stats, wire));
                MULTIPART_REPLY
            }
            Message::GroupFeaturesRequest => {
                emit_multipart(GROUP_FEATURES, false, wire);
                MULTIPART_REQUEST
            }
            Message::GroupFeaturesReply { types } => {
                emit_multipart(GROUP_FEATURES, false, wire);
                wire.u32(*types);
                // What groups can do besides, how many there can be of each type, and their actions.
                wire.zeros(4 + 4 * 4 + 4 * 4);
                MULTIPART_REPLY
            }
            Message::BarrierRequest => BARRIER_REQUEST,
            Message::BarrierReply => BARRIER_REPLY,
            Message::Other { kind, body } => {
                wire.extend_from_slice(body);
                *kind
            }
        }
    }
}

fn other(kind: u8, bytes: &[u8]) -> Message {
    Message::Other { kind, body: bytes[HEADER_LEN..].to_vec() }
}

/// The versions of a greeting: element 1 is a bitmap. An old switch names only its highest version.
fn parse_hello(version: u8, reader: &mut Reader<'_>) -> Result<Option<u32>, CodecError> {
    while !reader.0.is_empty() {
        let (kind, len) = (reader.u16()?, usize::from(reader.u16()?));
        let body = reader.take(len.checked_sub(4).ok_or(CodecError::Malformed)?)?;
        // Elements are padded to 8 bytes; the last one's padding may be left out.
        reader.skip((len.next_multiple_of(8) - len).min(reader.0.len()))?;
        if kind == 1 {
            return Ok(Some(Reader(body).u32()?));
        }
    }
    // Without a bitmap all versions up to the highest are meant; ours is known by itself.
    if version == VERSION {
        Ok(None)
    } else {
        Ok(1u32.checked_shl(version.into()).map(|bit| bit | (bit - 1)))
    }
}

fn parse_flow_mod(reader: &mut Reader<'_>, bytes: &[u8]) -> Result<Message, CodecError> {
    let (cookie, cookie_mask, table) = (reader.u64()?, reader.u64()?, reader.u8()?);
    let change = match reader.u8()? {
        0 => Change::Add,
        1 => Change::Modify,
        3 => Change::Delete,
        4 => Change::DeleteStrict,
        _ => return Ok(other(FLOW_MOD, bytes)),
    };
    let (idle_timeout_s, hard, priority) = (reader.u16()?, reader.u16()?, reader.u16()?);
    let (_buffer, port, group, flags) = (reader.u32()?, reader.u32()?, reader.u32()?, reader.u16()?);
    reader.skip(2)?;
    let matching = Match::parse(reader)?;
    let instructions = Instruction::parse_all(reader.rest())?;
    let (Some(matching), Some(instructions)) = (matching, instructions) else {
        return Ok(other(FLOW_MOD, bytes));
    };
    if (hard, port, group, flags) != (0, port::ANY, GROUP_ANY, 0) {
        return Ok(other(FLOW_MOD, bytes));
    }
    let flow =
        FlowMod { change, cookie, cookie_mask, table, priority, idle_timeout_s, matching, instructions };
    Ok(Message::FlowMod(flow))
}

fn emit_flow_mod(flow: &FlowMod, wire: &mut Vec<u8>) {
    wire.u64(flow.cookie);
    wire.u64(flow.cookie_mask);
    wire.u8(flow.table);
    wire.u8(match flow.change {
        Change::Add => 0,
        Change::Modify => 1,
        Change::Delete => 3,
        Change::DeleteStrict => 4,
    });
    wire.u16(flow.idle_timeout_s);
    wire.u16(0);
    wire.u16(flow.priority);
    // No packet that the switch keeps is meant.
    wire.u32(u32::MAX);
    wire.u32(port::ANY);
    wire.u32(GROUP_ANY);
    wire.u16(0);
    wire.zeros(2);
    flow.matching.emit(wire);
    flow.instructions.iter().for_each(|instruction| instruction.emit(wire));
}

fn parse_group_mod(reader: &mut Reader<'_>, bytes: &[u8]) -> Result<Message, CodecError> {
    let change = match reader.u16()? {
        0 => Change::Add,
        1 => Change::Modify,
        2 => Change::Delete,
        _ => return Ok(other(GROUP_MOD, bytes)),
    };
    let kind = reader.u8()?;
    reader.skip(1)?;
    let id = reader.u32()?;
    let mut buckets = Vec::new();
    while !reader.0.is_empty() {
        let len = usize::from(reader.u16()?);
        let mut bucket = Reader(reader.take(len.checked_sub(2).ok_or(CodecError::Malformed)?)?);
        // Weight, watched port and watched group mean nothing here.
        bucket.skip(14)?;
        match Action::parse_all(bucket.rest())? {
            Some(actions) => buckets.push(actions),
            None => return Ok(other(GROUP_MOD, bytes)),
        }
    }
    if kind != 0 {
        return Ok(other(GROUP_MOD, bytes));
    }
    Ok(Message::GroupMod(GroupMod { change, id, buckets }))
}

fn emit_group_mod(group: &GroupMod, wire: &mut Vec<u8>) {
    wire.u16(match group.change {
        Change::Add => 0,
        Change::Modify => 1,
        Change::Delete | Change::DeleteStrict => 2,
    });
    wire.u8(0);
    wire.zeros(1);
    wire.u32(group.id);
    for actions in &group.buckets {
        let start = wire.len();
        wire.u16(0);
        wire.u16(0);
        wire.u32(port::ANY);
        wire.u32(GROUP_ANY);
        wire.zeros(4);
        actions.iter().for_each(|action| action.emit(wire));
        set_len(wire, start, start);
    }
}

fn emit_multipart(kind: u16, more: bool, wire: &mut Vec<u8>) {
    wire.u16(kind);
    wire.u16(u16::from(more));
    wire.zeros(4);
}

fn parse_multipart(kind: u8, reader: &mut Reader<'_>, bytes: &[u8]) -> Result<Message, CodecError> {
    let (part, flags) = (reader.u16()?, reader.u16()?);
    reader.skip(4)?;
    let more = flags & 1 == 1;
    Ok(match (kind, part) {
        (MULTIPART_REQUEST, PORT_DESCRIPTION) => Message::PortsRequest,
        (MULTIPART_REQUEST, PORT_STATS) if reader.u32()? == port::ANY => Message::PortStatsRequest,
        (MULTIPART_REQUEST, GROUP_FEATURES) => Message::GroupFeaturesRequest,
        (MULTIPART_REPLY, GROUP_FEATURES) => Message::GroupFeaturesReply { types: reader.u32()? },
        (MULTIPART_REPLY, PORT_DESCRIPTION) => {
            let pieces = reader.rest().chunks(PORT_LEN);
            let ports = pieces.map(|piece| parse_port(&mut Reader(piece))).collect::<Result<_, _>>()?;
            Message::PortsReply { ports, more }
        }
        (MULTIPART_REPLY, PORT_STATS) => {
            let pieces = reader.rest().chunks(PORT_STATS_LEN);
            let stats = pieces.map(|piece| parse_port_stats(&mut Reader(piece))).collect::<Result<_, _>>()?;
            Message::PortStatsReply { stats, more }
        }
        _ => other(kind, bytes),
    })
}

fn parse_port(reader: &mut Reader<'_>) -> Result<Port, CodecError> {
    let number = reader.u32()?;
    reader.skip(4)?;
    let address = reader.array()?;
    reader.skip(2)?;
    let name = reader.take(16)?;
    let end = name.iter().position(|byte| *byte == 0).ok_or(CodecError::Malformed)?;
    let name = std::str::from_utf8(&name[..end]).map_err(|_| CodecError::Malformed)?.to_string();
    let (config, state) = (reader.u32()?, reader.u32()?);
    reader.skip(24)?;
    Ok(Port { number, address, name, disabled: config & 1 == 1, link_down: state & 1 == 1 })
}

fn emit_port(port: &Port, wire: &mut Vec<u8>) {
    wire.u32(port.number);
    wire.zeros(4);
    wire.extend_from_slice(&port.address);
    wire.zeros(2);
    let mut name = [0; 16];
    let len = port.name.len().min(15);
    name[..len].copy_from_slice(&port.name.as_bytes()[..len]);
    wire.extend_from_slice(&name);
    wire.u32(port.disabled.into());
    wire.u32(port.link_down.into());
    wire.zeros(24);
}

fn parse_port_stats(reader: &mut Reader<'_>) -> Result<PortStats, CodecError> {
    let port = reader.u32()?;
    reader.skip(4)?;
    let stats = PortStats {
        port,
        received_packets: reader.u64()?,
        sent_packets: reader.u64()?,
        received_bytes: reader.u64()?,
        sent_bytes: reader.u64()?,
        received_dropped: reader.u64()?,
        sent_dropped: reader.u64()?,
    };
    reader.skip(56)?;
    Ok(stats)
}

fn emit_port_stats(stats: &PortStats, wire: &mut Vec<u8>) {
    wire.u32(stats.port);
    wire.zeros(4);
    wire.u64(stats.received_packets);
    wire.u64(stats.sent_packets);
    wire.u64(stats.received_bytes);
    wire.u64(stats.sent_bytes);
    wire.u64(stats.received_dropped);
    wire.u64(stats.sent_dropped);
    wire.zeros(56);
}

#[cfg(test)]
mod tests;
