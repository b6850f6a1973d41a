// expect: no bucket has parameters 0: the bucket that is open after the last gradient

use concise_wrapper::ddp::bucket::BucketCaps;

/// Keeps a bucket when it is closed, and never closes the last one: the first layers are not synchronised.
pub fn buckets(sizes: &[usize], caps: BucketCaps) -> Vec<Vec<usize>> {
    let (mut closed, mut open) = (Vec::new(), Vec::new());
    let (mut filled, mut cap) = (0, caps.first);
    for (parameter, &size) in sizes.iter().enumerate().rev() {
        if !open.is_empty() && filled + size > cap {
            closed.push(std::mem::take(&mut open));
            (filled, cap) = (0, caps.others);
        }
        open.push(parameter);
        filled += size;
    }
    closed
}
