//! CUPTI's records, and what is kept of them.

use std::collections::{HashMap, HashSet};
use std::ffi::{CStr, c_char, c_int};
use std::mem;
use std::sync::{Arc, LazyLock, Mutex, MutexGuard};
use std::time::Instant;

use cpp_demangle::{DemangleOptions, Symbol};

use crate::device::activity::{Activity, Kind, Told};
use crate::lock::locked;
use crate::report::counted;

/// The most activities that are kept: a step of LeNet has about 70, one of ResNet-18 about 400.
const MOST: usize = 1_000_000;

/// `CUpti_ActivityKind`.
const MEMCPY: c_int = 1;
const MEMSET: c_int = 2;
const KERNEL: c_int = 3;
const CONCURRENT_KERNEL: c_int = 10;
const MEMCPY2: c_int = 22;
/// What is asked for: kernels as they overlap, not one after the other; `MEMCPY2` are copies between GPUs.
pub(super) const WANTED: [c_int; 4] = [MEMCPY, MEMSET, CONCURRENT_KERNEL, MEMCPY2];

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
    /// Of a copy: `CUpti_ActivityMemcpyKind`.
    copy_kind: u8,
    further: [u8; 3],
    bytes: u64,
    start: u64,
    end: u64,
    device: u32,
    context: u32,
    stream: u32,
}

/// What was handed over.
#[derive(Default)]
pub(super) struct Records {
    activities: Vec<Activity>,
    left_out: usize,
    whole_until: Option<Instant>,
    /// How many records there was no room for, or which say no times.
    pub(super) lost: usize,
    /// Each once.
    flaws: Vec<String>,
    /// Kernels' names, as CUPTI has them.
    names: HashSet<Arc<str>>,
}

static RECORDS: LazyLock<Mutex<Records>> = LazyLock::new(Mutex::default);

/// Those of this process.
pub(super) fn records() -> MutexGuard<'static, Records> {
    locked(&RECORDS)
}

impl Records {
    /// Keeps what a record says; `time` makes a time of CUPTI's clock, in nanoseconds, one of ours.
    ///
    /// # Safety
    ///
    /// It is a record of CUPTI's, of any kind.
    pub(super) unsafe fn take(&mut self, record: *const c_int, time: impl Fn(u64) -> Instant) {
        // SAFETY: every record begins with its kind, which says of what type it is.
        let (kind, device, stream, start, end) = unsafe {
            match *record {
                KERNEL | CONCURRENT_KERNEL => {
                    let of = &*record.cast::<KernelRecord>();
                    (Kind::Kernel(self.name(of.name)), of.device, of.stream, of.start, of.end)
                }
                kind @ (MEMCPY | MEMCPY2 | MEMSET) => {
                    let of = &*record.cast::<MemoryRecord>();
                    let kind = match kind {
                        MEMSET => Kind::Memset,
                        _ => Kind::Copy(copy(of.copy_kind)),
                    };
                    (kind, of.device, of.stream, of.start, of.end)
                }
                _ => return,
            }
        };
        // CUPTI says 0 where it could not measure.
        if start == 0 || end < start {
            self.lost += 1;
            return;
        }
        self.keep(Activity { device, stream, kind, start: time(start), end: time(end) });
    }

    fn keep(&mut self, activity: Activity) {
        if self.activities.len() < MOST {
            self.activities.push(activity);
            return;
        }
        // Buffers come in no order.
        let first = self.whole_until.map_or(activity.start, |first| first.min(activity.start));
        self.whole_until = Some(first);
        self.left_out += 1;
    }

    pub(super) fn flaw(&mut self, flaw: String) {
        if !self.flaws.contains(&flaw) {
            self.flaws.push(flaw);
        }
    }

    /// All of it, with names as people write them: not made of each record as it comes, which would hold up the
    /// program.
    pub(super) fn told(mut self) -> Told {
        let written: HashMap<_, Arc<str>> = mem::take(&mut self.names)
            .into_iter()
            .map(|name| (Arc::clone(&name), as_written(&name).into()))
            .collect();
        for activity in &mut self.activities {
            if let Kind::Kernel(name) = &mut activity.kind
                && let Some(written) = written.get(name)
            {
                *name = Arc::clone(written);
            }
        }
        if self.lost > 0 {
            self.flaws.push(format!("CUPTI lost {}", counted(self.lost, "record")));
        }
        let Self { activities, left_out, whole_until, flaws, .. } = self;
        Told { activities, left_out, whole_until, flaws }
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
        let kept: Arc<str> = Arc::from(&*name);
        self.names.insert(Arc::clone(&kept));
        kept
    }
}

/// A name as it is written in C++, without the types of its arguments, if a compiler made it of one.
fn as_written(name: &str) -> String {
    let options = DemangleOptions::new().no_params().no_return_type();
    let symbol = Symbol::new(name).ok();
    let written = symbol.and_then(|symbol| symbol.demangle_with_options(&options).ok());
    written.unwrap_or_else(|| name.to_owned())
}

/// `CUpti_ActivityMemcpyKind` in words.
fn copy(kind: u8) -> &'static str {
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
    use std::ptr;
    use std::time::Duration;

    use super::*;

    fn copied(start: u64, end: u64) -> MemoryRecord {
        MemoryRecord {
            kind: MEMCPY,
            copy_kind: 2,
            further: [0; 3],
            bytes: 8,
            start,
            end,
            device: 1,
            context: 0,
            stream: 7,
        }
    }

    fn take(records: &mut Records, record: &MemoryRecord, began: Instant) {
        // SAFETY: it is a record of the kind that it says.
        unsafe {
            records.take(ptr::from_ref(record).cast(), |time| began + Duration::from_nanos(time));
        }
    }

    #[test]
    fn a_record_says_what_where_and_when() {
        let (mut records, began) = (Records::default(), Instant::now());
        take(&mut records, &copied(5, 9), began);
        // Neither of these has times.
        take(&mut records, &copied(0, 0), began);
        take(&mut records, &copied(9, 5), began);
        let told = records.told();
        let [one] = &*told.activities else { panic!("{:?}", told.activities) };
        assert_eq!((one.device, one.stream, one.kind.name()), (1, 7, "copy to the host"));
        assert_eq!((one.start - began, one.end - one.start), {
            let ns = Duration::from_nanos;
            (ns(5), ns(4))
        });
        assert_eq!(told.flaws, ["CUPTI lost 2 records"]);
    }

    #[test]
    fn where_there_is_no_room_the_first_that_was_left_out_ends_what_is_whole() {
        let (mut records, began) = (Records::default(), Instant::now());
        for record in (1..).take(MOST) {
            take(&mut records, &copied(record, record), began);
        }
        for start in [30, 20, 40] {
            take(&mut records, &copied(start, start + 1), began);
        }
        let told = records.told();
        assert_eq!((told.activities.len(), told.left_out), (MOST, 3));
        assert_eq!(told.whole_until, Some(began + Duration::from_nanos(20)));
    }

    #[test]
    fn names_are_told_as_they_are_written() {
        assert_eq!(as_written("_Z9transformIfEvPT_i"), "transform<float>");
        assert_eq!(as_written("merged_sums"), "merged_sums");
    }

    /// As CUPTI's headers have them, of versions 12.9 to 13.5.
    #[test]
    fn records_begin_as_cupti_s_do() {
        let of_kernel = [
            offset_of!(KernelRecord, start),
            offset_of!(KernelRecord, end),
            offset_of!(KernelRecord, device),
            offset_of!(KernelRecord, stream),
            offset_of!(KernelRecord, name),
        ];
        assert_eq!(of_kernel, [16, 24, 40, 48, 104]);
        let of_memory = [
            offset_of!(MemoryRecord, copy_kind),
            offset_of!(MemoryRecord, start),
            offset_of!(MemoryRecord, end),
            offset_of!(MemoryRecord, device),
            offset_of!(MemoryRecord, stream),
        ];
        assert_eq!(of_memory, [4, 16, 24, 32, 40]);
    }
}
