// expect: bucket 2 is closed with 6 bytes of 10, but parameter 0 of 4 fits

use concise_wrapper::ddp::bucket::BucketCaps;

/// Fills buckets in the order of the model and turns everything around afterwards: the first bucket is what
/// was left over, and no cap was meant for it.
pub fn buckets(sizes: &[usize], caps: BucketCaps) -> Vec<Vec<usize>> {
    let (mut closed, mut open) = (Vec::new(), Vec::new());
    let (mut filled, mut cap) = (0, caps.first);
    for (parameter, &size) in sizes.iter().enumerate() {
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
    closed.reverse();
    closed.iter_mut().for_each(|bucket| bucket.reverse());
    closed
}
