//! Panics of an answer: the message, the place, and the input that the check gave.

use std::cell::{Cell, RefCell};
use std::fmt;
use std::panic::{
    AssertUnwindSafe, PanicHookInfo, catch_unwind, resume_unwind, set_hook, take_hook,
};
use std::sync::{Arc, Mutex, Once};

use harness::lock::locked;

thread_local! {
    /// Whether this thread catches panics.
    static CATCHES: Cell<bool> = const { Cell::new(false) };
    /// The last panic of this thread.
    static LAST: RefCell<Option<Panic>> = const { RefCell::new(None) };
    /// The input of the answer. A thread that works for a check shares the input with that check.
    static INPUT: RefCell<Input> = RefCell::default();
}

/// The first `todo!` that a law came to, in any thread.
static TODO: Mutex<Option<Panic>> = Mutex::new(None);

/// A description of an answer's input, shared by threads.
pub(crate) type Input = Arc<Mutex<String>>;

/// A panic that was caught.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Panic {
    /// The message.
    pub message: String,
    /// File, line and column; none if a check or its support panicked.
    pub place: Option<String>,
}

impl fmt::Display for Panic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)?;
        self.place.as_ref().map_or(Ok(()), |place| write!(f, " ({place})"))
    }
}

/// Describes the input of the calls that come next. The message of a panic begins with this description.
pub fn given(input: impl Into<String>) {
    *locked(&shared_input()) = input.into();
}

/// The description of the input in this thread.
pub(crate) fn shared_input() -> Input {
    INPUT.with_borrow(Arc::clone)
}

/// Lets this thread share the description of the input with another.
pub(crate) fn share_input(input: Input) {
    INPUT.set(input);
}

/// The `todo!` that was met since the last call.
pub(crate) fn take_todo() -> Option<Panic> {
    locked(&TODO).take()
}

/// The result of `work`, or its panic.
///
/// Nothing is printed: when all ranks panic in one line, one report is easier to read than seven.
pub(crate) fn catch<R>(work: impl FnOnce() -> R) -> Result<R, Panic> {
    static LISTEN: Once = Once::new();
    LISTEN.call_once(listen);
    let outer = CATCHES.replace(true);
    let outcome = catch_unwind(AssertUnwindSafe(work));
    CATCHES.set(outer);
    outcome.map_err(|payload| match payload.downcast::<Panic>() {
        Ok(panic) => *panic,
        Err(_) => LAST.take().unwrap_or_default(),
    })
}

/// Panics again, in the thread that waits for the one that panicked.
pub(crate) fn go_on(panic: Panic) -> ! {
    resume_unwind(Box::new(panic))
}

/// Keeps panics in threads that catch them. All others are printed as before.
fn listen() {
    let print = take_hook();
    set_hook(Box::new(move |info| {
        if !CATCHES.get() {
            return print(info);
        }
        let panic = Panic::of(info);
        if panic.place.is_some() && panic.message.contains("not yet implemented") {
            locked(&TODO).get_or_insert_with(|| panic.clone());
        }
        LAST.set(Some(panic));
    }));
}

impl Panic {
    fn of(info: &PanicHookInfo<'_>) -> Self {
        let message = info.payload_as_str().unwrap_or("a panic without a message").to_owned();
        let Some(place) = info.location() else { return Self { message, place: None } };
        let file = place.file().replace('\\', "/");
        let ours = ["exercises/support/", "exercises/checks/"].iter().any(|own| file.contains(own));
        if ours && !cfg!(test) {
            return Self { message, place: None };
        }
        let input = locked(&shared_input()).clone();
        let message = match input.as_str() {
            "" => message,
            input => format!("{input}: a panic: {message}"),
        };
        // Of another crate's file, the folders above the crate are of no interest.
        let (_, inside) = file.split_once("/registry/src/").unwrap_or_default();
        let file = inside.split_once('/').map_or(&*file, |(_, inside)| inside);
        Self { message, place: Some(format!("{file}:{}:{}", place.line(), place.column())) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_has_its_input_and_its_place() {
        let line = line!() + 1;
        let panic = catch(|| -> u32 { panic!("{} apples", 3) }).unwrap_err();
        assert_eq!(panic.message, "3 apples");
        assert!(panic.place.unwrap().starts_with(&format!("{}:{line}:", file!())));
        given("a batch of 0");
        let panic = catch(|| -> u32 { panic!("no sample") }).unwrap_err();
        assert_eq!(panic.message, "a batch of 0: a panic: no sample");
        assert_eq!(catch(|| 7), Ok(7));
    }

    #[test]
    fn a_panic_keeps_its_message_through_two_threads_and_a_todo_is_known() {
        let inner = || catch(|| todo!("add them")).unwrap_err();
        let panic = catch(|| -> u32 { go_on(std::thread::spawn(inner).join().unwrap()) });
        assert_eq!(panic.unwrap_err().message, "not yet implemented: add them");
        assert_eq!(take_todo().unwrap().message, "not yet implemented: add them");
        assert_eq!(take_todo(), None);
    }
}
