//! The MLP of a block of the GPT, two dense layers with GELU between them: as a whole, or one rank's part; and the gradients.
//!
//! ```text
//! Z = X·A + a              A and a are the first layer's weight and bias
//! Y = gelu(Z)·B + b        B and b the second's
//! ```

use candle_core::{Device, Result, Tensor, Var};
use ops::backward::{backward, backward_from};
pub use ops::gelu_tanh as gelu;
use split_batch::shard_range;

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
    /// The gradient of the input, `[N, in]`.
    pub x: Tensor,
    /// The gradients of the layers.
    pub layers: TwoLayers,
}

/// The results of one device for some tokens.
#[derive(Clone, Debug)]
pub struct Computed {
    /// Z = X·A + a, before GELU: `[N, hidden]`.
    pub z: Tensor,
    /// Y `[N, out]`.
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

/// The derivative of GELU at each number of a tensor, of any shape.
pub fn gelu_slope(z: &Tensor) -> Result<Tensor> {
    let variable = Var::from_tensor(z)?;
    let found = backward_from(&gelu(&variable)?, &z.ones_like()?)?;
    Ok(found.get(&variable).map_or_else(|| z.zeros_like(), |slope| Ok(slope.clone()))?.detach())
}

impl From<[Tensor; 4]> for TwoLayers {
    fn from([a, a_bias, b, b_bias]: [Tensor; 4]) -> Self {
        let layer = |weight, bias| Layer { weight, bias };
        Self { first: layer(a, a_bias), second: layer(b, b_bias) }
    }
}

impl TwoLayers {
    /// A, a, B and b.
    pub fn tensors(&self) -> [&Tensor; 4] {
        let Self { first, second } = self;
        [&first.weight, &first.bias, &second.weight, &second.bias]
    }

    /// Layers of small numbers.
    pub fn of_small_numbers(inputs: usize, hidden: usize, outputs: usize) -> Result<Self> {
        let [a, b] = [whole_numbers(&[inputs, hidden], 1)?, whole_numbers(&[hidden, outputs], 3)?];
        let a_bias = whole_numbers(&[hidden], 2)?;
        let b_bias = Tensor::arange(5f64, 5.0 + outputs as f64, &Device::Cpu)?;
        Ok([a, a_bias, b, b_bias].into())
    }

    /// The same layers with other numbers.
    pub fn map(&self, other: impl Fn(&Tensor) -> Result<Tensor>) -> Result<Self> {
        let [a, a_bias, b, b_bias] = self.tensors().map(other);
        Ok([a?, a_bias?, b?, b_bias?].into())
    }

    /// The parts of all ranks. The gradients of layers are cut like layers.
    pub fn parts(&self, ranks: usize) -> Result<Vec<Self>> {
        let [a, a_bias, b, b_bias] = self.tensors();
        let part = |rank| {
            let columns = shard_range(a_bias.elem_count(), ranks, rank);
            let cut = |tensor: &Tensor, axis: usize| {
                tensor.narrow(axis, columns.start, columns.len())?.force_contiguous()
            };
            Ok([cut(a, 1)?, cut(a_bias, 0)?, cut(b, 0)?, b_bias.clone()].into())
        };
        (0..ranks).map(part).collect()
    }

    /// The results of these layers for `x` `[N, in]` on one device, when the gradient of Y is `dy` `[N, out]`.
    ///
    /// Automatic differentiation computes the gradients.
    pub fn on_one_device(&self, x: &Tensor, dy: &Tensor) -> Result<Computed> {
        let [a, a_bias, b, b_bias] = self.tensors().map(Var::from_tensor);
        let (x, a, a_bias, b, b_bias) = (Var::from_tensor(x)?, a?, a_bias?, b?, b_bias?);
        let z = x.matmul(&a)?.broadcast_add(&a_bias)?;
        let y = gelu(&z)?.matmul(&b)?.broadcast_add(&b_bias)?;
        let found = backward(&(&y * dy)?.sum_all()?)?;
        let of =
            |var: &Var| found.get(var).map_or_else(|| var.zeros_like(), |one| Ok(one.detach()));
        let layers = [of(&a)?, of(&a_bias)?, of(&b)?, of(&b_bias)?].into();
        let gradients = Gradients { x: of(&x)?, layers };
        Ok(Computed { z: z.detach(), y: y.detach(), gradients })
    }

    /// Pairs of a tensor of these layers and the same tensor of other layers, with their names.
    pub fn beside<'a>(&'a self, other: &'a Self) -> [(&'static str, [&'a Tensor; 2]); 4] {
        let (own, others) = (self.tensors(), other.tensors());
        [("A", 0), ("a", 1), ("B", 2), ("b", 3)].map(|(name, at)| (name, [own[at], others[at]]))
    }
}
