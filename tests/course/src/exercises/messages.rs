//! What a test binary prints, understood: how many checks passed, and what the others have to say.

use std::path::Path;
use std::sync::LazyLock;

use regex::Regex;

/// More lines of one check's message than this are left out: a print in a loop should not bury the rest.
const LINES: usize = 60;

#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Failure {
    pub check: String,
    pub message: String,
}

#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Counts {
    pub passed: usize,
    pub failed: usize,
}

/// How many checks passed and failed; none if the tests did not come to their end.
pub fn counts(stdout: &str) -> Option<Counts> {
    let result = stdout.lines().rev().find_map(|line| line.strip_prefix("test result: "))?;
    let number = |what: &str| {
        let (before, _) = result.split_once(what)?;
        before.rsplit(' ').next()?.parse().ok()
    };
    Some(Counts { passed: number(" passed;")?, failed: number(" failed;")? })
}

pub fn running(stdout: &str) -> Option<&str> {
    let line = stdout.lines().rev().find(|line| line.starts_with("test "))?;
    let (name, _) = line.strip_prefix("test ")?.split_once(" ... ")?;
    Some(function(name))
}

pub fn failures(stdout: &str) -> Vec<Failure> {
    let mut failures: Vec<(String, Vec<&str>)> = Vec::new();
    let mut inside = false;
    for line in stdout.lines() {
        if let Some(name) = line.strip_prefix("---- ").and_then(|l| l.strip_suffix(" stdout ----"))
        {
            failures.push((function(name).to_owned(), Vec::new()));
            inside = true;
        } else if line == "failures:" {
            // Once before the messages, and once before the bare list of names.
            inside = false;
        } else if inside && let Some((_, message)) = failures.last_mut() {
            message.push(line);
        }
    }
    let tidy = |(check, lines): (String, Vec<&str>)| Failure { check, message: tidy(&lines) };
    failures.into_iter().map(tidy).collect()
}

/// Where an answer says `todo!`, and what is to do there.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Todo {
    pub place: String,
    /// Empty where it does not say.
    pub what: String,
}

/// `todo!`'s message, as a test tells it or as ranks do, with the place behind it.
static TODO: LazyLock<Regex> = LazyLock::new(|| {
    Regex::new(r"(?m)not yet implemented(?:: (.+?))?(?: \(\S*exercise\.rs:\d+\))?$")
        .expect("a valid expression")
});
static PLACE: LazyLock<Regex> =
    LazyLock::new(|| Regex::new(r"[^\s(]*exercise\.rs:\d+").expect("a valid expression"));

/// The `todo!` that stopped all of these checks; none if one of them has something else to say.
pub fn todo(failures: &[Failure]) -> Option<Todo> {
    let of_one = |Failure { message, .. }: &Failure| {
        let what = TODO.captures(message)?.get(1).map_or("", |words| words.as_str()).to_owned();
        Some(Todo { place: PLACE.find(message)?.as_str().to_owned(), what })
    };
    let all: Option<Vec<Todo>> = failures.iter().map(of_one).collect();
    all?.into_iter().next()
}

fn function(name: &str) -> &str {
    name.rsplit("::").next().unwrap_or(name)
}

/// Leaves what was written for people, and where in their own file it happened.
fn tidy(lines: &[&str]) -> String {
    let told: Vec<String> = lines
        .iter()
        .filter(|line| !line.starts_with("note: "))
        .filter_map(|line| match panicked_at(line) {
            Some(place) => {
                in_the_answer(place).then(|| format!("at {}", place.trim_end_matches(':')))
            }
            None => Some((*line).to_owned()),
        })
        .collect();
    let blank = |line: &String| line.trim().is_empty();
    let start = told.iter().position(|line| !blank(line)).unwrap_or(told.len());
    let end = told.iter().rposition(|line| !blank(line)).map_or(start, |last| last + 1);
    let told = &told[start..end];
    if told.len() <= LINES {
        return told.join("\n");
    }
    // Messages come last: what was printed before them is what there is too much of.
    let left_out = told.len() - LINES;
    format!("… {left_out} lines left out\n{}", told[left_out..].join("\n"))
}

/// The place in a panic's first line: `thread 'rank 1' (71) panicked at PLACE:`.
fn panicked_at(line: &str) -> Option<&str> {
    let (_, place) = line.strip_prefix("thread '")?.split_once(" panicked at ")?;
    Some(place)
}

fn in_the_answer(place: &str) -> bool {
    let file = place.split(".rs:").next().unwrap_or_default();
    Path::new(file).file_name().is_some_and(|name| name == "exercise")
}

#[cfg(test)]
mod tests {
    use super::*;

    const OUTPUT: &str = "
running 3 tests
test a_sum ... ok
test b::law ... FAILED
test c_stub ... FAILED

failures:

---- b::law stdout ----
a print of the reader's

thread 'b::law' (71) panicked at tests/exercises/ch01_sum/check.rs:9:5:
rank 1: expected 3, got 4

law: sum, then divide once
note: run with `RUST_BACKTRACE=1` environment variable to display a backtrace

---- c_stub stdout ----

thread 'c_stub' panicked at tests/exercises/ch01_sum/exercise.rs:7:5:
not yet implemented: add them


failures:
    b::law
    c_stub

test result: FAILED. 1 passed; 2 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.00s

";

    #[test]
    fn messages_are_left_and_noise_is_not() {
        let told = failures(OUTPUT);
        assert_eq!(told.iter().map(|f| f.check.as_str()).collect::<Vec<_>>(), ["law", "c_stub"]);
        assert_eq!(
            told[0].message,
            "a print of the reader's\n\nrank 1: expected 3, got 4\n\nlaw: sum, then divide once"
        );
        assert_eq!(
            told[1].message,
            "at tests/exercises/ch01_sum/exercise.rs:7:5\nnot yet implemented: add them"
        );
        assert_eq!(counts(OUTPUT), Some(Counts { passed: 1, failed: 2 }));
    }

    #[test]
    fn an_output_that_breaks_off_names_the_check_that_was_running() {
        let output = "\nrunning 2 tests\ntest a ... ok\ntest ring::stub::turns ... ";
        assert_eq!(running(output), Some("turns"));
        assert_eq!(counts(output), None);
        assert_eq!(running("\nrunning 1 test\n"), None);
    }

    #[test]
    fn what_a_todo_stops_is_known_from_what_an_answer_gets_wrong() {
        let failure =
            |message: &str| Failure { check: "a".to_owned(), message: message.to_owned() };
        let todo_of = |messages: &[&str]| {
            todo(&messages.iter().map(|message| failure(message)).collect::<Vec<_>>())
        };
        let alone = "at tests/exercises/ch01_sum/exercise.rs:7:5\nnot yet implemented: add (both)";
        let on_ranks = "shape [3] on 2 ranks: rank 0 panicked: not yet implemented: add (both) \
                        (tests/exercises/ch01_sum/exercise.rs:7)\n  law: a sum";
        let place = "tests/exercises/ch01_sum/exercise.rs:7".to_owned();
        let expected = Some(Todo { place: place.clone(), what: "add (both)".to_owned() });
        for messages in [&[alone][..], &[on_ranks], &[alone, on_ranks]] {
            assert_eq!(todo_of(messages), expected, "{messages:?}");
        }
        let silent = "at tests/exercises/ch01_sum/exercise.rs:7:5\nnot yet implemented";
        assert_eq!(todo_of(&[silent]), Some(Todo { place, what: String::new() }));
        for messages in [&[][..], &["expected 1, got 2"], &[alone, "expected 1, got 2"]] {
            assert_eq!(todo_of(messages), None, "{messages:?}");
        }
    }

    #[test]
    fn a_print_in_a_loop_does_not_bury_the_message() {
        let prints = "again\n".repeat(1000);
        let output = format!("---- a stdout ----\n{prints}expected 1, got 2\n\nfailures:\n    a\n");
        let told = failures(&output).remove(0).message;
        assert!(told.starts_with("… 941 lines left out\nagain\n"), "{told}");
        assert!(told.ends_with("again\nexpected 1, got 2"), "{told}");
    }
}
