//! What a panic said, and where.

use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind, set_hook, take_hook};
use std::sync::Once;

thread_local! {
    /// In a thread that catches panics: what the last one said.
    static CAUGHT: RefCell<Option<String>> = const { RefCell::new(None) };
}

/// What `work` returns, or what it panicked with: the message and the line.
///
/// Nothing is printed. When all ranks panic in the same line, one report is easier to read than seven.
pub(crate) fn catch<R>(work: impl FnOnce() -> R) -> Result<R, String> {
    static LISTEN: Once = Once::new();
    LISTEN.call_once(listen);
    CAUGHT.set(Some(String::new()));
    let outcome = catch_unwind(AssertUnwindSafe(work));
    let message = CAUGHT.take();
    outcome.map_err(|_| message.unwrap_or_default())
}

/// From now on panics in a thread that catches them are kept; all others are printed as before.
fn listen() {
    let print = take_hook();
    set_hook(Box::new(move |panic| {
        let kept = CAUGHT.with_borrow_mut(|caught| {
            let Some(caught) = caught else { return false };
            let message = panic.payload_as_str().unwrap_or("no message");
            let place =
                panic.location().map(|place| format!(" ({}:{})", place.file(), place.line()));
            *caught = format!("{message}{}", place.unwrap_or_default());
            true
        });
        if !kept {
            print(panic);
        }
    }));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_is_told_with_its_line() {
        let line = line!() + 1;
        let panic = catch(|| -> u32 { panic!("{} apples", 3) }).unwrap_err();
        assert_eq!(panic, format!("3 apples ({}:{line})", file!()));
        assert_eq!(catch(|| 7), Ok(7));
    }
}
