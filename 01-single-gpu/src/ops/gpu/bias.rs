//! A bias for each channel of `[images, channels, plane]`, the relu behind it, and their gradients.
//!
//! A dense layer's output is such an image, with planes of one element.

use candle_core::backend::BackendStorage as _;
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
    let mut sums = machine.room(sizes.blocks(), DType::F64)?;
    let launch = Launch::new(Source::Bias, "channel_sums", grad.dtype()).channels(sizes);
    machine.run(launch.read(grad, sizes.elements()).write(&mut sums), sizes.blocks())?;
    Ok(merge(machine, sizes.of_parts(), &sums, grad.dtype())?.rounded)
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
    let mut sums = machine.room(sizes.blocks(), DType::F64)?;
    let launch = Launch::new(Source::Bias, "passed_and_channel_sums", grad.dtype());
    let launch = launch.channels(sizes).read(y, n).read(grad, n).write(&mut dz).write(&mut sums);
    machine.run(launch, sizes.blocks())?;
    Ok((dz, merge(machine, sizes.of_parts(), &sums, grad.dtype())?.rounded))
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

/// Sums, `[n]`.
pub(crate) struct Merged<S> {
    /// In f64.
    pub(crate) exact: S,
    /// In the type of the parameters that they are gradients of.
    pub(crate) rounded: S,
}

/// What parts have summed up, `[parts, n]` in f64, as the sums over all of them.
pub(super) fn merge<M: Machine>(
    machine: &M,
    [parts, n]: [usize; 2],
    sums: &M::Storage,
    dtype: DType,
) -> Result<Merged<M::Storage>> {
    let mut exact = machine.room(n, DType::F64)?;
    let mut rounded = machine.room(n, dtype)?;
    let launch = Launch::new(Source::Bias, "merged_sums", dtype).count(n).count(parts);
    let launch = launch.read_as(DType::F64, Operand::whole(sums, parts * n), parts * n);
    machine.run(launch.write(&mut exact).write(&mut rounded), n)?;
    Ok(Merged { exact, rounded })
}
