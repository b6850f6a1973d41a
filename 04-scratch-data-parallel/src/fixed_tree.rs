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
//! rank 2 sends 6..8 to rank 1, and rank 1 sends leaf 3 and 4..8 to rank 0. Any number of ranks makes the same additions
//! with the same numbers, so the bits are the same. One rank sends no messages.

use std::ops::Range;

use candle_core::Tensor;
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
        let (size, larger) = (self.leaves / self.world_size, self.leaves % self.world_size);
        // The first ranks hold one leaf more.
        let of_larger = larger * (size + 1);
        match leaf.checked_sub(of_larger) {
            None => leaf / (size + 1),
            Some(beyond) => larger + beyond / size,
        }
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

#[cfg(test)]
pub(crate) mod tests {
    use std::time::Duration;

    use candle_core::Device;
    use devices::DevicePlan;

    use super::*;
    use params_and_allreduce::thread::{Rank, run_ranks};

    /// Returns values of very different sizes. Another order of additions gives other bits.
    pub(crate) fn leaf(index: usize) -> Tensor {
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
}
