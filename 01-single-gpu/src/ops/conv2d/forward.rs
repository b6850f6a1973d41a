//! The output of a convolution, image by image.

use rayon::prelude::*;

use super::geometry::Geometry;
use crate::ops::Element;
use crate::ops::gemm::{Into, Matrix, gemm};

impl Geometry {
    /// `x` (batch images), `weight` (out_channels × patch), `bias` → output images.
    ///
    /// Images are independent, so they are shared out over the device's threads, and the bits do not
    /// depend on how.
    pub(super) fn forward<T: Element>(&self, x: &[T], weight: &[T], bias: &[T]) -> Vec<T> {
        let weight = Matrix::new(weight, self.out_channels, self.patch());
        let mut y = vec![T::zero(); self.batch * self.out_image()];
        y.par_chunks_mut(self.out_image()).zip(x.par_chunks(self.image())).for_each_init(
            || vec![T::zero(); self.patch() * self.pixels()],
            |unfolded, (y, image)| {
                self.unfold(image, unfolded);
                for (plane, &bias) in y.chunks_mut(self.pixels()).zip(bias) {
                    plane.fill(bias);
                }
                let patches = Matrix::new(unfolded, self.patch(), self.pixels());
                gemm(weight, patches, y, Into::Accumulate);
            },
        );
        y
    }
}
