//! The sum of a [`FixedTree`] of sets of tensors, which are there one after the other.
//!
//! A rank has the gradients of its first leaf before those of its second. To keep them all until the last is there would
//! take as much memory as there are leaves. So two parts of the tree are added up as soon as both are there, and a part
//! waits until its other half is there. Four leaves, from the last to the first, as a pipeline may have them:
//!
//! ```text
//!            0..4
//!        ┌────┴────┐
//!      0..2       2..4        3 waits, 2 comes: 2..4 waits, 1 waits, 0 comes: 0..2, 0..4
//!      ┌┴┐        ┌┴┐
//!      0 1        2 3
//! ```
//!
//! Always left + right: the bits do not depend on which is there first. From the first to the last or from the last to
//! the first, about log₂ of the leaves wait at a time. Where other ranks hold other leaves, the tree goes on over all of
//! them.

use std::ops::Range;

use candle_core::{Result, Tensor};

use params_and_allreduce::communicator::{Communicator, Error};

use crate::fixed_tree::{FixedTree, halves};

/// A sum that is being made, of sets of equally many tensors: such as the gradients of all parameters.
pub struct TreeSum {
    tree: FixedTree,
    /// Parts of the tree whose other half is not there yet.
    waiting: Vec<(Range<usize>, Vec<Tensor>)>,
    most_sets: usize,
}

impl TreeSum {
    /// Nothing yet, of the leaves of `tree`.
    pub fn new(tree: FixedTree) -> Self {
        Self { tree, waiting: Vec::new(), most_sets: 0 }
    }

    /// How many sets there are at the most when a rank adds its leaves from the first to the last.
    pub fn most_in_order(tree: FixedTree, rank: usize) -> usize {
        let mut sum = Self::new(tree);
        for leaf in tree.held_by(rank) {
            let added = sum.add(leaf, Vec::new());
            added.expect("without tensors nothing is computed");
        }
        sum.most_sets()
    }

    // ANCHOR: add
    /// Adds a set of tensors as one leaf of the tree. Each leaf is added once.
    ///
    /// # Errors
    ///
    /// When tensors differ in shape or type from those of another leaf.
    pub fn add(&mut self, leaf: usize, tensors: Vec<Tensor>) -> Result<()> {
        let (mut run, mut sum) = (leaf..leaf + 1, tensors);
        self.most_sets = self.most_sets.max(self.waiting.len() + 1);
        for (parent, other) in self.way_up(leaf) {
            let Some(found) = self.waiting.iter().position(|(waiting, _)| *waiting == other) else {
                break;
            };
            let (_, of_other) = self.waiting.swap_remove(found);
            let (left, right) =
                if other.start < run.start { (of_other, sum) } else { (sum, of_other) };
            // Of each tensor, both halves go as soon as their sum is there.
            let pairs = left.into_iter().zip(right);
            sum = pairs.map(|(left, right)| ops::sum(&left, &right)).collect::<Result<_>>()?;
            run = parent;
        }
        self.waiting.push((run, sum));
        Ok(())
    }
    // ANCHOR_END: add

    /// The most sets of tensors that there were at one time.
    pub fn most_sets(&self) -> usize {
        self.most_sets
    }

    /// The sum over all leaves, those of the other ranks too, on every rank; all of them call this together. A rank has
    /// added the leaves that it [holds](FixedTree::held_by).
    ///
    /// # Errors
    ///
    /// When a leaf is missing that this rank holds, when tensors differ in shape or type, or when another rank stops or
    /// stalls.
    pub fn total(
        mut self,
        rank: &(impl Communicator + ?Sized),
    ) -> std::result::Result<Vec<Tensor>, Error> {
        let whole = 0..self.tree.leaves();
        if let Some(found) = self.waiting.iter().position(|(run, _)| *run == whole) {
            return Ok(self.waiting.swap_remove(found).1);
        }
        let (runs, sets): (Vec<_>, Vec<_>) = self.waiting.into_iter().unzip();
        let Some(tensors) = sets.first().map(Vec::len) else {
            return self.tree.sum_of_nodes(rank, &[]).map(|_| Vec::new());
        };
        let mut sets: Vec<_> = sets.into_iter().map(Vec::into_iter).collect();
        // Of each tensor, all parts go as soon as their sum is there.
        let sum = |_| {
            let parts: Vec<Tensor> = sets.iter_mut().filter_map(Iterator::next).collect();
            let nodes: Vec<_> = runs.iter().cloned().zip(&parts).collect();
            self.tree.sum_of_nodes(rank, &nodes)
        };
        (0..tensors).map(sum).collect()
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
    use candle_core::Device;
    use devices::DevicePlan;

    use super::*;
    use params_and_allreduce::thread::{DEFAULT_TIMEOUT, run_ranks};

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
        let plan = DevicePlan::slices(replicas).unwrap();
        let tree = FixedTree::new(leaves, replicas).unwrap();
        let sums = run_ranks(&plan, DEFAULT_TIMEOUT, |rank| {
            let mut sum = TreeSum::new(tree);
            for index in order(tree.held_by(rank.rank())) {
                sum.add(index, vec![leaf(index)])?;
            }
            let most = sum.most_sets();
            Ok::<_, Error>((bits(&sum.total(rank)?[0]), most))
        });
        let (sums, most): (Vec<_>, Vec<_>) = sums.unwrap().into_iter().unzip();
        (sums, most.into_iter().max().unwrap())
    }

    fn of_leaves(leaves: usize) -> Vec<u32> {
        let plan = DevicePlan::slices(1).unwrap();
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
            let tree = FixedTree::new(leaves, 1).unwrap();
            assert_eq!(TreeSum::most_in_order(tree, 0), waiting, "{leaves}");
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
        let plan = DevicePlan::slices(1).unwrap();
        let failure = run_ranks(&plan, DEFAULT_TIMEOUT, |rank| {
            let mut sum = TreeSum::new(FixedTree::new(3, 1)?);
            sum.add(2, vec![leaf(2)])?;
            sum.add(0, vec![leaf(0)])?;
            sum.total(rank)
        });
        let told = failure.unwrap_err().to_string();
        assert!(told.contains("leaf 1 is missing"), "{told}");
    }
}
