// expect: bucket 0 has 12 bytes, and a cap of 4

use concise_wrapper::ddp::bucket::BucketCaps;

/// Closes a bucket as soon as it has reached its cap, by when it may be far larger.
///
/// It is PyTorch's rule, where a cap says when a bucket is closed. Here it says how large a bucket may be.
pub fn buckets(sizes: &[usize], caps: BucketCaps) -> Vec<Vec<usize>> {
    let (mut closed, mut open) = (Vec::new(), Vec::new());
    let (mut filled, mut cap) = (0, caps.first);
    for (parameter, &size) in sizes.iter().enumerate().rev() {
        open.push(parameter);
        filled += size;
        if filled >= cap {
            closed.push(std::mem::take(&mut open));
            (filled, cap) = (0, caps.others);
        }
    }
    if !open.is_empty() {
        closed.push(open);
    }
    closed
}
