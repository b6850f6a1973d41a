//! Every launch, run by the emulator, against the operation of the CPU.

mod layers;
mod losses;
mod norms;
mod updates;

use std::sync::OnceLock;

use candle_core::op::BackpropOp;
use candle_core::{CpuStorage, DType, Device, Layout, Shape, Storage, Tensor, Var};
use itertools::Itertools as _;

use super::blocks::{Channels, THREADS};
use super::change::Change;
use super::emulator::Emulator;
use super::kernel::Source;
use super::launch::{Launch, Operand};
use super::machine::Machine as _;
use super::{batch_norm, bias, cross_entropy, pooling, relu, sum, transpose, update};
use crate::agreement::noise;
use crate::avg_pool2d::Windows;
use crate::batch_norm::Statistics;
use crate::difference::relative_difference;

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
}

fn held(tensor: &Tensor) -> Held {
    let tensor = tensor.force_contiguous().unwrap();
    let (storage, layout) = tensor.storage_and_layout();
    match &*storage {
        Storage::Cpu(storage) => Held { storage: storage.clone(), layout: layout.clone() },
        _ => unreachable!("tests are on the CPU"),
    }
}

/// So many elements of a tensor that has no others between them, with all of its memory.
fn narrowed(tensor: &Tensor, from: usize, elements: usize) -> Held {
    let Held { storage, .. } = held(tensor);
    Held { storage, layout: Layout::contiguous_with_offset(elements, from) }
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

/// Elements that make whole vectors, and that do not.
const COUNTS: [usize; 2] = [5 * 68, 5 * 67];

#[test]
fn relu_and_its_gradient() {
    let Some(machine) = emulator() else { return };
    for ((dtype, _), count) in TYPES.into_iter().cartesian_product(COUNTS) {
        let x = rounded("x", &[count], DType::F32);
        // Zeros among them, where the derivative is a choice.
        let x = (x * 2.0).unwrap().round().unwrap().to_dtype(dtype).unwrap();
        let upstream = rounded("upstream", &[count], dtype);
        let variable = exact(&x);
        let y = crate::relu(&variable).unwrap();
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
fn a_sum_and_its_relu() {
    let Some(machine) = emulator() else { return };
    for ((dtype, bound), count) in TYPES.into_iter().cartesian_product(COUNTS) {
        let (x, y) = (rounded("x", &[count], dtype), rounded("y", &[count], dtype));
        let expected = crate::add_relu(&exact(&x), &exact(&y)).unwrap();
        let (x, y) = (held(&x), held(&y));
        let found = relu::add_relu(machine, [x.operand(), y.operand()]).unwrap();
        assert_close(&tensor(found, count), &expected, bound);
    }
}

#[test]
fn a_relus_gradient_of_a_sum_is_that_of_the_sum_to_the_last_bit() {
    let Some(machine) = emulator() else { return };
    for ((dtype, _), count) in TYPES.into_iter().cartesian_product(COUNTS) {
        let [y, a, b] = ["y", "a", "b"].map(|name| held(&rounded(name, &[count], dtype)));
        let sum = sum::sum(machine, [a.operand(), b.operand()]).unwrap();
        let apart = relu::gradient(machine, y.operand(), Operand::whole(&sum, count)).unwrap();
        let operands = [y.operand(), a.operand(), b.operand()];
        let at_once = relu::gradient_of_sum(machine, operands).unwrap();
        assert_close(&tensor(at_once, count), &exact(&tensor(apart, count)), 0.0);
    }
}

#[test]
fn a_sum_is_candles_to_the_last_bit() {
    let Some(machine) = emulator() else { return };
    for ((dtype, _), count) in TYPES.into_iter().cartesian_product(COUNTS) {
        let (x, y) = (rounded("x", &[count], dtype), rounded("y", &[count], dtype));
        let expected = exact(&(&x + &y).unwrap());
        let (x, y) = (held(&x), held(&y));
        let found = sum::sum(machine, [x.operand(), y.operand()]).unwrap();
        assert_close(&tensor(found, count), &expected, 0.0);
    }
}

#[test]
fn rows_become_columns() {
    let Some(machine) = emulator() else { return };
    for ((dtype, _), (rows, columns)) in
        TYPES.into_iter().cartesian_product([(10, 512), (512, 10), (1, 7), (33, 1)])
    {
        let x = rounded("x", &[rows, columns], dtype);
        let found = transpose::transpose(machine, (rows, columns), held(&x).operand()).unwrap();
        assert_close(&tensor(found, (columns, rows)), &exact(&x).t().unwrap(), 0.0);
    }
}

#[test]
fn elements_are_worked_on_from_wherever_they_begin() {
    let Some(machine) = emulator() else { return };
    let x = rounded("x", &[69], DType::F32);
    for from in 0..=1 {
        let found = relu::relu(machine, narrowed(&x, from, 68).operand()).unwrap();
        let x = exact(&x.narrow(0, from, 68).unwrap());
        assert_close(&tensor(found, 68), &crate::relu(&x).unwrap(), 0.0);
    }
}

#[test]
fn what_is_not_a_number_stays_visible() {
    let Some(machine) = emulator() else { return };
    for (dtype, _) in TYPES {
        for elements in [2, 4] {
            let x = Tensor::full(f64::NAN, elements, &Device::Cpu).unwrap();
            let y = relu::relu(machine, held(&x.to_dtype(dtype).unwrap()).operand()).unwrap();
            let y = tensor(y, elements).to_vec1::<f64>().unwrap();
            assert!(y.iter().all(|y| y.is_nan()), "{dtype:?}: {y:?}");
        }
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
