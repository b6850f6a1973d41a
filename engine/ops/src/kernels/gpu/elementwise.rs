//! Operations by element, and the transpose.

use candle_core::{Result, Storage, Tensor, bail};

use super::launch::{Launch, Source, blocks_of};
use super::operand::{Operand, on_gpu};

/// A kernel that computes each element of a result from the elements of `N` operands at one index.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ByElement<const N: usize>(&'static str);

pub(crate) const SUM: ByElement<2> = ByElement("sum");
pub(crate) const RELU: ByElement<1> = ByElement("relu");
pub(crate) const ADD_RELU: ByElement<2> = ByElement("add_relu");
pub(crate) const RELU_GRADIENT: ByElement<2> = ByElement("relu_gradient");
pub(crate) const RELU_GRADIENT_OF_SUM: ByElement<3> = ByElement("relu_gradient_of_sum");

impl<const N: usize> ByElement<N> {
    pub(crate) fn name(self) -> &'static str {
        self.0
    }

    /// Computes the result of contiguous tensors, in vectors if all of them begin and end at a vector's boundary.
    pub(crate) fn of(self, tensors: [&Tensor; N]) -> Result<Storage> {
        let result = on_gpu(tensors, |operands| {
            let [first, ..] = operands.as_slice() else { bail!("{} of nothing", self.0) };
            let (n, gpu) = (first.elements, first.gpu());
            let vector = operands.iter().map(Operand::vector).min().unwrap_or(1);
            let launch = Launch::new(gpu, Source::Elementwise, self.0, first.dtype());
            let launch = launch.by_vectors(vector).count(n / vector);
            let launch = operands.iter().fold(launch, |launch, &of| launch.vectors(of, n));
            // SAFETY: the kernel has a count, N operands and a result, and visits n elements of each.
            unsafe { launch.compute(n, blocks_of(n / vector)) }
        });
        result.map(Storage::Cuda)
    }
}

/// Exchanges rows and columns of a contiguous matrix.
pub(crate) fn transpose(x: &Tensor) -> Result<Storage> {
    let (rows, columns) = x.dims2()?;
    let n = rows * columns;
    let y = on_gpu([x], |[x]| {
        let launch = Launch::new(x.gpu(), Source::Elementwise, "transpose", x.dtype());
        let launch = launch.count(rows).count(columns).memory(x, n);
        // SAFETY: `transpose(rows, columns, x, y)` visits each of the rows · columns elements of both.
        unsafe { launch.compute(n, blocks_of(n)) }
    });
    y.map(Storage::Cuda)
}
