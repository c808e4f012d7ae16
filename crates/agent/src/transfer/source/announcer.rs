//! Announcements by which receivers that were not told of a source find it: it announces itself by multicast
//! (`offer`).

use super::super::entrance::host_name;
use polycast_net::udp::Beacon;
use polycast_types::{Duration, Handle, Time};
use polycast_wire::discovery::{Announcement, CodeSign, Discovery};
use std::collections::BTreeSet;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Mutex, PoisonError};

/// Announcements, when no receiver asks.
const ANNOUNCE_INTERVAL: Duration = Duration::from_millis(500);
/// Questions are answered so often at most: any host can ask in another's name, and all hosts get the
/// answers.
const ANSWER_INTERVAL: Duration = Duration::from_millis(100);
/// An answer has so many bytes for each of its question's at most.
const ANSWER_RATIO: usize = 2;
/// Datagrams that are taken between two looks at something else.
const DATAGRAMS_MAX: usize = 64;
/// Characters of a name in an announcement.
const NAME_CHARS: usize = 200;

/// Hosts that are remembered because they ask.
const SEEKERS_MAX: usize = 64;

/// Hosts that have asked for offers on the source's network.
#[derive(Debug, Default)]
pub struct Seekers(Mutex<BTreeSet<IpAddr>>);

impl Seekers {
    /// Their addresses, those of the first that came.
    #[must_use]
    pub fn addresses(&self) -> Vec<IpAddr> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).iter().copied().collect()
    }

    fn note(&self, address: IpAddr) {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if known.len() < SEEKERS_MAX {
            known.insert(address);
        }
    }
}

/// The questions that have come, and when they are answered.
#[derive(Debug, Default)]
struct Questions {
    /// The length of the longest one that waits; 0 where none does.
    longest: usize,
    /// Time from which the next answer may go.
    next: Time,
}

impl Questions {
    /// A question has come, of so many bytes.
    fn came(&mut self, len: usize) {
        self.longest = self.longest.max(len);
    }

    /// Returns true if a question waits and its time has come.
    fn wait(&self, now: Time) -> bool {
        self.longest > 0 && now >= self.next
    }

    /// Returns true if an answer of so many bytes may go; nothing waits after that.
    fn take(&mut self, len: usize) -> bool {
        len <= ANSWER_RATIO * std::mem::take(&mut self.longest)
    }
}

/// The announcements of one offer.
pub(super) struct Announcer {
    beacon: Beacon,
    next: Time,
    questions: Questions,
    seekers: Arc<Seekers>,
    host: String,
    /// An announcement could not be sent, and that was said.
    is_mute: bool,
}

impl Announcer {
    pub(super) fn new(beacon: Beacon, seekers: Arc<Seekers>) -> Self {
        let (next, questions, host) = (Time::ZERO, Questions::default(), host_name());
        Announcer { beacon, next, questions, seekers, host, is_mute: false }
    }

    /// An announcement could not be sent: gives whether that is to be said now.
    pub(super) fn is_mute_anew(&mut self) -> bool {
        !std::mem::replace(&mut self.is_mute, true)
    }

    /// Announces the offer to those who ask, at once or a moment after the last time, and now and then while
    /// there are free places.
    pub(super) fn turn(
        &mut self,
        now: Time,
        handle: Handle,
        address: SocketAddr,
        places: u32,
        (name, object_len): (&str, u64),
        code: Option<CodeSign>,
    ) -> io::Result<()> {
        let mut buffer = [0; 2_048];
        for _ in 0..DATAGRAMS_MAX {
            let Some((datagram, from)) = self.beacon.receive(&mut buffer) else { break };
            if let Ok(Discovery::Solicit { len }) = Discovery::parse(datagram) {
                self.questions.came(len);
                self.seekers.note(from.ip());
            }
        }
        let is_due = places > 0 && now >= self.next;
        if !is_due && !self.questions.wait(now) {
            return Ok(());
        }
        let (address, port) = (address.ip(), address.port());
        let name = name.chars().take(NAME_CHARS).collect();
        let host = self.host.clone();
        let announcement = Announcement { handle, address, port, places, object_len, name, host, code };
        let datagram = Discovery::Announce(announcement).emit();
        if !self.questions.take(datagram.len()) && !is_due {
            return Ok(());
        }
        (self.next, self.questions.next) = (now + ANNOUNCE_INTERVAL, now + ANSWER_INTERVAL);
        self.beacon.send(&datagram)
    }
}

impl AsFd for Announcer {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.beacon.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use polycast_wire::discovery::{QUESTION_LEN, QUESTION_LEN_MIN};

    /// Any host may ask, as often as it likes, in the name of any other.
    #[test]
    fn answers_are_few_and_not_much_longer_than_questions() {
        let mut questions = Questions::default();
        let (mut answers, answer_len) = (0, 2 * QUESTION_LEN);
        for milli in 0..1_000 {
            let now = Time::ZERO + Duration::from_millis(milli);
            questions.came(QUESTION_LEN);
            questions.came(QUESTION_LEN_MIN);
            if questions.wait(now) && questions.take(answer_len) {
                questions.next = now + ANSWER_INTERVAL;
                answers += 1;
            }
        }
        assert_eq!(answers, 10);
        let later = Time::ZERO + Duration::from_secs(2);
        // The last question waited.
        assert!(questions.wait(later) && questions.take(answer_len) && !questions.wait(later));
        questions.came(QUESTION_LEN_MIN);
        assert!(questions.wait(later) && !questions.take(2 * QUESTION_LEN_MIN + 1));
        questions.came(QUESTION_LEN);
        assert!(!questions.take(answer_len + 1) && !questions.wait(later), "it is not looked at again");
    }
}
