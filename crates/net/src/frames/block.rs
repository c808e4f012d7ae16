//! Hash groups that go through a connection without being copied: as they came, so they are kept, hashed,
//! stored and sent on.

use super::{FrameError, FrameStream};
use crate::store::Held;
use polycast_wire::control::{Control, LENGTH_LEN};
use std::ops::Range;
use std::sync::Arc;

/// Bytes of a block that go out together with the head of its frame: in one packet, also where packets are
/// jumbo.
const WITH_HEAD: usize = 16 << 10;

/// The bytes of a hash group, behind the head of the frame in which they came.
#[derive(Debug)]
pub struct Block {
    buffer: Vec<u8>,
    from: usize,
    until: usize,
}

impl Block {
    /// Takes all of these bytes.
    #[must_use]
    pub fn of(buffer: Vec<u8>) -> Self {
        let until = buffer.len();
        Block { buffer, from: 0, until }
    }

    /// The group's bytes.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.buffer[self.from..self.until]
    }

    /// The buffer, for the next group.
    #[must_use]
    pub fn into_buffer(self) -> Vec<u8> {
        self.buffer
    }
}

/// A group that is being sent from where it is, and how much of it is.
#[derive(Debug)]
pub(super) enum Sending {
    /// From memory.
    Block { block: Arc<Block>, sent: usize },
    /// From the file in which it is: these bytes are left.
    File { held: Arc<Held>, left: Range<u64> },
}

impl Sending {
    pub(super) fn left_len(&self) -> usize {
        match self {
            Sending::Block { block, sent } => block.bytes().len() - sent,
            Sending::File { left, .. } => {
                usize::try_from(left.end - left.start).expect("a group fits into memory")
            }
        }
    }

    pub(super) fn note_written(&mut self, bytes: usize) {
        match self {
            Sending::Block { sent, .. } => *sent += bytes,
            Sending::File { left, .. } => left.start += bytes as u64,
        }
    }
}

impl FrameStream {
    /// The next frame, where that is a hash group that is here whole, and nothing behind it: its number and
    /// its bytes. Its buffer goes along with it, and the one that `spare` gives takes its place. Otherwise
    /// `None`: [`FrameStream::next_frame`] gives what there is.
    ///
    /// # Errors
    /// It is not a frame of our protocol.
    pub fn next_block(
        &mut self,
        spare: impl FnOnce() -> Vec<u8>,
    ) -> Result<Option<(u64, Block)>, FrameError> {
        let len = self.frame_len(&self.incoming[self.taken..self.filled])?;
        if self.taken > 0 || len != Some(self.filled) {
            return Ok(None);
        }
        let Control::Group { index, payload } = Control::parse(&self.incoming[..self.filled])? else {
            return Ok(None);
        };
        let (from, until) = (self.filled - payload.len(), self.filled);
        self.filled = 0;
        let buffer = std::mem::replace(&mut self.incoming, spare());
        Ok(Some((index, Block { buffer, from, until })))
    }

    /// Queues a hash group, whose bytes are sent from where they are.
    ///
    /// # Panics
    /// Another one is still being sent.
    pub fn queue_block(&mut self, index: u64, block: Arc<Block>) {
        let with_head = block.bytes().len().min(WITH_HEAD);
        let behind = block.bytes().len() - with_head;
        self.queue_head(index, &block.bytes()[..with_head], behind);
        self.sending = Some(Sending::Block { block, sent: with_head });
    }

    /// Queues a hash group that is in a file, and lies there at `bytes`: it goes from the file into the
    /// network, or is read into the records in which it is sealed. Gives false where that cannot be: a
    /// directory that is unpacked as it comes is in many files, and before hands are shaken there are no
    /// records.
    ///
    /// # Panics
    /// Another one is still being sent.
    #[must_use]
    pub fn queue_held(&mut self, index: u64, held: &Arc<Held>, bytes: Range<u64>) -> bool {
        if self.pipe.is_shaking() && self.is_sealed() || held.unpacks() {
            return false;
        }
        let left = Sending::File { held: Arc::clone(held), left: bytes };
        self.queue_head(index, &[], left.left_len());
        self.sending = Some(left);
        true
    }

    /// Queues the head of a group's frame, the first bytes of the group, and promises so many more.
    fn queue_head(&mut self, index: u64, first: &[u8], behind: usize) {
        assert!(self.sending.is_none(), "a group is queued when the one before is sent");
        let start = self.outgoing.len();
        Control::Group { index, payload: first }.emit(&mut self.outgoing);
        let len = self.outgoing.len() - start + behind - LENGTH_LEN;
        let len = u32::try_from(len).expect("a group fits into a frame");
        self.outgoing[start..start + LENGTH_LEN].copy_from_slice(&len.to_be_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::seal::Secret;
    use crate::store::{PartFile, Placing};
    use crate::tls::{Expected, Security};
    use polycast_testing::HANG;
    use std::net::{Ipv4Addr, TcpListener};

    fn pair(security: Option<Security>) -> (FrameStream, FrameStream) {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let (address, own) = (listener.local_addr().unwrap(), security.clone());
        let near = std::thread::spawn(move || {
            let mut near = FrameStream::connect(address, HANG, own.as_ref(), &Expected::Sharer).unwrap();
            near.shake_hands(HANG).unwrap();
            near
        });
        let mut far = FrameStream::stranger(listener.accept().unwrap().0, security.clone()).unwrap();
        far.trust();
        if security.is_some() {
            far.shake_hands(HANG).unwrap();
        }
        (near.join().unwrap(), far)
    }

    fn noise(len: usize) -> Vec<u8> {
        (0..len).map(|at| (at * 31 + at / 977) as u8).collect()
    }

    /// Lengths of groups.
    const LENS: [usize; 10] =
        [0, 1, 100, WITH_HEAD - 1, WITH_HEAD, WITH_HEAD + 1, 1 << 18, 1 << 18, (1 << 20) - 7, 5];

    /// Groups of all lengths come as they were, between other frames, in few pieces and in many; those that
    /// come alone are not copied.
    #[test]
    fn groups_come_as_they_were() {
        go_between(|stream, at, len| stream.queue_block(at, Arc::new(Block::of(noise(len)))));
    }

    /// The same from a file, sealed or not: bytes around a group are not sent.
    #[test]
    fn groups_come_from_a_file_as_they_were() {
        let dir = tempfile::tempdir().unwrap();
        let len = LENS.iter().sum::<usize>() as u64 + 2 * LENS.len() as u64;
        let part = PartFile::open(&dir.path().join("object"), len, Placing::default()).unwrap();
        let starts: Vec<u64> =
            { 0..LENS.len() }.map(|at| LENS[..at].iter().sum::<usize>() as u64 + 2 * at as u64 + 1).collect();
        for (start, len) in starts.iter().zip(LENS) {
            part.write(&noise(len), *start).unwrap();
        }
        let held = part.held();
        go_between(|stream, at, len| {
            let start = starts[at as usize];
            assert!(stream.queue_held(at, &held, start..start + len as u64));
        });
    }

    /// However much has come behind a group, nothing of that lies in its buffer: all groups of a connection
    /// that brings nothing else come without being copied, sealed or not.
    #[test]
    fn groups_that_come_alone_are_not_copied() {
        for security in [None, Some(Security::shared(&Secret::new([4; 32])))] {
            let is_sealed = security.is_some();
            let (mut from, mut to) = pair(security);
            let writer = std::thread::spawn(move || {
                for index in 0..24 {
                    from.queue_block(index, Arc::new(Block::of(noise((1 << 18) - index as usize))));
                    from.flush().unwrap();
                    while from.queued() > 0 {
                        from.wait(HANG).unwrap();
                        from.flush().unwrap();
                    }
                }
                from
            });
            for index in 0..24 {
                let block = loop {
                    if let Some((came, block)) = to.next_block(Vec::new).unwrap() {
                        assert_eq!(came, index);
                        break block;
                    }
                    assert!(to.next_frame().unwrap().is_none(), "{index} is copied, sealed: {is_sealed}");
                    if !to.fill().unwrap() {
                        to.wait_for_whole();
                        to.wait(HANG).unwrap();
                    }
                };
                assert!(block.bytes() == noise((1 << 18) - index as usize));
            }
            drop(writer.join().unwrap());
        }
    }

    fn go_between(queue: impl Fn(&mut FrameStream, u64, usize)) {
        let shared = Security::shared(&Secret::new([3; 32]));
        let ways = [usize::MAX, 100_000, 1_000].map(|most| [(most, None), (most, Some(shared.clone()))]);
        for (most, security) in ways.into_iter().flatten() {
            let is_sealed = security.is_some();
            let (mut from, mut to) = pair(security);
            assert!(from.is_sealed() == is_sealed && to.is_sealed() == is_sealed);
            let mut came = Vec::new();
            let lens = LENS;
            for (at, len) in lens.into_iter().enumerate() {
                if at % 3 == 2 {
                    from.queue(&Control::Alive);
                }
                queue(&mut from, at as u64, len);
                let queued = from.queued();
                assert!(queued > len, "{queued} of {len}");
                let mut until = None;
                while from.queued() > 0 || until != Some(at) {
                    from.flush_some(most).unwrap();
                    to.fill().unwrap();
                    loop {
                        if let Some((index, block)) = to.next_block(Vec::new).unwrap() {
                            came.push((index, block.bytes().to_vec()));
                            until = Some(index as usize);
                            continue;
                        }
                        match to.next_frame().unwrap() {
                            Some(Control::Group { index, payload }) => {
                                came.push((index, payload.to_vec()));
                                until = Some(index as usize);
                            }
                            Some(frame) => assert_eq!(frame, Control::Alive),
                            None => break,
                        }
                    }
                }
            }
            let sent: Vec<_> = lens.iter().enumerate().map(|(at, len)| (at as u64, noise(*len))).collect();
            assert!(
                came == sent,
                "{:?}",
                came.iter().map(|(at, bytes)| (at, bytes.len())).collect::<Vec<_>>()
            );
        }
    }
}
