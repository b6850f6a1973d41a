//! The division of a data set's batches among devices, and the sums over the batches.

use candle_core::{Device, Result, Tensor};

use harness::records::BatchSums;
use trainer::sums_from_tensor;

/// A device's part of a data set that several devices evaluate: every `of`-th batch, from the `nth`
/// on.
///
/// A part has whole batches, not a share of each batch. Every batch is then computed exactly as on
/// one device, to the last bit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    /// The index of this part, counted from 0; less than `of`.
    pub nth: usize,
    /// The number of parts.
    pub of: usize,
}

impl Part {
    /// The part with all batches.
    pub const WHOLE: Self = Self { nth: 0, of: 1 };

    /// Calls `evaluate` for each batch of this part and returns the sums by batch.
    ///
    /// The data set has so many `samples`, in batches of `size`; the last batch may be shorter.
    /// Fails when `evaluate` does.
    pub fn evaluate<E>(
        self,
        samples: usize,
        size: usize,
        mut evaluate: impl FnMut(&[u32]) -> std::result::Result<BatchSums, E>,
    ) -> std::result::Result<SumsByBatch, E> {
        let mut sums = vec![BatchSums::default(); samples.div_ceil(size)];
        for (batch, sums) in sums.iter_mut().enumerate().skip(self.nth).step_by(self.of) {
            let (begin, end) = (batch * size, samples.min((batch + 1) * size));
            *sums = evaluate(&(begin as u32..end as u32).collect::<Vec<_>>())?;
        }
        Ok(SumsByBatch(sums))
    }
}

/// The sums of each batch of a data set, in order. Batches of other parts have zeros.
///
/// Each device sends zeros for the batches that it did not evaluate. Adding zeros to a number
/// changes nothing, so the order of the devices does not matter. The batches are added last, in
/// their own order. The total therefore has the same bits for any number of devices.
#[derive(Clone, Debug, PartialEq)]
pub struct SumsByBatch(Vec<BatchSums>);

impl SumsByBatch {
    /// The sums over all batches.
    pub fn total(&self) -> BatchSums {
        let mut total = BatchSums::default();
        self.0.iter().for_each(|&batch| total += batch);
        total
    }

    /// Adds the sums of another device for the same data set.
    #[must_use]
    pub fn and(mut self, other: Self) -> Self {
        debug_assert_eq!(self.0.len(), other.0.len(), "batches of two data sets");
        self.0.iter_mut().zip(other.0).for_each(|(batch, other)| *batch += other);
        self
    }

    /// Whether the data set has no batch.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The sums as a tensor `[batches, 4]` (f64), to be added up across devices. Fails when the
    /// tensor cannot be made on `device`.
    pub fn to_tensor(&self, device: &Device) -> Result<Tensor> {
        let sums: Vec<_> = self.0.iter().flat_map(|batch| batch.to_array()).collect();
        Tensor::from_vec(sums, (self.0.len(), 4), device)
    }

    /// Builds the sums from such a tensor. Fails when the tensor is not `[batches, 4]` in f64.
    pub fn from_tensor(tensor: &Tensor) -> Result<Self> {
        let batches = (0..tensor.dim(0)?).map(|batch| sums_from_tensor(&tensor.get(batch)?));
        Ok(Self(batches.collect::<Result<_>>()?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns sums that identify the evaluated batch. In f64, another order gives another total.
    fn told(samples: &[u32]) -> Result<BatchSums> {
        let (first, count) = (f64::from(samples[0]), samples.len() as u64);
        Ok(BatchSums { loss: (first + 1.0).ln(), samples: count, ..BatchSums::default() })
    }

    #[test]
    fn each_sample_is_in_one_batch_of_one_part() {
        for (samples, of) in [(0, 1), (1, 3), (8, 1), (9, 2), (31, 2), (32, 3), (33, 3)] {
            let batches = |part: Part| {
                let mut batches = Vec::new();
                let sums = part.evaluate(samples, 4, |batch| {
                    batches.push(batch.to_vec());
                    told(batch)
                });
                (batches, sums.unwrap())
            };
            let (whole, sums) = batches(Part::WHOLE);
            assert_eq!(whole.concat(), (0..samples as u32).collect::<Vec<_>>());
            let mut found = vec![Vec::new(); whole.len()];
            for nth in 0..of {
                let (of_part, of_batches) = batches(Part { nth, of });
                assert_eq!(of_batches.total().samples, of_part.concat().len() as u64);
                for (place, batch) in of_part.into_iter().enumerate() {
                    found[nth + place * of] = batch;
                }
            }
            assert_eq!(found, whole, "{samples} samples in {of} parts");
            assert_eq!(sums.total().samples, samples as u64);
        }
    }

    #[test]
    fn the_total_of_parts_is_the_same_in_any_order_and_number() {
        let of_part = |nth, of| Part { nth, of }.evaluate(4001, 4, told).unwrap();
        let expected = of_part(0, 1);
        for of in [2, 3, 7] {
            let mut sums = of_part(of - 1, of);
            for nth in (0..of - 1).rev() {
                let sent = of_part(nth, of).to_tensor(&Device::Cpu).unwrap();
                sums = sums.and(SumsByBatch::from_tensor(&sent).unwrap());
            }
            assert_eq!(sums, expected);
            assert_eq!(sums.total(), expected.total(), "{of} parts");
            // The sum of the parts' totals is another number, so the test can see the difference.
            let mut by_part = BatchSums::default();
            (0..of).for_each(|nth| by_part += of_part(nth, of).total());
            assert_ne!(by_part.loss, expected.total().loss, "{of} parts");
        }
    }
}
