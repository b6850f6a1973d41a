//! Tests the properties of batch normalisation that do not follow from its formula.

use candle_core::{DType, Device, Var};
use itertools::Itertools as _;

use super::*;
use crate::backward::backward_from;
use crate::difference::relative_difference;
use crate::tests::agreement::{
    FEW, MANY, assert_agree, assert_close, device, has, noise, noises, numbers,
};

const EPSILON: f64 = 1e-5;

fn inputs(shape: &[usize]) -> (Var, Var, Var) {
    (noise("x", shape), noise("weight", &shape[1..2]), noise("bias", &shape[1..2]))
}

fn given(channels: usize) -> Statistics {
    let other = noise("other", &[2, channels, 3, 3]);
    Statistics::of(&(other.as_detached_tensor() + 0.5).unwrap()).unwrap()
}

/// Normalises by given statistics or by the batch's own, with candle's operations.
fn composed(
    [x, weight, bias]: [&Tensor; 3],
    given: Option<&Statistics>,
    relu: bool,
) -> Result<Tensor> {
    let by_channel = |values: &Tensor| values.reshape((1, (), 1, 1));
    let given = given.map(|of| Ok::<_, candle_core::Error>((by_channel(&of.mean)?, &of.variance)));
    let given = given.transpose()?;
    let own = (0, 2, 3);
    let mean = given.as_ref().map_or_else(|| x.mean_keepdim(own), |given| Ok(given.0.clone()))?;
    let centred = x.broadcast_sub(&mean)?;
    let variance = match given {
        Some((_, variance)) => by_channel(variance)?,
        None => centred.sqr()?.mean_keepdim(own)?,
    };
    let y = centred.broadcast_div(&(variance + EPSILON)?.sqrt()?)?;
    let y = y.broadcast_mul(&by_channel(weight)?)?.broadcast_add(&by_channel(bias)?)?;
    if relu { crate::relu(&y) } else { Ok(y) }
}

/// Does the same with the layer. The parameters are f32 if the images are bf16.
fn normalised(
    [x, weight, bias]: [&Tensor; 3],
    given: Option<&Statistics>,
    relu: bool,
) -> Result<Tensor> {
    let of_channels = |of: &Tensor| cast(of, computed_in(x.dtype()));
    let (weight, bias) = (&of_channels(weight)?, &of_channels(bias)?);
    let Some(given) = given else { return Ok(batch_norm(x, weight, bias, EPSILON, relu)?.0) };
    let there = |of: &Tensor| of.to_device(x.device());
    let (mean, variance) = (there(&given.mean)?, there(&given.variance)?);
    let given = Statistics { mean, variance, count: given.count };
    batch_norm_with(x, weight, bias, &given, EPSILON, relu)
}

#[test]
fn composed_of_candles_operations_it_is_the_same_in_every_type() {
    // In the last shape the planes fill no vector. There are more blocks than threads, and the last block is smaller.
    for shape in [
        [3, 4, 5, 3],
        [1, 2, 7, 9],
        [5, 1, 1, 1],
        [6, 5, 9, 7],
        [70, 3, 14, 14],
        [4, 300, 1, 1],
        [5, 23, 13, 17],
    ] {
        let inputs = noises([&shape, &shape[1..2], &shape[1..2]]);
        let given = given(shape[1]);
        for (relu, given) in [false, true].into_iter().cartesian_product([None, Some(&given)]) {
            assert_agree(&MANY, &inputs, &|t| normalised([t[0], t[1], t[2]], given, relu), &|t| {
                composed([t[0], t[1], t[2]], given, relu)
            });
        }
    }
}

#[test]
fn channels_of_many_parts_are_normalised_in_every_type() {
    // On a GPU, a channel has 258 parts, more than a block has threads.
    let inputs = noises([&[168, 1, 112, 112], &[1], &[1]]);
    assert_agree(&MANY[1..2], &inputs, &|t| normalised([t[0], t[1], t[2]], None, true), &|t| {
        composed([t[0], t[1], t[2]], None, true)
    });
}

#[test]
fn images_may_begin_anywhere_in_every_type() {
    const SHAPE: [usize; 4] = [2, 3, 2, 2];
    let elements: usize = SHAPE.iter().product();
    // A start one element after one from which a GPU could read whole vectors.
    let behind = |t: &Tensor| t.narrow(0, 1, elements)?.reshape(&SHAPE);
    let inputs = noises([&[1 + elements], &[3], &[3]]);
    let ours = |t: &[&Tensor]| normalised([&behind(t[0])?, t[1], t[2]], None, true);
    assert_agree(&MANY[..2], &inputs, &ours, &|t| {
        composed([&behind(t[0])?, t[1], t[2]], None, true)
    });
    let pieces = |device: &Device| {
        let images = |name: &str| {
            behind(&noise(name, &[1 + elements]).as_detached_tensor().to_device(device)?)
        };
        let (x, y, grad) = (images("x")?, images("y")?, images("grad")?);
        let weight = noise("weight", &[3]).as_detached_tensor().to_device(device)?;
        let statistics = Statistics::of(&x)?;
        let dy = OutputGradient::new(&x, Some(&y), &grad)?;
        let sums = dy.sums(&statistics, 1e-3)?;
        let dx = dy.of_input(&weight, &statistics, &sums, 1e-3)?;
        Ok::<_, candle_core::Error>([sums, dx])
    };
    for (found, expected) in pieces(&device()).unwrap().iter().zip(pieces(&Device::Cpu).unwrap()) {
        assert_close("pieces", found, &expected, 1e-12);
    }
}

/// Planes of single elements and of vectors; one part on a GPU, and several.
const SHAPES: [[usize; 4]; 6] =
    [[3, 4, 5, 3], [5, 1, 1, 1], [3, 2, 71, 61], [3, 4, 5, 4], [3, 2, 72, 61], [33, 1, 64, 64]];

#[test]
fn the_four_pieces_one_by_one_make_the_whole_in_every_type() {
    for (((dtype, bound), shape), relu) in
        FEW.into_iter().cartesian_product(SHAPES).cartesian_product([false, true])
    {
        if !has(dtype) {
            continue;
        }
        // Channels whose mean is large relative to their deviation: f32 has four digits left for the deviation.
        let offset = if dtype == DType::F32 { 10_000.123_456_789 } else { 0.5 };
        let [x, weight, bias, upstream] = noises([&shape, &shape[1..2], &shape[1..2], &shape]);
        let of_channels = |of: &Tensor| of.to_dtype(computed_in(dtype)).unwrap();
        let rounded = |of: &Tensor| of.to_dtype(dtype).unwrap();
        let inputs = [rounded(&(x + offset).unwrap()), of_channels(&weight), of_channels(&bias)];
        let upstream = rounded(&upstream);
        let wide = |of: &Tensor| of.to_dtype(DType::F64).unwrap();
        let truth = inputs.each_ref().map(|of| Var::from_tensor(&wide(of)).unwrap());
        let [x, weight, bias] = &truth;
        let output = composed([x, weight, bias], None, relu).unwrap();
        let gradients = backward_from(&output, &wide(&upstream)).unwrap();
        let name = format!("batch_norm {shape:?} {dtype:?} relu: {relu}");
        let close = |what: &str, found: &Tensor, expected: &Tensor| {
            assert_close(&format!("{name}, {what}"), found, expected, bound);
        };
        let exact = Statistics::of(x).unwrap();

        let there = |of: &Tensor| of.to_device(&device()).unwrap();
        let inputs = inputs.each_ref().map(|of| Var::from_tensor(&there(of)).unwrap());
        // The pieces accept any layout, so the gradient is not contiguous.
        let upstream = there(&upstream).transpose(2, 3).unwrap().contiguous().unwrap();
        let upstream = upstream.transpose(2, 3).unwrap();
        let [x, weight, bias] = inputs.each_ref().map(Var::as_tensor);
        let (y, statistics) = batch_norm(x, weight, bias, EPSILON, relu).unwrap();
        let by_pieces = batch_norm_with(x, weight, bias, &statistics, EPSILON, relu).unwrap();
        let whole = backward_from(&y, &upstream).unwrap();
        let given = backward_from(&by_pieces, &upstream).unwrap();
        close("output", &y, &output);
        close("output by pieces", &by_pieces, &output);
        close("mean", &statistics.mean, &exact.mean);
        close("variance", &statistics.variance, &exact.variance);
        for (what, (ours, truth)) in ["x", "weight", "bias"].iter().zip(inputs.iter().zip(&truth)) {
            assert_eq!(whole.get(ours).unwrap().dtype(), ours.dtype());
            close(what, whole.get(ours).unwrap(), gradients.get(truth).unwrap());
        }
        let [wide_x, wide_weight, wide_bias] = &truth;
        for (of, truth) in [(weight, wide_weight), (bias, wide_bias)] {
            close("parameter of given", given.get(of).unwrap(), gradients.get(truth).unwrap());
        }
        // Given statistics are constants.
        let formula = composed([wide_x, wide_weight, wide_bias], Some(&exact), relu).unwrap();
        let expected = backward_from(&formula, &wide(&upstream.to_device(&Device::Cpu).unwrap()));
        close("x behind given", given.get(x).unwrap(), expected.unwrap().get(wide_x).unwrap());

        let dy = OutputGradient::new(x, relu.then_some(&y), &upstream).unwrap();
        let sums = dy.sums(&statistics, EPSILON).unwrap();
        close("sum for the bias", &sums.get(0).unwrap(), gradients.get(wide_bias).unwrap());
        close("sum for the weight", &sums.get(1).unwrap(), gradients.get(wide_weight).unwrap());
        let dx = dy.of_input(weight, &statistics, &sums, EPSILON).unwrap();
        close("gradient in pieces", &dx, gradients.get(wide_x).unwrap());
    }
}

#[test]
fn a_single_pixel_becomes_the_bias() {
    let (x, weight, bias) = inputs(&[1, 2, 1, 1]);
    let (y, statistics) = batch_norm(&x, &weight, &bias, EPSILON, false).unwrap();
    assert_eq!(numbers(&y), numbers(&bias));
    assert_eq!(numbers(&statistics.variance), [0.0, 0.0]);
    assert_eq!(numbers(&statistics.unbiased_variance().unwrap()), [0.0, 0.0]);
    // The output is the same for every input, so the gradient is zero, and in particular finite.
    let gradients = y.sum_all().unwrap().backward().unwrap();
    assert_eq!(numbers(gradients.get(&x).unwrap()), [0.0, 0.0]);
}

#[test]
fn numbers_whose_squares_overflow_are_normalised() {
    let (x, weight, bias) = inputs(&[3, 2, 5, 5]);
    let single = |x: Tensor| Var::from_tensor(&x.to_dtype(DType::F32).unwrap()).unwrap();
    for scale in [1e20, 1e30, 1e37] {
        let huge = (x.as_detached_tensor() * scale).unwrap();
        let (expected, expected_statistics) =
            batch_norm(&huge, &weight, &bias, EPSILON, false).unwrap();
        let [huge, weight, bias] =
            [huge, weight.as_detached_tensor(), bias.as_detached_tensor()].map(single);
        let (y, statistics) = batch_norm(&huge, &weight, &bias, EPSILON, false).unwrap();
        assert_close("output", &y, &expected, 1e-5);
        let variances = [statistics, expected_statistics].map(|of| of.variance);
        assert!(relative_difference(&variances[0], &variances[1]).unwrap() < 1e-6);
    }
}

#[test]
fn what_does_not_fit_is_refused_in_words() {
    let (x, weight, bias) = inputs(&[2, 3, 4, 4]);
    let (x, weight, bias, four) = (&*x, &*weight, &*bias, &*noise("four", &[4]));
    let cast = |dtype| [x, weight, bias].map(|tensor| tensor.to_dtype(dtype).unwrap());
    let (halves, singles, whole) = (cast(DType::BF16), cast(DType::F32), cast(DType::U32));
    let empty = Tensor::zeros((0, 3, 4, 4), DType::F64, &Device::Cpu).unwrap();
    for (x, weight, bias, epsilon, complaint) in [
        (x, four, bias, EPSILON, "needs a weight F64 [3], got F64 [4]"),
        (x, weight, four, EPSILON, "needs a bias F64 [3], got F64 [4]"),
        (x, &singles[1], bias, EPSILON, "needs a weight F64 [3], got F32 [3]"),
        (weight, weight, bias, EPSILON, "[B, C, H, W]"),
        (&empty, weight, bias, EPSILON, "no values"),
        (x, weight, bias, 0.0, "epsilon"),
        (x, weight, bias, -1.0, "epsilon"),
        (x, weight, bias, f64::NAN, "epsilon"),
        (
            &halves[0],
            &halves[1],
            bias,
            EPSILON,
            "BF16 [2, 3, 4, 4] needs a weight F32 [3], got BF16",
        ),
        (&whole[0], &whole[1], &whole[2], EPSILON, "f32 and f64, not on U32"),
    ] {
        let error = batch_norm(x, weight, bias, epsilon, true).unwrap_err().to_string();
        assert!(error.contains(complaint), "{error}");
    }
    let error = batch_norm_with(x, weight, bias, &given(4), EPSILON, true).unwrap_err();
    assert!(error.to_string().contains("mean [3]"), "{error}");
    assert!(OutputGradient::new(x, None, weight).is_err());
}

/// On the CPU, the computation is in f32, from and to rounded images.
#[test]
fn images_may_be_bf16_and_everything_else_is_not() {
    let cast = |x: &Tensor, to| x.detach().to_dtype(to).unwrap();
    let images = |name: &str| cast(&noise(name, &[2, 3, 5, 4]), DType::BF16);
    let (x, grad) = (images("x"), images("grad"));
    let [weight, bias] = ["weight", "bias"].map(|name| cast(&noise(name, &[3]), DType::F32));
    let (wide, wide_grad) = (cast(&x, DType::F32), cast(&grad, DType::F32));
    let same = |narrow: &Tensor, wide: &Tensor| {
        assert_eq!(narrow.dtype(), DType::BF16);
        assert_eq!(numbers(narrow), numbers(&cast(wide, DType::BF16)));
    };
    let (y, statistics) = batch_norm(&x, &weight, &bias, EPSILON, true).unwrap();
    let (wide_y, _) = batch_norm(&wide, &weight, &bias, EPSILON, true).unwrap();
    same(&y, &wide_y);
    let given = |x: &Tensor| batch_norm_with(x, &weight, &bias, &statistics, EPSILON, true);
    same(&given(&x).unwrap(), &wide_y);
    assert_eq!(numbers(&Statistics::of(&x).unwrap().mean), numbers(&statistics.mean));

    let dy = OutputGradient::new(&x, Some(&y), &grad).unwrap();
    let wide_dy = OutputGradient::new(&wide, Some(&wide_y), &wide_grad).unwrap();
    let [narrow, expected] = [&dy, &wide_dy].map(|dy| dy.sums(&statistics, EPSILON).unwrap());
    assert_eq!(numbers(&narrow), numbers(&expected));
    let [dx, wide_dx] =
        [&dy, &wide_dy].map(|dy| dy.of_input(&weight, &statistics, &expected, EPSILON).unwrap());
    same(&dx, &wide_dx);
}

#[test]
fn an_input_gradient_refuses_other_channels_in_words() {
    let (x, weight, _) = inputs(&[2, 3, 4, 4]);
    let grad = noise("grad", &[2, 3, 4, 4]);
    let statistics = Statistics::of(&x).unwrap();
    let dy = OutputGradient::new(&x, None, &grad).unwrap();
    let sums = dy.sums(&statistics, EPSILON).unwrap();
    let take = |weight: &Tensor, statistics: &Statistics, sums: &Tensor| {
        dy.of_input(weight, statistics, sums, EPSILON)
    };
    assert!(take(&weight, &statistics, &sums).is_ok());
    for channels in [2, 4] {
        let other = noise("other", &[channels]).as_detached_tensor();
        let both = Tensor::stack(&[&other, &other], 0).unwrap();
        for (result, expected) in [
            (take(&other, &statistics, &sums), format!("a weight [3], got [{channels}]")),
            (take(&weight, &statistics, &both), format!("[2, 3], got F64 [2, {channels}]")),
            (take(&weight, &statistics, &other), format!("[2, 3], got F64 [{channels}]")),
            (take(&weight, &given(channels), &sums), format!("a mean [3], got [{channels}]")),
        ] {
            let error = result.unwrap_err().to_string();
            assert!(error.starts_with("batch_norm: 3 channels need "), "{error}");
            assert!(error.contains(&expected), "{error}");
        }
    }
}
