//! NaN and infinities: every algorithm has them where the formula has them, and numbers elsewhere.

use proptest::prelude::*;
use proptest::sample::{Index, select};

use super::formula::values;
use super::*;
use crate::tests::agreement::{NOT_FINITE, assert_same_kind};

/// A convolution with a bias; with relu and pooling over 2×2 windows if `pooled`.
#[derive(Clone, Debug)]
struct Case {
    sizes: [usize; 9],
    pooled: bool,
    /// The gradient is that of the output after the epilogue.
    operands: Operands,
    bias: Vec<f64>,
}

impl Case {
    /// Makes operands that are multiples of a quarter, which f32 represents exactly.
    ///
    /// The bias keeps every sum away from zero, where the relu would depend on rounding.
    fn new(sizes: [usize; 9], pooled: bool) -> Self {
        let g = geometry(sizes);
        let Operands { x, weight, .. } = Operands::new(&g);
        let quarters = |values: Vec<f64>| -> Vec<f64> {
            values.into_iter().map(|value| (4.0 * value).round() / 4.0).collect()
        };
        let (height, width) = epilogue(&g, pooled).size(&g);
        let grad = values("grad", g.batch * g.out_channels * height * width);
        let bias = quarters(values("bias", g.out_channels));
        Self {
            sizes,
            pooled,
            operands: Operands { x: quarters(x), weight: quarters(weight), grad: quarters(grad) },
            bias: bias.into_iter().map(|bias| bias + 1.0 / 32.0).collect(),
        }
    }

    fn black(mut self) -> Self {
        for (place, pixel) in self.operands.x.iter_mut().enumerate() {
            if place % self.sizes[3] != 0 {
                *pixel = 0.0;
            }
        }
        self
    }

    /// Returns the input, the weight, the bias or the gradient of the output.
    fn operand(&mut self, nth: usize) -> &mut [f64] {
        let Operands { x, weight, grad } = &mut self.operands;
        [x, weight, &mut self.bias, grad][nth]
    }

    fn truth(&self) -> Results {
        let g = &geometry(self.sizes);
        let grads = &self.operands.grad;
        let by_the_formula = |grad| Operands { grad, ..self.operands.clone() }.by_the_formula(g);
        let mut sums = by_the_formula(vec![0.0; g.batch * g.out_image()]).y;
        for (plane, sums) in sums.chunks_mut(g.pixels()).enumerate() {
            sums.iter_mut().for_each(|sum| *sum += self.bias[plane % g.out_channels]);
        }
        let Epilogue::ReluPool(windows) = epilogue(g, self.pooled) else {
            return Results { y: sums, ..by_the_formula(grads.clone()) };
        };
        let mut y = vec![0.0; grads.len()];
        let mut dsums = vec![0.0; sums.len()];
        for (place, &sum) in sums.iter().enumerate() {
            let (plane, place_in_plane) = (place / g.pixels(), place % g.pixels());
            let (row, column) = (place_in_plane / g.out_w / 2, place_in_plane % g.out_w / 2);
            if row < windows.out_height && column < windows.out_width {
                let window = plane * windows.out_plane() + row * windows.out_width + column;
                y[window] += if sum <= 0.0 { 0.0 } else { sum / 4.0 };
                dsums[place] = if sum <= 0.0 { 0.0 } else { grads[window] / 4.0 };
            }
        }
        Results { y, ..by_the_formula(dsums) }
    }

    fn by<T: Element>(&self, algorithm: Algorithm, want_dx: bool) -> Results {
        let g = &geometry(self.sizes);
        let epilogue = (&epilogue(g, self.pooled), Some(&self.bias[..]));
        self.operands.by::<T>(algorithm, g, epilogue, want_dx)
    }

    fn assert_as_the_formula(&self) {
        let truth = self.truth();
        let g = geometry(self.sizes);
        for want_dx in [false, true] {
            for algorithm in algorithms(&g, want_dx) {
                for (dtype, found, bound) in [
                    ("f32", self.by::<f32>(algorithm, want_dx), 1e-4),
                    ("f64", self.by::<f64>(algorithm, want_dx), 1e-12),
                ] {
                    found.compare(&truth, |what, found, truth| {
                        let name =
                            format!("{what} of {:?} by {algorithm:?} in {dtype}", self.sizes);
                        assert_same_kind(&name, found, truth, bound);
                    });
                }
            }
        }
    }
}

fn epilogue(g: &Geometry, pooled: bool) -> Epilogue {
    if pooled {
        Epilogue::ReluPool(Windows::new(g.out_h, g.out_w, 2, 2).unwrap())
    } else {
        Epilogue::Plain
    }
}

/// batch, in, height, width, out, kernel height, kernel width, stride, padding: for Winograd's
/// algorithms with partial blocks and tiles.
const WINOGRAD: [[usize; 9]; 3] =
    [[2, 8, 9, 7, 9, 3, 3, 1, 1], [17, 9, 6, 6, 8, 3, 3, 1, 0], [3, 8, 8, 7, 8, 5, 5, 1, 2]];

#[test]
fn a_number_that_is_not_finite_reaches_what_depends_on_it_and_nothing_else() {
    for sizes in WINOGRAD {
        for value in NOT_FINITE {
            // The pixel in the middle of the first image's second channel, and the last gradient.
            let [_, _, height, width, ..] = sizes;
            let middle = height * width + height / 2 * width + width / 2;
            for (operand, place) in [(0, Some(middle)), (3, None)] {
                let mut case = Case::new(sizes, false);
                let numbers = case.operand(operand);
                numbers[place.unwrap_or(numbers.len() - 1)] = value;
                case.assert_as_the_formula();
            }
        }
    }
}

#[test]
fn a_weight_that_is_not_finite_makes_nan_of_black_pixels() {
    for sizes in WINOGRAD {
        for value in NOT_FINITE {
            let g = geometry(sizes);
            let mut case = Case::new(sizes, false).black();
            case.operands.weight[g.patch()] = value;
            case.assert_as_the_formula();
            for algorithm in algorithms(&g, true) {
                // The second channel of the first image, where its patches see nothing but zeros.
                let corner = 2 * g.pixels() - 1;
                assert!(
                    case.by::<f32>(algorithm, true).y[corner].is_nan(),
                    "{sizes:?} by {algorithm:?}"
                );
            }
        }
    }
}

#[test]
fn huge_numbers_do_not_overflow_on_the_way() {
    for sizes in WINOGRAD {
        let g = geometry(sizes);
        for nth in [0, 1, 3] {
            let mut case = Case::new(sizes, false);
            // The range of f32 ends below 2¹²⁸. A gradient of the bias is a sum of a whole plane's
            // gradients.
            let huge = if nth == 3 { 2f64.powi(122) } else { 2f64.powi(125) };
            for other in [0, 1, 3] {
                let scale = if other == nth { huge } else { 2f64.powi(-7) };
                case.operand(other).iter_mut().for_each(|value| *value *= scale);
            }
            // Only the first image has huge gradients.
            let others = &mut case.operands.grad[g.out_image()..];
            others.iter_mut().for_each(|grad| *grad = grad.clamp(-1.0, 1.0));
            let Results { y, dx, dweight, dbias } = case.truth();
            for values in [y, dx, dweight, dbias] {
                assert!(values.iter().all(|value| value.abs() < 2f64.powi(127)), "{sizes:?}");
            }
            case.assert_as_the_formula();
        }
    }
}

#[test]
fn planes_that_are_finite_keep_their_bits() {
    for [b, c, h, w, o, kh, kw, stride, padding] in WINOGRAD {
        let (x, weight) = (single("x", &[b, c, h, w]), single("weight", &[o, c, kh, kw]));
        let results = |threads: usize, x: &Var, weight: &Var| {
            on(threads, || {
                let y = conv2d(x, weight, None, stride, padding).unwrap();
                // The gradient of each output is 1, whatever the output.
                let gradients = y.sum_all().unwrap().backward().unwrap();
                let gradient = |of: &Tensor| gradients.get(of).unwrap().clone();
                [y.clone(), gradient(x), gradient(weight)]
            })
        };
        let finite = results(1, &x, &weight);
        let with_nan = |of: &Var, place: usize| {
            let mut values = of.flatten_all().unwrap().to_vec1::<f32>().unwrap();
            values[place] = f32::NAN;
            let tensor = Tensor::from_vec(values, of.shape(), of.device()).unwrap();
            Var::from_tensor(&tensor).unwrap()
        };
        let but_first = |tensor: &Tensor, axis: usize| {
            let size = tensor.dim(axis).unwrap();
            bits(&tensor.narrow(axis, 1, size - 1).unwrap())
        };

        let broken = with_nan(&x, 0);
        let [y, dx, dweight] = results(1, &broken, &weight);
        assert!(but_first(&y, 0) == but_first(&finite[0], 0), "other images");
        assert!(bits(&dx) == bits(&finite[1]), "the input gradient, which sees no input");
        assert!(but_first(&dweight, 1) == but_first(&finite[2], 1), "other channels");
        for threads in 2..=4 {
            let again = results(threads, &broken, &weight);
            let first = [&y, &dx, &dweight].map(bits);
            assert!(again.each_ref().map(bits) == first, "{threads} threads");
        }

        let [y, dx, dweight] = results(1, &x, &with_nan(&weight, 0));
        assert!(but_first(&y, 1) == but_first(&finite[0], 1), "other channels");
        assert!(but_first(&dx, 1) == but_first(&finite[1], 1), "other channels");
        assert!(bits(&dweight) == bits(&finite[2]), "the weight gradient, which sees no weight");
    }
}

fn any_case() -> impl Strategy<Value = Case> {
    let batch = prop_oneof![1..4usize, 15..19usize];
    let sides = (3..9usize, 3..9usize);
    // Most shapes suit Winograd's algorithms.
    let kernel = select(vec![(1, 1), (3, 3), (3, 3), (3, 3), (5, 5), (2, 3)]);
    let stride = select(vec![1usize, 1, 1, 2, 3]);
    let special = (0..4usize, any::<Index>(), select(&NOT_FINITE[..]));
    (
        (batch, select(vec![1, 2, 9usize]), sides, 1..4usize, kernel, stride, 0..3usize),
        any::<(bool, bool)>(),
        prop::collection::vec(special, 0..4),
    )
        .prop_map(|(shape, (pooled, black), specials)| {
            let (batch, inputs, (height, width), outputs, (kh, kw), stride, padding) = shape;
            // A kernel has to fit. A window needs two rows and columns of the kernel's output.
            let pooled = pooled && stride == 1;
            let least = |kernel: usize| (kernel + usize::from(pooled)).saturating_sub(2 * padding);
            let (height, width) = (height.max(least(kh)), width.max(least(kw)));
            let sizes = [batch, inputs, height, width, outputs, kh, kw, stride, padding];
            let case = Case::new(sizes, pooled);
            let mut case = if black { case.black() } else { case };
            for (nth, place, value) in specials {
                let operand = case.operand(nth);
                let place = place.index(operand.len());
                operand[place] = value;
            }
            case
        })
}

proptest! {
    // A failing case is printed. It belongs in a test of its own, not in a file next to this one.
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn every_way_has_the_kinds_of_the_formula(case in any_case()) {
        case.assert_as_the_formula();
    }
}
