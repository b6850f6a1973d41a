//! A thread's cuDNN state for a device.

#![expect(unsafe_code, reason = "cuDNN takes raw pointers; lengths are checked")]

use std::cell::RefCell;
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::ffi::c_void;
use std::io::Write as _;
use std::sync::{Arc, LazyLock};
use std::{env, io, ptr};

use candle_core::cuda_backend::cudarc::cudnn::result;
use candle_core::cuda_backend::cudarc::driver::{
    CudaSlice, CudaStream, CudaView, DevicePtr, DevicePtrMut,
};
use candle_core::cuda_backend::{CudaDevice, DeviceId};
use candle_core::{Error, Result, bail};

use super::algorithm::{Candidate, Pointers, candidates};
use super::choice::{Choice, LARGEST_WORKSPACE, first_that_fits, ranked};
use super::descriptors::{Descriptors, Handle};
use super::{Number, Product, refused};

/// Whether each product's suggestions and choice are printed on stderr.
static LOGS: LazyLock<bool> =
    LazyLock::new(|| env::var_os("COURSE_CUDNN_TELL").is_some_and(|value| value == "1"));

/// cuDNN on one device, in one thread: two threads must not use a handle at the same time.
struct Session {
    handle: Handle,
    /// The device's stream, on which all work is queued.
    stream: Arc<CudaStream>,
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

thread_local! {
    /// The sessions of this thread, kept until the thread ends. A device that a thread has opened
    /// and dropped leaves its session behind.
    static SESSIONS: RefCell<HashMap<DeviceId, Session>> = RefCell::default();
}

/// Queues a product of `operands` on the device's stream and returns the result, which has `len`
/// elements.
///
/// The lengths of the operands and `len` must agree with [`Product::lengths`]. There must be
/// images, and the operands must belong to the device's stream.
pub(super) fn compute<T: Number>(
    device: &CudaDevice,
    product: &Product,
    operands: [&CudaView<'_, T>; 2],
    len: usize,
) -> Result<CudaSlice<T>> {
    // SAFETY: cuDNN writes every element and reads none, because the scale of the previous contents
    // is `zero`. If cuDNN fails, nothing reads the memory.
    let mut result = unsafe { device.alloc::<T>(len) }?;
    SESSIONS.with_borrow_mut(|sessions| {
        let session = match sessions.entry(device.id()) {
            Entry::Occupied(session) => session.into_mut(),
            Entry::Vacant(place) => place.insert(Session::new(device)?),
        };
        session.queue(product, operands, &mut result)
    })?;
    Ok(result)
}

impl Session {
    fn new(device: &CudaDevice) -> Result<Self> {
        let stream = device.cuda_stream();
        // A handle belongs to the context that is current, and making a handle does not set the
        // context.
        stream.context().bind_to_thread().map_err(Error::wrap)?;
        let handle = Handle::new().map_err(|error| refused("no handle", error))?;
        // SAFETY: handle and stream have their owners, and the session keeps both owners.
        unsafe { result::set_stream(handle.raw(), stream.cu_stream().cast()) }
            .map_err(|error| refused("no stream", error))?;
        Ok(Self { handle, stream, plans: HashMap::new(), workspace: None })
    }

    /// Queues a product of `operands` on the device's stream, into `result`.
    fn queue<T: Number>(
        &mut self,
        product: &Product,
        [first, second]: [&CudaView<'_, T>; 2],
        result: &mut CudaSlice<T>,
    ) -> Result<()> {
        // cuDNN launches kernels in the context that is current.
        self.stream.context().bind_to_thread().map_err(Error::wrap)?;
        let Plan { descriptors, choice } = match self.plans.entry(*product) {
            Entry::Occupied(plan) => plan.into_mut(),
            Entry::Vacant(place) => place.insert(Plan::new::<T>(&self.handle, product)?),
        };
        let workspace = grown(&mut self.workspace, &self.stream, choice.workspace)?;
        let workspace = workspace.map(|memory| memory.device_ptr_mut(&self.stream));
        let (first, _read) = first.device_ptr(&self.stream);
        let (second, _read_too) = second.device_ptr(&self.stream);
        let (result, _written) = result.device_ptr_mut(&self.stream);
        let pointers = Pointers {
            operands: [first as *const c_void, second as *const c_void],
            result: result as *mut c_void,
            workspace: workspace.as_ref().map_or(ptr::null_mut(), |&(place, _)| place as *mut _),
            // The size of this product's workspace, not of the whole allocation: earlier products
            // must have no influence on this one.
            workspace_size: choice.workspace,
        };
        let scales = [T::one(), T::zero()].map(T::into_scaling_parameter);
        // SAFETY: operands and result have the elements that the descriptors describe, and all
        // memory here belongs to the handle's stream: `product` and `compute` check both. Work that
        // is queued on the stream later, on any memory, runs later, and memory is freed in the
        // stream's order too. So operands and result stay unchanged until the product is computed,
        // and one workspace serves one product after another.
        let queued =
            unsafe { choice.algorithm.queue(&self.handle, descriptors, &pointers, &scales) };
        queued.or_else(|error| {
            // If earlier work has failed, its error is the cause and is returned instead.
            self.stream.synchronize().map_err(Error::wrap)?;
            Err(refused(format_args!("{product}, by {:?}", choice.algorithm), error))
        })
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        // The handle and the workspace are freed in their context. If the context is gone, they are
        // gone too.
        let _ = self.stream.context().bind_to_thread();
    }
}

impl Plan {
    fn new<T: Number>(handle: &Handle, product: &Product) -> Result<Self> {
        let descriptors = Descriptors::new::<T>(&product.geometry)?;
        let asked = descriptors.convolution.set_math(product.math);
        let suggested = asked.and_then(|()| candidates(handle, product.pass, &descriptors));
        // An error may mean that the heuristics have no suggestion for a product that cuDNN can
        // compute.
        let candidates = suggested.as_deref().unwrap_or_default();
        let choice = first_that_fits(&ranked(product, candidates), |algorithm, math| {
            descriptors.convolution.set_math(math).ok()?;
            algorithm.workspace(handle, &descriptors).ok()
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
        let set = descriptors.convolution.set_math(choice.math);
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
    // One write keeps the lines together, as other threads may print there. A closed stderr is
    // ignored.
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
