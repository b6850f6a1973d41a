//! One bucket is open. It is closed when the next gradient does not fit, and after the last one.

use concise_wrapper::ddp::bucket::BucketCaps;

pub fn buckets(sizes: &[usize], caps: BucketCaps) -> Vec<Vec<usize>> {
    let (mut closed, mut open) = (Vec::new(), Vec::new());
    let (mut filled, mut cap) = (0, caps.first);
    for (parameter, &size) in sizes.iter().enumerate().rev() {
        // An empty bucket takes whatever comes, be it larger than the cap.
        if !open.is_empty() && filled + size > cap {
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

exercises::check!(ch05_buckets, buckets, run);
