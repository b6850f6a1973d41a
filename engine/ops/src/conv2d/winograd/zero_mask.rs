//! The zero mask: where a convolution is exactly its bias.
//!
//! A kernel that reads a patch of zeros, such as the black around a garment, gives 0. Winograd's outputs are differences of
//! larger numbers, which cancel except for a remainder: ±1e-18 in f64, ±1e-9 in f32. The remainder matters before a relu,
//! whose slope is 0 at 0 and 1 above. A network that begins with biases of zero would pass the gradients of half of all
//! black pixels, and the first gradient of the bias would be several percent off. The zero mask makes these outputs zero:
//!
//! ```text
//! any channel of x ≠ 0       a 3×3 kernel sees      outputs
//! · · · · · · ·              · · · · ·              0 0 0 0 0
//! · · · · · · ·              · ■ ■ ■ ·              0 y y y 0
//! · · · ■ · · ·      ──►     · ■ ■ ■ ·      ──►     0 y y y 0
//! · · · · · · ·              · ■ ■ ■ ·              0 y y y 0
//! · · · · · · ·
//! ```
//!
//! Zeros times a weight that is NaN or infinite are NaN. A plane with such a weight is not finite before the mask, and is
//! computed again: see [`finite`](super::finite). The cost is a pass over the input, until no pixel is zero in all channels.

use rayon::prelude::*;

use super::Winograd;
use crate::Element;
use crate::kernels::simd::{LANES, Simd, vectorised};

impl<const M: usize, const R: usize, const A: usize> Winograd<'_, M, R, A> {
    /// Returns the zero mask of each block of the images `x`: the images that keep each output. `None` keeps all.
    pub(super) fn zero_masks<T: Element>(&self, x: &[T]) -> Vec<Option<Vec<Simd<bool>>>> {
        let g = self.geometry;
        let mask_of_block = |images: &[T]| {
            let mut mask = None;
            for (lane, image) in images.chunks_exact(g.image()).enumerate() {
                let Some(zeros) = self.zero_outputs(image) else { continue };
                let mask = mask.get_or_insert_with(|| vec![[true; LANES]; g.pixels()]);
                for (mask, zero) in mask.iter_mut().zip(zeros) {
                    mask[lane] = !zero;
                }
            }
            mask
        };
        x.par_chunks(LANES * g.image()).map(mask_of_block).collect()
    }

    /// Returns which outputs of one image have patches of zeros; `None` if no output has.
    fn zero_outputs<T: Element>(&self, image: &[T]) -> Option<Vec<bool>> {
        let g = self.geometry;
        let zeros = zeros_in_all_channels(image, g.height * g.width);
        // The rows or columns of the image itself, without padding, that a kernel reads.
        let seen = |first: usize, size: usize| {
            let inside = |place: usize| place.saturating_sub(g.padding).min(size);
            inside(first)..inside(first + R)
        };
        let outputs = (0..g.pixels()).map(|output| {
            let columns = seen(output % g.out_w, g.width);
            seen(output / g.out_w, g.height)
                .all(|row| zeros[row * g.width..][columns.clone()].iter().all(|&zero| zero))
        });
        let outputs: Vec<bool> = outputs.collect();
        outputs.contains(&true).then_some(outputs)
    }
}

/// Returns which of an image's pixels are zero in every channel, of `plane` elements each.
fn zeros_in_all_channels<T: Element>(image: &[T], plane: usize) -> Vec<bool> {
    let mut zeros = vec![true; plane];
    for channel in image.chunks_exact(plane) {
        vectorised(
            #[inline(always)]
            || {
                for (zero, &pixel) in zeros.iter_mut().zip(channel) {
                    *zero &= pixel == T::zero();
                }
            },
        );
        if !zeros.contains(&true) {
            break;
        }
    }
    zeros
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::conv2d::Algorithm;
    use crate::conv2d::results::Epilogue;
    use crate::conv2d::tests::formula::{Operands, geometry};

    /// Makes images that are zero except for a few rows and columns of two channels. These differ from image to image.
    fn mostly_black(sizes: [usize; 9]) -> Operands {
        let g = geometry(sizes);
        let mut operands = Operands::new(&g);
        for (place, pixel) in operands.x.iter_mut().enumerate() {
            let (column, row) = (place % g.width, place / g.width % g.height);
            let (channel, image) = (place / g.width / g.height % g.in_channels, place / g.image());
            let lit = |place: usize, size: usize| (image..image + 3).contains(&(place % size));
            if !(lit(row, g.height) && lit(column, g.width) && channel % 4 == 1) {
                *pixel = 0.0;
            }
        }
        operands
    }

    #[test]
    fn what_sees_nothing_but_zeros_is_zero() {
        // batch, in, height, width, out, kernel height, kernel width, stride, padding: partial
        // blocks and tiles, and a padding beyond the kernel.
        for (algorithm, sizes) in [
            (Algorithm::Winograd2, [17, 8, 9, 7, 3, 3, 3, 1, 1]),
            (Algorithm::Winograd4, [18, 9, 14, 11, 2, 3, 3, 1, 0]),
            (Algorithm::Winograd4, [2, 8, 5, 6, 2, 3, 3, 1, 5]),
            (Algorithm::Winograd3, [5, 20, 13, 13, 4, 5, 5, 1, 0]),
        ] {
            let g = geometry(sizes);
            let operands = mostly_black(sizes);
            let truth = operands.by_the_formula(&g).y;
            let found = operands.by::<f64>(algorithm, &g, (&Epilogue::Plain, None), false).y;
            let zeros = truth.iter().filter(|&&y| y == 0.0).count();
            assert!((truth.len() / 8..truth.len()).contains(&zeros), "{sizes:?}: {zeros} zeros");
            for (place, (ours, truth)) in found.iter().zip(&truth).enumerate() {
                assert_eq!(*ours == 0.0, *truth == 0.0, "{sizes:?}, element {place}: {ours:e}");
            }
        }
    }

    #[test]
    fn an_image_without_zeros_has_no_masked_outputs() {
        let g = geometry([2, 8, 6, 5, 1, 3, 3, 1, 1]);
        let winograd = Winograd::<4, 3, 6>::new(&g);
        assert!(winograd.zero_masks(&Operands::new(&g).x)[0].is_none());
        assert!(winograd.zero_masks(&vec![f64::NAN; 2 * g.image()])[0].is_none());
        assert!(winograd.zero_masks(&vec![0.0; 2 * g.image()])[0].is_some());
    }
}
