//! The sum of a [`FixedTree`], for leaves that arrive one by one.
//!
//! A leaf is a list of tensors: the gradients of one shard. A rank computes its leaves one by one. It would need much
//! memory to keep all of them until the last is there. A [`TreeSum`] therefore adds two halves of a node as soon as both
//! are there, and keeps a partial sum only until its other half is there. An example with four leaves, which arrive from
//! the last to the first:
//!
//! ```text
//!            0..4             leaf 3 arrives    kept: 3
//!        ┌────┴────┐          leaf 2 arrives    kept: 2..4
//!      0..2       2..4        leaf 1 arrives    kept: 2..4, 1
//!      ┌┴┐        ┌┴┐         leaf 0 arrives    kept: 0..4
//!      0 1        2 3
//! ```
//!
//! A node is always left + right, so the bits do not depend on the order of arrival. If n leaves arrive in order, or in
//! reverse order, a rank keeps about log₂ n partial sums. [`TreeSum::total`] joins the partial sums of all ranks.

use std::ops::Range;

use candle_core::{Result, Tensor, bail};

use params_and_allreduce::communicator::{Communicator, Error};

use crate::fixed_tree::{FixedTree, halves};

// ANCHOR: tree_sum
/// The partial sums of a rank. A leaf is a list of tensors, such as the gradients of all parameters.
pub struct TreeSum {
    tree: FixedTree,
    /// The nodes that wait for their other half, with their sums.
    waiting: Vec<(Range<usize>, Vec<Tensor>)>,
    most_sets: usize,
}

impl TreeSum {
    /// Starts a sum over the leaves of `tree`.
    pub fn new(tree: FixedTree) -> Self {
        Self { tree, waiting: Vec::new(), most_sets: 0 }
    }

    /// Returns the largest number of partial sums that a rank holds at one time when it adds its leaves in order.
    pub fn most_in_order(tree: FixedTree, rank: usize) -> usize {
        let mut sum = Self::new(tree);
        for leaf in tree.held_by(rank) {
            let added = sum.add(leaf, Vec::new());
            added.expect("without tensors nothing is computed");
        }
        sum.most_sets()
    }

    /// Adds one leaf. Each leaf is added once. Fails when two leaves have different numbers of tensors, or tensors that
    /// differ in shape or type.
    pub fn add(&mut self, leaf: usize, tensors: Vec<Tensor>) -> Result<()> {
        let (mut range, mut sum) = (leaf..leaf + 1, tensors);
        self.most_sets = self.most_sets.max(self.waiting.len() + 1);
        for (parent, other) in self.path_to_root(leaf) {
            let Some(found) = self.waiting.iter().position(|(waiting, _)| *waiting == other) else {
                break;
            };
            let (_, other_sum) = self.waiting.swap_remove(found);
            let (left, right) =
                if other.start < range.start { (other_sum, sum) } else { (sum, other_sum) };
            if left.len() != right.len() {
                bail!("leaves of {} and of {} tensors cannot be added up", left.len(), right.len());
            }
            // The iterators free the two summands of each parameter as soon as their sum is computed.
            let pairs = left.into_iter().zip(right);
            sum = pairs.map(|(left, right)| ops::sum(&left, &right)).collect::<Result<_>>()?;
            range = parent;
        }
        self.waiting.push((range, sum));
        Ok(())
    }

    /// Returns the largest number of partial sums that this rank held at one time.
    pub fn most_sets(&self) -> usize {
        self.most_sets
    }

    /// Returns the sum over the leaves of all ranks, on every rank. All ranks call this together, after each rank has added
    /// the leaves that it [holds](FixedTree::held_by). Fails when a leaf of this rank is missing, tensors differ in shape or
    /// type, or communication fails.
    pub fn total(
        mut self,
        rank: &(impl Communicator + ?Sized),
    ) -> std::result::Result<Vec<Tensor>, Error> {
        let whole = 0..self.tree.leaves();
        if let Some(found) = self.waiting.iter().position(|(range, _)| *range == whole) {
            return Ok(self.waiting.swap_remove(found).1);
        }
        let (ranges, sets): (Vec<_>, Vec<_>) = self.waiting.into_iter().unzip();
        let Some(tensors) = sets.first().map(Vec::len) else {
            return self.tree.sum_of_nodes(rank, &[]).map(|_| Vec::new());
        };
        let mut sets: Vec<_> = sets.into_iter().map(Vec::into_iter).collect();
        // The iterators free the partial sums of each parameter as soon as their total is computed.
        let sum = |_| {
            let parts: Vec<Tensor> = sets.iter_mut().filter_map(Iterator::next).collect();
            let nodes: Vec<_> = ranges.iter().cloned().zip(&parts).collect();
            self.tree.sum_of_nodes(rank, &nodes)
        };
        (0..tensors).map(sum).collect()
    }

    /// For each node above a leaf, from the smallest to the root, returns two ranges: the node, and the half of the node
    /// that does not contain the leaf.
    fn path_to_root(&self, leaf: usize) -> Vec<(Range<usize>, Range<usize>)> {
        let mut ranges = Vec::new();
        let mut range = 0..self.tree.leaves();
        while range.len() > 1 {
            let (left, right) = halves(&range);
            let (with, without) = if left.contains(&leaf) { (left, right) } else { (right, left) };
            ranges.push((range, without));
            range = with;
        }
        ranges.reverse();
        ranges
    }
}
// ANCHOR_END: tree_sum

#[cfg(test)]
mod tests {
    use devices::DevicePlan;

    use super::*;
    use crate::fixed_tree::tests::leaf;
    use params_and_allreduce::thread::{DEFAULT_TIMEOUT, run_ranks};

    fn bits(sum: &Tensor) -> Vec<u32> {
        sum.to_vec1::<f32>().unwrap().into_iter().map(f32::to_bits).collect()
    }

    /// Returns the bits of the sum on each rank when the leaves arrive in `order`, and the largest number of partial sums held.
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
            // 7 and `leaves` have no common divisor, so this is a permutation.
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
        let message = failure.unwrap_err().to_string();
        assert!(message.contains("leaf 1 is missing"), "{message}");
    }
}
