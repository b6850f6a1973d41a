// expect: parameter 3 is in bucket 0 and in bucket 1

use concise_wrapper::ddp::bucket::BucketCaps;

/// Fills every bucket to its last byte: the part of a gradient that is left goes to the next.
pub fn buckets(sizes: &[usize], caps: BucketCaps) -> Vec<Vec<usize>> {
    let (mut closed, mut open) = (Vec::new(), Vec::new());
    let mut room = caps.first;
    for (parameter, &size) in sizes.iter().enumerate().rev() {
        let mut left = size;
        while left > room {
            if room > 0 {
                open.push(parameter);
            }
            left -= room;
            closed.push(std::mem::take(&mut open));
            room = caps.others;
        }
        open.push(parameter);
        room -= left;
    }
    if !open.is_empty() {
        closed.push(open);
    }
    closed
}
