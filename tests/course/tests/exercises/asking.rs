//! `reset` at a terminal, where it asks first: what is saved while the question stands there is not lost.

use std::io::{Read as _, Write as _};
use std::process::{Child, Command, Stdio};

use super::fixture::{Checkout, answer, stub};

const FILE: &str = "tests/exercises/ch01_sum.rs";

/// Runs what follows it at a terminal of its own, and passes on what is typed and what is told.
const TERMINAL: &str = "import pty, sys; sys.exit(pty.spawn(sys.argv[1:]) >> 8)";

/// `cargo course reset sum`, up to its question; none where no terminal can be had.
fn reset_asks(checkout: &Checkout) -> Option<(Child, String)> {
    // Where there is no Python, or no such thing as a terminal.
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

fn say(mut course: Child, answer: &str) -> String {
    course.stdin.as_mut().unwrap().write_all(answer.as_bytes()).unwrap();
    let mut told = String::new();
    course.stdout.as_mut().unwrap().read_to_string(&mut told).unwrap();
    assert!(course.wait().unwrap().success(), "{told}");
    told
}

#[test]
fn what_is_saved_while_it_asks_is_put_aside() {
    let checkout = Checkout::new();
    checkout.commit("given");
    checkout.sum_is("a * b");
    let Some((course, question)) = reset_asks(&checkout) else { return };
    assert!(question.contains("put your version aside?"), "{question}");
    checkout.sum_is("a / b");
    let told = say(course, "y\n");
    assert!(told.contains(".course/ch01_sum-1.rs"), "{told}");
    assert_eq!(checkout.read(".course/ch01_sum-1.rs"), answer("a / b"));
    assert_eq!(checkout.read(FILE), stub("ch01_sum", "ch01-sums"));
}

#[test]
fn what_comes_back_while_it_asks_is_not_put_aside() {
    let checkout = Checkout::new();
    checkout.commit("given");
    checkout.sum_is("a * b");
    let Some((course, _)) = reset_asks(&checkout) else { return };
    checkout.write(FILE, &stub("ch01_sum", "ch01-sums"));
    let told = say(course, "y\n");
    assert!(told.contains("is as it was given") && !told.contains(".course"), "{told}");
    assert!(!checkout.path(".course/ch01_sum-1.rs").exists());
}

#[test]
fn a_no_changes_nothing() {
    let checkout = Checkout::new();
    checkout.commit("given");
    checkout.sum_is("a * b");
    let Some((course, _)) = reset_asks(&checkout) else { return };
    checkout.sum_is("a / b");
    let told = say(course, "\n");
    assert!(told.contains("Nothing was changed"), "{told}");
    assert_eq!(checkout.read(FILE), answer("a / b"));
    assert!(!checkout.path(".course").exists());
}
