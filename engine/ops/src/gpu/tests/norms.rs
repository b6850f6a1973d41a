//! Batch normalisation.

use candle_core::backend::BackendStorage as _;

use super::*;
use crate::element::computed_in;

#[test]
fn the_four_pieces_of_a_batch_norm() {
    let Some(machine) = emulator() else { return };
    // Planes of single elements and of vectors; one part, several, and more than threads.
    let shapes =
        [[3, 4, 5, 3], [5, 1, 1, 1], [3, 2, 71, 61], [3, 4, 5, 4], [3, 2, 72, 61], [33, 1, 64, 64]];
    for (((dtype, bound), shape), relu) in
        TYPES.into_iter().cartesian_product(shapes).cartesian_product([false, true])
    {
        let [images, channels, height, width] = shape;
        let sizes = Channels { images, channels, plane: height * width };
        // Channels whose mean is large beside their deviation: f32 has four digits left for that.
        let mean = if dtype == DType::F32 { 10_000.123_456_789 } else { 0.5 };
        let x = (noise("x", &shape).as_detached_tensor() + mean).unwrap();
        let x = x.to_dtype(dtype).unwrap();
        let [weight, own] =
            ["weight", "bias"].map(|name| rounded(name, &[channels], computed_in(dtype)));
        let upstream = rounded("upstream", &shape, dtype);
        let of = [&exact(&x), &exact(&weight), &exact(&own)];
        let (y, _) = crate::batch_norm(of[0], of[1], of[2], EPSILON, relu).unwrap();
        let statistics = Statistics::of(of[0]).unwrap();
        let expected = gradients(&y, &upstream, &of);

        let (x, weight, own, upstream) = (held(&x), held(&weight), held(&own), held(&upstream));
        let (mean, variance) = batch_norm::moments(machine, sizes, x.operand()).unwrap();
        let [mean, variance] = [mean, variance].map(|storage| tensor(storage, channels));
        assert_close(&mean, &statistics.mean, bound);
        assert_close(&variance, &statistics.variance, bound);

        let (mean, variance) = (held(&mean), held(&variance));
        let moments = || batch_norm::Moments {
            mean: mean.operand(),
            variance: variance.operand(),
            epsilon: EPSILON,
        };
        let parameters = [weight.operand(), own.operand()];
        let found = batch_norm::normalise(machine, sizes, x.operand(), parameters, moments(), relu);
        let output = Held { storage: found.unwrap(), layout: x.layout.clone() };
        assert_close(&tensor(output.storage.clone(), &shape), &y, bound);

        let images = batch_norm::Images {
            x: x.operand(),
            output: relu.then(|| output.operand()),
            grad: upstream.operand(),
        };
        let sums = batch_norm::gradient_sums(machine, sizes, &images, moments()).unwrap();
        assert_eq!(sums.rounded.dtype(), computed_in(dtype));
        let [exact, rounded] = [sums.exact, sums.rounded].map(|sums| tensor(sums, (2, channels)));
        for (row, expected) in [&expected[2], &expected[1]].into_iter().enumerate() {
            assert_close(&exact.get(row).unwrap(), expected, bound);
            assert_close(&rounded.get(row).unwrap(), expected, bound);
        }

        let sums = held(&exact);
        let share = 1.0 / statistics.count as f64;
        let take = |share| {
            let slopes = batch_norm::Slopes {
                weight: weight.operand(),
                moments: moments(),
                sums: sums.operand(),
                share,
            };
            tensor(batch_norm::input_gradient(machine, sizes, &images, slopes).unwrap(), &shape)
        };
        assert_close(&take(share), &expected[0], bound);
        // Statistics that were given are constants.
        let y = crate::batch_norm_with(of[0], of[1], of[2], &statistics, EPSILON, relu).unwrap();
        let expected = gradients(&y, &tensor(upstream.storage.clone(), &shape), &of);
        assert_close(&take(0.0), &expected[0], bound);
    }
}

#[test]
fn vectors_begin_where_a_gpu_can_read_them() {
    let Some(machine) = emulator() else { return };
    let sizes = Channels { images: 1, channels: 2, plane: 4 };
    let rows = rounded("x", &[9], DType::F32);
    let [parameters, wide, sums] = [(2, DType::F32), (2, DType::F64), (4, DType::F64)]
        .map(|(elements, dtype)| held(&rounded("of channels", &[elements], dtype)));
    let moments =
        || batch_norm::Moments { mean: wide.operand(), variance: wide.operand(), epsilon: 2.0 };
    // Where x, the output and its gradient begin.
    let launched = |from: [usize; 3]| {
        let [x, y, grad] = from.map(|from| narrowed(&rows, from, 8));
        let images =
            batch_norm::Images { x: x.operand(), output: Some(y.operand()), grad: grad.operand() };
        let slopes = batch_norm::Slopes {
            weight: parameters.operand(),
            moments: moments(),
            sums: sums.operand(),
            share: 0.0,
        };
        let own = [parameters.operand(); 2];
        [
            batch_norm::moments(machine, sizes, x.operand()).map(drop),
            batch_norm::normalise(machine, sizes, x.operand(), own, moments(), true).map(drop),
            batch_norm::gradient_sums(machine, sizes, &images, moments()).map(drop),
            batch_norm::input_gradient(machine, sizes, &images, slopes).map(drop),
        ]
    };
    assert!(launched([0; 3]).iter().all(Result::is_ok));
    for (from, refused) in [([1, 0, 0], 4), ([0, 1, 0], 2), ([0, 0, 1], 2)] {
        let errors: Vec<String> = launched(from)
            .into_iter()
            .filter_map(|result| Some(result.err()?.to_string()))
            .collect();
        assert_eq!(errors.len(), refused, "{from:?}: {errors:?}");
        for error in errors {
            assert!(error.contains("vectors of 4 cannot begin at element 1"), "{error}");
        }
    }
}
