//! Ctrl-C: the first one ends training after the current step, the second one ends the process.
//!
//! `SIGTERM`, the signal of `kill` and of schedulers, has the same effect as Ctrl-C (`SIGINT`). A signal during an evaluation ends
//! the evaluation ([`is_new`]). A signal that the program ignored from its start stays ignored where the system reports it, as a
//! shell expects of background jobs. Devices that train together must end with the same step. So each device adds the request to
//! the sums of its step ([`BatchSums::interrupts`](crate::records::BatchSums::interrupts)), which the devices all-reduce anyway.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::{fs, io};

use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::flag;

/// Whether a signal has arrived. A signal goes to a process, so all runs of the process share this flag.
static REQUESTED: AtomicBool = AtomicBool::new(false);

/// Whether the training loop knows of the signal.
static KNOWN: AtomicBool = AtomicBool::new(false);

/// The number of the signal that arrived.
static SIGNAL: AtomicUsize = AtomicUsize::new(SIGINT as usize);

/// Installs the handlers, once: the first Ctrl-C is a request, and the second ends the process. Fails, also when it is called
/// again, when the system refuses.
pub fn watch() -> io::Result<()> {
    // With two handlers for one signal, the first Ctrl-C would count as the second.
    static INSTALLED: OnceLock<Result<(), io::ErrorKind>> = OnceLock::new();
    let install = || {
        let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
        not_ignored(&status).try_for_each(|signal| {
            // At a signal the handlers run in this order: the first one must not see the flag that the last one sets.
            flag::register_conditional_shutdown(signal, 128 + signal, &REQUESTED)?;
            flag::register_usize(signal, &SIGNAL, signal as usize)?;
            flag::register(signal, &REQUESTED).map(drop)
        })
    };
    let installed = INSTALLED.get_or_init(|| install().map_err(|error: io::Error| error.kind()));
    installed.map_err(io::Error::from)
}

/// The signals that Linux's status of a process does not report as ignored. Bit `n - 1` is signal `n`.
fn not_ignored(status: &str) -> impl Iterator<Item = i32> {
    let digits = status.lines().find_map(|line| line.strip_prefix("SigIgn:")).unwrap_or_default();
    let ignored = u64::from_str_radix(digits.trim(), 16).unwrap_or(0);
    [SIGINT, SIGTERM].into_iter().filter(move |signal| ignored >> (signal - 1) & 1 == 0)
}

/// Whether `SIGINT` (Ctrl-C) or `SIGTERM` has arrived.
pub fn requested() -> bool {
    REQUESTED.load(Ordering::SeqCst)
}

/// Whether a signal has arrived, and no step of the training loop has counted it yet.
pub fn is_new() -> bool {
    requested() && !KNOWN.load(Ordering::SeqCst)
}

/// From now on the signal is not [new](is_new), so the evaluation after the last step is whole.
pub fn acknowledge() {
    KNOWN.store(true, Ordering::SeqCst);
}

/// Ctrl-C has ended the program before its run began. The text is the work that was interrupted, such as `drawing images`.
#[derive(Clone, Debug, thiserror::Error)]
#[error("interrupted while {0}: nothing was trained")]
pub struct Interrupted(pub String);

/// The exit code of a run that a signal has ended early: 130 for Ctrl-C and 143 for `SIGTERM`. `None` without a signal.
pub fn exit_code() -> Option<u8> {
    requested().then(|| 128 + SIGNAL.load(Ordering::SeqCst) as u8)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_ignored_signal_gets_no_handler() {
        let status = |set: &str| format!("Name:\tsh\nSigBlk:\tffffffffffffffff\nSigIgn:\t{set}\n");
        for (status, expected) in [
            (status("0000000000000000"), &[SIGINT, SIGTERM][..]),
            (status("0000000000000002"), &[SIGTERM]),
            (status("0000000000004000"), &[SIGINT]),
            (status("fffffffc7ffbfeff"), &[]),
            (String::new(), &[SIGINT, SIGTERM]),
        ] {
            assert_eq!(not_ignored(&status).collect::<Vec<_>>(), expected, "{status}");
        }
    }
}
