//! The hosts that have sent to the data channel: named when wrong bytes have come, since one of them has sent
//! these.

use polycast_types::{Duration, Time};
use std::collections::BTreeMap;
use std::fmt;
use std::net::SocketAddr;

/// Senders that are told apart; a transfer has one.
const ORIGINS_MAX: usize = 8;
/// The log is written to this often.
const LOG_INTERVAL: Duration = Duration::from_millis(1_000);

/// Senders, with how many packets came from each.
#[derive(Debug, Default)]
pub(super) struct Origins {
    packets: BTreeMap<SocketAddr, u64>,
    /// Packets of more senders than are told apart.
    others: u64,
    /// Groups that came with wrong bytes since they were logged last, and when that was.
    unlogged: u64,
    logged_at: Option<Time>,
}

impl Origins {
    /// Packets have come.
    pub(super) fn came(&mut self, from: Option<SocketAddr>, packets: u64) {
        let room = self.packets.len() < ORIGINS_MAX;
        match from {
            Some(from) if room || self.packets.contains_key(&from) => {
                *self.packets.entry(from).or_default() += packets;
            }
            _ => self.others += packets,
        }
    }

    /// A group came with wrong bytes: says so, and which hosts may have sent them, at most once a second.
    pub(super) fn spoiled(&mut self, now: Time, group: u64) {
        self.unlogged += 1;
        if self.logged_at.is_some_and(|at| now.since(at) < LOG_INTERVAL) {
            return;
        }
        self.logged_at = Some(now);
        let groups = std::mem::take(&mut self.unlogged);
        tracing::warn!(groups, last = group, packets = %self, "wrong bytes arrived: asking for them again");
    }
}

impl fmt::Display for Origins {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, (from, packets)) in self.packets.iter().enumerate() {
            write!(f, "{}{packets} from {from}", if i > 0 { ", " } else { "" })?;
        }
        if self.others > 0 { write!(f, ", {} from others", self.others) } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn senders_are_named_and_bounded() {
        let mut origins = Origins::default();
        for port in 1..100 {
            origins.came(Some(SocketAddr::new([10, 0, 0, 1].into(), port)), 2);
        }
        origins.came(Some(SocketAddr::new([10, 0, 0, 1].into(), 1)), 5);
        let words = origins.to_string();
        assert!(words.starts_with("7 from 10.0.0.1:1, 2 from 10.0.0.1:2, "), "{words}");
        assert!(words.ends_with("2 from 10.0.0.1:8, 182 from others"), "{words}");
        let at = |ms| Time(1) + Duration::from_millis(ms);
        let logged = [0, 1, 999, 1_000, 1_001].map(|ms| {
            origins.spoiled(at(ms), 3);
            origins.unlogged
        });
        assert_eq!(logged, [0, 1, 2, 0, 1], "counted, and said once a second");
    }
}
