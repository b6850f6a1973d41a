//! Ctrl-C: the first is a request, the second an order.
//!
//! After the first, training ends with the step that is under way, and the run tells what it has learnt
//! so far. After the second, the process ends at once. `SIGTERM`, which `kill` sends, and a scheduler
//! before it takes a machine back, counts as Ctrl-C does (`SIGINT`).
//!
//! Devices that train together must agree on their last step: if one stopped alone, the others would
//! wait for it. So nobody acts on [`requested`] directly. Each device adds it to the sums of its step
//! ([`BatchSums::interrupts`](crate::records::BatchSums::interrupts)), the sums are all-reduced anyway, and
//! then all devices know the same.

use std::io;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::flag;

use crate::lock::locked;

/// A signal is sent to a process, so this is the process's and not a run's.
static REQUESTED: AtomicBool = AtomicBool::new(false);

/// The number of the signal that requested it.
static SIGNAL: AtomicUsize = AtomicUsize::new(SIGINT as usize);

/// Which signals are watched.
static WATCHED: Mutex<Vec<i32>> = Mutex::new(Vec::new());

/// From now on the first Ctrl-C is noted, and the second ends the process. Before this call, and so
/// while flags are checked and data is loaded, the first one ends it. To call it again does nothing,
/// unless it has failed.
///
/// # Errors
///
/// When the system refuses to tell us of signals.
pub fn watch() -> io::Result<()> {
    watch_by(&WATCHED, register)
}

/// Registers each signal that is not watched yet.
fn watch_by(
    watched: &Mutex<Vec<i32>>,
    mut register: impl FnMut(i32) -> io::Result<()>,
) -> io::Result<()> {
    let mut watched = locked(watched);
    for signal in [SIGINT, SIGTERM] {
        // Whoever was told of a signal twice would take the first Ctrl-C for the second.
        if !watched.contains(&signal) {
            register(signal)?;
            watched.push(signal);
        }
    }
    Ok(())
}

fn register(signal: i32) -> io::Result<()> {
    // In this order: at the first signal the flag is still down when the exit looks at it, and its
    // number is there before anybody is told that there was one. And before the flag is there, a failure
    // leaves nothing that a second attempt would not do as well.
    flag::register_conditional_shutdown(signal, exit_code_of(signal as usize), &REQUESTED)?;
    flag::register_usize(signal, &SIGNAL, signal as usize)?;
    flag::register(signal, &REQUESTED)?;
    Ok(())
}

/// Whether somebody pressed Ctrl-C, or sent `SIGTERM`.
pub fn requested() -> bool {
    REQUESTED.load(Ordering::SeqCst)
}

/// The exit code of a run that a signal has ended early: 128 and the number of the signal, as shells count,
/// so 130 for Ctrl-C and 143 for `SIGTERM`. `None` without a signal.
pub fn exit_code() -> Option<u8> {
    let code = exit_code_of(SIGNAL.load(Ordering::SeqCst));
    requested().then(|| code.try_into().unwrap_or(u8::MAX))
}

fn exit_code_of(signal: usize) -> i32 {
    128 + signal as i32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_can_be_tried_again_and_registers_no_signal_twice() {
        let (watched, mut asked) = (Mutex::default(), Vec::new());
        let mut watch = |refused: Option<i32>| {
            asked.clear();
            let watching = watch_by(&watched, |signal| {
                asked.push(signal);
                if refused == Some(signal) { Err(io::Error::other("refused")) } else { Ok(()) }
            });
            (watching.map_err(|error| error.to_string()), asked.clone())
        };
        let refused = Err("refused".to_owned());
        assert_eq!(watch(Some(SIGINT)), (refused.clone(), vec![SIGINT]));
        assert_eq!(watch(Some(SIGTERM)), (refused.clone(), vec![SIGINT, SIGTERM]));
        assert_eq!(watch(Some(SIGTERM)), (refused, vec![SIGTERM]));
        assert_eq!(watch(None), (Ok(()), vec![SIGTERM]));
        assert_eq!(watch(None), (Ok(()), vec![]));
    }
}
