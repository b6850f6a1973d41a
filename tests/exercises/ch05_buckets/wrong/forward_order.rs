// expect: parameter 0 comes before parameter 5

use concise_wrapper::ddp::bucket::BucketCaps;

/// From the first layer to the last: every bucket waits for the end of the backward pass.
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
    closed
}
