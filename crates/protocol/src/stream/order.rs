//! Pieces of messages as they come, and messages in their order.
//!
//! A message that is whole waits for those before it at most as long as it is told to: several trees, or
//! several agents of a rack, may let packets overtake each other. What has not come by then is lost, and what
//! comes later still is dropped: numbers only ever rise, but for the first message of all, if nothing agrees
//! with it. What waits is bounded in messages and in memory, whatever a sender does.
//!
//! Any host that can send to a stream's group can send a number. One that is far ahead of those before it is
//! believed when another one agrees with it and the stream has been silent for a while where it was:
//! otherwise a single datagram would make all that follows too late. So is the first number of all, until
//! another one agrees with it.

use alloc::collections::{BTreeMap, BTreeSet, VecDeque};
use polycast_types::{Duration, Time};
use polycast_wire::stream::MESSAGE_LEN_MAX;

/// Bounds and times of a receiver.
#[derive(Clone, Copy, Debug)]
pub struct OrderConfig {
    /// Time that a message that is whole waits for those before it.
    pub hold: Duration,
    /// Number of messages that may wait, whole or not; at least 1.
    pub messages_max: usize,
    /// Memory that they may take, in bytes: their payload, and [`PIECE_COST`] for each piece.
    pub bytes_max: usize,
}

/// A number that is further ahead than this is a claim.
pub(super) const NUMBERS_AHEAD_MAX: u64 = 1 << 20;
/// Time for which nothing may come from where the stream was before a claim is believed.
pub(super) const QUIET: Duration = Duration::from_millis(50);

/// Memory that a piece takes beside its payload, in bytes.
pub const PIECE_COST: usize = 96;

/// Events that a receiver handles.
#[derive(Clone, Copy, Debug)]
pub enum OrderInput {
    /// A piece has come; [`Order::handle`] says whether it is to be kept.
    Piece {
        /// The message.
        number: u64,
        /// Index of the piece in it.
        piece: u16,
        /// Number of its pieces.
        pieces: u16,
        /// The bytes of its payload.
        len: usize,
    },
}

/// Actions for the driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OrderOutput {
    /// Hand the message to the application: all its pieces are kept.
    Deliver {
        /// The message.
        number: u64,
        /// Number of messages right before it that are lost.
        lost: u64,
    },
    /// Throw away what is kept of a message: it will not be whole.
    Forget {
        /// The message.
        number: u64,
    },
}

/// Counters of a receiver.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OrderCounts {
    /// Messages that were delivered.
    pub delivered: u64,
    /// Messages between delivered ones that were not.
    pub lost: u64,
    /// Pieces that came after their message was given up or delivered.
    pub late: u64,
    /// Pieces that were there already, do not fit those of their message, or claim a number far from all
    /// others.
    pub refused: u64,
}

/// A message that waits.
#[derive(Debug)]
struct Partial {
    pieces: u16,
    have: BTreeSet<u16>,
    /// The payload of these.
    bytes: usize,
    /// Time when its last piece came.
    whole_at: Option<Time>,
}

impl Partial {
    fn cost(&self) -> usize {
        self.bytes + self.have.len() * PIECE_COST
    }
}

/// The order of a stream's messages at a receiver.
#[derive(Debug)]
pub struct Order {
    config: OrderConfig,
    /// The number after the last one delivered or given up; `None` before the first message.
    next: Option<u64>,
    /// First number that counts: a lower one was sent before this receiver joined.
    from: u64,
    /// Time when a piece last came that fits where the stream is.
    here_at: Time,
    /// The first piece of all, until another one agrees with it.
    first: Option<(u64, u16)>,
    /// A piece from far away: its message, and which one it is.
    claim: Option<(u64, u16)>,
    waiting: BTreeMap<u64, Partial>,
    /// Bytes that these take.
    bytes: usize,
    /// Lost since the last message that was delivered.
    lost: u64,
    counts: OrderCounts,
    outputs: VecDeque<OrderOutput>,
}

impl Order {
    /// A receiver that has joined: the first message that begins from now on is its first.
    ///
    /// # Panics
    /// If no message may wait.
    #[must_use]
    pub fn new(config: OrderConfig) -> Self {
        assert!(config.messages_max > 0, "at least one message has to have room");
        Order {
            config,
            next: None,
            from: 0,
            here_at: Time::ZERO,
            first: None,
            claim: None,
            waiting: BTreeMap::new(),
            bytes: 0,
            lost: 0,
            counts: OrderCounts::default(),
            outputs: VecDeque::new(),
        }
    }

    /// The same, of one that has joined when the source's next message had this number. What is older is
    /// late, also for a receiver that has heard nothing yet: any host can have recorded it, and the tags of
    /// sealed pieces do not say when they were sent.
    #[must_use]
    pub fn not_before(self, number: u64) -> Self {
        Order { from: number, ..self }
    }

    /// Takes in what happened; gives whether the piece's payload is to be kept.
    pub fn handle(&mut self, now: Time, input: OrderInput) -> bool {
        let is_kept = self.take_in(now, input);
        if cfg!(debug_assertions) {
            self.check();
        }
        is_kept
    }

    fn take_in(&mut self, now: Time, input: OrderInput) -> bool {
        let OrderInput::Piece { number, piece, pieces, len } = input;
        // A message of no piece, or of more than the longest has bytes, is none; the last number has none
        // after it.
        let counted = piece < pieces && usize::from(pieces) <= MESSAGE_LEN_MAX && number < u64::MAX;
        let possible = counted && len <= MESSAGE_LEN_MAX;
        if !possible {
            self.counts.refused += 1;
            return false;
        }
        if number < self.from {
            self.counts.late += 1;
            return false;
        }
        let Some(next) = self.placed(now, number, piece) else {
            self.counts.refused += 1;
            return false;
        };
        if number < next {
            self.counts.late += 1;
            return false;
        }
        let fresh = || Partial { pieces, have: BTreeSet::new(), bytes: 0, whole_at: None };
        let partial = self.waiting.entry(number).or_insert_with(fresh);
        let fits = partial.pieces == pieces && len <= MESSAGE_LEN_MAX - partial.bytes;
        if !fits || !partial.have.insert(piece) {
            self.counts.refused += 1;
            return false;
        }
        partial.bytes += len;
        self.bytes += len + PIECE_COST;
        if partial.have.len() == usize::from(pieces) {
            partial.whole_at = Some(now);
        }
        self.advance(now);
        true
    }

    /// The number that is expected, if a piece of this message can be from where the stream is.
    fn placed(&mut self, now: Time, number: u64, piece: u16) -> Option<u64> {
        let Some(next) = self.next else {
            (self.next, self.first, self.here_at) = (Some(number), Some((number, piece)), now);
            return self.next;
        };
        let newest = self.waiting.keys().next_back().map_or(next, |newest| next.max(*newest));
        if (next.saturating_sub(NUMBERS_AHEAD_MAX)..=newest.saturating_add(NUMBERS_AHEAD_MAX))
            .contains(&number)
        {
            self.here_at = now;
            self.first.take_if(|first| *first != (number, piece));
            return self.next;
        }
        // What is far behind is old, unless the only piece that says so may be of any sender.
        if number < next && self.first.is_none() {
            return self.next;
        }
        let is_quiet = self.first.is_some() || now.since(self.here_at) >= QUIET;
        let agrees = |(claimed, other): &(u64, u16)| {
            number.abs_diff(*claimed) <= NUMBERS_AHEAD_MAX && (*claimed, *other) != (number, piece)
        };
        if self.claim.take_if(|claim| is_quiet && agrees(claim)).is_none() {
            self.claim = Some((number, piece));
            return None;
        }
        (self.here_at, self.first) = (now, None);
        if number < next {
            self.begin_anew(number);
        }
        self.next
    }

    /// The first piece was none of the stream's, which is here.
    fn begin_anew(&mut self, number: u64) {
        for number in core::mem::take(&mut self.waiting).into_keys() {
            self.outputs.push_back(OrderOutput::Forget { number });
        }
        (self.next, self.bytes, self.lost) = (Some(number), 0, 0);
    }

    /// The next thing to do, until there is none.
    pub fn poll(&mut self, now: Time) -> Option<OrderOutput> {
        if self.outputs.is_empty() {
            self.advance(now);
        }
        self.outputs.pop_front()
    }

    /// Returns the time of the next poll even if nothing happens before.
    #[must_use]
    pub fn deadline(&self) -> Option<Time> {
        self.first_whole().map(|(_, at)| at + self.config.hold)
    }

    /// The next thing to do that is decided already.
    pub(super) fn take_output(&mut self) -> Option<OrderOutput> {
        self.outputs.pop_front()
    }

    /// Bytes that what waits takes.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Gives up the first message that waits, or all before the first that is whole.
    pub(super) fn make_room(&mut self, now: Time) {
        if let Some(&first) = self.waiting.keys().next() {
            let whole = self.first_whole();
            self.give_up_to(whole.map_or(first + 1, |(number, _)| number));
            self.advance(now);
        }
    }

    /// Throws away all that waits.
    pub(super) fn forget(&mut self) {
        for number in core::mem::take(&mut self.waiting).into_keys() {
            self.outputs.push_back(OrderOutput::Forget { number });
        }
        self.bytes = 0;
    }

    /// Returns the counters.
    #[must_use]
    pub fn counts(&self) -> OrderCounts {
        self.counts
    }

    /// Looks whether the state agrees with itself, and its bounds hold.
    ///
    /// # Panics
    /// If it does not, which is our own mistake.
    pub fn check(&self) {
        let OrderConfig { messages_max, bytes_max, .. } = self.config;
        assert!(self.waiting.len() <= messages_max, "{} messages wait", self.waiting.len());
        assert!(self.bytes <= bytes_max, "messages that wait take {} bytes", self.bytes);
        let costs: usize = self.waiting.values().map(Partial::cost).sum();
        assert_eq!(self.bytes, costs, "what messages take adds up");
        for (number, partial) in &self.waiting {
            assert!(self.from <= *number, "message {number} is older than {} and waits", self.from);
            assert!(self.next.is_some_and(|next| next <= *number), "message {number} is over and waits");
            let (have, pieces) = (partial.have.len(), usize::from(partial.pieces));
            assert!(0 < have && have <= pieces, "message {number} has {have} of {pieces} pieces");
            assert_eq!(partial.whole_at.is_some(), have == pieces, "message {number} is whole or not");
            assert!(partial.bytes <= MESSAGE_LEN_MAX, "message {number} has {} bytes", partial.bytes);
        }
    }

    fn first_whole(&self) -> Option<(u64, Time)> {
        self.waiting.iter().find_map(|(number, partial)| Some((*number, partial.whole_at?)))
    }

    /// Delivers what can be, and gives up what has waited for long enough.
    fn advance(&mut self, now: Time) {
        loop {
            let Some(next) = self.next else { return };
            let whole = self.first_whole();
            if let Some((number, at)) = whole
                && (number == next || at + self.config.hold <= now)
            {
                self.give_up_to(number);
                self.take_out(number);
                self.next = Some(number + 1);
                // A receiver that joins in the middle of a message has not lost it.
                if self.counts.delivered == 0 {
                    self.lost = 0;
                }
                self.counts.delivered += 1;
                self.counts.lost += self.lost;
                let lost = core::mem::take(&mut self.lost);
                self.outputs.push_back(OrderOutput::Deliver { number, lost });
                continue;
            }
            if self.waiting.len() <= self.config.messages_max && self.bytes <= self.config.bytes_max {
                return;
            }
            // No room: up to the first that is whole, or the first of all.
            let first = self.waiting.keys().next().map_or(next, |first| first + 1);
            self.give_up_to(whole.map_or(first, |(number, _)| number));
        }
    }

    fn take_out(&mut self, number: u64) {
        if let Some(partial) = self.waiting.remove(&number) {
            self.bytes -= partial.cost();
        }
    }

    /// Gives up all messages before this one.
    fn give_up_to(&mut self, number: u64) {
        let next = self.next.unwrap_or(number);
        self.lost += number.saturating_sub(next);
        self.next = Some(next.max(number));
        while let Some((&first, _)) = self.waiting.first_key_value()
            && first < number
        {
            let number = first;
            self.take_out(number);
            self.outputs.push_back(OrderOutput::Forget { number });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;
    use alloc::vec::Vec;
    use proptest::prelude::*;

    const HOLD: Duration = Duration::from_nanos(1_000);

    fn drain(order: &mut Order, now: Time) -> Vec<OrderOutput> {
        core::iter::from_fn(|| order.poll(now)).collect()
    }

    fn piece(number: u64, piece: u16, pieces: u16) -> OrderInput {
        OrderInput::Piece { number, piece, pieces, len: 100 }
    }

    fn order(hold: Duration, messages_max: usize) -> Order {
        Order::new(OrderConfig { hold, messages_max, bytes_max: usize::MAX })
    }

    #[test]
    fn a_gap_is_waited_for_and_then_said() {
        let mut order = order(HOLD, 8);
        let deliver = |number, lost| OrderOutput::Deliver { number, lost };
        assert!(order.handle(Time(0), piece(7, 0, 1)), "a receiver that joins begins in the middle");
        assert_eq!(drain(&mut order, Time(0)), [deliver(7, 0)]);
        assert!(order.handle(Time(1), piece(9, 0, 1)));
        assert_eq!(drain(&mut order, Time(1)), []);
        assert_eq!(order.deadline(), Some(Time(1_001)));
        assert!(order.handle(Time(500), piece(8, 0, 1)), "it was only overtaken");
        assert_eq!(drain(&mut order, Time(500)), [deliver(8, 0), deliver(9, 0)]);
        assert!(order.handle(Time(600), piece(12, 0, 1)));
        assert_eq!(drain(&mut order, Time(1_599)), []);
        assert_eq!(drain(&mut order, Time(1_600)), [deliver(12, 2)]);
        assert!(!order.handle(Time(1_700), piece(11, 0, 1)), "too late");
        assert_eq!(drain(&mut order, Time(9_999)), []);
        assert_eq!(order.counts(), OrderCounts { delivered: 4, lost: 2, late: 1, refused: 0 });
    }

    #[test]
    fn a_number_far_away_needs_another_one_that_agrees() {
        let mut order = order(HOLD, 8);
        let at = |ms: u64| Time(1) + Duration::from_millis(ms);
        let delivered = |order: &mut Order, now| {
            let numbers = drain(order, now).into_iter().filter_map(|output| match output {
                OrderOutput::Deliver { number, lost } => Some((number, lost)),
                OrderOutput::Forget { .. } => None,
            });
            numbers.collect::<Vec<_>>()
        };
        // The first piece of all may be of any sender, too.
        assert!(order.handle(at(0), piece(1 << 62, 0, 1)));
        assert_eq!(delivered(&mut order, at(0)), [(1 << 62, 0)]);
        assert!(!order.handle(at(1), piece(6, 0, 1)));
        assert!(order.handle(at(2), piece(7, 0, 1)));
        assert_eq!(delivered(&mut order, at(2)), [(7, 0)]);
        // A datagram neither silences the stream nor does it again, nor do two while the stream goes on.
        for forged in [1 << 63, 1 << 63, (1 << 63) + 1, u64::MAX - 1] {
            assert!(!order.handle(at(3), piece(forged, 0, 1)), "{forged}");
        }
        assert!(order.handle(at(40), piece(8, 0, 1)));
        assert!(!order.handle(at(80), piece(1 << 63, 0, 1)));
        assert_eq!(delivered(&mut order, at(80)), [(8, 0)]);
        // One that was away for a million messages goes on where the stream is.
        let far = 9 + (1 << 21);
        assert!(!order.handle(at(200), piece(far, 0, 1)));
        assert!(!order.handle(at(200), piece(far, 0, 1)), "the same again agrees with nothing");
        assert!(order.handle(at(201), piece(far + 1, 0, 1)));
        assert_eq!(delivered(&mut order, at(202)), [(far + 1, far - 8)]);
        // What is old stays old, however much of it comes.
        for number in 5..9 {
            assert!(!order.handle(at(500), piece(number, 0, 1)));
        }
        assert_eq!(delivered(&mut order, at(501)), []);
    }

    /// Messages that were recorded before a receiver joined are old for it, whatever comes first, and however
    /// far it leads.
    #[test]
    fn what_was_sent_before_a_receiver_joined_is_late() {
        let far = 3 << 20;
        let mut order = order(HOLD, 8).not_before(far);
        for number in [0, 1, 2, far - 2, far - 1] {
            assert!(!order.handle(Time(1), piece(number, 0, 1)), "{number}");
        }
        assert_eq!((drain(&mut order, Time(1)), order.counts().late), (vec![], 5));
        // The first that counts need not be the first that was sent, and is not waited for.
        assert!(order.handle(Time(2), piece(far + 3, 0, 1)));
        let expected = [OrderOutput::Deliver { number: far + 3, lost: 0 }];
        assert_eq!(drain(&mut order, Time(2)), expected);
        // Two old ones agree with each other, and lead no receiver back.
        assert!(!order.handle(Time(3), piece(5, 0, 1)));
        assert!(!order.handle(Time(3), piece(6, 0, 1)));
        assert_eq!((drain(&mut order, Time(9_999)), order.counts().late), (vec![], 7));
    }

    #[test]
    fn a_message_with_a_piece_lost_is_never_delivered() {
        let mut order = order(Duration::ZERO, 8);
        // The end of a message that began before we came is nothing that is lost.
        assert!(order.handle(Time(0), piece(4, 1, 2)));
        assert!(order.handle(Time(0), piece(5, 0, 1)));
        let expected = [OrderOutput::Forget { number: 4 }, OrderOutput::Deliver { number: 5, lost: 0 }];
        assert_eq!(drain(&mut order, Time(0)), expected);
        assert!(order.handle(Time(0), piece(6, 0, 2)));
        assert!(!order.handle(Time(0), piece(6, 0, 2)), "twice");
        assert!(!order.handle(Time(0), piece(6, 1, 3)), "of another number of pieces");
        assert!(!order.handle(Time(0), piece(6, 2, 2)), "no such piece");
        assert!(order.handle(Time(1), piece(7, 0, 1)));
        let expected = [OrderOutput::Forget { number: 6 }, OrderOutput::Deliver { number: 7, lost: 1 }];
        assert_eq!(drain(&mut order, Time(1)), expected);
        assert!(!order.handle(Time(2), piece(6, 1, 2)));
        assert_eq!(order.counts(), OrderCounts { delivered: 2, lost: 1, late: 1, refused: 3 });
    }

    #[test]
    fn what_waits_is_bounded() {
        let mut order = order(HOLD, 3);
        order.handle(Time(0), piece(0, 0, 1));
        for number in 1..1_000 {
            order.handle(Time(0), piece(number, 0, 2));
            assert!(order.waiting.len() <= 3 + 1);
            drain(&mut order, Time(0));
            assert!(order.waiting.len() <= 3);
        }
        assert!(order.handle(Time(0), piece(1_000_000, 0, 1)));
        drain(&mut order, Time(0));
        assert_eq!(order.counts().delivered, 2, "no room to wait for the others");
        assert_eq!(order.counts().lost, 999_999);
    }

    #[test]
    fn memory_is_bounded_whatever_a_sender_does() {
        let mut order = Order::new(OrderConfig { hold: HOLD, messages_max: 1_000, bytes_max: 1 << 20 });
        let piece = |number, piece, pieces, len| OrderInput::Piece { number, piece, pieces, len };
        assert!(order.handle(Time(0), piece(1, 0, 1, 10)));
        assert!(!order.handle(Time(0), piece(2, 0, 2, MESSAGE_LEN_MAX + 1)), "no message is so long");
        assert!(order.handle(Time(0), piece(2, 0, 3, MESSAGE_LEN_MAX - 7)));
        assert!(!order.handle(Time(0), piece(2, 1, 3, 8)), "nor in pieces");
        assert!(order.handle(Time(0), piece(2, 1, 3, 7)));
        // Of all pieces but one, long ones and empty ones.
        for (number, len) in (3..40).map(|number| (number, if number % 2 == 0 { 50_000 } else { 0 })) {
            for at in 0..if len == 0 { 20_000 } else { 5 } {
                order.handle(Time(0), piece(number, at, 20_001, len));
                let kept: usize = order.waiting.values().map(Partial::cost).sum();
                assert!(order.bytes == kept && kept <= 1 << 20, "{kept}");
                drain(&mut order, Time(0));
            }
        }
        // Whole ones go on.
        assert!(order.handle(Time(0), piece(100, 0, 1, 10)));
        drain(&mut order, Time(2_000));
        assert_eq!((order.counts().delivered, order.bytes), (2, 0));
    }

    /// Messages 0 to n, cut, shuffled within a distance, some pieces lost or doubled.
    fn arrivals(lens: &[u16], keys: &[u64], lost: &[bool], doubled: &[bool]) -> Vec<(u64, u16, u16)> {
        let all =
            lens.iter().enumerate().flat_map(|(n, pieces)| (0..*pieces).map(move |p| (n as u64, p, *pieces)));
        let mut at: Vec<(u64, (u64, u16, u16))> = Vec::new();
        for (i, one) in all.enumerate() {
            let key = |salt: usize| i as u64 * 4 + keys[(i + salt) % keys.len()];
            if !lost[i % lost.len()] {
                at.push((key(0), one));
            }
            if doubled[i % doubled.len()] {
                at.push((key(1), one));
            }
        }
        at.sort_by_key(|(key, _)| *key);
        at.into_iter().map(|(_, one)| one).collect()
    }

    proptest! {
        /// Numbers rise, losses add up, no message lacks a piece, and what never was late is never lost.
        #[test]
        fn order_and_gaps_are_true(
            lens in proptest::collection::vec(1u16..5, 1..60), keys in proptest::collection::vec(0u64..30, 1..50),
            lost in proptest::collection::vec(proptest::bool::weighted(0.1), 1..40),
            doubled in proptest::collection::vec(proptest::bool::weighted(0.1), 1..40),
            hold in 0u64..40, messages_max in 1usize..20,
        ) {
            let came = arrivals(&lens, &keys, &lost, &doubled);
            let mut order = order(Duration::from_nanos(hold), messages_max);
            let mut kept: BTreeMap<u64, BTreeSet<u16>> = BTreeMap::new();
            let mut delivered: Vec<(u64, u64)> = Vec::new();
            let mut step = |order: &mut Order, kept: &mut BTreeMap<u64, BTreeSet<u16>>, now| {
                while let Some(output) = order.poll(now) {
                    match output {
                        OrderOutput::Deliver { number, lost } => {
                            assert_eq!(kept.remove(&number).map(|have| have.len()), Some(lens[number as usize] as usize));
                            delivered.push((number, lost));
                        }
                        OrderOutput::Forget { number } => assert!(kept.remove(&number).is_some()),
                    }
                }
            };
            for (now, (number, one, pieces)) in came.iter().enumerate() {
                let now = Time(now as u64);
                if order.handle(now, piece(*number, *one, *pieces)) {
                    kept.entry(*number).or_default().insert(*one);
                }
                step(&mut order, &mut kept, now);
                prop_assert!(kept.len() <= messages_max);
            }
            step(&mut order, &mut kept, Time(1_000_000));
            prop_assert_eq!(order.first_whole(), None);
            let first = came.first().map_or(0, |(number, ..)| *number);
            let mut next = delivered.first().map_or(first, |(number, _)| *number);
            for (number, lost) in &delivered {
                prop_assert_eq!(next + lost, *number);
                next = number + 1;
            }
            let counts = order.counts();
            prop_assert_eq!(counts.delivered as usize, delivered.len());
            prop_assert_eq!(counts.lost, delivered.iter().map(|(_, lost)| lost).sum::<u64>());
            // With all the time and room there is, only what lacks a piece is lost.
            if hold as usize >= came.len() && messages_max >= lens.len() {
                let whole = |number: u64| {
                    let have: BTreeSet<u16> = came.iter().filter(|one| one.0 == number).map(|one| one.1).collect();
                    have.len() == lens[number as usize] as usize
                };
                let expected: Vec<u64> = (first..lens.len() as u64).filter(|number| whole(*number)).collect();
                prop_assert_eq!(delivered.iter().map(|(number, _)| *number).collect::<Vec<_>>(), expected);
            }
        }
    }

    /// Every piece that is not kept is counted once: as late, or as refused.
    #[test]
    fn pieces_that_are_not_kept_are_counted() {
        let mut order = order(HOLD, 8);
        assert!(order.handle(Time(1), piece(5, 0, 1)));
        assert!(order.handle(Time(1), piece(6, 0, 2)));
        assert_eq!(drain(&mut order, Time(1)).len(), 1);
        let (mut late, mut refused) = (0, 0);
        for (given, is_late) in [
            (piece(5, 0, 1), true),
            (piece(4, 0, 1), true),
            (piece(6, 0, 2), false),
            (piece(6, 1, 3), false),
            (piece(7, 2, 2), false),
            (piece(u64::MAX, 0, 1), false),
            (piece(1 << 40, 0, 1), false),
            (piece(1 << 50, 0, 1), false),
        ] {
            assert!(!order.handle(Time(2), given), "{given:?}");
            (late, refused) = if is_late { (late + 1, refused) } else { (late, refused + 1) };
            assert_eq!((order.counts().late, order.counts().refused), (late, refused), "{given:?}");
        }
    }
}
