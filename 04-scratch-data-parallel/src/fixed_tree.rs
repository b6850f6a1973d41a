//! A sum with the same bits on any number of ranks.
//!
//! Another order of floating-point additions gives other bits. An algorithm that adds one tensor *per rank* has an order
//! that depends on the number of ranks. A fixed tree adds one tensor per *leaf*, and the number of leaves is fixed. Each
//! rank holds a range of leaves. A node of the tree is the sum of its two halves. An example with eight leaves on three
//! ranks, with the rank of each node on the right:
//!
//! ```text
//!                   0..8                  rank 0
//!            ┌───────┴───────┐
//!          0..4             4..8          rank 0, rank 1
//!        ┌──┴──┐          ┌──┴──┐
//!      0..2   2..4      4..6   6..8       rank 0, rank 0, rank 1, rank 2
//!      ┌┴┐    ┌┴┐       ┌┴┐    ┌┴┐
//!      0 1    2 3       4 5    6 7
//!     └─ rank 0 ┘└─ rank 1 ─┘ rank 2
//! ```
//!
//! A node is computed on the rank that holds its first leaf. If another rank has the right half, that rank sends the half:
//! rank 2 sends 6..8 to rank 1, and rank 1 sends leaf 3 and 4..8 to rank 0. One rank sends no messages.
//!
//! A rank computes its leaves one by one, and a leaf is the gradients of one shard. A [`TreeSum`] adds the two halves of a
//! node as soon as both are there. Leaf 1 waits for leaf 0, and 2..4 waits for 0..2. If n leaves arrive in order, or in
//! reverse order, a rank keeps about log₂ n partial sums. The bits do not depend on the order of arrival.

use std::ops::Range;

use candle_core::{Device, Tensor, bail};
use harness::report::trace::COMMUNICATION;
use tracing::info_span;

use params_and_allreduce::collectives::chunk_range;
use params_and_allreduce::communicator::{Communicator, Error};

// ANCHOR: tree
/// The leaves of a fixed tree, and the rank of each leaf.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FixedTree {
    leaves: usize,
    world_size: usize,
}

impl FixedTree {
    /// Makes a tree of `leaves` leaves. The numbers of leaves of two ranks differ by at most one. Fails when a rank would
    /// hold no leaf.
    pub fn new(leaves: usize, world_size: usize) -> Result<Self, Error> {
        if leaves < world_size || world_size == 0 {
            let text = format!("{leaves} leaves cannot be shared out over {world_size} ranks");
            return Err(Error::Other(text));
        }
        Ok(Self { leaves, world_size })
    }

    /// Returns the number of leaves.
    pub fn leaves(&self) -> usize {
        self.leaves
    }

    /// Returns the leaves that a rank holds, by the rule of [`chunk_range`].
    pub fn held_by(&self, rank: usize) -> Range<usize> {
        chunk_range(self.leaves, self.world_size, rank)
    }

    /// Returns the rank that holds a leaf.
    fn holder(&self, leaf: usize) -> usize {
        let holds = |rank: &usize| self.held_by(*rank).contains(&leaf);
        (0..self.world_size).find(holds).expect("every leaf has a holder")
    }
    // ANCHOR_END: tree

    // ANCHOR: sum
    /// Returns the sum of all leaves, on every rank. `mine` are the leaves of this rank, in order. The result owns its
    /// memory. Fails when `mine` has another length than [`held_by`](Self::held_by), tensors differ in shape or type, or
    /// communication fails.
    pub fn sum(
        &self,
        rank: &(impl Communicator + ?Sized),
        mine: &[Tensor],
    ) -> Result<Tensor, Error> {
        let held = self.held_by(rank.rank());
        if mine.len() != held.len() {
            let text = format!("{} leaves on a rank that holds {held:?}", mine.len());
            return Err(Error::Other(text));
        }
        // The caller may write to its leaves later, so other ranks get copies.
        let leaves = mine.iter().map(Tensor::force_contiguous);
        let leaves = leaves.collect::<candle_core::Result<Vec<_>>>()?;
        let nodes: Vec<_> =
            held.zip(&leaves).map(|(leaf, tensor)| (leaf..leaf + 1, tensor)).collect();
        self.sum_of_nodes(rank, &nodes)
    }

    /// Returns the same sum from nodes of the tree. `mine` are nodes that together hold all leaves of this rank. The bits
    /// are the same. No rank may write to these tensors any more, because other ranks may hold them. Fails when a leaf of
    /// this rank is missing, tensors differ in shape or type, or communication fails.
    pub fn sum_of_nodes(
        &self,
        rank: &(impl Communicator + ?Sized),
        mine: &[(Range<usize>, &Tensor)],
    ) -> Result<Tensor, Error> {
        let held = self.held_by(rank.rank());
        let Some((_, first)) = mine.first() else {
            let text = format!("no leaves on a rank that holds {held:?}");
            return Err(Error::Other(text));
        };
        let bytes = ops::size_in_bytes(first);
        let shape = first.dims();
        let _span = info_span!(target: COMMUNICATION, "tree sum", bytes, ?shape).entered();
        let sum = match self.node(rank, &held, mine, 0..self.leaves)? {
            Some(sum) => {
                (1..self.world_size).try_for_each(|other| rank.send_shared(other, &sum))?;
                sum
            }
            None => rank.recv(0, first.shape(), first.dtype())?,
        };
        // Other ranks may hold this tensor, so the caller gets a copy.
        Ok(sum.force_contiguous()?)
    }

    /// Returns the sum of a range of leaves on the rank that holds its first leaf, and `None` on every other rank.
    fn node(
        &self,
        rank: &(impl Communicator + ?Sized),
        held: &Range<usize>,
        mine: &[(Range<usize>, &Tensor)],
        range: Range<usize>,
    ) -> Result<Option<Tensor>, Error> {
        // This rank holds no leaf of the range.
        if range.end <= held.start || held.end <= range.start {
            return Ok(None);
        }
        if let Some((_, sum)) = mine.iter().find(|(node, _)| *node == range) {
            return Ok(Some((*sum).clone()));
        }
        if range.len() == 1 {
            let text = format!("leaf {} is missing on the rank that holds {held:?}", range.start);
            return Err(Error::Other(text));
        }
        let (left, right) = halves(&range);
        let (left_rank, right_rank) = (self.holder(left.start), self.holder(right.start));
        let left = self.node(rank, held, mine, left)?;
        let right = self.node(rank, held, mine, right)?;
        match (left, right) {
            (Some(left), Some(right)) => Ok(Some(ops::sum(&left, &right)?)),
            (Some(left), None) => {
                let right = rank.recv(right_rank, left.shape(), left.dtype())?;
                Ok(Some(ops::sum(&left, &right)?))
            }
            (None, Some(right)) => {
                rank.send_shared(left_rank, &right)?;
                Ok(None)
            }
            (None, None) => Ok(None),
        }
    }
}

/// Returns the two halves of a range of at least two leaves. With an odd number of leaves, the first half is larger.
pub fn halves(range: &Range<usize>) -> (Range<usize>, Range<usize>) {
    let middle = range.start + range.len().div_ceil(2);
    (range.start..middle, middle..range.end)
}
// ANCHOR_END: sum

// ANCHOR: tree_sum
/// The partial sums of a rank. A leaf is a list of tensors, such as the gradients of all parameters.
pub struct TreeSum {
    tree: FixedTree,
    /// The nodes that wait for their other half, with their sums.
    waiting: Vec<(Range<usize>, Vec<Tensor>)>,
}

impl TreeSum {
    /// Starts a sum over the leaves of `tree`.
    pub fn new(tree: FixedTree) -> Self {
        Self { tree, waiting: Vec::new() }
    }

    /// Adds one leaf. Each leaf is added once. Fails when two leaves have different numbers of tensors, or tensors that
    /// differ in shape or type.
    pub fn add(&mut self, leaf: usize, tensors: Vec<Tensor>) -> candle_core::Result<()> {
        let (mut range, mut sum) = (leaf..leaf + 1, tensors);
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
            sum = pairs
                .map(|(left, right)| ops::sum(&left, &right))
                .collect::<candle_core::Result<_>>()?;
            range = parent;
        }
        self.waiting.push((range, sum));
        Ok(())
    }

    /// Returns the number of partial sums that this rank holds.
    pub fn sets(&self) -> usize {
        self.waiting.len()
    }

    /// Moves the partial sums to another device.
    pub fn to_device(mut self, device: &Device) -> candle_core::Result<Self> {
        for tensor in self.waiting.iter_mut().flat_map(|(_, sum)| sum) {
            *tensor = tensor.to_device(device)?;
        }
        Ok(self)
    }

    /// Returns the sum over the leaves of all ranks, on every rank. All ranks call this together, after each rank has added
    /// the leaves that it [holds](FixedTree::held_by). Fails when a leaf of this rank is missing, tensors differ in shape or
    /// type, or communication fails.
    pub fn total(mut self, rank: &(impl Communicator + ?Sized)) -> Result<Vec<Tensor>, Error> {
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
    use std::time::Duration;

    use candle_core::Device;
    use devices::DevicePlan;

    use super::*;
    use params_and_allreduce::thread::{DEFAULT_TIMEOUT, Rank, run_ranks};

    /// Returns values of very different sizes. Another order of additions gives other bits.
    fn leaf(index: usize) -> Tensor {
        let value =
            |i: usize| ((index * 37 + i * 11) % 101) as f32 * 10f32.powi(index as i32 % 7 - 3);
        Tensor::new((0..13).map(value).collect::<Vec<_>>(), &Device::Cpu).unwrap()
    }

    /// Returns the bits of a sum that every rank has.
    fn bits_of(
        leaves: usize,
        ranks: usize,
        sum: impl Fn(FixedTree, &Rank) -> Result<Tensor, Error> + Sync,
    ) -> Vec<u32> {
        let plan = DevicePlan::slices(ranks).unwrap();
        let tree = FixedTree::new(leaves, ranks).unwrap();
        let sums = run_ranks(&plan, Duration::from_secs(20), |rank| {
            Ok::<_, Error>(sum(tree, rank)?.to_vec1::<f32>()?)
        });
        let sums = sums.unwrap();
        assert!(sums.iter().all(|sum| *sum == sums[0]), "every rank has the same sum");
        sums[0].iter().map(|value| value.to_bits()).collect()
    }

    fn bits(leaves: usize, ranks: usize) -> Vec<u32> {
        bits_of(leaves, ranks, |tree, rank| {
            tree.sum(rank, &tree.held_by(rank.rank()).map(leaf).collect::<Vec<_>>())
        })
    }

    #[test]
    fn the_bits_do_not_depend_on_the_number_of_ranks() {
        for leaves in [1, 2, 3, 7, 8, 12] {
            let alone = bits(leaves, 1);
            for ranks in 2..=leaves {
                assert_eq!(bits(leaves, ranks), alone, "{leaves} leaves on {ranks} ranks");
            }
        }
    }

    /// Returns the bits of the sum when each rank adds up its leaves to the largest nodes that it can.
    fn bits_of_nodes(leaves: usize, ranks: usize) -> Vec<u32> {
        fn add(held: &Range<usize>, range: Range<usize>) -> Vec<(Range<usize>, Tensor)> {
            if range.end <= held.start || held.end <= range.start {
                return Vec::new();
            }
            if range.len() == 1 {
                return vec![(range.clone(), leaf(range.start))];
            }
            let (left, right) = halves(&range);
            let nodes = [add(held, left.clone()), add(held, right.clone())].concat();
            match nodes.as_slice() {
                [(first, a), (second, b)] if *first == left && *second == right => {
                    vec![(range, (a + b).unwrap())]
                }
                _ => nodes,
            }
        }
        bits_of(leaves, ranks, |tree, rank| {
            let nodes = add(&tree.held_by(rank.rank()), 0..leaves);
            let nodes: Vec<_> = nodes.iter().map(|(range, sum)| (range.clone(), sum)).collect();
            assert!(ranks > 1 || nodes.len() == 1);
            tree.sum_of_nodes(rank, &nodes)
        })
    }

    #[test]
    fn nodes_give_the_bits_of_leaves() {
        for leaves in [1, 2, 3, 7, 8, 12] {
            let alone = bits(leaves, 1);
            for ranks in 1..=leaves {
                assert_eq!(bits_of_nodes(leaves, ranks), alone, "{leaves} leaves on {ranks} ranks");
            }
        }
    }

    #[test]
    fn a_leaf_that_is_missing_is_named() {
        let plan = DevicePlan::slices(1).unwrap();
        let tree = FixedTree::new(3, 1).unwrap();
        let failure = run_ranks(&plan, Duration::from_secs(20), |rank| {
            tree.sum_of_nodes(rank, &[(0..2, &leaf(0))]).map(drop)
        });
        let message = failure.unwrap_err().to_string();
        assert!(message.contains("leaf 2 is missing on the rank that holds 0..3"), "{message}");
    }

    #[test]
    fn the_order_of_adding_matters_for_these_values() {
        // Otherwise the tests of this module would pass in any order.
        let in_a_row = (1..8).fold(leaf(0), |sum, index| (sum + leaf(index)).unwrap());
        let in_a_row = in_a_row.to_vec1::<f32>().unwrap();
        assert_ne!(bits(8, 1), in_a_row.into_iter().map(f32::to_bits).collect::<Vec<_>>());
    }

    #[test]
    fn every_leaf_has_one_holder() {
        for leaves in 1..40 {
            for ranks in 1..=leaves {
                let tree = FixedTree::new(leaves, ranks).unwrap();
                for rank in 0..ranks {
                    assert!(!tree.held_by(rank).is_empty());
                    assert!(tree.held_by(rank).all(|leaf| tree.holder(leaf) == rank));
                }
            }
        }
        assert!(FixedTree::new(3, 4).is_err());
    }

    fn bits_in(sum: &Tensor) -> Vec<u32> {
        sum.to_vec1::<f32>().unwrap().into_iter().map(f32::to_bits).collect()
    }

    /// Returns the bits of the sum on each rank when the leaves arrive in `order`, and the largest number of partial sums held.
    fn partial_sums(
        leaves: usize,
        replicas: usize,
        order: impl Fn(Range<usize>) -> Vec<usize> + Sync,
    ) -> (Vec<Vec<u32>>, usize) {
        let plan = DevicePlan::slices(replicas).unwrap();
        let tree = FixedTree::new(leaves, replicas).unwrap();
        let sums = run_ranks(&plan, DEFAULT_TIMEOUT, |rank| {
            let (mut sum, mut most) = (TreeSum::new(tree), 0);
            for index in order(tree.held_by(rank.rank())) {
                most = most.max(sum.sets() + 1);
                sum.add(index, vec![leaf(index)])?;
            }
            Ok::<_, Error>((bits_in(&sum.total(rank)?[0]), most))
        });
        let (sums, most): (Vec<_>, Vec<_>) = sums.unwrap().into_iter().unzip();
        (sums, most.into_iter().max().unwrap())
    }

    #[test]
    fn the_bits_are_those_of_the_fixed_tree_in_any_order() {
        for leaves in 1..=20usize {
            let expected = vec![bits(leaves, 1)];
            let (forward, waiting) = partial_sums(leaves, 1, Iterator::collect);
            assert_eq!(forward, expected, "{leaves} in order");
            assert!(waiting <= leaves.ilog2() as usize + 2, "{leaves}: {waiting}");
            let (backward, waiting) = partial_sums(leaves, 1, |held| held.rev().collect());
            assert_eq!(backward, expected, "{leaves} from the last");
            assert!(waiting <= leaves.ilog2() as usize + 2, "{leaves}: {waiting}");
            // 7 and `leaves` have no common divisor, so this is a permutation.
            if leaves % 7 != 0 {
                let (mixed, _) =
                    partial_sums(leaves, 1, |held| held.map(|i| i * 7 % leaves).collect());
                assert_eq!(mixed, expected, "{leaves} mixed");
            }
        }
    }

    #[test]
    fn replicas_that_hold_some_leaves_each_come_to_the_same_bits() {
        for replicas in [2, 3, 4] {
            for each in 1..=6 {
                let leaves = replicas * each;
                let expected = vec![bits(leaves, 1); replicas];
                assert_eq!(
                    partial_sums(leaves, replicas, Iterator::collect).0,
                    expected,
                    "{leaves} in order"
                );
                let backward = partial_sums(leaves, replicas, |held| held.rev().collect()).0;
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
