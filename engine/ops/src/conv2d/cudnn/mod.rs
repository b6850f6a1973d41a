//! The three products of a convolution, by cuDNN: its output, and the gradients of its input and of its kernel.
//!
//! cuDNN has several algorithms for each product, and cudarc takes the first. The choice here has five properties:
//!
//! - **It depends on the shape alone.** cuDNN's heuristics rank the algorithms, except that transforms which were measured to
//!   pay come first. Nothing is timed.
//! - **It is deterministic.** The same operands give the same bits, again and again.
//! - **It needs at most 1 GiB** of workspace.
//! - **It keeps zeros** before a relu: Winograd's and Fourier's transforms turn zeros into nearly zero. They are not used in
//!   bf16 either, because their intermediate type is not documented.
//! - **It rounds no more than the caller allows.** Tensor cores multiply f32, as TF32, only if candle's switch for matrix
//!   products allows it ([`gemm_reduced_precision_f32`]).
//!
//! If `COURSE_CUDNN_TELL=1` is in the environment, each thread prints cuDNN's suggestions and each choice on stderr.
//!
//! | file | its idea |
//! | --- | --- |
//! | `mod` | a product, and a thread's state for a device: a handle, a plan for each product, a workspace |
//! | `choice` | the rule that chooses an algorithm for a product |
//! | `calls` | cuDNN's functions: descriptors, algorithms, their workspace, and the call that runs one |

#![expect(unsafe_code, reason = "cuDNN takes raw pointers; lengths are checked")]

mod calls;
mod choice;
#[cfg(test)]
mod tests;

use std::cell::RefCell;
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::io::Write as _;
use std::sync::{Arc, LazyLock};
use std::{env, fmt, io, ptr};

use candle_core::backend::{BackendDevice as _, BackendStorage as _};
use candle_core::cuda_backend::cudarc::cudnn::CudnnError;
use candle_core::cuda_backend::cudarc::cudnn::sys::cudnnMathType_t as Math;
use candle_core::cuda_backend::cudarc::driver::{CudaSlice, CudaStream, DevicePtrMut as _};
use candle_core::cuda_backend::{CudaDevice, DeviceId, gemm_reduced_precision_f32};
use candle_core::{CudaStorage, DType, Error, Result, Shape, bail};

use super::geometry::{Geometry, Pass};
use crate::kernels::gpu::Operand;
use crate::kernels::gpu::driver::address;
use crate::kernels::gpu::launch::alloc;
use calls::{Candidate, Descriptors, Handle};
use choice::{Choice, LARGEST_WORKSPACE, first_that_fits, ranked};

/// Returns the math that cuDNN may use for a type.
///
/// bf16 uses tensor cores, which cuDNN's default math does not use for 16 bits: a step of ResNet-18
/// on an H200 took 190 ms with the default, and takes 7 to 10 ms with tensor cores.
fn math(dtype: DType) -> Math {
    match dtype {
        DType::BF16 => Math::CUDNN_TENSOR_OP_MATH,
        DType::F32 if !gemm_reduced_precision_f32() => Math::CUDNN_FMA_MATH,
        _ => Math::CUDNN_DEFAULT_MATH,
    }
}

/// All inputs of the choice of an algorithm for a product.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Product {
    geometry: Geometry,
    dtype: DType,
    pass: Pass,
    /// The math that cuDNN may use.
    math: Math,
}

impl Product {
    /// Returns the number of elements of the two operands, in the order in which [`Pass`] names them, and of the result.
    fn lengths(&self) -> ([usize; 2], usize) {
        let g = &self.geometry;
        let (x, y) = (g.batch * g.image(), g.batch * g.out_image());
        let weight = g.out_channels * g.patch();
        match self.pass {
            Pass::Output | Pass::OutputForRelu => ([x, weight], y),
            Pass::InputGradient => ([weight, y], x),
            Pass::WeightGradient => ([x, y], weight),
        }
    }
}

impl fmt::Display for Product {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let what = match self.pass {
            Pass::Output => "the output",
            Pass::OutputForRelu => "the output, with its zeros,",
            Pass::InputGradient => "the input's gradient",
            Pass::WeightGradient => "the kernel's gradient",
        };
        let Geometry { batch: b, in_channels: c, height: h, width: w, .. } = self.geometry;
        let Geometry { out_channels: o, kernel_h, kernel_w, stride, padding, .. } = self.geometry;
        let (x, weight) = ([b, c, h, w], [o, c, kernel_h, kernel_w]);
        let dtype = self.dtype.as_str();
        write!(
            f,
            "{what} of a convolution in {dtype} of {x:?} with {weight:?}, stride {stride}, padding {padding}"
        )
    }
}

/// Computes a product of two operands, in the order in which [`Pass`] names them. An output has no bias yet. Fails when
/// there are no images, except for the kernel's gradient; when the operands are on different GPUs, differ in type or do not
/// have the sizes of `geometry`; and when cuDNN fails or has no algorithm with the properties that the module requires.
pub(super) fn product(
    geometry: &Geometry,
    pass: Pass,
    operands: [Operand<'_>; 2],
) -> Result<CudaStorage> {
    let dtype = operands[0].storage.dtype();
    let product = Product { geometry: *geometry, dtype, pass, math: math(dtype) };
    let (expected, len) = product.lengths();
    let found = operands.map(|operand| operand.elements);
    if found != expected {
        bail!("cuDNN: {product} takes {expected:?} elements, not {found:?}");
    }
    let gpu = operands[0].storage.device();
    // All memory belongs to one stream, whose order is the only synchronisation.
    if operands[1].storage.device().id() != gpu.id() {
        bail!("cuDNN: {product}: an operand is of another device");
    }
    if operands[1].storage.dtype() != dtype {
        bail!("cuDNN: {product}: an operand is {:?}", operands[1].storage.dtype());
    }
    match (geometry.batch, pass) {
        (0, Pass::WeightGradient) => gpu.zeros_impl(&Shape::from(len), dtype),
        // GPUs cannot allocate memory of size 0.
        (0, _) => bail!("cuDNN: {product} has no images"),
        _ => {
            let result = alloc(gpu, len, dtype)?;
            SESSIONS.with_borrow_mut(|sessions| {
                let session = match sessions.entry(gpu.id()) {
                    Entry::Occupied(session) => session.into_mut(),
                    Entry::Vacant(place) => place.insert(Session::new(gpu)?),
                };
                session.queue(&product, operands, Operand::whole(&result, len))
            })?;
            Ok(result)
        }
    }
}

/// Whether there is a cuDNN.
pub(super) const PRESENT: bool = true;

/// Whether each product's suggestions and choice are printed on stderr.
static LOGS: LazyLock<bool> =
    LazyLock::new(|| env::var_os("COURSE_CUDNN_TELL").is_some_and(|value| value == "1"));

thread_local! {
    /// The sessions of this thread, kept until the thread ends.
    static SESSIONS: RefCell<HashMap<DeviceId, Session>> = RefCell::default();
}

/// cuDNN on one device, in one thread: two threads must not use a handle at the same time.
struct Session {
    handle: Handle,
    plans: HashMap<Product, Plan>,
    /// A workspace as large as any product has needed so far.
    workspace: Option<CudaSlice<u8>>,
}

/// The descriptors and the algorithm for a product.
struct Plan {
    /// The descriptors, which are set to the choice's math.
    descriptors: Descriptors,
    choice: Choice,
}

impl Session {
    fn new(device: &CudaDevice) -> Result<Self> {
        let stream = device.cuda_stream();
        // A handle belongs to the context that is current.
        stream.context().bind_to_thread().map_err(Error::wrap)?;
        let handle = Handle::new(stream).map_err(|error| refused("no handle", error))?;
        Ok(Self { handle, plans: HashMap::new(), workspace: None })
    }

    /// Queues a product of `operands` on the device's stream, into `result`, for at least one image. The lengths agree with
    /// [`Product::lengths`], and all memory belongs to the device's stream.
    fn queue(
        &mut self,
        product: &Product,
        [first, second]: [Operand<'_>; 2],
        result: Operand<'_>,
    ) -> Result<()> {
        let stream = Arc::clone(&self.handle.stream);
        // cuDNN launches kernels in the context that is current.
        stream.context().bind_to_thread().map_err(Error::wrap)?;
        let Plan { descriptors, choice } = match self.plans.entry(*product) {
            Entry::Occupied(plan) => plan.into_mut(),
            Entry::Vacant(place) => place.insert(Plan::new(&self.handle, product)?),
        };
        let workspace = grown(&mut self.workspace, &stream, choice.workspace)?;
        let workspace = workspace.map(|memory| memory.device_ptr_mut(&stream));
        let (first, _read) = address(first, &stream)?;
        let (second, _read_too) = address(second, &stream)?;
        let (result, _written) = address(result, &stream)?;
        let operands = [first as *const _, second as *const _];
        let workspace = workspace.as_ref().map_or(ptr::null_mut(), |&(place, _)| place as *mut _);
        // The size of this product's workspace, not of the whole allocation: earlier products must
        // have no influence on this one.
        let workspace = (workspace, choice.workspace);
        // SAFETY: operands and result have the elements and the type that the descriptors describe,
        // and all memory here belongs to the handle's stream: the function `product` checks both.
        // cuDNN writes every element of the result and reads none. Work that is queued on the
        // stream later, on any memory, runs later, and memory is freed in the stream's order too.
        // So operands and result stay unchanged until the product is computed, and one workspace
        // serves one product after another.
        let queued = unsafe {
            let (by, result) = (choice.algorithm, result as *mut _);
            descriptors.queue(&self.handle, by, operands, result, workspace)
        };
        queued.or_else(|error| {
            // If earlier work has failed, its error is the cause and is returned instead.
            stream.synchronize().map_err(Error::wrap)?;
            Err(refused(format_args!("{product}, by {:?}", choice.algorithm), error))
        })
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        // The handle and the workspace are freed in their context, or are gone with it.
        let _ = self.handle.stream.context().bind_to_thread();
    }
}

impl Plan {
    fn new(handle: &Handle, product: &Product) -> Result<Self> {
        let descriptors = Descriptors::new(&product.geometry, product.dtype)?;
        let asked = descriptors.set_math(product.math);
        let suggested = asked.and_then(|()| descriptors.candidates(handle, product.pass));
        // An error may mean no suggestion for a product that cuDNN can compute.
        let candidates = suggested.as_deref().unwrap_or_default();
        let choice = first_that_fits(&ranked(product, candidates), |algorithm, math| {
            descriptors.set_math(math).ok()?;
            descriptors.workspace(handle, algorithm).ok()
        });
        if *LOGS {
            log(product, candidates, choice);
        }
        let Some(choice) = choice else {
            let suggested = suggested.map_err(|error| refused(product, error))?.len();
            bail!(
                "cuDNN: {product}: of {suggested} algorithms that it suggests none is deterministic, works on this GPU \
                 and makes do with {LARGEST_WORKSPACE} bytes of memory, nor do those that every shape should have"
            )
        };
        let set = descriptors.set_math(choice.math);
        set.map_err(|error| refused(product, error))?;
        Ok(Self { descriptors, choice })
    }
}

/// Prints one line for a product with its algorithm, and one line for each of cuDNN's suggestions.
fn log(product: &Product, suggested: &[Candidate], choice: Option<Choice>) {
    let mut text = format!("cuDNN: {product}: {choice:?}\n");
    for candidate in suggested {
        text += &format!("  suggested: {candidate:?}\n");
    }
    // One write keeps the lines together, as other threads may print there.
    drop(io::stderr().write_all(text.as_bytes()));
}

/// Returns a workspace of at least `size` bytes, or none if the size is 0.
fn grown<'a>(
    kept: &'a mut Option<CudaSlice<u8>>,
    stream: &Arc<CudaStream>,
    size: usize,
) -> Result<Option<&'a mut CudaSlice<u8>>> {
    if size == 0 {
        return Ok(None);
    }
    if kept.as_ref().is_none_or(|memory| memory.len() < size) {
        // The old workspace is freed first: the new one may then take its place.
        *kept = None;
        // SAFETY: cuDNN reads nothing in the workspace that it has not written, and nothing else
        // reads it.
        *kept = Some(unsafe { stream.alloc(size) }.map_err(Error::wrap)?);
    }
    Ok(kept.as_mut())
}

/// Makes an error from cuDNN's status and a description of the call.
fn refused(what: impl fmt::Display, CudnnError(status): CudnnError) -> Error {
    Error::Msg(format!("cuDNN: {what}: {status:?}")).bt()
}
