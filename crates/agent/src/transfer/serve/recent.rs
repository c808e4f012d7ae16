//! Groups that have just come: they are sent on from memory, and their buffers take the next ones.

use polycast_net::frames::Block;
use std::collections::VecDeque;
use std::sync::Arc;

/// So many groups are kept: 8 MiB of 256 KiB each. A member is asked for most of them before so many more
/// have come.
const KEPT_MAX: usize = 32;
/// Buffers that wait for groups.
const SPARE_MAX: usize = 8;

/// The last groups, and buffers for the next.
#[derive(Debug, Default)]
pub(super) struct Recent {
    blocks: VecDeque<(u64, Arc<Block>)>,
    pub(super) spare: Vec<Vec<u8>>,
}

impl Recent {
    /// Takes a group in, and the oldest out.
    pub(super) fn keep(&mut self, group: u64, block: Block) {
        if self.blocks.len() >= KEPT_MAX
            && let Some((_, oldest)) = self.blocks.pop_front()
        {
            self.give_back(oldest);
        }
        self.blocks.push_back((group, Arc::new(block)));
    }

    /// A group, if it is among the last ones.
    pub(super) fn find(&self, group: u64) -> Option<Arc<Block>> {
        self.blocks.iter().rev().find(|(kept, _)| *kept == group).map(|(_, block)| Arc::clone(block))
    }

    /// Takes the buffer of a group that none needs any more.
    pub(super) fn give_back(&mut self, block: Arc<Block>) {
        if self.spare.len() < SPARE_MAX
            && let Some(block) = Arc::into_inner(block)
        {
            self.spare.push(block.into_buffer());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_groups_are_kept_and_their_buffers_used_again() {
        let mut recent = Recent::default();
        for group in 0..KEPT_MAX as u64 + 3 {
            recent.keep(group, Block::of(vec![group as u8; 9]));
        }
        assert!(recent.find(2).is_none() && recent.spare.len() == 3);
        let sending = recent.find(3).unwrap();
        assert_eq!(sending.bytes(), [3; 9]);
        // One that is being sent goes when it is.
        recent.keep(99, Block::of(vec![9]));
        assert!(recent.find(3).is_none() && recent.spare.len() == 3);
        recent.give_back(sending);
        assert_eq!(recent.spare.len(), 4);
    }
}
