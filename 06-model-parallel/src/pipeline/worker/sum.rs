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
//! reproducible data parallelism has. In both orders about log₂ m parts wait at a time. Where other pipelines
//! train on other micro-batches of the same batch, the tree goes on over all of them.

use std::ops::Range;

use candle_core::{Result, Tensor};
use params_and_allreduce::all_reduce::FixedTree;
use params_and_allreduce::all_reduce::fixed_tree::halves;
use params_and_allreduce::communicator::{Communicator, Error};

/// Gradients of all of a stage's parameters, summed over the samples of some micro-batches.
type Gradients = Vec<Tensor>;

/// A sum that is being made.
pub(super) struct Sum {
    tree: FixedTree,
    /// Parts of the tree whose other half is not there yet.
    waiting: Vec<(Range<usize>, Gradients)>,
    most_waiting: usize,
}

impl Sum {
    /// Nothing yet, of the leaves of `tree`: the micro-batches of all replicas.
    pub fn new(tree: FixedTree) -> Self {
        Self { tree, waiting: Vec::new(), most_waiting: 0 }
    }

    // ANCHOR: add
    /// Adds the gradients of one leaf.
    pub fn add(&mut self, leaf: usize, gradients: Gradients) -> Result<()> {
        let (mut run, mut sum) = (leaf..leaf + 1, gradients);
        self.most_waiting = self.most_waiting.max(self.waiting.len() + 1);
        for (parent, other) in self.way_up(leaf) {
            let Some(found) = self.waiting.iter().position(|(waiting, _)| *waiting == other) else {
                break;
            };
            let (_, of_other) = self.waiting.swap_remove(found);
            let (left, right) =
                if other.start < run.start { (of_other, sum) } else { (sum, of_other) };
            // Of each parameter, both halves go as soon as their sum is there.
            let pairs = left.into_iter().zip(right);
            sum = pairs.map(|(left, right)| left + right).collect::<Result<_>>()?;
            run = parent;
        }
        self.waiting.push((run, sum));
        Ok(())
    }
    // ANCHOR_END: add

    /// The most sets of gradients that there were at one time.
    pub fn most_waiting(&self) -> usize {
        self.most_waiting
    }

    /// The sum over all leaves, those of the other replicas too; all of them call this together.
    pub fn total(self, replicas: &impl Communicator) -> std::result::Result<Gradients, Error> {
        let parameters = self.waiting.first().map_or(0, |(_, gradients)| gradients.len());
        if let [(run, gradients)] = self.waiting.as_slice()
            && *run == (0..self.tree.leaves())
        {
            return Ok(gradients.clone());
        }
        let sum = |parameter: usize| {
            let nodes = self.waiting.iter().map(|(run, sums)| (run.clone(), &sums[parameter]));
            let nodes: Vec<_> = nodes.collect();
            self.tree.sum_of_nodes(replicas, &nodes)
        };
        (0..parameters).map(sum).collect()
    }

    /// The runs above a leaf, from the smallest to the whole; of each, the half without the leaf too.
    fn way_up(&self, leaf: usize) -> Vec<(Range<usize>, Range<usize>)> {
        let mut runs = Vec::new();
        let mut run = 0..self.tree.leaves();
        while run.len() > 1 {
            let (left, right) = halves(&run);
            let (with, without) = if left.contains(&leaf) { (left, right) } else { (right, left) };
            runs.push((run, without));
            run = with;
        }
        runs.reverse();
        runs
    }
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroUsize;

    use candle_core::Device;
    use params_and_allreduce::thread::{DEFAULT_TIMEOUT, run_ranks};
    use single_gpu::device::{DeviceKind, DevicePlan};

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

    /// What one rank after the other comes to, with its leaves taken in `order`; and the most that waited.
    fn sum(
        leaves: usize,
        replicas: usize,
        order: impl Fn(Range<usize>) -> Vec<usize> + Sync,
    ) -> (Vec<Vec<u32>>, usize) {
        let plan = DevicePlan::new(DeviceKind::Cpu, replicas, NonZeroUsize::new(1)).unwrap();
        let tree = FixedTree::new(leaves, replicas).unwrap();
        let sums = run_ranks(&plan, DEFAULT_TIMEOUT, |rank| {
            let mut sum = Sum::new(tree);
            for index in order(tree.held_by(rank.rank())) {
                sum.add(index, vec![leaf(index)])?;
            }
            let most = sum.most_waiting();
            Ok::<_, Error>((bits(&sum.total(rank)?[0]), most))
        });
        let (sums, most): (Vec<_>, Vec<_>) = sums.unwrap().into_iter().unzip();
        (sums, most.into_iter().max().unwrap())
    }

    fn of_leaves(leaves: usize) -> Vec<u32> {
        let plan = DevicePlan::new(DeviceKind::Cpu, 1, NonZeroUsize::new(1)).unwrap();
        let tree = FixedTree::new(leaves, 1).unwrap();
        let all: Vec<Tensor> = (0..leaves).map(leaf).collect();
        bits(&run_ranks(&plan, DEFAULT_TIMEOUT, |rank| tree.sum(rank, &all)).unwrap()[0])
    }

    #[test]
    fn the_bits_are_those_of_the_fixed_tree_in_any_order() {
        for leaves in 1..=20usize {
            let expected = vec![of_leaves(leaves)];
            let (forward, waiting) = sum(leaves, 1, Iterator::collect);
            assert_eq!(forward, expected, "{leaves} in order");
            assert!(waiting <= leaves.ilog2() as usize + 2, "{leaves}: {waiting}");
            let (backward, waiting) = sum(leaves, 1, |held| held.rev().collect());
            assert_eq!(backward, expected, "{leaves} from the last");
            assert!(waiting <= leaves.ilog2() as usize + 2, "{leaves}: {waiting}");
            // 7 divides none of these numbers but 7 and 14.
            if leaves % 7 != 0 {
                let (mixed, _) = sum(leaves, 1, |held| held.map(|i| i * 7 % leaves).collect());
                assert_eq!(mixed, expected, "{leaves} mixed");
            }
        }
    }

    #[test]
    fn replicas_that_hold_some_leaves_each_come_to_the_same_bits() {
        for replicas in [2, 3, 4] {
            for each in 1..=6 {
                let leaves = replicas * each;
                let expected = vec![of_leaves(leaves); replicas];
                assert_eq!(
                    sum(leaves, replicas, Iterator::collect).0,
                    expected,
                    "{leaves} in order"
                );
                let backward = sum(leaves, replicas, |held| held.rev().collect()).0;
                assert_eq!(backward, expected, "{leaves} from the last");
            }
        }
    }

    #[test]
    fn a_part_is_not_taken_for_the_whole() {
        let plan = DevicePlan::new(DeviceKind::Cpu, 1, NonZeroUsize::new(1)).unwrap();
        let failure = run_ranks(&plan, DEFAULT_TIMEOUT, |rank| {
            let mut sum = Sum::new(FixedTree::new(3, 1)?);
            sum.add(2, vec![leaf(2)])?;
            sum.add(0, vec![leaf(0)])?;
            sum.total(rank)
        });
        let told = failure.unwrap_err().to_string();
        assert!(told.contains("leaf 1 is missing"), "{told}");
    }
}
