//! Memory for intermediate results, kept from one operation to the next.
//!
//! A convolution needs some megabytes for a moment, again and again. Fresh memory costs twice: the system
//! clears it, page by page, and it is in no cache. So each thread keeps what its operations gave back, and
//! hands it out again as it is: whoever borrows it writes before reading.

use std::cell::RefCell;
use std::ops::{Deref, DerefMut};
use std::thread::LocalKey;

/// What one thread keeps of one element type.
pub(crate) type Shelf<T> = RefCell<Vec<Vec<T>>>;

/// How many blocks a thread keeps: a backward pass has five at a time.
const KEPT: usize = 8;

/// Bytes of a cache line: a vector that begins with one is read in one go.
const LINE: usize = 64;

/// Borrowed memory that begins with a cache line. Its contents are whatever was there.
pub(crate) struct Scratch<T: Shelved> {
    block: Vec<T>,
    start: usize,
    len: usize,
}

impl<T: Shelved> Scratch<T> {
    /// Room for `len` elements.
    pub(crate) fn new(len: usize) -> Self {
        let needed = len + LINE / size_of::<T>();
        let kept = T::shelf().with_borrow_mut(|shelf| {
            let fits = |block: &Vec<T>| block.len() >= needed;
            let smallest = (0..shelf.len())
                .filter(|&place| fits(&shelf[place]))
                .min_by_key(|&place| shelf[place].len());
            smallest.map(|place| shelf.swap_remove(place))
        });
        let block = kept.unwrap_or_else(|| vec![T::default(); needed]);
        let start = block.as_ptr().align_offset(LINE);
        Self { block, start, len }
    }
}

impl<T: Shelved> Deref for Scratch<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        &self.block[self.start..][..self.len]
    }
}

impl<T: Shelved> DerefMut for Scratch<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        &mut self.block[self.start..][..self.len]
    }
}

impl<T: Shelved> Drop for Scratch<T> {
    fn drop(&mut self) {
        let block = std::mem::take(&mut self.block);
        // A thread that ends has no shelf any more; then the memory is simply freed.
        let _ = T::shelf().try_with(|shelf| {
            let mut shelf = shelf.borrow_mut();
            shelf.push(block);
            if shelf.len() > KEPT {
                // The smallest is the cheapest to make again.
                shelf.sort_by_key(|block| std::cmp::Reverse(block.len()));
                shelf.pop();
            }
        });
    }
}

/// The shelf of an element type: a static cannot be generic, so each type brings its own.
pub(crate) trait Shelved: Copy + Default + 'static {
    fn shelf() -> &'static LocalKey<Shelf<Self>>;
}

macro_rules! shelved {
    ($($T:ty),*) => {$(
        impl Shelved for $T {
            fn shelf() -> &'static LocalKey<Shelf<Self>> {
                thread_local!(static SHELF: Shelf<$T> = const { RefCell::new(Vec::new()) });
                &SHELF
            }
        }
    )*};
}
shelved!(f32, f64, bool);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_begins_with_a_cache_line_and_is_used_again() {
        let mut first = Scratch::<f32>::new(1000);
        assert_eq!(first.len(), 1000);
        assert_eq!(first.as_ptr().align_offset(LINE), 0);
        first[999] = 7.0;
        let address = first.as_ptr();
        // A second block while the first is out is another one.
        assert_ne!(Scratch::<f32>::new(1000).as_ptr(), address);
        drop(first);
        let again = [Scratch::<f32>::new(900), Scratch::<f32>::new(900)];
        assert!(again.iter().any(|block| block.as_ptr() == address));
    }

    #[test]
    fn no_more_than_a_few_blocks_are_kept() {
        let blocks: Vec<_> = (1..100).map(|len| Scratch::<f64>::new(len * 100)).collect();
        drop(blocks);
        let kept: Vec<usize> =
            f64::shelf().with_borrow(|shelf| shelf.iter().map(Vec::len).collect());
        assert_eq!(kept.len(), KEPT);
        assert!(kept.iter().all(|&len| len > 9000), "the largest are kept: {kept:?}");
    }
}
