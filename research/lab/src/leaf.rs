//! Time that a leaf that forwards by labels and the agent of its rack take for a packet (Orca section 5.2,
//! figure 5d): the programs of the kernel that `polycast label-switch` and rack agents load, in a network
//! namespace of their own, without any daemon.
//!
//! A packet is handed to the leaf as if it came from a spine, goes to the agent over a cable, comes back with
//! the rack's leaf label, and leaves by the port of a receiver. The next packet is sent once it has arrived.

use crate::error::LabError;
use crate::system::run;
use nix::sched::{CloneFlags, unshare};
use polycast_net::bpf::orca::{KernelAgent, KernelSwitch, Layer, Packets, SwitchSettings};
use polycast_net::tap::Tap;
use polycast_types::LabelKind;
use polycast_wire::label::Header;
use std::process::Command;
use std::time::{Duration, Instant};

/// The smallest frame: one with a label, rounded up.
pub const FRAME_MIN: u32 = 72;
/// The largest frame on such interfaces.
pub const FRAME_MAX: u32 = 1_514;
/// The paper's label.
const LABEL_LEN: usize = 19;
const UDP_PORT: u16 = 7_474;
/// Offsets in a frame: of the UDP port, of the label's header, and of its session.
const PORT_AT: usize = 36;
const HEADER_AT: usize = 42;
const SESSION_AT: usize = HEADER_AT + 4;
/// Ports of the leaf: to the agent's host, to a receiver's, and up.
const AGENT: u32 = 0;
const RECEIVER: u32 = 1;
const UP: u32 = 2;
/// Leaf label: leafStatus, and the receiver's port.
const LEAF_LABEL: [u8; 3] = [0b1010_0000, 0, 0];
/// Sessions that an agent has room for, at least.
const ROOM_MIN: u32 = 65_536;
/// Packets before those that count.
const WARM: u32 = 200;
/// A packet that takes so long is lost.
const PATIENCE: Duration = Duration::from_secs(20);

/// Latencies of packets of one size.
#[derive(Clone, PartialEq, Debug)]
pub struct LeafTimes {
    /// Bytes of a frame.
    pub bytes: u32,
    /// Sessions whose labels the agent has.
    pub sessions: u32,
    /// From before the leaf was handed each packet until the receiver had it.
    pub latency_ns: Vec<u64>,
}

/// Numbers without order, each different.
fn session(at: u32) -> u32 {
    at.wrapping_mul(2_654_435_761) ^ 0x5bd1_e995
}

/// A frame of a labelled packet, of this length.
fn frame(len: u32) -> Vec<u8> {
    let mut frame = vec![0x01, 0, 0x5e, 0, 0, 9, 2, 0, 0, 0, 0, 1, 8, 0, 0x45, 0];
    frame.extend((len as u16 - 14).to_be_bytes());
    frame.extend([0, 0, 0x40, 0, 16, 17, 0, 0, 10, 0, 0, 1, 239, 1, 1, 9, 1, 1]);
    frame.extend(UDP_PORT.to_be_bytes());
    frame.extend((len as u16 - 34).to_be_bytes());
    // No check sum, which IPv4 allows: each session would have another one.
    frame.extend([0, 0]);
    Header { kind: LabelKind::Filter, session: 0, label: &[0; LABEL_LEN] }.emit(&mut frame);
    frame.resize(len as usize, 7);
    frame
}

/// Sends so many packets of each size with labels of the first number of sessions, and packets of
/// `size_of_many` bytes with those of each number after it.
///
/// # Errors
/// It takes root, the kernel refuses the programs, or a packet does not come.
///
/// # Panics
/// If a size is not [`FRAME_MIN`] to [`FRAME_MAX`], or no number of sessions is named.
pub fn measure(
    sizes: &[u32],
    sessions: &[u32],
    size_of_many: u32,
    packets: u32,
) -> Result<Vec<LeafTimes>, LabError> {
    assert!(sizes.iter().all(|len| (FRAME_MIN..=FRAME_MAX).contains(len)), "frames fit the interfaces");
    if !nix::unistd::geteuid().is_root() {
        return Err(LabError::NotRoot);
    }
    crate::system::require(&[("ip", "iproute2")])?;
    let (first, more) = sessions.split_first().expect("a number of sessions is named");
    let within = || {
        unshare(CloneFlags::CLONE_NEWNET)
            .map_err(|error| LabError::system("make a namespace", error.desc()))?;
        let mut all = Leaf::new(*first)?.times(sizes, packets)?;
        for count in more {
            all.extend(Leaf::new(*count)?.times(&[size_of_many], packets)?);
        }
        Ok(all)
    };
    // The namespace ends with the thread.
    let outcome = std::thread::scope(|scope| scope.spawn(within).join());
    outcome.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

/// A leaf with its agent, and the ends of its links.
struct Leaf {
    sessions: u32,
    up: Tap,
    receiver: Tap,
    /// They forward as long as they are kept.
    _switch: KernelSwitch,
    _agent: KernelAgent,
}

impl Leaf {
    /// An agent that has the labels of so many sessions.
    fn new(sessions: u32) -> Result<Self, LabError> {
        let failed = |error: &dyn std::fmt::Display| LabError::system("build a leaf", error);
        let tap = |name: &str| Tap::open(name).map_err(|error| failed(&error));
        let (up, receiver) = (tap("up")?, tap("receiver")?);
        // One of an earlier leaf is taken away first.
        let _ = run(Command::new("ip").args(["link", "del", "rack"]), None);
        for line in ["link add rack type veth peer name host", "link set rack up", "link set host up"] {
            run(Command::new("ip").args(line.split(' ')), None)?;
        }
        let packets = Packets { udp_port: UDP_PORT, label_len: LABEL_LEN as u32 };
        let build = || {
            let mut switch = KernelSwitch::load(SwitchSettings {
                packets,
                layer: Layer::Leaf { up_bits: 1 },
                down_ports: 2,
                up_ports: 1,
                entries_max: 0,
            })?;
            for (port, interface) in [(AGENT, "rack"), (RECEIVER, "receiver"), (UP, "up")] {
                switch.attach(port, interface)?;
            }
            switch.set_agents(&[AGENT], 1 << AGENT)?;
            // A table that is small or nearly full forgets early: twice the room.
            let mut agent = KernelAgent::attach(packets, "host", (2 * sessions).max(ROOM_MIN))?;
            agent.set_agent(true)?;
            (0..sessions).try_for_each(|at| agent.set_label(session(at), &LEAF_LABEL))?;
            Ok::<_, polycast_net::bpf::BpfError>((switch, agent))
        };
        let (switch, agent) = build().map_err(|error| failed(&error))?;
        Ok(Leaf { sessions, up, receiver, _switch: switch, _agent: agent })
    }

    fn times(&self, sizes: &[u32], packets: u32) -> Result<Vec<LeafTimes>, LabError> {
        let of_size = |&bytes: &u32| {
            let mut frame = frame(bytes);
            let mut latency_ns = Vec::with_capacity(packets as usize);
            for at in 0..WARM + packets {
                // Another session each time, in no order.
                let number = session(session(at) % self.sessions);
                frame[SESSION_AT..SESSION_AT + 4].copy_from_slice(&number.to_be_bytes());
                let took = self.one(&frame)?;
                if at >= WARM {
                    latency_ns.push(u64::try_from(took.as_nanos()).unwrap_or(u64::MAX));
                }
            }
            Ok(LeafTimes { bytes, sessions: self.sessions, latency_ns })
        };
        sizes.iter().map(of_size).collect()
    }

    /// Sends a packet and waits until the receiver has it.
    fn one(&self, frame: &[u8]) -> Result<Duration, LabError> {
        let failed = |error: std::io::Error| LabError::system("send a packet through a leaf", error);
        let mut buffer = [0; FRAME_MAX as usize + 64];
        let begun = Instant::now();
        self.up.send(frame).map_err(failed)?;
        loop {
            match self.receiver.receive(&mut buffer).map_err(failed)? {
                Some(got)
                    if got.len() == frame.len() && got[PORT_AT..PORT_AT + 2] == UDP_PORT.to_be_bytes() =>
                {
                    let took = begun.elapsed();
                    if got[SESSION_AT..SESSION_AT + 4] != frame[SESSION_AT..SESSION_AT + 4] {
                        return Err(LabError::system("send a packet through a leaf", "another one came"));
                    }
                    return Ok(took);
                }
                // The kernel says things of its own on new interfaces.
                Some(_) => {}
                None if begun.elapsed() > PATIENCE => {
                    return Err(LabError::system(
                        "send a packet through a leaf",
                        format!("it did not come within {} seconds", PATIENCE.as_secs()),
                    ));
                }
                None => std::hint::spin_loop(),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use polycast_testing::{Need, needs};

    /// Every packet comes out at the receiver's port, with the label that names it: another one would not get
    /// there.
    #[test]
    fn packets_go_through_the_leaf_its_agent_and_out_to_the_receiver() {
        if !needs(&[Need::Root, Need::Namespaces, Need::Tool("ip")]) {
            return;
        }
        let times = measure(&[FRAME_MIN, FRAME_MAX], &[10, 1_000], 512, 50).unwrap();
        let what: Vec<_> = times.iter().map(|of| (of.bytes, of.sessions, of.latency_ns.len())).collect();
        assert_eq!(what, [(FRAME_MIN, 10, 50), (FRAME_MAX, 10, 50), (512, 1_000, 50)]);
        assert!(times.iter().flat_map(|of| &of.latency_ns).all(|ns| *ns > 0));
    }

    #[test]
    fn frames_have_their_lengths() {
        for len in [FRAME_MIN, 1_024, FRAME_MAX] {
            let frame = frame(len);
            assert_eq!(frame.len(), len as usize);
            assert_eq!(u16::from_be_bytes([frame[16], frame[17]]) as u32, len - 14);
        }
    }
}
