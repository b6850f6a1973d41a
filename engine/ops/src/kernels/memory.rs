//! Memory for results, initialised by all threads, and scratch memory that a thread uses again.
//!
//! Fresh memory costs twice: the system clears every page, and no page is in a cache. Each thread therefore keeps the blocks
//! that its operations have released, and lends them again as `Scratch`, without clearing them.
//!
//! Operations whose memory is not in proportion to their operands ask [`excess`] first: the system would end the process.

use std::cell::RefCell;
use std::mem::MaybeUninit;
use std::ops::{Deref, DerefMut};
use std::sync::LazyLock;
use std::thread::LocalKey;

use candle_core::DType;
use harness::machine;
use rayon::prelude::*;

use crate::BLOCK;

/// Returns the product of sizes, or the largest `usize` if the product is larger.
pub fn product(sizes: &[usize]) -> usize {
    sizes.iter().fold(1, |product: usize, &size| product.saturating_mul(size))
}

/// Returns the words that end an error if the machine has less memory than for this many numbers of a type.
pub fn excess(numbers: usize, dtype: DType) -> Option<String> {
    let needed = numbers.saturating_mul(dtype.size_in_bytes());
    let gibibytes = |bytes: usize| bytes as f64 / f64::from(1 << 30);
    (needed > *MACHINE).then(|| {
        let (needed, machine) = (gibibytes(needed), gibibytes(*MACHINE));
        format!("needs at least {needed:.0} GiB of memory, and this machine has {machine:.1} GiB")
    })
}

/// The bytes of memory that this process can have, with swap space, or 1 TiB where the system does not report them.
static MACHINE: LazyLock<usize> = LazyLock::new(|| {
    machine::memory().map_or(1 << 40, |memory| (memory.total.bytes + memory.swap) as usize)
});

/// Allocates memory for `len` numbers. All threads fill the memory with zeros.
pub(crate) fn zeros<T: Copy + Default + Send>(len: usize) -> Vec<T> {
    if len < BLOCK { vec![T::default(); len] } else { made_by_task(len, BLOCK, |_, _| {}).0 }
}

/// Computes `len` numbers in parallel, `of_task` of them in each task. `make` overwrites the zeros of the task with this number.
/// Also returns the results of the tasks, in order.
pub(crate) fn made_by_task<T: Copy + Default + Send, R: Send>(
    len: usize,
    of_task: usize,
    make: impl Fn(usize, &mut [T]) -> R + Sync + Send,
) -> (Vec<T>, Vec<R>) {
    written_by_task(len, of_task, false, |task, memory| {
        let numbers = filled(memory, |_| T::default());
        let result = make(task, numbers);
        (numbers, result)
    })
}

/// Does the same for a `write` that gets memory without values. It returns this memory with a value in each place. With `alone`,
/// the thread of the caller does all tasks.
#[expect(unsafe_code, reason = "the memory has no initial values; each task writes its own")]
pub(crate) fn written_by_task<T: Copy + Send, R: Send>(
    len: usize,
    of_task: usize,
    alone: bool,
    write: impl for<'a> Fn(usize, &'a mut [MaybeUninit<T>]) -> (&'a mut [T], R) + Sync + Send,
) -> (Vec<T>, Vec<R>) {
    let mut numbers = Vec::with_capacity(len);
    let memory = &mut numbers.spare_capacity_mut()[..len];
    let work = |(task, memory): (usize, &mut [MaybeUninit<T>])| {
        let place = (memory.as_ptr().cast(), memory.len());
        let (numbers, result) = write(task, memory);
        assert_eq!((numbers.as_ptr(), numbers.len()), place, "a task returns its own memory");
        result
    };
    let results = match alone {
        true => memory.chunks_mut(of_task).enumerate().map(work).collect(),
        false => memory.par_chunks_mut(of_task).enumerate().map(work).collect(),
    };
    // SAFETY: the tasks have all memory of `numbers`, and each has returned its part as initialised numbers.
    unsafe { numbers.set_len(len) };
    (numbers, results)
}

/// Writes a value to each place.
#[expect(unsafe_code, reason = "the memory has no initial values")]
#[inline(always)]
pub(crate) fn filled<T: Copy>(
    memory: &mut [MaybeUninit<T>],
    value: impl Fn(usize) -> T,
) -> &mut [T] {
    for (place, number) in memory.iter_mut().enumerate() {
        number.write(value(place));
    }
    // SAFETY: the loop has written each number.
    unsafe { memory.assume_init_mut() }
}

/// Splits rows of `length` numbers into parts of `width` columns, and returns the pieces of all rows for each part.
pub(crate) fn parts_of_rows<T>(
    memory: &mut [T],
    length: usize,
    width: usize,
) -> Vec<Vec<&mut [T]>> {
    let rows = memory.len() / length;
    let mut parts: Vec<_> = (0..length.div_ceil(width)).map(|_| Vec::with_capacity(rows)).collect();
    for row in memory.chunks_exact_mut(length) {
        for (part, piece) in parts.iter_mut().zip(row.chunks_mut(width)) {
            part.push(piece);
        }
    }
    parts
}

/// Computes rows of `columns` numbers in parallel. `make` overwrites the zeros of the row with this number.
pub(crate) fn made_by_row<T: Copy + Default + Send>(
    rows: usize,
    columns: usize,
    make: impl Fn(usize, &mut [T]) + Sync + Send,
) -> Vec<T> {
    // There may be no columns.
    let (len, columns) = (rows * columns, columns.max(1));
    let of_task = (BLOCK / columns).max(1);
    let work = |task: usize, numbers: &mut [T]| {
        let rows = numbers.chunks_exact_mut(columns);
        rows.enumerate().for_each(|(nth, row)| make(task * of_task + nth, row));
    };
    made_by_task(len, of_task * columns, work).0
}

/// The released blocks of one thread, for one element type, by size.
pub(crate) type Shelf<T> = RefCell<Vec<Vec<T>>>;

/// The maximum number of blocks that a thread keeps. A backward pass uses five at a time.
const KEPT: usize = 8;

/// Bytes of a cache line. A vector at the start of a cache line is read with one access.
const LINE: usize = 64;

/// Borrowed memory that starts at a cache line. Its first contents are arbitrary.
pub(crate) struct Scratch<T: Shelved> {
    block: Vec<T>,
    start: usize,
    len: usize,
}

impl<T: Shelved> Scratch<T> {
    /// Borrows memory for `len` elements: the smallest kept block that is large enough, or a new one.
    pub(crate) fn new(len: usize) -> Self {
        let needed = len + LINE / size_of::<T>();
        let kept = T::shelf().with_borrow_mut(|shelf| {
            let place = shelf.partition_point(|block| block.len() < needed);
            (place < shelf.len()).then(|| shelf.remove(place))
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
        // The list no longer exists when a thread ends. The memory is then freed.
        let _ = T::shelf().try_with(|shelf| {
            let mut shelf = shelf.borrow_mut();
            let place = shelf.partition_point(|kept| kept.len() < block.len());
            shelf.insert(place, block);
            if shelf.len() > KEPT {
                // The smallest block is the cheapest to allocate again.
                shelf.remove(0);
            }
        });
    }
}

/// An element type with its list of released blocks, because a static cannot be generic.
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
    fn more_numbers_than_the_machine_has_memory_for_are_an_excess() {
        assert!(*MACHINE > 1 << 20, "{}", *MACHINE);
        assert_eq!(product(&[3, 5]), 15);
        assert_eq!(product(&[usize::MAX, usize::MAX, 0]), 0);
        assert!(excess(1 << 10, DType::F64).is_none());
        let numbers = product(&[1 << 40, 1 << 40]);
        assert_eq!(numbers, usize::MAX);
        let words = excess(numbers, DType::F32).unwrap();
        assert!(words.starts_with("needs at least 17179869184 GiB of memory, and this"), "{words}");
    }

    #[test]
    fn every_number_is_made_once_at_its_place() {
        for len in [0, 1, 99, 100, 101, 3 * BLOCK + 5] {
            let (numbers, tasks) = made_by_task::<f64, _>(len, 100, |task, numbers| {
                for (place, number) in (task * 100..).zip(numbers.iter_mut()) {
                    *number += place as f64;
                }
                (task, numbers.len())
            });
            assert_eq!(numbers, (0..len).map(|place| place as f64).collect::<Vec<_>>());
            assert!(tasks.iter().map(|task| task.0).eq(0..len.div_ceil(100)));
            assert_eq!(tasks.iter().map(|task| task.1).sum::<usize>(), len);
            assert_eq!(zeros::<f32>(len), vec![0.0; len]);
        }
    }

    #[test]
    fn memory_begins_with_a_cache_line_and_is_used_again() {
        let mut first = Scratch::<f32>::new(1000);
        assert_eq!(first.len(), 1000);
        assert_eq!(first.as_ptr().align_offset(LINE), 0);
        first[999] = 7.0;
        let address = first.as_ptr();
        // While the first block is borrowed, a second request gets another block.
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
