//! Chapter 5, `book/src/ch05-concise-wrapper.md`: gradient buckets by size, last layer first.
//!
//! Check your answer: `cargo course check ch05_buckets`

use concise_wrapper::ddp::bucket::BucketCaps;

/// The buckets of gradients that are reduced together, in the order of their all-reduces.
///
/// `sizes` are the sizes of the parameters' gradients in bytes, each at least 1, in the order of the model.
/// A bucket is a list of indices into `sizes`. The backward pass finishes the *last* parameter's gradient
/// first:
///
/// - gradients come from the last parameter to the first, both from bucket to bucket and inside a bucket;
/// - the next gradient goes into the open bucket if it fits: the bucket then has at most its cap in bytes, `caps.first` for the
///   first bucket and `caps.others` for all others;
/// - a gradient that does not fit closes the bucket and opens the next one. A gradient that is larger than the cap is alone in
///   its bucket. No gradient is split over two buckets;
/// - no bucket is empty. If there are no parameters, there are no buckets.
///
/// An example with caps of 4 and 10:
///
/// ```text
/// parameter   0   1 2   3   4 5
/// size        3   6 2   9   2 1
/// bucket      3   2 2   1   0 0      → [[5, 4], [3], [2, 1], [0]]
/// ```
///
/// Do not use stage 5's `concise_wrapper::ddp::bucket::buckets`.
pub fn buckets(sizes: &[usize], caps: BucketCaps) -> Vec<Vec<usize>> {
    // TODO: from the last parameter to the first, into the open bucket or into a new one.
    todo!("the buckets")
}

// The check of this answer. Leave this line as it is.
exercises::check!(ch05_buckets, buckets, run);
