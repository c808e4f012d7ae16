//! A stream in which every member sends, at one of its receivers: each sender's messages have their own
//! numbers and their own order.
//!
//! Senders go by handles of their own, which the manager gives to members as they join, so pieces look like
//! those of a stream with one source. A member whose rack gets a copy of what it sends drops that. The memory
//! of what waits is one for all senders: where it is short, the one that takes the most of it loses messages,
//! so that a member that floods the others costs them none.

use alloc::collections::{BTreeMap, BTreeSet, VecDeque};
use polycast_types::{Handle, Time};

use super::order::{Order, OrderConfig, OrderCounts, OrderInput, OrderOutput};

/// Bounds and times of a receiver of several senders.
#[derive(Clone, Copy, Debug)]
pub struct SendersConfig {
    /// Bounds for each sender; the memory is also that of all of them together.
    pub order: OrderConfig,
    /// Number of senders that it keeps apart.
    pub senders_max: usize,
    /// The handle with which this member sends itself.
    pub own: Option<Handle>,
}

/// A sender that is not kept apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SendersError {
    /// Too many of them.
    #[error("the stream has {0} senders already, the most that a receiver keeps apart")]
    Full(usize),
}

/// Actions for the driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SendersOutput {
    /// The sender that this is about.
    pub sender: Handle,
    /// Action for one of its messages.
    pub output: OrderOutput,
}

/// Counters of pieces that no sender's order has seen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SendersCounts {
    /// Pieces of this member itself.
    pub own: u64,
    /// Pieces of hosts that are no members, or not yet, or no more.
    pub strangers: u64,
}

/// A sender.
#[derive(Debug)]
struct Sender {
    order: Order,
    /// Time at which it is polled, as `due` has it.
    due: Option<Time>,
    /// Bytes of what waits, as `by_bytes` has them.
    bytes: usize,
}

/// The orders of all senders.
#[derive(Debug)]
pub struct Senders {
    config: SendersConfig,
    senders: BTreeMap<Handle, Sender>,
    due: BTreeSet<(Time, Handle)>,
    /// Senders with something that waits, by its bytes.
    by_bytes: BTreeSet<(usize, Handle)>,
    /// Sum of these bytes.
    bytes: usize,
    counts: SendersCounts,
    outputs: VecDeque<SendersOutput>,
}

impl Senders {
    /// A member that knows of no sender yet.
    #[must_use]
    pub fn new(config: SendersConfig) -> Self {
        Senders {
            config,
            senders: BTreeMap::new(),
            due: BTreeSet::new(),
            by_bytes: BTreeSet::new(),
            bytes: 0,
            counts: SendersCounts::default(),
            outputs: VecDeque::new(),
        }
    }

    /// Hears a sender from its message of this number on; what is older was sent before this receiver knew of
    /// it. One that is known stays as it is.
    ///
    /// # Errors
    /// There are too many.
    pub fn join(&mut self, sender: Handle, next: u64) -> Result<(), SendersError> {
        let is_new = !self.senders.contains_key(&sender) && self.config.own != Some(sender);
        if is_new && self.senders.len() >= self.config.senders_max {
            return Err(SendersError::Full(self.config.senders_max));
        }
        if is_new {
            let order = Order::new(self.config.order).not_before(next);
            self.senders.insert(sender, Sender { order, due: None, bytes: 0 });
        }
        Ok(())
    }

    /// Hears a sender no more: what waits of it is forgotten. Gives its counters, if it was known.
    pub fn leave(&mut self, sender: Handle) -> Option<OrderCounts> {
        self.senders.get_mut(&sender)?.order.forget();
        self.settle(sender);
        self.senders.remove(&sender).map(|sender| sender.order.counts())
    }

    /// Takes in a piece of a sender; gives whether its payload is to be kept.
    pub fn handle(&mut self, now: Time, sender: Handle, input: OrderInput) -> bool {
        if self.config.own == Some(sender) {
            self.counts.own += 1;
            return false;
        }
        let Some(known) = self.senders.get_mut(&sender) else {
            self.counts.strangers += 1;
            return false;
        };
        let is_kept = known.order.handle(now, input);
        self.settle(sender);
        while self.bytes > self.config.order.bytes_max
            && let Some(&(_, most)) = self.by_bytes.last()
            && let Some(known) = self.senders.get_mut(&most)
        {
            known.order.make_room(now);
            self.settle(most);
        }
        if cfg!(debug_assertions) {
            self.check();
        }
        is_kept
    }

    /// The next thing to do, until there is none.
    pub fn poll(&mut self, now: Time) -> Option<SendersOutput> {
        while self.outputs.is_empty()
            && let Some(&(due, sender)) = self.due.first()
            && due <= now
            && let Some(known) = self.senders.get_mut(&sender)
        {
            let outputs = core::iter::from_fn(|| known.order.poll(now));
            self.outputs.extend(outputs.map(|output| SendersOutput { sender, output }));
            self.settle(sender);
        }
        self.outputs.pop_front()
    }

    /// Returns the time of the next poll even if nothing happens before.
    #[must_use]
    pub fn deadline(&self) -> Option<Time> {
        self.due.first().map(|(due, _)| *due)
    }

    /// Returns the counters of a sender that is known.
    #[must_use]
    pub fn counts_of(&self, sender: Handle) -> Option<OrderCounts> {
        self.senders.get(&sender).map(|sender| sender.order.counts())
    }

    /// Returns the counters of pieces that are no known sender's.
    #[must_use]
    pub fn counts(&self) -> SendersCounts {
        self.counts
    }

    /// Brings up to date what is known of a sender outside its order, and takes its outputs.
    fn settle(&mut self, sender: Handle) {
        let Some(known) = self.senders.get_mut(&sender) else { return };
        let outputs = core::iter::from_fn(|| known.order.take_output());
        self.outputs.extend(outputs.map(|output| SendersOutput { sender, output }));
        let (due, bytes) = (known.order.deadline(), known.order.bytes());
        if let Some(old) = core::mem::replace(&mut known.due, due) {
            self.due.remove(&(old, sender));
        }
        self.due.extend(due.map(|due| (due, sender)));
        let old = core::mem::replace(&mut known.bytes, bytes);
        self.by_bytes.remove(&(old, sender));
        if bytes > 0 {
            self.by_bytes.insert((bytes, sender));
        }
        self.bytes = self.bytes + bytes - old;
    }

    /// Looks whether the state agrees with itself, and its bounds hold.
    ///
    /// # Panics
    /// If it does not, which is our own mistake.
    pub fn check(&self) {
        assert!(self.senders.len() <= self.config.senders_max, "{} senders", self.senders.len());
        assert!(self.bytes <= self.config.order.bytes_max, "what waits takes {} bytes", self.bytes);
        let sum: usize = self.senders.values().map(|sender| sender.order.bytes()).sum();
        assert_eq!(self.bytes, sum, "what senders take adds up");
        let due = self.senders.values().filter(|sender| sender.order.deadline().is_some()).count();
        assert_eq!(self.due.len(), due, "each sender that waits is due once");
        let waiting = self.senders.values().filter(|sender| sender.bytes > 0).count();
        assert_eq!(self.by_bytes.len(), waiting, "each sender that waits is counted once");
    }
}
