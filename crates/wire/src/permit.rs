//! Permits: what the manager that leads has allowed one transfer, as a source shows it to the agents that it
//! calls.
//!
//! The permit itself is what the manager signs. It names its receivers by one hash: that of a tree (RFC 6962)
//! whose leaves are their names. So it is short however many there are, and a receiver is shown the way from
//! its own name up to that hash. Which hashes and signatures these are is an [`Authority`]'s business:
//! Ed25519 and BLAKE3 in production, ideal ones in the simulator, whose attacker so meets the checks of
//! production.

use crate::cursor::{NAME_LEN_MAX, Put, Reader};
use crate::{VERSION, WireError};
use alloc::vec::Vec;
use core::net::IpAddr;
use polycast_types::{AppId, DataId, ObjectId};

/// Bytes of a hash.
pub const HASH_LEN: usize = 32;
/// Bytes of a signature.
pub const SIGNATURE_LEN: usize = 64;
/// The longest permit.
pub const PERMIT_LEN_MAX: usize = 1_024;
/// The longest way from a name to the hash of all names: nothing has more names than a number of 4 bytes
/// counts.
pub const WAY_LEN_MAX: usize = 32;
/// No permit holds for longer, whatever it says: what a manager has allowed ends soon after it has changed
/// its mind.
pub const PERMIT_LIFE_MAX_S: u64 = 900;
/// Clocks of managers may differ by so much.
pub const CLOCKS_DIFFER_S: u64 = 300;

type Hash = [u8; HASH_LEN];

/// Permission for one transfer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Permit<'a> {
    /// The number of its path at the manager.
    pub lease: u64,
    /// The source's name.
    pub source: &'a str,
    /// Address of its control listener: the one that it has joined with.
    pub address: IpAddr,
    /// The object.
    pub object: ObjectId,
    /// Its length in bytes.
    pub object_len: u64,
    /// Its root hash, where the source has said it.
    pub root: Option<[u8; HASH_LEN]>,
    /// Its file or directory name.
    pub name: &'a str,
    /// The fabric of its path.
    pub fabric: &'a str,
    /// Its data channel: multicast group and port; both zero where there is none.
    pub channel: (IpAddr, u16),
    /// True if it may be pulled over trees.
    pub pulled: bool,
    /// Number of its receivers.
    pub receivers: u32,
    /// The hash of their names.
    pub group: [u8; HASH_LEN],
    /// Time from which on it is valid, in seconds since 1970.
    pub from_unix_s: u64,
    /// Time until which it is valid, in seconds since 1970.
    pub until_unix_s: u64,
}

impl<'a> Permit<'a> {
    /// Appends its bytes; of longer names only the beginning is there.
    pub fn emit(&self, out: &mut Vec<u8>) {
        out.u8(VERSION);
        out.u64(self.lease);
        out.text(self.source, NAME_LEN_MAX);
        out.ip(self.address);
        out.extend_from_slice(&self.object.app.0);
        out.u64(self.object.data.0);
        out.u64(self.object_len);
        out.u8(u8::from(self.root.is_some()));
        out.extend_from_slice(self.root.as_ref().map_or(&[], |root| root.as_slice()));
        out.text(self.name, NAME_LEN_MAX);
        out.text(self.fabric, NAME_LEN_MAX);
        out.ip(self.channel.0);
        out.u16(self.channel.1);
        out.u8(u8::from(self.pulled));
        out.u32(self.receivers);
        out.extend_from_slice(&self.group);
        out.u64(self.from_unix_s);
        out.u64(self.until_unix_s);
    }

    /// Reads one.
    ///
    /// # Errors
    /// The bytes are none.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, WireError> {
        if bytes.len() > PERMIT_LEN_MAX {
            return Err(WireError::Malformed);
        }
        let mut reader = Reader(bytes);
        let r = &mut reader;
        match r.u8()? {
            VERSION => {}
            version => return Err(WireError::Version(version)),
        }
        let permit = Permit {
            lease: r.u64()?,
            source: r.text(NAME_LEN_MAX)?,
            address: r.ip()?,
            object: ObjectId { app: AppId(r.array()?), data: DataId(r.u64()?) },
            object_len: r.u64()?,
            root: if flag(r)? { Some(r.array()?) } else { None },
            name: r.text(NAME_LEN_MAX)?,
            fabric: r.text(NAME_LEN_MAX)?,
            channel: (r.ip()?, r.u16()?),
            pulled: flag(r)?,
            receivers: r.u32()?,
            group: r.array()?,
            from_unix_s: r.u64()?,
            until_unix_s: r.u64()?,
        };
        reader.end()?;
        Ok(permit)
    }
}

fn flag(r: &mut Reader<'_>) -> Result<bool, WireError> {
    match r.u8()? {
        0 => Ok(false),
        1 => Ok(true),
        _ => Err(WireError::Malformed),
    }
}

/// A permit as one of its receivers is shown it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShownPermit<'a> {
    /// The permit's bytes, which are signed.
    pub permit: &'a [u8],
    /// The manager's signature.
    pub signature: [u8; SIGNATURE_LEN],
    /// Index of the receiver's name among the leaves of the tree.
    pub index: u32,
    /// The hashes beside the way from that leaf to the top; at most [`WAY_LEN_MAX`].
    pub way: Vec<[u8; HASH_LEN]>,
}

impl<'a> ShownPermit<'a> {
    pub(crate) fn emit(&self, out: &mut Vec<u8>) {
        out.u16(u16::try_from(self.permit.len()).expect("a permit is short"));
        out.extend_from_slice(self.permit);
        out.extend_from_slice(&self.signature);
        out.u32(self.index);
        out.u8(u8::try_from(self.way.len()).expect("a way is short"));
        self.way.iter().for_each(|hash| out.extend_from_slice(hash));
    }

    pub(crate) fn take(r: &mut Reader<'a>) -> Result<Self, WireError> {
        let len = usize::from(r.u16()?);
        if len > PERMIT_LEN_MAX {
            return Err(WireError::Malformed);
        }
        let (permit, signature, index) = (r.take(len)?, r.array()?, r.u32()?);
        let hashes = usize::from(r.u8()?);
        if hashes > WAY_LEN_MAX {
            return Err(WireError::Malformed);
        }
        let way = (0..hashes).map(|_| r.array()).collect::<Result<_, _>>()?;
        Ok(ShownPermit { permit, signature, index, way })
    }
}

/// The hashes by which a permit names its receivers.
pub trait NameHashes {
    /// Returns the hash of a name.
    fn leaf(&self, name: &str) -> Hash;
    /// Returns the hash of two hashes beside each other.
    fn node(&self, left: &Hash, right: &Hash) -> Hash;
}

/// Authority by which an agent checks permits.
pub trait Authority: NameHashes {
    /// Returns true if a trusted manager has signed these bytes.
    fn has_signed(&self, permit: &[u8], signature: &[u8; SIGNATURE_LEN]) -> bool;
}

/// The hashes over the names of a permit's receivers, from the leaves to the top; none without names.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NameTree(Vec<Vec<Hash>>);

impl NameTree {
    /// Builds the tree of these names, in this order.
    #[must_use]
    pub fn new<'n>(hashes: &impl NameHashes, names: impl Iterator<Item = &'n str>) -> Self {
        let mut levels = Vec::from([names.map(|name| hashes.leaf(name)).collect::<Vec<_>>()]);
        while let Some(below) = levels.last().filter(|below| below.len() > 1) {
            let above = below.chunks(2).map(|pair| match pair {
                [left, right] => hashes.node(left, right),
                // One without a neighbour goes up as it is.
                alone => alone[0],
            });
            let above = above.collect();
            levels.push(above);
        }
        NameTree(levels)
    }

    /// The hash of all of them; zeros where there is none.
    #[must_use]
    pub fn top(&self) -> Hash {
        self.0.last().and_then(|top| top.first()).copied().unwrap_or_default()
    }

    /// The hashes beside the way from the name at this place to the top.
    #[must_use]
    pub fn way(&self, mut at: usize) -> Vec<Hash> {
        let mut way = Vec::new();
        for level in &self.0 {
            way.extend(level.get(at ^ 1));
            at /= 2;
        }
        way
    }
}

/// The top of a tree of `count` leaves that this way leads to.
fn top(hashes: &impl NameHashes, leaf: Hash, index: u32, count: u32, way: &[Hash]) -> Option<Hash> {
    if index >= count {
        return None;
    }
    let (mut at, mut count, mut hash, mut way) = (index, count, leaf, way.iter());
    while count > 1 {
        if (at ^ 1) < count {
            let beside = way.next()?;
            hash = if at % 2 == 1 { hashes.node(beside, &hash) } else { hashes.node(&hash, beside) };
        }
        (at, count) = (at / 2, count.div_ceil(2));
    }
    way.next().is_none().then_some(hash)
}

/// Reason why a permit is not valid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal<'a> {
    /// No manager that is trusted has signed it.
    Signature,
    /// The bytes are none.
    Malformed,
    /// It is good from then on.
    NotYet {
        /// In seconds since 1970.
        from_unix_s: u64,
    },
    /// It was good until then.
    Over {
        /// In seconds since 1970.
        until_unix_s: u64,
    },
    /// It is for others.
    OtherReceivers {
        /// Source whose permit it is.
        source: &'a str,
    },
}

/// Checks that the manager has signed the permit, that it holds at this time, and that it is for the receiver
/// of this name; gives what it allows.
///
/// # Errors
/// One of these is not so.
pub fn check<'a>(
    shown: &ShownPermit<'a>,
    authority: &impl Authority,
    now_unix_s: u64,
    name: &str,
) -> Result<Permit<'a>, Refusal<'a>> {
    if !authority.has_signed(shown.permit, &shown.signature) {
        return Err(Refusal::Signature);
    }
    let permit = Permit::parse(shown.permit).map_err(|_| Refusal::Malformed)?;
    if now_unix_s.saturating_add(CLOCKS_DIFFER_S) < permit.from_unix_s {
        return Err(Refusal::NotYet { from_unix_s: permit.from_unix_s });
    }
    let until_unix_s = permit.until_unix_s.min(permit.from_unix_s.saturating_add(PERMIT_LIFE_MAX_S));
    if until_unix_s.saturating_add(CLOCKS_DIFFER_S) < now_unix_s {
        return Err(Refusal::Over { until_unix_s });
    }
    let leaf = authority.leaf(name);
    if top(authority, leaf, shown.index, permit.receivers, &shown.way) != Some(permit.group) {
        return Err(Refusal::OtherReceivers { source: permit.source });
    }
    Ok(permit)
}

/// Call from a source to an agent, as far as its permit binds it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Call {
    /// The object.
    pub object: ObjectId,
    /// Its length in bytes.
    pub object_len: u64,
    /// Its root hash, where the source says it.
    pub root: Option<[u8; HASH_LEN]>,
    /// Address of the source's control listener.
    pub address: IpAddr,
    /// True if it is pulled over trees.
    pub pulled: bool,
}

impl Permit<'_> {
    /// Returns true if this is the transfer that the permit allows.
    #[must_use]
    pub fn covers(&self, call: &Call) -> bool {
        self.object == call.object
            && self.object_len == call.object_len
            && (self.root.is_none() || self.root == call.root)
            && self.address == call.address
            && (self.pulled || !call.pulled)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::format;
    use alloc::string::String;
    use alloc::vec;

    fn permit() -> Permit<'static> {
        Permit {
            lease: 7,
            source: "train",
            address: IpAddr::from([10, 0, 0, 1]),
            object: ObjectId { app: AppId([3; 16]), data: DataId(9) },
            object_len: 5,
            root: Some([4; HASH_LEN]),
            name: "model",
            fabric: "datacast",
            channel: ([0; 4].into(), 0),
            pulled: true,
            receivers: 1,
            group: [0; HASH_LEN],
            from_unix_s: 19_400,
            until_unix_s: 20_000,
        }
    }

    /// Hashes that mix well enough to tell ways apart, and a manager whose signature is made of eights.
    struct Toy;

    fn mix(parts: &[&[u8]]) -> Hash {
        let mut state = 7u64;
        let mut hash = [0; HASH_LEN];
        for byte in parts.iter().flat_map(|part| part.iter().chain([&0xff])) {
            state = (state ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3).rotate_left(23);
        }
        for (at, byte) in hash.iter_mut().enumerate() {
            *byte = (state >> (at % 8 * 8)) as u8;
        }
        hash
    }

    impl NameHashes for Toy {
        fn leaf(&self, name: &str) -> Hash {
            mix(&[&[0], name.as_bytes()])
        }
        fn node(&self, left: &Hash, right: &Hash) -> Hash {
            mix(&[&[1], left, right])
        }
    }

    impl Authority for Toy {
        fn has_signed(&self, _: &[u8], signature: &[u8; SIGNATURE_LEN]) -> bool {
            *signature == [8; SIGNATURE_LEN]
        }
    }

    fn bytes(permit: &Permit<'_>) -> Vec<u8> {
        let mut out = Vec::new();
        permit.emit(&mut out);
        out
    }

    /// However many receivers there are, each is led from its name to the hash of all, and no other name is.
    #[test]
    fn each_name_has_a_way_of_its_own() {
        for count in 1..35usize {
            let names: Vec<String> = (0..count).map(|at| format!("host{at}")).collect();
            let tree = NameTree::new(&Toy, names.iter().map(String::as_str));
            let permit = Permit { receivers: count as u32, group: tree.top(), ..permit() };
            let bytes = bytes(&permit);
            let show = |index: usize, way: Vec<Hash>| ShownPermit {
                permit: &bytes,
                signature: [8; SIGNATURE_LEN],
                index: index as u32,
                way,
            };
            let others = Err(Refusal::OtherReceivers { source: "train" });
            for (at, name) in names.iter().enumerate() {
                let way = tree.way(at);
                assert!(way.len() <= count.next_power_of_two().ilog2() as usize);
                assert_eq!(
                    check(&show(at, way.clone()), &Toy, 19_700, name),
                    Ok(permit.clone()),
                    "{at} of {count}"
                );
                assert_eq!(check(&show(at, way.clone()), &Toy, 19_700, "stranger"), others);
                assert_eq!(check(&show(at + count, way.clone()), &Toy, 19_700, name), others);
                let more = way.iter().copied().chain([[0; HASH_LEN]]).collect();
                assert_eq!(check(&show(at, more), &Toy, 19_700, name), others, "a hash too many");
                if let Some((last, fewer)) = way.split_last() {
                    assert_eq!(check(&show(at, fewer.to_vec()), &Toy, 19_700, name), others, "one too few");
                    assert_eq!(
                        check(&show(at ^ 1, way.clone()), &Toy, 19_700, name),
                        others,
                        "the other side"
                    );
                    let mut wrong = fewer.to_vec();
                    wrong.push(last.map(|byte| byte ^ 1));
                    assert_eq!(check(&show(at, wrong), &Toy, 19_700, name), others);
                }
            }
        }
        assert_eq!(NameTree::new(&Toy, core::iter::empty()).top(), [0; HASH_LEN]);
    }

    #[test]
    fn a_permit_is_good_for_its_time_and_with_its_signature() {
        let group = Toy.leaf("a");
        let bytes = bytes(&Permit { group, ..permit() });
        let shown = |signature| ShownPermit { permit: &bytes, signature, index: 0, way: Vec::new() };
        let at = |now| check(&shown([8; SIGNATURE_LEN]), &Toy, now, "a").map(|permit| permit.lease);
        assert_eq!(check(&shown([9; SIGNATURE_LEN]), &Toy, 19_700, "a"), Err(Refusal::Signature));
        assert_eq!(at(19_099), Err(Refusal::NotYet { from_unix_s: 19_400 }));
        assert_eq!((at(19_100), at(19_700), at(20_300)), (Ok(7), Ok(7), Ok(7)));
        assert_eq!(at(20_301), Err(Refusal::Over { until_unix_s: 20_000 }));
        let torn = ShownPermit { permit: &bytes[1..], ..shown([8; SIGNATURE_LEN]) };
        assert_eq!(check(&torn, &Toy, 19_700, "a"), Err(Refusal::Malformed));
    }

    /// One that says that it holds for years holds for minutes.
    #[test]
    fn a_permit_has_a_short_life_whatever_it_says() {
        let bytes = bytes(&Permit { group: Toy.leaf("a"), until_unix_s: u64::MAX, ..permit() });
        let shown = ShownPermit { permit: &bytes, signature: [8; SIGNATURE_LEN], index: 0, way: Vec::new() };
        let at = |now| check(&shown, &Toy, now, "a").map(|permit| permit.lease);
        let last = 19_400 + 900;
        assert_eq!(at(last + CLOCKS_DIFFER_S), Ok(7));
        assert_eq!(at(last + CLOCKS_DIFFER_S + 1), Err(Refusal::Over { until_unix_s: last }));
    }

    #[test]
    fn bounds_of_permits_and_their_ways() {
        assert_eq!(Permit::parse(&[99; PERMIT_LEN_MAX]), Err(WireError::Version(99)), "not too long");
        assert_eq!(Permit::parse(&[99; PERMIT_LEN_MAX + 1]), Err(WireError::Malformed));
        let longest = [5; PERMIT_LEN_MAX + 1];
        let take = |len: usize, hashes: usize| {
            let way = vec![[6; HASH_LEN]; hashes];
            let shown = ShownPermit { permit: &longest[..len], signature: [7; SIGNATURE_LEN], index: 3, way };
            let mut out = Vec::new();
            shown.emit(&mut out);
            ShownPermit::take(&mut Reader(&out)).map(|taken| taken == shown)
        };
        for (len, hashes) in [(0, 0), (1, 1), (PERMIT_LEN_MAX - 1, 5), (PERMIT_LEN_MAX, WAY_LEN_MAX)] {
            assert_eq!(take(len, hashes), Ok(true), "{len} bytes, {hashes} hashes");
        }
        assert_eq!(take(PERMIT_LEN_MAX + 1, 0), Err(WireError::Malformed));
        assert_eq!(take(0, WAY_LEN_MAX + 1), Err(WireError::Malformed));
    }

    /// A permit allows one transfer: each thing that it names is compared.
    #[test]
    fn a_permit_covers_one_transfer() {
        let permit = permit();
        let call = Call {
            object: permit.object,
            object_len: 5,
            root: permit.root,
            address: permit.address,
            pulled: true,
        };
        assert!(permit.covers(&call));
        let ObjectId { app, data } = permit.object;
        for other in [
            Call { object: ObjectId { app: AppId([2; 16]), data }, ..call },
            Call { object: ObjectId { app, data: DataId(8) }, ..call },
            Call { object_len: 6, ..call },
            Call { root: None, ..call },
            Call { root: Some([5; HASH_LEN]), ..call },
            Call { address: IpAddr::from([10, 0, 0, 2]), ..call },
        ] {
            assert!(!permit.covers(&other), "{other:?}");
        }
        let pushed = Permit { pulled: false, ..permit.clone() };
        assert!(!pushed.covers(&call) && pushed.covers(&Call { pulled: false, ..call }));
        assert!(permit.covers(&Call { pulled: false, ..call }), "who may be pulled from may send");
        // A source that did not know its root when it asked has none in its permit.
        let open = Permit { root: None, ..permit };
        assert!(open.covers(&call) && open.covers(&Call { root: None, ..call }));
    }
}
