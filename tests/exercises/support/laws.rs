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

use std::fmt::Display;
use std::process::ExitCode;

use serde_json::json;

use crate::call::{catch, given, take_hang, take_todo, within};
use crate::outcome::{Finding, Outcome};

/// A law of an answer of type `A`: its name, and a function that judges the answer.
pub type Law<A> = (&'static str, fn(A) -> Outcome);

/// A list of [`Law`]s: `laws![name, name in CASES, name: judge in CASES]`.
///
/// A function `name(answer: Answer) -> Outcome` judges an answer by itself. A function
/// `name(answer: Answer, case: &Case) -> Outcome` judges the answer in each case of a table. With several tables, each is a law
/// with a name, and one function judges them all. `name => (3, Sends::Buffered) |answer, rank| …` is the law that
/// [errors are passed on](crate::ranks::errors_are_passed_on).
#[macro_export]
macro_rules! laws {
    ($($law:ident $(: $judge:ident)? $(in $cases:expr)? $(=> $world:tt $work:expr)?),+ $(,)?) => {
        &[$((stringify!($law), $crate::laws!(@ [$law $($judge)?] $($cases)? $(=> $world $work)?))),+]
    };
    (@ [$law:ident] => $world:tt $work:expr) => {
        |answer| $crate::ranks::errors_are_passed_on($world, answer, $work)
    };
    (@ [$law:ident]) => { $law };
    (@ [$law:ident] $cases:expr) => { |answer| $crate::laws::over($cases, answer, $law) };
    (@ [$law:ident $judge:ident] $cases:expr) => { $crate::laws!(@ [$judge] $cases) };
}

/// How a case prints itself: `shown!(Case(ranks, shape) => "shape {shape:?} on {ranks} ranks")`.
#[macro_export]
macro_rules! shown {
    ($case:ident $parts:tt => $($told:tt)+) => {
        impl std::fmt::Display for $case {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                let $case $parts = self;
                write!(f, $($told)+)
            }
        }
    };
}

/// Judges an answer in all cases, each within [`LIMIT`](crate::call::LIMIT). A finding and a panic begin with the case.
pub fn over<A: Copy + Send + 'static, C: Display + Send + 'static>(
    cases: impl IntoIterator<Item = C>,
    answer: A,
    law: fn(A, &C) -> Outcome,
) -> Outcome {
    cases.into_iter().try_for_each(|case| {
        let told = case.to_string();
        within(&told, move || law(answer, &case))?.map_err(|finding| finding.at(told))
    })
}

/// The program that checks an answer: the `main` of an exercise.
#[macro_export]
macro_rules! check {
    ($exercise:ident, $answer:expr $(, $run:ident)?) => {
        /// The answer, as the check and the stage's program take it.
        pub fn answer_of_runs() -> $crate::checks::$exercise::Answer {
            use $crate::checks::$exercise::Answer;
            $answer
        }

        /// Checks the answer, or runs the stage's program with the answer.
        pub fn main() -> std::process::ExitCode {
            // The learner's tool sets the variable: cargo compiles again if the variable changes.
            let _ = option_env!("COURSE_FINGERPRINT");
            $(if $crate::runs::is_asked() {
                return $crate::runs::main(|| $crate::runs::$exercise::$run(answer_of_runs()));
            })?
            $crate::laws::run($crate::checks::$exercise::LAWS, answer_of_runs())
        }
    };
}

/// Checks an answer against all laws and reports each law. The exit code is 0 if all passed, and 1 otherwise. An answer that hangs
/// in one law usually hangs in the next law too, so the laws after it fail without a check.
pub fn run<A: Copy>(laws: &[Law<A>], answer: A) -> ExitCode {
    let (mut passed, mut failed, mut hangs) = (0, 0, false);
    for (name, law) in laws {
        report(&json!({"law": name, "state": "begun"}));
        given("");
        take_todo();
        let unchecked = || Ok(Err(Finding::new("not checked, because the answer hangs")));
        let (message, place) = match if hangs { unchecked() } else { catch(|| law(answer)) } {
            Ok(Ok(())) => {
                passed += 1;
                report(&json!({"law": name, "state": "passed"}));
                continue;
            }
            Ok(Err(finding)) => (finding.to_string(), None),
            Err(panic) => (panic.message, panic.place),
        };
        failed += 1;
        hangs |= take_hang();
        let todo = take_todo();
        let is_todo = todo.is_some();
        let (message, place) = todo.map_or((message, place), |todo| (todo.message, todo.place));
        report(&json!({
            "law": name, "state": "failed", "message": message, "place": place, "todo": is_todo,
        }));
    }
    report(&json!({"ended": {"passed": passed, "failed": failed}}));
    if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn report(line: &serde_json::Value) {
    // If nobody reads standard output any more, nobody needs the report.
    let _ = harness::report::line(format_args!("\u{1e}{line}"));
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
        harness::report::error_line(format_args!("no such candidate: {arguments:?}"));
        return ExitCode::from(2);
    };
    main()
}
