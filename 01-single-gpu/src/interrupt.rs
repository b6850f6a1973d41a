//! Ctrl-C: the first is a request, the second an order.
//!
//! After the first, training ends with the step that is under way, and the run tells what it has learnt
//! so far. After the second, the process ends at once.
//!
//! Devices that train together must agree on their last step: if one stopped alone, the others would
//! wait for it. So nobody acts on [`requested`] directly. Each device adds it to the sums of its step
//! ([`BatchSums::interrupts`](crate::train::BatchSums::interrupts)), the sums are all-reduced anyway, and
//! then all devices know the same.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};

use signal_hook::consts::SIGINT;
use signal_hook::flag;

/// The exit code of a run that Ctrl-C ended: 128 and the number of the signal, as shells count.
pub const EXIT_CODE: u8 = 130;

/// A signal is sent to a process, so this is the process's and not a run's.
static REQUESTED: AtomicBool = AtomicBool::new(false);

/// From now on the first Ctrl-C is noted, and the second ends the process. Before this call, and so
/// while flags are checked and data is loaded, the first one ends it.
///
/// # Errors
///
/// When the system refuses to tell us of signals.
pub fn watch() -> io::Result<()> {
    // In this order: at the first Ctrl-C the flag is still down when the exit looks at it.
    flag::register_conditional_shutdown(SIGINT, EXIT_CODE.into(), &REQUESTED)?;
    flag::register(SIGINT, &REQUESTED)?;
    Ok(())
}

/// Whether somebody pressed Ctrl-C.
pub fn requested() -> bool {
    REQUESTED.load(Ordering::Relaxed)
}
