//! What GPUs did when, told by NVIDIA's profiling interface (CUPTI).
//!
//! A span shows when a thread queued work; this shows when a GPU did it. CUPTI keeps a record of every kernel, copy and
//! setting of memory of this process, with the GPU's own times, and hands them over in buffers. It is a library of CUDA's
//! toolkit, and comes with PyTorch; it is looked for when it is wanted, and programs start without it.

#![expect(
    unsafe_code,
    reason = "CUPTI is a C library, and hands over records in memory that it filled"
)]

use std::collections::HashMap;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::path::PathBuf;
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};
use std::{env, ptr};

use cpp_demangle::Symbol;
use libloading::Library;

use super::activity::{Activity, Kind};

/// CUPTI's name for a library without and with a version. Versions 12 and 13 have what is asked for here.
const NAMES: [&str; 3] = ["libcupti.so.13", "libcupti.so.12", "libcupti.so"];

/// The most that is kept. Later activities are counted only.
const MOST: usize = 1_000_000;

/// Bytes of a buffer, in words, as records begin at multiples of 8 bytes.
const BUFFER: usize = 8 << 20;

/// `CUpti_ActivityKind`.
const COPY: c_int = 1;
const SET: c_int = 2;
const KERNEL: c_int = 3;
const CONCURRENT_KERNEL: c_int = 10;
const COPY_BETWEEN_GPUS: c_int = 22;
/// What is asked for: kernels as they overlap, not one after the other.
const WANTED: [c_int; 4] = [COPY, SET, CONCURRENT_KERNEL, COPY_BETWEEN_GPUS];

/// `CUPTI_ACTIVITY_FLAG_FLUSH_FORCED`: buffers that are not full, too.
const FORCED: u32 = 1;

/// What `CUpti_ActivityKernel4` and all later ones begin with.
#[repr(C)]
struct KernelRecord {
    kind: c_int,
    cache: u8,
    shared_memory: u8,
    registers: u16,
    partitioned: [c_int; 2],
    start: u64,
    end: u64,
    completed: u64,
    device: u32,
    context: u32,
    stream: u32,
    grid: [i32; 3],
    block: [i32; 3],
    memory: [u32; 4],
    correlation: u32,
    grid_id: i64,
    name: *const c_char,
}

/// What all versions of `CUpti_ActivityMemcpy`, `CUpti_ActivityMemcpyPtoP` and `CUpti_ActivityMemset` begin with.
#[repr(C)]
struct MemoryRecord {
    kind: c_int,
    /// Of a copy, from where to where: `CUpti_ActivityMemcpyKind`.
    way: u8,
    further: [u8; 3],
    bytes: u64,
    start: u64,
    end: u64,
    device: u32,
    context: u32,
    stream: u32,
}

type Status = c_int;
type Requested = extern "C" fn(*mut *mut u64, *mut usize, *mut usize);
type Completed = extern "C" fn(*mut c_void, u32, *mut u64, usize, usize);

/// The calls that are made more than once, for as long as the process lives.
struct Interface {
    next_record: unsafe extern "C" fn(*mut u64, usize, *mut *const c_int) -> Status,
    flush_all: unsafe extern "C" fn(u32) -> Status,
    /// A time, and what CUPTI's clock said then, in nanoseconds.
    began: (Instant, u64),
    library: Library,
}

static INTERFACE: OnceLock<Result<Interface, String>> = OnceLock::new();

/// What was handed over.
#[derive(Default)]
struct Told {
    activities: Vec<Activity>,
    left_out: usize,
    /// Kernels' names, as CUPTI has them and as they are told.
    names: HashMap<String, Arc<str>>,
}

static TOLD: LazyLock<Mutex<Told>> = LazyLock::new(Mutex::default);

fn told() -> MutexGuard<'static, Told> {
    TOLD.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Asks for records of everything that this process's GPUs do from now on.
///
/// # Errors
///
/// Why there will be none: CUPTI was not found, or refuses.
pub(super) fn watch() -> Result<(), String> {
    static WATCHED: OnceLock<Result<(), String>> = OnceLock::new();
    let begin = || match INTERFACE.get_or_init(Interface::open) {
        Ok(interface) => interface.enable(),
        Err(why) => Err(why.clone()),
    };
    WATCHED.get_or_init(begin).clone()
}

/// What was done since [`watch`], and how much more there was than is kept.
pub(super) fn activities() -> (Vec<Activity>, usize) {
    if let Some(Ok(interface)) = INTERFACE.get() {
        // SAFETY: it is called with the flag that its header has. Should it fail, some records are missing.
        unsafe { (interface.flush_all)(FORCED) };
    }
    let told = told();
    (told.activities.clone(), told.left_out)
}

impl Interface {
    fn open() -> Result<Self, String> {
        let folders = ["CUDA_HOME", "CUDA_PATH"].iter().filter_map(env::var_os).map(PathBuf::from);
        let folders = folders.chain([PathBuf::from("/usr/local/cuda")]);
        let of_toolkits = folders.map(|home| home.join("extras/CUPTI/lib64/libcupti.so"));
        let mut candidates = NAMES.iter().map(PathBuf::from).chain(of_toolkits);
        // SAFETY: NVIDIA's library does nothing when it is loaded but set itself up.
        let library = candidates.find_map(|path| unsafe { Library::new(path) }.ok());
        let Some(library) = library else {
            return Err(format!(
                "{} was not found: name its folder in LD_LIBRARY_PATH (CUDA's extras/CUPTI/lib64, or PyTorch's \
                 nvidia/cu13/lib)",
                NAMES[0]
            ));
        };
        // SAFETY: the types are those that CUPTI's header declares.
        let (next_record, flush_all, timestamp) = unsafe {
            (
                called(&library, "cuptiActivityGetNextRecord")?,
                called(&library, "cuptiActivityFlushAll")?,
                called::<unsafe extern "C" fn(*mut u64) -> Status>(&library, "cuptiGetTimestamp")?,
            )
        };
        let mut now = 0;
        // SAFETY: it writes one number.
        succeeded("cuptiGetTimestamp", unsafe { timestamp(&raw mut now) })?;
        Ok(Self { next_record, flush_all, began: (Instant::now(), now), library })
    }

    fn enable(&self) -> Result<(), String> {
        type Register = unsafe extern "C" fn(Requested, Completed) -> Status;
        type Enable = unsafe extern "C" fn(c_int) -> Status;
        // SAFETY: the types are those that CUPTI's header declares, and the two functions live as long as the process.
        unsafe {
            let register: Register = called(&self.library, "cuptiActivityRegisterCallbacks")?;
            let enable: Enable = called(&self.library, "cuptiActivityEnable")?;
            succeeded("cuptiActivityRegisterCallbacks", register(requested, completed))?;
            WANTED.iter().try_for_each(|&kind| succeeded("cuptiActivityEnable", enable(kind)))
        }
    }

    /// When CUPTI's clock said so.
    fn time(&self, nanoseconds: u64) -> Instant {
        let (then, of_cupti) = self.began;
        then + Duration::from_nanos(nanoseconds.saturating_sub(of_cupti))
    }
}

/// A function of the library.
///
/// # Safety
///
/// It is of type `F`.
unsafe fn called<F: Copy>(library: &Library, name: &str) -> Result<F, String> {
    // SAFETY: the caller's.
    let function = unsafe { library.get::<F>(name) };
    function.map(|function| *function).map_err(|error| error.to_string())
}

fn succeeded(call: &str, status: Status) -> Result<(), String> {
    if status == 0 { Ok(()) } else { Err(format!("{call} failed: CUPTI's error {status}")) }
}

/// CUPTI asks for a buffer.
extern "C" fn requested(buffer: *mut *mut u64, size: *mut usize, most: *mut usize) {
    let room = Box::leak(vec![0u64; BUFFER / size_of::<u64>()].into_boxed_slice());
    // SAFETY: CUPTI hands over places for these three. It gives the buffer back with `completed`. 0: as many records as
    // there is room for.
    unsafe {
        buffer.write(room.as_mut_ptr());
        size.write(BUFFER);
        most.write(0);
    }
}

/// CUPTI gives a buffer back, with records in its first `filled` bytes.
extern "C" fn completed(_: *mut c_void, _: u32, buffer: *mut u64, _: usize, filled: usize) {
    if buffer.is_null() {
        return;
    }
    if let Some(Ok(interface)) = INTERFACE.get() {
        let mut told = told();
        let mut record = ptr::null();
        // SAFETY: the buffer is one of ours, and was filled so far. A record is valid until the buffer is freed.
        while unsafe { (interface.next_record)(buffer, filled, &raw mut record) } == 0 {
            // SAFETY: it is a record of a kind that begins as its type here does.
            unsafe { told.take(interface, record) };
        }
    }
    // SAFETY: it was made by `requested`, of this size.
    drop(unsafe {
        Box::from_raw(ptr::slice_from_raw_parts_mut(buffer, BUFFER / size_of::<u64>()))
    });
}

impl Told {
    /// Keeps what a record says.
    ///
    /// # Safety
    ///
    /// It is a record of CUPTI's.
    unsafe fn take(&mut self, interface: &Interface, record: *const c_int) {
        if self.activities.len() == MOST {
            self.left_out += 1;
            return;
        }
        // SAFETY: every record begins with its kind, which says of what type it is.
        let (kind, device, stream, start, end) = unsafe {
            match *record {
                KERNEL | CONCURRENT_KERNEL => {
                    let of = &*record.cast::<KernelRecord>();
                    (Kind::Kernel(self.name(of.name)), of.device, of.stream, of.start, of.end)
                }
                COPY | SET | COPY_BETWEEN_GPUS => {
                    let of = &*record.cast::<MemoryRecord>();
                    let kind = if of.kind == SET { Kind::Set } else { Kind::Copy(way(of.way)) };
                    (kind, of.device, of.stream, of.start, of.end)
                }
                _ => return,
            }
        };
        // Without times it is of no use.
        if (1..=end).contains(&start) {
            let (start, end) = (interface.time(start), interface.time(end));
            self.activities.push(Activity { device, stream, kind, start, end });
        }
    }

    /// A kernel's name.
    ///
    /// # Safety
    ///
    /// It is null, or a C string.
    unsafe fn name(&mut self, name: *const c_char) -> Arc<str> {
        if name.is_null() {
            return "a kernel".into();
        }
        // SAFETY: the caller's.
        let name = unsafe { CStr::from_ptr(name) }.to_string_lossy();
        if let Some(known) = self.names.get(&*name) {
            return Arc::clone(known);
        }
        let written = Arc::from(as_written(&name));
        self.names.insert(name.into_owned(), Arc::clone(&written));
        written
    }
}

/// A name as it is written in C++, if a compiler made it of one.
fn as_written(name: &str) -> String {
    let symbol = Symbol::new(name).ok();
    symbol.and_then(|symbol| symbol.demangle().ok()).unwrap_or_else(|| name.to_owned())
}

/// `CUpti_ActivityMemcpyKind` in words.
fn way(kind: u8) -> &'static str {
    match kind {
        1 => "copy to the GPU",
        2 => "copy to the host",
        8 => "copy within the GPU",
        10 => "copy between GPUs",
        _ => "copy",
    }
}

#[cfg(test)]
mod tests {
    use std::mem::offset_of;

    use super::*;

    #[test]
    fn names_are_told_as_they_are_written() {
        assert_eq!(as_written("_Z9transformIfEvPT_i"), "void transform<float>(float*, int)");
        assert_eq!(as_written("merged_sums"), "merged_sums");
    }

    /// As CUPTI's header has them.
    #[test]
    fn records_begin_as_cupti_s_do() {
        assert_eq!([offset_of!(KernelRecord, start), offset_of!(KernelRecord, device)], [16, 40]);
        assert_eq!([offset_of!(KernelRecord, grid_id), offset_of!(KernelRecord, name)], [96, 104]);
        assert_eq!([offset_of!(MemoryRecord, bytes), offset_of!(MemoryRecord, stream)], [8, 40]);
    }
}
