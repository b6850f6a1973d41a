//! NaN and infinities in any operand: each operation has them where its plain definition has them,
//! and numbers elsewhere. The convolutions have tests of their own.
//!
//! Where PyTorch differs from the arithmetic of a formula, the definition is PyTorch's: the relu of a NaN is a NaN and
//! passes its gradient, a NaN is the largest logit, and a momentum or a decay of 0 has no term.

use candle_core::{DType, Device, Result, Tensor, Var};
use itertools::{Itertools as _, iproduct, izip};
use proptest::prelude::*;
use proptest::sample::{Index, select};

use crate::backward::backward_from;
use crate::batch_norm::{OutputGradient, Statistics, average_all};
use crate::kernels::functions::Functions as _;
use crate::kernels::simd::LANES;
use crate::tests::agreement::{NOT_FINITE, assert_same_kind, device, has, numbers, variable};
use crate::update::{Adam, adamw, momentum_step, overwrite_rounded, sgd_step_all};
use crate::{
    add, add_relu, avg_pool2d, batch_norm, batch_norm_with, cast, cross_entropy, embedding_of_part,
    flatten, gelu, gelu_tanh, global_avg_pool, layer_norm, linear, linear_relu, loss_and_correct,
    relu, softmax, sum, transpose,
};

const EPSILON: f64 = 1e-3;

/// Types, each with the largest difference from the definition in f64, relative to the largest finite entry of a result.
const WIDE: &[(DType, f64)] = &[(DType::F32, 1e-4), (DType::F64, 1e-10)];
const ALL: &[(DType, f64)] = &[WIDE[0], WIDE[1], (DType::BF16, 1.0 / 64.0)];
const TO_BF16: &[(DType, f64)] = &[(DType::F32, 1.0 / 64.0), (DType::F64, 1.0 / 64.0)];

type Ours<'a> = dyn Fn(&[Tensor]) -> Result<Vec<Tensor>> + 'a;
type Plain<'a> = dyn Fn(&[Vec<f64>]) -> Vec<Vec<f64>> + 'a;

/// An operation, forward and backward, and its definition. Both map operands to results. The last
/// operand of a differentiable operation is the gradient of its output.
struct Operation<'a> {
    name: &'static str,
    types: &'static [(DType, f64)],
    shapes: Vec<Vec<usize>>,
    /// The operand that is a variance.
    variance: Option<usize>,
    ours: Box<Ours<'a>>,
    plain: Box<Plain<'a>>,
}

impl<'a> Operation<'a> {
    fn new(
        name: &'static str,
        types: &'static [(DType, f64)],
        shapes: &[&[usize]],
        ours: impl Fn(&[Tensor]) -> Result<Vec<Tensor>> + 'a,
        plain: impl Fn(&[Vec<f64>]) -> Vec<Vec<f64>> + 'a,
    ) -> Self {
        let shapes = shapes.iter().map(|shape| shape.to_vec()).collect();
        Self { name, types, shapes, variance: None, ours: Box::new(ours), plain: Box::new(plain) }
    }

    /// Returns finite operands, in numbers that every type of the operation represents.
    ///
    /// For BF16 they are multiples of 1/4. Products are then exact up to 16, and beyond 16 no bias
    /// changes the sign: rounding puts nothing on the other side of a relu's kink.
    fn operands(&self) -> Vec<Vec<f64>> {
        let in_quarters = self.types.contains(&ALL[2]);
        let operand = |(nth, shape): (usize, &Vec<usize>)| {
            let values = numbers(&variable(&format!("operand {nth}"), shape, DType::F32));
            let rounded =
                |value: f64| if in_quarters { (value * 4.0).round() / 4.0 } else { value };
            let value = |value: f64| if self.variance == Some(nth) { value.abs() } else { value };
            values.into_iter().map(rounded).map(value).collect()
        };
        self.shapes.iter().enumerate().map(operand).collect()
    }

    /// Compares the operation with its definition.
    fn assert_as_defined(&self, operands: &[Vec<f64>], device: &Device, types: &[DType]) {
        let truth = (self.plain)(operands);
        for &(dtype, bound) in self.types.iter().filter(|(dtype, _)| types.contains(dtype)) {
            let tensors = operands.iter().zip(&self.shapes).map(|(values, shape)| {
                let tensor = Tensor::from_slice(values, shape.as_slice(), &Device::Cpu)?;
                tensor.to_dtype(dtype)?.to_device(device)
            });
            let found = (self.ours)(&tensors.collect::<Result<Vec<_>>>().unwrap()).unwrap();
            for (nth, (found, truth)) in found.iter().zip_eq(&truth).enumerate() {
                let name = format!("{} {:?} in {dtype:?}, result {nth}", self.name, self.shapes);
                assert_same_kind(&name, &numbers(found), truth, bound);
            }
        }
    }
}

/// Computes the output and the gradients of the first `variables` operands. The last operand is the gradient of the output.
fn differentiated(
    variables: usize,
    operands: &[Tensor],
    operation: impl Fn(&[&Tensor]) -> Result<Tensor>,
) -> Result<Vec<Tensor>> {
    let (dy, inputs) = operands.split_last().unwrap();
    let (variables, constants) = inputs.split_at(variables);
    let variables: Vec<Var> = variables.iter().map(Var::from_tensor).collect::<Result<_>>()?;
    let y = operation(&variables.iter().map(Var::as_tensor).chain(constants).collect_vec())?;
    let gradients = backward_from(&y, &dy.to_dtype(y.dtype())?)?;
    let gradients = variables.iter().map(|of| gradients.get(of).unwrap().clone());
    Ok([y.clone()].into_iter().chain(gradients).collect())
}

/// Returns `value` where the relu, if there is one, of z lets a value pass.
fn passed(with_relu: bool, z: f64, value: f64) -> f64 {
    if with_relu && z <= 0.0 { 0.0 } else { value }
}

fn map<const N: usize>(operands: [&[f64]; N], of: impl Fn([f64; N]) -> f64) -> Vec<f64> {
    (0..operands[0].len()).map(|place| of(operands.map(|operand| operand[place]))).collect()
}

/// The sizes of images, of windows, and the numbers that are not finite: the index of an operand,
/// the index of a number, and its value.
#[derive(Clone, Debug)]
struct Case {
    batch: usize,
    channels: usize,
    height: usize,
    width: usize,
    kernel: usize,
    stride: usize,
    momentum: f64,
    decay: f64,
    specials: Vec<(Index, Index, f64)>,
}

impl Case {
    fn new(
        (batch, channels, height, width): (usize, usize, usize, usize),
        (kernel, stride): (usize, usize),
        (momentum, decay): (f64, f64),
        specials: Vec<(Index, Index, f64)>,
    ) -> Self {
        Self { batch, channels, height, width, kernel, stride, momentum, decay, specials }
    }

    fn assert_as_defined(&self) {
        self.assert_with(|operands| {
            for (nth, place, value) in &self.specials {
                let operand = nth.index(operands.len());
                let place = place.index(operands[operand].len());
                operands[operand][place] = *value;
            }
        });
    }

    /// Compares all operations with their definitions after a change of their operands.
    fn assert_with(&self, change: impl Fn(&mut [Vec<f64>])) {
        let types = ALL.iter().map(|&(dtype, _)| dtype).filter(|&dtype| has(dtype)).collect_vec();
        let operations =
            [self.elementwise(), self.rows(), self.pools(), self.products(), self.updates()];
        for operation in operations.into_iter().flatten().chain(self.batch_norms()) {
            if operation.types[0] == TO_BF16[0] && !types.contains(&DType::BF16) {
                continue;
            }
            let mut operands = operation.operands();
            change(&mut operands);
            operation.assert_as_defined(&operands, &device(), &types);
        }
    }

    fn elementwise(&self) -> Vec<Operation<'_>> {
        let row = self.channels * self.height * self.width;
        let (image, matrix) =
            ([self.batch, self.channels, self.height, self.width], [self.batch, row]);
        type OfOne = fn(&Tensor) -> Result<Tensor>;
        type Formula = fn(&[Vec<f64>]) -> Vec<Vec<f64>>;
        let rectified: Formula = |t| {
            let y = map([&t[0]], |[x]| passed(true, x, x));
            vec![y, map([&t[0], &t[1]], |[x, dy]| passed(true, x, dy))]
        };
        let same: Formula = <[_]>::to_vec;
        let exact: Formula = |t| {
            let density = (2.0 * std::f64::consts::PI).sqrt().recip();
            let y = map([&t[0]], |[x]| x * f64::below(x));
            let slope = |x: f64| f64::below(x) + x * (-x * x / 2.0).exp() * density;
            vec![y, map([&t[0], &t[1]], |[x, dy]| dy * slope(x))]
        };
        let by_tanh: Formula = |t| {
            let factor = (2.0 / std::f64::consts::PI).sqrt();
            let tanh = |x: f64| (factor * (x + 0.044_715 * x * x * x)).tanh();
            let y = map([&t[0]], |[x]| x * (1.0 + tanh(x)) / 2.0);
            let inner = |x: f64| factor * (1.0 + 3.0 * 0.044_715 * x * x);
            let rising = |x: f64| x * (1.0 - tanh(x) * tanh(x)) / 2.0 * inner(x);
            let slope = |x: f64| (1.0 + tanh(x)) / 2.0 + rising(x);
            vec![y, map([&t[0], &t[1]], |[x, dy]| dy * slope(x))]
        };
        let of_one: [(_, _, &[usize], OfOne, _); 6] = [
            ("gelu", ALL, &matrix, gelu, exact),
            ("gelu_tanh", ALL, &matrix, gelu_tanh, by_tanh),
            ("relu", ALL, &matrix, relu, rectified),
            ("flatten", ALL, &image, flatten, same),
            ("transpose, twice", ALL, &matrix, |x| transpose(&transpose(x)?), same),
            ("cast", TO_BF16, &matrix, |x| cast(x, DType::BF16), same),
        ];
        let of_one = of_one.map(|(name, types, shape, operation, plain)| {
            let ours = move |t: &[Tensor]| differentiated(1, t, |t| operation(t[0]));
            Operation::new(name, types, &[shape, &matrix], ours, plain)
        });
        type OfTwo = fn(&Tensor, &Tensor) -> Result<Tensor>;
        let of_two: [(_, _, OfTwo); 2] = [("add", false, add), ("add_relu", true, add_relu)];
        // The second tensor is as large as the first, or a row that is repeated.
        let of_two = of_two.into_iter().cartesian_product([self.batch, 1]);
        let added = of_two.map(|((name, with_relu, operation), rows)| {
            let ours = move |t: &[Tensor]| differentiated(2, t, |t| operation(t[0], t[1]));
            let y: &[usize] = if rows == 1 { &[row] } else { &matrix };
            Operation::new(name, ALL, &[&matrix, y, &matrix], ours, move |t| {
                let (mut z, mut dx, mut dy) = (vec![], vec![], vec![0.0; t[1].len()]);
                for (place, (x, grad)) in t[0].iter().zip(&t[2]).enumerate() {
                    let other = place % t[1].len();
                    let sum = x + t[1][other];
                    z.push(passed(with_relu, sum, sum));
                    dx.push(passed(with_relu, sum, *grad));
                    dy[other] += passed(with_relu, sum, *grad);
                }
                vec![z, dx, dy]
            })
        });
        let sum = |t: &[Tensor]| Ok(vec![sum(&t[0], &t[1])?]);
        let formula: Formula = |t| vec![map([&t[0], &t[1]], |[x, y]| x + y)];
        let summed = Operation::new("sum", ALL, &[&matrix[..]; 2], sum, formula);
        of_one.into_iter().chain(added).chain([summed]).collect()
    }

    fn rows(&self) -> Vec<Operation<'_>> {
        let row = self.channels * self.height * self.width;
        let matrix = [self.batch, row];
        let softmax = Operation::new(
            "softmax",
            ALL,
            &[&matrix, &matrix],
            |t| differentiated(1, t, |t| softmax(t[0])),
            move |t| {
                let (mut results, rows) = (vec![vec![]; 2], t[0].chunks(row).zip(t[1].chunks(row)));
                for (x, dy) in rows {
                    let largest = x.iter().copied().fold(f64::NEG_INFINITY, f64::max);
                    let sum: f64 = x.iter().map(|x| (x - largest).exp()).sum();
                    let y = map([x], |[x]| (x - largest).exp() / sum);
                    let product: f64 = map([&y, dy], |[y, dy]| y * dy).iter().sum();
                    results[1].extend(map([&y, dy], |[y, dy]| y * (dy - product)));
                    results[0].extend(y);
                }
                results
            },
        );
        let normalised = Operation::new(
            "layer_norm",
            ALL,
            &[&matrix, &[row], &[row], &matrix],
            |t| differentiated(3, t, |t| layer_norm(t[0], t[1], t[2], EPSILON)),
            move |t| {
                let mut results = vec![vec![], vec![], vec![0.0; row], vec![0.0; row]];
                for (x, dy) in t[0].chunks(row).zip(t[3].chunks(row)) {
                    let norm = Norm::new(x, [1.0, 0.0], moments(x));
                    let (x, g) = (norm.normalised(), map([dy, &t[1]], |[dy, weight]| dy * weight));
                    results[0]
                        .extend(map([&x, &t[1], &t[2]], |[x, weight, bias]| x * weight + bias));
                    results[1].extend(norm.dx(&g, norm.sums(&g)));
                    for place in 0..row {
                        results[2][place] += dy[place] * x[place];
                        results[3][place] += dy[place];
                    }
                }
                results
            },
        );
        vec![softmax, normalised]
    }

    fn pools(&self) -> Vec<Operation<'_>> {
        let &Self { batch, channels, height, width, kernel, stride, .. } = self;
        let kernel = kernel.min(height).min(width);
        let (rows, columns) = ((height - kernel) / stride + 1, (width - kernel) / stride + 1);
        let image = [batch, channels, height, width];
        vec![
            Operation::new(
                "avg_pool2d",
                ALL,
                &[&image, &[batch, channels, rows, columns]],
                move |t| differentiated(1, t, |t| avg_pool2d(t[0], kernel, stride)),
                move |t| {
                    let (mut y, mut dx) = (vec![0.0; t[1].len()], vec![0.0; t[0].len()]);
                    for (out, y) in y.iter_mut().enumerate() {
                        let (column, row) = (out % columns, out / columns % rows);
                        for (i, j) in (0..kernel).cartesian_product(0..kernel) {
                            let row = out / columns / rows * height + row * stride + i;
                            let place = row * width + column * stride + j;
                            *y += t[0][place] / (kernel * kernel) as f64;
                            dx[place] += t[1][out] / (kernel * kernel) as f64;
                        }
                    }
                    vec![y, dx]
                },
            ),
            Operation::new(
                "global_avg_pool",
                ALL,
                &[&image, &[batch, channels]],
                |t| differentiated(1, t, |t| global_avg_pool(t[0])),
                move |t| {
                    let pixels = height * width;
                    let means = t[0].chunks(pixels).map(|x| x.iter().sum::<f64>() / pixels as f64);
                    let dx = t[1].iter().flat_map(|dy| vec![dy / pixels as f64; pixels]);
                    vec![means.collect(), dx.collect()]
                },
            ),
        ]
    }

    fn products(&self) -> Vec<Operation<'_>> {
        let &Self { batch, channels, height, width, .. } = self;
        let (inputs, outputs) = (channels * height * width, channels * width + 1);
        let mut all = Vec::new();
        type Linear = fn(&Tensor, &Tensor, &Tensor) -> Result<Tensor>;
        let layers: [(_, _, Linear); 2] =
            [("linear", false, linear), ("linear_relu", true, linear_relu)];
        for (name, with_relu, operation) in layers {
            all.push(Operation::new(
                name,
                ALL,
                &[&[batch, inputs], &[inputs, outputs], &[outputs], &[batch, outputs]],
                move |t| differentiated(3, t, |t| operation(t[0], t[1], t[2])),
                move |t| {
                    let mut y = vec![0.0; batch * outputs];
                    let mut gradients = t[..3].iter().map(|of| vec![0.0; of.len()]).collect_vec();
                    for (b, o) in (0..batch).cartesian_product(0..outputs) {
                        let terms =
                            (0..inputs).map(|i| t[0][b * inputs + i] * t[1][i * outputs + o]);
                        let z = t[2][o] + terms.sum::<f64>();
                        y[b * outputs + o] = passed(with_relu, z, z);
                        let dz = passed(with_relu, z, t[3][b * outputs + o]);
                        gradients[2][o] += dz;
                        for i in 0..inputs {
                            gradients[0][b * inputs + i] += dz * t[1][i * outputs + o];
                            gradients[1][i * outputs + o] += dz * t[0][b * inputs + i];
                        }
                    }
                    gradients.insert(0, y);
                    gradients
                },
            ));
        }
        // A row of few classes, and a row that begins with whole vectors.
        for classes in [width + 1, 2 * LANES + width] {
            let labels = (0..batch).map(|row| (row * 7 + 3) % classes).collect_vec();
            // The labels of the CPU's and of any other device's tensors, and those of the two definitions.
            let there = move |device: &Device| {
                Tensor::from_iter((0..batch).map(|row| ((row * 7 + 3) % classes) as u32), device)
            };
            let of_count = labels.clone();
            all.push(Operation::new(
                "cross_entropy",
                WIDE,
                &[&[batch, classes], &[]],
                move |t| differentiated(1, t, |t| cross_entropy(t[0], &there(t[0].device())?)),
                move |t| {
                    let (mut loss, mut gradient) = (0.0, Vec::new());
                    for (row, &label) in t[0].chunks(classes).zip(&labels) {
                        let largest = row.iter().copied().fold(f64::NEG_INFINITY, f64::max);
                        let sum: f64 = row.iter().map(|z| (z - largest).exp()).sum();
                        loss += sum.ln() - (row[label] - largest);
                        gradient.extend(row.iter().enumerate().map(|(class, z)| {
                            let target = if class == label { 1.0 } else { 0.0 };
                            t[1][0] * ((z - largest).exp() / sum - target)
                        }));
                    }
                    vec![vec![loss], gradient]
                },
            ));
            all.push(Operation::new(
                "loss_and_correct",
                ALL,
                &[&[], &[batch, classes]],
                move |t| Ok(vec![loss_and_correct(&t[0], &t[1], &there(t[1].device())?)?]),
                move |t| {
                    let answers = t[1].chunks(classes).map(|row| {
                        let nan = row.iter().position(|z| z.is_nan());
                        let largest = row.iter().copied().fold(f64::NEG_INFINITY, f64::max);
                        nan.or_else(|| row.iter().position(|&z| z == largest)).unwrap()
                    });
                    let correct = answers.zip(&of_count).filter(|(answer, label)| answer == *label);
                    vec![vec![t[0][0], correct.count() as f64]]
                },
            ));
        }
        // The table has the rows 1.. of a vocabulary with one row more at either end.
        let (rows, count) = (width, batch * height);
        let token = move |place: usize| (place * 7 + 3) % (rows + 2);
        all.push(Operation::new(
            "embedding_of_part",
            ALL,
            &[&[rows, channels], &[count, channels]],
            move |t| {
                let tokens = (0..count).map(|place| token(place) as u32);
                let tokens = Tensor::from_iter(tokens, t[0].device())?;
                let lookup =
                    |t: &[&Tensor]| embedding_of_part(&tokens, t[0], 1..rows + 1, rows + 2);
                differentiated(1, t, lookup)
            },
            move |t| {
                let (mut y, mut dtable) = (vec![0.0; t[1].len()], vec![0.0; t[0].len()]);
                let mine = (0..count).filter(|&place| (1..=rows).contains(&token(place)));
                for (place, feature) in mine.cartesian_product(0..channels) {
                    let (row, place) = (token(place) - 1, place * channels + feature);
                    y[place] = t[0][row * channels + feature];
                    dtable[row * channels + feature] += t[1][place];
                }
                vec![y, dtable]
            },
        ));
        all
    }

    fn updates(&self) -> Vec<Operation<'_>> {
        let &Self { batch, channels, height, width, momentum, decay, .. } = self;
        let shape: &[usize] = &[batch, channels, height, width];
        let copy = |of: &Tensor| Var::from_tensor(of);
        let mut adam = Operation::new(
            "adamw",
            WIDE,
            &[shape; 4],
            move |t| {
                let (w, m, v) = (copy(&t[0])?, copy(&t[1])?, copy(&t[2])?);
                let (betas, epsilon, steps) = ([momentum, 0.5], 1e-3, 2.0);
                let adam = Adam { share: 0.25, rate: 0.1, betas, epsilon, decay, steps };
                adamw([&w, &m, &v], &t[3], adam)?;
                Ok([w, m, v].iter().map(Var::as_detached_tensor).collect())
            },
            move |t| {
                let m = map([&t[1], &t[3]], |[m, g]| momentum * m + (1.0 - momentum) * 0.25 * g);
                let v = map([&t[2], &t[3]], |[v, g]| 0.5 * v + 0.5 * 0.25 * 0.25 * g * g);
                let w = map([&t[0], &m, &v], |[w, m, v]| {
                    let direction = m / (1.0 - momentum * momentum) / ((v / 0.75).sqrt() + 1e-3);
                    w * (1.0 - 0.1 * decay) - 0.1 * direction
                });
                vec![w, m, v]
            },
        );
        adam.variance = Some(2);
        vec![
            adam,
            Operation::new(
                "sgd_step",
                WIDE,
                &[shape; 2],
                move |t| {
                    let value = copy(&t[0])?;
                    sgd_step_all([(value.as_tensor(), &t[1])], 0.1)?;
                    Ok(vec![value.as_detached_tensor()])
                },
                |t| vec![map([&t[0], &t[1]], |[value, gradient]| value - 0.1 * gradient)],
            ),
            Operation::new(
                "momentum_step",
                WIDE,
                &[shape; 3],
                move |t| {
                    let (velocity, value) = (copy(&t[0])?, copy(&t[1])?);
                    let slot: [&Tensor; 3] = [&velocity, &value, &t[2]];
                    momentum_step(&[slot], [momentum, 0.25, decay, 0.1])?;
                    Ok([velocity, value].iter().map(Var::as_detached_tensor).collect())
                },
                move |t| {
                    let term = |factor: f64, of: f64| if factor == 0.0 { 0.0 } else { factor * of };
                    let velocity = map([&t[0], &t[1], &t[2]], |[velocity, value, gradient]| {
                        term(momentum, velocity) + (0.25 * gradient + term(decay, value))
                    });
                    let value = map([&t[1], &velocity], |[value, velocity]| value - 0.1 * velocity);
                    vec![velocity, value]
                },
            ),
            Operation::new(
                "average_all",
                WIDE,
                &[shape; 2],
                move |t| {
                    let (running, fresh) = (copy(&t[0])?, t[1].to_dtype(DType::F64)?);
                    let statistics = Statistics { mean: fresh.clone(), variance: fresh, count: 5 };
                    average_all(&statistics.averages(&running, &copy(&running)?)[..1], 0.125)?;
                    Ok(vec![running.as_detached_tensor()])
                },
                |t| vec![map([&t[0], &t[1]], |[running, fresh]| 0.875 * running + 0.125 * fresh)],
            ),
            Operation::new(
                "overwrite_rounded",
                &TO_BF16[..1],
                &[shape],
                move |t| {
                    let rounded = Tensor::zeros(t[0].shape(), DType::BF16, t[0].device())?;
                    overwrite_rounded(&[(&rounded, &t[0])])?;
                    Ok(vec![rounded])
                },
                |t| t.to_vec(),
            ),
        ]
    }

    fn batch_norms(&self) -> Vec<Operation<'_>> {
        let &Self { batch, channels, height, width, .. } = self;
        // With fewer values, gradients of zero would depend on rounding.
        let image: &[usize] = &[batch + 2, channels, height, width];
        let sizes = [batch + 2, channels, height * width];
        let (of_channels, of_sums): (&[usize], &[usize]) = (&[channels], &[2, channels]);
        let count = (batch + 2) * height * width;
        let statistics = move |mean: &Tensor, variance: &Tensor| {
            let (mean, variance) = (mean.to_dtype(DType::F64)?, variance.to_dtype(DType::F64)?);
            Ok::<_, candle_core::Error>(Statistics { mean, variance, count })
        };
        let mut all = vec![Operation::new(
            "statistics",
            WIDE,
            &[image],
            |t| {
                let Statistics { mean, variance, .. } = Statistics::of(&t[0])?;
                Ok(vec![mean, variance])
            },
            move |t| {
                let of = (0..channels).map(|channel| moments(&channel_of(&t[0], sizes, channel)));
                let (mean, variance) = of.unzip();
                vec![mean, variance]
            },
        )];
        for with_relu in [false, true] {
            // By the batch's own statistics, and by given ones.
            let shapes = [image, of_channels, of_channels, of_channels, of_channels, image];
            for (names, shapes) in [
                (["batch_norm", "batch_norm and relu"], &[&shapes[..3], &shapes[5..]].concat()[..]),
                (["batch_norm_with", "batch_norm_with and relu"], &shapes),
            ] {
                let mut layer = Operation::new(
                    names[usize::from(with_relu)],
                    WIDE,
                    shapes,
                    move |t| {
                        differentiated(3, t, |t| match t[3..] {
                            [] => Ok(batch_norm(t[0], t[1], t[2], EPSILON, with_relu)?.0),
                            _ => {
                                let given = statistics(t[3], t[4])?;
                                batch_norm_with(t[0], t[1], t[2], &given, EPSILON, with_relu)
                            }
                        })
                    },
                    move |t| {
                        let [x, weight, bias, given @ .., dy] = t else { panic!("operands") };
                        by_channel(sizes, |channel| {
                            let [x, dy] = [x, dy].map(|images| channel_of(images, sizes, channel));
                            let parameters = [weight[channel], bias[channel]];
                            let of_given = match given {
                                [mean, variance] => Some((mean[channel], variance[channel])),
                                _ => None,
                            };
                            let layer = Norm::new(&x, parameters, of_given.unwrap_or(moments(&x)));
                            layer.gradients(&dy, with_relu, of_given.is_none())
                        })
                    },
                );
                layer.variance = (shapes.len() == 6).then_some(4);
                all.push(layer);
            }
            let mut halves = Operation::new(
                if with_relu { "gradient in halves, with relu" } else { "gradient in halves" },
                WIDE,
                &[image, image, image, of_channels, of_channels, of_channels, of_sums],
                move |t| {
                    let [x, y, dy, weight, mean, variance, sums] = t else { panic!("operands") };
                    let (given, sums) = (statistics(mean, variance)?, sums.to_dtype(DType::F64)?);
                    let dy = OutputGradient::new(x, with_relu.then_some(y), dy)?;
                    let dx = dy.of_input(weight, &given, &sums, EPSILON)?;
                    Ok(vec![dy.sums(&given, EPSILON)?, dx])
                },
                move |t| {
                    let [x, y, dy, weight, mean, variance, sums] = t else { panic!("operands") };
                    let (mut first, mut second, mut dx) = (vec![], vec![], vec![]);
                    for channel in 0..channels {
                        let of = |images: &[f64]| channel_of(images, sizes, channel);
                        let dz = izip!(of(y), of(dy)).map(|(y, dy)| passed(with_relu, y, dy));
                        let (x, dz) = (of(x), dz.collect_vec());
                        let given = (mean[channel], variance[channel]);
                        let layer = Norm::new(&x, [weight[channel], 0.0], given);
                        let [dweight, dbias] = layer.sums(&dz);
                        first.push(dbias);
                        second.push(dweight);
                        dx.push(layer.dx(&dz, [sums[channels + channel], sums[channel]]));
                    }
                    first.extend(second);
                    vec![first, images_of(&dx, sizes)]
                },
            );
            halves.variance = Some(5);
            all.push(halves);
        }
        all
    }
}

/// Returns the values of one channel of images `[images, channels, plane]`.
fn channel_of(images: &[f64], [_, channels, plane]: [usize; 3], channel: usize) -> Vec<f64> {
    images.chunks(plane).skip(channel).step_by(channels).flatten().copied().collect()
}

/// The inverse of [`channel_of`], for all channels.
fn images_of(of_channels: &[Vec<f64>], [images, _, plane]: [usize; 3]) -> Vec<f64> {
    let image = |nth: usize| of_channels.iter().flat_map(move |of| &of[nth * plane..][..plane]);
    (0..images).flat_map(image).copied().collect()
}

fn moments(x: &[f64]) -> (f64, f64) {
    let mean = x.iter().sum::<f64>() / x.len() as f64;
    (mean, x.iter().map(|x| (x - mean) * (x - mean)).sum::<f64>() / x.len() as f64)
}

/// The output of a channel, the gradient of its input, and those of its weight and bias.
type OfChannel = (Vec<f64>, Vec<f64>, [f64; 2]);

/// Collects the results of all channels: output, and the gradients of input, weight and bias.
fn by_channel(sizes: [usize; 3], of: impl Fn(usize) -> OfChannel) -> Vec<Vec<f64>> {
    let results = (0..sizes[1]).map(of).collect_vec();
    let images = |of: fn(&OfChannel) -> &Vec<f64>| {
        images_of(&results.iter().map(|results| of(results).clone()).collect_vec(), sizes)
    };
    let parameter = |nth: usize| results.iter().map(|results| results.2[nth]).collect();
    vec![images(|results| &results.0), images(|results| &results.1), parameter(0), parameter(1)]
}

/// The norm of a channel or a row, as its formula.
struct Norm<'a> {
    x: &'a [f64],
    weight: f64,
    bias: f64,
    mean: f64,
    deviation: f64,
}

impl<'a> Norm<'a> {
    fn new(x: &'a [f64], [weight, bias]: [f64; 2], (mean, variance): (f64, f64)) -> Self {
        Self { x, weight, bias, mean, deviation: (variance + EPSILON).sqrt() }
    }

    fn normalised(&self) -> Vec<f64> {
        map([self.x], |[x]| (x - self.mean) / self.deviation)
    }

    /// Returns the gradients of weight and bias.
    fn sums(&self, dz: &[f64]) -> [f64; 2] {
        [map([&self.normalised(), dz], |[x, dz]| dz * x).iter().sum(), dz.iter().sum()]
    }

    /// Returns the input's gradient, through the statistics too.
    fn dx(&self, dz: &[f64], [dweight, dbias]: [f64; 2]) -> Vec<f64> {
        let n = self.x.len() as f64;
        map([&self.normalised(), dz], |[x, dz]| {
            self.weight / self.deviation * (dz - dbias / n - x * dweight / n)
        })
    }

    /// Returns the output, and the gradients of the input and of the parameters.
    fn gradients(&self, dy: &[f64], with_relu: bool, through_statistics: bool) -> OfChannel {
        let z = map([&self.normalised()], |[x]| x * self.weight + self.bias);
        let dz = map([&z, dy], |[z, dy]| passed(with_relu, z, dy));
        let sums = self.sums(&dz);
        let dx = if through_statistics {
            self.dx(&dz, sums)
        } else {
            map([&dz], |[dz]| self.weight / self.deviation * dz)
        };
        (map([&z], |[z]| passed(with_relu, z, z)), dx, sums)
    }
}

fn any_case() -> impl Strategy<Value = Case> {
    let batch = prop_oneof![1..4usize, 15..19usize];
    let special = (any::<Index>(), any::<Index>(), select(&NOT_FINITE[..]));
    (
        (batch, 1..4usize, 1..8usize, 1..8usize),
        (1..4usize, 1..4usize),
        (select(vec![0.0, 0.9]), select(vec![0.0, 0.01])),
        prop::collection::vec(special, 0..4),
    )
        .prop_map(|(sizes, windows, rates, specials)| Case::new(sizes, windows, rates, specials))
}

proptest! {
    // A failing case is printed. It belongs in a test of its own, not in a file next to this one.
    #![proptest_config(ProptestConfig {
        failure_persistence: None,
        cases: if device().is_cuda() { 24 } else { ProptestConfig::default().cases },
        ..ProptestConfig::default()
    })]

    #[test]
    fn every_operation_has_the_kinds_of_its_definition_in_every_type(case in any_case()) {
        case.assert_as_defined();
    }
}

/// Each operand begins with a number that is not finite, begins with all of them, and consists of one alone.
#[test]
fn every_operand_may_be_not_finite_in_every_type() {
    let (windows, rates) = ((2, 2), (0.9, 0.01));
    let case = Case::new((3, 2, 3, 3), windows, rates, Vec::new());
    // No operation has more operands.
    for nth in 0..7 {
        let with = |values: &[f64]| {
            case.assert_with(|operands| {
                for (place, &value) in operands.get_mut(nth).into_iter().flatten().zip(values) {
                    *place = value;
                }
            });
        };
        with(&NOT_FINITE);
        for value in NOT_FINITE {
            with(&[value]);
            with(&[value; 1000]);
        }
        // And two operands at a time.
        for (other, one, another) in iproduct!(0..nth, NOT_FINITE, NOT_FINITE) {
            case.assert_with(|operands| {
                if nth < operands.len() {
                    (operands[nth][0], operands[other][0]) = (one, another);
                }
            });
        }
    }
}
