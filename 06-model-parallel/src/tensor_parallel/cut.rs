//! Which part of a tensor a rank holds.
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
//! Blocks are there for what comes out of a convolution: flattened, a channel is a run of features, and a
//! rank that made the channel has all of them.

use std::ops::Range;

use candle_core::{Result, Tensor, bail};
use harness::report::counted;
use split_batch::shard_range;

/// How the ranks of a group share a tensor: along one axis, in runs, in rank order.
///
/// The runs are those of [`shard_range`]: they differ by at most one block, and the first are the larger.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cut {
    axis: usize,
    blocks: usize,
    block: usize,
}

impl Cut {
    /// A cut along `axis`, which has `features` of which each goes to one rank.
    pub fn new(axis: usize, features: usize) -> Self {
        Self { axis, blocks: features, block: 1 }
    }

    /// A cut along `axis`, which has `blocks` runs of `block` features each: a run goes to one rank.
    pub fn in_blocks(axis: usize, blocks: usize, block: usize) -> Self {
        Self { axis, blocks, block }
    }

    /// The axis along which parts are put together.
    pub fn axis(&self) -> usize {
        self.axis
    }

    /// The length of that axis in the whole tensor.
    pub fn features(&self) -> usize {
        self.blocks * self.block
    }

    /// The features of one of `ranks` ranks.
    ///
    /// # Panics
    ///
    /// When `rank` is not below `ranks`.
    pub fn range(&self, ranks: usize, rank: usize) -> Range<usize> {
        let Range { start, end } = shard_range(self.blocks, ranks, rank);
        start * self.block..end * self.block
    }

    /// The features of the rank that has the most: rank 0.
    pub fn widest(&self, ranks: usize) -> usize {
        self.range(ranks, 0).len()
    }

    /// One rank's part of a whole tensor, a view of it.
    ///
    /// # Errors
    ///
    /// When the axis does not exist or has another length, or when there are [too many](Self::check) ranks.
    pub fn part(&self, whole: &Tensor, ranks: usize, rank: usize) -> Result<Tensor> {
        self.check(ranks)?;
        if whole.dim(self.axis)? != self.features() {
            bail!(
                "a cut of {} features along axis {} does not fit {:?}",
                self.features(),
                self.axis,
                whole.dims()
            );
        }
        let Range { start, end } = self.range(ranks, rank);
        whole.narrow(self.axis, start, end - start)
    }

    /// Makes sure that every rank gets something: a layer without outputs computes nothing.
    ///
    /// # Errors
    ///
    /// When there are more ranks than can have a part: the message names both numbers.
    pub fn check(&self, ranks: usize) -> Result<()> {
        if ranks == 0 || self.blocks < ranks {
            let what = match self.block {
                1 => counted(self.blocks, "feature"),
                block => {
                    format!("{} of {}", counted(self.blocks, "block"), counted(block, "feature"))
                }
            };
            bail!("{what} cannot be cut into {ranks} parts: use fewer ranks");
        }
        Ok(())
    }
}

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
