//! CUPTI's library: finding it, and its calls.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::mem::ManuallyDrop;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use std::{env, ptr};

use super::records::WANTED;
use super::{completed, requested};

/// CUPTI's name with a version, and without. Versions 12 and 13 have what is asked for here.
const NAMES: [&str; 3] = ["libcupti.so.13", "libcupti.so.12", "libcupti.so"];

/// What CUPTI's calls return: `CUptiResult`.
pub(super) type Status = c_int;
pub(super) const SUCCESS: Status = 0;
/// `CUPTI_ERROR_MAX_LIMIT_REACHED`: there is no further record.
pub(super) const END_OF_BUFFER: Status = 12;
/// `CUPTI_ERROR_INVALID_KIND`: of a record, that it is not finished.
pub(super) const UNFINISHED: Status = 21;

type NextRecord = unsafe extern "C" fn(*mut u64, usize, *mut *const c_int) -> Status;
type Dropped = unsafe extern "C" fn(*mut c_void, u32, *mut usize) -> Status;
type Timestamp = unsafe extern "C" fn(*mut u64) -> Status;
type ResultString = unsafe extern "C" fn(Status, *mut *const c_char) -> Status;
type Requested = unsafe extern "C" fn(*mut *mut u64, *mut usize, *mut usize);
type Completed = unsafe extern "C" fn(*mut c_void, u32, *mut u64, usize, usize);

/// The library, for as long as the process lives.
pub(super) struct Library {
    pub(super) next_record: NextRecord,
    flush_all: unsafe extern "C" fn(u32) -> Status,
    dropped: Dropped,
    timestamp: Timestamp,
    result_string: ResultString,
    began: Moment,
    /// The functions are its. One that refuses is not unloaded either: threads that end call it.
    library: ManuallyDrop<libloading::Library>,
}

/// A moment, by this program's clock and by CUPTI's, in nanoseconds.
#[derive(Clone, Copy, Debug)]
struct Moment {
    here: Instant,
    there: u64,
}

impl Library {
    /// Looks for a library that watches, and makes it.
    pub(super) fn open() -> Result<Self, String> {
        let folders = ["CUDA_HOME", "CUDA_PATH"].iter().filter_map(env::var_os).map(PathBuf::from);
        let folders = folders.chain([PathBuf::from("/usr/local/cuda")]);
        let of_toolkits = folders.map(|home| home.join("extras/CUPTI/lib64/libcupti.so"));
        let mut why = None;
        for path in NAMES.iter().map(PathBuf::from).chain(of_toolkits) {
            // SAFETY: NVIDIA's library does nothing when it is loaded but set itself up.
            let opened = match unsafe { libloading::Library::new(&path) }.map_err(told) {
                Ok(library) => Self::of(ManuallyDrop::new(library)),
                Err(reason) if reason.contains("No such file or directory") => continue,
                Err(reason) => Err(reason),
            };
            match opened {
                Ok(library) => return Ok(library),
                // Of the first that is there, as the others are for other drivers.
                Err(reason) => _ = why.get_or_insert(format!("{}: {reason}", name(&path))),
            }
        }
        Err(why.unwrap_or_else(|| {
            format!(
                "{} was not found: name its folder in LD_LIBRARY_PATH (extras/CUPTI/lib64 of CUDA's toolkit, \
                 nvidia/cu13/lib or nvidia/cuda_cupti/lib of PyTorch's packages)",
                NAMES[0]
            )
        }))
    }

    /// A library that was found, and watches from now on.
    fn of(library: ManuallyDrop<libloading::Library>) -> Result<Self, String> {
        // SAFETY: the types are those that CUPTI's header declares.
        let library = unsafe {
            let timestamp = function(&library, "cuptiGetTimestamp")?;
            Self {
                next_record: function(&library, "cuptiActivityGetNextRecord")?,
                flush_all: function(&library, "cuptiActivityFlushAll")?,
                dropped: function(&library, "cuptiActivityGetNumDroppedRecords")?,
                result_string: function(&library, "cuptiGetResultString")?,
                timestamp,
                began: Moment { here: Instant::now(), there: 0 },
                library,
            }
        };
        let began = library.now()?;
        library.watch()?;
        Ok(Self { began, ..library })
    }

    fn watch(&self) -> Result<(), String> {
        type Register = unsafe extern "C" fn(Requested, Completed) -> Status;
        type Enable = unsafe extern "C" fn(c_int) -> Status;
        // SAFETY: the types are those that CUPTI's header declares, and the two functions live as long as the process.
        unsafe {
            let register: Register = function(&self.library, "cuptiActivityRegisterCallbacks")?;
            let enable: Enable = function(&self.library, "cuptiActivityEnable")?;
            self.checked("cuptiActivityRegisterCallbacks", register(requested, completed))?;
            WANTED.iter().try_for_each(|&kind| self.checked("cuptiActivityEnable", enable(kind)))
        }
    }

    /// Has buffers handed over. Errors of what CUPTI did meanwhile are told here too.
    pub(super) fn flush(&self, flag: u32) -> Result<(), String> {
        // SAFETY: it takes a number.
        self.checked("cuptiActivityFlushAll", unsafe { (self.flush_all)(flag) })
    }

    /// How many records there was no room for, since this was asked last.
    pub(super) fn dropped(&self) -> Result<usize, String> {
        let mut records = 0;
        // SAFETY: it writes one number. No context: of all.
        let status = unsafe { (self.dropped)(ptr::null_mut(), 0, &raw mut records) };
        self.checked("cuptiActivityGetNumDroppedRecords", status).map(|()| records)
    }

    /// When CUPTI's clock said so.
    pub(super) fn time(&self, nanoseconds: u64) -> Instant {
        self.began.here + Duration::from_nanos(nanoseconds.saturating_sub(self.began.there))
    }

    /// Whether CUPTI's clock, on most systems the one that tells the date, and ours still agree.
    pub(super) fn clocks_agree(&self) -> Result<(), String> {
        /// They are read one after the other.
        const TOLERANCE: Duration = Duration::from_millis(1);
        let now = self.now()?;
        let off = self.time(now.there).max(now.here) - self.time(now.there).min(now.here);
        if off <= TOLERANCE {
            return Ok(());
        }
        Err(format!(
            "CUPTI's clock and this program's went apart: times of GPUs are up to {off:.1?} away from those of ranks"
        ))
    }

    fn now(&self) -> Result<Moment, String> {
        /// A call may be interrupted, and the first takes longest.
        const ATTEMPTS: usize = 5;
        let mut best: Option<(Duration, Moment)> = None;
        for _ in 0..ATTEMPTS {
            let (before, mut there) = (Instant::now(), 0);
            // SAFETY: it writes one number.
            let status = unsafe { (self.timestamp)(&raw mut there) };
            // It reads its clock last.
            let here = Instant::now();
            self.checked("cuptiGetTimestamp", status)?;
            let took = here - before;
            if best.is_none_or(|(shortest, _)| took < shortest) {
                best = Some((took, Moment { here, there }));
            }
        }
        Ok(best.expect("it was read several times").1)
    }

    fn checked(&self, call: &str, status: Status) -> Result<(), String> {
        if status == SUCCESS { Ok(()) } else { Err(self.failure(call, status)) }
    }

    /// What a call that did not succeed means.
    pub(super) fn failure(&self, call: &str, status: Status) -> String {
        let mut name = ptr::null();
        // SAFETY: it writes the address of a C string that is never freed, or fails.
        let named = unsafe { (self.result_string)(status, &raw mut name) } == SUCCESS;
        if !named || name.is_null() {
            return format!("{call} failed with {status}");
        }
        // SAFETY: see above.
        let name = unsafe { CStr::from_ptr(name) }.to_string_lossy();
        format!("{call} failed: {name}")
    }
}

/// A function of the library.
///
/// # Safety
///
/// It is of type `F`.
unsafe fn function<F: Copy>(library: &libloading::Library, name: &str) -> Result<F, String> {
    // SAFETY: the caller's.
    let function = unsafe { library.get::<F>(name) };
    function.map(|function| *function).map_err(told)
}

/// With what the system says.
fn told(error: libloading::Error) -> String {
    format!("{:#}", anyhow::Error::new(error))
}

fn name(path: &Path) -> String {
    path.file_name().unwrap_or(path.as_os_str()).to_string_lossy().into_owned()
}
