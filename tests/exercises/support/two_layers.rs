//! Two dense layers with relu between them: as a whole, or one rank's part of them; and their gradients.
//!
//! ```text
//! H = relu(X·A + a)        A and a are the first layer's weight and bias
//! Y = H·B + b              B and b the second's
//! ```

use std::sync::Arc;

use candle_core::{Device, Result, Tensor, Var};
use devices::{DeviceKind, DevicePlan};
use model_parallel::tensor_parallel::Group;
use model_parallel::tensor_parallel::linear::{linear_by_row, linear_relu_by_column};
use params_and_allreduce::Algorithm;
use params_and_allreduce::communicator::{Communicator as _, Error};
use params_and_allreduce::thread::{DEFAULT_TIMEOUT, run_ranks};

/// A dense layer, or the gradients of one.
#[derive(Clone, Debug)]
pub struct Layer {
    /// `[in, out]`
    pub weight: Tensor,
    /// `[out]`
    pub bias: Tensor,
}

/// Two dense layers, or the gradients of them.
#[derive(Clone, Debug)]
pub struct TwoLayers {
    /// A `[in, hidden]` and a `[hidden]`.
    pub first: Layer,
    /// B `[hidden, out]` and b `[out]`.
    pub second: Layer,
}

/// The gradients of the loss.
#[derive(Clone, Debug)]
pub struct Gradients {
    /// The gradient of the input, `[B, in]`.
    pub x: Tensor,
    /// The gradients of the layers.
    pub layers: TwoLayers,
}

/// The results of one device for a batch.
#[derive(Clone, Debug)]
pub struct Computed {
    /// X·A + a, before relu: `[B, hidden]`.
    pub before_relu: Tensor,
    /// Y `[B, out]`.
    pub y: Tensor,
    /// The gradients.
    pub gradients: Gradients,
}

/// Whole numbers from −3 to 3 in f64, in an order that `salt` decides.
pub fn whole_numbers(shape: &[usize], salt: usize) -> Result<Tensor> {
    let count = shape.iter().product();
    let number =
        |index: usize| ((index + salt) * (index + 3 * salt + 5) * 31 % 97 % 7) as f64 - 3.0;
    Tensor::from_vec((0..count).map(number).collect::<Vec<_>>(), shape, &Device::Cpu)
}

/// Numbers above 0 that round, 1/first, 1/(first + 1), … with `first` at least 1: their sums depend on the order.
pub fn fractions(shape: &[usize], first: u32) -> Result<Tensor> {
    let count = shape.iter().product::<usize>() as u32;
    let numbers = (first..first + count).map(|number| 1.0 / f64::from(number));
    Tensor::from_vec(numbers.collect::<Vec<f64>>(), shape, &Device::Cpu)
}

impl TwoLayers {
    /// Layers of [`fractions`].
    pub fn of_fractions(inputs: usize, hidden: usize, outputs: usize) -> Result<Self> {
        let layer = |inputs: usize, outputs: usize, first| {
            let bias = fractions(&[outputs], first + 1)?;
            Ok::<_, candle_core::Error>(Layer {
                weight: fractions(&[inputs, outputs], first)?,
                bias,
            })
        };
        Ok(Self { first: layer(inputs, hidden, 3)?, second: layer(hidden, outputs, 5)? })
    }

    /// Layers of small numbers, whose sums are exact in every order.
    ///
    /// Their weights are whole, and the first layer's biases are not: with a whole input, no number before relu is
    /// zero. At zero, the gradient of relu would be a convention.
    pub fn of_small_numbers(inputs: usize, hidden: usize, outputs: usize) -> Result<Self> {
        let first = Layer {
            weight: whole_numbers(&[inputs, hidden], 1)?,
            bias: (whole_numbers(&[hidden], 2)? + 0.5)?,
        };
        let second = Layer {
            weight: whole_numbers(&[hidden, outputs], 3)?,
            bias: Tensor::arange(5f64, 5.0 + outputs as f64, &Device::Cpu)?,
        };
        Ok(Self { first, second })
    }

    /// The results of these layers for `x` `[B, in]` on one device, when the gradient of Y is `dy` `[B, out]`.
    ///
    /// Automatic differentiation computes the gradients.
    pub fn on_one_device(&self, x: &Tensor, dy: &Tensor) -> Result<Computed> {
        let [x, a, a_bias, b, b_bias] = variables(self, x)?;
        let before_relu = x.matmul(&a)?.broadcast_add(&a_bias)?;
        let y = before_relu.relu()?.matmul(&b)?.broadcast_add(&b_bias)?;
        let gradients = gradients(&y, dy, [x, a, a_bias, b, b_bias])?;
        Ok(Computed { before_relu: before_relu.detach(), y: y.detach(), gradients })
    }

    /// Pairs of a tensor of these layers and the same tensor of other layers, with their names.
    pub fn beside<'a>(&'a self, other: &'a Self) -> [(&'static str, [&'a Tensor; 2]); 4] {
        [
            ("A", [&self.first.weight, &other.first.weight]),
            ("a", [&self.first.bias, &other.first.bias]),
            ("B", [&self.second.weight, &other.second.weight]),
            ("b", [&self.second.bias, &other.second.bias]),
        ]
    }
}

/// Y and the gradients of stage 6's layers on every rank, from the rank's part and the same `x` and `dy`.
/// Panics when the parts do not fit.
pub fn by_stage_6(parts: &[TwoLayers], x: &Tensor, dy: &Tensor) -> Vec<(Tensor, Gradients)> {
    let devices = DevicePlan::new(DeviceKind::Cpu, parts.len(), None).expect("slices of the CPU");
    let outcomes = run_ranks(&devices, DEFAULT_TIMEOUT, |rank| {
        let group = Group::new(Arc::new(rank.clone()), Algorithm::default());
        let [x, a, a_bias, b, b_bias] = variables(&parts[rank.rank()], x)?;
        let hidden = linear_relu_by_column(&x, &a, &a_bias, &group)?;
        let y = linear_by_row(&hidden, &b, &b_bias, &group)?;
        let gradients = gradients(&y, dy, [x, a, a_bias, b, b_bias])?;
        Ok::<_, Error>((y.detach(), gradients))
    });
    outcomes.expect("stage 6 computes")
}

/// The input and the tensors of layers, as variables.
fn variables(TwoLayers { first, second }: &TwoLayers, x: &Tensor) -> Result<[Var; 5]> {
    Ok([
        Var::from_tensor(x)?,
        Var::from_tensor(&first.weight)?,
        Var::from_tensor(&first.bias)?,
        Var::from_tensor(&second.weight)?,
        Var::from_tensor(&second.bias)?,
    ])
}

/// The gradients of these variables, when the gradient of Y is `dy`.
fn gradients(y: &Tensor, dy: &Tensor, variables: [Var; 5]) -> Result<Gradients> {
    let found = (y * dy)?.sum_all()?.backward()?;
    let of = |var: Var| found.get(&var).map_or_else(|| var.zeros_like(), |one| Ok(one.detach()));
    let [x, a, a_bias, b, b_bias] = variables.map(of);
    let first = Layer { weight: a?, bias: a_bias? };
    let second = Layer { weight: b?, bias: b_bias? };
    Ok(Gradients { x: x?, layers: TwoLayers { first, second } })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Computed by hand: relu lets one of the two numbers in H pass.
    #[test]
    fn one_device_computes_both_layers_and_all_gradients() {
        let tensor = |rows: &[&[f64]]| {
            let row = rows[0].len();
            Tensor::from_vec(rows.concat(), (rows.len(), row), &Device::Cpu).unwrap()
        };
        let vector = |numbers: &[f64]| Tensor::new(numbers, &Device::Cpu).unwrap();
        let layers = TwoLayers {
            first: Layer { weight: tensor(&[&[1.0, -1.0]]), bias: vector(&[0.5, 0.5]) },
            second: Layer { weight: tensor(&[&[3.0], &[5.0]]), bias: vector(&[7.0]) },
        };
        let outcome = layers.on_one_device(&tensor(&[&[2.0]]), &tensor(&[&[10.0]])).unwrap();
        let numbers = |tensor: &Tensor| crate::expectation::numbers(tensor).unwrap();
        assert_eq!(numbers(&outcome.before_relu), [2.5, -1.5]);
        assert_eq!(numbers(&outcome.y), [14.5]);
        let Gradients { x, layers: TwoLayers { first, second } } = outcome.gradients;
        assert_eq!(numbers(&second.bias), [10.0]);
        assert_eq!(numbers(&second.weight), [25.0, 0.0]);
        assert_eq!(numbers(&first.bias), [30.0, 0.0]);
        assert_eq!(numbers(&first.weight), [60.0, 0.0]);
        assert_eq!(numbers(&x), [30.0]);
    }

    #[test]
    fn before_relu_no_number_is_zero_and_some_have_either_sign() {
        for hidden in [1, 4, 5, 7, 40] {
            let layers = TwoLayers::of_small_numbers(3, hidden, 2).unwrap();
            let (x, dy) = (whole_numbers(&[2, 3], 4).unwrap(), whole_numbers(&[2, 2], 5).unwrap());
            let before_relu = layers.on_one_device(&x, &dy).unwrap().before_relu;
            let numbers = crate::expectation::numbers(&before_relu).unwrap();
            assert!(!numbers.contains(&0.0), "{numbers:?}");
            let negative = numbers.iter().filter(|number| **number < 0.0).count();
            assert!(hidden == 1 || (1..numbers.len()).contains(&negative), "{numbers:?}");
        }
    }
}
