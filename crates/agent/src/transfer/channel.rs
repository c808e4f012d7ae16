//! The data channel's sending end: fragments and coded patches as datagrams.

use super::assembler::xor;
use super::supply::{Lent, Supply};
use polycast_net::seal::Seal;
use polycast_net::udp::{DATAGRAM_LEN_MAX, DataSender, SEGMENTS_MAX};
use polycast_protocol::push::Geometry;
use polycast_types::Handle;
use polycast_wire::data::{
    CodedHeader, ContentTag, EXTENSION_LEN_MAX, FLAG_ATTEMPT, FLAG_PATCH, FRAGMENT_TAGS_LEN, FragmentHeader,
    HEADER_LEN, Header,
};
use polycast_wire::seal::{put_fragment_tags, put_patch_tag};
use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::os::fd::{AsFd, BorrowedFd};

type HeaderBuffer = [u8; HEADER_LEN + EXTENSION_LEN_MAX];

/// Something that the machine orders on the data channel.
#[derive(Clone, Debug)]
pub(crate) enum Work {
    /// Fragments one after the other; the flags are the last one's.
    Run { round: u32, sn: u64, count: u32, flags: u8 },
    /// One fragment again, or the XOR of several.
    Patch(Vec<u64>),
}

/// Reason why work cannot be sent.
#[derive(Debug)]
pub(crate) enum ChannelError {
    /// The network, or this host, does not take it.
    Socket(io::Error),
    /// The object cannot be read.
    Read(io::Error),
}

/// Sends work in order; what the socket does not take stays queued.
pub(crate) struct Channel {
    sender: DataSender,
    handle: Handle,
    geometry: Geometry,
    /// Packets have tags.
    seal: Option<Seal>,
    queue: VecDeque<Work>,
    headers: Vec<HeaderBuffer>,
    sum: Vec<u8>,
    /// Fragments that one system call sends.
    batch: u32,
    /// Payload bytes sent, and those of them in patches.
    pub(crate) sent_bytes: u64,
    pub(crate) patched_bytes: u64,
}

/// Bytes of a datagram besides the fixed header and the fragment.
fn more_len(sender: &DataSender, seal: Option<&Seal>) -> u32 {
    sender.outer_len() as u32 + seal.map_or(0, |_| FRAGMENT_TAGS_LEN as u32)
}

/// Returns the number of fragments that one segmented datagram takes.
pub(crate) fn batch_of(fragment_len: u32) -> u32 {
    ((DATAGRAM_LEN_MAX / (HEADER_LEN + fragment_len as usize)).clamp(1, SEGMENTS_MAX)) as u32
}

impl Channel {
    pub(crate) fn new(sender: DataSender, handle: Handle, geometry: Geometry, seal: Option<Seal>) -> Self {
        let batch = batch_of(more_len(&sender, seal.as_ref()) + geometry.fragment_len);
        Channel {
            sender,
            handle,
            geometry,
            seal,
            queue: VecDeque::new(),
            headers: vec![[0; HEADER_LEN + EXTENSION_LEN_MAX]; SEGMENTS_MAX],
            sum: Vec::new(),
            batch,
            sent_bytes: 0,
            patched_bytes: 0,
        }
    }

    /// Returns true if the socket was full.
    pub(crate) fn is_blocked(&self) -> bool {
        !self.queue.is_empty()
    }

    /// Lets at most about `bytes` wait in this host for the wire; system calls are not longer than that.
    pub(crate) fn limit_queue(&mut self, bytes: u64) -> io::Result<()> {
        let packet_len = HEADER_LEN as u64 + u64::from(self.geometry.fragment_len);
        let longest = batch_of(more_len(&self.sender, self.seal.as_ref()) + self.geometry.fragment_len);
        self.batch = (bytes / packet_len).clamp(1, u64::from(longest)) as u32;
        self.sender.limit_queue(bytes as usize)
    }

    /// Forgets what waits: it is sent no more, or by other ways.
    pub(crate) fn clear(&mut self) {
        self.queue.clear();
    }

    /// Other headers of the network's own before datagrams from now on, of the same length.
    pub(crate) fn set_outer(&mut self, outer: Vec<Vec<u8>>) {
        self.sender.set_outer(outer);
    }

    /// Sends `work`, or queues it behind what waits already.
    pub(crate) fn send(&mut self, work: Work, supply: &mut Supply) -> Result<(), ChannelError> {
        self.queue.push_back(work);
        self.flush(supply)
    }

    /// Sends what is queued, as far as the socket takes it.
    pub(crate) fn flush(&mut self, supply: &mut Supply) -> Result<(), ChannelError> {
        while let Some(work) = self.queue.pop_front() {
            let rest = match work {
                Work::Run { round, sn, count, flags } => self.run(round, sn, count, flags, supply)?,
                Work::Patch(sns) => self.patch(sns, supply)?,
            };
            if let Some(rest) = rest {
                self.queue.push_front(rest);
                break;
            }
        }
        Ok(())
    }

    /// Sends a run; gives what of it the socket did not take.
    fn run(
        &mut self,
        round: u32,
        sn: u64,
        count: u32,
        flags: u8,
        supply: &mut Supply,
    ) -> Result<Option<Work>, ChannelError> {
        let (mut sn, mut count) = (sn, count);
        while count > 0 {
            // The packet with the object's size is longer than the others: it goes by itself.
            let now = if sn == 0 { 1 } else { count.min(self.batch) };
            let now = supply.in_row(sn..sn + u64::from(now)) as u32;
            let lent = supply.fragments(sn..sn + u64::from(now));
            let Lent { bytes: payload, tags } = lent.map_err(ChannelError::Read)?;
            let fragment_len = self.geometry.fragment_len as usize;
            let piece = |i: usize| &payload[i * fragment_len..payload.len().min((i + 1) * fragment_len)];
            let mut lens = [0; SEGMENTS_MAX];
            for (i, len) in lens[..now as usize].iter_mut().enumerate() {
                let last = i as u32 + 1 == count;
                let header = FragmentHeader {
                    handle: self.handle,
                    round,
                    sn: sn + i as u64,
                    flags: if last { flags } else { flags & FLAG_ATTEMPT },
                    object_len: (sn == 0 && i == 0).then_some(self.geometry.object_len),
                    sealed: self.seal.is_some(),
                };
                *len = Header::Fragment(header).emit(&mut self.headers[i]);
                put_tags(self.seal.as_ref(), &mut self.headers[i][..*len], tags.get(i));
            }
            let mut parts = Vec::with_capacity(2 * now as usize);
            for (i, len) in lens[..now as usize].iter().enumerate() {
                parts.push(IoSlice::new(&self.headers[i][..*len]));
                parts.push(IoSlice::new(piece(i)));
            }
            let sent = self.sender.send(&parts, 2, lens[0] + fragment_len);
            if !sent.map_err(ChannelError::Socket)? {
                return Ok(Some(Work::Run { round, sn, count, flags }));
            }
            self.sent_bytes += payload.len() as u64;
            sn += u64::from(now);
            count -= now;
        }
        Ok(None)
    }

    /// Sends a patch; gives it back where the socket is full.
    fn patch(&mut self, sns: Vec<u64>, supply: &mut Supply) -> Result<Option<Work>, ChannelError> {
        let mut sum = std::mem::take(&mut self.sum);
        sum.clear();
        let mut content_tag = None;
        for sn in &sns {
            let lent = supply.fragments(*sn..*sn + 1).map_err(ChannelError::Read)?;
            sum.resize(sum.len().max(lent.bytes.len()), 0);
            xor(&mut sum[..lent.bytes.len()], lent.bytes);
            content_tag = lent.tags.first().copied();
        }
        let header = match &sns[..] {
            [sn] => Header::Fragment(FragmentHeader {
                handle: self.handle,
                round: 0,
                sn: *sn,
                flags: FLAG_PATCH,
                object_len: (*sn == 0).then_some(self.geometry.object_len),
                sealed: self.seal.is_some(),
            }),
            many => {
                let plain = CodedHeader::new(self.handle, many);
                let header = if self.seal.is_some() { plain.and_then(CodedHeader::sealed) } else { plain };
                Header::Coded(header.expect("combinations fit one header"))
            }
        };
        let mut buffer = [0; HEADER_LEN + EXTENSION_LEN_MAX];
        let len = header.emit(&mut buffer);
        match sns.len() {
            1 => put_tags(self.seal.as_ref(), &mut buffer[..len], content_tag.as_ref()),
            _ => put_tag_of_all(self.seal.as_ref(), &mut buffer[..len], &sum),
        }
        let parts = [IoSlice::new(&buffer[..len]), IoSlice::new(&sum)];
        let sent = self.sender.send(&parts, 2, len + sum.len()).map_err(ChannelError::Socket)?;
        if sent {
            self.sent_bytes += sum.len() as u64;
            self.patched_bytes += sum.len() as u64;
        }
        self.sum = sum;
        Ok((!sent).then_some(Work::Patch(sns)))
    }
}

/// Puts the tags of a fragment's packet at the end of its header, where packets have tags.
fn put_tags(seal: Option<&Seal>, header: &mut [u8], content: Option<&ContentTag>) {
    let Some(seal) = seal else { return };
    let content = content.expect("sealed fragments have tags");
    put_fragment_tags(header, content, |header, payload| seal.tag_of(header, payload));
}

/// Puts the tag of a packet's header and payload at the end of the header, where packets have tags.
fn put_tag_of_all(seal: Option<&Seal>, header: &mut [u8], payload: &[u8]) {
    let Some(seal) = seal else { return };
    put_patch_tag(header, payload, |header, payload| seal.tag_of(header, payload));
}

impl AsFd for Channel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.sender.as_fd()
    }
}
