//! The sum over micro-batches, in an order that the schedule has no say in.
//!
//! GPipe goes backward from the last micro-batch to the first, 1F1B from the first to the last. Added up as
//! they come, the same gradients would have sums of different bits. So they are added along one binary tree
//! over the micro-batches' numbers, left + right, and a part waits until its other half is there:
//!
//! ```text
//!            0..4
//!        ┌────┴────┐
//!      0..2       2..4        GPipe: 3 waits, 2 comes: 2..4 waits, 1 waits, 0 comes: 0..2, 0..4
//!      ┌┴┐        ┌┴┐
//!      0 1        2 3
//! ```
//!
//! It is the tree of stage 2's `FixedTree`: with the shards as micro-batches, the sum has the bits that
//! reproducible data parallelism has. In both orders about log₂ m parts wait at a time.

use std::ops::Range;

use candle_core::{Result, Tensor, bail};

/// Gradients of all of a stage's parameters, summed over the samples of some micro-batches.
type Gradients = Vec<Tensor>;

/// A sum that is being made.
pub(super) struct Sum {
    micro_batches: usize,
    /// Parts of the tree whose other half is not there yet.
    waiting: Vec<(Range<usize>, Gradients)>,
}

impl Sum {
    /// Nothing yet, of so many micro-batches.
    pub fn new(micro_batches: usize) -> Self {
        Self { micro_batches, waiting: Vec::new() }
    }

    /// Adds the gradients of one micro-batch.
    pub fn add(&mut self, micro_batch: usize, gradients: Gradients) -> Result<()> {
        let (mut run, mut sum) = (micro_batch..micro_batch + 1, gradients);
        for (parent, other) in self.way_up(micro_batch) {
            let Some(found) = self.waiting.iter().position(|(waiting, _)| *waiting == other) else {
                break;
            };
            let (_, of_other) = self.waiting.swap_remove(found);
            let (left, right) =
                if other.start < run.start { (of_other, sum) } else { (sum, of_other) };
            sum =
                left.iter().zip(&right).map(|(left, right)| left + right).collect::<Result<_>>()?;
            run = parent;
        }
        self.waiting.push((run, sum));
        Ok(())
    }

    /// The sum over all micro-batches.
    pub fn total(self) -> Result<Gradients> {
        let whole = 0..self.micro_batches;
        match self.waiting.into_iter().find(|(run, _)| *run == whole) {
            Some((_, sum)) => Ok(sum),
            None => bail!("gradients of some micro-batches are missing"),
        }
    }

    /// The runs above a leaf, from the smallest to the whole; of each, the half without the leaf too.
    fn way_up(&self, leaf: usize) -> Vec<(Range<usize>, Range<usize>)> {
        let mut runs = Vec::new();
        let mut run = 0..self.micro_batches;
        while run.len() > 1 {
            let middle = run.start + run.len().div_ceil(2);
            let (left, right) = (run.start..middle, middle..run.end);
            let (with, without) = if leaf < middle { (left, right) } else { (right, left) };
            runs.push((run, without));
            run = with;
        }
        runs.reverse();
        runs
    }
}

#[cfg(test)]
mod tests {
    use candle_core::Device;
    use params_and_allreduce::all_reduce::FixedTree;
    use params_and_allreduce::thread::{DEFAULT_TIMEOUT, run_ranks};
    use single_gpu::device::{DeviceKind, DevicePlan};
    use std::num::NonZeroUsize;

    use super::*;

    /// Values of very different sizes, so that another order of adding gives other bits.
    fn leaf(index: usize) -> Tensor {
        let value =
            |i: usize| ((index * 37 + i * 11) % 101) as f32 * 10f32.powi(index as i32 % 7 - 3);
        Tensor::new((0..13).map(value).collect::<Vec<_>>(), &Device::Cpu).unwrap()
    }

    fn bits(sum: &Tensor) -> Vec<u32> {
        sum.to_vec1::<f32>().unwrap().into_iter().map(f32::to_bits).collect()
    }

    fn sum(order: impl Iterator<Item = usize>, leaves: usize) -> (Vec<u32>, usize) {
        let (mut sum, mut waiting) = (Sum::new(leaves), 0);
        for index in order {
            sum.add(index, vec![leaf(index)]).unwrap();
            waiting = waiting.max(sum.waiting.len());
        }
        (bits(&sum.total().unwrap()[0]), waiting)
    }

    #[test]
    fn the_bits_are_those_of_the_fixed_tree_in_any_order() {
        let plan = DevicePlan::new(DeviceKind::Cpu, 1, NonZeroUsize::new(1)).unwrap();
        for leaves in 1..=20 {
            let tree = FixedTree::new(leaves, 1).unwrap();
            let all: Vec<Tensor> = (0..leaves).map(leaf).collect();
            let expected = run_ranks(&plan, DEFAULT_TIMEOUT, |rank| tree.sum(rank, &all)).unwrap();
            let expected = bits(&expected[0]);
            let (forward, waiting) = sum(0..leaves, leaves);
            assert_eq!(forward, expected, "{leaves} in order");
            assert!(waiting <= leaves.ilog2() as usize + 1, "{leaves}: {waiting}");
            let (backward, waiting) = sum((0..leaves).rev(), leaves);
            assert_eq!(backward, expected, "{leaves} from the last");
            assert!(waiting <= leaves.ilog2() as usize + 1, "{leaves}: {waiting}");
            // 7 divides none of these numbers but 7 and 14.
            if leaves % 7 != 0 {
                let (mixed, _) = sum((0..leaves).map(|i| i * 7 % leaves), leaves);
                assert_eq!(mixed, expected, "{leaves} mixed");
            }
        }
    }

    #[test]
    fn a_part_is_not_taken_for_the_whole() {
        let mut sum = Sum::new(3);
        sum.add(2, vec![leaf(2)]).unwrap();
        sum.add(0, vec![leaf(0)]).unwrap();
        assert!(sum.total().is_err());
    }
}
