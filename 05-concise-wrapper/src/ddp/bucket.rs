//! Buckets: gradients in a row, which ranks send as few large messages in place of many small ones. The first bucket is small:
//! it is full soon, and the ranks begin to communicate early.

// ANCHOR: caps
/// The largest sizes of buckets, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BucketCaps {
    /// The cap of the first bucket.
    pub first: usize,
    /// The cap of every other bucket.
    pub others: usize,
}

impl Default for BucketCaps {
    /// 1 MB, then 25 MB, like PyTorch's DDP (Li et al., "PyTorch Distributed", 2020).
    fn default() -> Self {
        Self { first: 1 << 20, others: 25 << 20 }
    }
}
// ANCHOR_END: caps

/// Assigns parameters to buckets. `sizes` are the sizes of the parameters in bytes, in the order of the parameters.
///
/// The buckets are in the order in which ranks sum them: last layer first. So are the parameters of each bucket. A parameter
/// larger than the cap has a bucket for itself. No parameter is split.
// ANCHOR: buckets
pub fn buckets(sizes: &[usize], caps: BucketCaps) -> Vec<Vec<usize>> {
    let mut buckets: Vec<Vec<usize>> = Vec::new();
    let mut filled = 0;
    for parameter in (0..sizes.len()).rev() {
        let cap = if buckets.len() <= 1 { caps.first } else { caps.others };
        match buckets.last_mut() {
            Some(bucket) if filled + sizes[parameter] <= cap => bucket.push(parameter),
            _ => {
                buckets.push(vec![parameter]);
                filled = 0;
            }
        }
        filled += sizes[parameter];
    }
    buckets
}
// ANCHOR_END: buckets

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn last_layer_first_and_no_cap_exceeded() {
        let caps = BucketCaps { first: 4, others: 10 };
        let sizes = [3, 6, 2, 9, 2, 1];
        assert_eq!(buckets(&sizes, caps), [vec![5, 4], vec![3], vec![2, 1], vec![0]]);
        assert_eq!(buckets(&[50, 1], caps), [vec![1], vec![0]]);
        assert!(buckets(&[], caps).is_empty());
    }

    #[test]
    fn every_parameter_is_in_one_bucket() {
        for others in [1, 7, 30, 1000] {
            let sizes: Vec<usize> = (0..40).map(|i| 1 + i * 7 % 23).collect();
            let buckets = buckets(&sizes, BucketCaps { first: 5, others });
            let all: Vec<usize> = buckets.iter().flatten().copied().collect();
            assert_eq!(all, (0..40).rev().collect::<Vec<_>>());
            for (index, bucket) in buckets.iter().enumerate() {
                let cap = if index == 0 { 5 } else { others };
                let size: usize = bucket.iter().map(|&parameter| sizes[parameter]).sum();
                assert!(bucket.len() == 1 || size <= cap, "{bucket:?} of {size}");
            }
        }
    }
}
