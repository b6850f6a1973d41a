//! LeNet's layers as their definitions: plain loops, forward and backward.
//!
//! The plain layers show the formulas. The fast layers of [`ops`] compute the same functions, and
//! they are tested against the plain layers.
//!
//! Letters, here and in the code: a capital is a size, and the small letter is an index that counts
//! from 0 up to that size.
//!
//! | letters | count |
//! | --- | --- |
//! | B, b | samples of a batch |
//! | C, c | channels of an image |
//! | H, h and W, w | rows and columns of an image |
//! | O, o | output channels of a convolution, outputs of a linear layer |
//! | R, r and S, s | rows and columns of a kernel or a pooling window |
//! | I, i | inputs of a linear layer |
//! | K, k | classes |
//!
//! A gradient is the derivative of the loss with respect to a variable. It has the shape of the
//! variable and is named after it: `dy` is the gradient of a layer's output y. The backward function
//! of a layer takes `dy` and returns the gradients of the layer's inputs.
//!
//! A layer accepts f32 and f64 tensors in CPU memory, and returns an error for all others. The loops
//! always compute in f64. Each result is rounded once, to the type of the layer's input.

#![expect(non_snake_case, reason = "a size has the letter that formulas and shapes have")]

use std::ops::{Index, IndexMut};

use candle_core::{DType, Device, Result, Shape, Tensor, bail};

use ops::backward::record_copy;

// ANCHOR: conv2d
/// Convolves images with O kernels, and adds to each output channel its bias.
///
/// x `[B, C, H, W]`, weight `[O, C, R, S]`, bias `[O]` → `[B, O, H − R + 1, W − S + 1]`. The
/// kernels move one pixel at a time and stay inside the image. As in PyTorch, the kernels are not
/// mirrored. The convolution of mathematics mirrors them. Fails when the shapes do not fit.
pub fn conv2d(x: &Tensor, weight: &Tensor, bias: &Tensor) -> Result<Tensor> {
    let (images, kernels, biases) = (Array::read(x)?, Array::read(weight)?, Array::read(bias)?);
    let ([_, C, H, W], [O, kernel_C, R, S]) = (images.shape, kernels.shape);
    if kernel_C != C || R > H || S > W || biases.shape != [O] {
        bail!("conv2d: {}", misfit(x, weight, bias));
    }
    let y = conv2d_forward(&images, &kernels, &biases).tensor(x.dtype())?;
    // The backward pass calls this closure with the gradient of y.
    let backward = move |dy| conv2d_backward(&images, &kernels, dy);
    record_layer("conv2d", &y, [x, weight, bias], backward)
}

/// `y[b, o, h, w] = bias[o] + Σ over c, r, s of x[b, c, h + r, w + s] · weight[o, c, r, s]`
fn conv2d_forward(x: &Array<4>, weight: &Array<4>, bias: &Array<1>) -> Array<4> {
    let ([B, C, H, W], [O, _, R, S]) = (x.shape, weight.shape);
    let mut y = Array::zeros([B, O, H - R + 1, W - S + 1]);
    for b in 0..B {
        for o in 0..O {
            for h in 0..H - R + 1 {
                for w in 0..W - S + 1 {
                    let mut sum = bias[[o]];
                    for c in 0..C {
                        for r in 0..R {
                            for s in 0..S {
                                sum += x[[b, c, h + r, w + s]] * weight[[o, c, r, s]];
                            }
                        }
                    }
                    y[[b, o, h, w]] = sum;
                }
            }
        }
    }
    y
}

/// Computes the gradients of x, weight and bias from `dy`, the gradient of y.
///
/// The loops are those of the forward function. Each product x · weight of an output adds
/// dy · weight to the gradient of x, and dy · x to the gradient of weight. Each output adds dy to
/// the gradient of its bias.
fn conv2d_backward(x: &Array<4>, weight: &Array<4>, dy: Vec<f64>) -> [Vec<f64>; 3] {
    let ([B, C, H, W], [O, _, R, S]) = (x.shape, weight.shape);
    let dy = Array { shape: [B, O, H - R + 1, W - S + 1], values: dy };
    let (mut dx, mut dweight) = (Array::zeros(x.shape), Array::zeros(weight.shape));
    let mut dbias = Array::zeros([O]);
    for b in 0..B {
        for o in 0..O {
            for h in 0..H - R + 1 {
                for w in 0..W - S + 1 {
                    // From here on, `dy` is one number: the gradient of y[b, o, h, w].
                    let dy = dy[[b, o, h, w]];
                    dbias[[o]] += dy;
                    for c in 0..C {
                        for r in 0..R {
                            for s in 0..S {
                                dx[[b, c, h + r, w + s]] += dy * weight[[o, c, r, s]];
                                dweight[[o, c, r, s]] += dy * x[[b, c, h + r, w + s]];
                            }
                        }
                    }
                }
            }
        }
    }
    [dx.values, dweight.values, dbias.values]
}
// ANCHOR_END: conv2d

// ANCHOR: relu
/// Takes the larger of 0 and x, for each element of x; any shape.
///
/// The derivative at exactly 0 is a choice. As in PyTorch, it is 0. Fails when x is not f32 or f64,
/// or on a GPU.
pub fn relu(x: &Tensor) -> Result<Tensor> {
    let inputs = numbers(x)?;
    let y = inputs.iter().map(|&x| where_positive(x, x)).collect();
    let y = tensor(y, x.shape(), x.dtype())?;
    let backward =
        move |dy: Vec<f64>| [inputs.iter().zip(dy).map(|(&x, dy)| where_positive(x, dy)).collect()];
    record_layer("relu", &y, [x], backward)
}

/// Returns `value` if x is positive, and 0 otherwise. A NaN counts as positive, so it remains in the
/// result.
fn where_positive(x: f64, value: f64) -> f64 {
    if x <= 0.0 { 0.0 } else { value }
}
// ANCHOR_END: relu

// ANCHOR: pool
/// Takes the mean of each window of 2×2 pixels.
///
/// x `[B, C, H, W]` → `[B, C, H / 2, W / 2]`, rounded down. Windows do not overlap. If H or W is
/// odd, the last row or column is in no window. Fails when an image is smaller than a window.
pub fn avg_pool2d(x: &Tensor) -> Result<Tensor> {
    let images = Array::read(x)?;
    let [_, _, H, W] = images.shape;
    if H < 2 || W < 2 {
        bail!("avg_pool2d: a window of 2×2 pixels does not fit images {:?}", x.dims());
    }
    let y = avg_pool2d_forward(&images).tensor(x.dtype())?;
    let backward = move |dy| [avg_pool2d_backward(images.shape, dy)];
    record_layer("avg_pool2d", &y, [x], backward)
}

/// The pixels (r, s) of a window.
const WINDOW: [(usize, usize); 4] = [(0, 0), (0, 1), (1, 0), (1, 1)];

/// `y[b, c, h, w] = Σ over r, s of x[b, c, 2h + r, 2w + s] / 4`
fn avg_pool2d_forward(x: &Array<4>) -> Array<4> {
    let [B, C, H, W] = x.shape;
    let mut y = Array::zeros([B, C, H / 2, W / 2]);
    for b in 0..B {
        for c in 0..C {
            for h in 0..H / 2 {
                for w in 0..W / 2 {
                    for (r, s) in WINDOW {
                        y[[b, c, h, w]] += x[[b, c, 2 * h + r, 2 * w + s]] / 4.0;
                    }
                }
            }
        }
    }
    y
}
// ANCHOR_END: pool

// ANCHOR: pool_backward
/// Computes the gradient of x from `dy`, with the loops of the forward function.
///
/// The gradient of a pixel is a quarter of its window's gradient. A pixel in no window keeps the
/// gradient 0.
fn avg_pool2d_backward([B, C, H, W]: [usize; 4], dy: Vec<f64>) -> Vec<f64> {
    let dy = Array { shape: [B, C, H / 2, W / 2], values: dy };
    let mut dx = Array::zeros([B, C, H, W]);
    for b in 0..B {
        for c in 0..C {
            for h in 0..H / 2 {
                for w in 0..W / 2 {
                    for (r, s) in WINDOW {
                        dx[[b, c, 2 * h + r, 2 * w + s]] += dy[[b, c, h, w]] / 4.0;
                    }
                }
            }
        }
    }
    dx.values
}
// ANCHOR_END: pool_backward

// ANCHOR: linear
/// Multiplies the inputs by a matrix of weights, and adds to each output its bias.
///
/// x `[B, I]`, weight `[I, O]`, bias `[O]` → `[B, O]`. Fails when the shapes do not fit.
pub fn linear(x: &Tensor, weight: &Tensor, bias: &Tensor) -> Result<Tensor> {
    let (rows, weights, biases) = (Array::read(x)?, Array::read(weight)?, Array::read(bias)?);
    let ([_, I], [weight_I, O]) = (rows.shape, weights.shape);
    if weight_I != I || biases.shape != [O] {
        bail!("linear: {}", misfit(x, weight, bias));
    }
    let y = linear_forward(&rows, &weights, &biases).tensor(x.dtype())?;
    let backward = move |dy| linear_backward(&rows, &weights, dy);
    record_layer("linear", &y, [x, weight, bias], backward)
}

/// `y[b, o] = bias[o] + Σ over i of x[b, i] · weight[i, o]`
fn linear_forward(x: &Array<2>, weight: &Array<2>, bias: &Array<1>) -> Array<2> {
    let ([B, I], [_, O]) = (x.shape, weight.shape);
    let mut y = Array::zeros([B, O]);
    for b in 0..B {
        for o in 0..O {
            let mut sum = bias[[o]];
            for i in 0..I {
                sum += x[[b, i]] * weight[[i, o]];
            }
            y[[b, o]] = sum;
        }
    }
    y
}

/// Computes the gradients of x, weight and bias from `dy`, with the rules of the convolution.
fn linear_backward(x: &Array<2>, weight: &Array<2>, dy: Vec<f64>) -> [Vec<f64>; 3] {
    let ([B, I], [_, O]) = (x.shape, weight.shape);
    let dy = Array { shape: [B, O], values: dy };
    let (mut dx, mut dweight) = (Array::zeros(x.shape), Array::zeros(weight.shape));
    let mut dbias = Array::zeros([O]);
    for b in 0..B {
        for o in 0..O {
            // From here on, `dy` is one number: the gradient of y[b, o].
            let dy = dy[[b, o]];
            dbias[[o]] += dy;
            for i in 0..I {
                dx[[b, i]] += dy * weight[[i, o]];
                dweight[[i, o]] += dy * x[[b, i]];
            }
        }
    }
    [dx.values, dweight.values, dbias.values]
}
// ANCHOR_END: linear

// ANCHOR: cross_entropy
/// Computes the cross-entropy of logits with labels, summed over the samples.
///
/// logits z `[B, K]`, labels `[B]` (u32) → a scalar. The loss is the sum and not the mean. The
/// losses of two parts of a batch therefore add up to the loss of the batch, and so do the
/// gradients. Fails when the shapes do not fit, or a label is not below K.
pub fn cross_entropy(logits: &Tensor, labels: &Tensor) -> Result<Tensor> {
    let (z, labels) = (Array::read(logits)?, labels.to_vec1::<u32>()?);
    let [B, K] = z.shape;
    if labels.len() != B {
        bail!("cross_entropy: {} labels do not fit logits {:?}", labels.len(), z.shape);
    }
    if let Some(label) = labels.iter().find(|&&label| label as usize >= K) {
        bail!("cross_entropy: label {label} is not below {K}, the number of classes");
    }
    let loss = tensor(vec![cross_entropy_forward(&z, &labels)], (), logits.dtype())?;
    let backward = move |dloss: Vec<f64>| [cross_entropy_backward(&z, &labels, dloss[0])];
    record_layer("cross_entropy", &loss, [logits], backward)
}

/// `loss = Σ over b of (log Σ over k of exp(z[b, k])) − z[b, label of b]`
fn cross_entropy_forward(z: &Array<2>, labels: &[u32]) -> f64 {
    let mut loss = 0.0;
    for (b, &label) in labels.iter().enumerate() {
        loss += log_sum_exp(z, b) - z[[b, label as usize]];
    }
    loss
}

/// `dz[b, k] = dloss · (softmax(z[b])[k] − (1 if k is the label of b, else 0))`
///
/// `dloss` is the gradient that the backward pass starts from: 1 if this loss is the whole loss.
fn cross_entropy_backward(z: &Array<2>, labels: &[u32], dloss: f64) -> Vec<f64> {
    let [_, K] = z.shape;
    let mut dz = Array::zeros(z.shape);
    for (b, &label) in labels.iter().enumerate() {
        let log_sum = log_sum_exp(z, b);
        for k in 0..K {
            // exp(z − log Σ exp) = exp(z) / Σ exp.
            let softmax = (z[[b, k]] - log_sum).exp();
            let target = if k == label as usize { 1.0 } else { 0.0 };
            dz[[b, k]] = dloss * (softmax - target);
        }
    }
    dz.values
}

/// `log Σ over k of exp(z[b, k])`
///
/// The largest logit is subtracted before the exponential, so no exponential overflows. It is added
/// again after the logarithm, so the result is the same.
fn log_sum_exp(z: &Array<2>, b: usize) -> f64 {
    let [_, K] = z.shape;
    let logits = (0..K).map(|k| z[[b, k]]);
    let largest = logits.clone().fold(f64::NEG_INFINITY, f64::max);
    largest + logits.map(|logit| (logit - largest).exp()).sum::<f64>().ln()
}
// ANCHOR_END: cross_entropy

// The rest of the file connects the loops with candle's tensors and with the backward pass.

// ANCHOR: connection
/// The numbers of a tensor with N axes, in f64. `x[[b, c, h, w]]` is one number.
struct Array<const N: usize> {
    shape: [usize; N],
    /// Row by row: neighbours differ in the last index.
    values: Vec<f64>,
}

impl<const N: usize> Array<N> {
    /// Makes an array of zeros.
    fn zeros(shape: [usize; N]) -> Self {
        Self { shape, values: vec![0.0; shape.iter().product()] }
    }

    /// Copies the numbers of a tensor.
    fn read(tensor: &Tensor) -> Result<Self> {
        match tensor.dims().try_into() {
            Ok(shape) => Ok(Self { shape, values: numbers(tensor)? }),
            Err(_) => bail!("a tensor with {N} axes was expected, got {:?}", tensor.dims()),
        }
    }

    /// Makes a tensor of the numbers, rounded to `dtype`.
    fn tensor(self, dtype: DType) -> Result<Tensor> {
        tensor(self.values, self.shape.as_slice(), dtype)
    }

    /// Returns the position of an index in `values`.
    fn offset(&self, index: [usize; N]) -> usize {
        index.iter().zip(self.shape).fold(0, |offset, (&index, size)| {
            debug_assert!(index < size);
            offset * size + index
        })
    }
}

impl<const N: usize> Index<[usize; N]> for Array<N> {
    type Output = f64;

    fn index(&self, index: [usize; N]) -> &f64 {
        &self.values[self.offset(index)]
    }
}

impl<const N: usize> IndexMut<[usize; N]> for Array<N> {
    fn index_mut(&mut self, index: [usize; N]) -> &mut f64 {
        let offset = self.offset(index);
        &mut self.values[offset]
    }
}

/// Copies the numbers of a tensor, row by row.
fn numbers(tensor: &Tensor) -> Result<Vec<f64>> {
    if !tensor.device().is_cpu() {
        bail!("the plain layers work in CPU memory only: on a GPU, use the fast layers");
    }
    if !matches!(tensor.dtype(), DType::F32 | DType::F64) {
        bail!("the plain layers work on f32 and f64, not on {:?}", tensor.dtype());
    }
    tensor.to_dtype(DType::F64)?.flatten_all()?.to_vec1()
}

/// Makes a tensor of these numbers, rounded to `dtype`.
fn tensor(values: Vec<f64>, shape: impl Into<Shape>, dtype: DType) -> Result<Tensor> {
    Tensor::from_vec(values, shape.into(), &Device::Cpu)?.to_dtype(dtype)
}

fn misfit(x: &Tensor, weight: &Tensor, bias: &Tensor) -> String {
    let (x, weight, bias) = (x.dims(), weight.dims(), bias.dims());
    format!("a weight {weight:?} and a bias {bias:?} do not fit an input {x:?}")
}

/// Returns a layer's output y as a tensor that is recorded on the tape.
///
/// The tape keeps the inputs and `backward`. The backward pass calls `backward` with the gradient of
/// y, and `backward` returns the gradients of the inputs. All numbers are in f64, row by row. Fails
/// when y is not f32 or f64, or on a GPU.
///
/// The engine's `record_copy` makes the node. It copies y: a recorded result must own its memory,
/// and `record_copy` cannot see that y is new. The backward pass calls the closure `|_, dy|` with y
/// and the gradient of y. The loops of this file do not need y.
pub fn record_layer<const N: usize>(
    name: &'static str,
    y: &Tensor,
    inputs: [&Tensor; N],
    backward: impl Fn(Vec<f64>) -> [Vec<f64>; N] + Send + Sync + 'static,
) -> Result<Tensor> {
    let inputs_kept = inputs.map(Tensor::clone);
    record_copy(name, y, inputs, move |_, dy| {
        let mut gradients = [const { None }; N];
        for (n, values) in backward(numbers(dy)?).into_iter().enumerate() {
            let input = &inputs_kept[n];
            gradients[n] = Some(tensor(values, input.shape(), input.dtype())?);
        }
        Ok(gradients)
    })
}
// ANCHOR_END: connection
