//! A bias for each channel of `[images, channels, plane]`, the relu behind it, and their gradients.
//!
//! A dense layer's output is such an image, with planes of one element.

use candle_core::backend::BackendStorage;
use candle_core::{DType, Result, Tensor};

use super::blocks::{Channels, blocks_of};
use super::kernel::Source;
use super::launch::{Launch, Operand};
use super::machine::Machine;
use super::tensors::{on_gpu, tensor};

// ANCHOR: add_bias
/// y + bias, in place, then max(·, 0) if `relu`.
pub(crate) fn add<M: Machine>(
    machine: &M,
    y: &mut M::Storage,
    sizes: Channels,
    bias: Operand<'_, M::Storage>,
    relu: bool,
) -> Result<()> {
    let n = sizes.elements();
    let launch = Launch::new(Source::Bias, "add_bias", y.dtype()).count(n);
    let launch = launch.count(sizes.channels).count(sizes.plane).flag(relu);
    machine.run(launch.read(bias, sizes.channels).write(y), blocks_of(n))
}
// ANCHOR_END: add_bias

/// The gradient of the bias, `[channels]`.
pub(super) fn gradient<M: Machine>(
    machine: &M,
    sizes: Channels,
    grad: Operand<'_, M::Storage>,
) -> Result<M::Storage> {
    let mut sums = OfParts::room(machine, sizes.of_parts(), grad.dtype())?;
    let launch = Launch::new(Source::Bias, "channel_sums", grad.dtype()).channels(sizes);
    let launch = launch.read(grad, sizes.elements()).write_both(sums.both());
    machine.run(launch, sizes.blocks())?;
    Ok(sums.merged(machine)?.rounded)
}

/// The gradient that passes a relu whose output was `y`, and that of the bias, `[channels]`.
pub(super) fn gradient_behind_relu<M: Machine>(
    machine: &M,
    sizes: Channels,
    y: Operand<'_, M::Storage>,
    grad: Operand<'_, M::Storage>,
) -> Result<(M::Storage, M::Storage)> {
    let n = sizes.elements();
    let mut dz = machine.room(n, grad.dtype())?;
    let mut sums = OfParts::room(machine, sizes.of_parts(), grad.dtype())?;
    let launch = Launch::new(Source::Bias, "passed_and_channel_sums", grad.dtype());
    let launch = launch.channels(sizes).read(y, n).read(grad, n);
    machine.run(launch.write(&mut dz).write_both(sums.both()), sizes.blocks())?;
    Ok((dz, sums.merged(machine)?.rounded))
}

/// The gradient of what a bias was added to, and that of the bias, `[channels]`; `behind_relu` is what a relu made of the
/// sum, if one follows. Tensors on a GPU.
pub(crate) fn gradients(
    sizes: Channels,
    behind_relu: Option<&Tensor>,
    grad: &Tensor,
) -> Result<(Tensor, Tensor)> {
    let (dz, dbias) = match behind_relu {
        Some(y) => {
            let (dz, dbias) =
                on_gpu([y, grad], |gpu, [y, grad]| gradient_behind_relu(gpu, sizes, y, grad))?;
            (tensor(dz, grad.shape()), dbias)
        }
        None => (grad.clone(), on_gpu([grad], |gpu, [grad]| gradient(gpu, sizes, grad))?),
    };
    Ok((dz, tensor(dbias, sizes.channels)))
}

/// Sums over parts, which become totals: where there is but one part of each, its kernel leaves these, and there is nothing
/// to merge.
pub(super) struct OfParts<S> {
    /// `[parts, n]` in f64.
    sums: S,
    /// Room for the totals, `[n]`.
    rounded: S,
    parts: usize,
    n: usize,
}

impl<S: BackendStorage> OfParts<S> {
    /// Room for `[parts, n]`, and for totals of this type.
    pub(super) fn room<M: Machine<Storage = S>>(
        machine: &M,
        [parts, n]: [usize; 2],
        dtype: DType,
    ) -> Result<Self> {
        let (sums, rounded) = (machine.room(parts * n, DType::F64)?, machine.room(n, dtype)?);
        Ok(Self { sums, rounded, parts, n })
    }

    /// What kernels leave them in: the sums, then the totals.
    pub(super) fn both(&mut self) -> [&mut S; 2] {
        [&mut self.sums, &mut self.rounded]
    }

    /// The totals.
    pub(super) fn merged<M: Machine<Storage = S>>(mut self, machine: &M) -> Result<Merged<S>> {
        let Self { parts, n, .. } = self;
        if parts > 1 {
            let launch = Launch::new(Source::Bias, "merged_sums", self.rounded.dtype());
            let launch = launch.count(n).count(parts).change_as(DType::F64, &mut self.sums, 0);
            let launch = launch.write(&mut self.rounded);
            machine.run(launch, n)?;
        }
        Ok(Merged { exact: self.sums, rounded: self.rounded })
    }
}

/// The totals of n sums.
pub(crate) struct Merged<S> {
    /// In f64: the first n of this memory.
    pub(crate) exact: S,
    /// In the type of the parameters that they are gradients of.
    pub(crate) rounded: S,
}
