//! What GPUs did when, told by NVIDIA's profiling interface (CUPTI).
//!
//! A span shows when a thread queued work; this shows when a GPU did it. CUPTI keeps a record of every kernel, copy and
//! setting of memory of this process, and hands them over in buffers. It is a library of CUDA's toolkit, and comes with
//! PyTorch; it is looked for when it is wanted, and programs start without it.

#![expect(
    unsafe_code,
    reason = "CUPTI is a C library, and hands over records in memory that it filled"
)]

mod library;
mod records;

use std::ffi::{c_int, c_void};
use std::ptr;
use std::sync::OnceLock;

use super::activity::Told;
use library::{END_OF_BUFFER, Library, SUCCESS, UNFINISHED};
use records::{Records, records};

/// Bytes of a buffer.
const BUFFER: usize = 8 << 20;

/// `CUPTI_ACTIVITY_FLAG_FLUSH_FORCED`: of records that have no end yet, too. They are handed over once.
const FORCED: u32 = 1;

static LIBRARY: OnceLock<Result<Library, String>> = OnceLock::new();

/// The library, once it watches.
fn watching() -> Option<&'static Library> {
    LIBRARY.get()?.as_ref().ok()
}

/// Asks for records of everything that this process's GPUs do from now on.
///
/// # Errors
///
/// Why there will be none: CUPTI was not found, or refuses.
pub(super) fn watch() -> Result<(), String> {
    LIBRARY.get_or_init(Library::open).as_ref().map(|_| ()).map_err(String::clone)
}

/// Has the records handed over that are whole.
pub(super) fn fetch() {
    if let Some(library) = watching() {
        hand_over(library, 0);
    }
}

/// What was done since [`watch`].
pub(super) fn take() -> Told {
    let Some(library) = watching() else { return Told::default() };
    hand_over(library, FORCED);
    if let Err(flaw) = library.clocks_agree() {
        records().flaw(flaw);
    }
    std::mem::take(&mut *records()).told()
}

fn hand_over(library: &Library, flag: u32) {
    // Without the lock on the records: this calls `completed`, here or in a thread of CUPTI's, which takes it.
    if let Err(flaw) = library.flush(flag) {
        records().flaw(flaw);
    }
}

/// CUPTI asks for a buffer.
///
/// # Safety
///
/// The three are places to write to.
unsafe extern "C" fn requested(buffer: *mut *mut u64, size: *mut usize, most: *mut usize) {
    // Of numbers of 8 bytes, as CUPTI asks for memory that begins at a multiple of 8.
    let room = Box::leak(vec![0u64; BUFFER / size_of::<u64>()].into_boxed_slice());
    // SAFETY: the caller's. CUPTI gives the buffer back by `completed`. 0: as many records as there is room for.
    unsafe {
        buffer.write(room.as_mut_ptr());
        size.write(BUFFER);
        most.write(0);
    }
}

/// CUPTI gives a buffer back, with records in its first `filled` bytes.
///
/// # Safety
///
/// The buffer is null, or was asked for by [`requested`] and is nobody's any more; it was filled so far.
unsafe extern "C" fn completed(
    _context: *mut c_void,
    _stream: u32,
    buffer: *mut u64,
    _size: usize,
    filled: usize,
) {
    if buffer.is_null() {
        return;
    }
    if let Some(library) = watching() {
        // Before the records are held, as CUPTI may hold something of its own meanwhile.
        let dropped = library.dropped();
        let mut records = records();
        match dropped {
            Ok(dropped) => records.lost += dropped,
            Err(flaw) => records.flaw(flaw),
        }
        // SAFETY: the caller's.
        unsafe { read(&mut records, library, buffer, filled) }
    } else {
        records().flaw("records came before they were asked for".to_owned());
    }
    // SAFETY: it was made by `requested`, of this size.
    drop(unsafe {
        Box::from_raw(ptr::slice_from_raw_parts_mut(buffer, BUFFER / size_of::<u64>()))
    });
}

/// Takes all records of a buffer.
///
/// # Safety
///
/// CUPTI filled the buffer so far.
unsafe fn read(records: &mut Records, library: &Library, buffer: *mut u64, filled: usize) {
    let mut record: *const c_int = ptr::null();
    loop {
        // SAFETY: the caller's; the record is the one before, or null at the beginning.
        match unsafe { (library.next_record)(buffer, filled, &raw mut record) } {
            // SAFETY: it is a record of CUPTI's, and the buffer that it is in still lives.
            SUCCESS => unsafe { records.take(record, |time| library.time(time)) },
            END_OF_BUFFER => break,
            UNFINISHED => {
                records.flaw("CUPTI handed over a record that was not finished".to_owned());
                break;
            }
            status => {
                records.flaw(library.failure("cuptiActivityGetNextRecord", status));
                break;
            }
        }
    }
}
