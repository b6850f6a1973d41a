//! At a terminal: `reset` asks first, and a text that is saved during the question is not lost; `watch` clears the screen, and
//! colours the outcome, where that is wanted.

use std::io::{Read as _, Write as _};
use std::process::{Child, Command, Stdio};

use super::fixture::{Checkout, answer, answer_to, stub};

const FILE: &str = "tests/exercises/ch01_sum.rs";

/// Runs a command at its own terminal, and passes on all input and output.
const TERMINAL: &str = "import pty, sys; sys.exit(pty.spawn(sys.argv[1:]) >> 8)";

/// A command at its own terminal; none where no terminal can be had.
fn at_a_terminal(checkout: &Checkout, words: &[&str]) -> Option<Command> {
    let probe = Command::new("python3").args(["-c", "import pty; pty.openpty()"]).output();
    if !probe.is_ok_and(|answer| answer.status.success()) {
        eprintln!("SKIPPED: there is no Python that can make a terminal");
        return None;
    }
    let mut course = Command::new("python3");
    course.args(["-c", TERMINAL, env!("CARGO_BIN_EXE_course")]).args(words);
    course.current_dir(checkout.path("")).env_remove("CARGO_TARGET_DIR");
    Some(course)
}

/// `cargo course reset sum`, up to its question.
fn reset_asks(checkout: &Checkout) -> Option<(Child, String)> {
    let mut course = at_a_terminal(checkout, &["reset", "sum"])?;
    let mut course = course.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let (mut told, mut byte) = (String::new(), [0]);
    while !told.ends_with("[y/N] ") {
        let read = course.stdout.as_mut().unwrap().read(&mut byte).unwrap();
        assert_eq!(read, 1, "it does not ask:\n{told}");
        told.push(char::from(byte[0]));
    }
    Some((course, told))
}

#[test]
fn a_text_that_is_saved_while_it_asks_is_not_lost() {
    let given = || stub("ch01_sum", "ch01-sums");
    let newer = || answer("a / b");
    // The text that is saved and the reply; a part of the message, the text of the file, and the text that is put aside.
    for (saved, reply, told, file, aside) in [
        (newer(), "y\n", "what you had written is in", given(), Some(newer())),
        (given(), "y\n", "is as it was given", given(), None),
        (newer(), "\n", "Nothing was changed", newer(), None),
    ] {
        let checkout = Checkout::new();
        checkout.commit("given");
        checkout.sum_is("a * b");
        let Some((mut course, question)) = reset_asks(&checkout) else { return };
        assert!(question.contains("put your version aside?"), "{question}");
        checkout.write(FILE, &saved);
        course.stdin.as_mut().unwrap().write_all(reply.as_bytes()).unwrap();
        let mut said = String::new();
        course.stdout.as_mut().unwrap().read_to_string(&mut said).unwrap();
        assert!(course.wait().unwrap().success() && said.contains(told), "{said}");
        assert_eq!(said.contains(".course/ch01_sum-1.rs"), aside.is_some(), "{said}");
        assert_eq!(checkout.read(FILE), file);
        assert_eq!(std::fs::read_to_string(checkout.path(".course/ch01_sum-1.rs")).ok(), aside);
        assert_eq!(checkout.path(".course").exists(), aside.is_some());
    }
}

#[test]
fn a_terminal_is_cleared_and_coloured_if_it_can_be_and_may_be() {
    const CLEARS: &str = "\u{1b}[2J";
    const GREEN: &str = "\u{1b}[32m";
    let checkout = Checkout::new();
    checkout.sum_is("a + b");
    checkout.write("tests/exercises/ch02_ring.rs", &answer_to("ch02_ring", "a + b"));
    for (terminal, no_color, clears, colours) in [
        ("xterm", None, true, true),
        // An empty value does not count, and every other one does.
        ("xterm", Some(""), true, true),
        ("xterm", Some("1"), true, false),
        ("xterm", Some("0"), true, false),
        ("dumb", None, false, false),
        ("", None, false, false),
    ] {
        let Some(mut watch) = at_a_terminal(&checkout, &["watch", "sum"]) else { return };
        watch.env("TERM", terminal).env_remove("CLICOLOR").env_remove("CLICOLOR_FORCE");
        watch.env_remove("NO_COLOR").envs(no_color.map(|value| ("NO_COLOR", value)));
        if terminal.is_empty() {
            watch.env_remove("TERM");
        }
        let output = watch.stdin(Stdio::null()).output().unwrap();
        let told = String::from_utf8_lossy(&output.stdout);
        let said = format!("{terminal:?} {no_color:?}: {told:?}");
        assert!(output.status.success() && told.contains("ch01_sum passes its 2 checks"), "{said}");
        let found = [CLEARS, GREEN].map(|sign| told.contains(sign));
        assert_eq!(found, [clears, colours], "{said}");
    }
}
