//! Operations by element, and the transpose.

use candle_core::{Result, Storage, Tensor};

use super::VECTOR;
use super::kernel::Source;
use super::launch::{Launch, blocks_of};

/// A kernel that computes each element of a result from the elements of `N` operands at one index.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ByElement<const N: usize>(pub(crate) &'static str);

pub(crate) const SUM: ByElement<2> = ByElement("sum");
pub(crate) const RELU: ByElement<1> = ByElement("relu");
pub(crate) const ADD_RELU: ByElement<2> = ByElement("add_relu");
pub(crate) const RELU_GRADIENT: ByElement<2> = ByElement("relu_gradient");
pub(crate) const RELU_GRADIENT_OF_SUM: ByElement<3> = ByElement("relu_gradient_of_sum");

impl<const N: usize> ByElement<N> {
    /// Computes the result of contiguous tensors, in vectors if all of them begin and end at a vector's boundary.
    pub(crate) fn of(self, tensors: [&Tensor; N]) -> Result<Storage> {
        let n = tensors[0].elem_count();
        let begins = tensors.iter().map(|tensor| tensor.layout().start_offset());
        let aligned = begins.chain([n]).all(|count| count.is_multiple_of(VECTOR));
        let vector = if aligned { VECTOR } else { 1 };
        let launch = Launch::new(Source::Elementwise, self.0, tensors[0]).by_vectors(vector);
        let launch = launch.count(n / vector).vectors(tensors, n);
        // SAFETY: the kernel has a count, N operands and a result, and visits n elements of each.
        unsafe { launch.compute(n, blocks_of(n / vector)) }
    }
}

/// Exchanges rows and columns of a contiguous matrix.
pub(crate) fn transpose(x: &Tensor) -> Result<Storage> {
    let ((rows, columns), n) = (x.dims2()?, x.elem_count());
    let launch = Launch::new(Source::Elementwise, "transpose", x);
    let launch = launch.count(rows).count(columns).memory([x], n);
    // SAFETY: `transpose(rows, columns, x, y)` visits each of the rows · columns elements of both.
    unsafe { launch.compute(n, blocks_of(n)) }
}
