// expect: sizes 2 3 60 4 1, caps 20 and 10: parameter 1 comes before parameter 2

use concise_wrapper::ddp::bucket::BucketCaps;

/// Packs tightly, into the first bucket that has room: one that could have gone long ago waits for an early
/// layer.
pub fn buckets(sizes: &[usize], caps: BucketCaps) -> Vec<Vec<usize>> {
    let mut buckets: Vec<(usize, Vec<usize>)> = Vec::new();
    for (parameter, &size) in sizes.iter().enumerate().rev() {
        let cap = |index| if index == 0 { caps.first } else { caps.others };
        let place = (0..buckets.len()).find(|&index| buckets[index].0 + size <= cap(index));
        match place {
            Some(index) => {
                buckets[index].0 += size;
                buckets[index].1.push(parameter);
            }
            None => buckets.push((size, vec![parameter])),
        }
    }
    buckets.into_iter().map(|(_, bucket)| bucket).collect()
}
