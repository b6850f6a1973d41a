//! The tape: nodes that record the operation and the inputs of each result.
//!
//! A wrapper around an operation also holds the operation's inputs. candle's graph owns the
//! wrapper, so dropping the graph frees the inputs too. A global table maps each result to its
//! node.

use std::collections::HashMap;
use std::sync::{Arc, LazyLock, Mutex, Weak};

use candle_core::{
    CpuStorage, CudaStorage, CustomOp1, CustomOp2, CustomOp3, Layout, Result, Shape, Tensor,
    TensorId,
};

use super::arrived::Arrived;
use super::untracked::is_untracked;
use harness::lock::locked;

/// A tape node: an operation and its inputs.
struct Applied<O, const N: usize> {
    operation: O,
    inputs: [Tensor; N],
    by_two: Option<ByTwo>,
}

/// A backward pass for a result with two incoming gradients. The function takes the result and both
/// gradients, and returns one gradient that is the gradient of every input.
type ByTwo = fn(&Tensor, [&Tensor; 2]) -> Result<Tensor>;

/// The interface of a tape node: computes the gradients of the inputs from the gradient of the
/// result.
pub(super) trait Rule: Send + Sync {
    /// The operation's name.
    fn name(&self) -> &'static str;

    fn inputs(&self) -> &[Tensor];

    /// Returns the gradients of the inputs, in their order. An input without a gradient has `None`.
    fn backward(&self, result: &Tensor, gradient: Arrived) -> Result<Vec<Option<Tensor>>>;
}

pub(super) type Node = Arc<dyn Rule>;

/// The tape nodes, by the tensors that they computed.
static NODES: LazyLock<Mutex<Nodes>> = LazyLock::new(Mutex::default);

#[derive(Default)]
struct Nodes {
    of: HashMap<TensorId, Weak<dyn Rule>>,
    /// The number of nodes after the table was last cleared of nodes of dropped graphs.
    living: usize,
}

/// Returns the tape node of a tensor, if one of the course's operations computed the tensor.
pub(super) fn remembered(result: &Tensor) -> Option<Node> {
    locked(&NODES).of.get(&result.id())?.upgrade()
}

/// The number of nodes in the table, including nodes of dropped graphs.
#[cfg(test)]
pub(super) fn listed() -> usize {
    locked(&NODES).of.len()
}

fn remember(result: &Tensor, node: Weak<dyn Rule>) {
    /// A smaller table is not searched for nodes of dropped graphs.
    const AT_LEAST: usize = 1024;
    let mut nodes = locked(&NODES);
    if nodes.of.len() >= AT_LEAST + 2 * nodes.living {
        nodes.of.retain(|_, node| node.strong_count() > 0);
        nodes.living = nodes.of.len();
    }
    nodes.of.insert(result.id(), node);
}

/// The operation that candle's graph owns: it keeps the tape node alive.
struct Remembered<O, const N: usize>(Arc<Applied<O, N>>);

/// Applies an operation through `apply`. Records a tape node if the result carries a gradient.
fn apply<O, const N: usize>(
    operation: O,
    by_two: Option<ByTwo>,
    inputs: [&Tensor; N],
    apply: impl FnOnce(&[Tensor; N], Remembered<O, N>) -> Result<Tensor>,
) -> Result<Tensor>
where
    Applied<O, N>: Rule + 'static,
{
    // Neither candle nor this module keeps the inputs of a result if no input carries a gradient.
    // Detached inputs carry none.
    let taken = if is_untracked() { Tensor::detach } else { Tensor::clone };
    let node = Arc::new(Applied { operation, inputs: inputs.map(taken), by_two });
    let result = apply(&node.inputs, Remembered(Arc::clone(&node)))?;
    if result.track_op() {
        let node: Node = node;
        remember(&result, Arc::downgrade(&node));
    }
    Ok(result)
}

/// Applies an operation of one input, like [`Tensor::apply_op1`], and records a tape node for
/// [`backward`](super::backward). Within [`untracked`](super::untracked), the result carries no
/// gradient.
///
/// # Errors
///
/// The errors of the operation.
pub fn apply1<O: CustomOp1 + Send + Sync + 'static>(x: &Tensor, operation: O) -> Result<Tensor> {
    apply(operation, None, [x], |[x], remembered| x.apply_op1(remembered))
}

/// Applies an operation of two inputs, like [`apply1`].
///
/// # Errors
///
/// The errors of the operation.
pub fn apply2<O: CustomOp2 + Send + Sync + 'static>(
    x: &Tensor,
    y: &Tensor,
    operation: O,
) -> Result<Tensor> {
    apply(operation, None, [x, y], |[x, y], remembered| x.apply_op2(y, remembered))
}

/// Applies an operation of two inputs, like [`apply2`], with a second backward pass for a result
/// with two incoming gradients. `by_two` returns the gradient that the operation's backward pass
/// would return for the sum of the two gradients.
///
/// # Errors
///
/// The errors of the operation.
pub(crate) fn apply2_by_two<O: CustomOp2 + Send + Sync + 'static>(
    x: &Tensor,
    y: &Tensor,
    operation: O,
    by_two: ByTwo,
) -> Result<Tensor> {
    apply(operation, Some(by_two), [x, y], |[x, y], remembered| x.apply_op2(y, remembered))
}

/// Applies an operation of three inputs, like [`apply1`].
///
/// # Errors
///
/// The errors of the operation.
pub fn apply3<O: CustomOp3 + Send + Sync + 'static>(
    x: &Tensor,
    y: &Tensor,
    z: &Tensor,
    operation: O,
) -> Result<Tensor> {
    apply(operation, None, [x, y, z], |[x, y, z], remembered| x.apply_op3(y, z, remembered))
}

impl<O: CustomOp1 + Send + Sync> Rule for Applied<O, 1> {
    fn name(&self) -> &'static str {
        self.operation.name()
    }

    fn inputs(&self) -> &[Tensor] {
        &self.inputs
    }

    fn backward(&self, result: &Tensor, gradient: Arrived) -> Result<Vec<Option<Tensor>>> {
        let [x] = &self.inputs;
        Ok(vec![self.operation.bwd(x, result, &gradient.sum()?)?])
    }
}

impl<O: CustomOp2 + Send + Sync> Rule for Applied<O, 2> {
    fn name(&self) -> &'static str {
        self.operation.name()
    }

    fn inputs(&self) -> &[Tensor] {
        &self.inputs
    }

    fn backward(&self, result: &Tensor, gradient: Arrived) -> Result<Vec<Option<Tensor>>> {
        if let (Some(by_two), Arrived::Two([a, b])) = (self.by_two, &gradient) {
            let of_inputs = by_two(result, [a, b])?;
            return Ok(vec![Some(of_inputs.clone()), Some(of_inputs)]);
        }
        let [x, y] = &self.inputs;
        let (dx, dy) = self.operation.bwd(x, y, result, &gradient.sum()?)?;
        Ok(vec![dx, dy])
    }
}

impl<O: CustomOp3 + Send + Sync> Rule for Applied<O, 3> {
    fn name(&self) -> &'static str {
        self.operation.name()
    }

    fn inputs(&self) -> &[Tensor] {
        &self.inputs
    }

    fn backward(&self, result: &Tensor, gradient: Arrived) -> Result<Vec<Option<Tensor>>> {
        let [x, y, z] = &self.inputs;
        let (dx, dy, dz) = self.operation.bwd(x, y, z, result, &gradient.sum()?)?;
        Ok(vec![dx, dy, dz])
    }
}

// The implementations below forward candle's calls to the operation.

type Computed<S> = Result<(S, Shape)>;

impl<O: CustomOp1> CustomOp1 for Remembered<O, 1> {
    fn name(&self) -> &'static str {
        self.0.operation.name()
    }

    fn cpu_fwd(&self, x: &CpuStorage, x_layout: &Layout) -> Computed<CpuStorage> {
        self.0.operation.cpu_fwd(x, x_layout)
    }

    fn cuda_fwd(&self, x: &CudaStorage, x_layout: &Layout) -> Computed<CudaStorage> {
        self.0.operation.cuda_fwd(x, x_layout)
    }

    fn bwd(&self, x: &Tensor, result: &Tensor, gradient: &Tensor) -> Result<Option<Tensor>> {
        self.0.operation.bwd(x, result, gradient)
    }
}

impl<O: CustomOp2> CustomOp2 for Remembered<O, 2> {
    fn name(&self) -> &'static str {
        self.0.operation.name()
    }

    fn cpu_fwd(
        &self,
        x: &CpuStorage,
        x_layout: &Layout,
        y: &CpuStorage,
        y_layout: &Layout,
    ) -> Computed<CpuStorage> {
        self.0.operation.cpu_fwd(x, x_layout, y, y_layout)
    }

    fn cuda_fwd(
        &self,
        x: &CudaStorage,
        x_layout: &Layout,
        y: &CudaStorage,
        y_layout: &Layout,
    ) -> Computed<CudaStorage> {
        self.0.operation.cuda_fwd(x, x_layout, y, y_layout)
    }

    fn bwd(
        &self,
        x: &Tensor,
        y: &Tensor,
        result: &Tensor,
        gradient: &Tensor,
    ) -> Result<(Option<Tensor>, Option<Tensor>)> {
        self.0.operation.bwd(x, y, result, gradient)
    }
}

impl<O: CustomOp3> CustomOp3 for Remembered<O, 3> {
    fn name(&self) -> &'static str {
        self.0.operation.name()
    }

    fn cpu_fwd(
        &self,
        x: &CpuStorage,
        x_layout: &Layout,
        y: &CpuStorage,
        y_layout: &Layout,
        z: &CpuStorage,
        z_layout: &Layout,
    ) -> Computed<CpuStorage> {
        self.0.operation.cpu_fwd(x, x_layout, y, y_layout, z, z_layout)
    }

    fn cuda_fwd(
        &self,
        x: &CudaStorage,
        x_layout: &Layout,
        y: &CudaStorage,
        y_layout: &Layout,
        z: &CudaStorage,
        z_layout: &Layout,
    ) -> Computed<CudaStorage> {
        self.0.operation.cuda_fwd(x, x_layout, y, y_layout, z, z_layout)
    }

    fn bwd(
        &self,
        x: &Tensor,
        y: &Tensor,
        z: &Tensor,
        result: &Tensor,
        gradient: &Tensor,
    ) -> Result<(Option<Tensor>, Option<Tensor>, Option<Tensor>)> {
        self.0.operation.bwd(x, y, z, result, gradient)
    }
}
