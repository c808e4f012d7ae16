//! Lines as packets and commands for a switch, and the copies that have to come out.

use super::lines::{Case, bucket_bits};
use std::collections::BTreeSet;
use std::fmt::Write as _;

/// The switch's port to its own processor.
pub(crate) const CPU_PORT: u32 = 510;
/// The network's UDP port.
const ORCA_PORT: u16 = 7474;
/// Offset of the label's header.
pub(crate) const HEADER_AT: usize = 42;
const KIND_AT: usize = HEADER_AT + 2;
const VERSION: u8 = 3;
const ASKS: u8 = 2;

/// Deed to a switch.
pub(crate) enum Step {
    /// A command of the control plane.
    Command(String),
    /// A packet, and its copies by ports.
    Packet { port: u32, bytes: Vec<u8>, copies: Vec<(u32, Vec<u8>)> },
}

impl Step {
    /// Returns true for a packet that an interface of Linux sends.
    pub(crate) fn has_its_port(&self) -> bool {
        matches!(self, Step::Packet { port: 0, bytes, .. } if bytes.len() >= 14)
    }
}

/// Steps for a switch with so many ports.
pub(crate) struct Script {
    pub(crate) ports: u32,
    pub(crate) steps: Vec<Step>,
}

/// The fields of a line: a call takes the next one.
struct Line<'a>(std::str::SplitWhitespace<'a>);

impl<'a> Line<'a> {
    fn next(&mut self) -> &'a str {
        self.0.next().expect("a line has its fields")
    }

    fn flag(&mut self) -> bool {
        self.next() == "1"
    }

    fn number(&mut self) -> u128 {
        u128::from_str_radix(self.next(), 16).expect("fields are hexadecimal")
    }

    /// The ports of a bitmap.
    fn ports(&mut self, width: u32) -> Vec<u32> {
        let bits = self.number();
        (0..width).filter(|port| bits >> (width - 1 - port) & 1 == 1).collect()
    }

    fn bytes(&mut self) -> Vec<u8> {
        let digits = self.next();
        (0..digits.len()).step_by(2).map(|at| u8::from_str_radix(&digits[at..at + 2], 16).unwrap()).collect()
    }
}

impl Script {
    pub(crate) fn of_leaf(case: &Case, lines: &str) -> Script {
        let clos = case.clos();
        let (down, up) = (clos.hosts_per_leaf(), clos.spines_per_pod());
        let mut script = Script { ports: down + up, steps: Vec::new() };
        for (at, line) in lines.lines().enumerate() {
            let mut line = Line(line.split_whitespace());
            let (writes, agents, rack) = (line.flag(), line.number(), line.number());
            let (is_packet, is_above, from) = (line.flag(), line.flag(), line.ports(down));
            let (kind, label) = (line.number() as u8, line.bytes());
            let (_, to_down, to_up) = (line.flag(), line.ports(down), line.ports(up));
            let port = if is_above { down + at as u32 % up } else { from[0] };
            let bytes = frame(kind, at as u32, &label, at);
            let to = to_down.into_iter().chain(to_up.into_iter().map(|port| down + port));
            let copies = to.map(|port| (port, bytes.clone())).collect();
            if is_packet {
                script.steps.push(Step::Packet { port, bytes, copies });
            }
            if writes {
                let command = format!("table_set_default agents set_agents {agents:#x} {rack:#x}");
                script.steps.push(Step::Command(command));
            }
        }
        script
    }

    pub(crate) fn of_core(case: &Case, lines: &str) -> Script {
        let pods = case.planner.format().core_down;
        let mut script = Script { ports: pods, steps: Vec::new() };
        for (at, line) in lines.lines().enumerate() {
            let mut line = Line(line.split_whitespace());
            let (is_packet, kind, label, _) = (line.flag(), line.number() as u8, line.bytes(), line.flag());
            let bytes = frame(kind, at as u32, &label, at);
            let copies = line.ports(pods).into_iter().map(|port| (port, bytes.clone())).collect();
            if is_packet {
                script.steps.push(Step::Packet { port: at as u32 % pods, bytes, copies });
            }
        }
        script
    }

    pub(crate) fn of_spine(case: &Case, pod: u32, lines: &str) -> Script {
        let clos = case.clos();
        let (down, up) = (clos.leafs_per_pod(), clos.cores_per_spine().max(1));
        let mut script = Script { ports: down + up, steps: Vec::new() };
        script.steps.push(Step::Command(format!("table_set_default here set_pod {pod}")));
        let mut known = BTreeSet::new();
        for (at, line) in lines.lines().enumerate() {
            let mut line = Line(line.split_whitespace());
            if line.flag() {
                let (core, buckets) = (line.number(), line.next());
                script.row(core, down, buckets, bucket_bits(case.planner.format().filter_bits));
            } else {
                line.next();
                line.next();
            }
            let (writes, _, written, blocked) = (line.flag(), line.next(), line.number(), line.number());
            let (is_packet, is_above, session) = (line.flag(), line.flag(), line.number() as u32);
            let (kind, label) = (line.number() as u8, line.bytes());
            let (_, to_down, asked, to_up) =
                (line.flag(), line.ports(down), line.ports(down), line.ports(up));
            let port = if is_above { down + at as u32 % up } else { at as u32 % down };
            let bytes = frame(kind, session, &label, at);
            let mut asks = bytes.clone();
            asks[KIND_AT] = ASKS;
            let asks = checksummed(asks, has_sum(&bytes));
            let to = to_down.into_iter().chain(to_up.into_iter().map(|port| down + port));
            let mut copies: Vec<_> = to.map(|port| (port, bytes.clone())).collect();
            copies.extend(asked.into_iter().map(|port| (port, asks.clone())));
            copies.sort();
            if is_packet {
                script.steps.push(Step::Packet { port, bytes, copies });
            }
            if writes {
                script.entry(&mut known, written, blocked);
            }
        }
        script
    }

    /// The buckets of the links down under a core: link 0 has the lowest bits.
    fn row(&mut self, core: u128, links: u32, buckets: &str, width: u32) {
        let bit = |at: u32| {
            let digit = buckets.len() - 1 - (at / 4) as usize;
            u32::from_str_radix(&buckets[digit..=digit], 16).unwrap() >> (at % 4) & 1
        };
        for link in 0..links {
            let bucket = (0..width).rev().fold(0, |bucket, at| bucket << 1 | bit(link * width + at));
            self.steps.push(Step::Command(format!("table_add buckets in_bucket {link} {core} => {bucket}")));
        }
    }

    /// An entry instead of the one that is there; one without links is none.
    fn entry(&mut self, known: &mut BTreeSet<u128>, session: u128, blocked: u128) {
        if known.remove(&session) {
            self.steps.push(Step::Command(format!("table_delete_match entries {session}")));
        }
        if blocked != 0 {
            known.insert(session);
            self.steps.push(Step::Command(format!("table_add entries block {session} => {blocked:#x}")));
        }
    }

    pub(crate) fn packets(&self) -> u32 {
        self.steps.iter().filter(|step| matches!(step, Step::Packet { .. })).count() as u32
    }

    /// The script as a text: what `p4/tests/bmv2.py` reads.
    pub(crate) fn text(&self) -> String {
        let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
        let mut text = format!("ports {}\n", self.ports);
        for step in &self.steps {
            match step {
                Step::Command(command) => writeln!(text, "command {command}").unwrap(),
                Step::Packet { port, bytes, copies } => {
                    write!(text, "packet {port} {}", hex(bytes)).unwrap();
                    for (port, bytes) in copies {
                        write!(text, " {port} {}", hex(bytes)).unwrap();
                    }
                    text.push('\n');
                }
            }
        }
        text
    }
}

/// A labelled packet as a host sends it, with a number behind the label. Every third has no sum of UDP, and
/// every other of the rest one below 256, which a small change carries over.
pub(crate) fn frame(kind: u8, session: u32, label: &[u8], number: usize) -> Vec<u8> {
    let mut payload = vec![VERSION, label.len() as u8, kind, 0];
    payload.extend(session.to_be_bytes());
    payload.extend(label);
    payload.resize(payload.len().next_multiple_of(4), 0);
    payload.extend((number as u64).to_be_bytes());
    payload.extend([0, 0]);
    let (length, ip_length) = (payload.len() as u16 + 8, payload.len() as u16 + 28);
    let mut bytes = vec![1, 0, 0x5e, 1, 2, 3, 2, 0, 0, 0, 0, 1, 8, 0];
    bytes.extend([0x45, 0, (ip_length >> 8) as u8, ip_length as u8, 0, 0, 0x40, 0, 16, 17, 0, 0]);
    bytes.extend([10, 0, 0, 1, 239, 1, 2, 3]);
    bytes.extend([
        0x30,
        0x39,
        (ORCA_PORT >> 8) as u8,
        ORCA_PORT as u8,
        (length >> 8) as u8,
        length as u8,
        0,
        0,
    ]);
    bytes.extend(payload);
    bytes = checksummed(bytes, !number.is_multiple_of(3));
    if number % 3 == 1 {
        let (sum, wanted) = (!u16::from_be_bytes([bytes[40], bytes[41]]), !(number as u16 % 256));
        let last = (u32::from(wanted) + 0xffff - u32::from(sum)) % 0xffff;
        let end = bytes.len() - 2;
        bytes[end..].copy_from_slice(&(last as u16).to_be_bytes());
        bytes = checksummed(bytes, true);
        assert!(bytes[40] == 0 || bytes[40..42] == [0xff; 2], "{:02x?}", &bytes[40..42]);
    }
    bytes
}

fn has_sum(bytes: &[u8]) -> bool {
    bytes[40..42] != [0, 0]
}

/// A frame with the sum of its IP header, and with or without that of UDP.
pub(crate) fn checksummed(mut bytes: Vec<u8>, has_sum: bool) -> Vec<u8> {
    bytes[24..26].fill(0);
    bytes[40..42].fill(0);
    let ip = sum(&bytes[14..34]).to_be_bytes();
    bytes[24..26].copy_from_slice(&ip);
    if has_sum {
        let pseudo = [&bytes[26..34], &[0, 17], &bytes[38..40], &bytes[34..]].concat();
        let udp = match sum(&pseudo) {
            0 => u16::MAX,
            sum => sum,
        };
        bytes[40..42].copy_from_slice(&udp.to_be_bytes());
    }
    bytes
}

/// The sum of the Internet's protocols.
fn sum(bytes: &[u8]) -> u16 {
    let word = |pair: &[u8]| u32::from(pair[0]) << 8 | u32::from(*pair.get(1).unwrap_or(&0));
    let mut sum: u32 = bytes.chunks(2).map(word).sum();
    while sum > 0xffff {
        sum = (sum >> 16) + (sum & 0xffff);
    }
    !(sum as u16)
}
