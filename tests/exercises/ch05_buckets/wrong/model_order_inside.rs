// expect: parameter 4 comes before parameter 5

use concise_wrapper::ddp::bucket::BucketCaps;

/// The buckets come last layer first, but each is sorted "as the model has it".
pub fn buckets(sizes: &[usize], caps: BucketCaps) -> Vec<Vec<usize>> {
    let (mut closed, mut open) = (Vec::new(), Vec::new());
    let (mut filled, mut cap) = (0, caps.first);
    for (parameter, &size) in sizes.iter().enumerate().rev() {
        if !open.is_empty() && filled + size > cap {
            closed.push(std::mem::take(&mut open));
            (filled, cap) = (0, caps.others);
        }
        open.insert(0, parameter);
        filled += size;
    }
    if !open.is_empty() {
        closed.push(open);
    }
    closed
}
