//! Coded patches that wait until all but one of their fragments are here (the receiver's half of
//! [`super::patches`]).
//!
//! What a patch carries is the driver's: bytes on a real network, a content id in the simulator.

use super::receiver::Receiver;
use alloc::collections::VecDeque;
use alloc::vec::Vec;

/// Patches that may wait. The oldest makes room for a new one: what it would repair is asked for again.
pub const UNDECODED_MAX: usize = 64;

/// A patch out of which one fragment can be taken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decodable<P> {
    /// The fragment.
    pub sn: u64,
    /// All fragments that the patch combines, this one too.
    pub sns: Vec<u64>,
    /// Payload of the patch.
    pub payload: P,
}

/// The patches of one receiver that wait.
#[derive(Clone, Debug)]
pub struct Coded<P> {
    waiting: VecDeque<(Vec<u64>, P)>,
}

impl<P> Default for Coded<P> {
    fn default() -> Self {
        Coded { waiting: VecDeque::new() }
    }
}

impl<P> Coded<P> {
    /// A patch has come. Gives the fragment that can be taken out of it now; where it lacks more than one, it
    /// waits, and only then is the payload asked for.
    pub fn came(&mut self, machine: &Receiver, sns: &[u64], payload: impl FnOnce() -> P) -> Option<u64> {
        if machine.missing_of(sns) > 1 {
            if self.waiting.len() == UNDECODED_MAX {
                self.waiting.pop_front();
            }
            self.waiting.push_back((sns.to_vec(), payload()));
        }
        machine.decodable(sns)
    }

    /// Takes out an earlier patch that lacked too much when it came, and lacks one fragment now. Patches that
    /// are of no use any more go with it.
    pub fn next_decodable(&mut self, machine: &Receiver) -> Option<Decodable<P>> {
        while let Some(at) = self.waiting.iter().position(|(sns, _)| machine.missing_of(sns) < 2) {
            let (sns, payload) = self.waiting.remove(at)?;
            if let Some(sn) = machine.decodable(&sns) {
                return Some(Decodable { sn, sns, payload });
            }
        }
        None
    }

    /// Returns the number of patches that wait.
    #[must_use]
    pub fn len(&self) -> usize {
        self.waiting.len()
    }

    /// Returns true if no patch waits.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Forgets all.
    pub fn clear(&mut self) {
        self.waiting.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Geometry, ReceiverConfig, ReceiverInput};
    use super::*;
    use polycast_types::Time;

    fn receiver() -> Receiver {
        let geometry = Geometry { object_len: 100_000, fragment_len: 1_000, group_len: 10_000 };
        let mut receiver = Receiver::new(ReceiverConfig::new(geometry, 1 << 20, 0));
        receiver.handle(Time(1), ReceiverInput::Begin);
        while receiver.poll(Time(1)).is_some() {}
        receiver
    }

    fn get(receiver: &mut Receiver, sn: u64) {
        receiver.handle(Time(2), ReceiverInput::Patched { sn, count: 1 });
        while receiver.poll(Time(2)).is_some() {}
    }

    #[test]
    fn a_patch_waits_until_it_lacks_one() {
        let mut machine = receiver();
        let mut coded = Coded::default();
        assert_eq!(coded.came(&machine, &[1, 2, 3], || "a"), None);
        get(&mut machine, 1);
        assert_eq!(coded.next_decodable(&machine), None);
        get(&mut machine, 3);
        let decodable = coded.next_decodable(&machine).expect("it lacks one fragment");
        assert_eq!(decodable, Decodable { sn: 2, sns: alloc::vec![1, 2, 3], payload: "a" });
        assert!(coded.is_empty());
        // One that lacks a single fragment is decoded at once, and its payload is not kept.
        assert_eq!(coded.came(&machine, &[1, 4], || unreachable!("it does not wait")), Some(4));
        assert_eq!(coded.came(&machine, &[1, 3], || unreachable!("it is of no use")), None);
    }

    #[test]
    fn a_patch_that_is_of_no_use_any_more_is_dropped() {
        let mut machine = receiver();
        let mut coded = Coded::default();
        coded.came(&machine, &[5, 6], || ());
        get(&mut machine, 5);
        get(&mut machine, 6);
        assert_eq!(coded.next_decodable(&machine), None);
        assert!(coded.is_empty());
    }

    #[test]
    fn the_oldest_makes_room() {
        let machine = receiver();
        let mut coded = Coded::default();
        for number in 0..UNDECODED_MAX + 3 {
            coded.came(&machine, &[0, 1, 2], || number);
        }
        assert_eq!(coded.len(), UNDECODED_MAX);
        assert_eq!(coded.waiting[0].1, 3);
    }
}
