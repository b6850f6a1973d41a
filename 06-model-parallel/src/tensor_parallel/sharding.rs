//! The part of a tensor that a rank holds.
//!
//! ```text
//! columns: Cut::new(1, 5)       rows: Cut::new(0, 5)      Cut::in_blocks(0, 6, 2)
//!
//!  rank 0  rank 1                ┌─────────┐               ┌─────────┐
//! ┌───────┬─────┐                │         │ rank 0        │         │ rank 0
//! │ 0 1 2 │ 3 4 │                │         │               │         │ rows 0 to 3
//! │       │     │                ├─────────┤               ├─────────┤
//! └───────┴─────┘                │         │ rank 1        │         │ rank 1
//!                                └─────────┘               └─────────┘ rows 4 and 5
//! ```
//!
//! A flattened channel of a convolution is a block of features. A rank that has computed the channel has the whole block.

use std::ops::Range;

use candle_core::{Error, Result, Tensor, bail};
use harness::report::counted;
use split_batch::shard_range;

// ANCHOR: cut
/// The way in which the ranks of a group share a tensor: along one axis, in runs, in rank order.
///
/// The runs are those of [`shard_range`]: their lengths differ by at most one block, and the first runs are the longer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cut {
    axis: usize,
    blocks: usize,
    block: usize,
}

impl Cut {
    /// A cut along `axis`, which has so many features.
    pub fn new(axis: usize, features: usize) -> Self {
        Self { axis, blocks: features, block: 1 }
    }

    /// A cut along `axis`, which has `blocks` runs of `block` features each. No rank gets a part of a block.
    pub fn in_blocks(axis: usize, blocks: usize, block: usize) -> Self {
        Self { axis, blocks, block }
    }

    /// The axis.
    pub fn axis(&self) -> usize {
        self.axis
    }

    /// The length of the axis in the whole tensor.
    pub fn features(&self) -> usize {
        self.blocks * self.block
    }

    /// The features of one of `ranks` ranks. Panics when `rank` is not below `ranks`.
    pub fn range(&self, ranks: usize, rank: usize) -> Range<usize> {
        let Range { start, end } = shard_range(self.blocks, ranks, rank);
        start * self.block..end * self.block
    }

    /// The number of features of rank 0, which no rank exceeds.
    pub fn widest(&self, ranks: usize) -> usize {
        self.range(ranks, 0).len()
    }

    /// One rank's part of a whole tensor, a view of the tensor. Fails when the axis does not exist or has another
    /// length, or there are [too many](Self::check) ranks.
    pub fn part(&self, whole: &Tensor, ranks: usize, rank: usize) -> Result<Tensor> {
        self.check(ranks)?;
        let (axis, features) = (self.axis, self.features());
        if whole.dim(axis)? != features {
            bail!("a cut of {features} features along axis {axis} does not fit {:?}", whole.dims());
        }
        let Range { start, end } = self.range(ranks, rank);
        whole.narrow(axis, start, end - start)
    }

    /// Checks that every rank gets a part. Fails when there are more ranks than blocks: the message names both numbers.
    pub fn check(&self, ranks: usize) -> Result<()> {
        if ranks > 0 && ranks <= self.blocks {
            return Ok(());
        }
        let blocks = match self.block {
            1 => counted(self.blocks, "feature"),
            block => format!("{} of {}", counted(self.blocks, "block"), counted(block, "feature")),
        };
        // A refusal of a command line, so without a backtrace.
        Err(Error::Msg(format!("{blocks} cannot be cut into {ranks} parts: use fewer ranks")))
    }
}
// ANCHOR_END: cut

#[cfg(test)]
mod tests {
    use candle_core::Device;

    use super::*;

    #[test]
    fn parts_put_together_are_the_whole() {
        let whole = Tensor::arange(0f64, 60.0, &Device::Cpu).unwrap().reshape((6, 10)).unwrap();
        for ranks in 1..=3 {
            for cut in
                [Cut::new(0, 6), Cut::new(1, 10), Cut::in_blocks(0, 3, 2), Cut::in_blocks(1, 5, 2)]
            {
                let parts: Vec<Tensor> =
                    (0..ranks).map(|rank| cut.part(&whole, ranks, rank).unwrap()).collect();
                let joined = Tensor::cat(&parts, cut.axis()).unwrap();
                assert_eq!(joined.to_vec2::<f64>().unwrap(), whole.to_vec2::<f64>().unwrap());
                let widths = parts.iter().map(|part| part.dim(cut.axis()).unwrap());
                assert_eq!(widths.max(), Some(cut.widest(ranks)));
            }
        }
        assert_eq!(Cut::in_blocks(0, 50, 16).range(4, 1), 13 * 16..26 * 16);
    }

    #[test]
    fn what_cannot_be_cut_is_refused() {
        let whole = Tensor::zeros((6, 4), candle_core::DType::F64, &Device::Cpu).unwrap();
        let told = |cut: Cut, ranks| cut.part(&whole, ranks, 0).unwrap_err().to_string();
        let few = "4 features cannot be cut into 5 parts: use fewer ranks";
        assert!(told(Cut::new(1, 4), 5).starts_with(few));
        let blocks = "3 blocks of 2 features cannot be cut into 4 parts";
        assert!(told(Cut::in_blocks(0, 3, 2), 4).starts_with(blocks));
        assert!(told(Cut::new(0, 4), 2).contains("does not fit [6, 4]"));
        assert!(Cut::new(2, 4).part(&whole, 2, 0).is_err());
        assert!(Cut::new(0, 6).check(0).is_err());
    }
}
