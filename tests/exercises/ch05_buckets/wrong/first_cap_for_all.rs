// expect: bucket 2 is closed with 2 bytes of 10, but parameter 1 of 6 fits

use concise_wrapper::ddp::bucket::BucketCaps;

/// All buckets are as small as the first.
pub fn buckets(sizes: &[usize], caps: BucketCaps) -> Vec<Vec<usize>> {
    let (mut closed, mut open) = (Vec::new(), Vec::new());
    let mut filled = 0;
    for (parameter, &size) in sizes.iter().enumerate().rev() {
        if !open.is_empty() && filled + size > caps.first {
            closed.push(std::mem::take(&mut open));
            filled = 0;
        }
        open.push(parameter);
        filled += size;
    }
    if !open.is_empty() {
        closed.push(open);
    }
    closed
}
