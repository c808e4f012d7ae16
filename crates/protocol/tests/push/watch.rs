//! Invariants of everything that the machines send in a world, however bad it is: the checkers that need a
//! memory.

use polycast_protocol::push::Geometry;
use polycast_types::{Duration, Rate, Time};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Range;

/// A granted rate is kept over any span of this length ..
const SPAN: Duration = Duration::from_millis(10);
/// .. but for a batch, and for what a late call may catch up.
const CATCH_UP: Duration = Duration::from_millis(2);
/// Time for which a fragment that was sent by unicast is not sent again.
const UNICAST: Duration = Duration::from_secs(2);
/// Time until a request is first repeated; then after twice as long, and so on five times.
pub(crate) const RETRY_DELAY: Duration = Duration::from_millis(20);

/// The memory of the checkers.
pub(crate) struct Watch {
    geometry: Geometry,
    /// The rate of the data channel, if one was granted.
    pub rate: Option<Rate>,
    sent: VecDeque<(Time, u64)>,
    position: u64,
    unicast: BTreeMap<(u32, u64), Time>,
    over_tcp: BTreeSet<u32>,
    /// Time when each fragment was first requested, and number of repeated requests.
    asked: BTreeMap<(u32, u64), (Time, u32)>,
    /// Bytes that have come as patches the first time.
    patched: BTreeMap<u32, u64>,
    /// Times when each receiver was notified that it has been offered everything.
    pub finishes: BTreeMap<u32, Vec<Time>>,
    /// Times when packets requested reports.
    pub reports: Vec<Time>,
    /// Requests of receivers.
    pub requests: u64,
    /// The most fragments that a receiver has taken for lost.
    pub lost: u64,
    /// The most packets that a receiver says it has got.
    pub received: u64,
}

impl Watch {
    pub(crate) fn new(geometry: Geometry, rate: Option<Rate>) -> Self {
        Watch {
            geometry,
            rate,
            sent: VecDeque::new(),
            position: 0,
            unicast: BTreeMap::new(),
            over_tcp: BTreeSet::new(),
            asked: BTreeMap::new(),
            patched: BTreeMap::new(),
            finishes: BTreeMap::new(),
            reports: Vec::new(),
            requests: 0,
            lost: 0,
            received: 0,
        }
    }

    /// Packets of the stream: positions only rise.
    pub(crate) fn stream(&mut self, round: u32, sn: u64, count: u32) {
        let position = u64::from(round) * self.geometry.fragments() + sn;
        assert!(position >= self.position, "position {position} was sent after {}", self.position);
        assert!(sn + u64::from(count) <= self.geometry.fragments(), "{count} fragments from {sn}");
        self.position = position + u64::from(count);
    }

    /// Packets that left: not faster than was granted.
    pub(crate) fn left(&mut self, now: Time, packets: u64) {
        let Some(rate) = self.rate else { return };
        self.sent.push_back((now, packets));
        while self.sent.front().is_some_and(|(at, _)| now.since(*at) >= SPAN) {
            self.sent.pop_front();
        }
        let packet = rate.time_for(u64::from(self.geometry.fragment_len) + 52);
        let took = packet * self.sent.iter().map(|(_, packets)| packets).sum();
        let most = SPAN + CATCH_UP + packet * 8;
        assert!(took <= most, "within {SPAN} there went out what takes {took} at {rate:?}");
    }

    /// A receiver is to fetch over TCP.
    pub(crate) fn goes_over_tcp(&mut self, peer: u32) {
        self.over_tcp.insert(peer);
    }

    /// Fragments for one receiver by TCP: no others than there are, not again at once, none for one that
    /// fetches over TCP.
    pub(crate) fn unicast(&mut self, now: Time, peer: u32, sns: Range<u64>) {
        assert!(sns.end <= self.geometry.fragments() && !sns.is_empty(), "{sns:?}");
        assert!(!self.over_tcp.contains(&peer), "receiver {peer} fetches over TCP, and gets patches");
        for sn in sns {
            let before = self.unicast.insert((peer, sn), now);
            assert!(before.is_none_or(|at| now.since(at) >= UNICAST), "{sn} goes to {peer} again at {now:?}");
        }
    }

    /// A receiver asks for fragments, for the first time or again: ever more seldom.
    pub(crate) fn request(
        &mut self,
        now: Time,
        peer: u32,
        sns: &[Range<u64>],
        again: bool,
        spoiled: &BTreeSet<u64>,
    ) {
        self.requests += 1;
        for sn in sns.iter().cloned().flatten() {
            assert!(sn < self.geometry.fragments(), "receiver {peer} asks for fragment {sn}");
            if self.geometry.groups_of_fragments(sn..sn + 1).any(|group| spoiled.contains(&group)) {
                continue; // It is asked for anew, whatever was asked for before.
            }
            let (first, tries) = self.asked.entry((peer, sn)).or_insert((now, 0));
            if !again {
                (*first, *tries) = (now, 0);
                continue;
            }
            *tries += 1;
            let least: u64 = (0..*tries).map(|tried| RETRY_DELAY.0 << tried.min(5)).sum();
            let passed = now.since(*first);
            assert!(passed.0 >= least, "receiver {peer} asks for {sn} {tries} times more within {passed}");
        }
    }

    /// Fragments that a receiver lacks have come as patches.
    pub(crate) fn patch(&mut self, peer: u32, sn: u64) {
        let bytes = self.geometry.fragment_bytes(sn);
        *self.patched.entry(peer).or_default() += bytes.end - bytes.start;
    }

    /// A receiver is done, and says how many bytes came as patches.
    pub(crate) fn done(&self, peer: u32, patched_bytes: u64) {
        let patched = self.patched.get(&peer).copied().unwrap_or_default();
        assert_eq!(patched_bytes, patched, "bytes that came to receiver {peer} as patches");
    }
}
