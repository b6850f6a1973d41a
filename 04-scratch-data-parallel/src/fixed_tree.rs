//! A sum whose bits do not depend on how many ranks there are.
//!
//! Adding floating-point numbers in another order gives other bits, and every algorithm that adds up one
//! contribution *per rank* has an order that depends on their number. Here the contributions are *leaves*
//! whose number stays fixed while ranks come and go: each rank holds a run of them. They are the leaves of
//! one binary tree, which halves the run of leaves again and again, and sums are made along the tree,
//! wherever its nodes happen to lie. Eight leaves on three ranks:
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
//! A node lies where its first leaf lies. If its other half lies elsewhere, that partial sum is sent to
//! it: 6..8 goes from rank 2 to rank 1, leaf 3 and 4..8 go from rank 1 to rank 0. The same additions,
//! with the same operands, happen whatever the number of ranks is, so the bits are the same. On one rank
//! nothing is sent, and the tree is the same tree.

use std::ops::Range;

use candle_core::Tensor;
use harness::report::trace::COMMUNICATION;
use tracing::info_span;

use params_and_allreduce::collectives::chunk_range;
use params_and_allreduce::communicator::{Communicator, Error};

/// The leaves of a fixed tree, and who holds them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FixedTree {
    leaves: usize,
    world_size: usize,
}

impl FixedTree {
    /// A tree of `leaves` leaves, held by `world_size` ranks in runs that differ by at most one.
    ///
    /// # Errors
    ///
    /// When a rank would hold none: then it could not be said what it adds.
    pub fn new(leaves: usize, world_size: usize) -> Result<Self, Error> {
        if leaves < world_size || world_size == 0 {
            let text = format!("{leaves} leaves cannot be shared out over {world_size} ranks");
            return Err(Error::Other(text));
        }
        Ok(Self { leaves, world_size })
    }

    /// How many leaves there are.
    pub fn leaves(&self) -> usize {
        self.leaves
    }

    /// The leaves that a rank holds: its chunk of them, by [`chunk_range`].
    pub fn held_by(&self, rank: usize) -> Range<usize> {
        chunk_range(self.leaves, self.world_size, rank)
    }

    /// The rank that holds a leaf.
    fn holder(&self, leaf: usize) -> usize {
        let (size, larger) = (self.leaves / self.world_size, self.leaves % self.world_size);
        // The first ranks hold one leaf more.
        let of_larger = larger * (size + 1);
        match leaf.checked_sub(of_larger) {
            None => leaf / (size + 1),
            Some(beyond) => larger + beyond / size,
        }
    }

    /// The sum of all leaves, on every rank, in memory of its own; `mine` are this rank's, in order.
    ///
    /// # Errors
    ///
    /// When `mine` are not as many as this rank holds, when tensors differ in shape or type, or when
    /// another rank stops or stalls.
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
        // Copies, because the caller may write to the leaves later.
        let leaves = mine.iter().map(Tensor::force_contiguous);
        let leaves = leaves.collect::<candle_core::Result<Vec<_>>>()?;
        let nodes: Vec<_> =
            held.zip(&leaves).map(|(leaf, tensor)| (leaf..leaf + 1, tensor)).collect();
        self.sum_of_nodes(rank, &nodes)
    }

    /// The same sum of leaves, some of which a rank has added up before: `mine` are nodes of the tree, which
    /// together are this rank's leaves. The bits are the same. Nobody may write to these tensors any more: other ranks
    /// may hold them.
    ///
    /// # Errors
    ///
    /// When leaves are missing that this rank holds, when tensors differ in shape or type, or when another rank
    /// stops or stalls.
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
        let bytes = first.elem_count() * first.dtype().size_in_bytes();
        let shape = first.dims();
        let _span = info_span!(target: COMMUNICATION, "tree sum", bytes, ?shape).entered();
        let sum = match self.node(rank, &held, mine, 0..self.leaves)? {
            Some(sum) => {
                (1..self.world_size).try_for_each(|other| rank.send_shared(other, &sum))?;
                sum
            }
            None => rank.recv(0, first.shape(), first.dtype())?,
        };
        // Other ranks hold the sum, or it is a caller's tensor.
        Ok(sum.force_contiguous()?)
    }

    /// The sum of a run of leaves, on the rank that holds the first of them; `None` elsewhere.
    fn node(
        &self,
        rank: &(impl Communicator + ?Sized),
        held: &Range<usize>,
        mine: &[(Range<usize>, &Tensor)],
        run: Range<usize>,
    ) -> Result<Option<Tensor>, Error> {
        // Nothing of this subtree passes through this rank.
        if run.end <= held.start || held.end <= run.start {
            return Ok(None);
        }
        if let Some((_, sum)) = mine.iter().find(|(node, _)| *node == run) {
            return Ok(Some((*sum).clone()));
        }
        if run.len() == 1 {
            let text = format!("leaf {} is missing on the rank that holds {held:?}", run.start);
            return Err(Error::Other(text));
        }
        let (left, right) = halves(&run);
        let (here, there) = (self.holder(left.start), self.holder(right.start));
        let left = self.node(rank, held, mine, left)?;
        let right = self.node(rank, held, mine, right)?;
        match (left, right) {
            (Some(left), Some(right)) => Ok(Some(ops::sum(&left, &right)?)),
            (Some(left), None) => {
                let right = rank.recv(there, left.shape(), left.dtype())?;
                Ok(Some(ops::sum(&left, &right)?))
            }
            (None, Some(right)) => {
                rank.send_shared(here, &right)?;
                Ok(None)
            }
            (None, None) => Ok(None),
        }
    }
}

/// The two halves of a run of at least two leaves; the first is the larger, if one is.
pub fn halves(run: &Range<usize>) -> (Range<usize>, Range<usize>) {
    let middle = run.start + run.len().div_ceil(2);
    (run.start..middle, middle..run.end)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use candle_core::Device;
    use devices::DevicePlan;

    use super::*;
    use params_and_allreduce::thread::run_ranks;

    /// Values of very different sizes, so that another order of adding gives other bits.
    fn leaf(index: usize) -> Vec<f32> {
        (0..13)
            .map(|i| ((index * 37 + i * 11) % 101) as f32 * 10f32.powi(index as i32 % 7 - 3))
            .collect()
    }

    fn bits(leaves: usize, ranks: usize) -> Vec<u32> {
        let plan = DevicePlan::slices(ranks).unwrap();
        let tree = FixedTree::new(leaves, ranks).unwrap();
        let sums = run_ranks(&plan, Duration::from_secs(20), |rank| {
            let mine = tree.held_by(rank.rank()).map(|i| Tensor::new(leaf(i), &Device::Cpu));
            let sum = tree.sum(rank, &mine.collect::<Result<Vec<_>, _>>()?)?;
            Ok::<_, Error>(sum.to_vec1::<f32>()?)
        });
        let sums = sums.unwrap();
        assert!(sums.iter().all(|sum| *sum == sums[0]), "every rank has the same sum");
        sums[0].iter().map(|value| value.to_bits()).collect()
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

    /// Each rank adds up what it can before, as far as nodes of the tree go.
    fn bits_of_nodes(leaves: usize, ranks: usize) -> Vec<u32> {
        fn add(held: &Range<usize>, run: Range<usize>) -> Vec<(Range<usize>, Tensor)> {
            if run.end <= held.start || held.end <= run.start {
                return Vec::new();
            }
            if run.len() == 1 {
                let leaf = Tensor::new(leaf(run.start), &Device::Cpu).unwrap();
                return vec![(run, leaf)];
            }
            let (left, right) = halves(&run);
            let nodes = [add(held, left.clone()), add(held, right.clone())].concat();
            match nodes.as_slice() {
                [(first, a), (second, b)] if *first == left && *second == right => {
                    vec![(run, (a + b).unwrap())]
                }
                _ => nodes,
            }
        }
        let plan = DevicePlan::slices(ranks).unwrap();
        let tree = FixedTree::new(leaves, ranks).unwrap();
        let sums = run_ranks(&plan, Duration::from_secs(20), |rank| {
            let nodes = add(&tree.held_by(rank.rank()), 0..leaves);
            let nodes: Vec<_> = nodes.iter().map(|(run, sum)| (run.clone(), sum)).collect();
            assert!(ranks > 1 || nodes.len() == 1);
            Ok::<_, Error>(tree.sum_of_nodes(rank, &nodes)?.to_vec1::<f32>()?)
        });
        sums.unwrap()[ranks - 1].iter().map(|value| value.to_bits()).collect()
    }

    #[test]
    fn nodes_that_were_added_up_before_change_no_bit() {
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
            let leaf = Tensor::new(leaf(0), &Device::Cpu)?;
            tree.sum_of_nodes(rank, &[(0..2, &leaf)]).map(drop)
        });
        let told = failure.unwrap_err().to_string();
        assert!(told.contains("leaf 2 is missing on the rank that holds 0..3"), "{told}");
    }

    #[test]
    fn the_order_of_adding_matters_for_these_values() {
        // Otherwise the test above would prove nothing.
        let mut in_a_row = leaf(0);
        for index in 1..8 {
            in_a_row.iter_mut().zip(leaf(index)).for_each(|(sum, value)| *sum += value);
        }
        let in_a_row: Vec<u32> = in_a_row.iter().map(|value| value.to_bits()).collect();
        assert_ne!(bits(8, 1), in_a_row);
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
