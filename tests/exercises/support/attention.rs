//! A layer of causal attention: as a whole, or one rank's heads of it; and the gradients.

use candle_core::{Result, Tensor, Var};
use ops::backward::backward_from;
use ops::causal_attention;
use split_batch::shard_range;

use crate::two_layers::{Layer, whole_numbers};

/// Attention over C features, or h of its columns on one rank: as many heads as fit into h.
#[derive(Clone, Debug)]
pub struct Attention {
    /// Queries: weight `[C, h]`, bias `[h]`.
    pub query: Layer,
    /// Keys: the weight `[C, h]` alone. A bias would add one number to all scores of a token, and softmax ignores it.
    pub key: Tensor,
    /// Values: weight `[C, h]`, bias `[h]`.
    pub value: Layer,
    /// From the heads to the result: weight `[h, C]`, bias `[C]`.
    pub out: Layer,
}

impl From<[Tensor; 7]> for Attention {
    fn from([q, q_bias, key, v, v_bias, o, o_bias]: [Tensor; 7]) -> Self {
        let layer = |weight, bias| Layer { weight, bias };
        Self { query: layer(q, q_bias), key, value: layer(v, v_bias), out: layer(o, o_bias) }
    }
}

impl Attention {
    /// The tensors, in the order of the fields.
    pub fn tensors(&self) -> [&Tensor; 7] {
        let Self { query, key, value, out } = self;
        [&query.weight, &query.bias, key, &value.weight, &value.bias, &out.weight, &out.bias]
    }

    /// Attention over so many features, of small numbers.
    pub fn of_small_numbers(features: usize) -> Result<Self> {
        let tensor = |salt: usize, shape: &[usize]| whole_numbers(shape, salt)? / 4.0;
        let (square, row) = (&[features; 2], &[features]);
        let weights = [tensor(1, square)?, tensor(2, square)?, tensor(3, square)?];
        let [q, key, v] = weights;
        let (o, biases) = (tensor(4, square)?, [tensor(6, row)?, tensor(7, row)?, tensor(8, row)?]);
        let [q_bias, v_bias, o_bias] = biases;
        Ok([q, q_bias, key, v, v_bias, o, o_bias].into())
    }

    /// The parts of all ranks: whole heads, and all of the last bias. Gradients are cut like the tensors.
    pub fn parts(&self, heads: usize, ranks: usize) -> Result<Vec<Self>> {
        let [q, q_bias, key, v, v_bias, o, o_bias] = self.tensors();
        let size = q_bias.elem_count() / heads;
        let part = |rank| {
            let mine = shard_range(heads, ranks, rank);
            let cut = |tensor: &Tensor, axis: usize| {
                tensor.narrow(axis, mine.start * size, mine.len() * size)?.force_contiguous()
            };
            let (out, whole) = (cut(o, 0)?, o_bias.clone());
            let first = [cut(q, 1)?, cut(q_bias, 0)?, cut(key, 1)?, cut(v, 1)?, cut(v_bias, 0)?];
            let [q, q_bias, key, v, v_bias] = first;
            Ok([q, q_bias, key, v, v_bias, out, whole].into())
        };
        (0..ranks).map(part).collect()
    }

    /// The result for `x` `[B, T, C]`, and the gradients of `x` and of all tensors if the gradient of the result is `dy`, by any
    /// function of these tensors and of `x`.
    pub fn passes(
        &self,
        [x, dy]: [&Tensor; 2],
        forward: impl FnOnce(&Self, &Tensor) -> Result<Tensor>,
        between: impl FnOnce(),
    ) -> Result<(Tensor, Tensor, Self)> {
        let x = Var::from_tensor(x)?;
        let variables = self.tensors().map(Var::from_tensor);
        let variables = variables.into_iter().collect::<Result<Vec<_>>>()?;
        let all: [Tensor; 7] = std::array::from_fn(|at| variables[at].as_tensor().clone());
        let y = forward(&all.into(), x.as_tensor())?;
        between();
        let found = backward_from(&y, dy)?;
        let of = |variable: &Var| match found.get(variable) {
            Some(gradient) => Ok(gradient.detach()),
            None => variable.zeros_like(),
        };
        let gradients = variables.iter().map(of).collect::<Result<Vec<_>>>()?;
        let gradients: [Tensor; 7] = std::array::from_fn(|at| gradients[at].clone());
        Ok((y.detach(), of(&x)?, gradients.into()))
    }

    /// The result of one device for `x` `[B, T, C]`.
    pub fn on_one_device(&self, x: &Tensor, heads: usize) -> Result<Tensor> {
        let [q, q_bias, key, v, v_bias, o, o_bias] = self.tensors();
        let query = x.broadcast_matmul(q)?.broadcast_add(q_bias)?;
        let value = x.broadcast_matmul(v)?.broadcast_add(v_bias)?;
        let mixed = causal_attention(&query, &x.broadcast_matmul(key)?, &value, heads)?;
        mixed.broadcast_matmul(o)?.broadcast_add(o_bias)
    }
}
