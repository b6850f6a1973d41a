//! The convolution by its definition: the reference for every algorithm.

use candle_core::WithDType;

use crate::Element;
use crate::backward::Wanted;
use crate::conv2d::Algorithm;
use crate::conv2d::geometry::Geometry;
use crate::conv2d::results::{Epilogue, Gradients, Output, Upstream};
use crate::tests::agreement::noise;

/// Makes a geometry from nine sizes: batch, in, height, width, out, kernel height, kernel width, stride, padding.
pub(crate) fn geometry(sizes: [usize; 9]) -> Geometry {
    let [batch, in_channels, height, width, out_channels, kernel_h, kernel_w, stride, padding] =
        sizes;
    let out = |size: usize, kernel: usize| (size + 2 * padding - kernel) / stride + 1;
    Geometry {
        batch,
        in_channels,
        height,
        width,
        out_channels,
        kernel_h,
        kernel_w,
        stride,
        padding,
        out_h: out(height, kernel_h),
        out_w: out(width, kernel_w),
    }
}

/// Returns noise as numbers.
pub(crate) fn values(name: &str, len: usize) -> Vec<f64> {
    noise(name, &[len]).as_detached_tensor().to_vec1().unwrap()
}

#[derive(Clone, Debug)]
pub(crate) struct Operands {
    pub(crate) x: Vec<f64>,
    pub(crate) weight: Vec<f64>,
    pub(crate) grad: Vec<f64>,
}

pub(crate) struct Results {
    pub(crate) y: Vec<f64>,
    pub(crate) dx: Vec<f64>,
    pub(crate) dweight: Vec<f64>,
    pub(crate) dbias: Vec<f64>,
}

impl Results {
    /// Compares the results with the truth, each by its name. An algorithm may leave out the input gradient.
    pub(crate) fn compare(&self, truth: &Self, compare: impl Fn(&str, &[f64], &[f64])) {
        compare("output", &self.y, &truth.y);
        compare("weight gradient", &self.dweight, &truth.dweight);
        compare("bias gradient", &self.dbias, &truth.dbias);
        if !self.dx.is_empty() {
            compare("input gradient", &self.dx, &truth.dx);
        }
    }
}

impl Operands {
    pub(crate) fn new(g: &Geometry) -> Self {
        Self {
            x: values("x", g.batch * g.image()),
            weight: values("weight", g.out_channels * g.patch()),
            grad: values("grad", g.batch * g.out_image()),
        }
    }

    /// Makes operands that are rounded to f32.
    pub(crate) fn in_f32(g: &Geometry) -> Self {
        let Self { x, weight, grad } = Self::new(g);
        let round = |values: Vec<f64>| values.into_iter().map(|v| f64::from(v as f32)).collect();
        Self { x: round(x), weight: round(weight), grad: round(grad) }
    }

    /// Computes the results of an algorithm in the type `T`; `dx` stays empty if `want_dx` is false.
    pub(in crate::conv2d) fn by<T: Element>(
        &self,
        algorithm: Algorithm,
        geometry: &Geometry,
        (epilogue, bias): (&Epilogue, Option<&[f64]>),
        want_dx: bool,
    ) -> Results {
        let narrow = |values: &[f64]| -> Vec<T> {
            values.iter().map(|&value| <T as WithDType>::from_f64(value)).collect()
        };
        let [x, weight, grad] = [&self.x, &self.weight, &self.grad].map(|values| narrow(values));
        let bias = bias.map(narrow);
        let mut output = Output::new(geometry, epilogue, bias.as_deref());
        algorithm.forward(&x, &weight, &mut output);
        let Output { y, relu_masks, .. } = output;
        let upstream = Upstream { geometry, epilogue, grad: &grad, relu_masks: &relu_masks };
        let wanted = Wanted { input: want_dx, weights: true };
        let mut gradients = Gradients::new(geometry, wanted, true);
        algorithm.backward(&x, &weight, &upstream, &mut gradients);
        let wide =
            |values: Vec<T>| -> Vec<f64> { values.into_iter().map(WithDType::to_f64).collect() };
        Results {
            y: wide(y),
            dx: wide(gradients.x.unwrap_or_default()),
            dweight: wide(gradients.weight.unwrap()),
            dbias: wide(gradients.bias.into_iter().flatten().collect()),
        }
    }

    pub(crate) fn by_the_formula(&self, g: &Geometry) -> Results {
        let mut results = Results {
            y: vec![0.0; self.grad.len()],
            dx: vec![0.0; self.x.len()],
            dweight: vec![0.0; self.weight.len()],
            dbias: vec![0.0; g.out_channels],
        };
        for (place, &grad) in self.grad.iter().enumerate() {
            let (col, row) = (place % g.out_w, place / g.out_w % g.out_h);
            let (output, image) = (place / g.pixels() % g.out_channels, place / g.out_image());
            results.dbias[output] += grad;
            for tap in 0..g.patch() {
                let (kernel_col, rest) = (tap % g.kernel_w, tap / g.kernel_w);
                let (kernel_row, channel) = (rest % g.kernel_h, rest / g.kernel_h);
                let inside = |out: usize, kernel: usize, size: usize| {
                    (out * g.stride + kernel).checked_sub(g.padding).filter(|&place| place < size)
                };
                let (row, col) =
                    (inside(row, kernel_row, g.height), inside(col, kernel_col, g.width));
                let plane = image * g.in_channels + channel;
                let pixel = row.zip(col).map(|(row, col)| (plane * g.height + row) * g.width + col);
                // The padding consists of zeros, and zero times a NaN is a NaN.
                let x = pixel.map_or(0.0, |pixel| self.x[pixel]);
                let weight = output * g.patch() + tap;
                results.y[place] += self.weight[weight] * x;
                results.dweight[weight] += x * grad;
                if let Some(pixel) = pixel {
                    results.dx[pixel] += self.weight[weight] * grad;
                }
            }
        }
        results
    }
}
