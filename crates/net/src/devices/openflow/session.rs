//! The controller's machine for one connection to one switch.

use super::{CodecError, Message, Port, PortChange, PortStats};
use std::collections::{BTreeMap, VecDeque};

/// Transactions that may be under way.
const PENDING_MAX: usize = 1_024;
/// Events that wait to be taken; older ones about ports make room.
const EVENTS_MAX: usize = 8_192;
/// Ports of one switch that are listened to, in all answers that are not at their end: more than any has.
const PORTS_MAX: usize = 16_384;
/// Flags, and how much of a packet the controller asks for: all of it.
const SET_CONFIG: u8 = 9;
/// Bit 4 of a greeting: OpenFlow 1.3.
const OUR_VERSION: u32 = 1 << super::VERSION;

/// Answer from a switch.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Reply {
    /// All was done.
    Done,
    /// The ports.
    Ports(Vec<Port>),
    /// Counters of the ports.
    PortStats(Vec<PortStats>),
    /// The types of groups that there can be, as bits; bit 0 is ALL.
    Groups(u32),
    /// Refused: kind and code of the first error, and how many there were.
    Refused {
        /// The error's kind.
        kind: u16,
        /// Code of the error within its kind.
        code: u16,
        /// Errors in this transaction.
        count: usize,
        /// Index of the first message that was refused, from 0.
        index: usize,
    },
}

/// Output of the machine.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Event {
    /// The hand-shake is over.
    Ready {
        /// The switch's number.
        datapath_id: u64,
        /// Number of flow tables of the switch.
        tables: u8,
    },
    /// A transaction has ended.
    Done {
        /// Its number.
        transaction: u32,
        /// Outcome of the transaction.
        reply: Reply,
    },
    /// The switch answered an echo.
    Alive,
    /// A port has changed.
    Port {
        /// Kind of change.
        change: PortChange,
        /// The port as it is now.
        port: Port,
    },
    /// An error that belongs to no transaction.
    Error {
        /// Its kind.
        kind: u16,
        /// Code of the error within its kind.
        code: u16,
    },
}

/// A transaction: messages with consecutive numbers, and one that is answered last.
#[derive(Clone, Debug)]
struct Pending {
    first: u32,
    refused: Option<(u16, u16, usize)>,
    errors: usize,
    ports: Vec<Port>,
    stats: Vec<PortStats>,
}

/// The controller's end of a connection.
#[derive(Clone, Debug)]
pub struct Session {
    incoming: Vec<u8>,
    outgoing: Vec<u8>,
    last: u32,
    /// By the number of the message that is answered last.
    pending: BTreeMap<u32, Pending>,
    /// Ports that they have, and what ports have seen.
    listed: usize,
    greeted: bool,
    ready: bool,
    events: VecDeque<Event>,
}

impl Default for Session {
    fn default() -> Self {
        Session::new()
    }
}

impl Session {
    /// A fresh connection: our greeting and our question what the switch is go out first.
    #[must_use]
    pub fn new() -> Self {
        let outgoing = Message::Hello { versions: Some(OUR_VERSION) }.emit(1);
        let (pending, events) = (BTreeMap::new(), VecDeque::new());
        let incoming = Vec::new();
        Session { incoming, outgoing, last: 1, pending, listed: 0, greeted: false, ready: false, events }
    }

    fn send(&mut self, message: &Message) -> u32 {
        self.last = self.last.wrapping_add(1);
        self.outgoing.extend_from_slice(&message.emit(self.last));
        self.last
    }

    /// Sends changes and a barrier after them: the transaction is done when the switch has taken all of
    /// them in. Gives its number, or `None` if too many are under way.
    pub fn apply(&mut self, changes: &[Message]) -> Option<u32> {
        if self.pending.len() >= PENDING_MAX {
            return None;
        }
        let first = self.last.wrapping_add(1);
        for change in changes {
            self.send(change);
        }
        Some(self.end_with(first, &Message::BarrierRequest))
    }

    /// Asks for all ports.
    pub fn ask_ports(&mut self) -> Option<u32> {
        self.ask(&Message::PortsRequest)
    }

    /// Asks what all ports have seen.
    pub fn ask_port_stats(&mut self) -> Option<u32> {
        self.ask(&Message::PortStatsRequest)
    }

    /// Asks which groups there can be.
    pub fn ask_groups(&mut self) -> Option<u32> {
        self.ask(&Message::GroupFeaturesRequest)
    }

    fn ask(&mut self, question: &Message) -> Option<u32> {
        if self.pending.len() >= PENDING_MAX {
            return None;
        }
        Some(self.end_with(self.last.wrapping_add(1), question))
    }

    fn end_with(&mut self, first: u32, last: &Message) -> u32 {
        let transaction = self.send(last);
        let (ports, stats) = (Vec::new(), Vec::new());
        self.pending.insert(transaction, Pending { first, refused: None, errors: 0, ports, stats });
        transaction
    }

    /// Asks whether the switch lives.
    pub fn echo(&mut self) {
        self.send(&Message::EchoRequest(Vec::new()));
    }

    /// Gives a transaction up: an answer that still comes is not heard.
    pub fn forget(&mut self, transaction: u32) {
        self.take_out(transaction);
    }

    fn take_out(&mut self, transaction: u32) -> Option<Pending> {
        let pending = self.pending.remove(&transaction)?;
        self.listed -= pending.ports.len() + pending.stats.len();
        Some(pending)
    }

    /// Takes bytes from the switch.
    ///
    /// # Errors
    /// The other end does not speak OpenFlow 1.3: the connection is of no more use.
    pub fn receive(&mut self, bytes: &[u8]) -> Result<(), CodecError> {
        self.incoming.extend_from_slice(bytes);
        let mut taken = 0;
        while let Some(len) = Message::len_at(&self.incoming[taken..])? {
            let Some(message) = self.incoming[taken..].get(..len) else { break };
            let (message, transaction) = Message::parse(message)?;
            taken += len;
            self.take(message, transaction)?;
        }
        self.incoming.drain(..taken);
        Ok(())
    }

    /// Bytes for the switch, taken out.
    pub fn outgoing(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.outgoing)
    }

    /// The next event.
    pub fn poll(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    fn take(&mut self, message: Message, transaction: u32) -> Result<(), CodecError> {
        match message {
            Message::Hello { versions } => {
                if let Some(versions) = versions
                    && versions & OUR_VERSION == 0
                {
                    let highest = 31u32.saturating_sub(versions.leading_zeros());
                    return Err(CodecError::Version(highest as u8));
                }
                if !std::mem::replace(&mut self.greeted, true) {
                    self.send(&Message::FeaturesRequest);
                    // Open vSwitch tells a controller on its own socket about ports only after this word.
                    self.send(&Message::Other { kind: SET_CONFIG, body: vec![0, 0, 0xff, 0xff] });
                }
            }
            Message::EchoRequest(data) => {
                self.outgoing.extend_from_slice(&Message::EchoReply(data).emit(transaction));
            }
            Message::EchoReply(_) => self.event(Event::Alive),
            Message::FeaturesReply { datapath_id, tables, .. }
                if !std::mem::replace(&mut self.ready, true) =>
            {
                self.event(Event::Ready { datapath_id, tables });
            }
            Message::GroupFeaturesReply { types } => self.end(transaction, |_| Reply::Groups(types)),
            Message::PortStatus { change, port } => self.event(Event::Port { change, port }),
            Message::Error { kind, code, .. } => self.error(kind, code, transaction),
            Message::BarrierReply => self.end(transaction, |_| Reply::Done),
            Message::PortsReply { ports, more } => {
                if let Some(pending) = self.pending.get_mut(&transaction) {
                    list(&mut pending.ports, ports, &mut self.listed);
                }
                if !more {
                    self.end(transaction, |pending| Reply::Ports(pending.ports));
                }
            }
            Message::PortStatsReply { stats, more } => {
                if let Some(pending) = self.pending.get_mut(&transaction) {
                    list(&mut pending.stats, stats, &mut self.listed);
                }
                if !more {
                    self.end(transaction, |pending| Reply::PortStats(pending.stats));
                }
            }
            // What only switches are asked, and what is not ours.
            _ => {}
        }
        Ok(())
    }

    /// An error names the message that it refuses. The number of a barrier is above those of its changes.
    fn error(&mut self, kind: u16, code: u16, refused: u32) {
        let transaction = self.pending.iter().find(|(last, pending)| {
            // Numbers may wrap round: count from the first.
            refused.wrapping_sub(pending.first) <= last.wrapping_sub(pending.first)
        });
        let Some((&transaction, _)) = transaction else {
            self.event(Event::Error { kind, code });
            return;
        };
        if let Some(pending) = self.pending.get_mut(&transaction) {
            let index = refused.wrapping_sub(pending.first) as usize;
            pending.refused.get_or_insert((kind, code, index));
            pending.errors += 1;
        }
        // Where the last message itself is refused, nothing else will come.
        if refused == transaction {
            self.end(transaction, |_| Reply::Done);
        }
    }

    fn end(&mut self, transaction: u32, reply: impl FnOnce(Pending) -> Reply) {
        let Some(pending) = self.take_out(transaction) else { return };
        let reply = match pending.refused {
            Some((kind, code, index)) => Reply::Refused { kind, code, count: pending.errors, index },
            None => reply(pending),
        };
        self.event(Event::Done { transaction, reply });
    }

    fn event(&mut self, event: Event) {
        let passing =
            |event: &Event| matches!(event, Event::Port { .. } | Event::Error { .. } | Event::Alive);
        if self.events.len() >= EVENTS_MAX
            && let Some(oldest) = self.events.iter().position(passing)
        {
            self.events.remove(oldest);
        }
        self.events.push_back(event);
    }
}

/// Adds entries as far as there is room for them.
fn list<T>(entries: &mut Vec<T>, more: Vec<T>, listed: &mut usize) {
    let room = PORTS_MAX - *listed;
    let before = entries.len();
    entries.extend(more.into_iter().take(room));
    *listed += entries.len() - before;
}
