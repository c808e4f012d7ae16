//! The label bit by bit, and the filter's hash.
//!
//! Bits count from the most significant bit of the first byte. On fat-tree(48, 3) with a filter of 69 bits:
//! leafStatus 0, leaf-up 1-5, spine-up 6-10, common 11-34, filter 35-103, core-down 104-151.

use alloc::string::String;
use alloc::vec;
use alloc::vec::Vec;
use core::fmt::{self, Write};

use polycast_topology::Clos;

use super::LabelError;

/// The most hosts a leaf, leafs a pod, and pods that a label has bitmaps for.
pub const PORTS_MAX: u32 = 128;

/// The largest filter.
pub const FILTER_BITS_MAX: u32 = 1024;

/// A label's bytes.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Label(pub Vec<u8>);

impl Label {
    /// The label in hexadecimal digits.
    #[must_use]
    pub fn to_hex(&self) -> String {
        let mut text = String::with_capacity(2 * self.0.len());
        for byte in &self.0 {
            let _ = write!(text, "{byte:02x}");
        }
        text
    }

    /// A field of up to 128 bits; its first bit is the most significant one.
    pub(super) fn field(&self, at: u32, width: u32) -> u128 {
        (at..at + width).fold(0, |value, bit| value << 1 | u128::from(self.bit(bit)))
    }

    /// A bitmap: the bit at `at` stands for port 0.
    pub(super) fn bitmap(&self, at: u32, width: u32) -> u128 {
        (0..width).fold(0, |ports, port| ports | u128::from(self.bit(at + port)) << port)
    }

    pub(super) fn bit(&self, at: u32) -> bool {
        self.0.get(at as usize / 8).is_some_and(|byte| byte >> (7 - at % 8) & 1 == 1)
    }

    pub(super) fn set_bit(&mut self, at: u32) {
        self.0[at as usize / 8] |= 0x80 >> (at % 8);
    }

    pub(super) fn set_field(&mut self, at: u32, width: u32, value: u128) {
        for bit in ones(value) {
            debug_assert!(bit < width, "the value fits its field");
            self.set_bit(at + width - 1 - bit);
        }
    }

    pub(super) fn set_bitmap(&mut self, at: u32, ports: u128) {
        for port in ones(ports) {
            self.set_bit(at + port);
        }
    }
}

impl fmt::Debug for Label {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.to_hex())
    }
}

/// The positions of the bits that are set, in rising order.
#[inline]
pub(super) fn ones(mut bits: u128) -> impl Iterator<Item = u32> {
    core::iter::from_fn(move || {
        if bits == 0 {
            return None;
        }
        let at = bits.trailing_zeros();
        bits &= bits - 1;
        Some(at)
    })
}

/// Returns the bits of a port number below n, ceil(log2 n).
pub(super) fn number_bits(n: u32) -> u32 {
    n.max(1).next_power_of_two().trailing_zeros()
}

/// Spreads a number over all 64 bits (the finaliser of SplitMix64).
pub(super) fn mix(value: u64) -> u64 {
    let mut z = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ z >> 31
}

/// Layout of a label's fields in a network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LabelFormat {
    /// Width of the leaf's port up.
    pub leaf_up_bits: u32,
    /// Width of the spine's port up.
    pub spine_up_bits: u32,
    /// Ports down of a spine (Pd).
    pub spine_down: u32,
    /// Size of the filter (F).
    pub filter_bits: u32,
    /// Ports down of a core (Cd).
    pub core_down: u32,
    /// Ports down of a leaf (Ld).
    pub leaf_down: u32,
}

impl LabelFormat {
    pub(super) fn new(clos: &Clos, filter_bits: u32) -> Result<Self, LabelError> {
        check_ports(clos)?;
        if filter_bits == 0 || filter_bits > FILTER_BITS_MAX {
            return Err(LabelError::FilterBits { value: filter_bits, limit: FILTER_BITS_MAX });
        }
        Ok(LabelFormat {
            leaf_up_bits: number_bits(clos.spines_per_pod()),
            spine_up_bits: number_bits(clos.cores_per_spine()),
            spine_down: clos.leafs_per_pod(),
            filter_bits,
            core_down: if clos.cores_per_spine() == 0 { 0 } else { clos.pods() },
            leaf_down: clos.hosts_per_leaf(),
        })
    }

    /// 1 + max(Ld, ceil(log Lu) + ceil(log Pu) + Pd + F + Cd).
    #[must_use]
    pub fn bits(&self) -> u32 {
        1 + self.leaf_down.max(self.core_at() + self.core_down - 1)
    }

    /// The bytes that a label takes on the wire.
    #[must_use]
    pub fn bytes(&self) -> u32 {
        self.bits().div_ceil(8)
    }

    /// Returns the offset of the spine's port up, in bits.
    #[must_use]
    pub fn spine_up_at(&self) -> u32 {
        1 + self.leaf_up_bits
    }

    /// Returns the offset of the ports down that all spines use, in bits.
    #[must_use]
    pub fn common_at(&self) -> u32 {
        self.spine_up_at() + self.spine_up_bits
    }

    /// Returns the offset of the filter, in bits.
    #[must_use]
    pub fn filter_at(&self) -> u32 {
        self.common_at() + self.spine_down
    }

    /// Returns the offset of the core's ports down, in bits.
    #[must_use]
    pub fn core_at(&self) -> u32 {
        self.filter_at() + self.filter_bits
    }

    pub(super) fn source_label(
        &self,
        path: TreePath,
        common: u128,
        filter: &FilterBits,
        cores_down: u128,
    ) -> Label {
        let mut label = Label(vec![0; self.bytes() as usize]);
        label.set_field(1, self.leaf_up_bits, path.plane.into());
        label.set_field(self.spine_up_at(), self.spine_up_bits, path.core.into());
        label.set_bitmap(self.common_at(), common);
        for (index, &word) in filter.words().iter().enumerate().filter(|(_, word)| **word != 0) {
            label.set_bitmap(self.filter_at() + 64 * index as u32, word.into());
        }
        label.set_bitmap(self.core_at(), cores_down);
        label
    }

    /// A leaf label: leafStatus 1 and the hosts of the rack.
    #[must_use]
    pub fn leaf_label(&self, hosts: u128) -> Label {
        let mut label = Label(vec![0; self.bytes() as usize]);
        label.set_bit(0);
        label.set_bitmap(1, hosts);
        label
    }

    /// Returns leafStatus: true if an agent has put the leaf label in.
    #[must_use]
    pub fn leaf_status(&self, label: &Label) -> bool {
        label.bit(0)
    }

    /// The leaf's port up.
    #[must_use]
    pub fn leaf_up(&self, label: &Label) -> u32 {
        label.field(1, self.leaf_up_bits) as u32
    }

    /// The spine's port up.
    #[must_use]
    pub fn spine_up(&self, label: &Label) -> u32 {
        label.field(self.spine_up_at(), self.spine_up_bits) as u32
    }

    /// The ports down that all spines of the tree use.
    #[must_use]
    pub fn common(&self, label: &Label) -> u128 {
        label.bitmap(self.common_at(), self.spine_down)
    }

    /// Returns true if a bucket of the filter is set.
    #[must_use]
    pub fn filter_has(&self, label: &Label, bucket: u32) -> bool {
        label.bit(self.filter_at() + bucket)
    }

    /// The core's ports down.
    #[must_use]
    pub fn cores_down(&self, label: &Label) -> u128 {
        label.bitmap(self.core_at(), self.core_down)
    }

    /// The hosts that a leaf label names.
    #[must_use]
    pub fn hosts(&self, label: &Label) -> u128 {
        label.bitmap(1, self.leaf_down)
    }
}

pub(super) fn check_ports(clos: &Clos) -> Result<(), LabelError> {
    let sizes = [
        ("the hosts of a leaf", clos.hosts_per_leaf()),
        ("the leafs of a pod", clos.leafs_per_pod()),
        ("the pods", clos.pods()),
    ];
    match sizes.into_iter().find(|&(_, value)| value > PORTS_MAX) {
        Some((what, value)) => Err(LabelError::TooManyPorts { what, value, limit: PORTS_MAX }),
        None => Ok(()),
    }
}

/// Assignment of links to the buckets of a filter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum LinkHash {
    /// Every link for itself, anywhere: the plain Bloom filter of the paper.
    Scattered,
    /// The links of a spine in a row, from a bucket that depends on the spine and on the label's spine-up
    /// port. Links of one spine never collide, where the rows of a tree's spines do not overlap the filter is
    /// exact, and every spine and core that a session can go through gives it another filter.
    #[default]
    InRow,
}

/// The set buckets of a filter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FilterBits([u64; FILTER_BITS_MAX as usize / 64]);

impl FilterBits {
    /// No bucket is set.
    pub const EMPTY: FilterBits = FilterBits([0; FILTER_BITS_MAX as usize / 64]);

    pub(super) fn words(&self) -> &[u64] {
        &self.0
    }

    pub(super) fn set(&mut self, bucket: u32) {
        self.0[bucket as usize / 64] |= 1 << (bucket % 64);
    }

    fn first(&self) -> u128 {
        u128::from(self.0[0]) | u128::from(self.0[1]) << 64
    }

    fn has(&self, bucket: u32) -> bool {
        self.0[bucket as usize / 64] >> (bucket % 64) & 1 == 1
    }
}

/// The way of a tree: which of a pod's spines it goes through, and which of their cores.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct TreePath {
    /// The leaf's port up.
    pub plane: u32,
    /// The spine's port up.
    pub core: u32,
}

/// A Bloom filter with one hash function: with more, a filter that is nearly full says yes even more often.
#[derive(Clone, Debug)]
pub struct Filter {
    hash: LinkHash,
    /// In rows: where the row begins, spine by spine, core by core. Else the bucket of every link down, spine
    /// by spine, port by port.
    buckets: Vec<u16>,
    planes: u32,
    cores: u32,
    leafs_per_pod: u32,
    bits: u32,
    /// True if rows are no longer than the filter, and the filter fits a word.
    in_short_rows: bool,
}

impl Filter {
    pub(super) fn new(clos: &Clos, bits: u32, hash: LinkHash) -> Self {
        let (planes, leafs_per_pod) = (clos.spines_per_pod(), clos.leafs_per_pod());
        let (spines, cores) = (clos.pods() * planes, clos.cores_per_spine().max(1));
        let buckets = match hash {
            LinkHash::Scattered => {
                (0..spines * leafs_per_pod).map(|link| (mix(link.into()) % u64::from(bits)) as u16).collect()
            }
            LinkHash::InRow => {
                (0..spines * cores).map(|at| row_start(at, leafs_per_pod, bits) as u16).collect()
            }
        };
        let in_short_rows = hash == LinkHash::InRow && leafs_per_pod <= bits && bits <= 128;
        Filter { hash, buckets, planes, cores, leafs_per_pod, bits, in_short_rows }
    }

    /// The bucket of the link from a spine, given by its pod and the tree's path, down to a leaf of its pod.
    #[must_use]
    #[inline]
    pub fn bucket(&self, pod: u32, path: TreePath, leaf: u32) -> u32 {
        let spine = pod * self.planes + path.plane;
        match self.hash {
            LinkHash::Scattered => self.buckets[(spine * self.leafs_per_pod + leaf) as usize].into(),
            LinkHash::InRow => {
                let start: u32 =
                    self.buckets[(spine * self.cores + path.core.min(self.cores - 1)) as usize].into();
                (start + leaf) % self.bits
            }
        }
    }

    /// Sets the buckets of a spine's links to these leafs.
    #[inline]
    pub(super) fn add(&self, set: &mut FilterBits, pod: u32, path: TreePath, leafs: u128) {
        if self.in_short_rows {
            let start = self.bucket(pod, path, 0);
            let row = if start == 0 { leafs } else { leafs << start | leafs >> (self.bits - start) };
            let row = row & low_bits(self.bits);
            set.0[0] |= row as u64;
            set.0[1] |= (row >> 64) as u64;
            return;
        }
        for leaf in ones(leafs) {
            set.set(self.bucket(pod, path, leaf));
        }
    }

    /// Returns those of a spine's links to these leafs whose buckets are set.
    #[inline]
    pub(super) fn hits(&self, set: &FilterBits, pod: u32, path: TreePath, leafs: u128) -> u128 {
        if self.in_short_rows {
            let (start, row) = (self.bucket(pod, path, 0), set.first());
            let turned = if start == 0 { row } else { row >> start | row << (self.bits - start) };
            return turned & leafs;
        }
        ones(leafs)
            .filter(|&leaf| set.has(self.bucket(pod, path, leaf)))
            .fold(0, |hits, leaf| hits | 1 << leaf)
    }
}

/// Returns the start of the row of a spine and core. Rows begin at few places, so that two either do not
/// touch each other or lie on each other leaf by leaf; the rest at the end of the filter makes one more,
/// which overlaps.
fn row_start(at: u32, leafs: u32, bits: u32) -> u32 {
    let whole = bits / leafs;
    if whole == 0 {
        return (mix(at.into()) % u64::from(bits)) as u32;
    }
    let places = whole + u32::from(bits % leafs >= leafs.div_ceil(2));
    let place = (mix(at.into()) % u64::from(places)) as u32;
    if place < whole { place * leafs } else { bits - leafs }
}

/// The lowest `count` bits.
pub(super) fn low_bits(count: u32) -> u128 {
    if count >= 128 { u128::MAX } else { (1 << count) - 1 }
}
