//! The tape: a node for each result, with the function that computes the gradients of the inputs.
//!
//! An operation computes its result first, and then [`record`] makes a tensor of the result. candle
//! can attach inputs and a backward pass only to the result of a custom operation, so [`Recorded`]
//! is one custom operation for all nodes: its forward pass returns the result that was computed.
//! candle's graph owns the node. The graph's end therefore frees the node with the node's inputs. A
//! global table maps each result to its node.

use std::cell::Cell;
use std::collections::HashMap;
use std::sync::{Arc, LazyLock, Mutex, Weak};

use candle_core::{
    CpuStorage, CudaStorage, CustomOp1, CustomOp2, CustomOp3, Layout, Result, Shape, Storage,
    Tensor, TensorId, bail,
};

use super::Accumulator;
use crate::element::{copied, tensor};
use harness::lock::locked;

/// Computes the gradients of the inputs, in their order, from the result and the result's gradient.
/// An input without a gradient has `None`, and so has an input whose gradient is not wanted.
type Backward = dyn Fn(&Tensor, &Tensor, Wanted) -> Result<Vec<Option<Tensor>>> + Send + Sync;

/// The gradients that an operation [in two halves](record_in_halves) computes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wanted {
    /// The gradient of the first input, an activation.
    pub input: bool,
    /// The gradients of all other inputs: weights and bias.
    pub weights: bool,
}

/// A backward pass for a result with two incoming gradients. The function takes the result and both
/// gradients, and returns one gradient that is the gradient of every input.
type BackwardOfTwo = fn(&Tensor, [&Tensor; 2]) -> Result<Tensor>;

/// A tape node: the inputs of an operation and its backward pass.
pub(super) struct Node {
    pub(super) name: &'static str,
    pub(super) inputs: Vec<Tensor>,
    backward: Box<Backward>,
    backward_of_two: Option<BackwardOfTwo>,
    /// Whether the gradient of the first input can be computed without the gradients of the others.
    pub(super) in_halves: bool,
    /// The result, until candle has taken it.
    result: Mutex<Option<(Storage, Shape)>>,
}

impl Node {
    /// Returns the gradients of the inputs, in their order. An input without a gradient has `None`.
    pub(super) fn backward(
        &self,
        result: &Tensor,
        gradient: Accumulator,
    ) -> Result<Vec<Option<Tensor>>> {
        if let (Some(backward), Accumulator::Two([a, b])) = (self.backward_of_two, &gradient) {
            let of_inputs = backward(result, [a, b])?;
            return Ok(vec![Some(of_inputs); self.inputs.len()]);
        }
        self.gradients(result, &gradient.sum()?, true, true)
    }

    /// Returns the gradient of the first input, if `input` and if it carries a gradient, and the
    /// gradients of the other inputs, if `weights`. Only a node in halves leaves gradients out.
    pub(super) fn gradients(
        &self,
        result: &Tensor,
        gradient: &Tensor,
        input: bool,
        weights: bool,
    ) -> Result<Vec<Option<Tensor>>> {
        // The first layer's input is data, and nothing uses its gradient.
        let input = input && self.inputs.first().is_some_and(|input| input.track_op());
        if !input && !weights {
            return Ok(Vec::new());
        }
        (self.backward)(result, gradient, Wanted { input, weights })
    }

    fn take_result(&self) -> Result<(Storage, Shape)> {
        match locked(&self.result).take() {
            Some(result) => Ok(result),
            None => bail!("{}: a result becomes a tensor once", self.name),
        }
    }
}

/// Makes a tensor of a result, and records on the tape how the gradient of the result becomes the
/// gradients of the inputs.
///
/// `storage` holds the result alone, contiguous and of shape `shape`. `backward` takes the result
/// and its gradient, which has the shape and type of the result. `backward` returns the gradients
/// of the inputs in their order, each in the shape and type of its input, or `None`. `backward`
/// must not own the result, because the result owns `backward`.
///
/// If no input carries a gradient, or within [`no_grad`](fn@super::no_grad), the result carries
/// none either. Then neither the inputs nor `backward` are kept. Fails when the result and the
/// inputs are on different devices.
pub fn record<const N: usize>(
    name: &'static str,
    storage: Storage,
    shape: impl Into<Shape>,
    inputs: [&Tensor; N],
    backward: impl Fn(&Tensor, &Tensor) -> Result<[Option<Tensor>; N]> + Send + Sync + 'static,
) -> Result<Tensor> {
    let backward =
        move |result: &Tensor, gradient: &Tensor, _: Wanted| Ok(backward(result, gradient)?.into());
    record_node(name, (storage, shape.into()), &inputs, Box::new(backward), None, false)
}

/// Does the same as [`record`] for an operation whose gradients can be computed in two calls: the
/// gradient of the first input, an activation, and later the gradients of the weights.
///
/// `backward` computes the gradients that are wanted, and returns `None` for the others. A pass [in
/// two halves](super::backward_in_halves) wants the first input's gradient in its first half and
/// the other gradients in its second half; any other pass wants all that carry a gradient in one
/// call. `backward` must compute the same bits in either case. Fails like [`record`].
pub fn record_in_halves<const N: usize>(
    name: &'static str,
    storage: Storage,
    shape: impl Into<Shape>,
    inputs: [&Tensor; N],
    backward: impl Fn(&Tensor, &Tensor, Wanted) -> Result<[Option<Tensor>; N]> + Send + Sync + 'static,
) -> Result<Tensor> {
    let backward = move |result: &Tensor, gradient: &Tensor, wanted: Wanted| {
        Ok(backward(result, gradient, wanted)?.into())
    };
    record_node(name, (storage, shape.into()), &inputs, Box::new(backward), None, true)
}

/// Does the same as [`record`] for a result that is a tensor already.
///
/// The tensor may be a view, and it may carry a gradient. The function copies the tensor, because
/// candle treats the memory of a recorded result as the result's own. Fails like [`record`].
pub fn record_copy<const N: usize>(
    name: &'static str,
    result: &Tensor,
    inputs: [&Tensor; N],
    backward: impl Fn(&Tensor, &Tensor) -> Result<[Option<Tensor>; N]> + Send + Sync + 'static,
) -> Result<Tensor> {
    record(name, copied(result, result.layout(), result.dtype())?, result.shape(), inputs, backward)
}

/// Does the same as [`record`], with a second backward pass for two incoming gradients.
///
/// `of_two` returns the gradient that `backward` would return for each input and the sum of the two
/// gradients. Fails like [`record`].
pub(crate) fn record_with_two<const N: usize>(
    name: &'static str,
    storage: Storage,
    shape: impl Into<Shape>,
    inputs: [&Tensor; N],
    backward: impl Fn(&Tensor, &Tensor) -> Result<[Option<Tensor>; N]> + Send + Sync + 'static,
    of_two: BackwardOfTwo,
) -> Result<Tensor> {
    let backward =
        move |result: &Tensor, gradient: &Tensor, _: Wanted| Ok(backward(result, gradient)?.into());
    record_node(name, (storage, shape.into()), &inputs, Box::new(backward), Some(of_two), false)
}

fn record_node(
    name: &'static str,
    (storage, shape): (Storage, Shape),
    inputs: &[&Tensor],
    backward: Box<Backward>,
    backward_of_two: Option<BackwardOfTwo>,
    in_halves: bool,
) -> Result<Tensor> {
    if NO_GRAD.get() || !inputs.iter().any(|input| input.track_op()) {
        return Ok(tensor(storage, shape));
    }
    let inputs = inputs.iter().copied().cloned().collect();
    let result = Mutex::new(Some((storage, shape)));
    let node = Arc::new(Node { name, inputs, backward, backward_of_two, in_halves, result });
    let recorded = Recorded(Arc::clone(&node));
    let result = match node.inputs.as_slice() {
        [x] => x.apply_op1(recorded),
        [x, y] => x.apply_op2(y, recorded),
        [x, y, z] => x.apply_op3(y, z, recorded),
        inputs => bail!("{name}: candle's operations have at most 3 inputs, not {}", inputs.len()),
    }?;
    insert(&result, Arc::downgrade(&node));
    Ok(result)
}

thread_local! {
    /// Whether this thread runs within [`no_grad`].
    static NO_GRAD: Cell<bool> = const { Cell::new(false) };
}

/// Runs `run` without recording a tape, like PyTorch's `no_grad`.
///
/// No result that [`record`] makes within `run` carries a gradient. An input of an
/// operation is freed as soon as nothing else uses it. All values are the same, to the last bit.
///
/// A result that carries a gradient keeps its inputs, and these keep their own inputs. The graph
/// therefore holds all intermediate results of a forward pass in memory until the last result is
/// dropped. Evaluating a model needs only the last result.
///
/// The setting applies to this thread only: work that `run` gives to another thread needs its own
/// call. candle's own operations on variables still carry gradients.
///
/// ```
/// use candle_core::{Device, Var};
/// use ops::backward::no_grad;
/// use ops::relu;
///
/// let x = Var::new(&[-1f32, 2.0], &Device::Cpu)?;
/// assert!(relu(&x)?.track_op());
/// assert!(!no_grad(|| relu(&x))?.track_op());
/// # Ok::<(), candle_core::Error>(())
/// ```
pub fn no_grad<R>(run: impl FnOnce() -> R) -> R {
    /// Restores the previous setting, even if `run` panics.
    struct Before(bool);

    impl Drop for Before {
        fn drop(&mut self) {
            NO_GRAD.set(self.0);
        }
    }

    let _before = Before(NO_GRAD.replace(true));
    run()
}

/// The tape nodes, by the tensors that they computed.
static NODES: LazyLock<Mutex<Nodes>> = LazyLock::new(Mutex::default);

#[derive(Default)]
struct Nodes {
    of: HashMap<TensorId, Weak<Node>>,
    /// The number of nodes after the table was last cleared of nodes of dropped graphs.
    living: usize,
}

/// Returns the tape node of a tensor, if one of the course's operations computed the tensor.
pub(super) fn node_of(result: &Tensor) -> Option<Arc<Node>> {
    locked(&NODES).of.get(&result.id())?.upgrade()
}

/// The number of nodes in the table, including nodes of dropped graphs.
#[cfg(test)]
pub(super) fn listed() -> usize {
    locked(&NODES).of.len()
}

fn insert(result: &Tensor, node: Weak<Node>) {
    /// A smaller table is not searched for nodes of dropped graphs.
    const AT_LEAST: usize = 1024;
    let mut nodes = locked(&NODES);
    if nodes.of.len() >= AT_LEAST + 2 * nodes.living {
        nodes.of.retain(|_, node| node.strong_count() > 0);
        nodes.living = nodes.of.len();
    }
    nodes.of.insert(result.id(), node);
}

/// The custom operation that candle's graph owns: it keeps the tape node alive. candle's backward
/// pass calls it if a loss also depends on candle's operations.
struct Recorded(Arc<Node>);

impl Recorded {
    fn forward_cpu(&self) -> Result<(CpuStorage, Shape)> {
        match self.0.take_result()? {
            (Storage::Cpu(storage), shape) => Ok((storage, shape)),
            _ => bail!("{}: the inputs are in CPU memory, and the result is not", self.0.name),
        }
    }

    fn forward_cuda(&self) -> Result<(CudaStorage, Shape)> {
        match self.0.take_result()? {
            (Storage::Cuda(storage), shape) => Ok((storage, shape)),
            _ => bail!("{}: the inputs are on a GPU, and the result is not", self.0.name),
        }
    }

    fn backward<const N: usize>(
        &self,
        result: &Tensor,
        gradient: &Tensor,
    ) -> Result<[Option<Tensor>; N]> {
        match self.0.gradients(result, gradient, true, true)?.try_into() {
            Ok(gradients) => Ok(gradients),
            Err(_) => bail!("{}: there is a gradient for each input", self.0.name),
        }
    }
}

/// Implements one of candle's traits for operations of some inputs. Each input has a name for its
/// memory or value and a name for its layout. `$into` converts the array of their gradients.
macro_rules! custom_op {
    ($trait:ident, $gradients:ty, $into:expr, $($input:ident $layout:ident),+) => {
        impl $trait for Recorded {
            fn name(&self) -> &'static str {
                self.0.name
            }

            fn cpu_fwd(
                &self,
                $($input: &CpuStorage, $layout: &Layout),+
            ) -> Result<(CpuStorage, Shape)> {
                self.forward_cpu()
            }

            fn cuda_fwd(
                &self,
                $($input: &CudaStorage, $layout: &Layout),+
            ) -> Result<(CudaStorage, Shape)> {
                self.forward_cuda()
            }

            fn bwd(
                &self,
                $($input: &Tensor),+,
                result: &Tensor,
                gradient: &Tensor,
            ) -> Result<$gradients> {
                self.backward(result, gradient).map($into)
            }
        }
    };
}

type Gradient = Option<Tensor>;
custom_op!(CustomOp1, Gradient, |[dx]: [_; 1]| dx, _x _of_x);
custom_op!(CustomOp2, (Gradient, Gradient), <[_; 2]>::into, _x _of_x, _y _of_y);
custom_op!(CustomOp3, (Gradient, Gradient, Gradient), <[_; 3]>::into, _x _of_x, _y _of_y, _z _of_z);

#[cfg(test)]
mod tests {
    use candle_core::backend::BackendStorage as _;
    use candle_core::{DType, Device, Var};

    use super::*;

    #[test]
    fn what_a_view_shows_becomes_a_result_once_in_memory_of_its_own() {
        let input = Var::zeros((), DType::F32, &Device::Cpu).unwrap();
        let whole = Tensor::arange(0f64, 12.0, &Device::Cpu).unwrap().reshape((3, 4)).unwrap();
        for dtype in [DType::F64, DType::F32, DType::BF16] {
            let whole = whole.to_dtype(dtype).unwrap();
            for view in
                [whole.t().unwrap().narrow(0, 1, 2).unwrap(), whole.narrow(0, 1, 0).unwrap()]
            {
                let result = record_copy("view", &view, [&input], |_, _| Ok([None])).unwrap();
                assert_eq!((result.dims(), result.dtype()), (view.dims(), dtype));
                let (memory, layout) = result.storage_and_layout();
                let Storage::Cpu(memory) = &*memory else { panic!("a result in CPU memory") };
                let found = memory.to_dtype(&Layout::contiguous(layout.shape()), DType::F64);
                let expected = view.to_dtype(DType::F64).unwrap().flatten_all().unwrap();
                assert_eq!(
                    found.unwrap().as_slice::<f64>().unwrap(),
                    expected.to_vec1::<f64>().unwrap()
                );
                let again = Recorded(node_of(&result).unwrap()).forward_cpu().unwrap_err();
                assert!(again.to_string().contains("becomes a tensor once"), "{again}");
            }
        }
    }
}
