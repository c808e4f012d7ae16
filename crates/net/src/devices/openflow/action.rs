//! Actions of rules on packets.

use super::matching::Field;
use super::{CodecError, set_len};
use polycast_wire::cursor::{Put, Reader};

/// One thing that is done to a packet.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Action {
    /// Sends it out of a port.
    Output(u32),
    /// Gives it to a group.
    Group(u32),
    /// Puts it into this queue of the port that it will leave by: how multicast gets its priority.
    SetQueue(u32),
    /// Overwrites a field, which must not be masked.
    Set(Field),
}

const OUTPUT: u16 = 0;
const SET_QUEUE: u16 = 21;
const GROUP: u16 = 22;
const SET_FIELD: u16 = 25;
/// No part of packets that go to the controller is kept in the switch.
const WHOLE_PACKET: u16 = 0xffff;

impl Action {
    /// Reads a list, or gives `None` if there is one in it that is not ours.
    pub(super) fn parse_all(bytes: &[u8]) -> Result<Option<Vec<Self>>, CodecError> {
        let (mut reader, mut actions) = (Reader(bytes), Vec::new());
        while !reader.0.is_empty() {
            let (kind, len) = (reader.u16()?, usize::from(reader.u16()?));
            if len % 8 != 0 {
                return Err(CodecError::Malformed);
            }
            let mut body = Reader(reader.take(len.checked_sub(4).ok_or(CodecError::Malformed)?)?);
            let field = |body: &mut Reader<'_>| Field::parse(body);
            actions.push(match kind {
                OUTPUT if len == 16 => Action::Output(body.u32()?),
                GROUP if len == 8 => Action::Group(body.u32()?),
                SET_QUEUE if len == 8 => Action::SetQueue(body.u32()?),
                SET_FIELD => match field(&mut body)? {
                    Some(field) if !field.is_masked() => Action::Set(field),
                    _ => return Ok(None),
                },
                _ => return Ok(None),
            });
        }
        Ok(Some(actions))
    }

    pub(super) fn emit(&self, wire: &mut Vec<u8>) {
        match self {
            Action::Output(port) => {
                wire.u16(OUTPUT);
                wire.u16(16);
                wire.u32(*port);
                wire.u16(WHOLE_PACKET);
                wire.zeros(6);
            }
            Action::Group(id) => {
                wire.u16(GROUP);
                wire.u16(8);
                wire.u32(*id);
            }
            Action::SetQueue(queue) => {
                wire.u16(SET_QUEUE);
                wire.u16(8);
                wire.u32(*queue);
            }
            Action::Set(field) => {
                let start = wire.len();
                wire.u16(SET_FIELD);
                wire.u16(0);
                field.emit(wire);
                wire.zeros((wire.len() - start).next_multiple_of(8) - (wire.len() - start));
                set_len(wire, start, start + 2);
            }
        }
    }
}

/// Instruction of a rule.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Instruction {
    /// Goes on in a later table.
    GotoTable(u8),
    /// Does these now, in this order.
    ApplyActions(Vec<Action>),
}

const GOTO_TABLE: u16 = 1;
const APPLY_ACTIONS: u16 = 4;

impl Instruction {
    /// Reads a list, or gives `None` if there is one in it that is not ours.
    pub(super) fn parse_all(bytes: &[u8]) -> Result<Option<Vec<Self>>, CodecError> {
        let (mut reader, mut instructions) = (Reader(bytes), Vec::new());
        while !reader.0.is_empty() {
            let (kind, len) = (reader.u16()?, usize::from(reader.u16()?));
            let mut body = Reader(reader.take(len.checked_sub(4).ok_or(CodecError::Malformed)?)?);
            instructions.push(match kind {
                GOTO_TABLE => Instruction::GotoTable(body.u8()?),
                APPLY_ACTIONS => {
                    body.skip(4)?;
                    match Action::parse_all(body.rest())? {
                        Some(actions) => Instruction::ApplyActions(actions),
                        None => return Ok(None),
                    }
                }
                _ => return Ok(None),
            });
        }
        Ok(Some(instructions))
    }

    pub(super) fn emit(&self, wire: &mut Vec<u8>) {
        match self {
            Instruction::GotoTable(table) => {
                wire.u16(GOTO_TABLE);
                wire.u16(8);
                wire.u8(*table);
                wire.zeros(3);
            }
            Instruction::ApplyActions(actions) => {
                let start = wire.len();
                wire.u16(APPLY_ACTIONS);
                wire.u16(0);
                wire.zeros(4);
                actions.iter().for_each(|action| action.emit(wire));
                set_len(wire, start, start + 2);
            }
        }
    }
}
