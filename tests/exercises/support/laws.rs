//! The laws of an answer, one after the other, and the report of a program that checks one answer.
//!
//! The report goes to standard output, among the lines that the answer prints. Each line of the report is the character
//! U+001E and a JSON object:
//!
//! ```text
//! {"law":"even_chunks","state":"begun"}
//! {"law":"even_chunks","state":"passed"}
//! {"law":"any_shape","state":"failed","message":"…","place":"tests/exercises/ch02_ring.rs:12:5","todo":false}
//! {"ended":{"passed":1,"failed":1}}
//! ```
//!
//! `place` is null where the check found the failure. `todo` says that the answer came to a `todo!`.

use std::io::{Write as _, stdout};
use std::process::ExitCode;

use candle_core::Error;
use serde_json::json;

use crate::limit::take_hang;
use crate::panic::{Panic, catch, given, take_todo};

/// A law of an answer of type `A`: its name, and a function that panics when the answer breaks the law.
pub type Law<A> = (&'static str, fn(A));

/// The result of a law.
pub trait Verdict {
    /// Panics with an error.
    fn expect_none(self);
}

impl Verdict for () {
    fn expect_none(self) {}
}

impl Verdict for Result<(), Error> {
    fn expect_none(self) {
        self.unwrap_or_else(|error| panic!("the answer's result cannot be used: {error}"));
    }
}

/// A list of [`Law`]s, from the names of their functions. A function takes the answer and returns nothing, or candle's
/// `Result<()>`.
#[macro_export]
macro_rules! laws {
    ($($law:ident),+ $(,)?) => {
        &[$((stringify!($law), |answer| $crate::laws::Verdict::expect_none($law(answer)))),+]
    };
}

/// The program that checks an answer: the `main` of an exercise.
#[macro_export]
macro_rules! check {
    ($exercise:ident, $answer:expr) => {
        /// Checks the answer.
        pub fn main() -> std::process::ExitCode {
            // The learner's tool sets the variable: cargo compiles again if the variable changes.
            let _ = option_env!("COURSE_FINGERPRINT");
            $crate::check!(@laws $exercise, $answer)
        }
    };
    ($exercise:ident, $answer:expr, run) => {
        /// Checks the answer, or runs the stage's program with the answer.
        pub fn main() -> std::process::ExitCode {
            let _ = option_env!("COURSE_FINGERPRINT");
            if $crate::runs::is_asked() {
                use $crate::runs::$exercise::{Answer, run};
                let answer: Answer = $answer;
                return $crate::runs::main(|| run(answer));
            }
            $crate::check!(@laws $exercise, $answer)
        }
    };
    (@laws $exercise:ident, $answer:expr) => {{
        use $crate::checks::$exercise::{Answer, LAWS};
        let answer: Answer = $answer;
        $crate::laws::run(LAWS, answer)
    }};
}

/// Checks an answer against all laws and reports each law. The exit code is 0 if all passed, and 1 otherwise. An answer that hangs
/// in one law usually hangs in the next law too, so the laws after it fail without a check.
pub fn run<A: Copy>(laws: &[Law<A>], answer: A) -> ExitCode {
    let (mut passed, mut failed, mut hangs) = (0, 0, false);
    for (name, law) in laws {
        report(&json!({"law": name, "state": "begun"}));
        given("");
        take_todo();
        let unchecked =
            || Panic { message: "not checked, because the answer hangs".into(), place: None };
        let outcome = if hangs { Err(unchecked()) } else { catch(|| law(answer)) };
        hangs |= take_hang();
        let todo = take_todo();
        match outcome {
            Ok(()) => {
                passed += 1;
                report(&json!({"law": name, "state": "passed"}));
            }
            Err(panic) => {
                failed += 1;
                let is_todo = todo.is_some();
                let panic = todo.unwrap_or(panic);
                report(&json!({
                    "law": name, "state": "failed",
                    "message": panic.message, "place": panic.place, "todo": is_todo,
                }));
            }
        }
    }
    report(&json!({"ended": {"passed": passed, "failed": failed}}));
    if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn report(line: &serde_json::Value) {
    // If nobody reads standard output any more, nobody needs the report.
    let mut stdout = stdout().lock();
    let _ = writeln!(stdout, "\u{1e}{line}").and_then(|()| stdout.flush());
}

/// A candidate: the exercise, a name, and the `main` of the answer.
pub type Candidate = (&'static str, &'static str, fn() -> ExitCode);

/// Runs the candidate that the first two arguments of this program name, `EXERCISE CANDIDATE`.
pub fn choose(candidates: &[Candidate]) -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let named = |(exercise, candidate, _): &&Candidate| {
        arguments.starts_with(&[(*exercise).to_owned(), (*candidate).to_owned()])
    };
    let Some((.., main)) = candidates.iter().find(named) else {
        eprintln!("no such candidate: {arguments:?}");
        return ExitCode::from(2);
    };
    main()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_law_that_is_broken_fails_the_answer() {
        fn small(answer: u32) {
            assert!(answer < 10);
        }
        fn even(answer: u32) -> Result<(), Error> {
            if answer.is_multiple_of(2) { Ok(()) } else { candle_core::bail!("odd") }
        }
        let laws: &[Law<u32>] = laws![small, even];
        assert_eq!([laws[0].0, laws[1].0], ["small", "even"]);
        assert_eq!(run(laws, 8), ExitCode::SUCCESS);
        for broken in [7, 12] {
            assert_eq!(run(laws, broken), ExitCode::FAILURE);
        }
    }
}
