//! Impossible input has to be refused: with an error that says why, not with a result or a panic.

use std::fmt::Display;

use crate::limit::within;
use crate::mismatch::fail;
use crate::panic::catch;

/// Demands that `work` returns an error with a message. `what` names the input, and `shown` prints a wrong result.
/// Panics when `work` returns anything else, panics or never ends.
#[track_caller]
pub fn check<R: Send + 'static, E: Display + Send + 'static>(
    what: &str,
    work: impl FnOnce() -> Result<R, E> + Send + 'static,
    shown: impl FnOnce(&R) -> String,
) {
    let law = "impossible input is refused with an error that says why";
    let got = match within(what, || catch(work)) {
        Ok(Err(error)) if error.to_string().trim().is_empty() => {
            fail(&format!("{what}: the error says nothing"), "a message", "an empty one", law)
        }
        Ok(Err(_)) => return,
        Ok(Ok(result)) => shown(&result),
        Err(panic) => panic.to_string().replacen(&format!("{what}: "), "", 1),
    };
    fail(&format!("{what}: not refused"), "an error", &got, law);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message_of(work: fn() -> Result<u32, String>) -> Option<String> {
        catch(|| check("3 apples", work, u32::to_string)).err().map(|panic| panic.message)
    }

    #[test]
    fn only_an_error_with_a_message_is_a_refusal() {
        assert_eq!(message_of(|| Err("too many".into())), None);
        let message = message_of(|| Ok(7)).unwrap();
        assert!(message.contains("3 apples: not refused\n  expected an error\n  got      7"));
        let message = message_of(|| panic!("no tree")).unwrap();
        assert!(message.contains("got      a panic: no tree ("), "{message}");
        let message = message_of(|| Err(" ".into())).unwrap();
        assert!(message.contains("3 apples: the error says nothing"), "{message}");
    }
}
