//! What a thread keeps for a device.

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

/// cuDNN on one device, in one thread: a handle must not be in use in two threads at once.
struct Session {
    handle: Handle,
    /// The device's, on which all work is queued.
    stream: Arc<CudaStream>,
    plans: HashMap<Product, Plan>,
    /// As large as any product has needed so far.
    workspace: Option<CudaSlice<u8>>,
}

/// How a product is computed.
struct Plan {
    /// They are set to the choice's math.
    descriptors: Descriptors,
    choice: Choice,
}

thread_local! {
    /// Kept until the thread ends, so a device that a thread has made and dropped leaves its session behind.
    static SESSIONS: RefCell<HashMap<DeviceId, Session>> = RefCell::default();
}

/// Queues a product of `operands` on the device's stream; the result has `len` elements.
///
/// The operands and `len` are as [`Product::lengths`] says, there are images, and the operands are of that stream.
pub(super) fn compute<T: Number>(
    device: &CudaDevice,
    product: &Product,
    operands: [&CudaView<'_, T>; 2],
    len: usize,
) -> Result<CudaSlice<T>> {
    // SAFETY: cuDNN writes every element, and reads none, because what was there counts for nothing (`zero`). If it
    // fails, nobody gets to see the memory.
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
        // A handle belongs to whatever context is current, and making one does not set it.
        stream.context().bind_to_thread().map_err(Error::wrap)?;
        let handle = Handle::new().map_err(|error| refused("no handle", error))?;
        // SAFETY: both have their owners, and the session keeps them.
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
        // cuDNN launches kernels in whatever context is current.
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
            // Not all that there is: what earlier products needed has no say in this one.
            workspace_size: choice.workspace,
        };
        let scales = [T::one(), T::zero()].map(T::into_scaling_parameter);
        // SAFETY: operands and result have the elements that the descriptors say, and all memory here is of the
        // handle's stream: `product` and `compute` see to both. What is queued there later, on whatever memory, is
        // done later, and memory is given back in the stream's order as well. So operands and result stay as they
        // are until the product is computed, and one workspace serves one product after the other.
        let queued =
            unsafe { choice.algorithm.queue(&self.handle, descriptors, &pointers, &scales) };
        queued.or_else(|error| {
            // Where work of before has failed, that is the error.
            self.stream.synchronize().map_err(Error::wrap)?;
            Err(refused(format_args!("{product}, by {:?}", choice.algorithm), error))
        })
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        // The handle and the workspace are given back in their context. If it is gone, so are they.
        let _ = self.stream.context().bind_to_thread();
    }
}

impl Plan {
    fn new<T: Number>(handle: &Handle, product: &Product) -> Result<Self> {
        let descriptors = Descriptors::new::<T>(&product.geometry)?;
        let asked = descriptors.convolution.set_math(product.math);
        let suggested = asked.and_then(|()| candidates(handle, product.pass, &descriptors));
        // An error may mean that heuristics have nothing to say of what can be computed all the same.
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

/// One line for a product with its algorithm, and one for each that cuDNN suggests.
fn log(product: &Product, suggested: &[Candidate], choice: Option<Choice>) {
    let mut text = format!("cuDNN: {product}: {choice:?}\n");
    for candidate in suggested {
        text += &format!("  suggested: {candidate:?}\n");
    }
    // In one piece, as other threads may print there. Nothing is left to be done about a stderr that is gone.
    drop(io::stderr().write_all(text.as_bytes()));
}

/// At least `size` bytes of memory to work in, none if that is 0.
fn grown<'a>(
    kept: &'a mut Option<CudaSlice<u8>>,
    stream: &Arc<CudaStream>,
    size: usize,
) -> Result<Option<&'a mut CudaSlice<u8>>> {
    if size == 0 {
        return Ok(None);
    }
    if kept.as_ref().is_none_or(|memory| memory.len() < size) {
        // Given back first: the new one may then lie in its place.
        *kept = None;
        // SAFETY: cuDNN reads nothing there that it has not written, and nobody else reads it.
        *kept = Some(unsafe { stream.alloc(size) }.map_err(Error::wrap)?);
    }
    Ok(kept.as_mut())
}
