//! `reset` asks first at a terminal. A text that is saved during the question is not lost.

use std::io::{Read as _, Write as _};
use std::process::{Child, Command, Stdio};

use super::fixture::{Checkout, answer, stub};

const FILE: &str = "tests/exercises/ch01_sum.rs";

/// Runs a command at its own terminal, and passes on all input and output.
const TERMINAL: &str = "import pty, sys; sys.exit(pty.spawn(sys.argv[1:]) >> 8)";

/// `cargo course reset sum`, up to its question; none where no terminal can be had.
fn reset_asks(checkout: &Checkout) -> Option<(Child, String)> {
    let probe = Command::new("python3").args(["-c", "import pty; pty.openpty()"]).output();
    if !probe.is_ok_and(|answer| answer.status.success()) {
        eprintln!("SKIPPED: there is no Python that can make a terminal");
        return None;
    }
    let mut course = Command::new("python3")
        .args(["-c", TERMINAL, env!("CARGO_BIN_EXE_course"), "reset", "sum"])
        .current_dir(checkout.path(""))
        .env_remove("CARGO_TARGET_DIR")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
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
