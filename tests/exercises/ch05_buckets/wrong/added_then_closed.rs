// expect: parameter 3 is in bucket 0 and in bucket 1

use concise_wrapper::ddp::bucket::BucketCaps;

/// Adds first, then finds that it was too much, and adds again to the next bucket.
pub fn buckets(sizes: &[usize], caps: BucketCaps) -> Vec<Vec<usize>> {
    let (mut closed, mut open) = (Vec::new(), Vec::new());
    let (mut filled, mut cap) = (0, caps.first);
    for (parameter, &size) in sizes.iter().enumerate().rev() {
        open.push(parameter);
        filled += size;
        if open.len() > 1 && filled > cap {
            closed.push(std::mem::take(&mut open));
            open.push(parameter);
            (filled, cap) = (size, caps.others);
        }
    }
    if !open.is_empty() {
        closed.push(open);
    }
    closed
}
