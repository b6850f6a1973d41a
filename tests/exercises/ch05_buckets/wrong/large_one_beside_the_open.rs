// expect: parameter 3 comes before parameter 5

use concise_wrapper::ddp::bucket::BucketCaps;

/// Gives a large gradient a bucket of its own, and goes on with the one that was open: that is reduced later.
pub fn buckets(sizes: &[usize], caps: BucketCaps) -> Vec<Vec<usize>> {
    let (mut closed, mut open) = (Vec::new(), Vec::new());
    let mut filled = 0;
    for (parameter, &size) in sizes.iter().enumerate().rev() {
        let cap = if closed.is_empty() { caps.first } else { caps.others };
        if size > cap {
            closed.push(vec![parameter]);
            continue;
        }
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
