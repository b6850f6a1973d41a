//! The rule by which a length is cut into parts: the one rule of the whole course.

use std::ops::Range;

/// The elements of one chunk when `len` elements are cut into `chunks`.
///
/// Chunks are runs of elements in order. Their sizes differ by at most one: with `len` = 10 and
/// `chunks` = 4 they are 0..3, 3..6, 6..8 and 8..10. With fewer elements than chunks the last are empty.
///
/// # Panics
///
/// When `chunk` is not below `chunks`.
// ANCHOR: chunk_range
pub fn chunk_range(len: usize, chunks: usize, chunk: usize) -> Range<usize> {
    assert!(chunk < chunks, "chunk {chunk} of {chunks}");
    let (size, larger) = (len / chunks, len % chunks);
    // The first `larger` chunks have one element more.
    let start = chunk * size + chunk.min(larger);
    start..start + size + usize::from(chunk < larger)
}
// ANCHOR_END: chunk_range

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_hold_every_element_once_and_differ_by_at_most_one() {
        for len in 0..40 {
            for chunks in 1..9 {
                let ranges: Vec<_> = (0..chunks).map(|c| chunk_range(len, chunks, c)).collect();
                let joined: Vec<usize> = ranges.iter().cloned().flatten().collect();
                assert_eq!(joined, (0..len).collect::<Vec<_>>(), "{len} in {chunks}");
                let sizes = || ranges.iter().map(ExactSizeIterator::len);
                assert!(sizes().max().unwrap() - sizes().min().unwrap() <= 1);
            }
        }
    }
}
