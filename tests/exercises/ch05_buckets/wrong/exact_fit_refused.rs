// expect: bucket 0 is closed with 2 bytes of 4, but parameter 4 of 2 fits

use concise_wrapper::ddp::bucket::BucketCaps;

/// Takes a bucket that has exactly its cap for too large.
pub fn buckets(sizes: &[usize], caps: BucketCaps) -> Vec<Vec<usize>> {
    let (mut closed, mut open) = (Vec::new(), Vec::new());
    let (mut filled, mut cap) = (0, caps.first);
    for (parameter, &size) in sizes.iter().enumerate().rev() {
        if !open.is_empty() && filled + size >= cap {
            closed.push(std::mem::take(&mut open));
            (filled, cap) = (0, caps.others);
        }
        open.push(parameter);
        filled += size;
    }
    if !open.is_empty() {
        closed.push(open);
    }
    closed
}
