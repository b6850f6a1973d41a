//! Chapter 5, `book/src/ch05-concise-wrapper.md`: gradient buckets by size, last layer first.
//!
//! Check your answer: `cargo course check ch05_buckets`

use concise_wrapper::ddp::bucket::BucketCaps;

/// Which gradients travel together: the buckets, in the order in which they are reduced.
///
/// `sizes` are the sizes of the parameters' gradients in bytes, each at least 1, in the order of the model.
/// A bucket is a list of indices into `sizes`. The backward pass finishes the *last* parameter's gradient
/// first, so
///
/// - gradients are taken from the last parameter to the first, and stand in this order in the buckets, and in
///   each of them;
/// - as long as the next gradient fits into the open bucket, it goes there. It fits if with it the bucket has
///   at most its cap in bytes: `caps.first` for the first bucket, `caps.others` for every other;
/// - if it does not fit, the bucket is closed, and it opens the next. So a gradient that is larger than the
///   cap has a bucket of its own. None is ever split over two;
/// - no bucket is empty. Without parameters there are no buckets.
///
/// With caps of 4 and 10:
///
/// ```text
/// parameter   0   1 2   3   4 5
/// size        3   6 2   9   2 1
/// bucket      3   2 2   1   0 0      → [[5, 4], [3], [2, 1], [0]]
/// ```
///
/// Stage 5's `concise_wrapper::ddp::bucket::buckets` is not to be used.
pub fn buckets(sizes: &[usize], caps: BucketCaps) -> Vec<Vec<usize>> {
    // TODO: from the last parameter to the first, into the open bucket or into a new one.
    todo!("the buckets")
}
