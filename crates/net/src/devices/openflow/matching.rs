//! Match fields of rules: fields of a packet in OXM's form.

use super::{CodecError, set_len};
use polycast_wire::cursor::{Put, Reader};

/// One field of a packet. Of a masked field only the bits of the mask are compared.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Field {
    /// The port by which it came in.
    InPort(u32),
    /// Destination hardware address with its mask.
    EthDst([u8; 6], [u8; 6]),
    /// Source hardware address with its mask.
    EthSrc([u8; 6], [u8; 6]),
    /// Payload type of the frame: 0x0800 for IPv4.
    EthType(u16),
    /// The class of service that the IPv4 packet asks for (DSCP), 0 to 63.
    IpDscp(u8),
    /// Payload type of the IPv4 packet: 17 for UDP.
    IpProtocol(u8),
    /// IPv4 source with its mask.
    Ipv4Src([u8; 4], [u8; 4]),
    /// IPv4 destination with its mask.
    Ipv4Dst([u8; 4], [u8; 4]),
    /// UDP source port.
    UdpSrc(u16),
    /// UDP destination port.
    UdpDst(u16),
}

const CLASS: u16 = 0x8000;
const IN_PORT: u8 = 0;
const ETH_DST: u8 = 3;
const ETH_SRC: u8 = 4;
const ETH_TYPE: u8 = 5;
const IP_DSCP: u8 = 8;
const IP_PROTOCOL: u8 = 10;
const IPV4_SRC: u8 = 11;
const IPV4_DST: u8 = 12;
const UDP_SRC: u8 = 15;
const UDP_DST: u8 = 16;

impl Field {
    /// An exact IPv4 source.
    #[must_use]
    pub fn ipv4_src(address: [u8; 4]) -> Self {
        Field::Ipv4Src(address, [0xff; 4])
    }

    /// An exact IPv4 destination.
    #[must_use]
    pub fn ipv4_dst(address: [u8; 4]) -> Self {
        Field::Ipv4Dst(address, [0xff; 4])
    }

    /// An exact hardware destination.
    #[must_use]
    pub fn eth_dst(address: [u8; 6]) -> Self {
        Field::EthDst(address, [0xff; 6])
    }

    pub(super) fn is_masked(self) -> bool {
        match self {
            Field::EthDst(_, mask) | Field::EthSrc(_, mask) => mask != [0xff; 6],
            Field::Ipv4Src(_, mask) | Field::Ipv4Dst(_, mask) => mask != [0xff; 4],
            _ => false,
        }
    }

    /// Reads one field, or gives `None` if it is not ours.
    pub(super) fn parse(reader: &mut Reader<'_>) -> Result<Option<Self>, CodecError> {
        let (class, name, len) = (reader.u16()?, reader.u8()?, usize::from(reader.u8()?));
        let mut body = Reader(reader.take(len)?);
        let masked = name & 1 == 1;
        if class != CLASS {
            return Ok(None);
        }
        let field = match (name >> 1, len, masked) {
            (IN_PORT, 4, false) => Field::InPort(body.u32()?),
            (ETH_DST, 6, false) => Field::EthDst(body.array()?, [0xff; 6]),
            (ETH_DST, 12, true) => Field::EthDst(body.array()?, body.array()?),
            (ETH_SRC, 6, false) => Field::EthSrc(body.array()?, [0xff; 6]),
            (ETH_SRC, 12, true) => Field::EthSrc(body.array()?, body.array()?),
            (ETH_TYPE, 2, false) => Field::EthType(body.u16()?),
            (IP_DSCP, 1, false) => Field::IpDscp(body.u8()?),
            (IP_PROTOCOL, 1, false) => Field::IpProtocol(body.u8()?),
            (IPV4_SRC, 4, false) => Field::Ipv4Src(body.array()?, [0xff; 4]),
            (IPV4_SRC, 8, true) => Field::Ipv4Src(body.array()?, body.array()?),
            (IPV4_DST, 4, false) => Field::Ipv4Dst(body.array()?, [0xff; 4]),
            (IPV4_DST, 8, true) => Field::Ipv4Dst(body.array()?, body.array()?),
            (UDP_SRC, 2, false) => Field::UdpSrc(body.u16()?),
            (UDP_DST, 2, false) => Field::UdpDst(body.u16()?),
            _ => return Ok(None),
        };
        Ok(Some(field))
    }

    pub(super) fn emit(self, wire: &mut Vec<u8>) {
        let masked = self.is_masked();
        let mut header = |name: u8, len: u8| {
            wire.u16(CLASS);
            wire.u8(name << 1 | u8::from(masked));
            wire.u8(if masked { 2 * len } else { len });
        };
        match self {
            Field::InPort(port) => {
                header(IN_PORT, 4);
                wire.u32(port);
            }
            Field::EthType(kind) => {
                header(ETH_TYPE, 2);
                wire.u16(kind);
            }
            Field::IpDscp(class) => {
                header(IP_DSCP, 1);
                wire.u8(class);
            }
            Field::IpProtocol(protocol) => {
                header(IP_PROTOCOL, 1);
                wire.u8(protocol);
            }
            Field::UdpSrc(port) => {
                header(UDP_SRC, 2);
                wire.u16(port);
            }
            Field::UdpDst(port) => {
                header(UDP_DST, 2);
                wire.u16(port);
            }
            Field::EthDst(address, mask) | Field::EthSrc(address, mask) => {
                header(if matches!(self, Field::EthDst(..)) { ETH_DST } else { ETH_SRC }, 6);
                emit_masked(&address, &mask, masked, wire);
            }
            Field::Ipv4Src(address, mask) | Field::Ipv4Dst(address, mask) => {
                header(if matches!(self, Field::Ipv4Dst(..)) { IPV4_DST } else { IPV4_SRC }, 4);
                emit_masked(&address, &mask, masked, wire);
            }
        }
    }
}

fn emit_masked(value: &[u8], mask: &[u8], masked: bool, wire: &mut Vec<u8>) {
    wire.extend_from_slice(value);
    if masked {
        wire.extend_from_slice(mask);
    }
}

/// Match of a rule: packets that agree in all fields. A field that needs another (UDP ports need the
/// protocol, which needs the Ethernet type) comes after it.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Match {
    /// The fields.
    pub fields: Vec<Field>,
}

impl Match {
    /// Every packet.
    #[must_use]
    pub fn any() -> Self {
        Match::default()
    }

    /// UDP packets over IPv4.
    #[must_use]
    pub fn udp() -> Self {
        Match::any().and(Field::EthType(0x0800)).and(Field::IpProtocol(17))
    }

    /// Only those that agree in this field too.
    #[must_use]
    pub fn and(mut self, field: Field) -> Self {
        self.fields.push(field);
        self
    }

    /// Reads a match with its padding, or gives `None` if there is a field in it that is not ours.
    pub(super) fn parse(reader: &mut Reader<'_>) -> Result<Option<Self>, CodecError> {
        let (kind, len) = (reader.u16()?, usize::from(reader.u16()?));
        let mut body = Reader(reader.take(len.checked_sub(4).ok_or(CodecError::Malformed)?)?);
        reader.skip(len.next_multiple_of(8) - len)?;
        let mut matching = Some(Match::any());
        while !body.0.is_empty() {
            let field = Field::parse(&mut body)?;
            matching = matching.zip(field).map(|(matching, field)| matching.and(field));
        }
        // Type 0 is a form of older versions.
        Ok(if kind == 1 { matching } else { None })
    }

    pub(super) fn emit(&self, wire: &mut Vec<u8>) {
        let start = wire.len();
        wire.u16(1);
        wire.u16(0);
        self.fields.iter().for_each(|field| field.emit(wire));
        set_len(wire, start, start + 2);
        let len = wire.len() - start;
        wire.zeros(len.next_multiple_of(8) - len);
    }
}
