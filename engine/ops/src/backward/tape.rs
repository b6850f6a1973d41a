//! The tape: a node for each result, with the function that computes the gradients of the inputs.
//!
//! [`record`] makes a tensor of an operation's result. candle attaches inputs and a backward pass only to the result of a
//! custom operation. [`Recorded`] is this operation for all nodes: its forward pass returns the result that was computed.
//! candle's graph owns the node and frees it. A global table maps each result to its node.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::{Arc, LazyLock, Mutex, Weak};

use candle_core::{
    CpuStorage, CudaStorage, CustomOp1, CustomOp2, CustomOp3, DType, Layout, Result, Shape,
    Storage, Tensor, TensorId, Var, bail,
};

use super::Accumulator;
use crate::kernels::element::{copied, tensor};
use harness::lock::locked;

/// Computes the gradients that are wanted from the result and its gradient, in the order of the inputs.
type Backward = dyn Fn(&Tensor, Accumulator, Wanted) -> Result<Vec<Option<Tensor>>> + Send + Sync;

/// The gradients that an operation [in two halves](record_in_halves) computes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wanted {
    /// The gradient of the first input, an activation.
    pub input: bool,
    /// The gradients of all other inputs: weights and bias.
    pub weights: bool,
}

impl Wanted {
    pub(super) const ALL: Self = Self { input: true, weights: true };
}

/// The way in which a backward pass treats a tape node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// The node computes the gradients of its inputs.
    Operation,
    /// It can compute the gradient of the first input without the gradients of the others.
    InHalves,
    /// The result is a [parameter](record_parameter). The inputs have no gradients.
    Parameter,
}

/// The gradients of an operation's inputs, in their order.
type Gradients<const N: usize> = Result<[Option<Tensor>; N]>;

/// A result that candle takes: its memory and shape.
type Taken<S> = Result<(S, Shape)>;

/// A tape node: the inputs of an operation and its backward pass.
pub(super) struct Node {
    pub(super) name: &'static str,
    pub(super) inputs: Vec<Tensor>,
    backward: Box<Backward>,
    pub(super) kind: Kind,
    /// The result, until candle has taken it.
    result: Mutex<Option<(Storage, Shape)>>,
    /// The tensor of the result, as soon as there is one, and its [views](record_views).
    ids: Mutex<Vec<TensorId>>,
}

impl Node {
    /// Returns the gradients of the inputs, in their order: those that are wanted, or all if the node is not in halves.
    pub(super) fn backward(
        &self,
        result: &Tensor,
        gradient: Accumulator,
        wanted: Wanted,
    ) -> Result<Vec<Option<Tensor>>> {
        // The first layer's input is data, and nothing uses its gradient.
        let wanted = Wanted { input: wanted.input && self.inputs[0].track_op(), ..wanted };
        if wanted.input || wanted.weights {
            return (self.backward)(result, gradient, wanted);
        }
        Ok(Vec::new())
    }

    /// Notes that a tensor is the result, or a view of it.
    fn computed(self: &Arc<Self>, tensor: &Tensor) {
        locked(&self.ids).push(tensor.id());
        locked(&NODES).insert(tensor.id(), Arc::downgrade(self));
    }

    /// Takes the result out, with memory of the kind that `of` accepts.
    fn take<S>(&self, of: impl FnOnce(Storage) -> Option<S>) -> Taken<S> {
        let result = locked(&self.result).take();
        match result.and_then(|(storage, shape)| Some((of(storage)?, shape))) {
            Some(result) => Ok(result),
            None => bail!("{}: a result becomes a tensor once, where its inputs are", self.name),
        }
    }
}

/// Makes a tensor of a result, and records on the tape how the gradient of the result becomes the gradients of the inputs.
///
/// `storage` holds the result alone, contiguous and of shape `shape`. `backward` takes the result and its contiguous gradient, and
/// returns the gradients of the inputs in their order, each in the shape and type of its input, or `None`. `backward` must
/// not own the result, which owns `backward`. If no input carries a gradient, or within [`no_grad`](fn@super::no_grad), the
/// result carries none either, and keeps neither the inputs nor `backward`.
pub fn record<const N: usize>(
    name: &'static str,
    storage: Storage,
    shape: impl Into<Shape>,
    inputs: [&Tensor; N],
    backward: impl Fn(&Tensor, &Tensor) -> Gradients<N> + Send + Sync + 'static,
) -> Result<Tensor> {
    record_node(name, (storage, shape), &inputs, Kind::Operation, move |y, dy, _| {
        backward(y, &dy.sum()?)
    })
}

/// Does the same as [`record`] for a `backward` that can be called twice, in a pass [in two halves](super::backward_in_halves):
/// for the gradient of the first input, an activation, and later for those of the weights. `backward` returns the gradients
/// that are wanted, and `None` for the others, with the same bits in one call as in two.
pub fn record_in_halves<const N: usize>(
    name: &'static str,
    storage: Storage,
    shape: impl Into<Shape>,
    inputs: [&Tensor; N],
    backward: impl Fn(&Tensor, &Tensor, Wanted) -> Gradients<N> + Send + Sync + 'static,
) -> Result<Tensor> {
    record_node(name, (storage, shape), &inputs, Kind::InHalves, move |y, dy, wanted| {
        backward(y, &dy.sum()?, wanted)
    })
}

/// Does the same as [`record`] for a copy of a tensor, which may be a view or carry a gradient.
pub fn record_copy<const N: usize>(
    name: &'static str,
    result: &Tensor,
    inputs: [&Tensor; N],
    backward: impl Fn(&Tensor, &Tensor) -> Gradients<N> + Send + Sync + 'static,
) -> Result<Tensor> {
    record(name, copied(result, result.layout(), result.dtype())?, result.shape(), inputs, backward)
}

// ANCHOR: parameter
/// Receives a variable or a parameter and its gradient.
pub(super) type Hook = dyn Fn(&Tensor, &Tensor) -> Result<()>;

thread_local! {
    /// The hook of the backward pass that candle runs on this thread.
    static HOOK: RefCell<Option<Rc<Hook>>> = const { RefCell::new(None) };
}

/// Makes a parameter with this value, in other memory. A backward pass gives the gradient of the
/// parameter to its [hook](super::backward_with_hook) as soon as the gradient is complete.
///
/// candle's backward pass returns the gradients of variables at its end. But it calls an operation's backward function
/// during its work. So a parameter is no variable. It is the result of an operation with an unused input, the anchor:
///
/// ```text
/// forward     anchor ─ parameter ─→ W ──→ conv ──→ …        W has its value already
/// backward    anchor   parameter ←─ dW ←─ conv ←── …        dW is complete: hook(W, dW)
/// ```
pub fn record_parameter(value: &Tensor) -> Result<Tensor> {
    let anchor = Var::zeros((), DType::F32, value.device())?;
    let copy = (copied(value, value.layout(), value.dtype())?, value.shape());
    record_node("parameter", copy, &[&anchor], Kind::Parameter, |parameter, gradient, _| {
        if let Some(hook) = HOOK.with_borrow(Option::clone) {
            hook(parameter, &gradient.sum()?)?;
        }
        Ok([None])
    })
}
// ANCHOR_END: parameter

/// Cuts a [parameter](record_parameter) of one axis into parameters of these shapes. They are views: they share its memory. A
/// backward pass gives each its gradient. If candle computes the gradients, the whole has one.
pub fn record_views(whole: &Tensor, shapes: &[Shape]) -> Result<Vec<Tensor>> {
    let Some(node) = node_of(whole) else { bail!("views are cut out of a parameter") };
    let mut start = 0;
    let view = |shape: &Shape| {
        let part = whole.narrow(0, start, shape.elem_count())?;
        start += shape.elem_count();
        let view = part.reshape(shape)?;
        [&part, &view].into_iter().for_each(|tensor| node.computed(tensor));
        Ok(view)
    };
    shapes.iter().map(view).collect()
}

/// Runs a backward pass of candle with a hook for the gradients of parameters.
pub(super) fn with_hook<R>(hook: &Rc<Hook>, run: impl FnOnce() -> R) -> R {
    let before = HOOK.replace(Some(Rc::clone(hook)));
    let returned = run();
    HOOK.set(before);
    returned
}

/// Records a node of a kind. `backward` gets two gradients if their sum is not computed. The gradient of no bias is left out.
pub(crate) fn record_node<const N: usize>(
    name: &'static str,
    (storage, shape): (Storage, impl Into<Shape>),
    inputs: &[&Tensor],
    kind: Kind,
    backward: impl Fn(&Tensor, Accumulator, Wanted) -> Gradients<N> + Send + Sync + 'static,
) -> Result<Tensor> {
    let shape = shape.into();
    if NO_GRAD.get() || !inputs.iter().any(|input| input.track_op()) {
        return Ok(tensor(storage, shape));
    }
    let (count, inputs) = (inputs.len(), inputs.iter().copied().cloned().collect());
    let result = Mutex::new(Some((storage, shape)));
    let backward: Box<Backward> = Box::new(move |y, dy, wanted| {
        Ok(backward(y, dy, wanted)?.into_iter().take(count).collect())
    });
    let node = Arc::new(Node { name, inputs, backward, kind, result, ids: Mutex::default() });
    let recorded = Recorded(Arc::clone(&node));
    let result = match node.inputs.as_slice() {
        [x] => x.apply_op1(recorded),
        [x, y] => x.apply_op2(y, recorded),
        [x, y, z] => x.apply_op3(y, z, recorded),
        inputs => bail!("{name}: candle's operations have at most 3 inputs, not {}", inputs.len()),
    }?;
    node.computed(&result);
    Ok(result)
}

thread_local! {
    /// Whether this thread runs within [`no_grad`].
    static NO_GRAD: Cell<bool> = const { Cell::new(false) };
}

/// Runs `run` without recording a tape, like PyTorch's `no_grad`. No result that [`record`] makes carries a gradient, and inputs
/// are freed as soon as nothing else uses them. This holds for this thread, and not for candle's own operations.
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

/// The tape nodes of living graphs, by the tensors that they computed.
static NODES: LazyLock<Mutex<HashMap<TensorId, Weak<Node>>>> = LazyLock::new(Mutex::default);

impl Drop for Node {
    fn drop(&mut self) {
        let mut nodes = locked(&NODES);
        for id in &*locked(&self.ids) {
            nodes.remove(id);
        }
    }
}

/// Returns the tape node of a tensor, if one of the course's operations computed the tensor.
pub(super) fn node_of(result: &Tensor) -> Option<Arc<Node>> {
    locked(&NODES).get(&result.id())?.upgrade()
}

/// The custom operation that candle's graph owns. candle's backward pass calls it if a loss also depends on other operations.
struct Recorded(Arc<Node>);

impl Recorded {
    fn backward<const N: usize>(&self, y: &Tensor, dy: &Tensor) -> Gradients<N> {
        let gradients = self.0.backward(y, Accumulator::One(dy.contiguous()?), Wanted::ALL)?;
        let name = self.0.name;
        gradients.try_into().or_else(|_| bail!("{name}: there is a gradient for each input"))
    }
}

/// Implements one of candle's traits, with names for each input and its layout. `$into` converts the array of gradients.
macro_rules! custom_op {
    ($trait:ident, $gradients:ty, $into:expr, $($x:ident $layout:ident),+) => {
        impl $trait for Recorded {
            fn name(&self) -> &'static str {
                self.0.name
            }

            fn cpu_fwd(&self, $($x: &CpuStorage, $layout: &Layout),+) -> Taken<CpuStorage> {
                self.0.take(|of| if let Storage::Cpu(of) = of { Some(of) } else { None })
            }

            fn cuda_fwd(&self, $($x: &CudaStorage, $layout: &Layout),+) -> Taken<CudaStorage> {
                self.0.take(|of| if let Storage::Cuda(of) = of { Some(of) } else { None })
            }

            fn bwd(&self, $($x: &Tensor),+, y: &Tensor, dy: &Tensor) -> Result<$gradients> {
                self.backward(y, dy).map($into)
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
    use crate::{linear, relu};

    #[test]
    fn a_graph_that_is_dropped_is_forgotten() {
        let x = Var::zeros((3, 4), DType::F64, &Device::Cpu).unwrap();
        let y = relu(&x).unwrap();
        let (id, node) = (y.id(), Arc::downgrade(&node_of(&y).unwrap()));
        let lives = || (node.strong_count() > 0, locked(&NODES).contains_key(&id));
        let z = relu(&y).unwrap();
        drop(y);
        assert_eq!(lives(), (true, true));
        drop(z);
        assert_eq!(lives(), (false, false));
        // A tensor without a gradient has no node at all.
        assert!(node_of(&relu(&x.as_detached_tensor()).unwrap()).is_none());
    }

    #[test]
    fn views_of_a_parameter_have_the_gradients_of_parameters_of_their_own() {
        let cpu = Device::Cpu;
        let values = Tensor::arange(0f64, 15.0, &cpu).unwrap();
        let whole = record_parameter(&values).unwrap();
        let shapes = [Shape::from((4, 3)), 3.into(), 0.into()];
        let views = record_views(&whole, &shapes).unwrap();
        let own: Vec<_> = views.iter().map(|it| record_parameter(it).unwrap()).collect();
        let x = Var::from_tensor(&Tensor::ones((2, 4), DType::F64, &cpu).unwrap()).unwrap();
        let pass = |of: &[Tensor], by_candle: bool| {
            let mut y = linear(&x, &of[0], &of[1]).unwrap();
            y = if by_candle { (y * 1.0).unwrap() } else { y };
            (crate::backward::backward_from(&y, &y.ones_like().unwrap()).unwrap(), y)
        };
        let [(found, y), (expected, of_own)] = [&views, &own].map(|of| pass(of, false));
        let row = |it: &Tensor| it.flatten_all().unwrap().to_vec1::<f64>().unwrap();
        assert_eq!(row(&y), row(&of_own));
        for (view, own) in views.iter().zip(&own).take(2) {
            let [found, expected] = [found.get(view), expected.get(own)].map(Option::unwrap);
            assert_eq!((found.dims(), row(found)), (expected.dims(), row(expected)));
        }
        assert!(found.get(&whole).is_none());
        // candle knows the whole alone.
        let (by_candle, _) = pass(&views, true);
        let all = by_candle.get(&whole).unwrap();
        let of_view = all.narrow(0, 0, 12).unwrap();
        assert_eq!(row(&of_view), row(found.get(&views[0]).unwrap()));
        let ids = [whole.id(), views[0].id(), views[1].id()];
        drop((y, found, by_candle, views));
        assert!(ids.iter().all(|id| locked(&NODES).contains_key(id)));
        drop(whole);
        assert!(ids.iter().all(|id| !locked(&NODES).contains_key(id)));
        assert!(record_views(&values, &shapes).is_err());
    }

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
                let again = node_of(&result).unwrap().take(Some).unwrap_err();
                assert!(again.to_string().contains("becomes a tensor once"), "{again}");
            }
        }
    }
}
