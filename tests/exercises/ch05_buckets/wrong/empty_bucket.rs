// expect: bucket 0 is empty

use concise_wrapper::ddp::bucket::BucketCaps;

/// Closes even an empty bucket when the next gradient does not fit.
pub fn buckets(sizes: &[usize], caps: BucketCaps) -> Vec<Vec<usize>> {
    let (mut closed, mut open) = (Vec::new(), Vec::new());
    let (mut filled, mut cap) = (0, caps.first);
    for (parameter, &size) in sizes.iter().enumerate().rev() {
        if filled + size > cap {
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
