//! Every launch, run by the emulator, against the operation of the CPU.

use std::sync::OnceLock;

use candle_core::op::BackpropOp;
use candle_core::{CpuStorage, DType, Device, Layout, Shape, Storage, Tensor, Var};
use itertools::Itertools as _;

use super::emulator::Emulator;
use super::machine::{Channels, Launch, Machine as _, Operand, Source, THREADS};
use super::{batch_norm, bias, cross_entropy, pooling, relu, update};
use crate::difference::relative_difference;
use crate::ops;
use crate::ops::agreement::noise;
use crate::ops::avg_pool2d::Windows;
use crate::ops::batch_norm::Statistics;

const EPSILON: f64 = 1e-5;

fn emulator() -> Option<&'static Emulator> {
    static EMULATOR: OnceLock<Option<Emulator>> = OnceLock::new();
    EMULATOR.get_or_init(Emulator::new).as_ref()
}

/// The types that there are kernels for, and by how much a result may differ from the same in f64: some units in the
/// last place of a sum, and half a unit of bf16's eight digits, twice where a gradient goes through two of them.
const TYPES: [(DType, f64); 3] =
    [(DType::F64, 1e-12), (DType::F32, 2e-6), (DType::BF16, 1.0 / 128.0)];

/// A tensor's elements, as a machine gets them.
struct Held {
    storage: CpuStorage,
    layout: Layout,
}

impl Held {
    fn operand(&self) -> Operand<'_, CpuStorage> {
        Operand::new(&self.storage, &self.layout).unwrap()
    }

    fn updated(&mut self) -> (&mut CpuStorage, &Layout) {
        (&mut self.storage, &self.layout)
    }
}

fn held(tensor: &Tensor) -> Held {
    let tensor = tensor.force_contiguous().unwrap();
    let (storage, layout) = tensor.storage_and_layout();
    match &*storage {
        Storage::Cpu(storage) => Held { storage: storage.clone(), layout: layout.clone() },
        _ => unreachable!("tests are on the CPU"),
    }
}

/// What a launch has written, in f64.
fn tensor(storage: CpuStorage, shape: impl Into<Shape>) -> Tensor {
    let tensor = Tensor::from_storage(Storage::Cpu(storage), shape, BackpropOp::none(), false);
    tensor.to_dtype(DType::F64).unwrap()
}

/// Noise, in numbers that this type has.
fn rounded(name: &str, shape: &[usize], dtype: DType) -> Tensor {
    noise(name, shape).as_detached_tensor().to_dtype(dtype).unwrap()
}

/// The same numbers as a variable in f64.
fn exact(tensor: &Tensor) -> Var {
    Var::from_tensor(&tensor.to_dtype(DType::F64).unwrap()).unwrap()
}

#[track_caller]
fn assert_close(found: &Tensor, expected: &Tensor, bound: f64) {
    assert_eq!(found.dims(), expected.dims());
    let error = relative_difference(found, expected).unwrap();
    // A NaN is not close.
    assert!(error <= bound, "{error:.1e} is above {bound:.1e}");
}

/// The gradients of variables when this one comes in for `y`.
fn gradients(y: &Tensor, upstream: &Tensor, variables: &[&Var]) -> Vec<Tensor> {
    let upstream = upstream.to_dtype(DType::F64).unwrap();
    let store = (y * upstream).unwrap().sum_all().unwrap().backward().unwrap();
    variables.iter().map(|variable| store.get(variable).unwrap().clone()).collect()
}

#[test]
fn every_element_is_worked_on_whatever_the_number_of_blocks() {
    let Some(machine) = emulator() else { return };
    let x = rounded("x", &[3 * THREADS + 7], DType::F32);
    let x = x.abs().unwrap();
    for blocks in [1, 2, 5] {
        let operand = held(&x);
        let mut y = machine.room(x.elem_count(), DType::F32).unwrap();
        let launch = Launch::new(Source::Relu, "relu", DType::F32).count(x.elem_count());
        machine.run(launch.read(operand.operand(), x.elem_count()).write(&mut y), blocks).unwrap();
        assert_close(&tensor(y, x.shape()), &exact(&x), 0.0);
    }
}

#[test]
fn relu_and_its_gradient() {
    let Some(machine) = emulator() else { return };
    for (dtype, _) in TYPES {
        let x = rounded("x", &[5, 67], DType::F32);
        // Zeros among them, where the derivative is a choice.
        let x = (x * 2.0).unwrap().round().unwrap().to_dtype(dtype).unwrap();
        let upstream = rounded("upstream", &[5, 67], dtype);
        let variable = exact(&x);
        let y = ops::relu(&variable).unwrap();
        let dx = &gradients(&y, &upstream, &[&variable])[0];
        let found = held(&Tensor::from_storage(
            Storage::Cpu(relu::relu(machine, held(&x).operand()).unwrap()),
            x.shape(),
            BackpropOp::none(),
            false,
        ));
        let found_dx = relu::gradient(machine, found.operand(), held(&upstream).operand()).unwrap();
        assert_close(&tensor(found.storage, x.shape()), &y, 0.0);
        assert_close(&tensor(found_dx, x.shape()), dx, 0.0);
    }
}

#[test]
fn what_is_not_a_number_stays_visible() {
    let Some(machine) = emulator() else { return };
    for (dtype, _) in TYPES {
        let x = Tensor::new(&[f64::NAN, 1.0], &Device::Cpu).unwrap().to_dtype(dtype).unwrap();
        let y = tensor(relu::relu(machine, held(&x).operand()).unwrap(), 2);
        assert!(y.to_vec1::<f64>().unwrap()[0].is_nan());
    }
}

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

/// Images `[images, channels, plane]`: one part and several, dense layers, fewer values than threads.
const SIZES: [Channels; 4] = [
    Channels { images: 5, channels: 3, plane: 63 },
    Channels { images: 70, channels: 5, plane: 1 },
    Channels { images: 3, channels: 2, plane: 4331 },
    Channels { images: 1, channels: 300, plane: 1 },
];

#[test]
fn a_bias_its_relu_and_their_gradients() {
    let Some(machine) = emulator() else { return };
    assert_eq!(SIZES.map(|sizes| sizes.parts()), [1, 1, 4, 1]);
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
        let expected = ops::relu(&sum).unwrap();
        let (dz, dbias) =
            bias::gradient_behind_relu(machine, sizes, y.operand(), held(&upstream).operand())
                .unwrap();
        assert_close(&tensor(y.storage, &shape), &expected, bound);
        let expected = gradients(&expected, &upstream, &of);
        assert_close(&tensor(dz, &shape), &expected[0], bound);
        assert_close(&tensor(dbias, channels), &expected[1], bound);
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
        let y = ops::avg_pool2d(&variable, kernel, stride).unwrap();
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
        let y = ops::avg_pool2d(&ops::relu(&sum).unwrap(), kernel, stride).unwrap();
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

#[test]
fn cross_entropy_and_its_gradient() {
    let Some(machine) = emulator() else { return };
    // Losses are not taken in bf16.
    for ((dtype, bound), [rows, classes]) in
        TYPES.into_iter().take(2).cartesian_product([[5, 7], [THREADS + 44, 10]])
    {
        let logits = rounded("logits", &[rows, classes], dtype);
        // Where exponentials would overflow.
        let logits = (logits * 100.0).unwrap();
        let labels: Vec<u32> = (0..).map(|row: u32| row * 3 % 7).take(rows).collect();
        let labels = Tensor::new(labels, &Device::Cpu).unwrap();
        let variable = exact(&logits);
        let loss = ops::cross_entropy(&variable, &labels).unwrap();
        let (logits, labels) = (held(&logits), held(&labels));
        let found =
            cross_entropy::loss(machine, classes, logits.operand(), labels.operand()).unwrap();
        assert_close(&tensor(found, ()), &loss, bound);

        let upstream = rounded("upstream", &[], dtype);
        let expected = gradients(&loss, &upstream, &[&variable]);
        let upstream = held(&upstream);
        let found = cross_entropy::gradient(
            machine,
            classes,
            logits.operand(),
            labels.operand(),
            upstream.operand(),
        )
        .unwrap();
        assert_close(&tensor(found, (rows, classes)), &expected[0], bound);
    }
}

#[test]
fn a_label_that_is_no_class_makes_the_loss_no_number() {
    let Some(machine) = emulator() else { return };
    let logits = held(&rounded("logits", &[3, 4], DType::F32));
    let labels = held(&Tensor::new(&[1u32, 4, 0], &Device::Cpu).unwrap());
    let loss = cross_entropy::loss(machine, 4, logits.operand(), labels.operand()).unwrap();
    assert!(tensor(loss, ()).to_scalar::<f64>().unwrap().is_nan());
}

#[test]
fn right_answers_are_counted() {
    let Some(machine) = emulator() else { return };
    for (dtype, _) in TYPES {
        // The last row has two largest logits, of which the first counts.
        let logits = Tensor::new(
            &[[0.5, 2.0, -1.0], [0.0, 1.0, 3.0], [4.0, 1.0, 3.0], [2.0, 1.0, 2.0]],
            &Device::Cpu,
        );
        let logits = held(&logits.unwrap().to_dtype(dtype).unwrap());
        let loss = held(&Tensor::new(0.75, &Device::Cpu).unwrap().to_dtype(dtype).unwrap());
        for (labels, right) in [([1u32, 2, 0, 0], 4.0), ([0, 2, 0, 2], 2.0), ([2, 0, 1, 1], 0.0)] {
            let labels = held(&Tensor::new(&labels, &Device::Cpu).unwrap());
            let found = cross_entropy::loss_and_correct(
                machine,
                3,
                loss.operand(),
                logits.operand(),
                labels.operand(),
            );
            assert_eq!(tensor(found.unwrap(), 2).to_vec1::<f64>().unwrap(), [0.75, right]);
        }
    }
}

#[test]
fn the_four_pieces_of_a_batch_norm() {
    let Some(machine) = emulator() else { return };
    let shapes = [[3, 4, 5, 3], [1, 2, 7, 9], [5, 1, 1, 1], [3, 2, 71, 61]];
    for (((dtype, bound), shape), relu) in
        TYPES.into_iter().take(2).cartesian_product(shapes).cartesian_product([false, true])
    {
        let [images, channels, height, width] = shape;
        let sizes = Channels { images, channels, plane: height * width };
        // Channels whose mean is large beside their deviation: f32 has four digits left for that.
        let mean = if dtype == DType::F32 { 10_000.123_456_789 } else { 0.5 };
        let x = (noise("x", &shape).as_detached_tensor() + mean).unwrap();
        let x = x.to_dtype(dtype).unwrap();
        let [weight, own] = ["weight", "bias"].map(|name| rounded(name, &[channels], dtype));
        let upstream = rounded("upstream", &shape, dtype);
        let of = [&exact(&x), &exact(&weight), &exact(&own)];
        let (y, _) = ops::batch_norm(of[0], of[1], of[2], EPSILON, relu).unwrap();
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
        let [of_bias, of_weight] = [sums.0, sums.1].map(|storage| tensor(storage, channels));
        assert_close(&of_weight, &expected[1], bound);
        assert_close(&of_bias, &expected[2], bound);

        let sums = [held(&of_bias), held(&of_weight)];
        let share = 1.0 / statistics.count as f64;
        let take = |share| {
            let slopes = batch_norm::Slopes {
                weight: weight.operand(),
                moments: moments(),
                sums: sums.each_ref().map(Held::operand),
                share,
            };
            tensor(batch_norm::input_gradient(machine, sizes, &images, slopes).unwrap(), &shape)
        };
        assert_close(&take(share), &expected[0], bound);
        // Statistics that were given are constants.
        let y = ops::batch_norm_with(of[0], of[1], of[2], &statistics, EPSILON, relu).unwrap();
        let expected = gradients(&y, &tensor(upstream.storage.clone(), &shape), &of);
        assert_close(&take(0.0), &expected[0], bound);
    }
}

#[test]
fn updates_in_place() {
    let Some(machine) = emulator() else { return };
    let n = 2 * THREADS + 3;
    for (dtype, bound) in TYPES {
        // A parameter that is the second half of some memory.
        let both = rounded("both", &[2, n], dtype);
        let (gradient, value) = (rounded("gradient", &[n], dtype), rounded("value", &[n], dtype));
        let (exact_both, exact_gradient) = (exact(&both), exact(&gradient));
        let second = exact_both.get(1).unwrap();
        let check = |held: Held, expected: Tensor| {
            let found = tensor(held.storage, (2, n));
            assert_close(&found.get(0).unwrap(), &exact_both.get(0).unwrap(), 0.0);
            assert_close(&found.get(1).unwrap(), &expected, bound);
        };
        let half = || {
            let Held { storage, layout } = held(&both);
            Held { storage, layout: layout.narrow(0, 1, 1).unwrap() }
        };

        let (mut updated, step) = (half(), 0.1 / 7.0);
        update::descend(machine, updated.updated(), held(&gradient).operand(), step).unwrap();
        check(updated, (&second - (exact_gradient.as_tensor() * step).unwrap()).unwrap());

        let (mut updated, constants) = (half(), [0.9, 0.25, 1e-2]);
        let (pushed, pulled) = (held(&gradient), held(&value));
        update::accelerate(
            machine,
            updated.updated(),
            pushed.operand(),
            pulled.operand(),
            constants,
        )
        .unwrap();
        let pull = ((exact_gradient.as_tensor() * 0.25).unwrap()
            + (exact(&value).as_tensor() * 1e-2).unwrap())
        .unwrap();
        check(updated, ((&second * 0.9).unwrap() + pull).unwrap());

        let mut updated = half();
        let fresh = held(&exact_gradient);
        update::average_into(machine, updated.updated(), fresh.operand(), 0.1).unwrap();
        let expected = (&second * 0.9).unwrap() + (exact_gradient.as_tensor() * 0.1).unwrap();
        check(updated, expected.unwrap());

        let mut other = held(&both);
        let error = update::descend(machine, other.updated(), held(&gradient).operand(), step);
        assert!(error.unwrap_err().to_string().contains("elements to update"));
    }
}

#[test]
fn what_a_kernel_cannot_take_is_refused() {
    let Some(machine) = emulator() else { return };
    let x = rounded("x", &[4, 6], DType::F32);
    let turned = x.t().unwrap();
    let (storage, layout) = turned.storage_and_layout();
    let Storage::Cpu(storage) = &*storage else { unreachable!("tests are on the CPU") };
    let error = Operand::new(storage, layout).err().unwrap().to_string();
    assert!(error.contains("contiguous"), "{error}");
    let whole = held(&x);
    for (name, operand) in
        [("another type", held(&exact(&x))), ("another size", held(&x.get(0).unwrap()))]
    {
        let error = relu::gradient(machine, whole.operand(), operand.operand()).unwrap_err();
        assert!(error.to_string().contains("expected 24 elements of F32"), "{name}: {error}");
    }
    let mut y = machine.room(23, DType::F32).unwrap();
    let launch = Launch::new(Source::Relu, "relu", DType::F32).count(24);
    let result = machine.run(launch.read(whole.operand(), 24).write(&mut y), 1);
    if machine.checks().unwrap() {
        // One element too few.
        assert!(result.unwrap_err().to_string().contains("heap-buffer-overflow"));
    }
}
