//! Orca in the kernel: switches and racks' agents (Orca sections 3.4 and 3.5).
//!
//! The programs are `bpf/orca_switch.c` and `bpf/orca_agent.c`. Labelled packets never reach the host's own
//! stack, but for those that a receiver on this host gets; all other packets pass untouched.

use super::{BpfError, Object, Settings, programs};
use aya::Pod;
use polycast_wire::label::{FIXED_LEN, Fault, Header, LABEL_LEN_MAX};
use std::collections::BTreeMap;
use std::time::Duration;

/// Ports of a switch.
pub const PORTS_MAX: u32 = 256;
/// Ports of a switch that lead down.
pub const DOWN_MAX: u32 = 128;
/// Active agents of a rack.
pub const AGENTS_MAX: usize = 16;
/// Length of a leaf label or a spine label: leafStatus and a bit for every host or leaf, and a port up,
/// rounded up.
pub const LEAF_LABEL_LEN: usize = 20;
const COUNTERS: usize = Fault::ALL.len() + 2;

/// Format of the labelled packets in a network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Packets {
    /// Their UDP port.
    pub udp_port: u16,
    /// The bytes of every label.
    pub label_len: u32,
}

/// Layer of a switch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Layer {
    /// Above servers.
    Leaf {
        /// Bits of the label's port up, which begins at bit 1.
        up_bits: u32,
    },
    /// Above leafs.
    Spine {
        /// Start of the label's port up, in bits.
        up_at: u32,
        /// Its bits.
        up_bits: u32,
        /// Start of the ports that all spines use.
        common_at: u32,
        /// Start of the filter.
        filter_at: u32,
        /// The same of labels with the leafs of pods.
        pods: PodFields,
    },
    /// Above spines.
    Core {
        /// Start of the ports.
        down_at: u32,
        /// Start of the ports in labels with the leafs of pods.
        pods_down_at: u32,
    },
}

/// Fields that a spine finds in labels with the leafs of pods.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PodFields {
    /// The spine's pod.
    pub pod: u32,
    /// Start of the core's ports, in bits.
    pub core_at: u32,
    /// Start of the number of the leaf to ask, and its length in bits.
    pub asks: (u32, u32),
    /// Start of the slots.
    pub slots_at: u32,
    /// Number of slots.
    pub slots: u32,
    /// Start of the leafs of a spine label.
    pub leafs_at: u32,
}

/// A switch: its ports are numbered down first, then up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SwitchSettings {
    /// The network's packets.
    pub packets: Packets,
    /// Its layer.
    pub layer: Layer,
    /// Ports that lead down.
    pub down_ports: u32,
    /// Ports that lead up.
    pub up_ports: u32,
    /// Number of sessions that a spine has entries for, and a leaf doors.
    pub entries_max: u32,
}

/// Counters of a switch or agent since it was loaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Counts {
    counters: [u64; COUNTERS],
}

impl Counts {
    /// Packets dropped for this reason; of a packet for several ports it is the copies.
    #[must_use]
    pub fn fault(&self, fault: Fault) -> u64 {
        self.counters[fault as usize]
    }

    /// Well-formed packets that a switch took in, or that an agent relabelled in the kernel.
    #[must_use]
    pub fn packets(&self) -> u64 {
        self.counters[Fault::ALL.len()]
    }

    /// Copies that a switch sent.
    #[must_use]
    pub fn copies(&self) -> u64 {
        self.counters[Fault::ALL.len() + 1]
    }
}

#[derive(Clone, Copy)]
#[repr(C)]
struct Agents {
    count: u32,
    ports: [u32; AGENTS_MAX],
    rack: [u32; DOWN_MAX as usize / 32],
}

#[derive(Clone, Copy)]
#[repr(C)]
struct Buckets([u16; DOWN_MAX as usize]);

#[derive(Clone, Copy)]
#[repr(C)]
struct Blocked([u64; 2]);

#[derive(Clone, Copy)]
#[repr(C)]
struct Door {
    hosts: [u32; DOWN_MAX as usize / 32],
    header: [u8; FIXED_LEN + LABEL_LEN_MAX],
}

#[derive(Clone, Copy)]
#[repr(C)]
struct Role {
    is_agent: u32,
    slow_interface: u32,
}

#[derive(Clone, Copy)]
#[repr(C)]
struct LeafLabel([u8; LEAF_LABEL_LEN]);

impl LeafLabel {
    fn new(label: &[u8]) -> Self {
        let mut bytes = [0; LEAF_LABEL_LEN];
        let len = label.len().min(LEAF_LABEL_LEN);
        assert!(label[len..].iter().all(|byte| *byte == 0), "a label of a rack has {LEAF_LABEL_LEN} bytes");
        bytes[..len].copy_from_slice(&label[..len]);
        LeafLabel(bytes)
    }
}

// SAFETY: only integers, without padding, in the C layout of the same struct in bpf/orca_switch.c.
#[allow(unsafe_code)]
unsafe impl Pod for Agents {}
// SAFETY: an array of integers, as `struct buckets` in bpf/orca_switch.c.
#[allow(unsafe_code)]
unsafe impl Pod for Buckets {}
// SAFETY: an array of integers, as `struct ports` in bpf/orca_switch.c.
#[allow(unsafe_code)]
unsafe impl Pod for Blocked {}
// SAFETY: only integers and bytes, without padding, as `struct door` in bpf/orca_switch.c.
#[allow(unsafe_code)]
unsafe impl Pod for Door {}
// SAFETY: only integers, without padding, as `struct role` in bpf/orca_agent.c.
#[allow(unsafe_code)]
unsafe impl Pod for Role {}
// SAFETY: an array of bytes, as `struct leaf_label` in bpf/orca_agent.c.
#[allow(unsafe_code)]
unsafe impl Pod for LeafLabel {}

/// A switch in the kernel. It does not forward any more when this is dropped.
#[derive(Debug)]
pub struct KernelSwitch {
    object: Object,
    settings: SwitchSettings,
    /// The interfaces of its ports.
    interfaces: BTreeMap<u32, u32>,
}

impl KernelSwitch {
    /// Loads a switch without ports.
    ///
    /// # Errors
    /// It was not built, or the kernel refuses it.
    ///
    /// # Panics
    /// If there are more ports than [`PORTS_MAX`], or more down than [`DOWN_MAX`].
    pub fn load(settings: SwitchSettings) -> Result<Self, BpfError> {
        let SwitchSettings { packets, layer, down_ports, up_ports, entries_max } = settings;
        assert!(
            down_ports <= DOWN_MAX && down_ports + up_ports <= PORTS_MAX,
            "a switch has at most {PORTS_MAX} ports"
        );
        let mut constants = constants(packets);
        constants.extend([("down_ports", down_ports), ("up_ports", up_ports)]);
        constants.extend(match layer {
            Layer::Leaf { up_bits } => vec![("layer", 0), ("leaf_up_bits", up_bits)],
            Layer::Spine { up_at, up_bits, common_at, filter_at, pods } => vec![
                ("layer", 1),
                ("spine_up_at", up_at),
                ("spine_up_bits", up_bits),
                ("common_at", common_at),
                ("filter_at", filter_at),
                ("pod", pods.pod),
                ("pods_core_at", pods.core_at),
                ("asks_at", pods.asks.0),
                ("asks_bits", pods.asks.1),
                ("slots_at", pods.slots_at),
                ("slots", pods.slots),
                ("leafs_at", pods.leafs_at),
            ],
            Layer::Core { down_at, pods_down_at } => {
                vec![("layer", 2), ("core_at", down_at), ("pods_core_at", pods_down_at)]
            }
        });
        let is_leaf = matches!(layer, Layer::Leaf { .. });
        let (doors_max, entries_max) = if is_leaf { (entries_max, 0) } else { (0, entries_max) };
        let sizes =
            vec![("filter", up_ports.max(1)), ("entries", entries_max.max(1)), ("doors", doors_max.max(1))];
        let object = Object::load("orca_switch", &programs::ORCA_SWITCH, &Settings { constants, sizes })?;
        Ok(KernelSwitch { object, settings, interfaces: BTreeMap::new() })
    }

    /// Makes an interface of the calling thread's network namespace a port.
    ///
    /// # Errors
    /// There is no such interface, or the kernel refuses it.
    ///
    /// # Panics
    /// If the switch has no such port.
    pub fn attach(&mut self, port: u32, interface: &str) -> Result<(), BpfError> {
        assert!(port < self.settings.down_ports + self.settings.up_ports, "a switch has the port");
        let index = nix::net::if_::if_nametoindex(interface)
            .map_err(|error| BpfError::new(format!("find the interface {interface}"), error))?;
        self.object.insert("port_of", index, port)?;
        self.object.set("interface_of", port, index)?;
        self.interfaces.insert(port, index);
        self.object.attach("orca_switch", interface)
    }

    /// The index of a port's interface.
    #[must_use]
    pub fn interface(&self, port: u32) -> Option<u32> {
        self.interfaces.get(&port).copied()
    }

    /// From now on nothing is forwarded that comes in by any port, nor are probes answered; it is dropped and
    /// counted as [`Fault::NoPort`]. The links stay as they are: so fails a switch whose forwarding has died.
    ///
    /// # Errors
    /// The kernel refuses it.
    pub fn stop(&mut self) -> Result<(), BpfError> {
        self.interfaces.values().try_for_each(|index| self.object.remove::<u32>("port_of", *index))
    }

    /// The ports of a leaf's active agents, which are handed packets in turn, and of all agents of its rack,
    /// as bits: those may name hosts.
    ///
    /// # Errors
    /// The kernel refuses it.
    ///
    /// # Panics
    /// If more than [`AGENTS_MAX`] are active.
    pub fn set_agents(&mut self, active: &[u32], rack: u128) -> Result<(), BpfError> {
        let word = |at: usize| (rack >> (32 * at)) as u32;
        let mut agents =
            Agents { count: active.len() as u32, ports: [0; AGENTS_MAX], rack: std::array::from_fn(word) };
        agents.ports[..active.len()].copy_from_slice(active);
        self.object.set("rack", 0, agents)
    }

    /// Returns the time since the agent at a port of a leaf last sent a relabelled packet; `None` if it never
    /// did.
    ///
    /// # Errors
    /// The kernel refuses to report it.
    pub fn since_relabelled(&mut self, port: u32) -> Result<Option<Duration>, BpfError> {
        let at: u64 = self.object.get("relabelled", port)?;
        let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
        let now = Duration::new(now.tv_sec.unsigned_abs(), now.tv_nsec.unsigned_abs() as u32);
        Ok((at > 0).then(|| now.saturating_sub(Duration::from_nanos(at))))
    }

    /// A spine's buckets of the filter for packets whose label names this port up: one for every port down.
    ///
    /// # Errors
    /// The kernel refuses it.
    pub fn set_buckets(&mut self, up: u32, of_ports: &[u32]) -> Result<(), BpfError> {
        let mut buckets = [0; DOWN_MAX as usize];
        for (bucket, of_port) in buckets.iter_mut().zip(of_ports) {
            *bucket = u16::try_from(*of_port).expect("a filter has fewer than 65,536 bits");
        }
        self.object.set("filter", up, Buckets(buckets))
    }

    /// The ports down that a spine leaves out for a session, as bits; without any it has no entry.
    ///
    /// # Errors
    /// The table is full.
    pub fn set_blocked(&mut self, session: u32, ports: u128) -> Result<(), BpfError> {
        let key = session.to_be();
        if ports == 0 {
            return self.object.remove::<Blocked>("entries", key);
        }
        self.object.insert("entries", key, Blocked([ports as u64, (ports >> 64) as u64]))
    }

    /// The door of a leaf for a session: the ports of the hosts whose packets without a label it takes, as
    /// bits, and the header that it puts before them; without one it is only the way out, to hosts.
    ///
    /// # Errors
    /// The table is full.
    ///
    /// # Panics
    /// If the label is longer than [`LABEL_LEN_MAX`].
    pub fn set_door(&mut self, hosts: u128, header: Header<'_>) -> Result<(), BpfError> {
        let mut bytes = Vec::with_capacity(FIXED_LEN + LABEL_LEN_MAX);
        if !header.label.is_empty() {
            header.emit(&mut bytes);
        }
        bytes.resize(FIXED_LEN + LABEL_LEN_MAX, 0);
        let header_bytes = bytes.try_into().expect("the label has at most as many bytes");
        let word = |at: usize| (hosts >> (32 * at)) as u32;
        let door = Door { hosts: std::array::from_fn(word), header: header_bytes };
        self.object.insert("doors", header.session.to_be(), door)
    }

    /// A leaf has no door for a session any more.
    ///
    /// # Errors
    /// The kernel refuses it.
    pub fn remove_door(&mut self, session: u32) -> Result<(), BpfError> {
        self.object.remove::<Door>("doors", session.to_be())
    }

    /// Returns the counters of the switch.
    ///
    /// # Errors
    /// The kernel refuses it.
    pub fn counts(&mut self) -> Result<Counts, BpfError> {
        self.object.counters("counters").map(|counters| Counts { counters })
    }
}

fn constants(packets: Packets) -> Vec<(&'static str, u32)> {
    vec![("udp_port", packets.udp_port.into()), ("label_len", packets.label_len)]
}

/// The fast path of a rack's agent in the kernel. It does not relabel any more when this is dropped.
#[derive(Debug)]
pub struct KernelAgent {
    object: Object,
    role: Role,
}

impl std::fmt::Debug for Role {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "agent: {}, slow path: {}", self.is_agent, self.slow_interface)
    }
}

impl KernelAgent {
    /// Loads the program for an interface of the calling thread's network namespace and attaches it. It keeps
    /// the leaf labels of the `sessions_max` sessions that were active last, and is no agent yet.
    ///
    /// # Errors
    /// It was not built, there is no such interface, or the kernel refuses it.
    pub fn attach(packets: Packets, interface: &str, sessions_max: u32) -> Result<Self, BpfError> {
        let index = nix::net::if_::if_nametoindex(interface)
            .map_err(|error| BpfError::new(format!("find the interface {interface}"), error))?;
        let mut constants = constants(packets);
        constants.push(("wire_interface", index));
        let sizes = vec![("labels", sessions_max.max(1)), ("spine_labels", sessions_max.max(1))];
        let mut object = Object::load("orca_agent", &programs::ORCA_AGENT, &Settings { constants, sizes })?;
        object.attach("orca_agent", interface)?;
        Ok(KernelAgent { object, role: Role { is_agent: 0, slow_interface: 0 } })
    }

    /// Sets whether the server is an agent of its rack.
    ///
    /// # Errors
    /// The kernel refuses it.
    pub fn set_agent(&mut self, is_agent: bool) -> Result<(), BpfError> {
        self.role.is_agent = is_agent.into();
        self.object.set("role", 0, self.role)
    }

    /// Sends packets of sessions that the kernel does not know out by this interface, and takes from it what
    /// goes to the leaf.
    ///
    /// # Errors
    /// There is no such interface, or the kernel refuses it.
    pub fn set_slow_path(&mut self, interface: &str) -> Result<(), BpfError> {
        let index = nix::net::if_::if_nametoindex(interface)
            .map_err(|error| BpfError::new(format!("find the interface {interface}"), error))?;
        self.object.attach("orca_return", interface)?;
        self.role.slow_interface = index;
        self.object.set("role", 0, self.role)
    }

    /// The leaf label of a session: its bytes, of which all after the first [`LEAF_LABEL_LEN`] are zero.
    ///
    /// # Errors
    /// The kernel refuses it.
    pub fn set_label(&mut self, session: u32, label: &[u8]) -> Result<(), BpfError> {
        self.object.insert("labels", session.to_be(), LeafLabel::new(label))
    }

    /// The spine label that the rack keeps of a session, in the same way; `None` if it keeps none.
    ///
    /// # Errors
    /// The kernel refuses it.
    pub fn set_spine_label(&mut self, session: u32, label: Option<&[u8]>) -> Result<(), BpfError> {
        match label {
            Some(label) => self.object.insert("spine_labels", session.to_be(), LeafLabel::new(label)),
            None => self.object.remove::<LeafLabel>("spine_labels", session.to_be()),
        }
    }

    /// Returns the number of the program's runs while [`super::measure_runs`] was in force, and their total
    /// time.
    ///
    /// # Errors
    /// The kernel does not report them.
    pub fn cost(&mut self) -> Result<(u64, Duration), BpfError> {
        self.object.cost("orca_agent")
    }

    /// Forgets the leaf label of a session alone.
    ///
    /// # Errors
    /// The kernel refuses it.
    pub fn remove_leaf_label(&mut self, session: u32) -> Result<(), BpfError> {
        self.object.remove::<LeafLabel>("labels", session.to_be())
    }

    /// Forgets a session.
    ///
    /// # Errors
    /// The kernel refuses it.
    pub fn remove_label(&mut self, session: u32) -> Result<(), BpfError> {
        self.remove_leaf_label(session)?;
        self.set_spine_label(session, None)
    }

    /// Returns the counters of the agent.
    ///
    /// # Errors
    /// The kernel refuses it.
    pub fn counts(&mut self) -> Result<Counts, BpfError> {
        self.object.counters("counters").map(|counters| Counts { counters })
    }

    /// Runs the program on a packet that did not come from anywhere, `repeat` times; gives the packet as it
    /// left it, `None` if it was dropped, and how long one run took on average.
    ///
    /// # Errors
    /// The kernel refuses it.
    pub fn try_on(&mut self, packet: &[u8], repeat: u32) -> Result<(Option<Vec<u8>>, Duration), BpfError> {
        /// `TC_ACT_SHOT`.
        const DROPPED: u32 = 2;
        let (action, packet, took) = self.object.try_on("orca_agent", packet, repeat)?;
        Ok(((action != DROPPED).then_some(packet), took))
    }

    /// Runs the program once on a packet that is still to be cut into datagrams of so many bytes, and does
    /// not say into how many; gives the action that it took, and the packet as it left it.
    ///
    /// # Errors
    /// The kernel refuses it.
    pub fn try_on_uncut(&mut self, packet: &[u8], segment_len: u32) -> Result<(u32, Vec<u8>), BpfError> {
        /// Length of `struct __sk_buff`.
        const CONTEXT_LEN: usize = 192;
        /// Offset of `gso_size` in it.
        const GSO_SIZE_AT: usize = 176;
        let mut context = [0; CONTEXT_LEN];
        context[GSO_SIZE_AT..GSO_SIZE_AT + 4].copy_from_slice(&segment_len.to_ne_bytes());
        let (action, packet, _) = self.object.try_in("orca_agent", packet, 1, Some(&context))?;
        Ok((action, packet))
    }
}
