//! What cannot be right is to be refused: with an error, and not with a result, a panic or silence.

use std::fmt::Display;
use std::time::Duration;

use crate::mismatch::fail;
use crate::panic::catch;
use crate::within;

/// Refusing takes no time.
const LIMIT: Duration = Duration::from_secs(10);

/// Demands that `work` returns an error; `what` it was given is named, and `shown` what it made of it.
/// Panics when `work` returns anything else, panics or never ends.
#[track_caller]
pub fn check<R: Send + 'static, E: Display + Send + 'static>(
    what: &str,
    work: impl FnOnce() -> Result<R, E> + Send + 'static,
    shown: impl FnOnce(&R) -> String,
) {
    let got = match within(LIMIT, what, || catch(work)) {
        Ok(Err(_)) => return,
        Ok(Ok(result)) => shown(&result),
        Err(panic) => format!("a panic: {panic}"),
    };
    let law = "what cannot be right is refused with an error that says why";
    fail(&format!("{what}: not refused"), "an error", &got, law);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message_of(work: fn() -> Result<u32, String>) -> Option<String> {
        catch(|| check("3 apples", work, u32::to_string)).err()
    }

    #[test]
    fn only_an_error_is_a_refusal() {
        assert_eq!(message_of(|| Err("too many".into())), None);
        let message = message_of(|| Ok(7)).unwrap();
        assert!(message.starts_with("3 apples: not refused\n  expected an error\n  got      7"));
        let message = message_of(|| panic!("no tree")).unwrap();
        assert!(message.contains("got      a panic: no tree ("), "{message}");
    }
}
