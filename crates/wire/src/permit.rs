//! Permits: what the manager that leads has allowed one transfer, as a source shows it to the agents that it calls.
//!
//! The permit itself is what the manager signs. It names its receivers by one hash: that of a tree (RFC 6962) whose leaves are
//! their names. So it is short however many there are, and a receiver is shown the way from its own name up to that hash. Which
//! hashes and signatures these are is not this crate's business.

use crate::cursor::{NAME_LEN_MAX, Put, Reader};
use crate::{VERSION, WireError};
use alloc::vec::Vec;
use polycast_types::{AppId, DataId, ObjectId};

/// Bytes of a hash.
pub const HASH_LEN: usize = 32;
/// Bytes of a signature.
pub const SIGNATURE_LEN: usize = 64;
/// The longest permit.
pub const PERMIT_LEN_MAX: usize = 1_024;
/// The longest way from a name to the hash of all names: nothing has more names than a number of 4 bytes counts.
pub const WAY_LEN_MAX: usize = 32;

/// What one transfer may do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Permit<'a> {
    /// The number of its path at the manager.
    pub lease: u64,
    /// The source's name.
    pub source: &'a str,
    /// Where its control listener is: the IPv4 address that it has joined with.
    pub address: [u8; 4],
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
    /// Its data channel: multicast group and port; all zero where there is none.
    pub channel: ([u8; 4], u16),
    /// Whether it may be pulled over trees.
    pub pulled: bool,
    /// How many receivers it has.
    pub receivers: u32,
    /// The hash of their names.
    pub group: [u8; HASH_LEN],
    /// From when on it is good, in seconds since 1970,
    pub from_unix_s: u64,
    /// and until when.
    pub until_unix_s: u64,
}

impl<'a> Permit<'a> {
    /// Appends its bytes; of longer names only the beginning is there.
    pub fn emit(&self, out: &mut Vec<u8>) {
        out.u8(VERSION);
        out.u64(self.lease);
        out.text(self.source, NAME_LEN_MAX);
        out.extend_from_slice(&self.address);
        out.extend_from_slice(&self.object.app.0);
        out.u64(self.object.data.0);
        out.u64(self.object_len);
        out.u8(u8::from(self.root.is_some()));
        out.extend_from_slice(self.root.as_ref().map_or(&[], |root| root.as_slice()));
        out.text(self.name, NAME_LEN_MAX);
        out.text(self.fabric, NAME_LEN_MAX);
        out.extend_from_slice(&self.channel.0);
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
            address: r.array()?,
            object: ObjectId { app: AppId(r.array()?), data: DataId(r.u64()?) },
            object_len: r.u64()?,
            root: if flag(r)? { Some(r.array()?) } else { None },
            name: r.text(NAME_LEN_MAX)?,
            fabric: r.text(NAME_LEN_MAX)?,
            channel: (r.array()?, r.u16()?),
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
    /// Which leaf of the tree the receiver's name is.
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
