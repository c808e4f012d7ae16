//! Carriers of packets in the world: the data channel, the paths and sockets of receivers, connections.

use super::{DELAY, Event, World, bytes};
use polycast_protocol::push::ReceiverInput;
use polycast_types::{Duration, Time};
use polycast_wire::control::{Control, Overlay};
use polycast_wire::data::FLAG_PATCH;

/// A path that a receiver has for itself behind the channel, with a queue before it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OwnPath {
    /// Time that one packet takes on it.
    pub packet_time: Duration,
    pub queue_packets: u64,
    free_at: Time,
}

impl OwnPath {
    pub(crate) fn new(packet_time: Duration, queue_packets: u64) -> Self {
        OwnPath { packet_time, queue_packets, free_at: Time::ZERO }
    }
}

impl World {
    /// A packet takes its turn on the channel.
    fn occupy_channel(&mut self) {
        self.longest_wait = self.longest_wait.max(self.channel_free_at.since(self.now));
        self.channel_free_at = self.channel_free_at.max(self.now) + self.packet_time;
    }

    pub(super) fn multicast(&mut self, round: u32, sn: u64, flags: u8) {
        self.data_packets += 1;
        self.occupy_channel();
        if let Some(stranger) = &mut self.stranger {
            stranger.hear(self.now, (round, sn, flags));
        }
        for peer in self.nodes.keys().copied().collect::<Vec<_>>() {
            let copies = 1 + u64::from(self.chance(self.faults.duplication));
            for _ in 0..copies {
                if self.chance(self.faults.loss) {
                    continue;
                }
                let late =
                    if self.chance(self.faults.reordering) { self.packet_time * 10 } else { Duration::ZERO };
                let Some(arrived) = self.pass_path(peer) else { continue };
                // Others overtake one that is late.
                if let Some(at) = self.enqueue(peer, arrived) {
                    let (at, arrived) = (at + late, arrived + late);
                    self.schedule(at, Event::Data { peer, round, sn, flags, arrived, forged: false });
                }
            }
        }
    }

    /// Returns the time when a packet that leaves the channel now is at a receiver's host, if its own path
    /// has room.
    fn pass_path(&mut self, peer: u32) -> Option<Time> {
        let at = self.channel_free_at + DELAY;
        let Some(path) = self.paths.get_mut(&peer) else { return Some(at) };
        let free_at = path.free_at.max(at);
        if free_at.since(at) > path.packet_time * path.queue_packets {
            return None;
        }
        path.free_at = free_at + path.packet_time;
        Some(path.free_at)
    }

    /// From now on for so long the receiver's host does something else: its socket fills.
    pub(crate) fn pause(&mut self, peer: u32, span: Duration) {
        let until = (self.now + span).max(self.pauses.get(&peer).copied().unwrap_or(Time::ZERO));
        self.pauses.insert(peer, until);
        if let Some(node) = self.nodes.get_mut(&peer) {
            node.busy_until = node.busy_until.max(until);
        }
    }

    /// A receiver that was held up goes on where it was: it says what there is to say, before it looks at its
    /// socket.
    pub(super) fn comes_to(&mut self, peer: u32) {
        let now = self.now;
        let Some(node) = self.nodes.get_mut(&peer) else { return };
        node.machine.handle(now, ReceiverInput::HeldUp);
        if node.queued == 0 {
            node.machine.handle(now, ReceiverInput::NothingWaits);
        }
        self.say(peer, &Control::Alive);
    }

    /// The receiver's socket: a queue of limited length, served one packet after the other.
    fn enqueue(&mut self, peer: u32, at: Time) -> Option<Time> {
        let service = self.service.get(&peer).copied().unwrap_or(Duration(1_000));
        let frozen = self.frozen.contains(&peer);
        let window = self.window_of(peer);
        let node = self.nodes.get_mut(&peer)?;
        if !node.reached_by_multicast || frozen {
            return None;
        }
        if node.queued >= window {
            node.overflow += 1;
            return None;
        }
        node.queued += 1;
        let done = node.busy_until.max(at) + service;
        node.busy_until = done;
        // Reordered packets overtake nothing in the socket, but may come later.
        Some(done.max(at))
    }

    pub(super) fn multicast_patch(&mut self, sns: &[u64]) {
        self.patch_packets += 1;
        self.occupy_channel();
        for peer in self.nodes.keys().copied().collect::<Vec<_>>() {
            if self.chance(self.faults.loss) {
                continue;
            }
            let Some(arrived) = self.pass_path(peer) else { continue };
            let Some(at) = self.enqueue(peer, arrived) else { continue };
            if let [sn] = sns {
                self.schedule(
                    at,
                    Event::Data { peer, round: 0, sn: *sn, flags: FLAG_PATCH, arrived, forged: false },
                );
            } else {
                self.nodes.get_mut(&peer).unwrap().queued -= 1;
                self.schedule(at, Event::Coded { peer, sns: sns.to_vec() });
            }
        }
    }

    /// The mesh in short: a receiver that has candidates, or none but the source, gets one group after the
    /// other.
    pub(super) fn name_candidates(&mut self, peer: u32, entry: u64) {
        let Some(node) = self.nodes.get_mut(&peer) else { return };
        let fetches = std::mem::replace(&mut node.over_tcp, true);
        node.machine.handle(self.now, ReceiverInput::Chained);
        let frame =
            bytes(&Control::Overlay(Overlay::Candidates { entry, is_behind_head: false, ends: Vec::new() }));
        self.hear(peer, &Control::parse(&frame).unwrap());
        self.wakes.insert(Some(peer), self.now);
        if fetches {
            return;
        }
        let each = self.group_time.get(&peer).copied().unwrap_or(Duration::from_millis(1));
        for group in 0..self.geometry.groups() {
            let at = self.now + each * (group + 1);
            self.schedule(at, Event::Fetched { peer, group });
        }
    }

    pub(super) fn fetched(&mut self, peer: u32, group: u64) {
        let fetches = self.nodes.get(&peer).is_some_and(|node| node.over_tcp);
        if !fetches || self.frozen.contains(&peer) {
            return;
        }
        let node = self.nodes.get_mut(&peer).unwrap();
        if !node.machine.is_verified(group) {
            node.intact.insert(group);
            node.kept.insert(self.geometry.fragments_of_group(group));
            node.machine.handle(self.now, ReceiverInput::Fetched { group });
        }
    }
}
