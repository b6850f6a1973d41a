//! What a thread keeps for a device.

#![expect(unsafe_code, reason = "cuDNN takes raw pointers; lengths are checked")]

use std::cell::RefCell;
use std::collections::hash_map::Entry;
use std::collections::{HashMap, VecDeque};
use std::env;
use std::ffi::c_void;
use std::io::{self, Write as _};
use std::ptr;
use std::sync::{Arc, LazyLock};

use candle_core::cuda_backend::cudarc::cudnn::CudnnError;
use candle_core::cuda_backend::cudarc::cudnn::result::{self, CudnnResult};
use candle_core::cuda_backend::cudarc::driver::{
    CudaSlice, CudaStream, CudaView, DevicePtr, DevicePtrMut,
};
use candle_core::cuda_backend::{CudaDevice, DeviceId};
use candle_core::{Error, Result, bail};

use super::algorithm::{Places, candidates};
use super::choice::{Candidate, Choice, LARGEST_WORKSPACE, choices};
use super::descriptors::{Descriptors, Handle};
use super::product::Product;
use super::{Number, refused};

/// cuDNN on one device, in one thread: a handle must not be in use in two threads at once.
struct Session {
    handle: Handle,
    /// The device's, on which all its work is queued.
    stream: Arc<CudaStream>,
    plans: HashMap<Product, Plan>,
    /// As large as any product has needed so far.
    workspace: Option<CudaSlice<u8>>,
}

/// How a product is computed.
struct Plan {
    descriptors: Descriptors,
    /// The one that the descriptors are set to.
    choice: Choice,
    /// What is left if cuDNN refuses to run that one.
    others: VecDeque<Choice>,
}

/// For measuring what determinism costs: algorithms that add up in whatever order are taken too, which is told once.
static ANY_ORDER: LazyLock<bool> = LazyLock::new(|| {
    let asked = is_set("COURSE_CUDNN_ANY_ORDER");
    if asked {
        say("cuDNN: COURSE_CUDNN_ANY_ORDER is set: the bits may differ from run to run\n");
    }
    asked
});

/// For measuring: what was suggested for each product, and what is taken, is told on stderr.
static TELL: LazyLock<bool> = LazyLock::new(|| is_set("COURSE_CUDNN_TELL"));

fn is_set(variable: &str) -> bool {
    env::var_os(variable).is_some_and(|value| value == "1")
}

/// In one piece, as other threads may say something there.
fn say(text: &str) {
    // Nothing is left to be done about a stderr that is gone.
    drop(io::stderr().write_all(text.as_bytes()));
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

    fn queue<T: Number>(
        &mut self,
        product: &Product,
        [first, second]: [&CudaView<'_, T>; 2],
        result: &mut CudaSlice<T>,
    ) -> Result<()> {
        // cuDNN launches kernels in whatever context is current.
        self.stream.context().bind_to_thread().map_err(Error::wrap)?;
        let plan = match self.plans.entry(*product) {
            Entry::Occupied(plan) => plan.into_mut(),
            Entry::Vacant(place) => place.insert(Plan::new::<T>(&self.handle, product)?),
        };
        let (first, _read) = first.device_ptr(&self.stream);
        let (second, _read_too) = second.device_ptr(&self.stream);
        let (result, _written) = result.device_ptr_mut(&self.stream);
        loop {
            let Plan { descriptors, choice, .. } = &*plan;
            let workspace = grown(&mut self.workspace, &self.stream, choice.workspace)?;
            let workspace = workspace.map(|memory| memory.device_ptr_mut(&self.stream));
            let places = Places {
                operands: [first as *const c_void, second as *const c_void],
                result: result as *mut c_void,
                workspace: workspace
                    .as_ref()
                    .map_or(ptr::null_mut(), |&(place, _)| place as *mut _),
                // Not all that there is: what earlier products needed has no say in this one.
                workspace_size: choice.workspace,
            };
            let scales = [T::one(), T::zero()].map(T::into_scaling_parameter);
            // SAFETY: operands and result have the elements that the descriptors say, and all memory here is of the
            // handle's stream: `product` and `compute` see to both. What is queued there later, on whatever memory, is
            // done later, and memory is given back in the stream's order as well. So operands and result stay as they
            // are until the product is computed, and one workspace serves one product after the other.
            let queued =
                unsafe { choice.algorithm.queue(&self.handle, descriptors, &places, &scales) };
            match queued {
                Ok(()) => return Ok(()),
                Err(error) => {
                    // Where work of before has failed, every algorithm would seem to be refused.
                    self.stream.synchronize().map_err(Error::wrap)?;
                    plan.fall_back(error).map_err(|error| refused(product, error))?;
                    let Choice { algorithm, math, .. } = plan.choice;
                    // Told always: a replica of which this is not said has other bits.
                    say(&format!("cuDNN: {product}: refused, so {algorithm:?}, {math:?}\n"));
                }
            }
        }
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
        let convolution = &descriptors.convolution;
        let asked = convolution.set_math(product.math);
        let suggested = asked.and_then(|()| candidates(handle, product.pass, &descriptors));
        let (mut found, silent) = match suggested {
            Ok(found) => (found, None),
            Err(error) => (Vec::new(), Some(error)),
        };
        let suggestions = found.len();
        found.extend(Candidate::usual(product));
        let suitable: Vec<_> =
            found.iter().copied().filter(|candidate| candidate.suits(product)).collect();
        let usable = choices(&suitable, product.math, *ANY_ORDER, |algorithm, math| {
            convolution.set_math(math).ok()?;
            algorithm.workspace(handle, &descriptors).ok()
        });
        if *TELL {
            tell(product, &found[..suggestions], &usable);
        }
        let mut others = VecDeque::from(usable);
        let Some(choice) = others.pop_front() else {
            if let Some(error) = silent {
                return Err(refused(product, error));
            }
            bail!(
                "cuDNN: {product}: of {suggestions} algorithms that it suggests none is deterministic, works on this GPU and \
                 makes do with {LARGEST_WORKSPACE} bytes of memory, nor do those that every shape should have"
            );
        };
        convolution.set_math(choice.math).map_err(|error| refused(product, error))?;
        Ok(Self { descriptors, choice, others })
    }

    /// Takes the next algorithm, for good: cuDNN has refused to run what it had suggested, which it does now and then.
    ///
    /// Whether it refuses depends on the shape as well, so the same algorithm computes the same product each time.
    fn fall_back(&mut self, refusal: CudnnError) -> CudnnResult<()> {
        self.choice = self.others.pop_front().ok_or(refusal)?;
        self.descriptors.convolution.set_math(self.choice.math)
    }
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

/// One line for a product with the algorithm that is taken, one for each that cuDNN suggests for it.
fn tell(product: &Product, suggested: &[Candidate], usable: &[Choice]) {
    let mut text = format!("cuDNN: {product}");
    match usable.first() {
        Some(Choice { algorithm, math, workspace }) => {
            text += &format!(": {algorithm:?}, {math:?}, {workspace} bytes\n");
        }
        None => text += ": none\n",
    }
    for Candidate { algorithm, works, deterministic, math } in suggested {
        text += &format!(
            "  suggested: {algorithm:?}, {math:?}, works: {works}, deterministic: {deterministic}\n"
        );
    }
    say(&text);
}
