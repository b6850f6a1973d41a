//! What follows the products of a layer: bias, relu, pooling.

use super::*;

#[test]
fn half_way_bf16_is_rounded_to_even() {
    let Some(machine) = emulator() else { return };
    // 1 + 1/256 lies between 1 and 1 + 2/256, 1 + 3/256 between that and 1 + 4/256.
    let numbers = |values: [f64; 2]| {
        held(&Tensor::new(&values, &Device::Cpu).unwrap().to_dtype(DType::BF16).unwrap())
    };
    let sizes = Channels { images: 1, channels: 2, plane: 1 };
    let (mut y, own) = (numbers([1.0, 1.0]), numbers([1.0 / 256.0, 3.0 / 256.0]));
    bias::add(machine, &mut y.storage, sizes, own.operand(), false).unwrap();
    assert_eq!(tensor(y.storage, 2).to_vec1::<f64>().unwrap(), [1.0, 1.0 + 4.0 / 256.0]);
}

/// Images `[images, channels, plane]`: one part and several, dense layers, fewer values than threads, more parts than
/// threads.
const SIZES: [Channels; 5] = [
    Channels { images: 5, channels: 3, plane: 63 },
    Channels { images: 70, channels: 5, plane: 1 },
    Channels { images: 3, channels: 2, plane: 8331 },
    Channels { images: 1, channels: 300, plane: 1 },
    Channels { images: 1, channels: 1, plane: 33 * 8192 + 1 },
];

#[test]
fn a_bias_its_relu_and_their_gradients() {
    let Some(machine) = emulator() else { return };
    assert_eq!(SIZES.map(|sizes| sizes.parts()), [1, 1, 4, 1, 34]);
    for ((dtype, bound), sizes) in TYPES.into_iter().cartesian_product(SIZES) {
        let Channels { images, channels, plane } = sizes;
        let shape = [images, channels, plane];
        let (z, own) = (rounded("z", &shape, dtype), rounded("bias", &[channels], dtype));
        let upstream = rounded("upstream", &shape, dtype);
        let (variable, own_variable) = (exact(&z), exact(&own));
        let sum = own_variable.reshape((1, (), 1)).unwrap();
        let sum = variable.broadcast_add(&sum).unwrap();
        let of = [&variable, &own_variable];

        let mut y = held(&z);
        bias::add(machine, &mut y.storage, sizes, held(&own).operand(), false).unwrap();
        assert_close(&tensor(y.storage, &shape), &sum, bound);
        let found = bias::gradient(machine, sizes, held(&upstream).operand()).unwrap();
        let expected = gradients(&sum, &upstream, &of);
        assert_close(&tensor(found, channels), &expected[1], bound);

        let mut y = held(&z);
        bias::add(machine, &mut y.storage, sizes, held(&own).operand(), true).unwrap();
        let expected = crate::relu(&sum).unwrap();
        let (dz, dbias) =
            bias::gradient_behind_relu(machine, sizes, y.operand(), held(&upstream).operand())
                .unwrap();
        assert_close(&tensor(y.storage, &shape), &expected, bound);
        let expected = gradients(&expected, &upstream, &of);
        assert_close(&tensor(dz, &shape), &expected[0], bound);
        assert_close(&tensor(dbias, channels), &expected[1], bound);
    }
}

#[test]
fn the_mean_of_a_plane_and_its_gradient() {
    let Some(machine) = emulator() else { return };
    for (dtype, bound) in TYPES {
        let shape = [3, 100, 4, 3];
        let (x, upstream) = (rounded("x", &shape, dtype), rounded("upstream", &[3, 100], dtype));
        let variable = exact(&x);
        let y = crate::global_avg_pool(&variable).unwrap();
        let found = pooling::global_avg_pool(machine, 12, held(&x).operand()).unwrap();
        assert_close(&tensor(found, (3, 100)), &y, bound);
        let dx = &gradients(&y, &upstream, &[&variable])[0];
        let grad = held(&upstream);
        let found = pooling::global_avg_pool_gradient(machine, 12, grad.operand()).unwrap();
        assert_close(&tensor(found, &shape), dx, bound);
    }
}

/// Height, width, kernel, stride: with and without rows and columns that are in no window, windows that overlap, windows
/// with gaps between them, more than one part.
const WINDOWS: [[usize; 4]; 6] =
    [[9, 9, 2, 2], [7, 5, 3, 3], [4, 6, 2, 2], [8, 7, 3, 2], [9, 8, 2, 3], [83, 79, 2, 2]];

#[test]
fn pooling_and_its_gradient() {
    let Some(machine) = emulator() else { return };
    for ((dtype, bound), [height, width, kernel, stride]) in
        TYPES.into_iter().cartesian_product(WINDOWS)
    {
        let windows = Windows::new(height, width, kernel, stride).unwrap();
        let x = rounded("x", &[2, 3, height, width], dtype);
        let variable = exact(&x);
        let y = crate::avg_pool2d(&variable, kernel, stride).unwrap();
        let found = pooling::avg_pool2d(machine, &windows, held(&x).operand()).unwrap();
        assert_close(&tensor(found, y.shape()), &y, bound);
        let upstream = rounded("upstream", y.dims(), dtype);
        let found = pooling::gradient(machine, &windows, held(&upstream).operand()).unwrap();
        let expected = gradients(&y, &upstream, &[&variable]);
        assert_close(&tensor(found, x.shape()), &expected[0], bound);
    }
}

#[test]
fn what_follows_a_convolution_and_its_gradients() {
    let Some(machine) = emulator() else { return };
    let without_overlap = WINDOWS.into_iter().filter(|[_, _, kernel, stride]| kernel == stride);
    for ((dtype, bound), [height, width, kernel, stride]) in
        TYPES.into_iter().cartesian_product(without_overlap)
    {
        let windows = Windows::new(height, width, kernel, stride).unwrap();
        let sizes = Channels { images: 2, channels: 3, plane: height * width };
        let z = rounded("z", &[2, 3, height, width], dtype);
        let own = rounded("bias", &[3], dtype);
        let of = [&exact(&z), &exact(&own)];
        let sum = of[0].broadcast_add(&of[1].reshape((1, (), 1, 1)).unwrap()).unwrap();
        let y = crate::avg_pool2d(&crate::relu(&sum).unwrap(), kernel, stride).unwrap();
        let (z, own) = (held(&z), held(&own));
        let found =
            pooling::bias_relu_pool(machine, sizes, &windows, z.operand(), own.operand()).unwrap();
        assert_close(&tensor(found, y.shape()), &y, bound);

        let upstream = rounded("upstream", y.dims(), dtype);
        let expected = gradients(&y, &upstream, &of);
        let upstream = held(&upstream);
        let (dz, dbias) = pooling::bias_relu_pool_gradient(
            machine,
            sizes,
            &windows,
            z.operand(),
            own.operand(),
            upstream.operand(),
        )
        .unwrap();
        assert_close(&tensor(dz, sum.shape()), &expected[0], bound);
        assert_close(&tensor(dbias, 3), &expected[1], bound);
    }
}
