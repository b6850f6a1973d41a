// expect: sizes 4 6 9 1 2 2, caps 4 and 10: bucket 0 has 5 bytes, and a cap of 4

use concise_wrapper::ddp::bucket::BucketCaps;

/// One cap for all buckets: the ranks begin to talk late.
pub fn buckets(sizes: &[usize], caps: BucketCaps) -> Vec<Vec<usize>> {
    let (mut closed, mut open) = (Vec::new(), Vec::new());
    let (mut filled, cap) = (0, caps.others);
    for (parameter, &size) in sizes.iter().enumerate().rev() {
        if !open.is_empty() && filled + size > cap {
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
