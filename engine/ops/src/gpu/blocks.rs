//! How the work of a kernel is shared out among blocks: by shapes alone.

/// Threads of a block, in every launch: a power of two, as blocks add up in a tree.
pub(crate) const THREADS: usize = 256;

/// Elements side by side that a thread reads or writes at once, where they allow it: 16 bytes of f32, the most that a GPU
/// moves for a thread.
pub(crate) const VECTOR: usize = 4;

/// A thread that works element by element is given no more blocks than this to share its work with.
const MOST_BLOCKS: usize = 4096;

/// Blocks for `n` elements, each a thread's.
pub(super) fn blocks_of(n: usize) -> usize {
    n.div_ceil(THREADS).clamp(1, MOST_BLOCKS)
}

/// Images `[images, channels, plane]` for kernels that go through them channel by channel.
///
/// The values of a channel are cut into parts, each a block's: so a GPU has work for all its processors even where
/// channels are few, and yet a block has enough to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Channels {
    pub(crate) images: usize,
    pub(crate) channels: usize,
    pub(crate) plane: usize,
}

impl Channels {
    /// Values of a channel that a block is given, thirty-two for each thread: with fewer, what a block does before and
    /// after counts for as much as they do.
    const PART: usize = 32 * THREADS;

    /// Elements of a vector: it must not reach beyond a plane.
    pub(crate) fn vector(&self) -> usize {
        if self.plane.is_multiple_of(VECTOR) { VECTOR } else { 1 }
    }

    /// Parts of a channel.
    pub(super) fn parts(&self) -> usize {
        (self.images * self.plane).div_ceil(Self::PART).max(1)
    }

    /// The shape of a number for each part of each channel.
    pub(super) fn of_parts(&self) -> [usize; 2] {
        [self.parts(), self.channels]
    }

    pub(super) fn blocks(&self) -> usize {
        self.channels * self.parts()
    }

    pub(crate) fn elements(&self) -> usize {
        self.images * self.channels * self.plane
    }
}
